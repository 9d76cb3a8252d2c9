package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Sessions are files that outlive the sandboxes which use them: each is a volume of its own, at /session of a sandbox or a job that
// names it. (A [Session] is something else: a process whose input and output are live.)
type Sessions struct{ c *Client }

// Sessions are those of the key's project.
func (c *Client) Sessions() *Sessions { return &Sessions{c} }

// SessionStatus is where a session is in its life: one of these, or one of a newer server.
type SessionStatus string

const (
	SessionActive    SessionStatus = "active"
	SessionArchiving SessionStatus = "archiving"
	SessionArchived  SessionStatus = "archived" // put by; its next use brings it back
	SessionRestoring SessionStatus = "restoring"
	SessionDeleting  SessionStatus = "deleting"
	SessionDeleted   SessionStatus = "deleted"
)

// Ended reports whether the session can be used no more.
func (s SessionStatus) Ended() bool { return s == SessionDeleting || s == SessionDeleted }

// CreateSessionRequest asks for a session; what is left zero is decided by the server.
type CreateSessionRequest struct {
	Name     string            `json:"name,omitempty"` // unique among the project's sessions that have not ended
	TTL      time.Duration     `json:"-"`              // from its last use, capped by the server
	DiskGB   float64           `json:"disk_gb,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`

	// IdempotencyKey makes a repeated create find the first; one is made where it is empty.
	IdempotencyKey string `json:"-"`
}

// MarshalJSON writes the request as the API wants it.
func (r CreateSessionRequest) MarshalJSON() ([]byte, error) {
	type plain CreateSessionRequest
	return json.Marshal(struct {
		plain
		TTL seconds `json:"ttl_seconds,omitempty"`
	}{plain(r), inSeconds(r.TTL)})
}

// SessionInfo is a session as the server described it. Times that are not yet are zero.
type SessionInfo struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	Status       SessionStatus     `json:"status"`
	StatusReason string            `json:"status_reason"` // why it ended or is ending
	Volume       string            `json:"volume"`
	DiskGB       float64           `json:"disk_gb"`
	TTL          time.Duration     `json:"-"`
	WorkerID     string            `json:"worker_id"` // where its files are; "": nowhere yet, or put by
	CreatedAt    time.Time         `json:"created_at"`
	LastUsedAt   time.Time         `json:"last_used_at"`
	ExpiresAt    time.Time         `json:"expires_at"` // one in use does not expire
	EndedAt      time.Time         `json:"ended_at"`
	UsedBy       []string          `json:"used_by"` // ids of sandboxes
	Metadata     map[string]string `json:"metadata"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (s *SessionInfo) UnmarshalJSON(data []byte) error {
	type plain SessionInfo
	doc := struct {
		*plain
		TTL seconds `json:"ttl_seconds"`
	}{plain: (*plain)(s)}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	s.TTL = doc.TTL.duration()
	s.Raw = append(s.Raw[:0:0], data...)
	return nil
}

// MarshalJSON writes the object as it came.
func (s SessionInfo) MarshalJSON() ([]byte, error) {
	type plain SessionInfo
	return orRaw(s.Raw, plain(s))
}

// Create makes a session. A name that a session has which has not ended is already_exists, and the [*Error] has its SessionID.
func (s *Sessions) Create(ctx context.Context, r CreateSessionRequest) (*SessionInfo, error) {
	call, err := keyedPost(sessionPath(), r, r.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return s.one(ctx, call, "create a session")
}

// Get answers a session, also one that has ended (for 30 days).
func (s *Sessions) Get(ctx context.Context, id string) (*SessionInfo, error) {
	return s.one(ctx, &call{method: http.MethodGet, path: sessionPath(id)}, "get session "+id)
}

// SessionListOptions selects sessions; zero is all that have not ended, newest first.
type SessionListOptions struct {
	Name         string
	Statuses     []SessionStatus
	Metadata     map[string]string
	CreatedAfter time.Time
	Ascending    bool
	PageSize     int // of one request, at most 200
}

// List answers the sessions page by page as they are asked for. It ends after the first error.
func (s *Sessions) List(ctx context.Context, o SessionListOptions) iter.Seq2[*SessionInfo, error] {
	query := listQuery(o.Statuses, o.Metadata, o.CreatedAfter, o.Ascending, o.PageSize)
	if o.Name != "" {
		query.Set("name", o.Name)
	}
	return pages[*SessionInfo](ctx, s.c, sessionPath(), query, "list sessions")
}

// Delete ends a session with its files and returns once they are gone, or after the server's 60 s while they are going; gone says
// which. One that is in use is a conflict, whose [*Error] has the SandboxID; with force, what uses it ends first. Deleting one that
// has ended is no error.
func (s *Sessions) Delete(ctx context.Context, id string, force bool) (gone bool, err error) {
	r := &call{method: http.MethodDelete, path: sessionPath(id), query: url.Values{}}
	if force {
		r.query.Set("force", strconv.FormatBool(force))
	}
	status, err := s.c.json(ctx, r, nil)
	if err != nil {
		return false, fmt.Errorf("delete session %s: %w", id, err)
	}
	return status == http.StatusNoContent, nil
}

func (s *Sessions) one(ctx context.Context, r *call, attempted string) (*SessionInfo, error) {
	out := new(SessionInfo)
	if _, err := s.c.json(ctx, r, out); err != nil {
		return nil, fmt.Errorf("%s: %w", attempted, err)
	}
	return out, nil
}

func sessionPath(more ...string) []string { return append([]string{"v1", "sessions"}, more...) }
