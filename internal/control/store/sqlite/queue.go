package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// maxScan bounds the due rows that one Lease looks at: what waits for room must not make each look at the queue a long one.
const maxScan = 1000

// Lease implements store.Queue.
func (s *Store) Lease(ctx context.Context, now time.Time, lease cay.Lease, ops []cay.Operation, limit int,
	pick func(*cay.Sandbox, []cay.WorkerLoad) (cay.ID, bool)) ([]*cay.Sandbox, error) {
	wanted, err := encode(ops)
	if err != nil {
		return nil, err
	}
	var leased []*cay.Sandbox
	err = s.transactUnsynced(ctx, func(ctx context.Context, q *db.Queries) error {
		leased = nil
		rows, err := q.DueSandboxes(ctx, db.DueSandboxesParams{Ops: wanted, Now: micros(now), Max: maxScan})
		if err != nil {
			return fmt.Errorf("look for due sandboxes: %w", err)
		}
		if len(rows) == 0 {
			return nil
		}
		workers, err := loads(ctx, q)
		if err != nil {
			return err
		}
		for _, row := range rows {
			if len(leased) >= limit {
				break
			}
			sb, err := fromRow(row)
			if err != nil {
				return err
			}
			worker, ok := pick(sb, workers)
			if !ok {
				continue
			}
			if worker != sb.WorkerID {
				reserve(workers, worker, sb)
			}
			sb.WorkerID, sb.LeaseOwner, sb.LeaseUntil = worker, lease.Owner, lease.Until
			sb.Attempt++
			if err := update(ctx, q, sb); err != nil {
				return err
			}
			leased = append(leased, sb)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return leased, nil
}

func reserve(workers []cay.WorkerLoad, id cay.ID, sb *cay.Sandbox) {
	for i := range workers {
		if w := &workers[i]; w.ID == id {
			w.UsedCPU += sb.Spec.CPU
			w.UsedMemoryMB += sb.Spec.MemoryMB
			w.UsedDiskGB += sb.Spec.DiskGB
			w.Sandboxes++
		}
	}
}

// RenewLeases implements store.Queue.
func (s *Store) RenewLeases(ctx context.Context, lease cay.Lease, held map[cay.ID]int64) ([]cay.ID, error) {
	var lost []cay.ID
	err := s.transactUnsynced(ctx, func(ctx context.Context, q *db.Queries) error {
		lost = nil
		for id, attempt := range held {
			n, err := q.RenewLease(ctx, db.RenewLeaseParams{ID: string(id), Attempt: attempt, LeaseOwner: lease.Owner, LeaseUntil: micros(lease.Until)})
			if err != nil {
				return fmt.Errorf("renew the lease on sandbox %s: %w", id, err)
			}
			if n == 0 {
				lost = append(lost, id)
			}
		}
		return nil
	})
	return lost, err
}

// ReleaseOtherLeases implements store.Queue.
func (s *Store) ReleaseOtherLeases(ctx context.Context, owner string) (int64, error) {
	var n int64
	err := s.transact(ctx, func(ctx context.Context, q *db.Queries) (err error) {
		n, err = q.ReleaseOtherLeases(ctx, owner)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("release leases: %w", err)
	}
	return n, nil
}

// PutWorker implements store.Workers.
func (s *Store) PutWorker(ctx context.Context, w cay.Worker) error {
	enforced, err := encode(w.Enforced)
	if err != nil {
		return err
	}
	runtimes, err := encode(w.Runtimes)
	if err != nil {
		return err
	}
	p := db.UpsertWorkerParams{
		ID: string(w.ID), Version: w.Version, Isolation: w.Isolation, Cpu: w.CPU, MemoryMb: w.MemoryMB, DiskGb: w.DiskGB,
		MaxSandboxes: w.MaxSandboxes, Enforced: enforced, Runtimes: runtimes, Boot: w.Boot, HeartbeatAt: micros(w.HeartbeatAt),
		CanFreeze: flag(w.CanFreeze), CanMount: flag(w.CanMount),
	}
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		if err := q.UpsertWorker(ctx, p); err != nil {
			return fmt.Errorf("write worker %s: %w", w.ID, err)
		}
		return nil
	})
}

// Workers implements store.Workers.
func (s *Store) Workers(ctx context.Context) ([]cay.WorkerLoad, error) { return loads(ctx, s.reading) }

func loads(ctx context.Context, q *db.Queries) ([]cay.WorkerLoad, error) {
	rows, err := q.WorkerLoads(ctx)
	if err != nil {
		return nil, fmt.Errorf("read workers: %w", err)
	}
	workers := make([]cay.WorkerLoad, 0, len(rows))
	for _, row := range rows {
		r := row.Worker
		w := cay.WorkerLoad{
			Worker: cay.Worker{
				ID: cay.ID(r.ID), Version: r.Version, Isolation: r.Isolation, CPU: r.Cpu, MemoryMB: r.MemoryMb, DiskGB: r.DiskGb,
				MaxSandboxes: r.MaxSandboxes, CanFreeze: r.CanFreeze != 0, CanMount: r.CanMount != 0, Boot: r.Boot,
				RegisteredAt: fromMicros(r.RegisteredAt), HeartbeatAt: fromMicros(r.HeartbeatAt),
			},
			UsedCPU: row.UsedCpu, UsedMemoryMB: row.UsedMemoryMb, UsedDiskGB: row.UsedDiskGb, Sandboxes: row.Sandboxes,
		}
		if err := json.Unmarshal([]byte(r.Enforced), &w.Enforced); err != nil {
			return nil, fmt.Errorf("read worker %s: %w", r.ID, err)
		}
		if err := json.Unmarshal([]byte(r.Runtimes), &w.Runtimes); err != nil {
			return nil, fmt.Errorf("read worker %s: %w", r.ID, err)
		}
		workers = append(workers, w)
	}
	return workers, nil
}
