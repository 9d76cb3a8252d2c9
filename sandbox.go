package cay

import (
	"fmt"
	"slices"
	"time"
)

// Status is where a sandbox is in its life. See the diagram in ARCHITECTURE.md, which a test compares with [CanTransition].
type Status string

const (
	Creating    Status = "CREATING"
	Ready       Status = "READY"
	Paused      Status = "PAUSED"
	Terminating Status = "TERMINATING"
	Terminated  Status = "TERMINATED"
	Failed      Status = "FAILED"
)

// Statuses lists every status, in the order of a life.
var Statuses = []Status{Creating, Ready, Paused, Terminating, Terminated, Failed}

// transitions is the whole of what may follow what.
var transitions = map[Status][]Status{
	Creating:    {Ready, Terminating, Failed},
	Ready:       {Paused, Terminating},
	Paused:      {Ready, Terminating},
	Terminating: {Terminated},
}

// CanTransition reports whether a sandbox in status from may go to status to.
func CanTransition(from, to Status) bool { return slices.Contains(transitions[from], to) }

// Ended reports whether nothing can follow s.
func (s Status) Ended() bool { return s == Terminated || s == Failed }

// Active reports whether s counts towards `status=active` and quotas.
func (s Status) Active() bool { return s == Creating || s == Ready || s == Paused }

// StatusReason says why a sandbox ended (or is ending). It outlives the sandbox.
type StatusReason string

const (
	ReasonDeleted          StatusReason = "deleted"
	ReasonTTLExpired       StatusReason = "ttl_expired"
	ReasonIdleTimeout      StatusReason = "idle_timeout"
	ReasonPausedTTLExpired StatusReason = "paused_ttl_expired"
	ReasonOOM              StatusReason = "oom"
	ReasonDiskFull         StatusReason = "disk_full"
	ReasonBootFailed       StatusReason = "boot_failed"
	ReasonUnprocessable    StatusReason = "unprocessable" // what was asked for is not in its image: a user, a working directory
	ReasonWorkerLost       StatusReason = "worker_lost"
	ReasonEvicted          StatusReason = "evicted"
	ReasonNoCapacity       StatusReason = "no_capacity"
)

// Orderly reports whether r is an end as it was meant: somebody asked for it, or its time was over.
func (r StatusReason) Orderly() bool {
	return r == ReasonDeleted || r == ReasonTTLExpired || r == ReasonIdleTimeout || r == ReasonPausedTTLExpired
}

// OnTimeout is what the end of the TTL or of the idle timeout does.
type OnTimeout string

const (
	OnTimeoutTerminate OnTimeout = "terminate"
	OnTimeoutPause     OnTimeout = "pause"
)

// SandboxSpec is what was asked for, with every default filled in. It does not change after the create, but for Metadata,
// IdleTimeout and OnTimeout.
type SandboxSpec struct {
	Image    string  `json:"image"`             // "host", or an OCI reference
	Runtime  string  `json:"runtime,omitempty"` // the runtime's name where one was asked for
	CPU      float64 `json:"cpu"`               // cores
	MemoryMB int64   `json:"memory_mb"`
	DiskGB   float64 `json:"disk_gb"`
	Pids     int64   `json:"pids"`

	// ExplicitLimits names the limits (cpu, memory_mb, disk_gb, pids) that the caller asked for rather than got by default: a node
	// that cannot enforce one of them must refuse.
	ExplicitLimits []string `json:"explicit_limits,omitempty"`

	TTL         time.Duration `json:"ttl_ns"`
	IdleTimeout time.Duration `json:"idle_timeout_ns"` // zero: none
	PausedTTL   time.Duration `json:"paused_ttl_ns"`
	OnTimeout   OnTimeout     `json:"on_timeout"`
	AutoResume  bool          `json:"auto_resume"`

	Network  []string          `json:"network"`
	Env      map[string]string `json:"env"`
	Metadata map[string]string `json:"metadata"`
	User     string            `json:"user"`
	Workdir  string            `json:"workdir"`

	SessionID     ID   `json:"session_id,omitempty"` // its volume is mounted at SessionPath
	SessionShared bool `json:"session_shared,omitempty"`
	ManagedBy     ID   `json:"managed_by,omitempty"` // the job or the session that it serves; "": it is a client's own
}

// Operation is what the queue still has to do for a sandbox. A row with an operation is a queue item.
type Operation string

const (
	OpNone    Operation = ""
	OpCreate  Operation = "create"
	OpDestroy Operation = "destroy"
	OpPause   Operation = "pause"
	OpResume  Operation = "resume"
)

// Sandbox is one row of the truth.
type Sandbox struct {
	ID           ID
	ProjectID    ID
	Spec         SandboxSpec
	Status       Status
	StatusReason StatusReason // set once it is TERMINATING, TERMINATED or FAILED
	WorkerID     ID           // "" until placed
	NearWorker   ID           // where its session's volume is, and it has to be as well; "": anywhere

	CreatedAt    time.Time
	ReadyAt      time.Time // zero until READY
	ExpiresAt    time.Time // zero until READY; while PAUSED, meaningless: TTLLeft counts
	LastActiveAt time.Time
	PausedAt     time.Time
	AccountedAt  time.Time // until when its usage is accounted for; zero until READY
	EndedAt      time.Time
	TTLLeft      time.Duration // what was left of the TTL when it was paused

	CreatedBy   ID     // the key; "": the platform itself
	Traceparent string // W3C Trace Context of the request whose operation is in the queue; "": not traced

	QueueDeadline time.Time // CREATING beyond it fails with no_capacity
	CreateMS      CreateMS
	Usage         Usage

	Op           Operation
	Attempt      int64 // fences: a node's answer for an older attempt is ignored
	LeaseOwner   string
	LeaseUntil   time.Time
	NotBefore    time.Time
	Version      int64 // every write adds one; a guarded write names the version it read
	FailureCount int64
	Detail       string // a public sentence on why it failed
}

// CreateMS says where the time of a create went, in milliseconds.
type CreateMS struct {
	Queue    int64 `json:"queue"`
	Schedule int64 `json:"schedule"`
	Boot     int64 `json:"boot"`
	Total    int64 `json:"total"`
}

// Usage is what a sandbox has used so far.
type Usage struct {
	CPUSeconds      float64 `json:"cpu_seconds"`
	MemoryMBSeconds float64 `json:"memory_mb_seconds"`
	PeakMemoryMB    int64   `json:"peak_memory_mb"`
	DiskMB          int64   `json:"disk_mb"`
	EgressBytes     int64   `json:"egress_bytes"`
}

// Transition moves sb to status to, or answers a conflict that names the state found. It is the only way a status changes.
func (sb *Sandbox) Transition(to Status, reason StatusReason, at time.Time) error {
	if !CanTransition(sb.Status, to) {
		return Errorf(Conflict, "sandbox %s is %s and cannot become %s", sb.ID, sb.Status, to).With("status", string(sb.Status))
	}
	from := sb.Status
	sb.Status = to
	if (!sb.AccountedAt.IsZero() || to == Ready) && at.After(sb.AccountedAt) { // never back, or time would count twice
		sb.AccountedAt = at
	}
	switch to {
	case Ready:
		if from == Creating {
			sb.ReadyAt, sb.LastActiveAt, sb.ExpiresAt = at, at, at.Add(sb.Spec.TTL)
		} else {
			sb.ExpiresAt, sb.LastActiveAt, sb.PausedAt = at.Add(sb.TTLLeft), at, time.Time{}
		}
	case Paused:
		sb.PausedAt, sb.TTLLeft = at, max(0, sb.ExpiresAt.Sub(at))
	case Terminating:
		sb.StatusReason = reason
	case Terminated, Failed:
		sb.EndedAt = at
		if reason != "" && sb.StatusReason == "" {
			sb.StatusReason = reason
		}
	}
	return nil
}

// Usable answers why an operation on the sandbox cannot go ahead now, or nil when it is READY.
func (sb *Sandbox) Usable() error {
	switch sb.Status {
	case Ready:
		return nil
	case Creating:
		return Errorf(NotReady, "sandbox %s is still being created; wait for READY with GET /v1/sandboxes/%s?wait_for=READY", sb.ID, sb.ID).
			After(time.Second).With("status", string(sb.Status))
	case Paused:
		return Errorf(SandboxPaused, "sandbox %s is paused; resume it first", sb.ID).With("status", string(sb.Status))
	default:
		return Errorf(Gone, "sandbox %s is %s (%s)", sb.ID, sb.Status, sb.StatusReason).
			With("status", string(sb.Status)).With("status_reason", string(sb.StatusReason))
	}
}

func (s Status) GoString() string { return fmt.Sprintf("cay.%s", string(s)) }
