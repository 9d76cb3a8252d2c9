package client

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// Audit is the log of requests that changed something, or that were refused for who asked. It needs a key with the scope admin.
type Audit struct{ c *Client }

// Audit is that of the key's project.
func (c *Client) Audit() *Audit { return &Audit{c} }

// AuditEntry is one request. What does not apply is zero.
type AuditEntry struct {
	ID         string    `json:"id"`
	At         time.Time `json:"at"`
	ProjectID  string    `json:"project_id"`
	KeyID      string    `json:"key_id"`
	Action     string    `json:"action"` // the operation, as in create-sandbox
	Object     string    `json:"object"` // the id of what it was about, or of what was made
	Status     int       `json:"status"` // of the answer
	Reason     string    `json:"reason"` // of the problem, where it is one
	RequestID  string    `json:"request_id"`
	TraceID    string    `json:"trace_id"`
	RemoteAddr string    `json:"remote_addr"`
	UserAgent  string    `json:"user_agent"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (e *AuditEntry) UnmarshalJSON(data []byte) error {
	type plain AuditEntry
	return keeping(data, (*plain)(e), &e.Raw)
}

// MarshalJSON writes the object as it came.
func (e AuditEntry) MarshalJSON() ([]byte, error) {
	type plain AuditEntry
	return orRaw(e.Raw, plain(e))
}

// AuditOptions selects entries; zero is all of the project, newest first.
type AuditOptions struct {
	KeyID       string
	Action      string
	Object      string
	From, To    time.Time // at or after, before
	AllProjects bool      // also what is of nobody known
	Ascending   bool
	PageSize    int // of one request, at most 200
}

// List answers the entries page by page as they are asked for. It ends after the first error.
func (a *Audit) List(ctx context.Context, o AuditOptions) iter.Seq2[*AuditEntry, error] {
	query := pastQuery(o.From, o.To, o.AllProjects, o.Ascending, o.PageSize)
	setAll(query, map[string]string{"key_id": o.KeyID, "action": o.Action, "object": o.Object})
	return pages[*AuditEntry](ctx, a.c, []string{"v1", "audit"}, query, "list the audit log")
}
