package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay"
)

// Store is where rows are kept; internal/control/store says what each method promises.
type Store interface {
	InsertSandbox(ctx context.Context, sb *cay.Sandbox, maxActive, maxQueued int64) error
	Sandbox(ctx context.Context, id cay.ID) (*cay.Sandbox, error)
	LiveSandboxes(ctx context.Context) ([]*cay.Sandbox, error)
	ListSandboxes(ctx context.Context, project cay.ID, q cay.SandboxQuery) (items []*cay.Sandbox, next string, err error)
	MutateSandbox(ctx context.Context, id cay.ID, change func(*cay.Sandbox) ([]cay.Event, error)) (*cay.Sandbox, error)
	TouchSandboxes(ctx context.Context, rows []*cay.Sandbox) error
	AddEvent(ctx context.Context, e cay.Event) error
	Events(ctx context.Context, project cay.ID, q cay.EventQuery) (events []cay.Event, kept cay.EventSpan, err error)
	EventsSince(ctx context.Context, after int64, limit int) (sandboxes []cay.ID, newest int64, err error)
	Purge(ctx context.Context, now time.Time, keep cay.Retention) error
}

// Workers says what the known nodes offer; none while the server has not heard of any.
type Workers interface {
	Workers() []cay.Worker
}

// Sandboxes is the life of all sandboxes.
type Sandboxes struct {
	cfg     Config
	store   Store
	workers Workers
	log     *slog.Logger
	table   *table
	alarms  *alarms
	feed    *feed
	ends    map[cay.StatusReason]prometheus.Counter

	wake    func() // tells the scheduler that there is something to do
	stop    context.CancelFunc
	running sync.WaitGroup
}

// New makes the life cycle over a store. Nothing works before Start.
func New(cfg Config, store Store, workers Workers, log *slog.Logger) *Sandboxes {
	return &Sandboxes{cfg: cfg, store: store, workers: workers, log: log, table: newTable(), alarms: newAlarms(), feed: newFeed(), ends: newEnds(cfg.Metrics)}
}

// Start reads the rows that have not ended and sets the clocks going. wake is called, and must not block, whenever a row has a new
// operation. ctx bounds the reading alone.
func (s *Sandboxes) Start(ctx context.Context, wake func()) error {
	rows, err := s.store.LiveSandboxes(ctx)
	if err != nil {
		return fmt.Errorf("start the life cycle: %w", err)
	}
	s.wake = wake
	for _, sb := range rows {
		s.publish(sb, nil)
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = cancel
	s.running.Go(func() { s.alarms.run(run, s.strike) })
	s.running.Go(func() { s.keepHouse(run) })
	s.running.Go(func() {
		s.feed.run(run, s.store.EventsSince, func(err error) { s.log.Error("events could not be looked for", "error", err) })
	})
	return nil
}

// Stop ends the clocks and writes what only memory knows. It is idempotent.
func (s *Sandboxes) Stop(ctx context.Context) error {
	if s.stop == nil {
		return nil
	}
	s.stop()
	s.running.Wait()
	return s.flush(ctx)
}

// keepHouse writes activity and usage behind, and purges what has been kept long enough.
func (s *Sandboxes) keepHouse(ctx context.Context) {
	flush, purge := time.NewTicker(flushPeriod), time.NewTicker(purgePeriod)
	defer flush.Stop()
	defer purge.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-flush.C:
			err = s.flush(ctx)
		case now := <-purge.C:
			err = s.store.Purge(ctx, now, s.cfg.Retention)
		}
		if err != nil && ctx.Err() == nil {
			s.log.Error("housekeeping failed", "error", err)
		}
	}
}

func (s *Sandboxes) flush(ctx context.Context) error {
	rows := s.table.unflushed()
	if len(rows) == 0 {
		return nil
	}
	if err := s.store.TouchSandboxes(ctx, rows); err != nil {
		return fmt.Errorf("write last activity: %w", err)
	}
	return nil
}

// now is the time as the store keeps it, so that a row in memory equals the one read back.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// errUnchanged is what a change returns when there is nothing to write.
var errUnchanged = errors.New("unchanged")

// mutate is the one way a row changes: change edits it within a guarded write, after which waiters, clocks and the scheduler know. A
// change of status becomes an event. errUnchanged from change is no error: the row comes back as it is.
func (s *Sandboxes) mutate(ctx context.Context, id cay.ID, change func(*cay.Sandbox) error) (*cay.Sandbox, error) {
	return s.mutateRefusing(ctx, id, nil, change)
}

func (s *Sandboxes) mutateRefusing(ctx context.Context, id cay.ID, refusal error, change func(*cay.Sandbox) error) (*cay.Sandbox, error) {
	told := false
	var was cay.Status
	sb, err := s.store.MutateSandbox(ctx, id, func(sb *cay.Sandbox) ([]cay.Event, error) {
		from := sb.Status
		told, was = false, from
		s.table.fold(sb)
		if err := change(sb); err != nil {
			return nil, err
		}
		if sb.Status == from {
			return nil, nil
		}
		told = true
		return []cay.Event{cay.StatusEvent(sb, from, now())}, nil
	})
	if errors.Is(err, errUnchanged) {
		return sb, nil
	}
	if err != nil {
		return nil, err
	}
	s.publish(sb, refusal)
	s.counted(was, sb)
	if told {
		s.feed.wake(id)
	}
	return sb, nil
}

func (s *Sandboxes) publish(sb *cay.Sandbox, refusal error) {
	s.table.put(sb, refusal)
	s.arm(sb.ID)
	if sb.Op != cay.OpNone && sb.LeaseOwner == "" {
		s.wake()
	}
}

// seen is a caller's copy of a row, with what only memory knows.
func (s *Sandboxes) seen(sb *cay.Sandbox) *cay.Sandbox {
	c := *sb
	s.table.fold(&c)
	return &c
}

// queueing puts an operation on the row, in the place of any other. It belongs to no trace until its caller says so.
func queueing(sb *cay.Sandbox, op cay.Operation) {
	if op != cay.OpNone {
		sb.Traceparent = ""
	}
	sb.Op, sb.LeaseOwner, sb.LeaseUntil, sb.NotBefore, sb.FailureCount = op, "", time.Time{}, time.Time{}, 0
}

// settled takes the operation off the row.
func settled(sb *cay.Sandbox) { queueing(sb, cay.OpNone) }

// ending moves the row to TERMINATING, to be destroyed by the scheduler.
func (s *Sandboxes) ending(sb *cay.Sandbox, reason cay.StatusReason, at time.Time) error {
	accounted, counts := sb.AccountedAt, s.countsUntil(sb, reason, at)
	if err := sb.Transition(cay.Terminating, reason, at); err != nil {
		return err
	}
	if !accounted.IsZero() && counts.Before(at) {
		sb.AccountedAt = accounted
		if counts.After(accounted) {
			sb.AccountedAt = counts
		}
	}
	queueing(sb, cay.OpDestroy)
	return nil
}

// countsUntil is until when the time of a sandbox that ends counts as used: to the end, but for what nobody knows to have run. One that
// is gone from its worker counts until that last had it, and so does one whose worker has not been heard of for long. An end of a TTL that
// came while no server was there counts until it was due.
func (s *Sandboxes) countsUntil(sb *cay.Sandbox, reason cay.StatusReason, at time.Time) time.Time {
	seen := s.table.lastSeen(sb.ID)
	switch {
	case reason == cay.ReasonWorkerLost || !seen.IsZero() && at.Sub(seen) > silence:
		return seen
	case seen.IsZero() && reason == cay.ReasonTTLExpired:
		return sb.ExpiresAt
	case seen.IsZero() && reason == cay.ReasonPausedTTLExpired:
		return sb.PausedAt.Add(sb.Spec.PausedTTL)
	}
	return at
}
