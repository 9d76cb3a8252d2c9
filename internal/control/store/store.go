// Package store is the contract of what the control plane keeps: the truth about sandboxes, which is also the queue of what is
// still to be done, and projects, keys, workers, events and idempotency keys. Implementations are in subfolders and pass the suite
// in storetest. It holds no rules: lifecycle decides what may change, scheduler what goes where.
package store

import (
	"context"
	"time"

	"github.com/cayhq/cay"
)

// Store is everything that an implementation offers; each consumer declares the part that it needs. All methods are safe for
// concurrent use. A nil error of a write means that the write survives the end of the process and of the machine. Times are kept
// to the microsecond. What is not there is cay.NotFound.
//
// Leases alone survive the machine only with the next other write: an attempt that is given out a second time joins the first.
type Store interface {
	Sandboxes
	Queue
	Jobs
	Sessions
	Workers
	Access
	Ports

	Events
	History

	Idempotency() Idempotency

	// Purge removes what is older than it has to be kept, and expired tickets. It works in small steps so that other writes pass between.
	// It leaves jobs, which have blobs: see OldJobs.
	Purge(ctx context.Context, now time.Time, keep cay.Retention) error
	Close() error
}

// Sandboxes are the rows.
type Sandboxes interface {
	// InsertSandbox writes a new row, unless the project has maxActive active sandboxes already (cay.QuotaExceeded) or maxQueued rows
	// are waiting to be created (cay.NoCapacity). Zero: no bound. Both are counted in the same transaction. Sandboxes that serve jobs or
	// sessions (ManagedBy) are not counted as the project's. A row of that id that is there already is cay.AlreadyExists.
	//
	// With a session (Spec.SessionID) the same transaction sees to it that the session is the project's (else cay.Unprocessable on
	// session_id), that it has not ended (cay.Gone) and is not on its way to its archive (cay.NotReady; one that is on its way back is what a
	// use waits for), and that nobody uses it who does not share it (cay.Conflict, naming the other's sandbox_id): all that have not ended
	// count. What serves the session itself (ManagedBy is the session) neither counts nor asks. It notes the use, and writes the session's
	// worker to NearWorker, also in sb.
	InsertSandbox(ctx context.Context, sb *cay.Sandbox, maxActive, maxQueued int64) error
	Sandbox(ctx context.Context, id cay.ID) (*cay.Sandbox, error)
	// LiveSandboxes are those that have not ended.
	LiveSandboxes(ctx context.Context) ([]*cay.Sandbox, error)
	ListSandboxes(ctx context.Context, project cay.ID, q cay.SandboxQuery) (items []*cay.Sandbox, next string, err error)
	// MutateSandbox reads the row, lets change edit it, and writes it and the events in one transaction, guarded by the version. When
	// change fails nothing is written, and the row as read comes back with its error. change may run more than once and must not block.
	// When the sandbox ends by it, that is noted as the last use of its session.
	MutateSandbox(ctx context.Context, id cay.ID, change func(*cay.Sandbox) ([]cay.Event, error)) (*cay.Sandbox, error)
	// TouchSandboxes writes LastActiveAt, AccountedAt and Usage of many rows at once, and notes the use of their sessions. It neither adds
	// to versions of sandboxes nor moves anything back. Of a row it uses no more than these and the session; one that has ended it leaves.
	TouchSandboxes(ctx context.Context, rows []*cay.Sandbox) error
}

// Queue hands out rows that have an operation.
type Queue interface {
	// Lease takes up to limit rows that are due: with one of the operations, not before their time, not leased by anyone. For each, oldest
	// first, pick says whether to take it and on which worker; it sees what is reserved on every worker, with what it picked before
	// counted in. Taking adds one to Attempt and Version and reserves the worker, all in one transaction. pick must not block.
	Lease(ctx context.Context, now time.Time, lease cay.Lease, ops []cay.Operation, limit int,
		pick func(sb *cay.Sandbox, workers []cay.WorkerLoad) (worker cay.ID, ok bool)) ([]*cay.Sandbox, error)
	// RenewLeases extends the leases on rows held at these attempts and names those that are no longer held.
	RenewLeases(ctx context.Context, lease cay.Lease, held map[cay.ID]int64) (lost []cay.ID, err error)
	// ReleaseOtherLeases frees what anyone but owner holds. Only for a scheduler that knows itself to be alone.
	ReleaseOtherLeases(ctx context.Context, owner string) (int64, error)
}

// Jobs are rows and, while they have not finished, the queue of what is to be run.
type Jobs interface {
	// InsertJob writes a new row, unless the project has maxQueued jobs already that have not finished (cay.QuotaExceeded; zero: no
	// bound). A session that is not the project's is cay.Unprocessable on session_id, one that has ended is cay.Gone.
	InsertJob(ctx context.Context, j *cay.Job, maxQueued int64) error
	Job(ctx context.Context, id cay.ID) (*cay.Job, error)
	// ListJobs leaves out Input and Result.
	ListJobs(ctx context.Context, project cay.ID, q cay.JobQuery) (items []*cay.Job, next string, err error)
	// MutateJob is guarded by the version as MutateSandbox is. Input does not change.
	MutateJob(ctx context.Context, id cay.ID, change func(*cay.Job) error) (*cay.Job, error)
	// LeaseJobs takes up to limit jobs that are due: not finished, not before their time, not leased by anyone. It takes those that run
	// already first (their holder died). Of the queued ones it takes the next of the project that has the fewest leased, among equals of
	// the one whose turn is longest ago; within a project by priority, then age. A job of a session is not due while another job of
	// it is leased or running, or a sandbox uses it, unless all of them share it; sandboxes that serve the session itself do not count. Taking adds one to Fence and
	// Version, all in one transaction. The rows come with Input.
	LeaseJobs(ctx context.Context, now time.Time, lease cay.Lease, limit int) ([]*cay.Job, error)
	// RenewJobLeases extends the leases on jobs held at these fences and names those that are no longer held.
	RenewJobLeases(ctx context.Context, lease cay.Lease, held map[cay.ID]int64) (lost []cay.ID, err error)
	// ReleaseOtherJobLeases frees what anyone but owner holds. Only for a runner that knows itself to be alone.
	ReleaseOtherJobLeases(ctx context.Context, owner string) (int64, error)
	// ExpiredJobs are at most limit queued jobs that are past their deadline and not leased.
	ExpiredJobs(ctx context.Context, now time.Time, limit int) ([]*cay.Job, error)
	// OldJobs are at most limit jobs that finished before a time; DeleteJob removes one.
	OldJobs(ctx context.Context, before time.Time, limit int) ([]*cay.Job, error)
	DeleteJob(ctx context.Context, id cay.ID) error
	// CountJobs says how many jobs of any project are queued and running, and since when the oldest queued one waits.
	CountJobs(ctx context.Context) (queued, running int64, oldest time.Time, err error)
}

// Sessions are the rows of volumes that outlive sandboxes.
type Sessions interface {
	// InsertSession writes a new row, unless the project has most sessions that have not ended (cay.QuotaExceeded; zero: no bound) or one of
	// that name (cay.AlreadyExists, with session_id).
	InsertSession(ctx context.Context, s *cay.Session, most int64) error
	Session(ctx context.Context, id cay.ID) (*cay.Session, error)
	ListSessions(ctx context.Context, project cay.ID, q cay.SessionQuery) (items []*cay.Session, next string, err error)
	// MutateSession is guarded by the version as MutateSandbox is. used tells change about sandboxes that have not ended and use the
	// session, as of the same transaction; those that serve the session itself are marked by ManagedBy.
	MutateSession(ctx context.Context, id cay.ID, change func(s *cay.Session, users []*cay.Sandbox) error) (*cay.Session, error)
	// DueSessions are at most limit sessions for which the sweeper has something to do: expired at now and not in use, or active with a
	// volume, not in use and not used since idleBefore (zero: none), or, after all of those, deleting, archiving or restoring. In use
	// is what a sandbox uses that does not serve the session itself, or a job that has not finished.
	DueSessions(ctx context.Context, now, idleBefore time.Time, limit int) ([]*cay.Session, error)
	// SessionUsers are the sandboxes that have not ended and use the session.
	SessionUsers(ctx context.Context, id cay.ID) ([]*cay.Sandbox, error)
}

// Workers are the nodes that have ever reported.
type Workers interface {
	PutWorker(ctx context.Context, w cay.Worker) error
	Workers(ctx context.Context) ([]cay.WorkerLoad, error)
}

// Events are what happened to sandboxes, jobs and sessions. A sequence number is never used twice, and an event is seen after those with lower numbers.
type Events interface {
	// Events answers what happened after q.After, and what is kept at least from then on. A sandbox's are those of its own, without those of
	// jobs that it ran.
	Events(ctx context.Context, project cay.ID, q cay.EventQuery) (events []cay.Event, kept cay.EventSpan, err error)
	// EventsSince names sandboxes of any project to which something happened after an event, at most limit, and the newest event that
	// was looked for.
	EventsSince(ctx context.Context, after int64, limit int) (sandboxes []cay.ID, newest int64, err error)
	AddEvent(ctx context.Context, e cay.Event) error
}

// History is what remains of what has ended, and what was used. The records of sandboxes, jobs and sessions are written with their end, in
// the same transaction (InsertSandbox, MutateSandbox, MutateJob, MutateSession); so is usage (cay.Accrue), also by TouchSandboxes, and the
// events of jobs and sessions.
type History interface {
	// AddRecords writes records of processes. One that is there already stays as it is.
	AddRecords(ctx context.Context, records []cay.Record) error
	Record(ctx context.Context, project, id cay.ID) (cay.Record, error)
	// ListRecords answers a page of a project's records, or of all with q.AllProjects.
	ListRecords(ctx context.Context, project cay.ID, q cay.RecordQuery) (items []cay.Record, next string, err error)

	// Usage sums up the days of a project, or of all with q.AllProjects, in the order of day, project, sandbox. total is the sum of all
	// rows, not of the page alone.
	Usage(ctx context.Context, project cay.ID, q cay.UsageQuery) (rows []cay.UsageRow, total cay.UsageRow, next string, err error)

	AddAudit(ctx context.Context, entries []cay.AuditEntry) error
	ListAudit(ctx context.Context, project cay.ID, q cay.AuditQuery) (items []cay.AuditEntry, next string, err error)

	// CountSandboxes counts, over all projects, the sandboxes that have not ended by status, and those with an operation that nobody has
	// taken yet, with the time since when the oldest of them waits (zero: none does).
	CountSandboxes(ctx context.Context) (byStatus map[cay.Status]int64, queued int64, oldest time.Time, err error)
	// EgressBytes is what sandboxes of all projects have ever sent out, as far as usage is kept.
	EgressBytes(ctx context.Context) (int64, error)
}

// Access is who may do what.
type Access interface {
	InsertProject(ctx context.Context, p cay.Project) error // cay.AlreadyExists for a name in use
	Project(ctx context.Context, id cay.ID) (cay.Project, error)
	ProjectByName(ctx context.Context, name string) (cay.Project, error)
	Projects(ctx context.Context) ([]cay.Project, error)

	InsertKey(ctx context.Context, k cay.Key) error
	// ReplaceKey removes the keys named by old and inserts k, in one transaction.
	ReplaceKey(ctx context.Context, k cay.Key, old ...cay.ID) error
	KeyByHash(ctx context.Context, hash [32]byte) (cay.Key, error)
	Key(ctx context.Context, id cay.ID) (cay.Key, error)
	Keys(ctx context.Context, project cay.ID) ([]cay.Key, error)
	// RevokeKey is idempotent: the first time stays.
	RevokeKey(ctx context.Context, project, id cay.ID, at time.Time) error

	InsertTicket(ctx context.Context, t cay.Ticket) error
	// TakeTicket removes and returns a ticket; of many callers one gets it.
	TakeTicket(ctx context.Context, hash [32]byte) (cay.Ticket, error)

	// ServerSecret answers the secret of that name, which is fresh if there was none: of many callers at once all get the same.
	ServerSecret(ctx context.Context, name string, fresh []byte) ([]byte, error)
}

// Ports are the ports of sandboxes that have a URL. They are kept as long as their sandbox's row.
type Ports interface {
	// PutPort writes a port. One that is there changes in whether it is public alone. cay.Conflict when the sandbox has limit others.
	PutPort(ctx context.Context, p cay.Port, limit int64) (kept cay.Port, created bool, err error)
	Port(ctx context.Context, sandbox cay.ID, number int) (cay.Port, error)
	Ports(ctx context.Context, sandbox cay.ID) ([]cay.Port, error) // by number
	DeletePort(ctx context.Context, sandbox cay.ID, number int) error
}

// Idempotency remembers answers by project, route and key, as package api asks.
type Idempotency interface {
	Begin(ctx context.Context, project cay.ID, route, key string, fingerprint [32]byte, object string) (rec cay.IdempotencyRecord, fresh bool, err error)
	Finish(ctx context.Context, project cay.ID, route, key string, status int, objectID string) error
	Abandon(ctx context.Context, project cay.ID, route, key string) error
}

// IdempotencyPeriod is how long an idempotency key means its first request.
const IdempotencyPeriod = 24 * time.Hour
