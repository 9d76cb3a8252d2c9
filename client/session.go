package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	subprotocol    = "cay.exec.v1"
	stdinPiece     = 32 << 10 // bytes of stdin in one message
	stdinReplay    = 4 << 20  // bytes of stdin kept to be sent again; more than the server and the network between can hold
	maxServerFrame = 1 << 20  // bytes of one message, but for the result of code
	closeTimeout   = 5 * time.Second
	goodbyeTimeout = 500 * time.Millisecond // for the server's close after an exit

	handshakeTimeout = 30 * time.Second
	shortLife        = 5 * time.Second // a connection that ends sooner did not work
	maxShortLives    = 30              // of them in a row, then the session gives up
)

// SessionRequest is a command whose input and output are live.
type SessionRequest struct {
	ExecRequest
	SessionIO

	TTY        bool // one terminal for input and output; all output goes to Stdout
	Cols, Rows int
}

// SessionIO is where a session's output goes. The writers are called from one goroutine, one at a time; a writer that blocks holds
// the process back, and one that fails ends the session with its error. Nil discards.
type SessionIO struct {
	Stdout io.Writer
	Stderr io.Writer

	// Gap is told of output that is missing: not kept by the server, or missed while lagging behind. Nil ignores.
	Gap func(GapEvent)
	// Lost is told that the connection broke and is being attached again; Restored that it worked. They may be nil.
	Lost     func(error)
	Restored func()
}

// Session is a process with live input and output over one WebSocket at a time. When the connection breaks it attaches again by
// offset: no output is lost or doubled, and input that had not arrived is sent again. Its methods are safe for concurrent use.
type Session struct {
	c       *Client
	sandbox string
	route   string // exec, code or terminal: leaving and the end mean something else on each
	io      SessionIO
	tty     bool
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when run has ended
	exit    *Exit         // written by run, before done is closed
	outcome *CodeOutcome  // written by run, before done is closed
	err     error         // written by run, before done is closed

	inputMu sync.Mutex   // makes Write and CloseStdin whole; taken before stdinMu
	stdinMu sync.Mutex   // orders stdin on a connection; held while a piece is sent, never while waiting for a connection
	stdin   replayBuffer // guarded by stdinMu

	mu         sync.Mutex
	process    string          // guarded by mu
	offset     int64           // of output; written by run alone
	conn       *websocket.Conn // guarded by mu; nil while disconnected
	connected  chan struct{}   // guarded by mu; closed while conn is set
	stdinEnded bool            // guarded by mu: close_stdin was asked for
	cols, rows int             // guarded by mu; of the last resize
	leaving    bool            // guarded by mu: Close or Detach was called
}

// Session starts a command and returns once it runs. ctx bounds the whole session: its end detaches. The process's standard
// input stays open until [Session.CloseStdin].
func (c *Client) Session(ctx context.Context, sandbox string, r SessionRequest) (*Session, error) {
	members, err := r.members()
	if err != nil {
		return nil, err
	}
	if r.Stdin != nil {
		return nil, errors.New("session: input goes through Session.Stdin")
	}
	members["type"] = "start"
	if r.TTY {
		members["tty"] = true
		members["cols"], members["rows"] = max(r.Cols, 1), max(r.Rows, 1)
	}
	s := c.newSession(sandbox, "exec", r.SessionIO)
	s.tty, s.cols, s.rows = r.TTY, r.Cols, r.Rows
	return s.begin(ctx, func(ctx context.Context) (*link, error) {
		return s.dial(ctx, nil, members)
	})
}

// TerminalRequest asks for a login shell on a terminal.
type TerminalRequest struct {
	SessionIO
	Cols, Rows int
	User, Cwd  string
}

// Terminal opens a login shell on a terminal of its own and returns once it runs. [Session.Close] hangs it up.
func (c *Client) Terminal(ctx context.Context, sandbox string, r TerminalRequest) (*Session, error) {
	query := url.Values{"cols": {strconv.Itoa(max(r.Cols, 1))}, "rows": {strconv.Itoa(max(r.Rows, 1))}}
	for name, value := range map[string]string{"user": r.User, "cwd": r.Cwd} {
		if value != "" {
			query.Set(name, value)
		}
	}
	s := c.newSession(sandbox, "terminal", r.SessionIO)
	s.tty, s.cols, s.rows = true, r.Cols, r.Rows
	return s.begin(ctx, func(ctx context.Context) (*link, error) {
		return s.dial(ctx, query, nil)
	})
}

func (c *Client) newSession(sandbox, route string, o SessionIO) *Session {
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Stderr == nil {
		o.Stderr = io.Discard
	}
	return &Session{c: c, sandbox: sandbox, route: route, io: o, done: make(chan struct{}), connected: make(chan struct{})}
}

// begin makes the first connection, trying again while that is safe, and starts run.
func (s *Session) begin(ctx context.Context, dial func(context.Context) (*link, error)) (*Session, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.cancel = cancel
	for attempt := 0; ; attempt++ {
		l, err := dial(ctx)
		if err == nil {
			s.stdin.base = l.started.StdinOffset
			s.accept(l.started)
			go func() {
				defer close(s.done)
				defer cancel(nil)
				s.exit, s.err = s.run(ctx, l)
			}()
			return s, nil
		}
		var sent *startSentError
		wait, again := s.c.retry.next(attempt, err)
		if errors.As(err, &sent) || !again || ctx.Err() != nil {
			cancel(nil)
			return nil, err
		}
		if err := sleep(ctx, wait); err != nil {
			cancel(nil)
			return nil, err
		}
	}
}

// startSentError is a failure after the start was sent: the command may or may not run, so that starting again is not safe.
type startSentError struct{ err error }

func (e *startSentError) Error() string { return "start a command: " + e.err.Error() }
func (e *startSentError) Unwrap() error { return e.err }

// run reads from l and its successors until the exit, the caller's leaving or a fault that attaching again cannot mend.
func (s *Session) run(ctx context.Context, l *link) (*Exit, error) {
	for shortLives := 0; ; {
		began := time.Now()
		exit, err := s.serve(ctx, l)
		if exit != nil {
			return exit, nil
		}
		if shortLives++; time.Since(began) >= shortLife {
			shortLives = 0
		}
		if shortLives > maxShortLives {
			return nil, s.wrap(err)
		}
		if l, err = s.reattach(ctx, shortLives/4, err); err != nil {
			return nil, err
		}
		if s.io.Restored != nil {
			s.io.Restored()
		}
	}
}

// reattach makes a new connection after err ended the last, for as long as [Options.ReconnectFor] allows. attempt sets how long
// the first pause is.
func (s *Session) reattach(ctx context.Context, attempt int, err error) (*link, error) {
	s.mu.Lock()
	leaving := s.leaving
	s.mu.Unlock()
	if leaving {
		return nil, ErrDetached
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if _, again := sessionMendable(err); !again || s.c.reconnectFor < 0 {
		return nil, s.wrap(err)
	}
	if s.io.Lost != nil {
		s.io.Lost(err)
	}
	deadline := time.Now().Add(s.c.reconnectFor)
	for ; ; attempt++ {
		after, again := sessionMendable(err)
		if !again || time.Now().After(deadline) {
			return nil, s.wrap(err)
		}
		if err := sleep(ctx, max(after, backoff(attempt))); err != nil {
			return nil, err
		}
		var l *link
		if l, err = s.attach(ctx); err == nil {
			if l.started.Offset > s.offset { // output between was not kept
				s.gap(GapEvent{Gap: Gap{Offset: s.offset, Bytes: l.started.Offset - s.offset}})
			}
			s.offset = l.started.Offset
			return l, nil
		}
	}
}

func (s *Session) wrap(err error) error {
	return fmt.Errorf("session of process %s in %s: %w", s.ProcessID(), s.sandbox, err)
}

// ErrDetached is what [Session.Wait] answers after [Session.Close] or [Session.Detach], if no exit was seen before.
var ErrDetached = errors.New("the session was left")

// errWriter is a caller's writer that failed.
type errWriter struct{ err error }

func (e *errWriter) Error() string { return "write output: " + e.err.Error() }
func (e *errWriter) Unwrap() error { return e.err }

func sessionMendable(err error) (time.Duration, bool) {
	var w *errWriter
	if errors.As(err, &w) {
		return 0, false
	}
	switch websocket.CloseStatus(err) {
	case websocket.StatusMessageTooBig, websocket.StatusProtocolError, websocket.StatusPolicyViolation:
		return 0, false
	}
	return mendable(err)
}

func (s *Session) accept(st started) {
	s.mu.Lock()
	s.process = st.ProcessID
	s.mu.Unlock()
	s.offset = st.Offset
}

func (s *Session) gap(g GapEvent) {
	if s.io.Gap != nil {
		s.io.Gap(g)
	}
}

// ProcessID is the process's id, prc_….
func (s *Session) ProcessID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// Done is closed once the session has ended and [Session.Wait] will not block.
func (s *Session) Done() <-chan struct{} { return s.done }

// Wait returns how the process ended, or why that will not be known here: [ErrDetached], the context's cause, an [*Error].
func (s *Session) Wait() (*Exit, error) {
	<-s.done
	return s.exit, s.err
}

// Outcome is what code brought besides its output, once [Session.Wait] has returned its exit; nil for a command.
func (s *Session) Outcome() *CodeOutcome {
	<-s.done
	return s.outcome
}

// Close ends the session in good order: a terminal is hung up, a command runs on unless it was started with KillOnDisconnect.
func (s *Session) Close() error { return s.leave(websocket.StatusNormalClosure) }

// Detach leaves the process as it is, so that it can be attached to again; a terminal waits 60 s for that.
func (s *Session) Detach() error { return s.leave(websocket.StatusGoingAway) }

func (s *Session) leave(code websocket.StatusCode) error {
	s.mu.Lock()
	s.leaving = true
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		closed := make(chan struct{})
		go func() { // Close waits for the peer; a peer that is gone is not waited for
			defer close(closed)
			conn.Close(code, "")
		}()
		t := time.NewTimer(closeTimeout)
		select {
		case <-closed:
		case <-t.C:
			conn.CloseNow()
			<-closed
		}
		t.Stop()
	}
	s.cancel(ErrDetached)
	<-s.done
	return nil
}

// serve passes on what l brings until it ends. exit is nil when it ended without one.
func (s *Session) serve(ctx context.Context, l *link) (exit *Exit, err error) {
	replayed := make(chan struct{})
	go func() { // beside the reading below: the process may not take input before its output is read
		defer close(replayed)
		s.publish(ctx, l)
	}()
	defer func() {
		l.end()
		<-replayed
		s.unpublish()
	}()
	for {
		l.watch.feed()
		kind, data, err := l.conn.Read(ctx)
		if err != nil {
			return nil, closeError(err)
		}
		l.watch.stop() // the writers' time is their own
		if kind == websocket.MessageBinary {
			if err := s.output(data); err != nil {
				return nil, err
			}
			continue
		}
		m, err := parseMessage(data)
		if err != nil {
			return nil, err
		}
		switch m.Type {
		case "gap":
			s.gap(GapEvent{Stderr: m.Stream == "stderr", Gap: Gap{Offset: m.Offset, Bytes: m.Bytes}})
			s.offset += m.Bytes
		case "exit":
			exit := new(Exit)
			if err := json.Unmarshal(data, exit); err != nil {
				return nil, fmt.Errorf("%w: exit: %w", errProtocol, err)
			}
			if exit.ProcessID == "" {
				exit.ProcessID = s.ProcessID()
			}
			if s.route == "code" && s.outcome == nil {
				if s.outcome, err = s.result(ctx, l); err != nil {
					return nil, err
				}
			}
			s.goodbye(ctx, l)
			return exit, nil
		case "error":
			return nil, m.problem(data)
		}
	}
}

// result reads what follows the exit of code.
func (s *Session) result(ctx context.Context, l *link) (*CodeOutcome, error) {
	for {
		l.watch.feed()
		kind, data, err := l.conn.Read(ctx)
		if err != nil {
			return nil, closeError(err)
		}
		outcome, err := parseResult(kind, data)
		if outcome != nil || err != nil {
			return outcome, err
		}
	}
}

// parseResult answers nil for a message that is none.
func parseResult(kind websocket.MessageType, data []byte) (*CodeOutcome, error) {
	m, err := parseMessage(data)
	switch {
	case kind != websocket.MessageText || err != nil:
		return nil, fmt.Errorf("%w: data after the exit", errProtocol)
	case m.Type == "error":
		return nil, m.problem(data)
	case m.Type != "result":
		return nil, nil
	}
	outcome := new(CodeOutcome)
	if err := json.Unmarshal(data, outcome); err != nil {
		return nil, fmt.Errorf("%w: result: %w", errProtocol, err)
	}
	return outcome, nil
}

// goodbye answers the server's close, so that neither side sees a broken connection. A process that was attached to may have run
// code, whose result comes before.
func (s *Session) goodbye(ctx context.Context, l *link) {
	ctx, cancel := context.WithTimeout(ctx, goodbyeTimeout)
	defer cancel()
	for {
		kind, data, err := l.conn.Read(ctx)
		if err != nil {
			return
		}
		if outcome, err := parseResult(kind, data); err == nil && outcome != nil {
			s.outcome = outcome
		}
	}
}

// readLimit bounds a message. Only code has a result, and an attachment may be to code.
func (s *Session) readLimit() int64 {
	if s.route == "terminal" {
		return maxServerFrame + 64
	}
	return maxEventBytes
}

func (s *Session) output(frame []byte) error {
	if len(frame) == 0 {
		return fmt.Errorf("%w: an empty frame", errProtocol)
	}
	to := s.io.Stdout
	switch frame[0] {
	case 1:
	case 2:
		to = s.io.Stderr
	default:
		return fmt.Errorf("%w: output on channel %d", errProtocol, frame[0])
	}
	if _, err := to.Write(frame[1:]); err != nil {
		return &errWriter{err}
	}
	s.offset += int64(len(frame) - 1)
	return nil
}
