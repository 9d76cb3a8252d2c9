// Package ports carries HTTP and WebSocket requests to servers inside sandboxes: by a host name of each port, with a token, and below
// the API's own path, with a key. It keeps which ports have a URL. It parses what it must of a request and of an answer and changes
// only credentials, cookies' reach and forwarding headers; what is inside is hostile and is never believed. It knows neither keys and
// scopes nor the API's own routes.
package ports

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// Store keeps exposed ports; internal/control/store says what each method promises.
type Store interface {
	PutPort(ctx context.Context, p cay.Port, limit int64) (kept cay.Port, created bool, err error)
	Port(ctx context.Context, sandbox cay.ID, number int) (cay.Port, error)
	Ports(ctx context.Context, sandbox cay.ID) ([]cay.Port, error)
	DeletePort(ctx context.Context, sandbox cay.ID, number int) error
}

// Sandboxes is the life cycle, as far as ports need it.
type Sandboxes interface {
	Get(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	Enter(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
}

// Nodes reach into sandboxes.
type Nodes interface {
	DialPort(ctx context.Context, worker, sandbox cay.ID, port int) (net.Conn, error)
}

// Tokens derives the token of a port.
type Tokens interface {
	PortToken(ctx context.Context, p cay.Port) (string, error)
}

// Config says what the URLs of ports look like.
type Config struct {
	Domain string // host, or host:port, of which each port's host is a subdomain
	Scheme string // "http" or "https", by which clients come
	Log    *slog.Logger
}

const (
	nonceBytes = 16

	// idle ends a connection on which nothing has moved, in either direction.
	idle = time.Hour
	// keepAlive is how long a connection to a server in a sandbox waits for the next request.
	keepAlive = 30 * time.Second

	maxIdle          = 1024     // connections that wait for the next request, in all
	maxIdlePort      = 64       // and of one port in one form: a few busy ports must not hold all of the 256 connections of a sandbox
	maxHeader        = 64 << 10 // bytes of an answer's header
	maxRequests      = 4096     // requests under way, in all
	maxRequestsOfOne = 1024     // and of one sandbox
	maxRows          = 1024     // ports that are remembered
	rowPeriod        = 5 * time.Second
)

// Ports is the proxy and what it knows of ports.
type Ports struct {
	cfg       Config
	host      string // of Domain, in lower case, without its port
	store     Store
	sandboxes Sandboxes
	nodes     Nodes
	tokens    Tokens

	transport *http.Transport
	proxy     *httputil.ReverseProxy

	mu       sync.Mutex
	rows     map[key]remembered            // guarded by mu
	epoch    uint64                        // guarded by mu; raised by every change, so that a look-up from before it is not remembered after it
	open     map[string]map[*conn]struct{} // guarded by mu; connections of either side by pool, to be cut
	calls    map[string]map[*call]struct{} // guarded by mu; requests under way by pool, to be cut
	underWay map[cay.ID]int                // guarded by mu; requests
	total    int                           // guarded by mu; the sum of underWay
	closed   bool                          // guarded by mu
	requests sync.WaitGroup
}

type key struct {
	sandbox cay.ID
	port    int
}

type remembered struct {
	row   cay.Port
	until time.Time
}

// New makes Ports. Close ends what it has open.
func New(cfg Config, store Store, sandboxes Sandboxes, nodes Nodes, tokens Tokens) *Ports {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	host := cfg.Domain
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	p := &Ports{
		cfg: cfg, host: strings.ToLower(host), store: store, sandboxes: sandboxes, nodes: nodes, tokens: tokens,
		rows: map[key]remembered{}, open: map[string]map[*conn]struct{}{}, calls: map[string]map[*call]struct{}{}, underWay: map[cay.ID]int{},
	}
	p.transport = p.newTransport()
	p.proxy = p.newProxy()
	return p
}

// Expose gives a port a URL, or changes whether it is public; created says which. Its token stays while it is exposed.
func (p *Ports) Expose(ctx context.Context, project, sandbox cay.ID, number int, public bool) (exposed cay.ExposedPort, created bool, err error) {
	if err := p.lives(ctx, project, sandbox); err != nil {
		return cay.ExposedPort{}, false, err
	}
	if number < 1 || number > 65535 {
		return cay.ExposedPort{}, false, cay.Errorf(cay.InvalidRequest, "`port` must be from 1 to 65535").On("port")
	}
	nonce := make([]byte, nonceBytes)
	rand.Read(nonce) // never fails, see crypto/rand
	row, created, err := p.store.PutPort(ctx, cay.Port{
		SandboxID: sandbox, ProjectID: project, Number: number, Public: public, Nonce: nonce, CreatedAt: time.Now(),
	}, cay.MaxPorts)
	if err != nil {
		return cay.ExposedPort{}, false, fmt.Errorf("expose port %d: %w", number, err)
	}
	p.forget(key{sandbox, number})
	exposed, err = p.exposed(ctx, row)
	return exposed, created, err
}

// List answers the exposed ports of a sandbox, by number.
func (p *Ports) List(ctx context.Context, project, sandbox cay.ID) ([]cay.ExposedPort, error) {
	if err := p.lives(ctx, project, sandbox); err != nil {
		return nil, err
	}
	rows, err := p.store.Ports(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	list := make([]cay.ExposedPort, len(rows))
	for i, row := range rows {
		if list[i], err = p.exposed(ctx, row); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Remove takes a port's URL away and cuts the connections that came by it.
func (p *Ports) Remove(ctx context.Context, project, sandbox cay.ID, number int) error {
	if err := p.lives(ctx, project, sandbox); err != nil {
		return err
	}
	if err := p.store.DeletePort(ctx, sandbox, number); err != nil {
		return err
	}
	p.forget(key{sandbox, number})
	p.cut(byHost.pool(key{sandbox, number}), notExposed(number))
	return nil
}

func notExposed(number int) error {
	return cay.Errorf(cay.NotFound, "the sandbox has no port %d that is exposed", number)
}

// lives refuses sandboxes that are not the project's or have ended. One that is paused stays so.
func (p *Ports) lives(ctx context.Context, project, sandbox cay.ID) error {
	sb, err := p.sandboxes.Get(ctx, project, sandbox)
	if err != nil {
		return err
	}
	if sb.Status.Ended() || sb.Status == cay.Terminating {
		return sb.Usable()
	}
	return nil
}

func (p *Ports) exposed(ctx context.Context, row cay.Port) (cay.ExposedPort, error) {
	e := cay.ExposedPort{Port: row, URL: p.cfg.Scheme + "://" + label(key{row.SandboxID, row.Number}) + "." + p.cfg.Domain + "/"}
	if row.Public {
		return e, nil
	}
	var err error
	e.Token, err = p.tokens.PortToken(ctx, row)
	return e, err
}

// row is the exposed port, from memory when it was looked up a moment ago: that bounds how long a change that another server made is
// not seen here; what this one changes counts at once.
func (p *Ports) row(ctx context.Context, k key) (cay.Port, error) {
	now := time.Now()
	p.mu.Lock()
	r, ok := p.rows[k]
	epoch := p.epoch
	p.mu.Unlock()
	if ok && now.Before(r.until) {
		return r.row, nil
	}
	row, err := p.store.Port(ctx, k.sandbox, k.port)
	if err != nil {
		return cay.Port{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoch != epoch {
		return row, nil
	}
	if len(p.rows) >= maxRows {
		for old := range p.rows { // any one will do: what is in use comes back
			delete(p.rows, old)
			break
		}
	}
	p.rows[k] = remembered{row, now.Add(rowPeriod)}
	return row, nil
}

func (p *Ports) forget(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epoch++
	delete(p.rows, k)
}

// label is the port's own part of its host name.
func label(k key) string { return strconv.Itoa(k.port) + "-" + k.sandbox.Body() }

// parseLabel reads a label; ok is false for what label never makes.
func parseLabel(s string) (k key, ok bool) {
	digits, body, found := strings.Cut(s, "-")
	port, err := strconv.Atoi(digits)
	if !found || err != nil || port < 1 || port > 65535 || strconv.Itoa(port) != digits {
		return key{}, false
	}
	id, ok := cay.ParseID(cay.PrefixSandbox, cay.PrefixSandbox+body)
	return key{id, port}, ok
}

// enter counts a request against the bounds; leave ends it.
func (p *Ports) enter(sandbox cay.ID) (leave func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, cay.Errorf(cay.Unavailable, "the server is restarting; try again").After(time.Second)
	case p.total >= maxRequests || p.underWay[sandbox] >= maxRequestsOfOne:
		return nil, cay.Errorf(cay.Unavailable, "too many requests to ports are under way; try again").After(time.Second)
	}
	p.total++
	p.underWay[sandbox]++
	p.requests.Add(1)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.total--
		if p.underWay[sandbox]--; p.underWay[sandbox] == 0 {
			delete(p.underWay, sandbox)
		}
		p.requests.Done()
	}, nil
}

// call is a request under way that can be cut.
type call struct{ cancel context.CancelCauseFunc }

// cuttable is a context that ends with an error of the reason not_found when the pool is cut. Connections alone would not do: for some
// requests the transport opens another one. It counts from before the port is looked up, so that no request slips past a cut.
func (p *Ports) cuttable(ctx context.Context, pool string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &call{cancel}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls[pool] == nil {
		p.calls[pool] = map[*call]struct{}{}
	}
	p.calls[pool][c] = struct{}{}
	return ctx, func() {
		cancel(nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.calls[pool], c)
		if len(p.calls[pool]) == 0 {
			delete(p.calls, pool)
		}
	}
}

// drain is how long requests that are under way may take once Close is called. Streams end then.
const drain = time.Second

// Close refuses new requests, cuts those that do not end soon, and returns when all have ended or ctx has. Idempotent.
func (p *Ports) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the last request, which the cut below sees to
		p.requests.Wait()
		close(done)
	}()
	patience := time.NewTimer(drain)
	defer patience.Stop()
	select {
	case <-done:
	case <-patience.C:
	case <-ctx.Done():
	}
	p.mu.Lock()
	pools := slices.Concat(slices.Collect(maps.Keys(p.open)), slices.Collect(maps.Keys(p.calls)))
	p.mu.Unlock()
	for _, pool := range pools {
		p.cut(pool, cay.Errorf(cay.Unavailable, "the server is restarting; try again").After(time.Second))
	}
	p.transport.CloseIdleConnections()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close ports: %w", context.Cause(ctx))
	}
}

// cut ends every request of a pool for the cause, and closes every connection of it, on both sides of the proxy.
func (p *Ports) cut(pool string, cause error) {
	p.mu.Lock()
	calls, conns := slices.Collect(maps.Keys(p.calls[pool])), slices.Collect(maps.Keys(p.open[pool]))
	p.mu.Unlock()
	for _, c := range calls {
		c.cancel(cause)
	}
	for _, c := range conns {
		_ = c.Close()
	}
}

// conn is a connection that can be cut, and ends when nothing has moved on it for a long time.
type conn struct {
	net.Conn
	in    interface{ Read([]byte) (int, error) }
	p     *Ports
	pool  string
	moved time.Time // when the deadline was set last
	once  sync.Once
	mu    sync.Mutex // guards moved
}

var errClosed = errors.New("the proxy is closed")

// track makes a connection one that can be cut.
func (p *Ports) track(pool string, nc net.Conn, in interface{ Read([]byte) (int, error) }) (*conn, error) {
	c := &conn{Conn: nc, in: in, p: p, pool: pool}
	c.progress()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = nc.Close()
		return nil, errClosed
	}
	if p.open[pool] == nil {
		p.open[pool] = map[*conn]struct{}{}
	}
	p.open[pool][c] = struct{}{}
	return c, nil
}

// progress puts the end off. It is called for every run of bytes, and does something each minute.
func (c *conn) progress() {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.moved) > time.Minute {
		c.moved = now
		_ = c.SetDeadline(now.Add(idle))
	}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	if n > 0 {
		c.progress()
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if n > 0 {
		c.progress()
	}
	return n, err
}

// CloseWrite ends one direction.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		c.p.mu.Lock()
		delete(c.p.open[c.pool], c)
		if len(c.p.open[c.pool]) == 0 {
			delete(c.p.open, c.pool)
		}
		c.p.mu.Unlock()
		err = c.Conn.Close()
	})
	return err
}
