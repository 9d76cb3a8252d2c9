// Package nodes keeps the connections to nodes. It finds the node of a sandbox, brings a restarted node up to date (Adopt) before
// anyone may use it, and passes on what nodes notice by themselves. Where a sandbox goes and what an event means is decided elsewhere.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// Config says where the nodes are and how often they are looked at.
type Config struct {
	Sockets   []string      // unix sockets of node services
	Heartbeat time.Duration // between two looks at a connected node
	Wait      time.Duration // how long For waits for a node that is being adopted
}

// DefaultConfig is for one node at the socket.
func DefaultConfig(socket string) Config {
	return Config{Sockets: []string{socket}, Heartbeat: 10 * time.Second, Wait: 5 * time.Second}
}

// Store is where workers are registered.
type Store interface {
	PutWorker(ctx context.Context, w cay.Worker) error
	Workers(ctx context.Context) ([]cay.WorkerLoad, error)
}

// Life knows which sandboxes a worker must have and takes what happens to them; internal/control/lifecycle implements it.
type Life interface {
	On(worker cay.ID) []*cay.Sandbox
	Ended(ctx context.Context, worker, id cay.ID, reason cay.StatusReason, detail string, usage cay.Usage) error
	ProcessKilled(ctx context.Context, id cay.ID, at time.Time, process string, pid, rssMB int64) error
	Active(id cay.ID, at time.Time, foreground bool, usage cay.Usage)
	Released(worker cay.ID)
	Present(ids []cay.ID, at time.Time)
}

// Nodes are all nodes that the server knows.
type Nodes struct {
	cfg   Config
	store Store
	log   *slog.Logger

	life  Life
	ready func() // tells the scheduler that a worker can be asked

	mu      sync.RWMutex
	workers map[cay.ID]cay.Worker // guarded by mu; all that were ever heard of
	live    map[cay.ID]*node      // guarded by mu; connected and adopted
	changed chan struct{}         // guarded by mu; closed when live changes

	stop    context.CancelFunc
	running sync.WaitGroup
}

// node is one connection target. Streams are spread over several connections, apart from the calls that everything waits for.
type node struct {
	socket     string
	control    nodev1connect.NodeServiceClient
	metrics    nodev1connect.NodeServiceClient // over the connection of control, with a bound of its own
	bulk       []nodev1connect.NodeServiceClient
	next       atomic.Uint32 // spreads callers over bulk
	transports []*http.Transport

	// Of the goroutine that keeps the connection:
	adopted string          // the boot that was adopted last
	missing map[cay.ID]bool // sandboxes that the last look did not find
}

func newNode(socket string) *node {
	n := &node{socket: socket}
	var t *http.Transport
	n.control, t = newClient(socket)
	n.metrics = over(t, maxMetrics+1<<10)
	n.transports = append(n.transports, t)
	for range bulkTransports {
		c, t := newClient(socket)
		n.bulk = append(n.bulk, c)
		n.transports = append(n.transports, t)
	}
	return n
}

// client is a connection for one caller.
func (n *node) client() nodev1connect.NodeServiceClient {
	return n.bulk[int(n.next.Add(1))%len(n.bulk)]
}

func (n *node) close() {
	for _, t := range n.transports {
		t.CloseIdleConnections()
	}
}

// New makes Nodes. Nothing is connected before Start.
func New(cfg Config, store Store, log *slog.Logger) *Nodes {
	return &Nodes{
		cfg: cfg, store: store, log: log,
		workers: map[cay.ID]cay.Worker{}, live: map[cay.ID]*node{}, changed: make(chan struct{}),
	}
}

// Start reads the workers that an earlier start knew and begins to connect. ready is called, and must not block, whenever a worker can
// be asked. ctx bounds the reading alone.
func (n *Nodes) Start(ctx context.Context, life Life, ready func()) error {
	known, err := n.store.Workers(ctx)
	if err != nil {
		return fmt.Errorf("start the connections to nodes: %w", err)
	}
	n.life, n.ready = life, ready
	n.mu.Lock()
	for _, w := range known {
		n.workers[w.ID] = w.Worker
	}
	n.mu.Unlock()
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	n.stop = cancel
	for _, socket := range n.cfg.Sockets {
		n.running.Go(func() { n.keep(run, newNode(socket)) })
	}
	return nil
}

// Stop closes the connections. It is idempotent and returns when nothing runs any more.
func (n *Nodes) Stop() {
	if n.stop != nil {
		n.stop()
		n.running.Wait()
	}
}

// Workers are all that were ever heard of, also those that cannot be reached now.
func (n *Nodes) Workers() []cay.Worker {
	n.mu.RLock()
	defer n.mu.RUnlock()
	list := make([]cay.Worker, 0, len(n.workers))
	for _, w := range n.workers {
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b cay.Worker) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list
}

// Available reports whether the worker is connected and has adopted its sandboxes.
func (n *Nodes) Available(worker cay.ID) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.live[worker] != nil
}

// Live are the workers that are connected and have adopted their sandboxes; changed is closed once that may no longer be so.
func (n *Nodes) Live() (workers []cay.ID, changed <-chan struct{}) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Sorted(maps.Keys(n.live)), n.changed
}

// For returns a client for the worker. While the worker is away or adopts, it waits for a while, then answers cay.Unavailable. Errors
// of the client's calls go through noderpc.Decode.
func (n *Nodes) For(ctx context.Context, worker cay.ID) (nodev1connect.NodeServiceClient, error) {
	found, err := n.find(ctx, worker)
	if err != nil {
		return nil, err
	}
	return found.client(), nil
}

// find is For without the choice of a connection.
func (n *Nodes) find(ctx context.Context, worker cay.ID) (*node, error) {
	var timeout <-chan time.Time
	for {
		n.mu.RLock()
		found, changed := n.live[worker], n.changed
		n.mu.RUnlock()
		if found != nil {
			return found, nil
		}
		if timeout == nil {
			timer := time.NewTimer(n.cfg.Wait)
			defer timer.Stop()
			timeout = timer.C
		}
		select {
		case <-changed:
		case <-timeout:
			return nil, cay.Errorf(cay.Unavailable, "the worker of the sandbox cannot be reached now; try again").After(2 * time.Second)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Ready reports nil when at least one node answers and has adopted its sandboxes.
func (n *Nodes) Ready(context.Context) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if len(n.live) == 0 {
		return cay.Errorf(cay.Unavailable, "no node answers and has adopted its sandboxes").After(time.Second)
	}
	return nil
}

// setLive says that a worker can be asked, or with nil that it cannot.
func (n *Nodes) setLive(worker cay.ID, to *node) {
	n.mu.Lock()
	if to == nil {
		delete(n.live, worker)
	} else {
		n.live[worker] = to
	}
	close(n.changed)
	n.changed = make(chan struct{})
	n.mu.Unlock()
	if to != nil {
		n.ready()
	}
}

// register records what a worker said of itself.
func (n *Nodes) register(ctx context.Context, w cay.Worker) error {
	if w.ID == "" {
		return errors.New("the node does not say which worker it is")
	}
	if err := n.store.PutWorker(ctx, w); err != nil {
		return fmt.Errorf("register worker %s: %w", w.ID, err)
	}
	n.mu.Lock()
	n.workers[w.ID] = w
	n.mu.Unlock()
	return nil
}
