// Package driver is the contract between a node and whatever isolates its sandboxes: gVisor now; Docker and Kubernetes can follow.
// It knows how a sandbox is brought up, reached and proven gone; what runs inside is the agent's business and the router's.
package driver

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// ErrUnsupported means that the driver or this host cannot do it; the caller takes the slower way or refuses.
var ErrUnsupported = errors.New("not supported by this driver")

// ErrGone means that the handle names nothing that exists.
var ErrGone = errors.New("sandbox is gone")

// Shape is what must be known when a sandbox boots, because it is fixed afterwards. Sandboxes of one shape are interchangeable
// until they are claimed.
type Shape struct {
	Image    string  // "host"
	CPU      float64 // cores; rounded up, the count shown inside
	MemoryMB int64   // shown inside
	DiskGB   float64
	Pids     int64
}

// Handle names a sandbox to its driver. It equals the directory, the cgroup and the runsc container's name.
type Handle string

// Spec is what a claim settles.
type Spec struct {
	SandboxID cay.ID
	ProjectID cay.ID  // whose it is
	CPU       float64 // cores of quota; at most the shape's
	MemoryMB  int64
	Pids      int64
	Volumes   []Volume
}

// Volume is a directory of the host, a mount of its own, that the sandbox gets to see. Name is that of the entry in the directory of
// volumes inside, from where the agent mounts it where it belongs.
type Volume struct {
	Name     string `json:"name"`
	Source   string `json:"source"` // on the host
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Info says what the driver offers on this host.
type Info struct {
	Isolation string // "gvisor"
	Version   string // of the isolation
	Rootless  bool
	Enforced  []string // of cpu, memory_mb, disk_gb, pids
	CanFreeze bool
	CanMount  bool     // volumes
	Notes     []string // for people: what is not enforced and why
}

// Status is a sandbox as it exists on the host.
type Status struct {
	Handle    Handle
	SandboxID cay.ID // "" while unclaimed
	Shape     Shape
	Spec      Spec // as claimed; adoption needs no other source
	Complete  bool // false: left from a start that did not finish; only Destroy makes sense
	Alive     bool // its kernel runs, verified by pid and start time
	Frozen    bool
	CreatedAt time.Time
}

// EventType is what a driver notices by itself.
type EventType string

const (
	EventExited EventType = "exited" // its kernel is gone; Destroy still has to clean up
	EventMemory EventType = "memory" // over the promise: reclaim inside, or it will be killed
)

// Event is something that happened to a sandbox without being asked.
type Event struct {
	Handle  Handle
	Type    EventType
	OOM     bool  // with exited: the kernel's memory limit struck
	Current int64 // with memory: bytes in use that cannot be reclaimed by the host
	Promise int64 // with memory: bytes promised
	Limit   int64 // with memory: what Current is above; the promise, and what the isolation needs for itself
}

// Purpose says which of an agent's connections Dial should return.
type Purpose struct {
	Kind  wire.ConnKind
	Token [wire.TokenLen]byte // of a bulk connection
}

// Driver brings sandboxes up and down. All methods are safe for concurrent use.
type Driver interface {
	Info() Info

	// Prepare boots a sandbox that belongs to nobody yet. Idempotent by handle: one that is up already is found. It returns once
	// the kernel runs; the agent's hello is the caller's to await through Dial. On error nothing is left behind.
	Prepare(ctx context.Context, h Handle, shape Shape) error

	// Claim gives it to a sandbox: records the owner for a later process of this node, sets the limits. Once and irreversible; the same claim again is nil,
	// another is a cay.Conflict. ErrUnsupported: boot cold instead.
	Claim(ctx context.Context, h Handle, spec Spec) error

	// Destroy ends it and removes every trace: processes, mounts, cgroups, state files, disk. It returns nil only when it is proven
	// gone; the caller comes again otherwise. An unknown handle is nil.
	Destroy(ctx context.Context, h Handle) error

	// List names all that exists, also what an earlier process of this node started: after a restart this is the truth.
	List(ctx context.Context) ([]Status, error)

	// Watch delivers events until ctx ends, then the channel is closed. One watcher at a time.
	Watch(ctx context.Context) (<-chan Event, error)

	// Dial returns the agent's next connection of that purpose, its preamble already read. Of control connections there is at most
	// one pending; asking again after the old one failed is how a reconnect happens. It blocks until ctx ends; ErrGone when the
	// sandbox is.
	Dial(ctx context.Context, h Handle, purpose Purpose) (net.Conn, error)

	// Close stops listening and watching. Sandboxes live on.
	Close() error
}

// Freezer is a driver that can stop all of a sandbox's processes.
type Freezer interface {
	Freeze(ctx context.Context, h Handle) error // idempotent
	Thaw(ctx context.Context, h Handle) error   // idempotent
}

// Stats is what a sandbox uses, read from outside of it.
type Stats struct {
	CPU         time.Duration // total
	MemoryBytes int64         // what cannot be reclaimed
	PeakBytes   int64
	DiskBytes   int64
	HostPids    int64
}

// Statser is a driver that can measure from outside.
type Statser interface {
	Stats(ctx context.Context, h Handle) (Stats, error)
}
