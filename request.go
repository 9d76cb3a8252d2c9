package cay

import "time"

// CreateSandbox is a create as the caller asked for it; nil means not said.
type CreateSandbox struct {
	KeyID          ID // who asks; "": the platform itself
	Image, Runtime string
	CPU            *float64
	MemoryMB       *int64
	DiskGB         *float64
	Pids           *int64
	TTL            *time.Duration
	IdleTimeout    *time.Duration
	PausedTTL      *time.Duration
	OnTimeout      OnTimeout
	AutoResume     *bool
	Network        []string
	Env            map[string]string
	Metadata       map[string]string
	User, Workdir  string
	QueueTimeout   *time.Duration
	SessionID      ID   // its volume is mounted at SessionPath
	SessionShared  bool // others who share it too may use the session at the same time

	// What only the platform itself says, for a sandbox that it needs for something else.
	ID        ID // chosen beforehand: a repeated create finds the first
	ManagedBy ID // the job or the session that it serves; its life follows that one's
}

// UpdateSandbox holds what PATCH may change; nil leaves it.
type UpdateSandbox struct {
	Metadata    map[string]string // whole replacement when not nil
	IdleTimeout *time.Duration
	OnTimeout   *OnTimeout
}

// SandboxQuery selects a page of a list.
type SandboxQuery struct {
	Limit        int // 1 to 200
	Cursor       string
	Ascending    bool
	CreatedAfter time.Time
	Statuses     []Status
	Metadata     map[string]string
	SessionID    ID
	Managed      bool // also those that serve jobs and sessions
}

// Limits are the bounds and defaults in force.
type Limits struct {
	MaxCPU         float64 `json:"max_cpu"`
	MaxMemoryMB    int64   `json:"max_memory_mb"`
	MaxDiskGB      float64 `json:"max_disk_gb"`
	MaxPids        int64   `json:"max_pids"`
	MaxTTLSeconds  float64 `json:"max_ttl_seconds"`
	MaxSandboxes   int64   `json:"max_sandboxes"`
	DefaultCPU     float64 `json:"default_cpu"`
	DefaultMemory  int64   `json:"default_memory_mb"`
	DefaultDiskGB  float64 `json:"default_disk_gb"`
	DefaultPids    int64   `json:"default_pids"`
	DefaultTTLSecs float64 `json:"default_ttl_seconds"`
}

// Runtime is a language that a sandbox can be asked for by name.
type Runtime struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Image   string   `json:"image"`
	Exec    []string `json:"exec"`
}

// IdempotencyRecord is what is kept: the status and the object, which is read anew for a later answer.
type IdempotencyRecord struct {
	Done     bool
	Status   int
	ObjectID string // of what was made; before it is done, of what is to be made where that was chosen beforehand
}
