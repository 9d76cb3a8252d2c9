package jobs_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/blobs"
	"github.com/cayhq/cay/internal/control/jobs"
	"github.com/cayhq/cay/internal/control/lifecycle"
	"github.com/cayhq/cay/internal/control/nodes"
	"github.com/cayhq/cay/internal/control/nodes/nodetest"
	"github.com/cayhq/cay/internal/control/scheduler"
	"github.com/cayhq/cay/internal/control/store/sqlite"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

var project, stranger = cay.NewID(cay.PrefixProject), cay.NewID(cay.PrefixProject)

// plane is a control plane but for HTTP, with a node that the test drives, and calls of the queue that it may break.
type plane struct {
	*jobs.Jobs
	t     *testing.T
	cfg   jobs.Config
	node  *nodetest.Node
	store *sqlite.Store
	life  *lifecycle.Sandboxes
	nodes *nodes.Nodes
	sched *scheduler.Scheduler
	blobs *blobs.Bucket
	calls *calls
}

// noVolumes stands for sessions, whose volumes no sandbox here looks into.
type noVolumes struct{}

func (noVolumes) Prepare(context.Context, *cay.Sandbox) ([]*nodev1.VolumeMount, error) {
	return nil, nil
}

func quick() jobs.Config {
	cfg := jobs.DefaultConfig()
	cfg.Concurrency = 4
	cfg.Scan, cfg.Sweep, cfg.Backoff, cfg.Busy = 20*time.Millisecond, 50*time.Millisecond, 10*time.Millisecond, 30*time.Millisecond
	return cfg
}

func start(t *testing.T, edits ...func(*plane)) *plane {
	t.Helper()
	dir, err := os.MkdirTemp("", "cay") // short: the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &plane{t: t, cfg: quick(), node: nodetest.New(t, filepath.Join(dir, "n.sock")), calls: &calls{}}
	for _, edit := range edits {
		edit(p)
	}
	log := slog.New(slog.DiscardHandler)
	p.store, err = sqlite.Open(t.Context(), filepath.Join(dir, "cay.db"))
	p.ok(err)
	p.blobs, err = blobs.Open(t.Context(), "", filepath.Join(dir, "blobs"))
	p.ok(err)
	for _, id := range []cay.ID{project, stranger} {
		p.ok(p.store.InsertProject(t.Context(), cay.Project{ID: id, Name: string(id), CreatedAt: time.Now()}))
	}
	nodesConfig := nodes.DefaultConfig(filepath.Join(dir, "n.sock"))
	nodesConfig.Heartbeat = 50 * time.Millisecond
	p.nodes = nodes.New(nodesConfig, p.store, log)
	p.life = lifecycle.New(lifecycle.DefaultConfig(), p.store, p.nodes, log)
	cfg := scheduler.DefaultConfig()
	cfg.Scan, cfg.StopGrace = 20*time.Millisecond, 200*time.Millisecond
	p.sched = scheduler.New(cfg, p.store, p.nodes, p.life, noVolumes{}, log)
	p.ok(p.life.Start(t.Context(), p.sched.Wake))
	p.ok(p.sched.Start(t.Context()))
	p.ok(p.nodes.Start(t.Context(), p.life, p.sched.Wake))
	nodetest.Eventually(t, "the node is there", func() bool { return p.nodes.Available(p.node.Worker) })
	p.up()
	t.Cleanup(func() {
		p.Stop()
		p.sched.Stop()
		p.nodes.Stop()
		p.ok(p.life.Stop(context.Background()))
		p.ok(p.store.Close())
		p.ok(p.blobs.Close())
	})
	return p
}

// up starts a queue, also after another has crashed.
func (p *plane) up() {
	p.t.Helper()
	p.Jobs = jobs.New(p.cfg, brokenStore{p.store, p.calls}, brokenLife{p.life, p.calls}, p.nodes, brokenBlobs{p.blobs, p.calls}, slog.New(slog.DiscardHandler))
	p.ok(p.Start(p.t.Context()))
}

func (p *plane) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) submit(edits ...func(*cay.SubmitJob)) cay.ID {
	p.t.Helper()
	return p.submitFor(project, edits...)
}

func (p *plane) submitFor(project cay.ID, edits ...func(*cay.SubmitJob)) cay.ID {
	p.t.Helper()
	req := cay.SubmitJob{Code: []byte("print(1)")}
	for _, edit := range edits {
		edit(&req)
	}
	row, err := p.Submit(p.t.Context(), project, "", req)
	p.ok(err)
	return row.ID
}

// finished waits for the job's end.
func (p *plane) finished(id cay.ID, want cay.JobStatus) *cay.Job {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	row, err := p.store.Job(ctx, id)
	p.ok(err)
	if row, err = p.Wait(ctx, row.ProjectID, id); err != nil {
		p.t.Fatal(err)
	}
	if row.Status != want {
		p.t.Fatalf("job %s is %s (%+v), attempt %d, want %s", id, row.Status, row.Fault, row.Attempt, want)
	}
	return row
}

// clean waits until no sandbox is left.
func (p *plane) clean() {
	p.t.Helper()
	nodetest.Eventually(p.t, "no sandbox is left", func() bool { return p.node.Len() == 0 })
}

func (p *plane) output(row *cay.Job) string {
	p.t.Helper()
	r, err := p.Result(p.t.Context(), row, 1<<20)
	p.ok(err)
	return string(r.Stdout)
}

// prints is what a program does that prints, and perhaps ends with a code.
func prints(text string, code int32) func(*nodetest.Process) *nodev1.Exit {
	return func(p *nodetest.Process) *nodev1.Exit {
		p.Write(cay.Stdout, text)
		return &nodev1.Exit{Code: code, Reason: string(cay.ExitExited), DurationMs: 5, StdoutSize: int64(len(text))}
	}
}

// calls breaks one call of the queue to what is around it.
type calls struct {
	mu      sync.Mutex
	at      string // the call, such as "before MutateJob"
	count   int    // how often it has to be made until it is broken
	reached chan struct{}
	fails   error // what it answers; nil: it hangs until its context ends
}

// breakAt arms the breaking of the count-th call. The channel is closed when it is reached.
func (c *calls) breakAt(at string, count int, fails error) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.count, c.fails, c.reached = at, count, fails, make(chan struct{})
	return c.reached
}

func (c *calls) pass(ctx context.Context, at string) error {
	c.mu.Lock()
	if c.at != at {
		c.mu.Unlock()
		return nil
	}
	if c.count--; c.count != 0 {
		c.mu.Unlock()
		return nil
	}
	c.at = ""
	close(c.reached)
	fails := c.fails
	c.mu.Unlock()
	if fails != nil {
		return fails
	}
	<-ctx.Done()
	return ctx.Err()
}

func broken[T any](c *calls, ctx context.Context, name string, call func() (T, error)) (T, error) {
	var none T
	if err := c.pass(ctx, "before "+name); err != nil {
		return none, err
	}
	v, err := call()
	if err != nil {
		return v, err
	}
	if err := c.pass(ctx, "after "+name); err != nil {
		return none, err
	}
	return v, nil
}

type brokenStore struct {
	*sqlite.Store
	calls *calls
}

func (s brokenStore) MutateJob(ctx context.Context, id cay.ID, change func(*cay.Job) error) (*cay.Job, error) {
	if err := s.calls.pass(ctx, "before MutateJob"); err != nil {
		return nil, err
	}
	row, err := s.Store.MutateJob(ctx, id, change)
	if err != nil {
		return row, err
	}
	return row, s.calls.pass(ctx, "after MutateJob")
}

type brokenLife struct {
	*lifecycle.Sandboxes
	calls *calls
}

func (l brokenLife) Create(ctx context.Context, project cay.ID, req cay.CreateSandbox) (*cay.Sandbox, error) {
	return broken(l.calls, ctx, "Create", func() (*cay.Sandbox, error) { return l.Sandboxes.Create(ctx, project, req) })
}

func (l brokenLife) Delete(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	return broken(l.calls, ctx, "Delete", func() (*cay.Sandbox, error) { return l.Sandboxes.Delete(ctx, project, id) })
}

type brokenBlobs struct {
	*blobs.Bucket
	calls *calls
}

func (b brokenBlobs) Write(ctx context.Context, key string, r io.Reader) (int64, error) {
	return broken(b.calls, ctx, "Write", func() (int64, error) { return b.Bucket.Write(ctx, key, r) })
}

var errBroken = errors.New("broken by the test")

type blobsOf = *blobs.Bucket

// withBlobs is the queue with another storage.
func (p *plane) withBlobs(b jobs.Blobs) *jobs.Jobs {
	return jobs.New(p.cfg, p.store, p.life, p.nodes, b, slog.New(slog.DiscardHandler))
}

func asError(err error, e **cay.Error) bool { return errors.As(err, e) }

// randomText is text that does not compress.
func randomText(n int) string {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return string(b)
}

func await(t *testing.T, reached <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-reached:
	case <-time.After(patience):
		t.Fatalf("never: %s", what)
	}
}
