package sessions_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/blobs"
	"github.com/cayhq/cay/internal/control/lifecycle"
	"github.com/cayhq/cay/internal/control/nodes"
	"github.com/cayhq/cay/internal/control/nodes/nodetest"
	"github.com/cayhq/cay/internal/control/scheduler"
	"github.com/cayhq/cay/internal/control/sessions"
	"github.com/cayhq/cay/internal/control/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var project = cay.NewID(cay.PrefixProject)

// plane is a whole control plane but for HTTP, with a node that the test drives. It can be stopped and started again, as a server is.
type plane struct {
	*sessions.Sessions
	t     *testing.T
	dir   string
	node  *nodetest.Node
	blobs *bucket
	store *sqlite.Store
	nodes *nodes.Nodes
	life  *lifecycle.Sandboxes
	sched *scheduler.Scheduler
}

// config sweeps quickly and archives nothing.
func config() sessions.Config {
	cfg := sessions.DefaultConfig()
	cfg.Scan, cfg.Orphans, cfg.ArchiveAfter = 10*time.Millisecond, 20*time.Millisecond, 0
	return cfg
}

func start(t *testing.T, cfg sessions.Config) *plane {
	t.Helper()
	dir, err := os.MkdirTemp("", "cay") // short: the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &plane{t: t, dir: dir, node: nodetest.New(t, filepath.Join(dir, "n.sock"))}
	folder, err := blobs.Open(t.Context(), "", filepath.Join(dir, "blobs"))
	p.ok(err)
	t.Cleanup(func() { p.ok(folder.Close()) })
	p.blobs = &bucket{Bucket: folder}
	p.up(cfg)
	t.Cleanup(p.down)
	return p
}

func (p *plane) up(cfg sessions.Config) {
	p.t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(p.t.Output(), nil))
	}
	var err error
	p.store, err = sqlite.Open(p.t.Context(), filepath.Join(p.dir, "cay.db"))
	p.ok(err)
	nodesConfig := nodes.DefaultConfig(filepath.Join(p.dir, "n.sock"))
	nodesConfig.Heartbeat = 50 * time.Millisecond
	p.nodes = nodes.New(nodesConfig, p.store, log)
	p.life = lifecycle.New(lifecycle.DefaultConfig(), p.store, p.nodes, log)
	p.Sessions = sessions.New(cfg, p.store, p.life, p.nodes, p.blobs, log)
	schedConfig := scheduler.DefaultConfig()
	schedConfig.Scan, schedConfig.StopGrace = 20*time.Millisecond, 100*time.Millisecond
	p.sched = scheduler.New(schedConfig, p.store, p.nodes, p.life, p.Sessions, log)
	p.ok(p.life.Start(p.t.Context(), p.sched.Wake))
	p.ok(p.nodes.Start(p.t.Context(), p.life, p.sched.Wake))
	p.ok(p.sched.Start(p.t.Context()))
	p.eventually("the node is there", func() bool { return p.nodes.Available(p.node.Worker) })
	p.Start()
}

func (p *plane) down() {
	p.Stop()
	p.sched.Stop()
	p.nodes.Stop()
	p.ok(p.life.Stop(context.Background()))
	p.ok(p.store.Close())
}

func (p *plane) ok(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) eventually(what string, ok func() bool) {
	p.t.Helper()
	nodetest.Eventually(p.t, what, ok)
}

func (p *plane) session(req cay.CreateSession) *cay.Session {
	p.t.Helper()
	row, err := p.Create(p.t.Context(), project, req)
	p.ok(err)
	return row
}

func (p *plane) get(id cay.ID) *cay.Session {
	p.t.Helper()
	row, err := p.Get(p.t.Context(), project, id)
	p.ok(err)
	return row
}

// becomes waits for the session's status.
func (p *plane) becomes(id cay.ID, want cay.SessionStatus) *cay.Session {
	p.t.Helper()
	p.eventually("the session is "+string(want), func() bool { return p.get(id).Status == want })
	return p.get(id)
}

// use creates a sandbox of a session.
func (p *plane) use(id cay.ID) *cay.Sandbox {
	p.t.Helper()
	sb, err := p.life.Create(p.t.Context(), project, cay.CreateSandbox{SessionID: id})
	p.ok(err)
	return p.wait(sb.ID, cay.Ready)
}

func (p *plane) wait(id cay.ID, want cay.Status) *cay.Sandbox {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	sb, err := p.life.Wait(ctx, project, id, want)
	p.ok(err)
	if sb.Status != want {
		p.t.Fatalf("sandbox is %s (%s, %s), want %s", sb.Status, sb.StatusReason, sb.Detail, want)
	}
	return sb
}

func (p *plane) remove(id cay.ID) {
	p.t.Helper()
	_, err := p.life.Delete(p.t.Context(), project, id)
	p.ok(err)
	p.wait(id, cay.Terminated)
}

// filled is a session with content in its volume, and in use by nobody.
func (p *plane) filled(req cay.CreateSession, content []byte) *cay.Session {
	p.t.Helper()
	row := p.session(req)
	sb := p.use(row.ID)
	p.node.PutVolume(row.Volume(), content)
	p.remove(sb.ID)
	return row
}

func (p *plane) wantImage(row *cay.Session, want string) {
	p.t.Helper()
	if got, there := p.node.Image(row.Volume()); !there || string(got) != want {
		p.t.Errorf("the volume holds %d bytes (there: %v), want %d", len(got), there, len(want))
	}
}

func (p *plane) wantNoVolume(row *cay.Session) {
	p.t.Helper()
	p.eventually("the volume is gone", func() bool { _, there := p.node.Image(row.Volume()); return !there })
}

func (p *plane) archivePath(row *cay.Session) string {
	return filepath.Join(p.dir, "blobs", "sessions", string(row.ID), "volume.zst")
}

func (p *plane) wantNoArchive(row *cay.Session) {
	p.t.Helper()
	p.eventually("the archive is gone", func() bool { _, err := os.Stat(p.archivePath(row)); return errors.Is(err, os.ErrNotExist) })
}

func reason(t *testing.T, err error, want cay.ErrorReason) *cay.Error {
	t.Helper()
	var e *cay.Error
	if !errors.As(err, &e) || e.Reason != want {
		t.Fatalf("error %v, want %s", err, want)
	}
	return e
}

// bucket is a folder of blobs that a test can have fail or stand still.
type bucket struct {
	*blobs.Bucket

	mu sync.Mutex
	on func(ctx context.Context, call string) error // guarded by mu; before the last byte of a write, and before a read and a delete
}

func (b *bucket) meanwhile(on func(ctx context.Context, call string) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.on = on
}

func (b *bucket) call(ctx context.Context, call string) error {
	b.mu.Lock()
	on := b.on
	b.mu.Unlock()
	if on == nil {
		return nil
	}
	return on(ctx, call)
}

func (b *bucket) Write(ctx context.Context, key string, r io.Reader) (int64, error) {
	return b.Bucket.Write(ctx, key, atEnd{r, func() error { return b.call(ctx, "write") }})
}

func (b *bucket) Read(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := b.call(ctx, "read"); err != nil {
		return nil, err
	}
	return b.Bucket.Read(ctx, key)
}

func (b *bucket) DeleteBelow(ctx context.Context, prefix string) error {
	if err := b.call(ctx, "delete"); err != nil {
		return err
	}
	return b.Bucket.DeleteBelow(ctx, prefix)
}

// atEnd asks do before it lets a reader end.
type atEnd struct {
	io.Reader
	do func() error
}

func (r atEnd) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		if failed := r.do(); failed != nil {
			return n, failed
		}
	}
	return n, err
}
