// Package history brings what is over, and what happens, to those who ask for it. It fetches the records of processes from the nodes and
// writes them behind, in batches; it keeps the audit log's queue; and it tells a project's events to who follows them. What it answers is
// the store's. The records of sandboxes, jobs and sessions are not its: they are written with the end that they tell of; and it adds
// nothing to usage, which is written with the rows that say what was used.
package history

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// Config says what is recorded and how fast.
type Config struct {
	Commands bool // keep the beginning of each command and program

	Poll      time.Duration // how long a node may wait for records before it answers that there are none
	MinRetry  time.Duration // after a failure, doubled with each one that follows
	MaxRetry  time.Duration
	LastFetch time.Duration // what Stop spends on records that nodes still have

	MaxAudit         int           // entries of the audit log that wait to be written
	AuditEvery       time.Duration // they are written within about that time
	AuditFlush       time.Duration // what Stop spends on those that wait
	RefusedPerSecond int           // entries of a second that tell of one status of those refused for who asked: 401, 403

	Look time.Duration // between two looks for new events while anybody follows
}

// DefaultConfig records commands.
func DefaultConfig() Config {
	return Config{
		Commands: true,
		Poll:     20 * time.Second, MinRetry: 100 * time.Millisecond, MaxRetry: 5 * time.Second, LastFetch: 2 * time.Second,
		MaxAudit: 10_000, AuditEvery: 200 * time.Millisecond, AuditFlush: 5 * time.Second, RefusedPerSecond: 10,
		Look: 250 * time.Millisecond,
	}
}

// maxPage bounds a page of anything.
const maxPage = 200

// Store is what is kept; internal/control/store describes it.
type Store interface {
	Sandbox(ctx context.Context, id cay.ID) (*cay.Sandbox, error)

	AddRecords(ctx context.Context, records []cay.Record) error
	Record(ctx context.Context, project, id cay.ID) (cay.Record, error)
	ListRecords(ctx context.Context, project cay.ID, q cay.RecordQuery) (items []cay.Record, next string, err error)
	Usage(ctx context.Context, project cay.ID, q cay.UsageQuery) (rows []cay.UsageRow, total cay.UsageRow, next string, err error)
	AddAudit(ctx context.Context, entries []cay.AuditEntry) error
	ListAudit(ctx context.Context, project cay.ID, q cay.AuditQuery) (items []cay.AuditEntry, next string, err error)

	Events(ctx context.Context, project cay.ID, q cay.EventQuery) (events []cay.Event, kept cay.EventSpan, err error)
	EventsSince(ctx context.Context, after int64, limit int) (sandboxes []cay.ID, newest int64, err error)
}

// Nodes are where processes run; internal/control/nodes implements it.
type Nodes interface {
	// Live are the workers that can be asked now; changed is closed once that is no longer so.
	Live() (workers []cay.ID, changed <-chan struct{})
	For(ctx context.Context, worker cay.ID) (nodev1connect.NodeServiceClient, error)
}

// History is the past of all projects, and what happens in them now.
type History struct {
	cfg   Config
	store Store
	nodes Nodes
	log   *slog.Logger

	counts counts
	audit  *auditQueue
	feed   *feed

	stop    context.CancelFunc
	running sync.WaitGroup
}

// New makes a History. Nothing runs before Start; what is noted for the audit log until then waits.
func New(cfg Config, store Store, nodes Nodes, log *slog.Logger) *History {
	h := &History{cfg: cfg, store: store, nodes: nodes, log: log, counts: newCounts(), feed: newFeed()}
	h.audit = newAuditQueue(cfg, store.AddAudit, h.counts.auditLost.Add, log)
	return h
}

// Start begins to fetch records, to write the audit log, and to look for events.
func (h *History) Start() {
	run, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	h.running.Go(func() { h.follow(run) })
	h.running.Go(func() { h.audit.run(run) })
	h.running.Go(func() { h.feed.run(run, h.cfg.Look, h.newest, h.log) })
}

// Stop fetches what nodes still have, writes what waits, and returns when nothing runs any more. It is idempotent. The nodes must be
// there until it has returned.
func (h *History) Stop() {
	if h.stop != nil {
		h.stop()
		h.running.Wait()
	}
}

// Record answers what is known of a process, job, session or sandbox of the project that has ended.
func (h *History) Record(ctx context.Context, project, id cay.ID) (cay.Record, error) {
	return h.store.Record(ctx, project, id)
}

// Records answers a page of the history.
func (h *History) Records(ctx context.Context, project cay.ID, q cay.RecordQuery) ([]cay.Record, string, error) {
	if err := checkLimit(q.Limit); err != nil {
		return nil, "", err
	}
	return h.store.ListRecords(ctx, project, q)
}

// Usage answers a page of what was used, and the sum of all pages.
func (h *History) Usage(ctx context.Context, project cay.ID, q cay.UsageQuery) ([]cay.UsageRow, cay.UsageRow, string, error) {
	if err := checkLimit(q.Limit); err != nil {
		return nil, cay.UsageRow{}, "", err
	}
	return h.store.Usage(ctx, project, q)
}

// Audit answers a page of the audit log.
func (h *History) Audit(ctx context.Context, project cay.ID, q cay.AuditQuery) ([]cay.AuditEntry, string, error) {
	if err := checkLimit(q.Limit); err != nil {
		return nil, "", err
	}
	return h.store.ListAudit(ctx, project, q)
}

// NoteAudit takes an entry to be written soon. It never blocks; what cannot be kept is counted.
func (h *History) NoteAudit(e cay.AuditEntry) { h.audit.note(e) }

func checkLimit(n int) error {
	if n < 1 || n > maxPage {
		return cay.Errorf(cay.InvalidRequest, "limit is between 1 and %d", maxPage).On("limit")
	}
	return nil
}

// retry waits longer with each failure in a row.
type retry struct {
	least, most time.Duration
	failures    int
}

// wait is the time until the next try.
func (r *retry) wait() time.Duration {
	d := r.least << min(r.failures, 20)
	r.failures++
	return min(d, r.most)
}

// pause waits for d. It reports false when ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
