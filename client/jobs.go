package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Jobs are programs that the server runs once, each in a sandbox of its own, whether or not anyone waits for them: they outlive
// connections, and restarts of the server.
type Jobs struct{ c *Client }

// Jobs are those of the key's project.
func (c *Client) Jobs() *Jobs { return &Jobs{c} }

// JobStatus is where a job is in its life: one of these, or one of a newer server.
type JobStatus string

const (
	JobQueued   JobStatus = "queued"
	JobRunning  JobStatus = "running"
	JobSuccess  JobStatus = "success"
	JobFailed   JobStatus = "failed"  // another exit code than 0, a signal, or no memory
	JobTimeout  JobStatus = "timeout" // it ran longer than it may
	JobCanceled JobStatus = "canceled"
	JobError    JobStatus = "error" // it could not be run to its end: see [Job.Fault]
)

// JobActive selects the jobs that have not finished; no job has it as its status.
const JobActive JobStatus = "active"

// Finished reports whether nothing can follow s.
func (s JobStatus) Finished() bool {
	switch s {
	case JobSuccess, JobFailed, JobTimeout, JobCanceled, JobError:
		return true
	}
	return false
}

// JobRequest is a program to run once. What is left zero is decided by the server.
type JobRequest struct {
	Language string            `json:"language,omitempty"` // "": python
	Code     string            `json:"code"`
	Stdin    []byte            `json:"-"` // all of the input; nil: none
	Env      map[string]string `json:"env,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Network  []string          `json:"network,omitempty"` // as in [CreateRequest]

	// SessionID names a session whose files are at /session, where the program then runs. Jobs of a session run one at a time
	// unless all of them, and sandboxes that use it, say SessionShared.
	SessionID     string `json:"session_id,omitempty"`
	SessionShared bool   `json:"session_shared,omitempty"`

	Timeout      time.Duration `json:"-"`                  // of the program; 0: the server's default of 60 s
	QueueTimeout time.Duration `json:"-"`                  // until it has to run
	Priority     *int          `json:"priority,omitempty"` // 0 to 9, of the project's own jobs; nil: 5

	CPU      float64 `json:"cpu,omitempty"` // cores
	MemoryMB int64   `json:"memory_mb,omitempty"`
	DiskGB   float64 `json:"disk_gb,omitempty"`
	Pids     int64   `json:"pids,omitempty"`

	// Wait bounds how long the call waits for the job's end (at most 300 s); 0: not at all. The answer's Status says what came of it.
	Wait time.Duration `json:"-"`

	// IdempotencyKey makes a repeated submission find the first one's job; one is made where it is empty.
	IdempotencyKey string `json:"-"`
}

// MarshalJSON writes the request as the API wants it: times in seconds, input that is no UTF-8 in base64.
func (r JobRequest) MarshalJSON() ([]byte, error) {
	type plain JobRequest
	doc := struct {
		plain
		Stdin        string  `json:"stdin,omitempty"`
		StdinBase64  string  `json:"stdin_base64,omitempty"`
		Timeout      seconds `json:"timeout_seconds,omitempty"`
		QueueTimeout seconds `json:"queue_timeout_seconds,omitempty"`
	}{plain: plain(r), Timeout: inSeconds(r.Timeout), QueueTimeout: inSeconds(r.QueueTimeout)}
	if utf8.Valid(r.Stdin) {
		doc.Stdin = string(r.Stdin)
	} else {
		doc.StdinBase64 = base64.StdEncoding.EncodeToString(r.Stdin)
	}
	return json.Marshal(doc)
}

// Job is a job as the server described it. What a program left behind is there once it has run, and so far while it runs; a list
// leaves out output, changed files and outputs.
type Job struct {
	ID       string    `json:"id"`
	Status   JobStatus `json:"status"`
	Language string    `json:"language"`

	// Stdout and Stderr are at most 1 MiB each: head and tail, and the gap says what is missing between. [Jobs.Stream] has all
	// that is kept. Bytes that are no UTF-8 became U+FFFD, which Lossy says.
	Stdout     string   `json:"stdout"`
	Stderr     string   `json:"stderr"`
	StdoutSize int64    `json:"stdout_size"` // true sizes in bytes
	StderrSize int64    `json:"stderr_size"`
	StdoutGap  *Gap     `json:"stdout_gap"`
	StderrGap  *Gap     `json:"stderr_gap"`
	Lossy      EachPipe `json:"lossy"`
	Truncated  EachPipe `json:"truncated"`

	ExitCode *int          `json:"exit_code"` // nil unless the program came to an end
	Signal   string        `json:"signal"`    // without SIG; "" when it exited by itself
	TimedOut bool          `json:"timed_out"`
	Duration time.Duration `json:"-"` // of the program

	QueuedAt   time.Time `json:"queued_at"`
	StartedAt  time.Time `json:"started_at"` // zero until then, and so is FinishedAt
	FinishedAt time.Time `json:"finished_at"`

	FilesChanged     []FileChange `json:"files_changed"`
	FilesTruncated   bool         `json:"files_truncated"`
	Outputs          []OutputFile `json:"outputs"` // files written below /output; [Jobs.OpenOutput] reads them all
	OutputsTruncated bool         `json:"outputs_truncated"`
	InstallLog       string       `json:"install_log"`

	Metrics JobMetrics `json:"metrics"`
	Fault   *JobFault  `json:"error"` // why the platform, or a bound of the sandbox, ended it; nil: neither did

	SessionID     string            `json:"session_id"`
	SessionShared bool              `json:"session_shared"`
	SandboxID     string            `json:"sandbox_id"`
	Attempt       int64             `json:"attempt"` // how many sandboxes it was given
	Priority      int               `json:"priority"`
	Timeout       time.Duration     `json:"-"`
	Metadata      map[string]string `json:"metadata"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// EachPipe says something of each stream of output.
type EachPipe struct {
	Stdout bool `json:"stdout"`
	Stderr bool `json:"stderr"`
}

// JobMetrics are what a job took; zero where it is not known yet.
type JobMetrics struct {
	CPUMS        float64 `json:"cpu_ms"`
	PeakMemoryMB float64 `json:"peak_memory_mb"`
	QueueMS      float64 `json:"queue_ms"`
	BootMS       float64 `json:"boot_ms"`
}

// JobFault is why a job ended otherwise than by its program.
type JobFault struct {
	Reason string `json:"reason"` // stable: oom, no_capacity, worker_lost, …
	Detail string `json:"detail"`
}

func (e *JobFault) Error() string { return e.Detail + " (" + e.Reason + ")" }

// UnmarshalJSON keeps the object as it came in Raw.
func (j *Job) UnmarshalJSON(data []byte) error {
	type plain Job
	doc := struct {
		*plain
		DurationMS float64 `json:"duration_ms"`
		Timeout    seconds `json:"timeout_seconds"`
	}{plain: (*plain)(j)}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	j.Duration, j.Timeout = milliseconds(doc.DurationMS), doc.Timeout.duration()
	j.Raw = append(j.Raw[:0:0], data...)
	return nil
}

// MarshalJSON writes the object as it came.
func (j Job) MarshalJSON() ([]byte, error) {
	type plain Job
	return orRaw(j.Raw, plain(j))
}

func milliseconds(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// Submit hands a program over and answers its job, queued or further. A broken connection is mended: the repeated request finds the
// same job.
func (j *Jobs) Submit(ctx context.Context, r JobRequest) (*Job, error) {
	switch {
	case r.Code == "":
		return nil, errors.New("submit a job: there is no code to run")
	case !utf8.ValidString(r.Code):
		return nil, errors.New("submit a job: the code is not UTF-8")
	}
	call, err := keyedPost(jobPath(), r, r.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	if r.Wait > 0 {
		call.query = waiting(r.Wait)
	}
	return j.one(ctx, call, "submit a job")
}

// Get answers a job.
func (j *Jobs) Get(ctx context.Context, id string) (*Job, error) {
	return j.one(ctx, &call{method: http.MethodGet, path: jobPath(id)}, "get job "+id)
}

// Wait returns the job once it has finished, however it ended, or an error once ctx has. Connections that break meanwhile are made
// again, as long as [Options.ReconnectFor] says.
func (j *Jobs) Wait(ctx context.Context, id string) (*Job, error) {
	attempted := "wait for job " + id
	var broken outage
	reached := false
	for attempt := 0; ; attempt++ {
		asked := time.Now()
		job, err := j.one(ctx, &call{method: http.MethodGet, path: jobPath(id), query: waiting(time.Minute)}, attempted)
		switch {
		case err == nil && job.Status.Finished():
			return job, nil
		case err == nil:
			reached, broken = true, outage{}
			if time.Since(asked) >= time.Second {
				attempt = 0
				continue
			}
			err = sleep(ctx, backoff(attempt)) // the server did not wait for us
		case reached && ctx.Err() == nil && broken.mayPass(err, j.c.reconnectFor):
			err = broken.rest(ctx, err)
		}
		if err != nil {
			return nil, err
		}
	}
}

// Cancel ends a job and answers it: one that is queued does not run, of one that runs the program is killed and its output so far
// kept, one that has finished stays as it is. It is answered as it is while it is still ending after the server's 30 s.
func (j *Jobs) Cancel(ctx context.Context, id string) (*Job, error) {
	return j.one(ctx, &call{method: http.MethodDelete, path: jobPath(id)}, "cancel job "+id)
}

// OpenOutput opens a file that a job left below /output, whatever its size. The caller closes the reader.
func (j *Jobs) OpenOutput(ctx context.Context, id, path string) (*FileReader, error) {
	res, err := j.c.do(ctx, &call{method: http.MethodGet, path: jobPath(id, "outputs"), query: url.Values{"path": {path}}})
	if err != nil {
		return nil, fmt.Errorf("read output %s of job %s: %w", path, id, err)
	}
	return &FileReader{ReadCloser: res.Body, Size: res.ContentLength, ETag: res.Header.Get("ETag")}, nil
}

// JobListOptions selects jobs; zero is all, newest first.
type JobListOptions struct {
	Statuses     []JobStatus // [JobActive] stands for those that have not finished
	SessionID    string
	Metadata     map[string]string
	CreatedAfter time.Time
	Ascending    bool
	PageSize     int // of one request, at most 200
}

// List answers the jobs page by page as they are asked for. It ends after the first error.
func (j *Jobs) List(ctx context.Context, o JobListOptions) iter.Seq2[*Job, error] {
	query := listQuery(o.Statuses, o.Metadata, o.CreatedAfter, o.Ascending, o.PageSize)
	if o.SessionID != "" {
		query.Set("session_id", o.SessionID)
	}
	return pages[*Job](ctx, j.c, jobPath(), query, "list jobs")
}

func (j *Jobs) one(ctx context.Context, r *call, attempted string) (*Job, error) {
	out := new(Job)
	if _, err := j.c.json(ctx, r, out); err != nil {
		return nil, fmt.Errorf("%s: %w", attempted, err)
	}
	return out, nil
}

func jobPath(more ...string) []string { return append([]string{"v1", "jobs"}, more...) }

func waiting(limit time.Duration) url.Values {
	return url.Values{"wait_seconds": {formatSeconds(min(limit, maxServerWait))}}
}

// listQuery is what every list takes.
func listQuery[S ~string](statuses []S, metadata map[string]string, after time.Time, ascending bool, pageSize int) url.Values {
	query := url.Values{}
	if len(statuses) > 0 {
		names := make([]string, len(statuses))
		for i, s := range statuses {
			names[i] = string(s)
		}
		query.Set("status", strings.Join(names, ","))
	}
	for k, v := range metadata {
		query.Set("metadata."+k, v)
	}
	if !after.IsZero() {
		query.Set("created_after", formatTime(after))
	}
	if ascending {
		query.Set("order", "asc")
	}
	if pageSize > 0 {
		query.Set("limit", strconv.Itoa(pageSize))
	}
	return query
}
