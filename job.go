package cay

import (
	"slices"
	"time"
)

// JobStatus is where a job is in its life. See the diagram in ARCHITECTURE.md, which a test compares with [JobStatus.CanBecome].
type JobStatus string

const (
	JobQueued   JobStatus = "queued"
	JobRunning  JobStatus = "running"
	JobSuccess  JobStatus = "success"
	JobFailed   JobStatus = "failed"  // the program ended with another code than 0, by a signal, or for lack of memory
	JobTimeout  JobStatus = "timeout" // the program ran longer than it may
	JobCanceled JobStatus = "canceled"
	JobError    JobStatus = "error" // the platform could not run it to its end; the job's error says why
)

// JobStatuses lists every status of a job, in the order of a life.
var JobStatuses = []JobStatus{JobQueued, JobRunning, JobSuccess, JobFailed, JobTimeout, JobCanceled, JobError}

// jobTransitions is the whole of what may follow what. A running job goes back to queued when the platform failed and it is tried again.
var jobTransitions = map[JobStatus][]JobStatus{
	JobQueued:  {JobRunning, JobCanceled, JobError},
	JobRunning: {JobQueued, JobSuccess, JobFailed, JobTimeout, JobCanceled, JobError},
}

// CanBecome reports whether a job in status s may go to status to.
func (s JobStatus) CanBecome(to JobStatus) bool { return slices.Contains(jobTransitions[s], to) }

// Finished reports whether nothing can follow s.
func (s JobStatus) Finished() bool { return len(jobTransitions[s]) == 0 }

// Priorities of jobs: of one project's queued jobs those with a higher one are taken first.
const (
	MinPriority     = 0
	DefaultPriority = 5
	MaxPriority     = 9
)

// SubmitJob is what a client asks for. A nil pointer or a zero value is the default.
type SubmitJob struct {
	ID            ID     // chosen beforehand: a repeated submission finds the first; "": a new one
	Language      string // "": python
	Code          []byte
	Stdin         []byte
	Env           map[string]string
	Metadata      map[string]string
	Packages      []string
	Network       []string
	SessionID     ID
	SessionShared bool
	Timeout       *time.Duration // of the program
	QueueTimeout  *time.Duration // until it has to run
	Priority      *int
	CPU           *float64
	MemoryMB      *int64
	DiskGB        *float64
	Pids          *int64
}

// JobSpec is what was asked for, with every default filled in. It does not change. The code and stdin are the job's input and kept apart.
type JobSpec struct {
	Language      string            `json:"language"`
	Env           map[string]string `json:"env"`
	Timeout       time.Duration     `json:"timeout_ns"`
	QueueTimeout  time.Duration     `json:"queue_timeout_ns"` // until it has to run, of each attempt
	SessionShared bool              `json:"session_shared"`

	// What its sandbox is asked for; nil: the default.
	CPU      *float64 `json:"cpu,omitempty"`
	MemoryMB *int64   `json:"memory_mb,omitempty"`
	DiskGB   *float64 `json:"disk_gb,omitempty"`
	Pids     *int64   `json:"pids,omitempty"`
}

// JobFault says why the platform, or a bound of the sandbox, ended a job.
type JobFault struct {
	Reason string `json:"reason"` // stable: oom, disk_full, no_capacity, worker_lost, boot_failed, sandbox_ended, unprocessable, …
	Detail string `json:"detail"`
}

// Job is one row: a program to be run once, and while it has not finished an item of the queue.
type Job struct {
	ID        ID
	ProjectID ID
	Spec      JobSpec
	Metadata  map[string]string
	SessionID ID // "": none
	Priority  int
	Status    JobStatus

	CreatedBy   ID     // the key
	Traceparent string // W3C Trace Context of the request that submitted it; "": not traced

	// Input and Result are encoded by package jobs. What is too long for a row is a blob, which the key names.
	Input     []byte
	InputKey  string
	Result    []byte // nil until it has finished
	ResultKey string

	// Attempt counts the sandboxes that it was given, from 1; 0: none yet. SandboxID and ProcessID are of this attempt, chosen and
	// written before anything is started, so that whoever takes over finds what there is.
	Attempt   int64
	SandboxID ID
	ProcessID ID

	QueuedAt      time.Time
	StartedAt     time.Time // of the program, this attempt; zero until then
	FinishedAt    time.Time
	QueueDeadline time.Time // queued beyond it: error no_capacity
	CancelAsked   bool

	ExitCode *int // nil unless the program came to an end
	Signal   string
	Duration time.Duration // of the program
	Usage    Usage

	StdoutBytes, StderrBytes int64 // what the program wrote

	Fault *JobFault

	Fence      int64 // grows with each lease; what an older holder writes is refused
	LeaseOwner string
	LeaseUntil time.Time
	NotBefore  time.Time
	Version    int64
}

// Transition brings the job to status to, or answers a conflict that names the state found. It is the only way a status changes.
func (j *Job) Transition(to JobStatus, at time.Time) error {
	if !j.Status.CanBecome(to) {
		return Errorf(Conflict, "job %s is %s and cannot become %s", j.ID, j.Status, to).With("status", string(j.Status))
	}
	j.Status = to
	switch {
	case to == JobRunning:
		j.StartedAt = at
	case to == JobQueued:
		j.StartedAt = time.Time{}
	case to.Finished():
		j.FinishedAt = at
		j.LeaseOwner, j.LeaseUntil = "", time.Time{}
	}
	return nil
}

// JobQuery selects a page of jobs.
type JobQuery struct {
	Statuses     []JobStatus // empty: all
	Metadata     map[string]string
	SessionID    ID
	CreatedAfter time.Time
	Ascending    bool
	Limit        int
	Cursor       string
}

// JobResult is what a program left behind. While it runs, what there is so far.
type JobResult struct {
	Stdout, Stderr         []byte // head and tail where it was too long for an answer
	StdoutSize, StderrSize int64  // bytes written
	StdoutGap, StderrGap   *Gap   // what is left out of Stdout and Stderr
	FilesChanged           []FileChange
	FilesTruncated         bool
	Outputs                []JobOutput
	OutputsTruncated       bool // some could not be kept
}

// FileChange is a file that a program changed.
type FileChange struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	Op   string `json:"op"` // create, write, remove
}

// JobOutput is a file that a job left in /output. It is kept as long as the job.
type JobOutput struct {
	Path string `json:"path"` // absolute, as inside
	MIME string `json:"mime"`
	Size int64  `json:"size"`
	Key  string `json:"key"` // of its blob
}

// JobFrame is one piece of a job's stream. Its Seq is a position: whoever has seen everything up to it goes on after it and gets exactly
// what follows, however the bytes were cut into frames. Within an attempt it grows by one with each status and the exit, and by a byte
// with each byte of output; each attempt after the first begins at a multiple of [JobAttemptSpan].
type JobFrame struct {
	Type    string // status, stdout, stderr, gap, exit, error
	Seq     int64
	At      time.Time
	Data    []byte // of stdout and stderr
	Status  JobStatus
	Attempt int64
	Stream  string // of a gap: stdout or stderr
	Bytes   int64  // of a gap
	Job     *Job   // of exit and error, which is the last frame: the job as it finished
}

// JobAttemptSpan is how far apart the positions of two attempts are.
const JobAttemptSpan = 1 << 40
