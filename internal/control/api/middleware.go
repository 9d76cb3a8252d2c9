package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// exchange is what the layers know of one request and tell the log.
type exchange struct {
	began     time.Time
	requestID string
	traceID   string // of the trace that it belongs to; "": none
	route     string // the pattern, "" when none matched
	identity  cay.Identity
	origin    string // scheme and host of the URL that the client used, for URLs that answers hold
	guest     bool   // the answer is a sandbox's own: its faults are none of the server
	action    string // the operation, for the audit log
	audited   bool   // every answer to it belongs there
	object    cay.ID // what the URL names, or what was made
	err       error  // what became a problem, with its private cause
	bodies    budget
}

type exchangeKey struct{}

// exchangeOf never returns nil: outside of a request it is a fresh one.
func exchangeOf(ctx context.Context) *exchange {
	if x, ok := ctx.Value(exchangeKey{}).(*exchange); ok {
		return x
	}
	return &exchange{}
}

// response notes what is answered. Unwrap lets http.ResponseController reach deadlines, flushing and hijacking.
type response struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 || status == http.StatusSwitchingProtocols {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Hijack notes that the connection is no longer HTTP.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil && w.status == 0 {
		w.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// answered reports whether the status line is out, so that no problem can be told any more.
func answered(w http.ResponseWriter) bool {
	rw, ok := w.(*response)
	return ok && rw.status != 0
}

// fail answers with err as a problem, or cuts the connection when the answer has begun, so that nobody takes it for whole.
func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	if x.err == nil {
		x.err = err
	}
	if answered(w) {
		panic(http.ErrAbortHandler)
	}
	if err := problem.From(err, x.requestID).Write(w); err != nil {
		x.err = errors.Join(x.err, err)
	}
}

// recorded gives the request its id and its span, and logs and measures it once it is over. Queries are never logged: they may hold tickets
// and signatures.
func (a *API) recorded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		x := &exchange{began: begin, requestID: requestID(r.Header.Get("X-Request-Id")), origin: OriginOf(r), bodies: a.bodies}
		ctx, span := a.traced(r)
		x.traceID = tracing.ID(ctx)
		w := &response{ResponseWriter: rw}
		w.Header().Set("X-Request-Id", x.requestID)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		a.metrics.inFlight.Inc()
		defer func() {
			a.metrics.inFlight.Dec()
			a.record(w, r, x, time.Since(begin))
			a.audit(r, x, w.status, begin)
			endSpan(span, x, w.status)
		}()
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, exchangeKey{}, x)))
	})
}

func (a *API) record(w *response, r *http.Request, x *exchange, took time.Duration) {
	route := x.route
	if route == "" {
		route = "unmatched"
	}
	a.metrics.answered(route, w.status, took)
	a.metrics.told(r.Context(), x.err)
	level := slog.LevelInfo
	if w.status >= 500 && (!x.guest || x.err != nil && cay.ReasonOf(x.err) == cay.Internal) {
		level = slog.LevelError
	}
	if !a.Logger.Enabled(r.Context(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", x.requestID), slog.String("method", r.Method), slog.String("path", r.URL.Path),
		slog.Int("status", w.status), slog.Int64("bytes", w.bytes), slog.Duration("took", took),
	}
	for key, value := range map[string]string{
		"route": x.route, "project": string(x.identity.ProjectID), "key": string(x.identity.KeyID), "trace_id": x.traceID,
	} {
		if value != "" {
			attrs = append(attrs, slog.String(key, value))
		}
	}
	if x.err != nil {
		attrs = append(attrs, slog.String("error", errorText(x.err)))
	}
	a.Logger.LogAttrs(r.Context(), level, "request", attrs...)
}

// errorText is the error with its private cause, which the document hides.
func errorText(err error) string {
	var d *problem.Document
	if errors.As(err, &d) && d.Cause() != nil {
		return d.Cause().Error()
	}
	return err.Error()
}

// OriginOf is how the client reached this server. A proxy in front that ends TLS says so; who lies here lies to himself.
func OriginOf(r *http.Request) string {
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

const maxRequestID = 128

// requestID takes the client's if it is sane: it goes into headers and logs.
func requestID(given string) string {
	ok := given != "" && len(given) <= maxRequestID
	for _, c := range []byte(given) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.:/+=", c) >= 0)
	}
	if ok {
		return given
	}
	return string(cay.NewID("req_"))
}

// recovered turns a panic into a 500 that says nothing of the inside.
func (a *API) recovered(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // a panic's value, not an error's chain
				panic(p)
			}
			exchangeOf(r.Context()).err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			a.metrics.panics.Inc()
			a.fail(w, r, cay.Errorf(cay.Internal, "panic"))
		}()
		next.ServeHTTP(w, r)
	})
}

// hostChecked refuses names that a loopback listener is not known by: a page that a browser was made to take for this address
// (DNS rebinding).
func (a *API) hostChecked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && local.IP.IsLoopback() && !a.knownHost(r.Host) {
			a.fail(w, r, cay.Errorf(cay.Forbidden, "this listener is local and does not answer to the host name of the request"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (a *API) knownHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || slices.ContainsFunc(a.AllowedHosts, func(known string) bool {
		return strings.EqualFold(known, host) || strings.EqualFold(known, hostport)
	})
}

// parseOrigins checks the allowlist and brings it to the form that browsers send.
func parseOrigins(list []string) (map[string]bool, error) {
	origins := map[string]bool{}
	for _, s := range list {
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" {
			return nil, fmt.Errorf("api: allowed origin %q is not of the form https://HOST", s)
		}
		origins[strings.ToLower(u.Scheme+"://"+u.Host)] = true
	}
	return origins, nil
}

const corsHeaders = "Authorization, X-API-Key, Content-Type, Accept, Idempotency-Key, If-Match, If-None-Match, If-Range, Range, " +
	"Last-Event-ID, X-Request-Id, traceparent, Cay-Conversation, Mcp-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id"

// originChecked is CORS: off but for allowlisted origins, without credentials. Unsafe methods and upgrades from a foreign origin
// that is not allowlisted are refused, since browsers send those without asking first.
func (a *API) originChecked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin == "" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Add("Vary", "Origin")
		if a.origins[strings.ToLower(origin)] {
			h := w.Header()
			h.Set("Access-Control-Allow-Origin", origin)
			h.Set("Access-Control-Expose-Headers", "X-Request-Id, Location, ETag, Retry-After, Content-Range, Accept-Ranges, WWW-Authenticate")
			if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
				h.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
				h.Set("Access-Control-Allow-Headers", corsHeaders)
				h.Set("Access-Control-Max-Age", "600")
				w.WriteHeader(http.StatusNoContent)
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		safe := r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions
		if (!safe || isUpgrade(r)) && !sameOrigin(origin, r) {
			a.fail(w, r, cay.Errorf(cay.Forbidden, "requests from the origin %q are not allowed", origin))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// sameOrigin compares the host only: a proxy in front may have ended TLS.
func sameOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host)
}

func isUpgrade(r *http.Request) bool {
	return headerHas(r.Header, "Connection", "upgrade") && headerHas(r.Header, "Upgrade", "websocket")
}

func headerHas(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// routed answers what the mux would answer in plain text, or with a redirect, as problems.
func (a *API) routed(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, pattern := mux.Handler(r)
		if pattern != "" && cleanPath(r.URL.Path) {
			mux.ServeHTTP(w, r) // Handler does not set path values
			return
		}
		probe := &headerOnly{header: http.Header{}}
		if pattern == "" {
			handler.ServeHTTP(probe, r)
		}
		if allow := probe.header.Get("Allow"); probe.status == http.StatusMethodNotAllowed && allow != "" {
			a.fail(w, r, problem.From(cay.Errorf(cay.MethodNotAllowed, "%s is not possible here; %s is", r.Method, allow),
				exchangeOf(r.Context()).requestID).WithHeader("Allow", allow))
			return
		}
		a.fail(w, r, cay.Errorf(cay.NotFound, "there is nothing at %s", clip(r.URL.Path, 200)))
	})
}

func cleanPath(p string) bool {
	return strings.HasPrefix(p, "/") && (path.Clean(p) == p || path.Clean(p)+"/" == p)
}

// headerOnly takes what a handler answers and keeps its status and header.
type headerOnly struct {
	header http.Header
	status int
}

func (h *headerOnly) Header() http.Header         { return h.header }
func (h *headerOnly) WriteHeader(status int)      { h.status = status }
func (h *headerOnly) Write(p []byte) (int, error) { return len(p), nil }

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}
