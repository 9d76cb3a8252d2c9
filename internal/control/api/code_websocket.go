package api

import (
	"context"
	"net/http"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/control/api/strictjson"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// codeWebSocket runs a program by the client's first message, or attaches.
func (a *API) codeWebSocket(w http.ResponseWriter, r *http.Request, in *execWebSocketInput) error {
	return a.webSocket(w, r, in.SandboxPath, func(c *conversation) error {
		return c.attachOr(in.ProcessID, in.Offset, func() error { return c.startByMessage(c.startCode) })
	})
}

// codeFields is what a start message of a program may carry.
type codeFields struct {
	Type string `json:"type"`
	CodeRequest
}

// startCode makes the first message to the node of a start message.
func (c *conversation) startCode(data []byte) error {
	var f codeFields
	if err := strictjson.Decode(data, &f); err != nil {
		return err
	}
	if err := f.validate(); err != nil {
		return err
	}
	spec := f.spec(c.sandbox)
	spec.StdinOpen = f.ContextID == ""
	c.initial, _ = f.input()
	c.maxOutput = f.maxOutput()
	c.first = c.startMessage(&nodev1.StartProcess{Kind: string(cay.RecordCode), Foreground: true, KillOnDisconnect: f.KillOnDisconnect, Spec: spec})
	return nil
}

// sendReport sends what a program left behind as one message, in as many frames as it takes.
func (c *conversation) sendReport(ctx context.Context, r *nodev1.CodeReport) error {
	writing, cancel := context.WithCancel(context.WithoutCancel(c.r.Context()))
	defer cancel()
	stalled := time.AfterFunc(c.a.WriteTimeout, cancel)
	defer stalled.Stop()
	w, err := c.conn.Writer(writing, websocket.MessageText)
	if err != nil {
		return connError{err}
	}
	out := progressWriter{write: w.Write, progress: func() { stalled.Reset(c.a.WriteTimeout) }}
	m := streams.NewMembers(&out)
	m.Open("{")
	m.Member("type", "result")
	if err := m.Close(); err != nil {
		return connError{err}
	}
	if _, err := out.Write([]byte(",")); err != nil {
		return connError{err}
	}
	outcome := programOutcome{a: c.a, node: c.node, sandbox: c.sandbox}
	if err := outcome.write(ctx, &out, r); err != nil {
		c.conn.CloseNow() // a message that has begun cannot be taken back
		return connError{err}
	}
	if _, err := out.Write([]byte("}")); err != nil {
		return connError{err}
	}
	if err := w.Close(); err != nil {
		return connError{err}
	}
	c.written.Add(1)
	return nil
}

// progressWriter notes when something was written.
type progressWriter struct {
	write    func([]byte) (int, error)
	progress func()
}

// Write implements io.Writer.
func (p *progressWriter) Write(b []byte) (int, error) {
	n, err := p.write(b)
	if err == nil {
		p.progress()
	}
	return n, err
}
