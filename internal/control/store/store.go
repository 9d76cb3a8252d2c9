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
	Workers
	Access
	Ports

	Events

	Idempotency() Idempotency

	// Purge removes what is older than it has to be kept, and expired tickets. It works in small steps so that other writes pass between.
	Purge(ctx context.Context, now time.Time, keep cay.Retention) error
	Close() error
}

// Sandboxes are the rows.
type Sandboxes interface {
	// InsertSandbox writes a new row, unless the project has maxActive active sandboxes already (cay.QuotaExceeded) or maxQueued rows
	// are waiting to be created (cay.NoCapacity). Zero: no bound. Both are counted in the same transaction.
	InsertSandbox(ctx context.Context, sb *cay.Sandbox, maxActive, maxQueued int64) error
	Sandbox(ctx context.Context, id cay.ID) (*cay.Sandbox, error)
	// LiveSandboxes are those that have not ended.
	LiveSandboxes(ctx context.Context) ([]*cay.Sandbox, error)
	ListSandboxes(ctx context.Context, project cay.ID, q cay.SandboxQuery) (items []*cay.Sandbox, next string, err error)
	// MutateSandbox reads the row, lets change edit it, and writes it and the events in one transaction, guarded by the version. When
	// change fails nothing is written, and the row as read comes back with its error. change may run more than once and must not block.
	MutateSandbox(ctx context.Context, id cay.ID, change func(*cay.Sandbox) ([]cay.Event, error)) (*cay.Sandbox, error)
	// TouchSandboxes writes LastActiveAt and Usage of many rows at once. It neither adds to versions nor moves anything back.
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

// Workers are the nodes that have ever reported.
type Workers interface {
	PutWorker(ctx context.Context, w cay.Worker) error
	Workers(ctx context.Context) ([]cay.WorkerLoad, error)
}

// Events are what happened to sandboxes. A sequence number is never used twice, and an event is seen after those with lower numbers.
type Events interface {
	// Events answers what happened after q.After, and what is kept at least from then on.
	Events(ctx context.Context, project cay.ID, q cay.EventQuery) (events []cay.Event, kept cay.EventSpan, err error)
	// EventsSince names sandboxes of any project to which something happened after an event, at most limit, and the newest event that
	// was looked for.
	EventsSince(ctx context.Context, after int64, limit int) (sandboxes []cay.ID, newest int64, err error)
	AddEvent(ctx context.Context, e cay.Event) error
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
	Begin(ctx context.Context, project cay.ID, route, key string, fingerprint [32]byte) (rec cay.IdempotencyRecord, fresh bool, err error)
	Finish(ctx context.Context, project cay.ID, route, key string, status int, objectID string) error
	Abandon(ctx context.Context, project cay.ID, route, key string) error
}

// IdempotencyPeriod is how long an idempotency key means its first request.
const IdempotencyPeriod = 24 * time.Hour
