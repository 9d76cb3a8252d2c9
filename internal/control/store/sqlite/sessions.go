package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// InsertSession implements store.Sessions.
func (s *Store) InsertSession(ctx context.Context, ses *cay.Session, most int64) error {
	row, err := toSessionRow(ses)
	if err != nil {
		return err
	}
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		other, err := q.SessionOfName(ctx, db.SessionOfNameParams{ProjectID: row.ProjectID, Name: row.Name})
		switch {
		case err == nil:
			return cay.Errorf(cay.AlreadyExists, "there is a session named %s already: %s", ses.Name, other).On("name").With("session_id", other)
		case !errors.Is(err, sql.ErrNoRows):
			return fmt.Errorf("look for session %s: %w", ses.Name, err)
		}
		if most > 0 {
			n, err := q.CountSessions(ctx, row.ProjectID)
			if err != nil {
				return fmt.Errorf("count sessions of %s: %w", ses.ProjectID, err)
			}
			if n >= most {
				return cay.Errorf(cay.QuotaExceeded, "the project has %d sessions, as many as it may have; delete one first", n)
			}
		}
		if err := q.InsertSession(ctx, db.InsertSessionParams(row)); err != nil {
			return fmt.Errorf("insert session %s: %w", ses.ID, err)
		}
		return insertEvent(ctx, q, cay.SessionEvent(ses, "", ses.CreatedAt))
	})
}

// Session implements store.Sessions.
func (s *Store) Session(ctx context.Context, id cay.ID) (*cay.Session, error) {
	return readSession(ctx, s.reading, id)
}

func readSession(ctx context.Context, q *db.Queries, id cay.ID) (*cay.Session, error) {
	row, err := q.Session(ctx, string(id))
	if err := found(err, "session", id); err != nil {
		return nil, err
	}
	return fromSessionRow(row)
}

// openSessions are the statuses of sessions that have not ended.
var openSessions = []cay.SessionStatus{cay.SessionActive, cay.SessionArchiving, cay.SessionArchived, cay.SessionRestoring}

// ListSessions implements store.Sessions.
func (s *Store) ListSessions(ctx context.Context, project cay.ID, q cay.SessionQuery) ([]*cay.Session, string, error) {
	page, err := pageOf(cay.PrefixSession, q.Limit, q.Cursor, q.Ascending, q.CreatedAfter, q.Metadata)
	if err != nil {
		return nil, "", err
	}
	statuses := q.Statuses
	if len(statuses) == 0 {
		statuses = openSessions
	}
	wanted, err := encode(statuses)
	if err != nil {
		return nil, "", err
	}
	p := db.ListSessionsNewestFirstParams{
		ProjectID: string(project), CreatedAfter: page.after, CursorAt: page.cursorAt, CursorID: page.cursorID, Max: page.max,
		Metadata: page.metadata, Statuses: wanted, Name: q.Name,
	}
	var rows []db.Session
	if q.Ascending {
		rows, err = s.reading.ListSessionsOldestFirst(ctx, db.ListSessionsOldestFirstParams(p))
	} else {
		rows, err = s.reading.ListSessionsNewestFirst(ctx, p)
	}
	if err != nil {
		return nil, "", fmt.Errorf("list sessions of %s: %w", project, err)
	}
	rows, next := cut(rows, q.Limit, func(r db.Session) (int64, string) { return r.CreatedAt, r.ID })
	items, err := fromSessionRows(rows)
	return items, next, err
}

// MutateSession implements store.Sessions.
func (s *Store) MutateSession(ctx context.Context, id cay.ID, change func(*cay.Session, []*cay.Sandbox) error) (*cay.Session, error) {
	var ses *cay.Session
	err := s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		read, err := readSession(ctx, q, id)
		if err != nil {
			return err
		}
		ses = read
		users, err := sessionUsers(ctx, q, id)
		if err != nil {
			return err
		}
		edited := *read
		if err := change(&edited, users); err != nil {
			return err
		}
		if err := updateSession(ctx, q, &edited); err != nil {
			return err
		}
		if edited.Status != read.Status {
			if err := sessionMoved(ctx, q, &edited, read.Status); err != nil {
				return err
			}
		}
		ses = &edited
		return nil
	})
	return ses, err
}

// updateSession writes ses back, guarded by its version, which it then raises.
func updateSession(ctx context.Context, q *db.Queries, ses *cay.Session) error {
	row, err := toSessionRow(ses)
	if err != nil {
		return err
	}
	n, err := q.UpdateSession(ctx, db.UpdateSessionParams{
		ID: row.ID, Version: row.Version, Name: row.Name, Metadata: row.Metadata, Status: row.Status, StatusReason: row.StatusReason,
		DiskGb: row.DiskGb, Ttl: row.Ttl, WorkerID: row.WorkerID, LastUsedAt: row.LastUsedAt, ExpiresAt: row.ExpiresAt, EndedAt: row.EndedAt,
		ArchiveKey: row.ArchiveKey, ArchiveDigest: row.ArchiveDigest, ArchiveBytes: row.ArchiveBytes,
	})
	if err != nil {
		return fmt.Errorf("update session %s: %w", ses.ID, err)
	}
	if n != 1 {
		return fmt.Errorf("update session %s: version %d is no longer the newest", ses.ID, ses.Version)
	}
	ses.Version++
	return nil
}

// DueSessions implements store.Sessions.
func (s *Store) DueSessions(ctx context.Context, now, idleBefore time.Time, limit int) ([]*cay.Session, error) {
	idle := int64(math.MinInt64)
	if !idleBefore.IsZero() {
		idle = micros(idleBefore)
	}
	rows, err := s.reading.DueSessions(ctx, db.DueSessionsParams{Now: micros(now), IdleBefore: idle, Max: int64(limit)})
	if err != nil {
		return nil, fmt.Errorf("look for due sessions: %w", err)
	}
	return fromSessionRows(rows)
}

// SessionUsers implements store.Sessions.
func (s *Store) SessionUsers(ctx context.Context, id cay.ID) ([]*cay.Sandbox, error) {
	return sessionUsers(ctx, s.reading, id)
}

func sessionUsers(ctx context.Context, q *db.Queries, id cay.ID) ([]*cay.Sandbox, error) {
	rows, err := q.SessionUsers(ctx, string(id))
	if err != nil {
		return nil, fmt.Errorf("read who uses session %s: %w", id, err)
	}
	return fromRows(rows)
}

// sessionFor reads a session that something of the project is to use; the error is that of the request.
func sessionFor(ctx context.Context, q *db.Queries, project, id cay.ID) (*cay.Session, error) {
	ses, err := readSession(ctx, q, id)
	if cay.ReasonOf(err) == cay.NotFound || err == nil && ses.ProjectID != project {
		return nil, cay.Errorf(cay.Unprocessable, "there is no session %s; make one with POST /v1/sessions", id).On("session_id")
	}
	if err != nil {
		return nil, err
	}
	return ses, ses.Usable()
}

// useSession sees to it that sb may use its session, and notes the use.
func useSession(ctx context.Context, q *db.Queries, sb *cay.Sandbox) (*cay.Session, error) {
	ses, err := sessionFor(ctx, q, sb.ProjectID, sb.Spec.SessionID)
	if err != nil {
		return nil, err
	}
	if ses.Status == cay.SessionArchiving {
		return nil, cay.Errorf(cay.NotReady, "session %s is being archived; try again in a moment", ses.ID).
			On("session_id").After(time.Second).With("status", string(ses.Status))
	}
	if sb.Spec.ManagedBy != ses.ID {
		users, err := sessionUsers(ctx, q, ses.ID)
		if err != nil {
			return nil, err
		}
		for _, u := range users {
			if u.Spec.ManagedBy == ses.ID || u.Spec.SessionShared && sb.Spec.SessionShared {
				continue
			}
			return nil, cay.Errorf(cay.Conflict, "session %s is in use by sandbox %s; end that one first, or let both share the session with session_shared", ses.ID, u.ID).
				On("session_id").With("sandbox_id", string(u.ID))
		}
	}
	return ses, note(ctx, q, ses, sb.CreatedAt)
}

// noteUse writes that the session was in use until a time, unless it has ended or is gone.
func noteUse(ctx context.Context, q *db.Queries, id cay.ID, at time.Time) error {
	ses, err := readSession(ctx, q, id)
	if cay.ReasonOf(err) == cay.NotFound || err == nil && ses.Status.Ended() {
		return nil
	}
	if err != nil {
		return err
	}
	return note(ctx, q, ses, at)
}

func note(ctx context.Context, q *db.Queries, ses *cay.Session, at time.Time) error {
	if !at.After(ses.LastUsedAt) {
		return nil
	}
	ses.LastUsedAt, ses.ExpiresAt = at, at.Add(ses.TTL)
	return updateSession(ctx, q, ses)
}

func toSessionRow(ses *cay.Session) (db.Session, error) {
	metadata := ses.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	metadataJSON, err := encode(metadata)
	return db.Session{
		ID: string(ses.ID), ProjectID: string(ses.ProjectID), Name: ses.Name, Metadata: metadataJSON,
		Status: string(ses.Status), StatusReason: string(ses.StatusReason), DiskGb: ses.DiskGB, Ttl: int64(ses.TTL), WorkerID: string(ses.WorkerID),
		CreatedAt: micros(ses.CreatedAt), LastUsedAt: micros(ses.LastUsedAt), ExpiresAt: micros(ses.ExpiresAt), EndedAt: micros(ses.EndedAt),
		ArchiveKey: ses.ArchiveKey, ArchiveDigest: ses.ArchiveDigest, ArchiveBytes: ses.ArchiveBytes, Version: ses.Version, CreatedBy: string(ses.CreatedBy),
	}, err
}

func fromSessionRow(row db.Session) (*cay.Session, error) {
	ses := &cay.Session{
		ID: cay.ID(row.ID), ProjectID: cay.ID(row.ProjectID), Name: row.Name,
		Status: cay.SessionStatus(row.Status), StatusReason: cay.StatusReason(row.StatusReason),
		DiskGB: row.DiskGb, TTL: time.Duration(row.Ttl), WorkerID: cay.ID(row.WorkerID),
		CreatedAt: fromMicros(row.CreatedAt), LastUsedAt: fromMicros(row.LastUsedAt), ExpiresAt: fromMicros(row.ExpiresAt), EndedAt: fromMicros(row.EndedAt),
		ArchiveKey: row.ArchiveKey, ArchiveDigest: row.ArchiveDigest, ArchiveBytes: row.ArchiveBytes, Version: row.Version, CreatedBy: cay.ID(row.CreatedBy),
	}
	if err := json.Unmarshal([]byte(row.Metadata), &ses.Metadata); err != nil {
		return nil, fmt.Errorf("read metadata of session %s: %w", row.ID, err)
	}
	return ses, nil
}

func fromSessionRows(rows []db.Session) ([]*cay.Session, error) {
	items := make([]*cay.Session, 0, len(rows))
	for _, row := range rows {
		ses, err := fromSessionRow(row)
		if err != nil {
			return nil, err
		}
		items = append(items, ses)
	}
	return items, nil
}
