// Package nodetest is a node service for tests: real Connect over a real unix socket, and sandboxes that are entries in a map.
package nodetest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	dto "github.com/prometheus/client_model/go"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// Node is a node that a test drives. The hooks run before the call takes effect; an error is the call's answer.
type Node struct {
	nodev1connect.UnimplementedNodeServiceHandler

	Worker    cay.ID
	CanFreeze bool
	CanMount  bool
	OnCreate  func(ctx context.Context, r *nodev1.CreateRequest) error
	OnDestroy func(ctx context.Context, r *nodev1.DestroyRequest) error
	OnFreeze  func(ctx context.Context, id string) error
	OnAdopt   func(ctx context.Context) error
	OnPort    http.HandlerFunc                                     // answers requests for connections to ports
	OnVolume  func(ctx context.Context, call, volume string) error // call is create, delete, export, or import once all data came

	OnProcess func(p *Process) *nodev1.Exit // what each process does, until its end; nil: it ends at once
	OnStart   func(ctx context.Context, r *nodev1.StartProcess) error
	OnRead    func(ctx context.Context) error // before output is read by page
	Files     map[string]string               // by path, in every sandbox

	OnRecords func(ctx context.Context, r *nodev1.RecordsRequest) error
	Families  []*dto.MetricFamily // what Metrics answers; nil: one that counts processes
	OnMetrics func(ctx context.Context) error

	socket string

	mu        sync.Mutex
	boot      string                      // guarded by mu
	adopted   bool                        // guarded by mu
	states    map[string]string           // guarded by mu; sandbox id to state
	projects  map[string]string           // guarded by mu; of sandboxes, also of those that are gone
	attempts  map[string]int64            // guarded by mu; the highest seen of each
	adoptions [][]string                  // guarded by mu; the ids of each Adopt
	watchers  map[chan *nodev1.Event]bool // guarded by mu
	volumes   map[string]*volume          // guarded by mu
	processes map[string]*Process         // guarded by mu
	records   *records                    // guarded by mu; of this boot
	server    *http.Server                // guarded by mu
	running   sync.WaitGroup              // what processes do
	serving   sync.WaitGroup
}

// New starts a node on the socket; it ends with the test.
func New(t *testing.T, socket string) *Node {
	n := &Node{
		Worker: cay.NewID(cay.PrefixWorker), CanFreeze: true, CanMount: true, socket: socket,
		states: map[string]string{}, projects: map[string]string{}, attempts: map[string]int64{}, watchers: map[chan *nodev1.Event]bool{},
		volumes: map[string]*volume{}, processes: map[string]*Process{},
	}
	n.Start(t)
	t.Cleanup(func() {
		n.Kill()
		n.mu.Lock()
		for _, p := range n.processes {
			n.end(p.Start.SandboxId)
		}
		n.mu.Unlock()
		n.running.Wait()
	})
	return n
}

// Start serves, as a new start of the node. Its sandboxes live on.
func (n *Node) Start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", n.socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(nodev1connect.NewNodeServiceHandler(n))
	mux.HandleFunc(noderpc.PortPattern, func(w http.ResponseWriter, r *http.Request) { n.OnPort(w, r) })
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP1(true)
	server := &http.Server{Handler: mux, Protocols: protocols}
	n.mu.Lock()
	n.boot, n.adopted, n.server, n.records = string(cay.NewID("boot_")), false, server, newRecords()
	n.mu.Unlock()
	n.serving.Go(func() { _ = server.Serve(l) })
}

// Kill ends the node at once, with its connections. Its sandboxes live on.
func (n *Node) Kill() {
	n.mu.Lock()
	server := n.server
	n.server = nil
	n.mu.Unlock()
	if server != nil {
		_ = server.Close()
		n.serving.Wait()
	}
}

// Drop ends the connections while the node runs on.
func (n *Node) Drop(t *testing.T) {
	t.Helper()
	n.mu.Lock()
	boot, adopted, records := n.boot, n.adopted, n.records
	n.mu.Unlock()
	n.Kill()
	n.Start(t)
	n.mu.Lock()
	n.boot, n.adopted, n.records = boot, adopted, records
	n.mu.Unlock()
}

// State is "running", "frozen", or "" when there is no such sandbox.
func (n *Node) State(id cay.ID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.states[string(id)]
}

// Lose forgets a sandbox without a word.
func (n *Node) Lose(id cay.ID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.states, string(id))
	n.end(string(id))
	n.unmount(string(id))
}

// Len is how many sandboxes exist.
func (n *Node) Len() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.states)
}

// Adoptions are the ids of each Adopt so far.
func (n *Node) Adoptions() [][]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([][]string(nil), n.adoptions...)
}

// Emit sends an event to every watcher.
func (n *Node) Emit(e *nodev1.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.watchers {
		w <- e
	}
}

// GetInfo implements the node service.
func (n *Node) GetInfo(context.Context, *connect.Request[nodev1.GetInfoRequest]) (*connect.Response[nodev1.Info], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return connect.NewResponse(&nodev1.Info{
		WorkerId: string(n.Worker), Version: "test", Isolation: "none", Enforced: []string{"cpu", "memory_mb", "disk_gb", "pids"},
		Runtimes: []*nodev1.Runtime{{Name: "python", Version: "3", Image: "host", Exec: []string{"python3"}}},
		Cpu:      4, MemoryMb: 16384, DiskGb: 100, CanFreeze: n.CanFreeze, CanMount: n.CanMount, Adopted: n.adopted, Boot: n.boot,
	}), nil
}

// Create implements the node service.
func (n *Node) Create(ctx context.Context, r *connect.Request[nodev1.CreateRequest]) (*connect.Response[nodev1.CreateResponse], error) {
	if err := n.fence(r.Msg.SandboxId, r.Msg.Attempt); err != nil {
		return nil, err
	}
	if n.OnCreate != nil {
		if err := n.OnCreate(ctx, r.Msg); err != nil {
			return nil, noderpc.Encode(err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.attempts[r.Msg.SandboxId] > r.Msg.Attempt {
		return nil, noderpc.Encode(cay.Errorf(cay.PreconditionFailed, "a higher attempt was seen"))
	}
	if err := n.mount(r.Msg); err != nil {
		return nil, noderpc.Encode(err)
	}
	n.states[r.Msg.SandboxId], n.projects[r.Msg.SandboxId] = "running", r.Msg.ProjectId
	return connect.NewResponse(&nodev1.CreateResponse{BootMs: 7}), nil
}

func (n *Node) fence(id string, attempt int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if attempt < n.attempts[id] {
		return noderpc.Encode(cay.Errorf(cay.PreconditionFailed, "a higher attempt was seen"))
	}
	n.attempts[id] = attempt
	return nil
}

// Destroy implements the node service.
func (n *Node) Destroy(ctx context.Context, r *connect.Request[nodev1.DestroyRequest]) (*connect.Response[nodev1.DestroyResponse], error) {
	if err := n.fence(r.Msg.SandboxId, r.Msg.Attempt); err != nil {
		return nil, err
	}
	if n.OnDestroy != nil {
		if err := n.OnDestroy(ctx, r.Msg); err != nil {
			return nil, noderpc.Encode(err)
		}
	}
	n.Lose(cay.ID(r.Msg.SandboxId))
	return connect.NewResponse(&nodev1.DestroyResponse{Usage: &nodev1.Usage{CpuSeconds: 1.5}}), nil
}

// Freeze implements the node service.
func (n *Node) Freeze(ctx context.Context, r *connect.Request[nodev1.FreezeRequest]) (*connect.Response[nodev1.FreezeResponse], error) {
	if n.OnFreeze != nil {
		if err := n.OnFreeze(ctx, r.Msg.SandboxId); err != nil {
			return nil, noderpc.Encode(err)
		}
	}
	return connect.NewResponse(&nodev1.FreezeResponse{}), n.turn(r.Msg.SandboxId, "frozen")
}

// Thaw implements the node service.
func (n *Node) Thaw(_ context.Context, r *connect.Request[nodev1.ThawRequest]) (*connect.Response[nodev1.ThawResponse], error) {
	return connect.NewResponse(&nodev1.ThawResponse{}), n.turn(r.Msg.SandboxId, "running")
}

func (n *Node) turn(id, state string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.states[id] == "" {
		return noderpc.Encode(cay.Errorf(cay.Gone, "sandbox %s is gone", id))
	}
	n.states[id] = state
	return nil
}

// List implements the node service.
func (n *Node) List(context.Context, *connect.Request[nodev1.ListRequest]) (*connect.Response[nodev1.ListResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	answer := &nodev1.ListResponse{}
	for id, state := range n.states {
		answer.Sandboxes = append(answer.Sandboxes, &nodev1.SandboxState{SandboxId: id, State: state})
	}
	return connect.NewResponse(answer), nil
}

// Adopt implements the node service.
func (n *Node) Adopt(ctx context.Context, r *connect.Request[nodev1.AdoptRequest]) (*connect.Response[nodev1.AdoptResponse], error) {
	if n.OnAdopt != nil {
		if err := n.OnAdopt(ctx); err != nil {
			return nil, noderpc.Encode(err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	answer := &nodev1.AdoptResponse{}
	known := map[string]string{}
	var ids []string
	for _, k := range r.Msg.Sandboxes {
		ids = append(ids, k.SandboxId)
		if n.states[k.SandboxId] == "" {
			answer.Lost = append(answer.Lost, k.SandboxId)
			continue
		}
		answer.Running = append(answer.Running, k.SandboxId)
		known[k.SandboxId] = map[bool]string{true: "frozen", false: "running"}[k.Paused]
	}
	n.states, n.adopted = known, true
	n.adoptions = append(n.adoptions, ids)
	return connect.NewResponse(answer), nil
}

// Watch implements the node service.
func (n *Node) Watch(ctx context.Context, _ *connect.Request[nodev1.WatchRequest], stream *connect.ServerStream[nodev1.Event]) error {
	events := make(chan *nodev1.Event, 100)
	n.mu.Lock()
	boot := n.boot
	n.watchers[events] = true
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.watchers, events)
		n.mu.Unlock()
	}()
	if err := stream.Send(&nodev1.Event{Event: &nodev1.Event_Hello{Hello: &nodev1.Hello{Boot: boot}}}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			if err := stream.Send(e); err != nil {
				return err
			}
		}
	}
}

// Hang blocks until the call is called off.
func Hang(ctx context.Context) error {
	<-ctx.Done()
	return errors.New("called off")
}

// Eventually polls until ok, or fails the test after a minute.
func Eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}
