// Package scheduler does what rows demand: it leases them, places new sandboxes, asks nodes, and reports outcomes to the life cycle,
// which decides what they mean. It keeps nothing that matters: whatever it forgets is in the rows, and is taken again when the lease
// has run out.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// Queue hands out rows; internal/control/store says what each method promises.
type Queue interface {
	Lease(ctx context.Context, now time.Time, lease cay.Lease, ops []cay.Operation, limit int,
		pick func(sb *cay.Sandbox, workers []cay.WorkerLoad) (worker cay.ID, ok bool)) ([]*cay.Sandbox, error)
	RenewLeases(ctx context.Context, lease cay.Lease, held map[cay.ID]int64) (lost []cay.ID, err error)
	ReleaseOtherLeases(ctx context.Context, owner string) (int64, error)
}

// Nodes finds the node of a worker.
type Nodes interface {
	For(ctx context.Context, worker cay.ID) (nodev1connect.NodeServiceClient, error)
	// Available reports whether the worker can be asked now.
	Available(worker cay.ID) bool
}

// Life takes outcomes. Each names the attempt that it belongs to; one that no longer counts is cay.Conflict.
type Life interface {
	Booted(ctx context.Context, id cay.ID, attempt int64, ms cay.CreateMS) error
	BootFailed(ctx context.Context, id cay.ID, attempt int64, reason cay.StatusReason, detail string) error
	Destroyed(ctx context.Context, id cay.ID, attempt int64, usage cay.Usage) error
	Frozen(ctx context.Context, id cay.ID, attempt int64) error
	Thawed(ctx context.Context, id cay.ID, attempt int64) error
	Refused(ctx context.Context, id cay.ID, attempt int64, why error) error
	Retry(ctx context.Context, id cay.ID, attempt int64, after time.Duration, failure, elsewhere bool, detail string) error
	Redirect(ctx context.Context, id cay.ID, attempt int64, worker cay.ID) error
}

// Config is how much is done at once and how long it may take.
type Config struct {
	Boots      int           // at once
	Others     int           // destroys, pauses and resumes at once
	MaxBoots   int64         // failed boots until a sandbox is FAILED
	Scan       time.Duration // between looks at the queue without a wake-up
	Lease      time.Duration // renewed at a third of it
	Overcommit Overcommit

	CreateTimeout  time.Duration
	DestroyTimeout time.Duration // on top of DestroyGrace
	FreezeTimeout  time.Duration // also of a thaw
	DestroyGrace   time.Duration // between TERM to everything and the end
	StopGrace      time.Duration // how long Stop lets work finish

	Metrics prometheus.Registerer // nil: they are shown nowhere
}

// Overcommit is how many times a worker's capacity may be promised. Memory and disk of 1 promise no more than there is.
type Overcommit struct {
	CPU    float64
	Memory float64
	Disk   float64
}

// DefaultConfig suits one machine.
func DefaultConfig() Config {
	return Config{
		Boots: max(2, runtime.NumCPU()), Others: max(4, 2*runtime.NumCPU()), MaxBoots: 3,
		Scan: time.Second, Lease: 30 * time.Second,
		Overcommit:    Overcommit{CPU: 16, Memory: 1, Disk: 1},
		CreateTimeout: time.Minute, DestroyTimeout: 30 * time.Second, FreezeTimeout: 15 * time.Second,
		StopGrace: 5 * time.Second,
	}
}

// Scheduler works on leased rows.
type Scheduler struct {
	cfg   Config
	queue Queue
	nodes Nodes
	life  Life
	files Volumes
	log   *slog.Logger
	owner string

	metrics *metrics
	woken   chan struct{} // capacity 1

	mu      sync.Mutex
	working map[cay.ID]*work // guarded by mu
	boots   int              // guarded by mu
	others  int              // guarded by mu
	waiting []chan struct{}  // guarded by mu; for a hand to boot with, oldest first; each is closed when it has one

	quit    context.CancelFunc // ends the loop
	abort   context.CancelFunc // ends work under way
	loop    sync.WaitGroup
	workers sync.WaitGroup
	started bool
	stopped sync.Once
}

// work is one leased row under way.
type work struct {
	sb       *cay.Sandbox
	leasedAt time.Time
	cancel   context.CancelCauseFunc
	done     chan struct{}
	before   *work // older work on the same sandbox, which has to be out of the way first
}

// errSuperseded ends work on a row that somebody else has now.
var errSuperseded = errors.New("superseded by a newer attempt")

// New makes a scheduler. Nothing works before Start.
func New(cfg Config, queue Queue, nodes Nodes, life Life, files Volumes, log *slog.Logger) *Scheduler {
	return &Scheduler{
		cfg: cfg, queue: queue, nodes: nodes, life: life, files: files, log: log,
		owner: string(cay.NewID("sch_")), metrics: newMetrics(cfg.Metrics), woken: make(chan struct{}, 1), working: map[cay.ID]*work{},
	}
}

// Start takes over the leases of a scheduler that died and begins to work. It must be the only scheduler on its store. ctx bounds the
// taking over alone.
func (s *Scheduler) Start(ctx context.Context) error {
	n, err := s.queue.ReleaseOtherLeases(ctx, s.owner)
	if err != nil {
		return fmt.Errorf("start the scheduler: %w", err)
	}
	if n > 0 {
		s.log.Info("took over leases of an earlier start", "rows", n)
	}
	loopCtx, quit := context.WithCancel(context.WithoutCancel(ctx))
	workCtx, abort := context.WithCancel(context.WithoutCancel(ctx))
	s.quit, s.abort, s.started = quit, abort, true
	s.loop.Go(func() { s.run(loopCtx, workCtx) })
	return nil
}

// Wake says that there may be something to do. It never blocks.
func (s *Scheduler) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// Stop leases nothing more, lets work finish for a while, then gives back what is left. It is idempotent and returns when nothing
// runs any more.
func (s *Scheduler) Stop() {
	if !s.started {
		return
	}
	s.stopped.Do(func() {
		s.quit()
		s.loop.Wait()
		finished := make(chan struct{})
		go func() { s.workers.Wait(); close(finished) }()
		select {
		case <-finished:
		case <-time.After(s.cfg.StopGrace):
			s.abort()
			<-finished
		}
		s.abort()
	})
}

func (s *Scheduler) run(ctx, workCtx context.Context) {
	scan, renew := time.NewTicker(s.cfg.Scan), time.NewTicker(s.cfg.Lease/3)
	defer scan.Stop()
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			s.renew(ctx)
		case <-s.woken:
			s.dispatch(ctx, workCtx)
		case <-scan.C:
			s.dispatch(ctx, workCtx)
		}
	}
}

// dispatch leases as much as there are hands for. Ends come first: they make room.
func (s *Scheduler) dispatch(ctx, workCtx context.Context) {
	s.mu.Lock()
	boots, others := s.cfg.Boots-s.boots-len(s.waiting), s.cfg.Others-s.others
	s.mu.Unlock()
	s.take(ctx, workCtx, others, cay.OpDestroy, cay.OpPause, cay.OpResume)
	s.take(ctx, workCtx, boots, cay.OpCreate)
}

func (s *Scheduler) take(ctx, workCtx context.Context, limit int, ops ...cay.Operation) {
	if limit <= 0 {
		return // whoever finishes wakes the loop
	}
	at := time.Now()
	rows, err := s.queue.Lease(ctx, at, cay.Lease{Owner: s.owner, Until: at.Add(s.cfg.Lease)}, ops, limit, s.pick)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("lease rows", "error", err)
		}
		return
	}
	for _, sb := range rows {
		s.begin(workCtx, sb, at)
	}
}

func (s *Scheduler) begin(ctx context.Context, sb *cay.Sandbox, at time.Time) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &work{sb: sb, leasedAt: at, cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	if w.before = s.working[sb.ID]; w.before != nil {
		w.before.cancel(errSuperseded)
	}
	s.working[sb.ID] = w
	if sb.Op == cay.OpCreate {
		s.boots++
	} else {
		s.others++
	}
	s.mu.Unlock()
	s.workers.Go(func() {
		defer func() {
			cancel(nil)
			close(w.done)
			s.mu.Lock()
			if sb.Op == cay.OpCreate {
				s.layDown()
			} else {
				s.others--
			}
			if s.working[sb.ID] == w {
				delete(s.working, sb.ID)
			}
			s.mu.Unlock()
			s.Wake()
		}()
		if w.before != nil {
			<-w.before.done
			w.before = nil
		}
		s.work(ctx, w)
	})
}

// renew extends the leases of all work under way and calls off what is no longer ours.
func (s *Scheduler) renew(ctx context.Context) {
	held := map[cay.ID]int64{}
	s.mu.Lock()
	working := maps.Clone(s.working)
	s.mu.Unlock()
	for id, w := range working {
		held[id] = w.sb.Attempt
	}
	if len(held) == 0 {
		return
	}
	lost, err := s.queue.RenewLeases(ctx, cay.Lease{Owner: s.owner, Until: time.Now().Add(s.cfg.Lease)}, held)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("renew leases", "error", err)
		}
		return
	}
	for _, id := range lost {
		working[id].cancel(errSuperseded)
	}
}

// pick is the placement: first fit. A row that has a worker already goes there again, since something of it may be there; one that
// never had one has nothing to be done about on any.
func (s *Scheduler) pick(sb *cay.Sandbox, workers []cay.WorkerLoad) (cay.ID, bool) {
	if sb.WorkerID != "" {
		return sb.WorkerID, s.nodes.Available(sb.WorkerID)
	}
	if sb.Op != cay.OpCreate {
		return "", true
	}
	for _, w := range workers {
		if (sb.NearWorker == "" || sb.NearWorker == w.ID) && s.fits(sb.Spec, w) && s.nodes.Available(w.ID) {
			return w.ID, true
		}
	}
	return "", false
}

func (s *Scheduler) fits(spec cay.SandboxSpec, w cay.WorkerLoad) bool {
	const rounding = 1e-6
	over := s.cfg.Overcommit
	return (w.MaxSandboxes == 0 || w.Sandboxes < w.MaxSandboxes) &&
		w.UsedCPU+spec.CPU <= w.CPU*over.CPU+rounding &&
		float64(w.UsedMemoryMB+spec.MemoryMB) <= float64(w.MemoryMB)*over.Memory &&
		w.UsedDiskGB+spec.DiskGB <= w.DiskGB*over.Disk+rounding &&
		w.Enforces(spec.ExplicitLimits) && (spec.SessionID == "" || w.CanMount)
}
