package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/journal"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/samples"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// state of a sandbox as this node sees it.
type state string

const (
	booting state = "booting"
	running state = "running"
	frozen  state = "frozen"
	dying   state = "ending" // it ended by itself, or is being destroyed
)

// box is one sandbox. mu guards what is below it; id to inherited never change.
type box struct {
	id        cay.ID
	project   cay.ID // "": one that claimed it before nodes kept it
	handle    driver.Handle
	shape     driver.Shape
	cpu       float64 // promised, cores
	memoryMB  int64   // promised
	inherited bool    // from an earlier node
	since     time.Time

	settled chan struct{} // closed when the create has an outcome
	abort   context.CancelCauseFunc

	moving sync.Mutex // one freeze, thaw or destroy at a time; before mu and Worker.mu

	usage usage

	mu         sync.Mutex
	state      state
	attempt    int64
	prepared   *prepared
	err        error // of the create, once settled
	bootMS     int64
	warm       bool
	ended      *ending
	reclaiming bool
	diskFull   bool
	reported   int64 // last activity that watchers were told of, Unix ms
	reportedFg bool
	reportedAt time.Time
	gone       bool // destroyed, and proven so
	volumes    []attachment
	unproven   bool // what was booted for it may not be gone: its volumes stay
}

// ending is why a sandbox is no more.
type ending struct {
	reason  cay.StatusReason
	detail  string
	oom     bool // its processes ended with it for memory
	destroy bool // what is left of it runs still
	at      time.Time
}

func (b *box) speaker() *prepared {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.prepared
}

// prepared is a sandbox that runs and whose agent is spoken with.
type prepared struct {
	handle             driver.Handle
	session            *router.Session
	spool              *spool.Spool
	samples            *samples.Ring
	journal            *journal.Journal
	unnoted, unsampled atomic.Bool // what is kept could not be, and that was said

	mu    sync.Mutex
	owner *box // nil while it belongs to nobody
	lost  bool
}

// belongsTo is whose sandbox it is; nil: nobody's.
func (p *prepared) belongsTo() *box {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.owner
}

func (p *prepared) close() {
	p.retire()
	p.spool.Close()
}

// retire ends what writes to the sandbox's directory, so that nothing does while the driver removes it.
func (p *prepared) retire() {
	p.session.Close()
	p.samples.Close()
	p.journal.Close()
}

// speak opens spool and session of a sandbox that runs.
func (w *Worker) speak(h driver.Handle, isFrozen bool, owner *box) (*prepared, error) {
	opts := w.cfg.Spool
	opts.MinTail = max(opts.MinTail, router.MaxLag)
	sp, err := spool.Open(w.spoolDir(h), opts)
	if err != nil {
		return nil, err
	}
	if owner != nil && owner.inherited {
		w.recall(owner, sp, false)
	}
	p := &prepared{
		handle: h, spool: sp, owner: owner, samples: samples.Open(w.samplesPath(h), samplesKept),
		journal: journal.Open(w.journalDir(h), journalSize),
	}
	p.session = router.New(router.Config{
		Dial: func(ctx context.Context, purpose driver.Purpose) (conn, error) {
			return w.cfg.Driver.Dial(ctx, h, purpose)
		},
		Spool: sp, Log: w.log.With("handle", string(h)), Frozen: isFrozen, Timing: w.cfg.Router,
		Said:   func(level, message string) { w.note(p, journal.Agent, level, message) },
		GiveUp: func(why string) { w.lose(p, why) },
		Ended: func(m spool.Process) {
			if b := p.belongsTo(); b != nil {
				w.ended(b, m)
			}
		},
		Limits: func() router.Limits {
			if b := p.belongsTo(); b != nil {
				return router.Limits{CPU: b.shape.CPU, MemoryMB: b.memoryMB}
			}
			return router.Limits{}
		},
		Counters: &w.counted,
	})
	return p, nil
}

// lose ends a sandbox whose agent cannot be trusted to go on.
func (w *Worker) lose(p *prepared, why string) {
	p.mu.Lock()
	p.lost = true
	owner := p.owner
	p.mu.Unlock()
	w.background(func() {
		if owner == nil {
			w.pool.Drop(func(q *prepared) bool { return q == p })
		} else {
			w.end(owner, ending{reason: cay.ReasonWorkerLost, detail: "the sandbox was ended because " + why, destroy: true})
		}
	})
}

// prepare boots a sandbox and waits for its agent. On error nothing is left. owner is nil for the pool.
func (w *Worker) prepare(ctx context.Context, h driver.Handle, shape driver.Shape, owner *box) (*prepared, error) {
	ctx, cancel := context.WithTimeout(ctx, w.timing.Boot)
	defer cancel()
	began := time.Now()
	if err := w.cfg.Driver.Prepare(ctx, h, shape); err != nil {
		return nil, err
	}
	p, err := w.speak(h, false, owner)
	if err == nil {
		if owner != nil { // from here on its end is noticed
			owner.mu.Lock()
			owner.prepared = p
			owner.mu.Unlock()
		}
		booted := time.Now()
		if err = p.session.Connected(ctx); err != nil && context.Cause(ctx) != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		if owner != nil {
			tracing.CompletedByAgent(ctx, "agent.hello", booted, time.Now(), tracing.SandboxID(owner.id), tracing.Reason(cay.ReasonOf(err)))
		}
	}
	if err == nil {
		w.measured.boot.Observe(since(began))
		w.note(p, journal.Boot, journal.Info, fmt.Sprintf("kernel and agent were up after %s", milliseconds(began)))
		return p, nil
	}
	if p != nil {
		p.retire()
		p.spool.Remove()
	}
	if gone := w.destroyHandle(h); owner != nil {
		owner.leave(gone)
	}
	return nil, err
}

// discard destroys a sandbox that belongs to nobody, as destroyHandle does.
func (w *Worker) discard(p *prepared) (gone bool) {
	p.retire()
	p.spool.Remove()
	return w.destroyHandle(p.handle)
}

// leave notes whether what was booted for b is proven gone.
func (b *box) leave(gone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unproven = b.unproven || !gone
}

// destroyHandle destroys what no box stands for, trying again until it is gone or the Worker closes: false then, a later node finds the
// rest.
func (w *Worker) destroyHandle(h driver.Handle) bool {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), w.timing.Destroy)
		err := w.cfg.Driver.Destroy(ctx, h)
		cancel()
		if err == nil {
			return true
		}
		w.log.Error("sandbox not destroyed", "handle", string(h), "error", err)
		if !w.rest(pause) {
			return false
		}
	}
}

// rest waits for d; false: the Worker closes.
func (w *Worker) rest(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.ctx().Done():
		return false
	}
}

// find returns a sandbox by id; unknown is cay.NotFound.
func (w *Worker) find(id string) (*box, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b, ok := w.boxes[cay.ID(id)]; ok {
		return b, nil
	}
	return nil, cay.Errorf(cay.NotFound, "there is no such sandbox on this worker")
}

// use returns the session of a sandbox that can be used now.
func (w *Worker) use(id string) (*router.Session, error) {
	b, err := w.find(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case booting:
		return nil, cay.Errorf(cay.NotReady, "the sandbox is still booting").After(time.Second)
	case frozen:
		return nil, cay.Errorf(cay.SandboxPaused, "the sandbox is paused")
	case dying:
		return nil, cay.Errorf(cay.Gone, "the sandbox has ended")
	}
	return b.prepared.session, nil
}

// readable is use for reading what is kept: also of a sandbox that is frozen, or that ended and is not destroyed yet.
func (w *Worker) readable(id string) (*router.Session, error) {
	b, err := w.find(id)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.prepared == nil || b.state == booting {
		return nil, cay.Errorf(cay.NotReady, "the sandbox is still booting").After(time.Second)
	}
	return b.prepared.session, nil
}

// fences remembers the attempts of sandboxes that are gone, so that a create that was overtaken does not bring one back. It forgets
// the oldest beyond maxFences.
type fences struct {
	attempt map[cay.ID]int64
	order   []cay.ID
}

const maxFences = 10_000

func (f *fences) note(id cay.ID, attempt int64) {
	if f.attempt == nil {
		f.attempt = map[cay.ID]int64{}
	}
	if _, ok := f.attempt[id]; !ok {
		f.order = append(f.order, id)
	}
	f.attempt[id] = max(f.attempt[id], attempt)
	for len(f.order) > maxFences {
		delete(f.attempt, f.order[0])
		f.order = f.order[1:]
	}
}

func errFenced(attempt, seen int64) error {
	return cay.Errorf(cay.PreconditionFailed, "attempt %d was overtaken by attempt %d", attempt, seen)
}
