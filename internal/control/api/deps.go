package api

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// Sandboxes is what the API needs of the life cycle; internal/control/lifecycle implements it. Every method takes the project of
// the caller: a sandbox of another project is cay.NotFound.
type Sandboxes interface {
	// Create checks the request against limits and quota, fills in defaults, and writes the row CREATING. It does not wait.
	Create(ctx context.Context, project cay.ID, req cay.CreateSandbox) (*cay.Sandbox, error)
	Get(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	// Wait returns the sandbox as soon as its status is one of want or it has ended, or as it is when ctx ends; ctx's end is no error.
	Wait(ctx context.Context, project, id cay.ID, want ...cay.Status) (*cay.Sandbox, error)
	List(ctx context.Context, project cay.ID, q cay.SandboxQuery) (items []*cay.Sandbox, nextCursor string, err error)
	// Delete moves it to TERMINATING and returns at once; an ended one is returned as it is.
	Delete(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	// Pause and Resume return when it is done or ctx ends. Idempotent. ttl nil: what was left.
	Pause(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	Resume(ctx context.Context, project, id cay.ID, ttl *time.Duration) (*cay.Sandbox, error)
	// SetTimeout sets the end to now + ttl, capped at the maximum; with extendOnly it never comes earlier.
	SetTimeout(ctx context.Context, project, id cay.ID, ttl time.Duration, extendOnly bool) (*cay.Sandbox, error)
	Update(ctx context.Context, project, id cay.ID, u cay.UpdateSandbox) (*cay.Sandbox, error)
	// Enter returns a sandbox that is READY for use by an exec, a file or a terminal, counting the call as activity; a paused one with
	// auto_resume is resumed first. Otherwise the error of cay.Sandbox.Usable. It reads memory, not the store, when it can.
	Enter(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	// Events answers, oldest first, at most limit of what happened to the sandbox after an event, also once it has ended. NextEvents waits until there is
	// something to tell; it answers an empty page when ctx ends.
	Events(ctx context.Context, project, id cay.ID, after int64, limit int) (cay.EventPage, error)
	NextEvents(ctx context.Context, project, id cay.ID, after int64, limit int) (cay.EventPage, error)
	// Limits and Runtimes are for GET /v1/info and /v1/runtimes.
	Limits() cay.Limits
	// Enforced names the limits (of cpu, memory_mb, disk_gb, pids) that every worker keeps for real.
	Enforced() []string
	Runtimes(ctx context.Context) ([]cay.Runtime, error)
}

// Jobs is what the API needs of the queue of jobs; internal/control/jobs implements it. A job of another project is cay.NotFound.
type Jobs interface {
	// Submit checks the request against limits and quota, fills in defaults, and writes the row. It does not wait.
	Submit(ctx context.Context, project, key cay.ID, req cay.SubmitJob) (*cay.Job, error)
	Get(ctx context.Context, project, id cay.ID) (*cay.Job, error)
	// Wait returns the job as soon as it has finished, or as it is when ctx ends; ctx's end is no error.
	Wait(ctx context.Context, project, id cay.ID) (*cay.Job, error)
	List(ctx context.Context, project cay.ID, q cay.JobQuery) (items []*cay.Job, nextCursor string, err error)
	// Cancel asks for the end; a queued job is canceled at once, of a running one the program is killed, a finished one stays as it is.
	// It returns when the job has finished, or as it is when ctx ends.
	Cancel(ctx context.Context, project, id cay.ID) (*cay.Job, error)
	// Result answers what the job left behind or, while it runs, has written so far; of each stream at most most bytes, head and tail.
	Result(ctx context.Context, j *cay.Job, most int) (cay.JobResult, error)
	// Stream calls send with everything after a position, then with what happens, until the job's last frame or ctx ends or send fails, whose
	// error it returns. Every caller reads at its own pace. Frames of output hold at most 64 KiB.
	Stream(ctx context.Context, project, id cay.ID, after int64, send func(cay.JobFrame) error) error
	// OpenOutput reads a file that the job left in /output.
	OpenOutput(ctx context.Context, project, id cay.ID, path string) (cay.JobOutput, io.ReadCloser, error)
}

// Sessions is what the API needs of sessions; internal/control/sessions implements it. One of another project is cay.NotFound.
type Sessions interface {
	Create(ctx context.Context, project cay.ID, req cay.CreateSession) (*cay.Session, error)
	Get(ctx context.Context, project, id cay.ID) (*cay.Session, error)
	List(ctx context.Context, project cay.ID, q cay.SessionQuery) (items []*cay.Session, nextCursor string, err error)
	// Users are the sandboxes that use it now, but for those that serve the session itself.
	Users(ctx context.Context, project, id cay.ID) ([]*cay.Sandbox, error)
	// Delete begins the end of the session and returns when its files are gone, or as it is when ctx ends. While sandboxes or jobs use it
	// it is cay.Conflict; with force they end first. One that has ended is returned as it is.
	Delete(ctx context.Context, project, id cay.ID, force bool) (*cay.Session, error)
	// Enter returns a sandbox in which the session's files can be reached at cay.SessionPath, counting as use of the session: one that
	// uses it, or a small one that serves it, made on first use and gone a while after the last.
	Enter(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	// Available reports whether there is a worker that can have volumes.
	Available() bool
}

// History is what the API needs of the past; internal/control/history implements it.
type History interface {
	Record(ctx context.Context, project, id cay.ID) (cay.Record, error)
	Records(ctx context.Context, project cay.ID, q cay.RecordQuery) (items []cay.Record, nextCursor string, err error)
	Usage(ctx context.Context, project cay.ID, q cay.UsageQuery) (rows []cay.UsageRow, total cay.UsageRow, nextCursor string, err error)
	Audit(ctx context.Context, project cay.ID, q cay.AuditQuery) (items []cay.AuditEntry, nextCursor string, err error)
	// NoteAudit takes an entry to be written soon. It never blocks; what cannot be kept is counted.
	NoteAudit(e cay.AuditEntry)
	// Events answers, oldest first, what happened in the project after an event. NextEvents waits until there is something to tell; it
	// answers an empty page when ctx ends.
	Events(ctx context.Context, project cay.ID, q cay.EventQuery) (cay.EventPage, error)
	NextEvents(ctx context.Context, project cay.ID, q cay.EventQuery) (cay.EventPage, error)
}

// Nodes finds the node of a sandbox; internal/control/nodes implements it. Errors of calls go through noderpc.Decode.
type Nodes interface {
	For(ctx context.Context, worker cay.ID) (nodev1connect.NodeServiceClient, error)
	// Ready reports nil when at least one node answers and has adopted its sandboxes.
	Ready(ctx context.Context) error
}

// Auth turns secrets into identities; internal/control/auth implements it.
type Auth interface {
	// Key answers cay.Unauthorized for an unknown, expired or revoked key.
	Key(ctx context.Context, secret string) (cay.Identity, error)
	// MintTicket makes a ticket that is good once, for 60 s, for exactly that method and URL (path and query without the ticket).
	MintTicket(ctx context.Context, id cay.Identity, method, url string) (ticket string, expires time.Time, err error)
	// RedeemTicket uses it up. A second use, another URL, an expired ticket or a dead key: cay.Unauthorized.
	RedeemTicket(ctx context.Context, ticket, method, url string) (cay.Identity, error)
	Signer
}

// Signer makes and checks URLs that are good by themselves; internal/control/auth implements it.
type Signer interface {
	SignURL(ctx context.Context, u cay.SignedURL) (signature string, err error)
	// VerifyURL answers the identity that signed, with the scope files alone; cay.Unauthorized when the signature is of anything else,
	// the URL has expired, or its key is dead or has lost the scope. A HEAD is good as a GET.
	VerifyURL(ctx context.Context, u cay.SignedURL, signature string) (cay.Identity, error)
}

// Ports gives ports of sandboxes URLs, and carries requests there; internal/control/ports implements it.
type Ports interface {
	Expose(ctx context.Context, project, sandbox cay.ID, number int, public bool) (p cay.ExposedPort, created bool, err error)
	List(ctx context.Context, project, sandbox cay.ID) ([]cay.ExposedPort, error)
	// Remove takes the URL away and cuts its connections; cay.NotFound when there is none.
	Remove(ctx context.Context, project, sandbox cay.ID, number int) error

	// Owns reports whether a request's host is one that ServeHost answers, with or without a port of a sandbox behind it.
	Owns(host string) bool
	// ServeHost and ServePath carry a request. An error means that nothing was answered. rest is the escaped path inside.
	ServeHost(w http.ResponseWriter, r *http.Request) error
	ServePath(w http.ResponseWriter, r *http.Request, project, sandbox cay.ID, number int, rest string) error
}

// Idempotency remembers answers by project, route and key for 24 hours; internal/control/store implements it durably.
type Idempotency interface {
	// Begin claims the key. fresh: the caller does the work and calls Finish or Abandon. Not fresh and done: the stored answer.
	// Not fresh and not done: the first is still running. A different fingerprint: cay.IdempotencyMismatch.
	// object is the id of what the caller would make, or "". Of a request that died with its server the next caller is fresh, and the
	// record names the id that was chosen then: what it names may have been made already.
	Begin(ctx context.Context, project cay.ID, route, key string, fingerprint [32]byte, object string) (rec cay.IdempotencyRecord, fresh bool, err error)
	Finish(ctx context.Context, project cay.ID, route, key string, status int, objectID string) error
	// Abandon makes the key fresh again, also one that was finished: a server's fault is not an answer to keep.
	Abandon(ctx context.Context, project cay.ID, route, key string) error
}
