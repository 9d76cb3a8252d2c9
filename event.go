package cay

import "time"

// Event is something that happened to a sandbox and that outlives it: a change of status, a process killed for memory.
type Event struct {
	Seq       int64 // ordered, durable
	SandboxID ID
	ProjectID ID
	Type      string // "status", "oom", "disk_full", "adopted"
	At        time.Time
	Data      map[string]any
}
