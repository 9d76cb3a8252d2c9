// Package inprocess carries HTTP requests to a handler of this process, so that a part of the server can be a client of its own API
// with everything that the API checks and counts. It is neither a network nor a proxy: nothing is encoded, and upgrades are refused.
package inprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
)

// Transport serves requests by a handler. Make it with [New]; it is safe for concurrent use.
type Transport struct {
	log    *slog.Logger
	except string // the path that is not served, and all below it

	mu      sync.Mutex
	handler http.Handler // guarded by mu; nil until Serve
	closed  bool         // guarded by mu
	running sync.WaitGroup
}

// New makes a transport that refuses requests to the path except, and below: the one under which the requests are made that it carries
// requests for. Otherwise a request could go round in circles.
func New(except string, log *slog.Logger) *Transport { return &Transport{log: log, except: except} }

// Serve sets what serves the requests, once, before the first.
func (t *Transport) Serve(h http.Handler) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handler = h
}

// Close refuses new requests and returns when those that run have ended, or ctx has. Idempotent.
func (t *Transport) Close(ctx context.Context) error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	done := make(chan struct{})
	go func() {
		t.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Errors of a request that is not served.
var (
	errClosed    = errors.New("the server is stopping")
	errRecursion = errors.New("a request made for a request of this path cannot be one itself")
	errUpgrade   = errors.New("a connection in this process cannot be upgraded")
	errPanic     = errors.New("the handler panicked")
)

// On is the transport for requests that are made on behalf of another: they come from its address, with its headers that are named.
func (t *Transport) On(behalf *http.Request, headers ...string) http.RoundTripper {
	return &onBehalf{t: t, outer: behalf, headers: headers}
}

type onBehalf struct {
	t       *Transport
	outer   *http.Request
	headers []string
}

// RoundTrip implements http.RoundTripper.
func (o *onBehalf) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context()) // a RoundTripper leaves what it is given as it is
	for _, name := range o.headers {
		if values := o.outer.Header.Values(name); len(values) > 0 {
			r.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	return o.t.roundTrip(r, o.outer.RemoteAddr)
}

func (t *Transport) roundTrip(r *http.Request, remote string) (*http.Response, error) {
	body := r.Body
	if body == nil {
		body = http.NoBody
	}
	handler, err := t.enter(r)
	if err != nil {
		body.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(r.Context())
	in := r.Clone(ctx)
	in.Body, in.RemoteAddr, in.RequestURI = body, remote, r.URL.RequestURI()
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/1.1", 1, 1
	if in.Host == "" {
		in.Host = r.URL.Host
	}
	if body == http.NoBody {
		in.ContentLength = 0
	}
	reader, writer := io.Pipe()
	w := &answer{header: http.Header{}, pipe: writer, began: make(chan struct{})}
	go func() {
		defer t.running.Done()
		defer body.Close()
		t.serve(handler, w, in)
	}()
	// Whoever reads or writes the pipe is let go when the client's context ends.
	stop := context.AfterFunc(ctx, func() { reader.CloseWithError(context.Cause(ctx)) })
	select {
	case <-w.began:
	case <-ctx.Done():
		err := context.Cause(ctx)
		cancel()
		return nil, err
	}
	if w.failure != nil {
		stop()
		cancel()
		return nil, w.failure
	}
	return w.response(r, &reading{PipeReader: reader, release: func() { stop(); cancel() }}), nil
}

// enter counts a request that Close has to wait for.
func (t *Transport) enter(r *http.Request) (http.Handler, error) {
	switch path := r.URL.Path; {
	case path == t.except || strings.HasPrefix(path, t.except+"/"):
		return nil, errRecursion
	case r.Header.Get("Upgrade") != "":
		return nil, errUpgrade
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.handler == nil {
		return nil, errClosed
	}
	t.running.Add(1)
	return t.handler, nil
}

// serve runs the handler. One that panics leaves a broken answer, as a cut connection would.
func (t *Transport) serve(h http.Handler, w *answer, r *http.Request) {
	defer func() {
		switch p := recover(); {
		case p == nil:
			w.end(nil)
		case p == http.ErrAbortHandler: //nolint:errorlint // a panic's value, not an error's chain
			w.end(io.ErrUnexpectedEOF)
		default:
			t.log.Error("a handler panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			w.end(errPanic)
		}
	}()
	h.ServeHTTP(w, r)
}

// answer is what the handler writes. Its body goes through a pipe, so that a slow reader holds the handler back.
type answer struct {
	pipe    *io.PipeWriter
	header  http.Header   // of the handler's goroutine until began
	began   chan struct{} // closed once status, sent and failure are final
	status  int
	sent    http.Header
	failure error // why there is no answer at all
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if status < 200 || a.status != 0 {
		return
	}
	a.status, a.sent = status, a.header.Clone()
	close(a.began)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.pipe.Write(p)
}

// FlushError implements what http.ResponseController looks for: nothing is held back but the header.
func (a *answer) FlushError() error {
	a.WriteHeader(http.StatusOK)
	return nil
}

// end closes the answer, broken by err where that is not nil.
func (a *answer) end(err error) {
	if a.status == 0 && err != nil {
		a.failure, a.status = err, -1
		close(a.began)
	}
	if err == nil {
		a.WriteHeader(http.StatusOK)
	}
	a.pipe.CloseWithError(err)
}

func (a *answer) response(r *http.Request, body io.ReadCloser) *http.Response {
	length := int64(-1)
	if n, err := strconv.ParseInt(a.sent.Get("Content-Length"), 10, 64); err == nil {
		length = n
	}
	return &http.Response{
		Status: strconv.Itoa(a.status) + " " + http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.sent, Body: body, ContentLength: length, Request: r,
	}
}

// reading is the body of an answer. Closing it ends the handler's context.
type reading struct {
	*io.PipeReader
	release func()
}

// Close implements io.Closer.
func (b *reading) Close() error {
	err := b.PipeReader.Close()
	b.release()
	return err
}
