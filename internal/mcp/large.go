package mcp

import (
	"bytes"
	"context"
	"io"
	"mime"
	"net/http"
	"sync"
)

// largeEvent is from how many bytes on an event is large. Those of output are smaller by far.
const largeEvent = 1 << 20

// LargeEvents bounds how many streams are within, or past, a large event at once: a reader of events has each one whole in memory, and
// what a program left in /output and in its results is one event. Others wait at that place, and with them whoever writes to them.
type LargeEvents struct{ slots chan struct{} }

// NewLargeEvents lets n streams be past a large event at once.
func NewLargeEvents(n int) *LargeEvents { return &LargeEvents{make(chan struct{}, n)} }

// Over is next, with the streams of events that it answers held to the bound.
func (l *LargeEvents) Over(next http.RoundTripper) http.RoundTripper { return &largeTransport{l, next} }

type largeTransport struct {
	bound *LargeEvents
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *largeTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/event-stream" {
		resp.Body = &largeBody{ReadCloser: resp.Body, ctx: r.Context(), slots: t.bound.slots}
	}
	return resp, nil
}

type largeBody struct {
	io.ReadCloser
	ctx   context.Context
	slots chan struct{}
	line  int // bytes of the line that is being read

	mu     sync.Mutex
	held   bool // guarded by mu
	closed bool // guarded by mu
}

// Read implements io.Reader.
func (b *largeBody) Read(p []byte) (int, error) {
	if b.line > largeEvent {
		if err := b.hold(); err != nil {
			return 0, err
		}
	}
	n, err := b.ReadCloser.Read(p)
	if end := bytes.LastIndexByte(p[:n], '\n'); end >= 0 {
		b.line = n - end - 1
	} else {
		b.line += n
	}
	return n, err
}

// hold takes a slot, which Close gives back.
func (b *largeBody) hold() error {
	b.mu.Lock()
	held := b.held
	b.mu.Unlock()
	if held {
		return nil
	}
	select {
	case b.slots <- struct{}{}:
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		<-b.slots
		return http.ErrBodyReadAfterClose
	}
	b.held = true
	return nil
}

// Close implements io.Closer.
func (b *largeBody) Close() error {
	b.mu.Lock()
	if b.held {
		<-b.slots
	}
	b.held, b.closed = false, true
	b.mu.Unlock()
	return b.ReadCloser.Close()
}
