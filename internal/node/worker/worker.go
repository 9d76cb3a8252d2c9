// Package worker is the node service: it brings sandboxes up and down by the driver, reaches their agents through the router, and
// answers the control plane's calls. It decides nothing about who may do what and keeps no truth of its own: what exists is what the
// driver lists, what ought to exist the control plane says.
package worker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/pool"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/node/volume"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// Config is what a Worker needs. Driver, DataDir and WorkerID are required.
type Config struct {
	Driver   driver.Driver
	DataDir  string // output lies in DataDir/sandboxes/<handle>/spool
	WorkerID cay.ID
	Version  string

	CPU          float64 // capacity: cores
	MemoryMB     int64
	DiskGB       float64
	MaxSandboxes int // default 1000
	Runtimes     []*nodev1.Runtime

	// AllowUnenforced accepts limits that were asked for and that this host cannot keep.
	AllowUnenforced bool

	Volumes *volume.Store // nil: there are none

	PoolSize    int
	PoolShape   driver.Shape
	Fingerprint func() string // of what prepared sandboxes are made from; nil: it never changes

	Spool  spool.Options
	Timing Timing
	Router router.Timing
	Log    *slog.Logger
}

// Timing holds the periods of a Worker. Zero values take the defaults.
type Timing struct {
	Boot    time.Duration // from the start of a create to the agent's hello; 60 s
	Adopt   time.Duration // that Adopt waits for hellos; 10 s
	Thaw    time.Duration // that Thaw waits for a hello; 10 s
	Destroy time.Duration // for one attempt; 60 s
	Reclaim time.Duration // between a kill for memory and the look at what it brought; 500 ms
	Sample  time.Duration // between measurements; 1 s
	Record  time.Duration // between measurements that are kept; 5 s
	Usage   time.Duration // between words on what a sandbox has used that nobody uses; 10 s
}

func (t Timing) withDefaults() Timing {
	for _, d := range []struct {
		p *time.Duration
		d time.Duration
	}{
		{&t.Boot, time.Minute}, {&t.Adopt, 10 * time.Second}, {&t.Thaw, 10 * time.Second}, {&t.Destroy, time.Minute},
		{&t.Reclaim, 500 * time.Millisecond}, {&t.Sample, time.Second},
		{&t.Record, 5 * time.Second}, {&t.Usage, 10 * time.Second},
	} {
		if *d.p <= 0 {
			*d.p = d.d
		}
	}
	return t
}

// Worker serves one node. Make it with New, serve Handler, and call Run.
type Worker struct {
	cfg      Config
	timing   Timing
	log      *slog.Logger
	bootID   string // changes with every start
	events   *broadcaster
	pool     *pool.Pool[*prepared]
	records  *records
	finals   *finals
	measured *metrics
	counted  router.Counters // of all sessions
	cancel   context.CancelFunc
	ctx      func() context.Context // of background work; ends with Close
	work     sync.WaitGroup         // background work and the receiving halves of streams

	mu       sync.Mutex
	closing  bool
	boxes    map[cay.ID]*box
	handles  map[driver.Handle]*box
	fences   fences
	adopting *adoption // nil: Adopt was not called
}

// HTTP2 is how the server that serves Handler should be set up: windows that let one stream carry a few hundred MB/s over a unix
// socket, and a bound on what all streams of a connection may have under way.
func HTTP2() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: 20_000, MaxReceiveBufferPerConnection: 64 << 20, MaxReceiveBufferPerStream: 1 << 20, MaxReadFrameSize: 256 << 10,
	}
}

// New finds what an earlier node left: sandboxes are taken over, and what is half made or was prepared for nobody is destroyed in
// the background. Agents are spoken with from here on.
func New(cfg Config) (*Worker, error) {
	if cfg.Driver == nil || cfg.DataDir == "" || cfg.WorkerID == "" {
		return nil, errors.New("worker: driver, data directory and id are required")
	}
	if cfg.MaxSandboxes <= 0 {
		cfg.MaxSandboxes = 1000
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var boot [8]byte
	rand.Read(boot[:])
	ctx, cancel := context.WithCancel(context.Background())
	w := &Worker{
		cfg: cfg, timing: cfg.Timing.withDefaults(), log: cfg.Log, bootID: hex.EncodeToString(boot[:]), events: newBroadcaster(), records: newRecords(),
		cancel: cancel, ctx: func() context.Context { return ctx }, boxes: map[cay.ID]*box{}, handles: map[driver.Handle]*box{},
	}
	w.measured = newMetrics(w)
	var err error
	if w.finals, err = openFinals(filepath.Join(cfg.DataDir, "ended")); err != nil {
		cancel()
		return nil, fmt.Errorf("open what ended sandboxes had used: %w", err)
	}
	if err := w.inherit(ctx); err != nil {
		cancel()
		return nil, err
	}
	w.pool = pool.New(pool.Config[*prepared]{
		Size: cfg.PoolSize, Fingerprint: cfg.Fingerprint, Log: cfg.Log,
		Prepare: func(ctx context.Context) (*prepared, error) { return w.prepare(ctx, newHandle(), cfg.PoolShape, nil) },
		Discard: func(_ context.Context, p *prepared) { w.discard(p) },
	})
	return w, nil
}

// inherit lists the driver's sandboxes and makes them known.
func (w *Worker) inherit(ctx context.Context) error {
	listed, err := w.cfg.Driver.List(ctx)
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	for _, st := range listed {
		if _, ok := cay.ParseID(cay.PrefixSandbox, string(st.SandboxID)); !ok || !st.Complete {
			w.background(func() { w.destroyHandle(st.Handle) })
			continue
		}
		if other := w.boxes[st.SandboxID]; other != nil {
			w.log.Error("two sandboxes of one id; the later is destroyed", "sandbox", st.SandboxID)
			w.background(func() { w.destroyHandle(st.Handle) })
			continue
		}
		b := &box{
			id: st.SandboxID, project: st.Spec.ProjectID, handle: st.Handle, shape: st.Shape, cpu: st.Spec.CPU, memoryMB: st.Spec.MemoryMB, state: running, inherited: true,
			settled: closed, since: time.Now(),
		}
		if st.Frozen {
			b.state = frozen
		}
		w.adoptVolumes(b, st.Spec.Volumes)
		w.boxes[b.id], w.handles[b.handle] = b, b
		b.usage.load(w.usagePath(b.handle))
		b.usage.load(w.finals.path(b.id)) // newer, where its end was under way
		if !st.Alive {
			if sp, err := spool.Open(w.spoolDir(st.Handle), w.cfg.Spool); err != nil {
				w.log.Error("what ran in a sandbox that has ended is not known", "sandbox", b.id, "error", err)
			} else {
				w.recall(b, sp, true)
				sp.Close()
			}
			w.end(b, ending{reason: cay.ReasonWorkerLost, detail: "it ended while its worker was down"})
			continue
		}
		p, err := w.speak(st.Handle, st.Frozen, b)
		if err != nil {
			w.log.Error("output of a sandbox cannot be kept", "sandbox", b.id, "error", err)
			w.end(b, ending{reason: cay.ReasonWorkerLost, detail: "its worker could not take it over", destroy: true})
			continue
		}
		b.prepared = p
	}
	w.background(w.settleVolumes)
	return nil
}

// Bounds of messages on the node service, in bytes: a program of the size that a client may send, and a whole report.
const (
	maxRequest = cay.MaxExecBody + wire.MaxMessage
	maxAnswer  = spool.MaxReport + 1<<20
)

// Handler is the node service and the path to mount it at. HTTP/2 without TLS is the caller's to set up; see HTTP2.
func (w *Worker) Handler() (path string, h http.Handler) {
	return nodev1connect.NewNodeServiceHandler(service{w: w},
		connect.WithReadMaxBytes(maxRequest), connect.WithSendMaxBytes(maxAnswer), noderpc.Traced(),
		connect.WithCompression("gzip", nil, nil)) // on a local socket compressing costs more than it saves
}

// Run watches sandboxes and measures them until ctx ends or the driver stops.
func (w *Worker) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := w.cfg.Driver.Watch(ctx)
	if err != nil {
		return fmt.Errorf("watch sandboxes: %w", err)
	}
	var measuring sync.WaitGroup // aside: an alarm for memory cannot wait until hundreds of sandboxes are measured
	defer func() { cancel(); measuring.Wait() }()
	measuring.Go(func() { w.measureAll(ctx) })
	for {
		select {
		case e, ok := <-events:
			if !ok {
				if ctx.Err() != nil {
					return nil
				}
				return errors.New("watch sandboxes: the driver stopped")
			}
			w.noticed(e)
		case <-ctx.Done():
			return nil
		}
	}
}

// Close ends background work and all sessions. Sandboxes run on; only those prepared for nobody are destroyed.
func (w *Worker) Close(ctx context.Context) error {
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.cancel()
		w.events.close()
		w.pool.Close()
		w.mu.Lock()
		boxes := make([]*box, 0, len(w.boxes))
		for _, b := range w.boxes {
			boxes = append(boxes, b)
		}
		w.mu.Unlock()
		for _, b := range boxes {
			if p := b.speaker(); p != nil {
				p.close()
				b.usage.save(w.usagePath(b.handle))
			}
		}
		w.work.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close worker: %w", ctx.Err())
	}
}

// background runs f so that Close waits for it. After Close it does nothing.
func (w *Worker) background(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closing {
		w.work.Go(f)
	}
}

func newHandle() driver.Handle { return driver.Handle(cay.NewID(cay.PrefixSandbox).Body()) }

func (w *Worker) spoolDir(h driver.Handle) string {
	return filepath.Join(w.cfg.DataDir, "sandboxes", string(h), "spool")
}

func (w *Worker) usagePath(h driver.Handle) string {
	return filepath.Join(w.cfg.DataDir, "sandboxes", string(h), "usage.json")
}

func (w *Worker) samplesPath(h driver.Handle) string {
	return filepath.Join(w.cfg.DataDir, "sandboxes", string(h), "samples")
}

func (w *Worker) journalDir(h driver.Handle) string {
	return filepath.Join(w.cfg.DataDir, "sandboxes", string(h), "journal")
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
