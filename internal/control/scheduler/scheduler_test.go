package scheduler_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/lifecycle"
	"github.com/cayhq/cay/internal/control/nodes"
	"github.com/cayhq/cay/internal/control/nodes/nodetest"
	"github.com/cayhq/cay/internal/control/scheduler"
	"github.com/cayhq/cay/internal/control/store/sqlite"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var project = cay.NewID(cay.PrefixProject)

// plane is a whole control plane but for HTTP, with a node that the test drives.
type plane struct {
	*lifecycle.Sandboxes
	t     *testing.T
	path  string
	node  *nodetest.Node
	store *sqlite.Store
	nodes *nodes.Nodes
	sched *scheduler.Scheduler

	prepare func(ctx context.Context, sb *cay.Sandbox) ([]*nodev1.VolumeMount, error) // what sessions do
}

func (p *plane) Prepare(ctx context.Context, sb *cay.Sandbox) ([]*nodev1.VolumeMount, error) {
	return p.prepare(ctx, sb)
}

func quick() scheduler.Config {
	cfg := scheduler.DefaultConfig()
	cfg.Scan, cfg.StopGrace = 20*time.Millisecond, 200*time.Millisecond
	return cfg
}

func start(t *testing.T, cfg scheduler.Config) *plane {
	t.Helper()
	dir, err := os.MkdirTemp("", "cay") // short: the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &plane{t: t, path: dir, node: nodetest.New(t, filepath.Join(dir, "n.sock"))}
	p.up(cfg)
	t.Cleanup(p.down)
	return p
}

func (p *plane) up(cfg scheduler.Config) {
	p.t.Helper()
	log := slog.New(slog.DiscardHandler)
	var err error
	if p.store, err = sqlite.Open(p.t.Context(), filepath.Join(p.path, "cay.db")); err != nil {
		p.t.Fatal(err)
	}
	nodesConfig := nodes.DefaultConfig(filepath.Join(p.path, "n.sock"))
	nodesConfig.Heartbeat = 50 * time.Millisecond
	p.nodes = nodes.New(nodesConfig, p.store, log)
	p.Sandboxes = lifecycle.New(lifecycle.DefaultConfig(), p.store, p.nodes, log)
	p.sched = scheduler.New(cfg, p.store, p.nodes, p.Sandboxes, p, log)
	p.ok(p.Sandboxes.Start(p.t.Context(), p.sched.Wake))
	p.ok(p.sched.Start(p.t.Context()))
	p.ok(p.nodes.Start(p.t.Context(), p.Sandboxes, p.sched.Wake))
}

func (p *plane) down() {
	p.sched.Stop()
	p.nodes.Stop()
	p.ok(p.Sandboxes.Stop(context.Background()))
	p.ok(p.store.Close())
}

func (p *plane) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) create(req cay.CreateSandbox) cay.ID {
	p.t.Helper()
	sb, err := p.Create(p.t.Context(), project, req)
	p.ok(err)
	return sb.ID
}

func (p *plane) wait(id cay.ID, want cay.Status) *cay.Sandbox {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	sb, err := p.Wait(ctx, project, id, want)
	p.ok(err)
	if sb.Status != want {
		p.t.Fatalf("sandbox is %s (%s, %s), want %s", sb.Status, sb.StatusReason, sb.Detail, want)
	}
	return sb
}

func (p *plane) remove(id cay.ID) {
	p.t.Helper()
	_, err := p.Delete(p.t.Context(), project, id)
	p.ok(err)
	p.wait(id, cay.Terminated)
}

func TestASandboxLivesFromCreateToDelete(t *testing.T) {
	p := start(t, quick())
	id := p.create(cay.CreateSandbox{})
	sb := p.wait(id, cay.Ready)
	if sb.WorkerID != p.node.Worker || sb.CreateMS.Boot != 7 || sb.Attempt != 1 || p.node.State(id) != "running" {
		t.Errorf("ready: %+v, on the node %q", sb, p.node.State(id))
	}
	sb, err := p.Pause(t.Context(), project, id)
	p.ok(err)
	if sb.Status != cay.Paused || p.node.State(id) != "frozen" {
		t.Errorf("paused: %s, on the node %q", sb.Status, p.node.State(id))
	}
	sb, err = p.Enter(t.Context(), project, id)
	p.ok(err)
	if sb.Status != cay.Ready || p.node.State(id) != "running" {
		t.Errorf("entered: %s, on the node %q", sb.Status, p.node.State(id))
	}
	p.remove(id)
	if sb, err := p.Get(t.Context(), project, id); err != nil || sb.Usage.CPUSeconds != 1.5 || p.node.Len() != 0 {
		t.Errorf("in the end: %+v, %v, %d left on the node", sb, err, p.node.Len())
	}
}

func TestManyAtOnceAllGetThereAndGo(t *testing.T) {
	p := start(t, quick())
	var booting, most atomic.Int64
	p.node.OnCreate = func(context.Context, *nodev1.CreateRequest) error {
		most.Store(max(most.Load(), booting.Add(1)))
		booting.Add(-1)
		return nil
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			id := p.create(cay.CreateSandbox{})
			p.wait(id, cay.Ready)
			p.remove(id)
		})
	}
	wg.Wait()
	if most.Load() > int64(quick().Boots) {
		t.Errorf("%d booted at once", most.Load())
	}
	if p.node.Len() != 0 {
		t.Errorf("%d are left on the node", p.node.Len())
	}
}

func TestWhatDoesNotFitWaitsUntilSomethingGoes(t *testing.T) {
	p := start(t, quick())
	first := p.create(cay.CreateSandbox{MemoryMB: ptr(int64(12000))})
	p.wait(first, cay.Ready)
	large := p.create(cay.CreateSandbox{MemoryMB: ptr(int64(12000))})
	small := p.create(cay.CreateSandbox{MemoryMB: ptr(int64(1000))})
	p.wait(small, cay.Ready) // it is not held up
	if sb, err := p.Get(t.Context(), project, large); err != nil || sb.Status != cay.Creating || sb.Attempt != 0 {
		t.Fatalf("the large one: %+v, %v", sb, err)
	}
	p.remove(first)
	p.wait(large, cay.Ready)
}

func TestABootThatFailsIsTriedThreeTimesAndLeavesNothing(t *testing.T) {
	p := start(t, quick())
	var boots, destroys atomic.Int64
	p.node.OnCreate = func(context.Context, *nodev1.CreateRequest) error {
		boots.Add(1)
		return cay.Errorf(cay.BootFailed, "the agent did not answer")
	}
	p.node.OnDestroy = func(context.Context, *nodev1.DestroyRequest) error { destroys.Add(1); return nil }
	sb := p.wait(p.create(cay.CreateSandbox{}), cay.Failed)
	if sb.StatusReason != cay.ReasonBootFailed || sb.Detail != "the agent did not answer" || boots.Load() != 3 {
		t.Errorf("after %d boots: %s %q", boots.Load(), sb.StatusReason, sb.Detail)
	}
	nodetest.Eventually(t, "the destroy of what may be left", func() bool { return destroys.Load() == 1 })
}

func TestASpecThatTheNodeRefusesFailsAtOnce(t *testing.T) {
	p := start(t, quick())
	var boots atomic.Int64
	p.node.OnCreate = func(context.Context, *nodev1.CreateRequest) error {
		boots.Add(1)
		return cay.Errorf(cay.Unprocessable, "pids cannot be enforced")
	}
	if sb := p.wait(p.create(cay.CreateSandbox{}), cay.Failed); boots.Load() != 1 || sb.Detail != "pids cannot be enforced" {
		t.Errorf("after %d boots: %q", boots.Load(), sb.Detail)
	}
}

func TestADeleteCallsOffABootUnderWay(t *testing.T) {
	p := start(t, quick())
	begun, ended := make(chan struct{}), make(chan struct{})
	p.node.OnCreate = func(ctx context.Context, _ *nodev1.CreateRequest) error {
		close(begun)
		defer close(ended)
		return nodetest.Hang(ctx)
	}
	id := p.create(cay.CreateSandbox{})
	<-begun
	p.remove(id)
	<-ended
	if sb, err := p.Get(t.Context(), project, id); err != nil || sb.StatusReason != cay.ReasonDeleted || p.node.Len() != 0 {
		t.Errorf("in the end: %+v, %v", sb, err)
	}
}

func TestADestroyThatFailsIsAskedAgainUntilItIsProved(t *testing.T) {
	p := start(t, quick())
	var asked atomic.Int64
	p.node.OnDestroy = func(context.Context, *nodev1.DestroyRequest) error {
		if asked.Add(1) < 3 {
			return cay.Errorf(cay.Internal, "a process would not die")
		}
		return nil
	}
	id := p.create(cay.CreateSandbox{})
	p.wait(id, cay.Ready)
	p.remove(id)
	if asked.Load() != 3 || p.node.Len() != 0 {
		t.Errorf("asked %d times, %d left", asked.Load(), p.node.Len())
	}
}

func TestAPauseThatTheNodeCannotDoIsRefusedToItsCaller(t *testing.T) {
	p := start(t, quick())
	p.node.OnFreeze = func(context.Context, string) error { return cay.Errorf(cay.NotImplemented, "no freezer here") }
	id := p.create(cay.CreateSandbox{})
	p.wait(id, cay.Ready)
	if _, err := p.Pause(t.Context(), project, id); cay.ReasonOf(err) != cay.NotImplemented {
		t.Errorf("got %v", err)
	}
	p.wait(id, cay.Ready)
}

func TestACreateOutlivesANodeThatDiesWhileBooting(t *testing.T) {
	p := start(t, quick())
	begun := make(chan struct{})
	var once sync.Once
	var attempts sync.Map
	p.node.OnCreate = func(ctx context.Context, r *nodev1.CreateRequest) error {
		attempts.Store(r.Attempt, true)
		first := false
		once.Do(func() { first = true })
		if first {
			close(begun)
			return nodetest.Hang(ctx)
		}
		return nil
	}
	id := p.create(cay.CreateSandbox{})
	<-begun
	p.node.Kill()
	p.node.Start(t)
	if sb := p.wait(id, cay.Ready); sb.Attempt < 2 || sb.FailureCount != 0 {
		t.Errorf("ready at attempt %d with %d failures", sb.Attempt, sb.FailureCount)
	}
}

func TestAStoppedSchedulerGivesBackWhatItHolds(t *testing.T) {
	p := start(t, quick())
	begun := make(chan struct{})
	var hang atomic.Bool
	hang.Store(true)
	p.node.OnCreate = func(ctx context.Context, _ *nodev1.CreateRequest) error {
		if hang.Swap(false) {
			close(begun)
			return nodetest.Hang(ctx)
		}
		return nil
	}
	id := p.create(cay.CreateSandbox{})
	<-begun
	p.down()
	store, err := sqlite.Open(t.Context(), filepath.Join(p.path, "cay.db"))
	p.ok(err)
	sb, err := store.Sandbox(t.Context(), id)
	p.ok(err)
	if sb.LeaseOwner != "" || sb.Status != cay.Creating || sb.Op != cay.OpCreate || sb.FailureCount != 0 {
		t.Errorf("left behind: %+v", sb)
	}
	p.ok(store.Close())
	p.up(quick())
	p.wait(id, cay.Ready)
}

func TestARestartTakesOverTheLeasesOfADeadServer(t *testing.T) {
	p := start(t, quick())
	p.node.Kill() // so that nothing is leased by the living
	id := p.create(cay.CreateSandbox{})
	p.down()
	store, err := sqlite.Open(t.Context(), filepath.Join(p.path, "cay.db"))
	p.ok(err)
	at := time.Now()
	rows, err := store.Lease(t.Context(), at, cay.Lease{Owner: "dead", Until: at.Add(time.Hour)}, []cay.Operation{cay.OpCreate}, 1,
		func(*cay.Sandbox, []cay.WorkerLoad) (cay.ID, bool) { return p.node.Worker, true })
	p.ok(err)
	if len(rows) != 1 {
		t.Fatalf("the dead one leased %d rows", len(rows))
	}
	p.ok(store.Close())
	p.node.Start(t)
	p.up(quick())
	if sb := p.wait(id, cay.Ready); sb.Attempt < 2 {
		t.Errorf("ready at attempt %d", sb.Attempt)
	}
}

func TestALeaseIsRenewedWhileABootTakesLonger(t *testing.T) {
	cfg := quick()
	cfg.Lease = 9 * time.Second // renewed at each third of it
	p := start(t, cfg)
	release := make(chan struct{})
	var boots atomic.Int64
	p.node.OnCreate = func(ctx context.Context, _ *nodev1.CreateRequest) error {
		boots.Add(1)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	id := p.create(cay.CreateSandbox{})
	first := time.Time{}
	nodetest.Eventually(t, "the lease moves on for a second", func() bool {
		sb, err := p.store.Sandbox(t.Context(), id)
		p.ok(err)
		if sb.LeaseUntil.IsZero() {
			return false
		}
		if first.IsZero() {
			first = sb.LeaseUntil
		}
		return sb.LeaseUntil.Sub(first) > time.Second
	})
	close(release)
	if sb := p.wait(id, cay.Ready); sb.Attempt != 1 || boots.Load() != 1 {
		t.Errorf("ready at attempt %d after %d boots", sb.Attempt, boots.Load())
	}
}

func ptr[T any](v T) *T { return &v }
