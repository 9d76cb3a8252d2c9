package cay

import (
	"slices"
	"time"
)

// SessionStatus is where a session is in its life. See the diagram in ARCHITECTURE.md, which a test compares with [SessionStatus.CanBecome].
type SessionStatus string

const (
	SessionActive    SessionStatus = "active"    // its files are on a worker, or there are none yet
	SessionArchiving SessionStatus = "archiving" // on their way to blob storage
	SessionArchived  SessionStatus = "archived"  // in blob storage alone; the next use brings them back
	SessionRestoring SessionStatus = "restoring"
	SessionDeleting  SessionStatus = "deleting"
	SessionDeleted   SessionStatus = "deleted" // and so are its files
)

// SessionStatuses lists every status of a session.
var SessionStatuses = []SessionStatus{SessionActive, SessionArchiving, SessionArchived, SessionRestoring, SessionDeleting, SessionDeleted}

// sessionTransitions is the whole of what may follow what.
var sessionTransitions = map[SessionStatus][]SessionStatus{
	SessionActive:    {SessionArchiving, SessionDeleting},
	SessionArchiving: {SessionArchived, SessionActive, SessionDeleting},
	SessionArchived:  {SessionRestoring, SessionDeleting},
	SessionRestoring: {SessionActive, SessionArchived, SessionDeleting},
	SessionDeleting:  {SessionDeleted},
}

// CanBecome reports whether a session in status s may go to status to.
func (s SessionStatus) CanBecome(to SessionStatus) bool {
	return slices.Contains(sessionTransitions[s], to)
}

// Ended reports whether the session can be used no more.
func (s SessionStatus) Ended() bool { return s == SessionDeleting || s == SessionDeleted }

// SessionPath is where a session's volume is mounted.
const SessionPath = "/session"

// CreateSession is what a client asks for. Nil is the default.
type CreateSession struct {
	ID       ID     // chosen beforehand: a repeated create finds the first; "": a new one
	KeyID    ID     // who asks
	Name     string // unique among the project's sessions that have not ended; "": none
	TTL      *time.Duration
	DiskGB   *float64
	Metadata map[string]string
}

// Session is one row: a volume that outlives the sandboxes which mount it.
type Session struct {
	ID           ID
	ProjectID    ID
	CreatedBy    ID // the key; "": not known
	Name         string
	Metadata     map[string]string
	Status       SessionStatus
	StatusReason StatusReason // deleted or ttl_expired, once it is ending
	DiskGB       float64
	TTL          time.Duration // from its last use

	// WorkerID is where the volume is; "" while it was never made and while it is archived alone.
	WorkerID ID

	CreatedAt  time.Time
	LastUsedAt time.Time
	ExpiresAt  time.Time // LastUsedAt + TTL; a session in use does not expire
	EndedAt    time.Time

	// ArchiveKey names the blob of an archived session, ArchiveDigest (SHA-256, hex) and ArchiveBytes its content as stored.
	ArchiveKey    string
	ArchiveDigest string
	ArchiveBytes  int64

	Version int64
}

// Volume is the name of the session's volume on its worker.
func (s *Session) Volume() string { return "ses-" + s.ID.Body() }

// Transition moves the session to status to, or answers a conflict that names the state found. It is the only way a status changes.
func (s *Session) Transition(to SessionStatus, reason StatusReason, at time.Time) error {
	if !s.Status.CanBecome(to) {
		return Errorf(Conflict, "session %s is %s and cannot become %s", s.ID, s.Status, to).With("status", string(s.Status))
	}
	s.Status = to
	if reason != "" && s.StatusReason == "" {
		s.StatusReason = reason
	}
	if to == SessionDeleted {
		s.EndedAt = at
	}
	return nil
}

// Usable answers why a session cannot be used, or nil. One that is archived can: its use brings it back.
func (s *Session) Usable() error {
	if s.Status.Ended() {
		return Errorf(Gone, "session %s is %s (%s)", s.ID, s.Status, s.StatusReason).
			With("status", string(s.Status)).With("status_reason", string(s.StatusReason))
	}
	return nil
}

// SessionQuery selects a page of sessions.
type SessionQuery struct {
	Statuses     []SessionStatus // empty: all that have not ended
	Metadata     map[string]string
	Name         string
	CreatedAfter time.Time
	Ascending    bool
	Limit        int
	Cursor       string
}
