package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

func insertRecord(ctx context.Context, q *db.Queries, r cay.Record) error {
	p := db.InsertRecordParams{
		ProjectID: string(r.ProjectID), ID: string(r.ID), Kind: string(r.Kind), KeyID: string(r.KeyID), SandboxID: string(r.SandboxID),
		SessionID: string(r.SessionID), Name: r.Name, Command: r.Command, Language: r.Language, Outcome: r.Outcome, Ok: flag(r.OK), Signal: r.Signal,
		StartedAt: micros(r.StartedAt), EndedAt: micros(r.EndedAt), Duration: int64(r.Duration), StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes,
		CpuSeconds: r.CPUSeconds, PeakMemoryMb: r.PeakMemoryMB, TraceID: r.TraceID,
	}
	if r.ExitCode != nil {
		p.ExitCode = sql.NullInt64{Int64: int64(*r.ExitCode), Valid: true}
	}
	if _, err := q.InsertRecord(ctx, p); err != nil {
		return fmt.Errorf("record the end of %s: %w", r.ID, err)
	}
	return nil
}

// AddRecords implements store.History.
func (s *Store) AddRecords(ctx context.Context, records []cay.Record) error {
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		for _, r := range records {
			if err := insertRecord(ctx, q, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// Record implements store.History.
func (s *Store) Record(ctx context.Context, project, id cay.ID) (cay.Record, error) {
	row, err := s.reading.Record(ctx, db.RecordParams{ProjectID: string(project), ID: string(id)})
	if err := found(err, "record", id); err != nil {
		return cay.Record{}, err
	}
	return fromRecordRow(row), nil
}

// recordColumns are those of db.Record, in its order.
const recordColumns = `seq, project_id, id, kind, key_id, sandbox_id, session_id, name, command, language, outcome, ok, exit_code, signal,
	started_at, ended_at, duration, stdout_bytes, stderr_bytes, cpu_seconds, peak_memory_mb, trace_id`

// ListRecords implements store.History.
func (s *Store) ListRecords(ctx context.Context, project cay.ID, q cay.RecordQuery) ([]cay.Record, string, error) {
	w, err := recordWalk(project, q)
	if err != nil {
		return nil, "", err
	}
	items := []cay.Record{}
	next, err := w.page(ctx, s.read, recordColumns, q.Limit, func(row *sql.Rows) (place, error) {
		var r db.Record
		err := row.Scan(&r.Seq, &r.ProjectID, &r.ID, &r.Kind, &r.KeyID, &r.SandboxID, &r.SessionID, &r.Name, &r.Command, &r.Language, &r.Outcome, &r.Ok,
			&r.ExitCode, &r.Signal, &r.StartedAt, &r.EndedAt, &r.Duration, &r.StdoutBytes, &r.StderrBytes, &r.CpuSeconds, &r.PeakMemoryMb, &r.TraceID)
		items = append(items, fromRecordRow(r))
		return place{r.EndedAt, r.ID}, err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list records: %w", err)
	}
	return items, next.cursor(), nil
}

func recordWalk(project cay.ID, q cay.RecordQuery) (*walk, error) {
	w := &walk{table: "records", index: "records_all", at: "ended_at", id: "id", ascending: q.Ascending}
	switch {
	case q.SandboxID != "":
		w.index = "records_sandbox"
		w.along("sandbox_id = ? AND sandbox_id <> ''", string(q.SandboxID))
		w.onlyIf("session_id", string(q.SessionID))
	case q.SessionID != "":
		w.index = "records_session"
		w.along("session_id = ? AND session_id <> ''", string(q.SessionID))
	case !q.AllProjects:
		w.index = "records_list"
		w.along("project_id = ?", string(project))
	}
	if !q.AllProjects && w.index != "records_list" {
		w.along("project_id = ?", string(project)) // and no filter: a page's edge, which the cursor tells, must not be another project's
	}
	var after *place
	if q.Cursor != "" {
		c, err := store.ParseKeyCursor(q.Cursor, 2)
		if err != nil {
			return nil, err
		}
		if after, err = placeOf(c[0], c[1]); err != nil {
			return nil, err
		}
	}
	w.between(q.From, q.To, after)
	w.onlyIf("id", string(q.ID))
	w.onlyIf("key_id", string(q.KeyID))
	for column, values := range map[string]any{"kind": q.Kinds, "outcome": q.Outcomes} {
		wanted, err := encode(values)
		if err != nil {
			return nil, err
		}
		if wanted != "null" && wanted != "[]" {
			w.only(column+" IN (SELECT value FROM json_each(?))", wanted)
		}
	}
	if q.OK != nil {
		w.only("ok = ?", flag(*q.OK))
	}
	if q.Text != "" {
		w.only("(instr(lower(command), lower(?)) > 0 OR instr(lower(name), lower(?)) > 0)", q.Text, q.Text)
	}
	return w, nil
}

func fromRecordRow(row db.Record) cay.Record {
	r := cay.Record{
		ID: cay.ID(row.ID), Kind: cay.RecordKind(row.Kind), ProjectID: cay.ID(row.ProjectID), KeyID: cay.ID(row.KeyID),
		SandboxID: cay.ID(row.SandboxID), SessionID: cay.ID(row.SessionID), Name: row.Name, Command: row.Command, Language: row.Language,
		Outcome: row.Outcome, OK: row.Ok != 0, Signal: row.Signal,
		StartedAt: fromMicros(row.StartedAt), EndedAt: fromMicros(row.EndedAt), Duration: time.Duration(row.Duration),
		StdoutBytes: row.StdoutBytes, StderrBytes: row.StderrBytes, CPUSeconds: row.CpuSeconds, PeakMemoryMB: row.PeakMemoryMb, TraceID: row.TraceID,
	}
	if row.ExitCode.Valid {
		code := int(row.ExitCode.Int64)
		r.ExitCode = &code
	}
	return r
}

// AddAudit implements store.History.
func (s *Store) AddAudit(ctx context.Context, entries []cay.AuditEntry) error {
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		for _, e := range entries {
			if err := q.InsertAudit(ctx, db.InsertAuditParams{
				At: micros(e.At), ProjectID: string(e.ProjectID), KeyID: string(e.KeyID), Action: e.Action, Object: e.Object,
				Status: int64(e.Status), Reason: e.Reason, RequestID: e.RequestID, TraceID: e.TraceID, RemoteAddr: e.RemoteAddr, UserAgent: e.UserAgent,
			}); err != nil {
				return fmt.Errorf("write to the audit log: %w", err)
			}
		}
		return nil
	})
}

// auditColumns are those of db.Audit, in its order.
const auditColumns = "seq, at, project_id, key_id, action, object, status, reason, request_id, trace_id, remote_addr, user_agent"

// ListAudit implements store.History.
func (s *Store) ListAudit(ctx context.Context, project cay.ID, q cay.AuditQuery) ([]cay.AuditEntry, string, error) {
	w, err := auditWalk(project, q)
	if err != nil {
		return nil, "", err
	}
	items := []cay.AuditEntry{}
	next, err := w.page(ctx, s.read, auditColumns, q.Limit, func(row *sql.Rows) (place, error) {
		var r db.Audit
		err := row.Scan(&r.Seq, &r.At, &r.ProjectID, &r.KeyID, &r.Action, &r.Object, &r.Status, &r.Reason, &r.RequestID, &r.TraceID, &r.RemoteAddr, &r.UserAgent)
		items = append(items, cay.AuditEntry{
			Seq: r.Seq, At: fromMicros(r.At), ProjectID: cay.ID(r.ProjectID), KeyID: cay.ID(r.KeyID), Action: r.Action, Object: r.Object,
			Status: int(r.Status), Reason: r.Reason, RequestID: r.RequestID, TraceID: r.TraceID, RemoteAddr: r.RemoteAddr, UserAgent: r.UserAgent,
		})
		return place{r.At, r.Seq}, err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list the audit log: %w", err)
	}
	return items, next.cursor(), nil
}

func auditWalk(project cay.ID, q cay.AuditQuery) (*walk, error) {
	w := &walk{table: "audit", index: "audit_all", at: "at", id: "seq", ascending: q.Ascending}
	switch {
	case q.Object != "":
		w.index = "audit_object"
		w.along("object = ? AND object <> ''", q.Object)
		if !q.AllProjects {
			w.only("project_id = ?", string(project))
		}
	case !q.AllProjects:
		w.index = "audit_project"
		w.along("project_id = ?", string(project))
	}
	var after *place
	if q.Cursor != "" {
		c, err := store.ParseKeyCursor(q.Cursor, 2)
		if err != nil {
			return nil, err
		}
		seq, err := strconv.ParseInt(c[1], 10, 64)
		if err != nil {
			return nil, store.ErrCursor()
		}
		if after, err = placeOf(c[0], seq); err != nil {
			return nil, err
		}
	}
	w.between(q.From, q.To, after)
	w.onlyIf("key_id", string(q.KeyID))
	w.onlyIf("action", q.Action)
	return w, nil
}

// cursor is the opaque form of a place; nil has none.
func (p *place) cursor() string {
	if p == nil {
		return ""
	}
	return store.KeyCursor(strconv.FormatInt(p.at, 10), fmt.Sprint(p.id))
}

func placeOf(at string, id any) (*place, error) {
	micros, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return nil, store.ErrCursor()
	}
	return &place{at: micros, id: id}, nil
}

// CountSandboxes implements store.History.
func (s *Store) CountSandboxes(ctx context.Context) (map[cay.Status]int64, int64, time.Time, error) {
	rows, err := s.reading.CountByStatus(ctx)
	if err != nil {
		return nil, 0, time.Time{}, fmt.Errorf("count sandboxes: %w", err)
	}
	byStatus := map[cay.Status]int64{}
	for _, row := range rows {
		byStatus[cay.Status(row.Status)] = row.N
	}
	queue, err := s.reading.CountUntaken(ctx)
	if err != nil {
		return nil, 0, time.Time{}, fmt.Errorf("count the queue: %w", err)
	}
	return byStatus, queue.N, fromMicros(queue.Oldest), nil
}
