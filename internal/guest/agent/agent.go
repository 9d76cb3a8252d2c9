// Package agent is the first process of a sandbox as the node sees it: it dials the node, says hello, does what it is asked and
// dials again when the connection ends. What it does it lets the packages beside it do; it decides nothing about a sandbox's life.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/cgroup"
	"github.com/cayhq/cay/internal/guest/files"
	"github.com/cayhq/cay/internal/guest/interpreter"
	"github.com/cayhq/cay/internal/guest/process"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// Dialling again begins after about firstRedial and slows down to maxRedial.
const (
	firstRedial = 20 * time.Millisecond
	maxRedial   = 500 * time.Millisecond
)

// Config is what an Agent works with.
type Config struct {
	Socket  string // the node's
	Version string
	Users   *user.Database
	Groups  *cgroup.Tree // nil: no control groups
	Sandbox bool         // this process is PID 1 of a sandbox, whose host name and limits are its own to set
	Scratch string       // a directory of the agent's own for programs; made when needed
	Log     *Journal
}

// Agent serves one sandbox.
type Agent struct {
	config     Config
	generation uint64
	processes  *process.Table
	log        *slog.Logger
	contexts   *interpreter.Contexts
	files      *files.Files
	transfers  chan struct{} // a slot for each
	ports      chan struct{} // a slot for each connection to a port
	dialers    chan struct{} // a slot for each connection to the node that is being opened for a port
	watches    chan struct{} // a slot for each
	running    sync.WaitGroup
	session    atomic.Pointer[session]

	mu      sync.Mutex
	claim   *guestv1.Claim  // nil until claimed
	account string          // the sandbox's user
	mounted map[string]bool // volumes, by path
}

// New makes an Agent. From now on it reaps all children of this process.
func New(c Config) (*Agent, error) {
	a := &Agent{config: c, generation: uint64(time.Now().UnixMilli()), transfers: make(chan struct{}, maxTransfers), watches: make(chan struct{}, maxWatches),
		ports: make(chan struct{}, maxPorts), dialers: make(chan struct{}, portDialers), account: user.Sandbox, mounted: map[string]bool{}, log: slog.New(c.Log)}
	processes, err := process.NewTable(process.Config{Users: c.Users, Groups: c.Groups, Notify: a.flush})
	if err != nil {
		return nil, fmt.Errorf("make process table: %w", err)
	}
	a.processes = processes
	a.contexts = interpreter.New(interpreter.Config{
		Processes: processes, Scratch: c.Scratch, Roots: []string{"/workspace", "/output", cay.SessionPath}, Notable: a.log.Warn,
	})
	a.files = files.New(c.Users, a.user)
	return a, nil
}

func (a *Agent) user() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.account
}

func (a *Agent) flush() {
	if s := a.session.Load(); s != nil {
		s.flush()
	}
}

// Run serves the node until ctx ends; then it kills every process that it started.
func (a *Agent) Run(ctx context.Context) error {
	defer a.processes.Close()
	defer a.contexts.Close()
	defer a.running.Wait()
	a.running.Go(func() {
		for {
			select {
			case <-a.config.Log.said.wake:
				a.flush()
			case <-ctx.Done():
				return
			}
		}
	})
	delay := firstRedial
	for ctx.Err() == nil {
		began := time.Now()
		err := a.connect(ctx)
		if time.Since(began) > time.Second {
			delay = firstRedial
		}
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, wire.ErrFrame) {
			a.log.Warn("the node broke the protocol", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay/2 + rand.N(delay)):
		}
		delay = min(2*delay, maxRedial)
	}
	return nil
}

// connect serves one control connection to its end.
func (a *Agent) connect(ctx context.Context) error {
	conn, err := a.dial(ctx, wire.Preamble{Kind: wire.ConnControl})
	if err != nil {
		return err
	}
	s, err := newSession(a, conn)
	if err != nil {
		conn.Close()
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer a.session.CompareAndSwap(s, nil)
	return s.serve(ctx)
}

func (a *Agent) dial(ctx context.Context, p wire.Preamble) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", a.config.Socket)
	if err != nil {
		return nil, fmt.Errorf("dial the node: %w", err)
	}
	if err := wire.WritePreamble(conn, p); err != nil {
		conn.Close()
		return nil, fmt.Errorf("send the preamble: %w", err)
	}
	return conn.(*net.UnixConn), nil
}

// hello describes the agent; with it, everything that is not acknowledged becomes pending again.
func (a *Agent) hello() *guestv1.Hello {
	a.mu.Lock()
	claimed := a.claim != nil
	a.mu.Unlock()
	h := &guestv1.Hello{
		Protocol: wire.GuestProtocol, Generation: a.generation, Version: a.config.Version, Claimed: claimed,
		Processes: a.processes.Running(),
	}
	a.processes.Rewind()
	return h
}

// problem is how an error is told. What is no cay.Error is the agent's own fault.
func problem(err error) *guestv1.Problem {
	var e *cay.Error
	if !errors.As(err, &e) {
		return &guestv1.Problem{Reason: string(cay.Internal), Detail: text(err.Error())}
	}
	return &guestv1.Problem{Reason: string(e.Reason), Detail: text(e.Detail), Field: e.Field}
}
