package ports

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// form is how a request came: by the port's host name, or below the API's path. Connections of one form are never used for the other,
// so that those of a host name can be cut by themselves.
type form string

const (
	byHost form = "host"
	byPath form = "path"
)

// pool is the name under which the transport keeps connections.
func (f form) pool(k key) string { return label(k) + "." + string(f) }

// target is where one request goes; it travels in the request's context.
type target struct {
	key
	form   form
	worker cay.ID
	host   string // what the server inside is told as Host
	scheme string // by which the client came
	path   string // of the path form, escaped
	failed error  // set by the proxy; nothing was answered then
}

type targetKey struct{}

func targetOf(ctx context.Context) *target {
	t, _ := ctx.Value(targetKey{}).(*target)
	return t
}

func (p *Ports) newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Protocols: protocols,
		// A dial that its request no longer waits for goes on, with the values of the request's context, and serves the next one.
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			t := targetOf(ctx)
			if t == nil {
				return nil, errors.New("a dial without a target")
			}
			nc, err := p.nodes.DialPort(ctx, t.worker, t.sandbox, t.port)
			if err != nil {
				return nil, err
			}
			return p.track(t.form.pool(t.key), nc, nc)
		},
		DisableCompression: true, MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdlePort, IdleConnTimeout: keepAlive,
		MaxResponseHeaderBytes: maxHeader, ResponseHeaderTimeout: idle, ExpectContinueTimeout: time.Second,
	}
}

// proxyBuffers recycles what bodies are copied by.
type proxyBuffers struct{ pool sync.Pool }

func (b *proxyBuffers) Get() []byte  { return b.pool.Get().(*[32 << 10]byte)[:] }
func (b *proxyBuffers) Put(s []byte) { b.pool.Put((*[32 << 10]byte)(s)) }

func (p *Ports) newProxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:   rewrite,
		Transport: p.transport,
		// Events and bodies without a length are flushed at once by themselves. One with a length has this long to come whole, which
		// saves a small answer a write of its own for its header.
		FlushInterval: time.Millisecond,
		BufferPool:    &proxyBuffers{sync.Pool{New: func() any { return new([32 << 10]byte) }}},
		ErrorLog:      slog.NewLogLogger(p.cfg.Log.Handler(), slog.LevelDebug),
		ModifyResponse: func(res *http.Response) error {
			if res.StatusCode < 100 {
				return fmt.Errorf("an answer of the status %03d", res.StatusCode) // which net/http panics at
			}
			targetOf(res.Request.Context()).form.scrub(res.Header)
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, err error) { targetOf(r.Context()).failed = err },
	}
}

// forward sends the request on and its answer back. An error means that nothing was answered.
func (p *Ports) forward(w http.ResponseWriter, r *http.Request, project cay.ID, t *target) error {
	leave, err := p.enter(t.sandbox)
	if err != nil {
		return err
	}
	defer leave()
	sb, err := p.sandboxes.Enter(r.Context(), project, t.sandbox)
	if err != nil {
		return err
	}
	t.worker = sb.WorkerID
	a := &answer{ResponseWriter: w, p: p, t: t, base: w.Header().Clone()}
	defer a.finish()
	p.proxy.ServeHTTP(a, r.WithContext(context.WithValue(r.Context(), targetKey{}, t)))
	return failure(r.Context(), t)
}

// failure is what the client is told when the server inside gave no usable answer.
func failure(ctx context.Context, t *target) error {
	err := t.failed
	var own *cay.Error
	if err != nil && errors.As(context.Cause(ctx), &own) { // the port was cut
		return own
	}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return err
	case errors.Is(err, context.Canceled):
		return cay.Errorf(cay.Unavailable, "the request was called off").Because(err)
	default:
		return cay.Errorf(cay.Unavailable, "the server on port %d of the sandbox gave no usable answer", t.port).After(time.Second).Because(err)
	}
}

// rewrite makes the request that the server inside sees. Forwarding headers that the client sent are gone already.
func rewrite(pr *httputil.ProxyRequest) {
	t := targetOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme, out.URL.Host, out.Host = "http", t.form.pool(t.key), t.host
	out.URL.RawQuery, out.URL.ForceQuery = withoutToken(pr.In.URL.RawQuery), pr.In.URL.ForceQuery
	if t.form == byPath {
		out.URL.Path, out.URL.RawPath = unescaped(t.path), t.path
	}
	h := out.Header
	for name := range h {
		if strings.HasPrefix(name, "X-Forwarded-") || name == "X-Real-Ip" {
			delete(h, name)
		}
	}
	pr.SetXForwarded()
	h.Set("X-Forwarded-Proto", t.scheme)
	if u := h.Get("Upgrade"); u != "" && !strings.EqualFold(u, "websocket") {
		h.Del("Upgrade") // others would be tunnels past all of this
		h.Del("Connection")
	}
	t.form.strip(h)
}

// answer is the client's end of a request. What the server itself says with every answer comes before what the sandbox says.
type answer struct {
	http.ResponseWriter
	p     *Ports
	t     *target
	base  http.Header
	moved time.Time
}

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	h := a.Header()
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		a.t.form.scrub(h) // interim answers come past ModifyResponse
	} else {
		a.own(h)
		a.t.form.add(h)
	}
	a.ResponseWriter.WriteHeader(status)
}

// own puts the server's own headers over those of the sandbox. What an answer varies by adds up.
func (a *answer) own(h http.Header) {
	for name, values := range a.base {
		if name == "Vary" {
			values = append(slices.Clone(values), h[name]...)
		}
		h[name] = values
	}
}

// Write gives a client that takes nothing as long as everybody.
func (a *answer) Write(b []byte) (int, error) {
	if now := time.Now(); now.Sub(a.moved) > time.Minute {
		a.moved = now
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(now.Add(idle))
	}
	return a.ResponseWriter.Write(b)
}

func (a *answer) finish() {
	if !a.moved.IsZero() {
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Time{})
	}
}

// Hijack hands the client's connection over, with what was read of it, so that it can be cut.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	a.own(a.Header())
	_ = nc.SetDeadline(time.Time{})
	c, err := a.p.track(a.t.form.pool(a.t.key), nc, rw.Reader)
	if err != nil {
		return nil, nil, err
	}
	return c, rw, nil
}
