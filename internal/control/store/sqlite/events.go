package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// purgeStep bounds the rows that one transaction of a purge removes.
const purgeStep = 500

func insertEvent(ctx context.Context, q *db.Queries, e cay.Event) error {
	data, err := encode(e.Data)
	if err != nil {
		return err
	}
	if _, err := q.InsertEvent(ctx, db.InsertEventParams{
		SandboxID: string(e.SandboxID), ProjectID: string(e.ProjectID), Type: string(e.Type), At: micros(e.At), Data: data,
		JobID: string(e.JobID), SessionID: string(e.SessionID),
	}); err != nil {
		return fmt.Errorf("insert event of project %s: %w", e.ProjectID, err)
	}
	return nil
}

// AddEvent implements store.Store.
func (s *Store) AddEvent(ctx context.Context, e cay.Event) error {
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error { return insertEvent(ctx, q, e) })
}

// Events implements store.Store.
func (s *Store) Events(ctx context.Context, project cay.ID, eq cay.EventQuery) ([]cay.Event, cay.EventSpan, error) {
	var rows []db.Event
	var err error
	if eq.SandboxID == "" {
		var types string
		if types, err = encodeAny(eq.Types); err != nil {
			return nil, cay.EventSpan{}, err
		}
		rows, err = s.reading.ProjectEvents(ctx, db.ProjectEventsParams{ProjectID: string(project), Seq: eq.After, Types: types, Max: int64(eq.Limit)})
	} else {
		rows, err = s.reading.SandboxEvents(ctx, db.SandboxEventsParams{
			ProjectID: string(project), SandboxID: string(eq.SandboxID), Seq: eq.After, Limit: int64(eq.Limit),
		})
	}
	if err != nil {
		return nil, cay.EventSpan{}, fmt.Errorf("read events of %s: %w", project, err)
	}
	kept, err := s.reading.EventSpan(ctx)
	if err != nil {
		return nil, cay.EventSpan{}, fmt.Errorf("read which events are kept: %w", err)
	}
	events := make([]cay.Event, 0, len(rows))
	for _, r := range rows {
		e := cay.Event{Seq: r.Seq, SandboxID: cay.ID(r.SandboxID), JobID: cay.ID(r.JobID), SessionID: cay.ID(r.SessionID), ProjectID: cay.ID(r.ProjectID), Type: cay.EventType(r.Type), At: fromMicros(r.At)}
		if err := json.Unmarshal([]byte(r.Data), &e.Data); err != nil {
			return nil, cay.EventSpan{}, fmt.Errorf("read event %d: %w", r.Seq, err)
		}
		events = append(events, e)
	}
	return events, cay.EventSpan{Oldest: kept.Oldest, Newest: kept.Newest}, nil
}

// EventsSince implements store.Store.
func (s *Store) EventsSince(ctx context.Context, after int64, limit int) ([]cay.ID, int64, error) {
	newest, err := s.reading.NewestEvent(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("read the newest event: %w", err)
	}
	if newest <= after || limit <= 0 {
		return nil, newest, nil
	}
	rows, err := s.reading.SandboxesWithEvents(ctx, db.SandboxesWithEventsParams{After: after, Newest: newest, Max: int64(limit)})
	if err != nil {
		return nil, 0, fmt.Errorf("read whose events are new: %w", err)
	}
	ids := make([]cay.ID, len(rows))
	for i, id := range rows {
		ids[i] = cay.ID(id)
	}
	return ids, newest, nil
}

// Purge implements store.Store.
func (s *Store) Purge(ctx context.Context, now time.Time, keep cay.Retention) error {
	for _, step := range []func(ctx context.Context, q *db.Queries) (int64, error){
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeSandboxes(ctx, db.PurgeSandboxesParams{Before: micros(now.Add(-keep.Sandboxes)), Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeEventsBefore(ctx, db.PurgeEventsBeforeParams{Before: micros(now.Add(-keep.Events)), Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeEventsBeyond(ctx, db.PurgeEventsBeyondParams{Keep: keep.MaxEvents, Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeIdempotencyKeys(ctx, db.PurgeIdempotencyKeysParams{Before: micros(now.Add(-keep.Idempotency)), Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeTickets(ctx, db.PurgeTicketsParams{Before: micros(now), Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgePorts(ctx, purgeStep)
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeSessions(ctx, db.PurgeSessionsParams{Before: micros(now.Add(-keep.Sessions)), Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeJobTurns(ctx, purgeStep)
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeRecordsBefore(ctx, db.PurgeRecordsBeforeParams{Before: micros(now.Add(-keep.Records)), Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeRecordsBeyond(ctx, db.PurgeRecordsBeyondParams{Keep: keep.MaxRecords, Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			lastDay := now.Add(-keep.Usage).Add(-24 * time.Hour) // a day is over a day after it began
			return q.PurgeUsageBefore(ctx, db.PurgeUsageBeforeParams{Before: micros(lastDay), Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeAuditBefore(ctx, db.PurgeAuditBeforeParams{Before: micros(now.Add(-keep.Audit)), Max: purgeStep})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeAuditBeyond(ctx, db.PurgeAuditBeyondParams{Keep: keep.MaxAudit, Max: purgeStep})
		},
	} {
		for n := int64(purgeStep); n == purgeStep; {
			err := s.transact(ctx, func(ctx context.Context, q *db.Queries) (err error) {
				n, err = step(ctx, q)
				return err
			})
			if err != nil {
				return fmt.Errorf("purge: %w", err)
			}
		}
	}
	return nil
}

// idempotency is a view of the store with the names that package api uses.
type idempotency struct{ s *Store }

// Idempotency implements store.Store.
func (s *Store) Idempotency() store.Idempotency { return idempotency{s} }

func (i idempotency) Begin(ctx context.Context, project cay.ID, route, key string, fingerprint [32]byte, object string) (cay.IdempotencyRecord, bool, error) {
	var rec cay.IdempotencyRecord
	fresh := false
	now := time.Now()
	err := i.s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		rec, fresh = cay.IdempotencyRecord{}, false
		if err := q.DropExpiredIdempotencyKey(ctx, db.DropExpiredIdempotencyKeyParams{
			ProjectID: string(project), Route: route, Key: key, CreatedAt: micros(now.Add(-store.IdempotencyPeriod)),
		}); err != nil {
			return fmt.Errorf("drop expired idempotency key: %w", err)
		}
		n, err := q.ClaimIdempotencyKey(ctx, db.ClaimIdempotencyKeyParams{
			ProjectID: string(project), Route: route, Key: key, Fingerprint: fingerprint[:], ObjectID: object, CreatedAt: micros(now),
		})
		if err != nil {
			return fmt.Errorf("claim idempotency key: %w", err)
		}
		if n == 1 {
			rec.ObjectID, fresh = object, true
			return nil
		}
		row, err := q.IdempotencyKey(ctx, db.IdempotencyKeyParams{ProjectID: string(project), Route: route, Key: key})
		if err != nil {
			return fmt.Errorf("read idempotency key: %w", err)
		}
		if [32]byte(row.Fingerprint) != fingerprint {
			return cay.Errorf(cay.IdempotencyMismatch, "the idempotency key was used for another request").On("Idempotency-Key")
		}
		rec = cay.IdempotencyRecord{Done: row.Done != 0, Status: int(row.Status), ObjectID: row.ObjectID}
		n, err = q.AdoptIdempotencyKey(ctx, db.AdoptIdempotencyKeyParams{ProjectID: string(project), Route: route, Key: key})
		if err != nil {
			return fmt.Errorf("adopt idempotency key: %w", err)
		}
		if n == 1 {
			rec.Status, fresh = 0, true
		}
		return nil
	})
	return rec, fresh, err
}

func (i idempotency) Finish(ctx context.Context, project cay.ID, route, key string, status int, objectID string) error {
	return i.s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		n, err := q.FinishIdempotencyKey(ctx, db.FinishIdempotencyKeyParams{
			ProjectID: string(project), Route: route, Key: key, Status: int64(status), ObjectID: objectID,
		})
		if err != nil {
			return fmt.Errorf("finish idempotency key: %w", err)
		}
		if n == 0 {
			return cay.Errorf(cay.NotFound, "the idempotency key is not claimed")
		}
		return nil
	})
}

func (i idempotency) Abandon(ctx context.Context, project cay.ID, route, key string) error {
	return i.s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		if err := q.AbandonIdempotencyKey(ctx, db.AbandonIdempotencyKeyParams{ProjectID: string(project), Route: route, Key: key}); err != nil {
			return fmt.Errorf("abandon idempotency key: %w", err)
		}
		return nil
	})
}
