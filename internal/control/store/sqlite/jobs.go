package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// InsertJob implements store.Jobs.
func (s *Store) InsertJob(ctx context.Context, j *cay.Job, maxQueued int64) error {
	row, err := toJobRow(j)
	if err != nil {
		return err
	}
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		if maxQueued > 0 {
			n, err := q.CountUnfinishedJobs(ctx, row.ProjectID)
			if err != nil {
				return fmt.Errorf("count jobs of %s: %w", j.ProjectID, err)
			}
			if n >= maxQueued {
				return cay.Errorf(cay.QuotaExceeded, "the project has %d jobs that have not finished, as many as it may have; wait for some, or cancel them", n).
					After(5 * time.Second)
			}
		}
		if j.SessionID != "" {
			if _, err := sessionFor(ctx, q, j.ProjectID, j.SessionID); err != nil {
				return err
			}
		}
		if err := q.InsertJob(ctx, db.InsertJobParams(row)); err != nil {
			return fmt.Errorf("insert job %s: %w", j.ID, err)
		}
		if err := q.InsertJobPayload(ctx, db.InsertJobPayloadParams{JobID: row.ID, Input: j.Input, Result: j.Result}); err != nil {
			return fmt.Errorf("insert job %s: %w", j.ID, err)
		}
		return insertEvent(ctx, q, cay.JobEvent(j, "", j.QueuedAt))
	})
}

// Job implements store.Jobs.
func (s *Store) Job(ctx context.Context, id cay.ID) (*cay.Job, error) {
	return readJob(ctx, s.reading, id)
}

func readJob(ctx context.Context, q *db.Queries, id cay.ID) (*cay.Job, error) {
	row, err := q.Job(ctx, string(id))
	if err := found(err, "job", id); err != nil {
		return nil, err
	}
	return fromJobRow(row.Job, row.Input, row.Result)
}

// ListJobs implements store.Jobs.
func (s *Store) ListJobs(ctx context.Context, project cay.ID, q cay.JobQuery) ([]*cay.Job, string, error) {
	page, err := pageOf(cay.PrefixJob, q.Limit, q.Cursor, q.Ascending, q.CreatedAfter, q.Metadata)
	if err != nil {
		return nil, "", err
	}
	statuses, err := encodeAny(q.Statuses)
	if err != nil {
		return nil, "", err
	}
	p := db.ListJobsNewestFirstParams{
		ProjectID: string(project), CreatedAfter: page.after, CursorAt: page.cursorAt, CursorID: page.cursorID, Max: page.max,
		Metadata: page.metadata, Statuses: statuses, SessionID: string(q.SessionID),
	}
	var rows []db.Job
	if q.Ascending {
		rows, err = s.reading.ListJobsOldestFirst(ctx, db.ListJobsOldestFirstParams(p))
	} else {
		rows, err = s.reading.ListJobsNewestFirst(ctx, p)
	}
	if err != nil {
		return nil, "", fmt.Errorf("list jobs of %s: %w", project, err)
	}
	rows, next := cut(rows, q.Limit, func(r db.Job) (int64, string) { return r.QueuedAt, r.ID })
	items := make([]*cay.Job, 0, len(rows))
	for _, row := range rows {
		j, err := fromJobRow(row, nil, nil)
		if err != nil {
			return nil, "", err
		}
		items = append(items, j)
	}
	return items, next, nil
}

// MutateJob implements store.Jobs.
func (s *Store) MutateJob(ctx context.Context, id cay.ID, change func(*cay.Job) error) (*cay.Job, error) {
	var j *cay.Job
	err := s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		read, err := readJob(ctx, q, id)
		if err != nil {
			return err
		}
		j = read
		edited := *read
		if err := change(&edited); err != nil {
			return err
		}
		if err := updateJob(ctx, q, &edited); err != nil {
			return err
		}
		if !bytes.Equal(edited.Result, read.Result) || (edited.Result == nil) != (read.Result == nil) {
			if err := q.SetJobResult(ctx, db.SetJobResultParams{JobID: string(id), Result: edited.Result}); err != nil {
				return fmt.Errorf("write the result of job %s: %w", id, err)
			}
		}
		if edited.Status != read.Status {
			if err := jobMoved(ctx, q, &edited, read.Status); err != nil {
				return err
			}
		}
		j = &edited
		return nil
	})
	return j, err
}

// updateJob writes all of j but its payload, guarded by its version, which it then raises.
func updateJob(ctx context.Context, q *db.Queries, j *cay.Job) error {
	row, err := toJobRow(j)
	if err != nil {
		return err
	}
	n, err := q.UpdateJob(ctx, db.UpdateJobParams{
		ID: row.ID, Version: row.Version, Spec: row.Spec, Metadata: row.Metadata, Priority: row.Priority, Status: row.Status,
		InputKey: row.InputKey, ResultKey: row.ResultKey, Attempt: row.Attempt, SandboxID: row.SandboxID, ProcessID: row.ProcessID,
		StartedAt: row.StartedAt, FinishedAt: row.FinishedAt, QueueDeadline: row.QueueDeadline, CancelAsked: row.CancelAsked,
		ExitCode: row.ExitCode, Signal: row.Signal, Duration: row.Duration,
		CpuSeconds: row.CpuSeconds, MemoryMbSeconds: row.MemoryMbSeconds, PeakMemoryMb: row.PeakMemoryMb, DiskMb: row.DiskMb, EgressBytes: row.EgressBytes,
		Fault: row.Fault, Fence: row.Fence, LeaseOwner: row.LeaseOwner, LeaseUntil: row.LeaseUntil, NotBefore: row.NotBefore,
		StdoutBytes: row.StdoutBytes, StderrBytes: row.StderrBytes,
	})
	if err != nil {
		return fmt.Errorf("update job %s: %w", j.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("update job %s: version %d is no longer the newest", j.ID, j.Version)
	}
	j.Version++
	return nil
}

// ExpiredJobs implements store.Jobs.
func (s *Store) ExpiredJobs(ctx context.Context, now time.Time, limit int) ([]*cay.Job, error) {
	rows, err := s.reading.ExpiredJobs(ctx, db.ExpiredJobsParams{Now: micros(now), Max: int64(limit)})
	if err != nil {
		return nil, fmt.Errorf("look for expired jobs: %w", err)
	}
	items := make([]*cay.Job, 0, len(rows))
	for _, row := range rows {
		j, err := fromJobRow(row.Job, row.Input, row.Result)
		if err != nil {
			return nil, err
		}
		items = append(items, j)
	}
	return items, nil
}

// OldJobs implements store.Jobs.
func (s *Store) OldJobs(ctx context.Context, before time.Time, limit int) ([]*cay.Job, error) {
	rows, err := s.reading.OldJobs(ctx, db.OldJobsParams{Before: micros(before), Max: int64(limit)})
	if err != nil {
		return nil, fmt.Errorf("look for old jobs: %w", err)
	}
	items := make([]*cay.Job, 0, len(rows))
	for _, row := range rows {
		j, err := fromJobRow(row.Job, row.Input, row.Result)
		if err != nil {
			return nil, err
		}
		items = append(items, j)
	}
	return items, nil
}

// DeleteJob implements store.Jobs.
func (s *Store) DeleteJob(ctx context.Context, id cay.ID) error {
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		n, err := q.DeleteJob(ctx, string(id))
		if err != nil {
			return fmt.Errorf("delete job %s: %w", id, err)
		}
		if n == 0 {
			return found(sql.ErrNoRows, "job", id)
		}
		return nil
	})
}

// CountJobs implements store.Jobs.
func (s *Store) CountJobs(ctx context.Context) (queued, running int64, oldest time.Time, err error) {
	row, err := s.reading.CountJobs(ctx)
	if err != nil {
		return 0, 0, time.Time{}, fmt.Errorf("count jobs: %w", err)
	}
	return row.Queued, row.Running, fromMicros(row.Oldest), nil
}

// toJobRow lays a job out in columns, but for its payload.
func toJobRow(j *cay.Job) (db.Job, error) {
	metadata := j.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	spec, err1 := encode(j.Spec)
	metadataJSON, err2 := encode(metadata)
	fault, err3 := encode(j.Fault)
	row := db.Job{
		ID: string(j.ID), ProjectID: string(j.ProjectID), SessionID: string(j.SessionID),
		SessionShared: flag(j.SessionID != "" && j.Spec.SessionShared),
		Spec:          spec, Metadata: metadataJSON, Priority: int64(j.Priority), Status: string(j.Status),
		InputKey: j.InputKey, ResultKey: j.ResultKey, Attempt: j.Attempt, SandboxID: string(j.SandboxID), ProcessID: string(j.ProcessID),
		QueuedAt: micros(j.QueuedAt), StartedAt: micros(j.StartedAt), FinishedAt: micros(j.FinishedAt), QueueDeadline: micros(j.QueueDeadline),
		CancelAsked: flag(j.CancelAsked), Signal: j.Signal, Duration: int64(j.Duration),
		CpuSeconds: j.Usage.CPUSeconds, MemoryMbSeconds: j.Usage.MemoryMBSeconds, PeakMemoryMb: j.Usage.PeakMemoryMB,
		DiskMb: j.Usage.DiskMB, EgressBytes: j.Usage.EgressBytes, Fault: fault,
		Fence: j.Fence, LeaseOwner: j.LeaseOwner, LeaseUntil: micros(j.LeaseUntil), NotBefore: micros(j.NotBefore), Version: j.Version,
		CreatedBy: string(j.CreatedBy), Traceparent: j.Traceparent, StdoutBytes: j.StdoutBytes, StderrBytes: j.StderrBytes,
	}
	if j.ExitCode != nil {
		row.ExitCode = sql.NullInt64{Int64: int64(*j.ExitCode), Valid: true}
	}
	return row, errors.Join(err1, err2, err3)
}

func fromJobRow(row db.Job, input, result []byte) (*cay.Job, error) {
	j := &cay.Job{
		ID: cay.ID(row.ID), ProjectID: cay.ID(row.ProjectID), SessionID: cay.ID(row.SessionID),
		Priority: int(row.Priority), Status: cay.JobStatus(row.Status), Input: input, InputKey: row.InputKey, Result: result, ResultKey: row.ResultKey,
		Attempt: row.Attempt, SandboxID: cay.ID(row.SandboxID), ProcessID: cay.ID(row.ProcessID),
		QueuedAt: fromMicros(row.QueuedAt), StartedAt: fromMicros(row.StartedAt), FinishedAt: fromMicros(row.FinishedAt),
		QueueDeadline: fromMicros(row.QueueDeadline), CancelAsked: row.CancelAsked != 0, Signal: row.Signal, Duration: time.Duration(row.Duration),
		Usage: cay.Usage{
			CPUSeconds: row.CpuSeconds, MemoryMBSeconds: row.MemoryMbSeconds, PeakMemoryMB: row.PeakMemoryMb,
			DiskMB: row.DiskMb, EgressBytes: row.EgressBytes,
		},
		Fence: row.Fence, LeaseOwner: row.LeaseOwner, LeaseUntil: fromMicros(row.LeaseUntil), NotBefore: fromMicros(row.NotBefore), Version: row.Version,
		CreatedBy: cay.ID(row.CreatedBy), Traceparent: row.Traceparent, StdoutBytes: row.StdoutBytes, StderrBytes: row.StderrBytes,
	}
	if row.ExitCode.Valid {
		code := int(row.ExitCode.Int64)
		j.ExitCode = &code
	}
	for _, part := range []struct {
		name, from string
		to         any
	}{{"spec", row.Spec, &j.Spec}, {"metadata", row.Metadata, &j.Metadata}, {"fault", row.Fault, &j.Fault}} {
		if err := json.Unmarshal([]byte(part.from), part.to); err != nil {
			return nil, fmt.Errorf("read %s of job %s: %w", part.name, row.ID, err)
		}
	}
	return j, nil
}
