package api

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// maxUserAgent bounds what is kept of a header that clients choose, in bytes.
const maxUserAgent = 256

// routine are the operations that work inside a sandbox all the time, and change nothing that outlives it. They are no entry of the
// audit log unless they are refused for who asked; what ran is in the history.
var routine = []string{
	"exec", "run-code", "create-context", "delete-context", "interrupt-context", "restart-context",
	"write-stdin", "signal-process", "resize-process",
	"write-file", "delete-file", "make-directory", "move-file", "change-mode", "compose-file", "write-archive",
	"write-session-file", "delete-session-file", "write-session-archive",
}

// audited reports whether every answer to the operation is an entry of the audit log. action is the operation, by whatever door.
func audited(method, operation string) (action string, always bool) {
	action = operation
	if of := operations[operation].aliasOf; of != "" {
		action = of
	}
	return action, method != http.MethodGet && method != http.MethodHead && !slices.Contains(routine, action)
}

// objectOf is the id that the URL of a request names; "" when it is none, whatever it is instead.
func objectOf(r *http.Request) cay.ID {
	named := r.PathValue("id")
	for _, prefix := range []string{cay.PrefixSandbox, cay.PrefixJob, cay.PrefixSession} {
		if id, ok := cay.ParseID(prefix, named); ok {
			return id
		}
	}
	return ""
}

// What the audit log and spans call requests that are no operation of the document.
const (
	unmatched  = "unmatched" // refused before it is known what they ask for
	portAccess = "port"      // to a server in a sandbox
)

// audit notes a request that was answered with status, where it belongs into the audit log: what changes something, and who was refused.
// What a guest answers at its own port is none of it.
func (a *API) audit(r *http.Request, x *exchange, status int, at time.Time) {
	refused := (status == http.StatusUnauthorized || status == http.StatusForbidden) && x.err != nil
	if a.History == nil || !x.audited && !refused {
		return
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	e := cay.AuditEntry{
		At: at, ProjectID: x.identity.ProjectID, KeyID: x.identity.KeyID, Action: x.action, Object: string(x.object), Status: status,
		RequestID: x.requestID, TraceID: x.traceID, RemoteAddr: host, UserAgent: userAgentOf(r),
	}
	if e.Action == "" {
		e.Action = unmatched
	}
	if status >= 400 && x.err != nil {
		e.Reason = string(cay.ReasonOf(x.err))
	}
	a.History.NoteAudit(e)
}

// userAgentOf is what a client calls itself, bounded, and as UTF-8: headers may be none, and no JSON could be made of an entry then.
func userAgentOf(r *http.Request) string {
	return cay.Clip(strings.ToValidUTF8(cay.Clip(r.UserAgent(), maxUserAgent), "\uFFFD"), maxUserAgent)
}

// auditEntry is one request that changed something, or that was refused for who asked.
type auditEntry struct {
	ID         string  `json:"id" doc:"Digits; grows with every entry"`
	At         moment  `json:"at"`
	ProjectID  *string `json:"project_id" doc:"null: of nobody known"`
	KeyID      *string `json:"key_id" doc:"null: of nobody known"`
	Action     string  `json:"action" doc:"The operation's id in this document, such as create-sandbox; of the simple door that which it is another form of; unmatched: refused before that was known"`
	Object     *string `json:"object" doc:"The id that the URL names, or that was made; null: none"`
	Status     int     `json:"status" doc:"Of the answer"`
	Reason     *string `json:"reason" doc:"Of the problem; null: it was none"`
	RequestID  string  `json:"request_id"`
	TraceID    *string `json:"trace_id" doc:"null: it was not traced"`
	RemoteAddr string  `json:"remote_addr" doc:"Of the connection: behind a proxy the proxy's"`
	UserAgent  string  `json:"user_agent" doc:"At most 256 bytes"`
}

func auditEntryOf(e cay.AuditEntry) auditEntry {
	return auditEntry{
		ID: strconv.FormatInt(e.Seq, 10), At: moment(e.At), ProjectID: nullable(string(e.ProjectID)), KeyID: nullable(string(e.KeyID)), Action: e.Action,
		Object: nullable(e.Object), Status: e.Status, Reason: nullable(e.Reason), RequestID: e.RequestID, TraceID: nullable(e.TraceID),
		RemoteAddr: e.RemoteAddr, UserAgent: e.UserAgent,
	}
}

type listAuditInput struct {
	PastQuery
	KeyID  string `query:"key_id"`
	Action string `query:"action" maxLength:"100" doc:"The operation's id" example:"create-sandbox"`
	Object string `query:"object" maxLength:"100" doc:"The id of what was asked about, or made"`
}

type listAuditOutput struct {
	Body page[auditEntry]
}

func (a *API) listAudit(ctx context.Context, in *listAuditInput) (*listAuditOutput, error) {
	p, err := in.read(ctx)
	if err != nil {
		return nil, err
	}
	q := cay.AuditQuery{
		AllProjects: in.AllProjects, Action: in.Action, Object: in.Object, From: p.from, To: p.to,
		Ascending: in.Order == "asc", Limit: in.Limit, Cursor: in.Cursor,
	}
	if q.KeyID, err = idParam("key_id", cay.PrefixKey, in.KeyID); err != nil {
		return nil, err
	}
	if _, known := operations[in.Action]; in.Action != "" && in.Action != unmatched && in.Action != portAccess && !known {
		return nil, cay.Errorf(cay.InvalidRequest, "`action` must be the id of an operation, such as create-sandbox, or %s or %s", portAccess, unmatched).On("action")
	}
	if err := plain("object", in.Object); err != nil {
		return nil, err
	}
	rows, next, err := a.History.Audit(ctx, exchangeOf(ctx).identity.ProjectID, q)
	if err != nil {
		return nil, err
	}
	items := make([]auditEntry, len(rows))
	for i, e := range rows {
		items[i] = auditEntryOf(e)
	}
	return &listAuditOutput{Body: pageOf(items, next)}, nil
}
