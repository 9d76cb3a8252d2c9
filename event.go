package cay

import "time"

// EventType names a kind of event.
type EventType string

const (
	EventStatus   EventType = "status"    // data: from, to, and reason once there is one
	EventOOM      EventType = "oom"       // a process was killed for memory; data: process_id, pid, rss_mb
	EventDiskFull EventType = "disk_full" // the sandbox's disk has no room left; data: disk_mb, limit_mb

	EventJobStatus     EventType = "job_status"     // data: from, to, attempt
	EventSessionStatus EventType = "session_status" // data: from, to, and reason once there is one
)

// EventTypes lists every type.
var EventTypes = []EventType{EventStatus, EventOOM, EventDiskFull, EventJobStatus, EventSessionStatus}

// Event is something that happened to a sandbox, a job or a session and that outlives it: a change of status, a process killed for memory.
type Event struct {
	Seq       int64 // ordered, durable
	SandboxID ID    // of a job the one that it runs in, "" for none
	JobID     ID    // of a job's
	SessionID ID    // of a session's
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

// JobEvent is the event of a job that was in status from until now; from is "" for a new one.
func JobEvent(j *Job, from JobStatus, at time.Time) Event {
	return Event{JobID: j.ID, SandboxID: j.SandboxID, ProjectID: j.ProjectID, Type: EventJobStatus, At: at,
		Data: map[string]any{"from": string(from), "to": string(j.Status), "attempt": j.Attempt}}
}

// SessionEvent is the event of a session that was in status from until now; from is "" for a new one.
func SessionEvent(s *Session, from SessionStatus, at time.Time) Event {
	data := map[string]any{"from": string(from), "to": string(s.Status)}
	if s.StatusReason != "" {
		data["reason"] = string(s.StatusReason)
	}
	return Event{SessionID: s.ID, ProjectID: s.ProjectID, Type: EventSessionStatus, At: at, Data: data}
}

// Last reports whether no status can follow the one that e tells of.
func (e Event) Last() bool {
	to, _ := e.Data["to"].(string)
	return e.Type == EventStatus && Status(to).Ended()
}

// EventQuery selects a page of events in the order of their sequence.
type EventQuery struct {
	SandboxID ID          // "": the whole project, jobs and sessions included
	Types     []EventType // of the whole project; empty: all
	After     int64       // the sequence number to go on from
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
	Reset  bool  // something may be missing before Events, which begin with the oldest that is kept
	Ended  bool  // the sandbox has ended, and nothing follows Events
	Next   int64 // of a whole project: nothing up to here remains to be told, also where that is beyond the last of Events
}
