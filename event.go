package cay

import "time"

// EventType names a kind of event.
type EventType string

const (
	EventStatus   EventType = "status"    // data: from, to, and reason once there is one
	EventOOM      EventType = "oom"       // a process was killed for memory; data: process_id, pid, rss_mb
	EventDiskFull EventType = "disk_full" // the sandbox's disk has no room left; data: disk_mb, limit_mb
)

// Event is something that happened to a sandbox and that outlives it: a change of status, a process killed for memory.
type Event struct {
	Seq       int64 // ordered, durable
	SandboxID ID
	ProjectID ID
	Type      EventType
	At        time.Time
	Data      map[string]any
}

// StatusEvent is the event of a sandbox that was in status from until now.
func StatusEvent(sb *Sandbox, from Status, at time.Time) Event {
	data := map[string]any{"from": string(from), "to": string(sb.Status)}
	if sb.StatusReason != "" {
		data["reason"] = string(sb.StatusReason)
	}
	return Event{SandboxID: sb.ID, ProjectID: sb.ProjectID, Type: EventStatus, At: at, Data: data}
}

// Last reports whether no status can follow the one that e tells of.
func (e Event) Last() bool {
	to, _ := e.Data["to"].(string)
	return e.Type == EventStatus && Status(to).Ended()
}

// EventQuery selects a page of events in the order of their sequence.
type EventQuery struct {
	SandboxID ID    // "": the whole project
	After     int64 // the sequence number to go on from
	Limit     int
}

// EventSpan is what is kept of all events: from the oldest sequence number to the newest, both zero when there is none.
type EventSpan struct{ Oldest, Newest int64 }

// Missed reports whether a reader who has seen everything up to after may have missed something: events that are no longer kept, or
// ones that were numbered anew.
func (s EventSpan) Missed(after int64) bool {
	return after > 0 && (after < s.Oldest-1 || after > s.Newest)
}

// EventPage is what a reader gets of a sandbox's events.
type EventPage struct {
	Events []Event
	Reset  bool // something may be missing before Events, which begin with the oldest that is kept
	Ended  bool // the sandbox has ended, and nothing follows Events
}
