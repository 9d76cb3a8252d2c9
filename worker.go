package cay

import (
	"slices"
	"time"
)

// Worker is a node as the control plane knows it: what it offers, and when it was last heard of.
type Worker struct {
	ID           ID
	Version      string
	Isolation    string // "gvisor"
	CPU          float64
	MemoryMB     int64
	DiskGB       float64
	MaxSandboxes int64    // zero: no bound
	Enforced     []string // of cpu, memory_mb, disk_gb, pids: what it keeps for real
	Runtimes     []Runtime
	CanFreeze    bool
	CanMount     bool   // volumes of sessions
	Boot         string // changes with every start of the node
	RegisteredAt time.Time
	HeartbeatAt  time.Time
}

// Enforces reports whether the worker keeps every one of the limits.
func (w Worker) Enforces(limits []string) bool {
	return !slices.ContainsFunc(limits, func(l string) bool { return !slices.Contains(w.Enforced, l) })
}

// WorkerLoad is a worker with what is promised to the sandboxes placed on it.
type WorkerLoad struct {
	Worker
	UsedCPU      float64
	UsedMemoryMB int64
	UsedDiskGB   float64
	Sandboxes    int64
}

// Lease is the right to work on a row until a time. Its owner is one start of one scheduler.
type Lease struct {
	Owner string
	Until time.Time
}

// Retention says how long what has ended is kept.
type Retention struct {
	Sandboxes   time.Duration // after their end
	Events      time.Duration
	MaxEvents   int64
	Idempotency time.Duration
	Jobs        time.Duration // after their end, with their output
	Sessions    time.Duration // the row, after its end; the files go at once
	Records     time.Duration // of the history, after what they tell of ended
	MaxRecords  int64
	Usage       time.Duration // days of it, after the day
	Audit       time.Duration
	MaxAudit    int64
}

// Ticket lets a browser make one request without a key. Only its SHA-256 is kept.
type Ticket struct {
	Hash      [32]byte
	KeyID     ID
	Method    string
	URL       string
	ExpiresAt time.Time
}
