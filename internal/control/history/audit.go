package history

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// auditBatch is how many entries one transaction writes at most.
const auditBatch = 500

// auditQueue are entries that wait to be written. It takes them without ever blocking, and holds a bounded number.
type auditQueue struct {
	cfg   Config
	write func(context.Context, []cay.AuditEntry) error
	lost  func(float64)
	log   *slog.Logger

	some chan struct{} // has one while there may be entries

	mu      sync.Mutex
	waiting []cay.AuditEntry // guarded by mu; oldest first
	second  int64            // guarded by mu; the one that refused counts
	refused map[int]int      // guarded by mu; entries of that second, by status
}

func newAuditQueue(cfg Config, write func(context.Context, []cay.AuditEntry) error, lost func(float64), log *slog.Logger) *auditQueue {
	return &auditQueue{cfg: cfg, write: write, lost: lost, log: log, some: make(chan struct{}, 1), refused: map[int]int{}}
}

// note takes an entry, or counts it as lost.
func (q *auditQueue) note(e cay.AuditEntry) {
	if !q.take(e) {
		q.lost(1)
		return
	}
	select {
	case q.some <- struct{}{}:
	default:
	}
}

func (q *auditQueue) take(e cay.AuditEntry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden {
		if now := time.Now().Unix(); now != q.second {
			q.second = now
			clear(q.refused)
		}
		if q.refused[e.Status]++; q.refused[e.Status] > q.cfg.RefusedPerSecond {
			return false
		}
	}
	if len(q.waiting) >= q.cfg.MaxAudit {
		return false
	}
	q.waiting = append(q.waiting, e)
	return true
}

// run writes entries until ctx ends, and then those that are left.
func (q *auditQueue) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-q.some:
			if pause(ctx, q.cfg.AuditEvery) { // others join it
				q.flush(ctx)
			}
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.cfg.AuditFlush)
	defer cancel()
	q.flush(last)
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.waiting); n > 0 {
		q.lost(float64(n))
		q.waiting = nil
		q.log.Error("entries of the audit log were not written before the server stopped", "entries", n)
	}
}

// flush writes until nothing waits or ctx ends. Entries leave the queue once they are written.
func (q *auditQueue) flush(ctx context.Context) {
	again := retry{least: q.cfg.MinRetry, most: q.cfg.MaxRetry}
	for ctx.Err() == nil {
		batch := q.next()
		if len(batch) == 0 {
			return
		}
		if err := q.write(ctx, batch); err != nil {
			if again.failures == 0 && ctx.Err() == nil {
				q.log.Error("the audit log was not written; trying again", "entries", len(batch), "error", err)
			}
			pause(ctx, again.wait())
			continue
		}
		again.failures = 0
		q.drop(len(batch))
	}
}

func (q *auditQueue) next() []cay.AuditEntry {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]cay.AuditEntry(nil), q.waiting[:min(len(q.waiting), auditBatch)]...)
}

func (q *auditQueue) drop(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting = q.waiting[n:]; len(q.waiting) == 0 {
		q.waiting = nil // lets go of what a burst has taken
	}
}
