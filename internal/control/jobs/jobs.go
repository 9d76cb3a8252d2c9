package jobs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// Store is where rows are; internal/control/store says what each method promises.
type Store interface {
	InsertJob(ctx context.Context, j *cay.Job, maxQueued int64) error
	Job(ctx context.Context, id cay.ID) (*cay.Job, error)
	ListJobs(ctx context.Context, project cay.ID, q cay.JobQuery) (items []*cay.Job, next string, err error)
	MutateJob(ctx context.Context, id cay.ID, change func(*cay.Job) error) (*cay.Job, error)
	LeaseJobs(ctx context.Context, now time.Time, lease cay.Lease, limit int) ([]*cay.Job, error)
	RenewJobLeases(ctx context.Context, lease cay.Lease, held map[cay.ID]int64) (lost []cay.ID, err error)
	ReleaseOtherJobLeases(ctx context.Context, owner string) (int64, error)
	ExpiredJobs(ctx context.Context, now time.Time, limit int) ([]*cay.Job, error)
	OldJobs(ctx context.Context, before time.Time, limit int) ([]*cay.Job, error)
	DeleteJob(ctx context.Context, id cay.ID) error
	LiveSandboxes(ctx context.Context) ([]*cay.Sandbox, error)
}

// Sandboxes is the part of the life cycle that jobs need.
type Sandboxes interface {
	// Check answers why such a sandbox can never be, or nil.
	Check(req cay.CreateSandbox) error
	Create(ctx context.Context, project cay.ID, req cay.CreateSandbox) (*cay.Sandbox, error)
	Get(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	Wait(ctx context.Context, project, id cay.ID, want ...cay.Status) (*cay.Sandbox, error)
	Delete(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	Runtimes(ctx context.Context) ([]cay.Runtime, error)
}

// Nodes finds the node of a sandbox. Errors of calls go through noderpc.Decode.
type Nodes interface {
	For(ctx context.Context, worker cay.ID) (nodev1connect.NodeServiceClient, error)
}

// Blobs keeps what is too long for a row.
type Blobs interface {
	Write(ctx context.Context, key string, r io.Reader) (int64, error)
	Read(ctx context.Context, key string) (io.ReadCloser, error)
	// ReadRange opens length bytes from an offset on; -1: all that follow.
	ReadRange(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error)
	Delete(ctx context.Context, key string) error
	DeleteBelow(ctx context.Context, prefix string) error
}

// Config is how much is done at once and how long it may take.
type Config struct {
	Concurrency int           // programs that boot or run at once
	Saves       int           // beside them: those that have ended and whose output is being kept
	MaxQueued   int64         // jobs of one project that have not finished; zero: no bound
	Retention   time.Duration // of a finished job

	Scan        time.Duration // between looks at the queue without a wake-up
	Sweep       time.Duration // between looks for what nobody needs any more
	Lease       time.Duration // renewed at a third of it
	MaxAttempts int64         // until a fault of the platform is the end
	Unreachable time.Duration // how long a job waits for a worker that cannot be asked
	Backoff     time.Duration // after the first fault; doubles
	Busy        time.Duration // before a session in use, or a platform without room, is asked again

	Metrics prometheus.Registerer // nil: they are shown nowhere
}

// DefaultConfig suits one machine.
func DefaultConfig() Config {
	return Config{
		Concurrency: 2 * runtime.NumCPU(), Saves: 64, MaxQueued: 10_000, Retention: 7 * 24 * time.Hour,
		Scan: time.Second, Sweep: 15 * time.Second, Lease: 30 * time.Second,
		MaxAttempts: 3, Unreachable: 2 * time.Minute, Backoff: 500 * time.Millisecond, Busy: time.Second,
	}
}

// Jobs is the queue of jobs and what works on it.
type Jobs struct {
	cfg       Config
	store     Store
	sandboxes Sandboxes
	nodes     Nodes
	blobs     Blobs
	log       *slog.Logger
	owner     string

	metrics *metrics

	feed  *feed
	woken chan struct{} // capacity 1
	saves chan struct{} // a place in it for each save beside the programs
	scans chan struct{} // a place in it for each reading of the output of a running program

	mu      sync.Mutex
	working map[cay.ID]*work // guarded by mu
	hands   int              // guarded by mu; programs that boot or run

	quit    context.CancelFunc // ends the loops
	abort   context.CancelCauseFunc
	loops   sync.WaitGroup
	workers sync.WaitGroup
	started bool
	stopped sync.Once
}

// New makes the queue. Nothing works before Start, but jobs can be submitted.
func New(cfg Config, store Store, sandboxes Sandboxes, nodes Nodes, blobs Blobs, log *slog.Logger) *Jobs {
	return &Jobs{
		cfg: cfg, store: store, sandboxes: sandboxes, nodes: nodes, blobs: blobs, log: log, owner: string(cay.NewID("jbr_")), metrics: newMetrics(cfg.Metrics),
		feed: newFeed(store.Job), woken: make(chan struct{}, 1), saves: make(chan struct{}, cfg.Saves), scans: make(chan struct{}, maxScans),
		working: map[cay.ID]*work{},
	}
}

// Start takes over the leases of a holder that died and begins to work. It must be the only one on its store. ctx bounds the taking over
// alone.
func (j *Jobs) Start(ctx context.Context) error {
	n, err := j.store.ReleaseOtherJobLeases(ctx, j.owner)
	if err != nil {
		return fmt.Errorf("start the queue of jobs: %w", err)
	}
	if n > 0 {
		j.log.Info("took over jobs of an earlier start", "jobs", n)
	}
	loops, quit := context.WithCancel(context.WithoutCancel(ctx))
	works, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	j.quit, j.abort, j.started = quit, abort, true
	j.loops.Go(func() { j.run(loops, works) })
	j.loops.Go(func() { j.sweep(loops) })
	j.loops.Go(func() {
		j.feed.run(loops, func(err error) { j.log.Error("jobs could not be looked for", "error", err) })
	})
	return nil
}

// Wake says that there may be something to do. It never blocks.
func (j *Jobs) Wake() {
	select {
	case j.woken <- struct{}{}:
	default:
	}
}

// Stop leases nothing more and gives back what is held; the programs run on. It is idempotent and returns when nothing of it works any more.
func (j *Jobs) Stop() {
	if !j.started {
		return
	}
	j.stopped.Do(func() {
		j.quit()
		j.loops.Wait()
		j.abort(errStopping)
		j.workers.Wait()
	})
}

func (j *Jobs) run(ctx, works context.Context) {
	scan, renew := time.NewTicker(j.cfg.Scan), time.NewTicker(j.cfg.Lease/3)
	defer scan.Stop()
	defer renew.Stop()
	for {
		j.dispatch(ctx, works)
		select {
		case <-ctx.Done():
			return
		case <-renew.C:
			j.renew(ctx)
		case <-j.woken:
		case <-scan.C:
			j.expire(ctx)
		}
	}
}

// dispatch leases as much as there are hands for.
func (j *Jobs) dispatch(ctx, works context.Context) {
	j.mu.Lock()
	free := j.cfg.Concurrency - j.hands
	j.mu.Unlock()
	if free <= 0 || ctx.Err() != nil {
		return // whoever finishes wakes the loop
	}
	at := time.Now()
	until := at.Add(j.cfg.Lease)
	rows, err := j.store.LeaseJobs(ctx, at, cay.Lease{Owner: j.owner, Until: until}, free)
	if err != nil {
		if ctx.Err() == nil {
			j.log.Error("lease jobs", "error", err)
		}
		return
	}
	for _, row := range rows {
		j.begin(works, row, at, until)
	}
}

// renew extends the leases of all work under way and calls off what is no longer ours, or may not be: a lease that could not be renewed
// counts as lost before anyone else can have it.
func (j *Jobs) renew(ctx context.Context) {
	held := map[cay.ID]int64{}
	j.mu.Lock()
	working := make(map[cay.ID]*work, len(j.working))
	for id, w := range j.working {
		held[id], working[id] = w.fence, w
	}
	j.mu.Unlock()
	if len(held) == 0 {
		return
	}
	until := time.Now().Add(j.cfg.Lease)
	lost, err := j.store.RenewJobLeases(ctx, cay.Lease{Owner: j.owner, Until: until}, held)
	if err != nil && ctx.Err() == nil {
		j.log.Error("renew leases of jobs", "error", err)
	}
	if err == nil {
		for _, w := range working {
			w.until = until
		}
	}
	for _, id := range lost {
		working[id].stop(errLost)
	}
	for _, w := range working {
		if time.Now().After(w.until.Add(-j.cfg.Lease / 3)) {
			w.stop(errLost)
		}
	}
}
