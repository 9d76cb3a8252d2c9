package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// totalEgress names the total of bytes that sandboxes have sent out.
const totalEgress = "egress_bytes"

// accrue writes what the sandbox used between two states of its row. It is to run in the transaction that writes the second.
func accrue(ctx context.Context, q *db.Queries, before, after *cay.Sandbox) error {
	for _, u := range cay.Accrue(before, after) {
		if err := q.AddUsage(ctx, db.AddUsageParams{
			ProjectID: string(before.ProjectID), SandboxID: string(before.ID), Day: micros(u.Day),
			RunningSeconds: u.RunningSeconds, PausedSeconds: u.PausedSeconds, CpuSeconds: u.CPUSeconds, MemoryMbSeconds: u.MemoryMBSeconds,
			AllocatedCpuSeconds: u.AllocatedCPUSeconds, AllocatedMemoryMbSeconds: u.AllocatedMemoryMBSeconds,
			AllocatedDiskGbSeconds: u.AllocatedDiskGBSeconds, EgressBytes: u.EgressBytes,
		}); err != nil {
			return fmt.Errorf("add to the usage of sandbox %s: %w", before.ID, err)
		}
		if u.EgressBytes == 0 {
			continue
		}
		if err := q.AddToTotal(ctx, db.AddToTotalParams{Name: totalEgress, Value: u.EgressBytes}); err != nil {
			return fmt.Errorf("add to the egress of all sandboxes: %w", err)
		}
	}
	return nil
}

// sandboxEnded records the end of a sandbox, in the transaction that writes it.
func sandboxEnded(ctx context.Context, q *db.Queries, sb *cay.Sandbox) error {
	if sb.Spec.SessionID != "" {
		if err := noteUse(ctx, q, sb.Spec.SessionID, sb.EndedAt); err != nil {
			return err
		}
	}
	return insertRecord(ctx, q, cay.SandboxRecord(sb))
}

// jobMoved records that a job was in status from until this transaction, and its end.
func jobMoved(ctx context.Context, q *db.Queries, j *cay.Job, from cay.JobStatus) error {
	at := time.Now()
	switch {
	case j.Status.Finished():
		at = j.FinishedAt
	case j.Status == cay.JobRunning:
		at = j.StartedAt
	}
	if err := insertEvent(ctx, q, cay.JobEvent(j, from, at)); err != nil {
		return err
	}
	if !j.Status.Finished() {
		return nil
	}
	return insertRecord(ctx, q, cay.JobRecord(j))
}

// sessionMoved records that a session was in status from until this transaction, and its end.
func sessionMoved(ctx context.Context, q *db.Queries, ses *cay.Session, from cay.SessionStatus) error {
	at := time.Now()
	if ses.Status == cay.SessionDeleted {
		at = ses.EndedAt
	}
	if err := insertEvent(ctx, q, cay.SessionEvent(ses, from, at)); err != nil {
		return err
	}
	if ses.Status != cay.SessionDeleted {
		return nil
	}
	return insertRecord(ctx, q, cay.SessionRecord(ses))
}
