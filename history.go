package cay

import (
	"strings"
	"time"
)

// RecordKind says what a record of the history tells of.
type RecordKind string

const (
	RecordSandbox  RecordKind = "sandbox"
	RecordJob      RecordKind = "job"
	RecordSession  RecordKind = "session"
	RecordExec     RecordKind = "exec"     // a command in the foreground
	RecordCode     RecordKind = "code"     // a program
	RecordProcess  RecordKind = "process"  // a command in the background
	RecordTerminal RecordKind = "terminal" // a shell on a TTY
)

// RecordKinds lists every kind.
var RecordKinds = []RecordKind{RecordSandbox, RecordJob, RecordSession, RecordExec, RecordCode, RecordProcess, RecordTerminal}

// OfProcess reports whether records of the kind tell of a process that ended. They are written behind, in batches; the others are
// written with the end that they tell of.
func (k RecordKind) OfProcess() bool {
	return k == RecordExec || k == RecordCode || k == RecordProcess || k == RecordTerminal
}

// MaxRecordCommand bounds Record.Command, in bytes.
const MaxRecordCommand = 4096

// Record is one line of the history: what ran, or was there, and how it ended. Environment, stdin and output are never in it.
type Record struct {
	ID        ID // of what it tells: prc_, job_, ses_ or sbx_
	Kind      RecordKind
	ProjectID ID
	KeyID     ID // who asked for it; "": the platform itself, or not known
	SandboxID ID // where it ran; of a job the one of its last attempt; "": none
	SessionID ID // whose files it could reach; "": none
	Name      string
	Command   string // of a process, as it was given, of a program its beginning; clipped, or "" where commands are not recorded
	Language  string // of code and jobs
	Outcome   string // an ExitReason, a JobStatus or a StatusReason
	OK        bool   // it ended as one would wish: exit code 0, success; a sandbox or session that was deleted or ran out its time
	ExitCode  *int   // nil without a program's end
	Signal    string // without SIG

	StartedAt time.Time // of a job its program's start; of one that never started its queuing
	EndedAt   time.Time
	Duration  time.Duration

	StdoutBytes, StderrBytes int64
	CPUSeconds               float64 // of a process as its agent says, of a sandbox as the node measured
	PeakMemoryMB             int64

	TraceID string // 32 hex digits, where the request was traced
}

// SandboxRecord is the record of a sandbox that has ended. Its own id is also its SandboxID, so that the history of a sandbox has it.
func SandboxRecord(sb *Sandbox) Record {
	return Record{
		ID: sb.ID, Kind: RecordSandbox, ProjectID: sb.ProjectID, KeyID: sb.CreatedBy, SandboxID: sb.ID, SessionID: sb.Spec.SessionID,
		Outcome: string(sb.StatusReason), OK: sb.StatusReason.Orderly(),
		StartedAt: sb.CreatedAt, EndedAt: sb.EndedAt, Duration: sb.EndedAt.Sub(sb.CreatedAt),
		CPUSeconds: sb.Usage.CPUSeconds, PeakMemoryMB: sb.Usage.PeakMemoryMB, TraceID: traceID(sb.Traceparent),
	}
}

// JobRecord is the record of a job that has finished.
func JobRecord(j *Job) Record {
	r := Record{
		ID: j.ID, Kind: RecordJob, ProjectID: j.ProjectID, KeyID: j.CreatedBy, SandboxID: j.SandboxID, SessionID: j.SessionID,
		Language: j.Spec.Language, Outcome: string(j.Status), OK: j.Status == JobSuccess, ExitCode: j.ExitCode, Signal: j.Signal,
		StartedAt: j.StartedAt, EndedAt: j.FinishedAt, Duration: j.Duration, StdoutBytes: j.StdoutBytes, StderrBytes: j.StderrBytes,
		CPUSeconds: j.Usage.CPUSeconds, PeakMemoryMB: j.Usage.PeakMemoryMB, TraceID: traceID(j.Traceparent),
	}
	if r.StartedAt.IsZero() {
		r.StartedAt = j.QueuedAt
	}
	return r
}

// SessionRecord is the record of a session that is deleted. Its own id is also its SessionID.
func SessionRecord(s *Session) Record {
	return Record{
		ID: s.ID, Kind: RecordSession, ProjectID: s.ProjectID, KeyID: s.CreatedBy, SessionID: s.ID, Name: s.Name,
		Outcome: string(s.StatusReason), OK: s.StatusReason.Orderly(),
		StartedAt: s.CreatedAt, EndedAt: s.EndedAt, Duration: s.EndedAt.Sub(s.CreatedAt),
	}
}

// traceID is the id within a traceparent of W3C Trace Context; "" where there is none.
func traceID(parent string) string {
	parts := strings.Split(parent, "-")
	if len(parts) < 4 || len(parts[1]) != 32 {
		return ""
	}
	return parts[1]
}

// RecordQuery selects a page of the history, newest end first unless Ascending.
type RecordQuery struct {
	AllProjects bool
	Kinds       []RecordKind // empty: all
	ID          ID
	SandboxID   ID
	SessionID   ID
	KeyID       ID
	Outcomes    []string
	OK          *bool
	Text        string    // in Command or Name, without regard to ASCII case
	From, To    time.Time // of EndedAt: at or after, before; zero: no bound
	Ascending   bool
	Limit       int
	Cursor      string
}

// Clip shortens s to at most n bytes without splitting a character.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}
