package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/cayhq/cay"
)

// Config is what the API needs. Sandboxes, Nodes, Auth, Ports and Idempotency are required.
type Config struct {
	Sandboxes   Sandboxes
	Nodes       Nodes
	Auth        Auth
	Ports       Ports
	Idempotency Idempotency
	Jobs        Jobs     // nil: their routes are 501
	Sessions    Sessions // nil: their routes are 501
	History     History  // nil: its routes are 501, and nothing is audited

	// MCP serves POST /mcp once the request's key has let it in. Nil: it is 501.
	MCP http.Handler

	// JobCounts is what GET /metrics says of jobs. Nil: nothing.
	JobCounts JobCounts
	// SandboxCounts is what it says of sandboxes. Nil: nothing.
	SandboxCounts SandboxCounts

	Version   string // of the build, for GET /v1/info
	Isolation string // what sandboxes are isolated by; "" is "gvisor"

	// AllowedOrigins may use the API from a browser, such as "https://console.example.com". None by default.
	AllowedOrigins []string
	// AllowedHosts are further names that a listener on a loopback address answers to, for a proxy in front of it.
	AllowedHosts []string

	// Checks are asked by GET /readyz besides the nodes, by name. A check that answers an error says what is not ready.
	Checks map[string]func(context.Context) error
	// Metrics is where the API's own metrics are registered. Nil: a registry of its own.
	Metrics *prometheus.Registry
	// Exposition is what GET /metrics shows. Nil: Metrics.
	Exposition prometheus.Gatherer
	Logger     *slog.Logger // nil: discarded

	// Keepalive is the time between the signs of life on streams: comments, pings. Zero is 15 s.
	Keepalive time.Duration
	// WriteTimeout bounds how long a client may take nothing of a stream before it is cut. Zero is 75 s: longer than the 60 s after
	// which a node ends the hold of a slow reader, so that a reader that wakes up in between is told.
	WriteTimeout time.Duration
}

// maxBodiesInFlight bounds the memory of exec bodies that are being read or held, in bytes, over all requests.
const maxBodiesInFlight = 512 << 20

// API is the public surface as an http.Handler.
type API struct {
	Config
	handler http.Handler
	openapi []byte
	docs    []byte
	metrics *metrics
	execs   *execKeys
	bodies  *semaphore.Weighted
	origins map[string]bool

	exposition http.Handler

	mu      sync.Mutex
	closing chan struct{} // closed by Close
	closed  bool          // guarded by mu
	streams sync.WaitGroup
}

// New builds the API. The caller serves it over HTTP/1.1 and calls Close before it shuts the server down.
func New(c Config) (*API, error) {
	if c.Sandboxes == nil || c.Nodes == nil || c.Auth == nil || c.Ports == nil || c.Idempotency == nil {
		return nil, errors.New("api: Sandboxes, Nodes, Auth, Ports and Idempotency are required")
	}
	return build(c)
}

func build(c Config) (*API, error) {
	if c.Isolation == "" {
		c.Isolation = "gvisor"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Keepalive == 0 {
		c.Keepalive = 15 * time.Second
	}
	if c.WriteTimeout == 0 {
		c.WriteTimeout = 75 * time.Second
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	if c.Exposition == nil {
		c.Exposition = c.Metrics
	}
	origins, err := parseOrigins(c.AllowedOrigins)
	if err != nil {
		return nil, err
	}
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, err
	}
	if c.JobCounts != nil {
		if err := c.Metrics.Register(newQueueMetrics(c.JobCounts, c.Logger)); err != nil {
			return nil, fmt.Errorf("api: register metrics of jobs: %w", err)
		}
	}
	if c.SandboxCounts != nil {
		if err := c.Metrics.Register(newSandboxMetrics(c.SandboxCounts, c.Logger)); err != nil {
			return nil, fmt.Errorf("api: register metrics of sandboxes: %w", err)
		}
	}
	a := &API{
		Config: c, metrics: m, execs: newExecKeys(), bodies: semaphore.NewWeighted(maxBodiesInFlight), origins: origins,
		exposition: metricsHandler(c.Exposition, c.Logger), closing: make(chan struct{}),
	}
	mux := http.NewServeMux()
	doc := a.routes(mux)
	if a.openapi, err = encodeOpenAPI(doc); err != nil {
		return nil, err
	}
	if a.docs, err = renderDocs(doc); err != nil {
		return nil, err
	}
	a.handler = a.recorded(a.recovered(a.hosted(a.hostChecked(a.originChecked(a.proxied(a.routed(mux)))))))
	return a, nil
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// Close tells every stream that the server goes away (WebSockets with 1012, so that clients attach again), refuses new ones, and
// returns when all have ended or ctx has. Processes run on. Idempotent.
func (a *API) Close(ctx context.Context) error {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		close(a.closing)
	}
	a.mu.Unlock()
	done := make(chan struct{})
	go func() {
		a.streams.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// enterStream counts a stream that Close has to wait for; leave ends it.
func (a *API) enterStream() (leave func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, errClosing()
	}
	a.streams.Add(1)
	return a.streams.Done, nil
}

// whenClosing calls f when Close is called, until stop is.
func (a *API) whenClosing(f func()) (stop func()) {
	done := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		select {
		case <-a.closing:
			f()
		case <-done:
		}
	}()
	return func() {
		close(done)
		<-finished
	}
}

// served is the context of a call that is made for a request: it ends with the request, and when Close is called.
func (a *API) served(request context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(request)
	stop := a.whenClosing(cancel)
	return ctx, sync.OnceFunc(func() {
		cancel()
		stop()
	})
}

func errClosing() *cay.Error {
	return cay.Errorf(cay.Unavailable, "the server is restarting; attach again").After(time.Second)
}

// OpenAPI returns the OpenAPI 3.1 document of the API as indented JSON. It does not depend on configuration, so that it can be
// committed and verified.
func OpenAPI() ([]byte, error) {
	a, err := build(Config{})
	if err != nil {
		return nil, err
	}
	return a.openapi, nil
}

var humaOnce sync.Once

// installProblems makes huma's own errors problem documents, and has it describe lists as they are: empty, never null. huma keeps this
// in package variables; this package is its only user.
func installProblems() {
	humaOnce.Do(func() {
		huma.DefaultArrayNullable = false
		huma.NewErrorWithContext = humaProblem
		huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
			return humaProblem(nil, status, msg, errs...)
		}
	})
}
