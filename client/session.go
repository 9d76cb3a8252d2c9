package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	subprotocol    = "cay.exec.v1"
	stdinPiece     = 32 << 10 // bytes of stdin in one message
	stdinReplay    = 4 << 20  // bytes of stdin kept to be sent again; more than the server and the network between can hold
	maxServerFrame = 1 << 20  // bytes of one message
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
	route   string // exec or terminal: leaving means something else on each
	io      SessionIO
	tty     bool
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when run has ended
	exit    *Exit         // written before done is closed
	err     error         // written before done is closed

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

// Attach joins a process that runs, or ended not long ago, from offset on.
func (c *Client) Attach(ctx context.Context, sandbox, process string, offset int64, o SessionIO) (*Session, error) {
	s := c.newSession(sandbox, "exec", o)
	s.process, s.offset = process, offset
	return s.begin(ctx, s.attach)
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

// started is the server's first message of a connection.
type started struct {
	ProcessID   string `json:"process_id"`
	Offset      int64  `json:"offset"`
	StdinOffset int64  `json:"stdin_offset"`
}

// link is one connection that has said started.
type link struct {
	conn    *websocket.Conn
	watch   *watchdog // closes conn when it falls silent
	started started
}

func (l *link) end() {
	l.watch.stop()
	l.conn.CloseNow()
}

func (s *Session) attach(ctx context.Context) (*link, error) {
	query := url.Values{"process_id": {s.ProcessID()}, "offset": {strconv.FormatInt(s.offset, 10)}}
	return s.dial(ctx, query, nil)
}

// dial connects, sends start if there is one, and reads up to the server's started.
func (s *Session) dial(ctx context.Context, query url.Values, start map[string]any) (_ *link, err error) {
	c := s.c
	l := new(link)
	header := http.Header{}
	c.authorize(header)
	target := c.endpoint(query, sandboxPath(s.sandbox, s.route)...)
	handshake, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel() // it bounds the handshake alone
	conn, res, err := websocket.Dial(handshake, target, &websocket.DialOptions{
		HTTPClient: c.http, HTTPHeader: header, Subprotocols: []string{subprotocol},
		OnPingReceived: func(context.Context, []byte) bool { l.watch.feed(); return true },
	})
	if err != nil {
		if res != nil && res.StatusCode >= 400 {
			var body []byte
			if res.Body != nil {
				body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
				res.Body.Close()
			}
			return nil, problemOf(res.StatusCode, res.Header, body)
		}
		return nil, fmt.Errorf("connect to %s: %w", c.endpoint(nil, sandboxPath(s.sandbox, s.route)...), err)
	}
	l.conn, l.watch = conn, newWatchdog(c.silence, func() { conn.CloseNow() })
	defer func() {
		if err != nil {
			l.end()
		}
	}()
	conn.SetReadLimit(maxServerFrame + 64)
	if conn.Subprotocol() != subprotocol {
		return nil, fmt.Errorf("%w: it does not speak %s", errProtocol, subprotocol)
	}
	if start != nil {
		if err := writeJSON(ctx, conn, start); err != nil {
			return nil, &startSentError{err}
		}
	}
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			if start != nil {
				return nil, &startSentError{closeError(err)}
			}
			return nil, closeError(err)
		}
		l.watch.feed()
		if kind != websocket.MessageText {
			return nil, fmt.Errorf("%w: data before started", errProtocol)
		}
		m, err := parseMessage(data)
		if err != nil {
			return nil, err
		}
		switch m.Type {
		case "started":
			l.started = started{ProcessID: m.ProcessID, Offset: m.Offset, StdinOffset: m.StdinOffset}
			return l, nil
		case "error":
			err := m.problem(data)
			if start != nil {
				return nil, &startSentError{err}
			}
			return nil, err
		}
	}
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
			goodbye, cancel := context.WithTimeout(ctx, goodbyeTimeout)
			defer cancel()
			l.conn.Read(goodbye) // answers the server's close, so that neither side sees a broken connection
			return exit, nil
		case "error":
			return nil, m.problem(data)
		}
	}
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

// message is any text message of the server.
type message struct {
	Type        string `json:"type"`
	ProcessID   string `json:"process_id"`
	Offset      int64  `json:"offset"`
	StdinOffset int64  `json:"stdin_offset"`
	Stream      string `json:"stream"`
	Bytes       int64  `json:"bytes"`
	Reason      string `json:"reason"`
	Detail      string `json:"detail"`
}

func parseMessage(data []byte) (message, error) {
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("%w: %w", errProtocol, err)
	}
	if m.Offset < 0 || m.Bytes < 0 || m.StdinOffset < 0 {
		return m, fmt.Errorf("%w: a negative offset", errProtocol)
	}
	return m, nil
}

func (m message) problem(data []byte) *Error {
	return &Error{Reason: m.Reason, Detail: m.Detail, Body: data}
}

// closeError turns the server's close codes 4000 + HTTP status into an [*Error].
func closeError(err error) error {
	var ce websocket.CloseError
	if errors.As(err, &ce) && ce.Code >= 4400 && ce.Code < 4600 {
		status := int(ce.Code) - 4000
		return &Error{Status: status, Detail: strings.TrimSpace(ce.Reason)}
	}
	return err
}

func writeJSON(ctx context.Context, conn *websocket.Conn, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return conn.Write(ctx, websocket.MessageText, data)
}
