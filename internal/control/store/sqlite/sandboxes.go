package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// InsertSandbox implements store.Sandboxes.
func (s *Store) InsertSandbox(ctx context.Context, sb *cay.Sandbox, maxActive, maxQueued int64) error {
	row, err := toRow(sb)
	if err != nil {
		return err
	}
	near := sb.NearWorker
	err = s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		exists, err := q.SandboxExists(ctx, row.ID)
		if err != nil {
			return fmt.Errorf("look for sandbox %s: %w", sb.ID, err)
		}
		if exists {
			return cay.Errorf(cay.AlreadyExists, "there is a sandbox %s already", sb.ID)
		}
		if maxActive > 0 && sb.Spec.ManagedBy == "" {
			n, err := q.CountActive(ctx, row.ProjectID)
			if err != nil {
				return fmt.Errorf("count sandboxes of %s: %w", sb.ProjectID, err)
			}
			if n >= maxActive {
				return cay.Errorf(cay.QuotaExceeded, "the project has %d sandboxes, as many as it may have; delete one first", n)
			}
		}
		if maxQueued > 0 {
			n, err := q.CountQueued(ctx)
			if err != nil {
				return fmt.Errorf("count the queue: %w", err)
			}
			if n >= maxQueued {
				return cay.Errorf(cay.NoCapacity, "%d sandboxes are waiting to be created already; try again later", n).After(5 * time.Second)
			}
		}
		if sb.Spec.SessionID != "" {
			session, err := useSession(ctx, q, sb)
			if err != nil {
				return err
			}
			near = session.WorkerID
		}
		row.NearWorker = string(near)
		if err := q.InsertSandbox(ctx, db.InsertSandboxParams(row)); err != nil {
			return fmt.Errorf("insert sandbox %s: %w", sb.ID, err)
		}
		return nil
	})
	if err == nil {
		sb.NearWorker = near
	}
	return err
}

// Sandbox implements store.Sandboxes.
func (s *Store) Sandbox(ctx context.Context, id cay.ID) (*cay.Sandbox, error) {
	row, err := s.reading.Sandbox(ctx, string(id))
	if err := found(err, "sandbox", id); err != nil {
		return nil, err
	}
	return fromRow(row)
}

// LiveSandboxes implements store.Sandboxes.
func (s *Store) LiveSandboxes(ctx context.Context) ([]*cay.Sandbox, error) {
	rows, err := s.reading.LiveSandboxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("read live sandboxes: %w", err)
	}
	return fromRows(rows)
}

// ListSandboxes implements store.Sandboxes.
func (s *Store) ListSandboxes(ctx context.Context, project cay.ID, q cay.SandboxQuery) ([]*cay.Sandbox, string, error) {
	page, err := pageOf(cay.PrefixSandbox, q.Limit, q.Cursor, q.Ascending, q.CreatedAfter, q.Metadata)
	if err != nil {
		return nil, "", err
	}
	statuses, err := encodeAny(q.Statuses)
	if err != nil {
		return nil, "", err
	}
	p := db.ListNewestFirstParams{
		ProjectID: string(project), CreatedAfter: page.after, CursorAt: page.cursorAt, CursorID: page.cursorID, Max: page.max,
		Metadata: page.metadata, Statuses: statuses, SessionID: string(q.SessionID), Managed: flag(q.Managed),
	}
	var rows []db.Sandbox
	if q.Ascending {
		rows, err = s.reading.ListOldestFirst(ctx, db.ListOldestFirstParams(p))
	} else {
		rows, err = s.reading.ListNewestFirst(ctx, p)
	}
	if err != nil {
		return nil, "", fmt.Errorf("list sandboxes of %s: %w", project, err)
	}
	rows, next := cut(rows, q.Limit, func(r db.Sandbox) (int64, string) { return r.CreatedAt, r.ID })
	items, err := fromRows(rows)
	return items, next, err
}

// MutateSandbox implements store.Sandboxes.
func (s *Store) MutateSandbox(ctx context.Context, id cay.ID, change func(*cay.Sandbox) ([]cay.Event, error)) (*cay.Sandbox, error) {
	var sb *cay.Sandbox
	err := s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		row, err := q.Sandbox(ctx, string(id))
		if err := found(err, "sandbox", id); err != nil {
			return err
		}
		read, err := fromRow(row)
		if err != nil {
			return err
		}
		sb = read
		edited := *read
		events, err := change(&edited)
		if err != nil {
			return err
		}
		edited.AccountedAt = edited.AccountedAt.Truncate(time.Microsecond) // as it is kept: the next write goes on from there
		if err := update(ctx, q, &edited); err != nil {
			return err
		}
		if err := accrue(ctx, q, read, &edited); err != nil {
			return err
		}
		if read.EndedAt.IsZero() && !edited.EndedAt.IsZero() {
			if err := sandboxEnded(ctx, q, &edited); err != nil {
				return err
			}
		}
		for _, e := range events {
			if err := insertEvent(ctx, q, e); err != nil {
				return err
			}
		}
		sb = &edited
		return nil
	})
	return sb, err
}

// update writes sb back, guarded by its version, which it then raises.
func update(ctx context.Context, q *db.Queries, sb *cay.Sandbox) error {
	row, err := toRow(sb)
	if err != nil {
		return err
	}
	n, err := q.UpdateSandbox(ctx, db.UpdateSandboxParams{
		ID: row.ID, Version: row.Version, Spec: row.Spec, Metadata: row.Metadata,
		Status: row.Status, StatusReason: row.StatusReason, Detail: row.Detail, WorkerID: row.WorkerID,
		ReadyAt: row.ReadyAt, ExpiresAt: row.ExpiresAt, LastActiveAt: row.LastActiveAt, PausedAt: row.PausedAt, EndedAt: row.EndedAt,
		TtlLeft: row.TtlLeft, QueueDeadline: row.QueueDeadline,
		CreateQueueMs: row.CreateQueueMs, CreateScheduleMs: row.CreateScheduleMs, CreateBootMs: row.CreateBootMs, CreateTotalMs: row.CreateTotalMs,
		CpuSeconds: row.CpuSeconds, MemoryMbSeconds: row.MemoryMbSeconds, PeakMemoryMb: row.PeakMemoryMb, DiskMb: row.DiskMb, EgressBytes: row.EgressBytes,
		Op: row.Op, Attempt: row.Attempt, LeaseOwner: row.LeaseOwner, LeaseUntil: row.LeaseUntil, NotBefore: row.NotBefore, FailureCount: row.FailureCount,
		NearWorker: row.NearWorker, AccountedAt: row.AccountedAt, Traceparent: row.Traceparent,
	})
	if err != nil {
		return fmt.Errorf("update sandbox %s: %w", sb.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("update sandbox %s: version %d is no longer the newest", sb.ID, sb.Version)
	}
	sb.Version++
	return nil
}

// TouchSandboxes implements store.Sandboxes.
func (s *Store) TouchSandboxes(ctx context.Context, rows []*cay.Sandbox) error {
	for len(rows) > 0 {
		n := min(len(rows), maxGroup)
		chunk := rows[:n]
		rows = rows[n:]
		err := s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
			for _, sb := range chunk {
				if err := touch(ctx, q, sb); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func touch(ctx context.Context, q *db.Queries, sb *cay.Sandbox) error {
	row, err := q.Accounted(ctx, string(sb.ID))
	if errors.Is(err, sql.ErrNoRows) {
		return nil // it has ended
	}
	if err != nil {
		return fmt.Errorf("read what is accounted of sandbox %s: %w", sb.ID, err)
	}
	before := &cay.Sandbox{
		ID: sb.ID, ProjectID: cay.ID(row.ProjectID), Status: cay.Status(row.Status), LastActiveAt: fromMicros(row.LastActiveAt),
		AccountedAt: fromMicros(row.AccountedAt),
		Spec:        cay.SandboxSpec{CPU: row.Cpu, MemoryMB: row.MemoryMb, DiskGB: row.DiskGb},
		Usage:       cay.Usage{CPUSeconds: row.CpuSeconds, MemoryMBSeconds: row.MemoryMbSeconds, EgressBytes: row.EgressBytes},
	}
	after := *before
	after.LastActiveAt, after.Usage = sb.LastActiveAt, sb.Usage
	if at := sb.AccountedAt.Truncate(time.Microsecond); !before.AccountedAt.IsZero() && at.After(before.AccountedAt) {
		after.AccountedAt = at
	}
	if err := q.TouchSandbox(ctx, db.TouchSandboxParams{
		ID: string(sb.ID), LastActiveAt: micros(after.LastActiveAt), AccountedAt: micros(after.AccountedAt),
		CpuSeconds: after.Usage.CPUSeconds, MemoryMbSeconds: after.Usage.MemoryMBSeconds, PeakMemoryMb: after.Usage.PeakMemoryMB,
		DiskMb: after.Usage.DiskMB, EgressBytes: after.Usage.EgressBytes,
	}); err != nil {
		return fmt.Errorf("write last activity of sandbox %s: %w", sb.ID, err)
	}
	if err := accrue(ctx, q, before, &after); err != nil {
		return err
	}
	if sb.Spec.SessionID == "" || micros(sb.LastActiveAt) <= row.LastActiveAt {
		return nil
	}
	return noteUse(ctx, q, sb.Spec.SessionID, sb.LastActiveAt)
}

func encode(v any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode %T: %w", v, err)
	}
	return string(b), nil
}

// toRow lays a sandbox out in columns. Metadata has one of its own, for the filters of lists.
func toRow(sb *cay.Sandbox) (db.Sandbox, error) {
	spec := sb.Spec
	spec.Metadata = nil
	specJSON, err1 := encode(spec)
	metadata := sb.Spec.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	metadataJSON, err2 := encode(metadata)
	return db.Sandbox{
		ID: string(sb.ID), ProjectID: string(sb.ProjectID), Spec: specJSON, Metadata: metadataJSON,
		Cpu: sb.Spec.CPU, MemoryMb: sb.Spec.MemoryMB, DiskGb: sb.Spec.DiskGB,
		Status: string(sb.Status), StatusReason: string(sb.StatusReason), Detail: sb.Detail, WorkerID: string(sb.WorkerID),
		CreatedAt: micros(sb.CreatedAt), ReadyAt: micros(sb.ReadyAt), ExpiresAt: micros(sb.ExpiresAt), LastActiveAt: micros(sb.LastActiveAt),
		PausedAt: micros(sb.PausedAt), EndedAt: micros(sb.EndedAt), TtlLeft: int64(sb.TTLLeft), QueueDeadline: micros(sb.QueueDeadline),
		CreateQueueMs: sb.CreateMS.Queue, CreateScheduleMs: sb.CreateMS.Schedule, CreateBootMs: sb.CreateMS.Boot, CreateTotalMs: sb.CreateMS.Total,
		CpuSeconds: sb.Usage.CPUSeconds, MemoryMbSeconds: sb.Usage.MemoryMBSeconds, PeakMemoryMb: sb.Usage.PeakMemoryMB,
		DiskMb: sb.Usage.DiskMB, EgressBytes: sb.Usage.EgressBytes,
		Op: string(sb.Op), Attempt: sb.Attempt, LeaseOwner: sb.LeaseOwner, LeaseUntil: micros(sb.LeaseUntil), NotBefore: micros(sb.NotBefore),
		FailureCount: sb.FailureCount, Version: sb.Version,
		SessionID: string(sb.Spec.SessionID), SessionShared: flag(sb.Spec.SessionShared), ManagedBy: string(sb.Spec.ManagedBy), NearWorker: string(sb.NearWorker),
		AccountedAt: micros(sb.AccountedAt), CreatedBy: string(sb.CreatedBy), Traceparent: sb.Traceparent,
	}, errors.Join(err1, err2)
}

func fromRow(row db.Sandbox) (*cay.Sandbox, error) {
	sb := &cay.Sandbox{
		ID: cay.ID(row.ID), ProjectID: cay.ID(row.ProjectID),
		Status: cay.Status(row.Status), StatusReason: cay.StatusReason(row.StatusReason), Detail: row.Detail, WorkerID: cay.ID(row.WorkerID),
		CreatedAt: fromMicros(row.CreatedAt), ReadyAt: fromMicros(row.ReadyAt), ExpiresAt: fromMicros(row.ExpiresAt),
		LastActiveAt: fromMicros(row.LastActiveAt), PausedAt: fromMicros(row.PausedAt), EndedAt: fromMicros(row.EndedAt),
		TTLLeft: time.Duration(row.TtlLeft), QueueDeadline: fromMicros(row.QueueDeadline),
		CreateMS: cay.CreateMS{Queue: row.CreateQueueMs, Schedule: row.CreateScheduleMs, Boot: row.CreateBootMs, Total: row.CreateTotalMs},
		Usage: cay.Usage{
			CPUSeconds: row.CpuSeconds, MemoryMBSeconds: row.MemoryMbSeconds, PeakMemoryMB: row.PeakMemoryMb,
			DiskMB: row.DiskMb, EgressBytes: row.EgressBytes,
		},
		Op: cay.Operation(row.Op), Attempt: row.Attempt, LeaseOwner: row.LeaseOwner, LeaseUntil: fromMicros(row.LeaseUntil),
		NotBefore: fromMicros(row.NotBefore), FailureCount: row.FailureCount, Version: row.Version, NearWorker: cay.ID(row.NearWorker),
		AccountedAt: fromMicros(row.AccountedAt), CreatedBy: cay.ID(row.CreatedBy), Traceparent: row.Traceparent,
	}
	if err := json.Unmarshal([]byte(row.Spec), &sb.Spec); err != nil {
		return nil, fmt.Errorf("read spec of sandbox %s: %w", row.ID, err)
	}
	if err := json.Unmarshal([]byte(row.Metadata), &sb.Spec.Metadata); err != nil {
		return nil, fmt.Errorf("read metadata of sandbox %s: %w", row.ID, err)
	}
	return sb, nil
}

func fromRows(rows []db.Sandbox) ([]*cay.Sandbox, error) {
	items := make([]*cay.Sandbox, 0, len(rows))
	for _, row := range rows {
		sb, err := fromRow(row)
		if err != nil {
			return nil, err
		}
		items = append(items, sb)
	}
	return items, nil
}
