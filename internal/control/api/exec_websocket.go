package api

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/control/api/strictjson"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// closeBase plus an HTTP status is the close code after an error; closeMalformed is that for 400.
const (
	closeBase      = 4000
	closeMalformed = websocket.StatusCode(closeBase + http.StatusBadRequest)
)

const (
	startWait  = 30 * time.Second // for a client's first message
	hangupWait = 5 * time.Second  // between HUP and KILL of a terminal whose user has left for good
	maxFrame   = 64 << 10         // output of one stream that is sent as one message, in bytes, before the channel byte
)

type execWebSocketInput struct {
	SandboxPath
	ProcessID string `query:"process_id" doc:"Attach to this process instead of starting one"`
	Offset    string `query:"offset" doc:"Attach from here on; payload and gap bytes add up to it"`
}

// execWebSocket starts a process by the client's first message, or attaches.
func (a *API) execWebSocket(w http.ResponseWriter, r *http.Request, in *execWebSocketInput) error {
	return a.webSocket(w, r, in.SandboxPath, func(c *conversation) error {
		return c.attachOr(in.ProcessID, in.Offset, func() error { return c.startByMessage(c.startCommand) })
	})
}

type terminalInput struct {
	SandboxPath
	Cols      uint16 `query:"cols" default:"80" minimum:"1"`
	Rows      uint16 `query:"rows" default:"24" minimum:"1"`
	User      string `query:"user"`
	Cwd       string `query:"cwd"`
	ProcessID string `query:"process_id" doc:"Attach to this terminal instead of opening one"`
	Offset    string `query:"offset" doc:"Attach from here on"`
}

// terminal is a login shell on a TTY.
func (a *API) terminal(w http.ResponseWriter, r *http.Request, in *terminalInput) error {
	for _, err := range []error{plain("user", in.User), plain("cwd", in.Cwd)} {
		if err != nil {
			return err
		}
	}
	return a.webSocket(w, r, in.SandboxPath, func(c *conversation) error {
		c.terminal = true
		return c.attachOr(in.ProcessID, in.Offset, func() error {
			c.command = true
			c.first = c.startMessage(&nodev1.StartProcess{Kind: string(cay.RecordTerminal), HangupOnDisconnect: true, Spec: &nodev1.ProcessSpec{
				Tty: true, Login: true, StdinOpen: true, Cols: uint32(in.Cols), Rows: uint32(in.Rows), User: in.User, Cwd: in.Cwd,
				MaxOutputBytes: cay.DefaultMaxOutput,
			}})
			return nil
		})
	})
}

// conversation is one WebSocket of the subprotocol cay.exec.v1.
type conversation struct {
	a        *API
	r        *http.Request
	conn     *websocket.Conn
	sandbox  *cay.Sandbox
	node     nodev1connect.NodeServiceClient
	first    *nodev1.ProcessInput
	initial  []byte // of stdin, from the start message
	process  cay.ID
	command  bool // it is known to be no program, so that nothing follows its exit
	terminal bool
	readOnly bool // an observer: no stdin, no resize

	reading   atomic.Bool  // the reader waits for the client, so that a ping must be answered
	pinging   atomic.Bool  // a ping is under way
	written   atomic.Int64 // messages sent
	delivery  streams.Delivery
	maxOutput int64
}

// webSocket accepts the upgrade and carries one conversation. prepare chooses the first message to the node.
func (a *API) webSocket(w http.ResponseWriter, r *http.Request, box SandboxPath, prepare func(*conversation) error) error {
	if !isUpgrade(r) {
		w.Header().Set("Upgrade", "websocket")
		return cay.Errorf(cay.InvalidRequest, "this is a WebSocket: upgrade, with the subprotocol %s", streams.Subprotocol).On("Upgrade")
	}
	if !headerHas(r.Header, "Sec-WebSocket-Protocol", streams.Subprotocol) {
		return cay.Errorf(cay.InvalidRequest, "the WebSocket must ask for the subprotocol %s", streams.Subprotocol).On("Sec-WebSocket-Protocol")
	}
	if err := checkHandshake(r); err != nil {
		return err
	}
	leave, err := a.enterStream()
	if err != nil {
		return err
	}
	defer leave()
	sb, node, err := a.enter(r.Context(), box)
	if err != nil {
		return err
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{streams.Subprotocol}, InsecureSkipVerify: true, // the origin has been checked
	})
	if err != nil {
		exchangeOf(r.Context()).err = err
		return nil // Accept has answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(streams.MaxMessage)
	a.metrics.streams.Inc()
	defer a.metrics.streams.Dec()
	c := &conversation{a: a, r: r, conn: conn, sandbox: sb, node: node}
	if err := prepare(c); err != nil {
		c.endWith(err)
		return nil
	}
	if c.first != nil {
		c.run()
	}
	return nil
}

// checkHandshake refuses what the library would answer in plain text.
func checkHandshake(r *http.Request) error {
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(r.Header.Get("Sec-WebSocket-Key")))
	if err != nil || len(key) != 16 || len(r.Header.Values("Sec-WebSocket-Key")) > 1 || r.Header.Get("Sec-WebSocket-Version") != "13" || r.Method != http.MethodGet {
		return cay.Errorf(cay.InvalidRequest, "this is no WebSocket handshake of version 13").On("Sec-WebSocket-Version")
	}
	return nil
}

// attachOr attaches where the query names a process, else starts one.
func (c *conversation) attachOr(process, offset string, start func() error) error {
	from, err := offsetOf("offset", offset)
	if err != nil {
		return err
	}
	if process == "" {
		if offset != "" {
			return cay.Errorf(cay.InvalidRequest, "`offset` needs `process_id`").On("offset")
		}
		return start()
	}
	id, err := c.a.resolveProcess(c.r.Context(), c.node, c.sandbox.ID, process)
	if err != nil {
		return err
	}
	c.process = id
	c.first = attachTo(c.sandbox.ID, id, from, false)
	c.first.GetAttach().Foreground = !c.terminal
	c.first.GetAttach().TakeStdin = !c.readOnly
	return nil
}

// startFields is what a start message may carry beside an exec's fields.
type startFields struct {
	Type string `json:"type"`
	ExecRequest
	TerminalSize
}

// startByMessage reads the start message, of which begin makes the first message to the node. A nil error without a first message means that the client has left.
func (c *conversation) startByMessage(begin func(data []byte) error) error {
	late := time.AfterFunc(startWait, func() {
		c.endWith(cay.Errorf(cay.Timeout, "no start message came within %s", startWait))
	})
	defer late.Stop()
	stop := c.a.whenClosing(func() { c.endWith(errClosing()) })
	defer stop()
	kind, data, err := c.conn.Read(context.Background()) // a context that ends would cut the connection without a word
	if err != nil {
		exchangeOf(c.r.Context()).err = err
		return nil //nolint:nilerr // the connection is of no further use
	}
	if kind != websocket.MessageText {
		return cay.Errorf(cay.InvalidRequest, "the first message must be a start, as text")
	}
	given, err := streams.MessageType(data)
	if err != nil {
		return err
	}
	if given != streams.TypeStart {
		return cay.Errorf(cay.InvalidRequest, "the first message must be of type start, not %q", clip(given, 100)).On("type")
	}
	return begin(data)
}

// startCommand makes the first message to the node of a start message.
func (c *conversation) startCommand(data []byte) error {
	f, err := decodeStart(data)
	if err != nil {
		return err
	}
	spec := f.spec()
	spec.Tty, spec.Cols, spec.Rows, spec.StdinOpen = f.TTY, uint32(f.Cols), uint32(f.Rows), true
	c.initial, _ = f.input()
	c.command, c.maxOutput = true, f.maxOutput()
	c.first = c.startMessage(&nodev1.StartProcess{Kind: string(cay.RecordExec), Foreground: true, KillOnDisconnect: f.KillOnDisconnect, Spec: spec})
	return nil
}

// decodeStart decodes and checks a start message.
func decodeStart(data []byte) (*startFields, error) {
	var f startFields
	if err := strictjson.Decode(data, &f); err != nil {
		return nil, err
	}
	if err := f.validate(); err != nil {
		return nil, err
	}
	if err := f.settle(); err != nil {
		return nil, err
	}
	return &f, nil
}

func (c *conversation) startMessage(st *nodev1.StartProcess) *nodev1.ProcessInput {
	c.process = cay.NewID(cay.PrefixProcess)
	st.SandboxId, st.ProcessId, st.Actor = string(c.sandbox.ID), string(c.process), actorOf(c.r.Context())
	return &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Start{Start: st}}
}

// run carries the conversation from the start or attach to its end.
func (c *conversation) run() {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(c.r.Context()))
	defer cancel(nil)
	stop := c.a.whenClosing(func() { cancel(errClosing()) })
	defer stop()
	begin := time.Now()
	s, err := open(context.WithoutCancel(c.r.Context()), c.node, c.first)
	if err != nil {
		c.endWith(err)
		return
	}
	defer s.end()
	st, err := s.started(ctx)
	if err != nil {
		c.endWith(err)
		return
	}
	c.a.metrics.running(c.first, begin)
	// The reader ends when the connection does, which every way out of here brings about before it waits.
	inputs := make(chan *nodev1.ProcessInput, 4)
	left := make(chan error, 1)
	s.pumps.Go(func() { c.readClient(ctx, s, inputs, left) })
	s.pumps.Go(func() { c.feed(ctx, s, inputs) })
	defer func() {
		cancel(errClientGone)
		s.cancel()
		c.conn.CloseNow()
	}()
	msg, err := streams.Started(c.process, st.GetOffset(), st.GetStdinOffset())
	if err == nil {
		err = c.write(websocket.MessageText, msg)
	}
	if err == nil {
		err = c.send(ctx, s, left)
	}
	switch {
	case err == nil:
		c.close(websocket.StatusNormalClosure, "exit")
	case websocket.CloseStatus(err) == websocket.StatusNormalClosure:
		if c.terminal {
			c.hangUp(s)
		}
	case errors.Is(err, errClientGone):
	case errors.As(err, new(websocket.CloseError)), context.Cause(ctx) == nil && isConnError(err):
	default:
		if context.Cause(ctx) != nil {
			s.detach()
		}
		c.endWith(err)
	}
}

// connError is a failure of the client's connection.
type connError struct{ error }

func (e connError) Unwrap() error { return e.error }

func isConnError(err error) bool { return errors.As(err, new(connError)) }

func (c *conversation) write(kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), c.a.WriteTimeout)
	defer cancel()
	if err := c.conn.Write(ctx, kind, data); err != nil {
		return connError{err}
	}
	c.written.Add(1)
	return nil
}

// send passes the node's messages on until the exit, which is nil.
func (c *conversation) send(ctx context.Context, s *nodeStream, left chan error) error {
	alive := time.NewTicker(c.a.Keepalive)
	defer alive.Stop()
	buf := make([]byte, 0, 1+maxFrame)
	var held *nodev1.ProcessOutput
	exited := false
	for {
		m, ok := held, true
		held = nil
		if m == nil {
			select {
			case m, ok = <-s.outputs:
			case err := <-left:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-alive.C:
				c.ping(ctx, s, left)
				continue
			}
		}
		switch {
		case !ok && errors.Is(s.err, io.EOF) && exited:
			return nil // it was no program
		case !ok && errors.Is(s.err, io.EOF):
			return errBroken()
		case m.GetReport() != nil:
			return c.sendReport(ctx, m.GetReport())
		case !ok:
			return s.err
		case m.GetError() != nil:
			return streamError(m.GetError())
		case m.GetData() != nil:
			buf, held = gather(buf[:0], m.GetData(), s.outputs)
			c.a.metrics.output.Add(float64(len(buf) - 1))
			if err := c.write(websocket.MessageBinary, buf); err != nil {
				return err
			}
		case m.GetGap() != nil:
			g := m.GetGap()
			stream, gap := streamOf(g.GetStream()), cay.Gap{Offset: g.GetOffset(), Bytes: g.GetBytes()}
			c.delivery.AddGap(stream, &gap)
			msg, err := streams.GapMessage(stream, gap)
			if err == nil {
				err = c.write(websocket.MessageText, msg)
			}
			if err != nil {
				return err
			}
		case m.GetExit() != nil:
			x := m.GetExit()
			if c.maxOutput > 0 {
				c.delivery.Truncated.Stdout = c.delivery.Truncated.Stdout || x.GetStdoutSize() > c.maxOutput
				c.delivery.Truncated.Stderr = c.delivery.Truncated.Stderr || x.GetStderrSize() > c.maxOutput
			}
			msg, err := streams.ExitMessage(outcome(c.process, x), c.delivery)
			if err == nil {
				err = c.write(websocket.MessageText, msg)
			}
			if err != nil || c.command {
				return err
			}
			exited = true
		}
	}
}

// gather makes one binary message of a run and of what follows it at once on the same stream. held is the first that does not fit.
func gather(buf []byte, d *nodev1.Data, outputs <-chan *nodev1.ProcessOutput) (msg []byte, held *nodev1.ProcessOutput) {
	buf = append(append(buf, byte(streamOf(d.GetStream()))), d.GetData()...)
	for {
		select {
		case m, ok := <-outputs:
			if !ok {
				return buf, nil // read again as closed
			}
			next := m.GetData()
			if next == nil || next.GetStream() != d.GetStream() || len(buf)-1+len(next.GetData()) > maxFrame {
				return buf, m
			}
			buf = append(buf, next.GetData()...)
		default:
			return buf, nil
		}
	}
}

// ping finds out, without holding up output, whether the client is there. Silence means nothing while output goes out all the same
// (the answer comes behind it), nor while the reader is held up by a process that takes no input and so cannot see the answer.
func (c *conversation) ping(ctx context.Context, s *nodeStream, left chan<- error) {
	if !c.pinging.CompareAndSwap(false, true) {
		return
	}
	written := c.written.Load()
	s.pumps.Go(func() {
		defer c.pinging.Store(false)
		ctx, cancel := context.WithTimeout(ctx, c.a.WriteTimeout)
		defer cancel()
		if err := c.conn.Ping(ctx); err != nil && c.reading.Load() && c.written.Load() == written {
			c.leave(left, connError{err})
		}
	})
}

// leave says that the client has gone, or must go. Only the first word counts.
func (c *conversation) leave(left chan<- error, err error) {
	select {
	case left <- err:
	default:
	}
}

// readClient takes the client's messages until the connection ends; left says how.
func (c *conversation) readClient(ctx context.Context, s *nodeStream, inputs chan<- *nodev1.ProcessInput, left chan<- error) {
	defer close(inputs)
	for {
		c.reading.Store(true)
		kind, data, err := c.conn.Read(context.Background()) // ends with the connection
		c.reading.Store(false)
		if err != nil {
			c.leave(left, connError{err})
			return
		}
		in, err := c.understand(ctx, kind, data)
		if err != nil {
			c.leave(left, err)
			return
		}
		if in == nil {
			continue
		}
		select {
		case inputs <- in:
		case <-ctx.Done():
			c.leave(left, context.Cause(ctx))
			return
		}
	}
}

// understand turns a client's message into what goes to the process; nil for what was dealt with here.
func (c *conversation) understand(ctx context.Context, kind websocket.MessageType, data []byte) (*nodev1.ProcessInput, error) {
	if kind == websocket.MessageBinary {
		if c.readOnly {
			return nil, cay.Errorf(cay.InvalidRequest, "this connection only reads; stdin goes through …/exec?process_id= or …/terminal?process_id=")
		}
		return &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Stdin{Stdin: data}}, nil
	}
	m, err := streams.DecodeMessage(data)
	if err != nil {
		return nil, err
	}
	if c.readOnly && (m.Type == streams.TypeResize || m.Type == streams.TypeCloseStdin) {
		return nil, cay.Errorf(cay.InvalidRequest, "this connection only reads").On("type")
	}
	switch m.Type {
	case streams.TypePing:
		return nil, c.write(websocket.MessageText, streams.Pong())
	case streams.TypeResize:
		return &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Resize{Resize: &nodev1.Resize{Cols: uint32(m.Cols), Rows: uint32(m.Rows)}}}, nil
	case streams.TypeSignal: // beside the stream, so that it is not held up behind a stdin that nobody reads
		err := c.a.signal(ctx, c.node, c.sandbox.ID, string(c.process), m.Signal, m.Tree)
		if reason := cay.ReasonOf(err); reason == cay.NotFound || reason == cay.Gone || reason == cay.Conflict {
			err = nil // it has just ended
		}
		return nil, err
	}
	return &nodev1.ProcessInput{Input: &nodev1.ProcessInput_CloseStdin{CloseStdin: true}}, nil
}

// feed passes input on to the process, in pieces, until there is no more.
func (c *conversation) feed(ctx context.Context, s *nodeStream, inputs <-chan *nodev1.ProcessInput) {
	pass := func(in *nodev1.ProcessInput) bool {
		data := in.GetStdin()
		for len(data) > stdinPiece {
			if s.send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Stdin{Stdin: data[:stdinPiece]}}) != nil {
				return false
			}
			data = data[stdinPiece:]
			in = &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Stdin{Stdin: data}}
		}
		return s.send(in) == nil
	}
	if len(c.initial) > 0 && !pass(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Stdin{Stdin: c.initial}}) {
		return
	}
	for {
		select {
		case in, ok := <-inputs:
			if !ok || !pass(in) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// hangUp ends a terminal whose user closed it: HUP, and KILL for what is left after a while.
func (c *conversation) hangUp(s *nodeStream) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), hangupWait)
	defer cancel()
	stop := c.a.whenClosing(cancel)
	defer stop()
	_ = c.a.signal(ctx, c.node, c.sandbox.ID, string(c.process), "HUP", true)
	for {
		m, err := s.next(ctx)
		if err == nil && m.GetExit() == nil {
			continue
		}
		if err != nil && ctx.Err() != nil {
			kill, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), hangupWait)
			defer cancel()
			_ = c.a.signal(kill, c.node, c.sandbox.ID, string(c.process), "KILL", true)
		}
		return
	}
}

// endWith tells the client why the conversation ends.
func (c *conversation) endWith(err error) {
	exchangeOf(c.r.Context()).err = err
	d := problem.From(err, "")
	code := websocket.StatusCode(closeBase + d.Status)
	select {
	case <-c.a.closing:
		code = websocket.StatusServiceRestart
	default:
		if d.Reason == cay.Internal {
			code = websocket.StatusInternalError
		}
	}
	if msg, err := streams.ErrorMessage(d.Reason, d.Detail); err == nil {
		_ = c.write(websocket.MessageText, msg)
	}
	c.close(code, string(d.Reason))
}

// close sends the close frame and waits for the client's.
func (c *conversation) close(code websocket.StatusCode, reason string) {
	_ = c.conn.Close(code, reason) // bounded by the library: 5 s to write, 5 s for the answer
}

// signal sends a signal to a process.
func (a *API) signal(ctx context.Context, node nodev1connect.NodeServiceClient, sandbox cay.ID, process, name string, tree bool) error {
	_, err := node.Signal(ctx, connect.NewRequest(&nodev1.SignalRequest{SandboxId: string(sandbox), ProcessId: process, Signal: name, Tree: tree}))
	return decode(err)
}
