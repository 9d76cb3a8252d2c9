package api

import (
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
)

// jobRequest is the body of a submission. What is absent gets a default.
type jobRequest struct {
	Language       string            `json:"language,omitzero" doc:"Default python; see POST /v1/sandboxes/{id}/code" example:"python"`
	Code           *string           `json:"code" doc:"The program"`
	Stdin          *string           `json:"stdin,omitzero" doc:"All of the input; absent: end of file at once"`
	StdinBase64    []byte            `json:"stdin_base64,omitzero" doc:"The same for input that is no text; at most one of both"`
	Env            map[string]string `json:"env,omitzero" doc:"At most 1 MiB"`
	Metadata       map[string]string `json:"metadata,omitzero" doc:"At most 64 keys of 1 KiB with their value"`
	Packages       []string          `json:"packages,omitzero" doc:"Not implemented yet: leave it out, or empty"`
	Network        networkRules      `json:"network,omitzero"`
	SessionID      *string           `json:"session_id,omitzero" doc:"The program finds the session's files at /session, and runs there"`
	SessionShared  bool              `json:"session_shared,omitzero" doc:"Others who say the same may use the session meanwhile; otherwise its jobs run one at a time"`
	TimeoutSeconds optional[float64] `json:"timeout_seconds,omitzero" doc:"Of the program; default 60, at most 86400; not null"`
	QueueTimeout   *float64          `json:"queue_timeout_seconds,omitzero" doc:"How long it may wait to run; default 3600"`
	Priority       *int64            `json:"priority,omitzero" minimum:"0" maximum:"9" doc:"Of the project's queued jobs those with a higher one are taken first; default 5"`
	CPU            *float64          `json:"cpu,omitzero" doc:"Of its sandbox, as the following ones"`
	MemoryMB       *int64            `json:"memory_mb,omitzero"`
	DiskGB         *float64          `json:"disk_gb,omitzero"`
	Pids           *int64            `json:"pids,omitzero"`
}

// maxJobTimeout bounds a job's program.
const maxJobTimeout = 24 * time.Hour

func (b *jobRequest) validate() error {
	if b.Code == nil {
		return cay.Errorf(cay.InvalidRequest, "`code` is needed").On("code")
	}
	if b.Stdin != nil && b.StdinBase64 != nil {
		return cay.Errorf(cay.InvalidRequest, "give at most one of `stdin` and `stdin_base64`").On("stdin_base64")
	}
	if t := b.TimeoutSeconds; t.null || t.set && !(t.v > 0 && t.v <= maxJobTimeout.Seconds()) {
		return cay.Errorf(cay.InvalidRequest, "`timeout_seconds` must be above 0 and at most %.0f", maxJobTimeout.Seconds()).On("timeout_seconds")
	}
	if p := b.Priority; p != nil && (*p < cay.MinPriority || *p > cay.MaxPriority) {
		return cay.Errorf(cay.InvalidRequest, "`priority` must be from %d to %d", cay.MinPriority, cay.MaxPriority).On("priority")
	}
	if len(b.Packages) > 0 {
		return cay.Errorf(cay.NotImplemented, "`packages` is not implemented yet; leave it out").On("packages")
	}
	for _, err := range []error{
		checkLanguage(b.Language), checkEnv(b.Env), checkMetadata(b.Metadata), checkSessionID(b.SessionID),
		within("cpu", b.CPU), within("memory_mb", b.MemoryMB), within("disk_gb", b.DiskGB), within("pids", b.Pids),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// domain is the request as the queue takes it.
func (b *jobRequest) domain() (cay.SubmitJob, error) {
	req := cay.SubmitJob{
		Language: b.Language, Code: []byte(*b.Code), Stdin: b.StdinBase64, Env: b.Env, Metadata: b.Metadata, SessionID: cay.ID(deref(b.SessionID)),
		SessionShared: b.SessionShared, CPU: b.CPU, MemoryMB: b.MemoryMB, DiskGB: b.DiskGB, Pids: b.Pids,
	}
	if b.Stdin != nil {
		req.Stdin = []byte(*b.Stdin)
	}
	var err error
	if b.TimeoutSeconds.set {
		if req.Timeout, err = asPointer(seconds("timeout_seconds", b.TimeoutSeconds.v)); err != nil {
			return req, err
		}
	}
	if b.QueueTimeout != nil {
		if req.QueueTimeout, err = asPointer(seconds("queue_timeout_seconds", *b.QueueTimeout)); err != nil {
			return req, err
		}
	}
	if b.Priority != nil {
		priority := int(*b.Priority)
		req.Priority = &priority
	}
	return req, nil
}

// checkSessionID refuses what is no session's ID. Absent, null and "" are none.
func checkSessionID(s *string) error {
	if deref(s) == "" {
		return nil
	}
	if _, ok := cay.ParseID(cay.PrefixSession, *s); !ok {
		return cay.Errorf(cay.Unprocessable, "`session_id`: there is no session %q", clip(*s, 100)).On("session_id")
	}
	return nil
}

// JobSummary is a job as lists have it: all but what its program left behind. It is exported since huma looks into embedded types only then.
type JobSummary struct {
	ID            cay.ID            `json:"id" camel:"jobId"`
	Status        cay.JobStatus     `json:"status" enum:"queued,running,success,failed,timeout,canceled,error" doc:"Further ones may come"`
	Language      string            `json:"language"`
	ExitCode      *int              `json:"exit_code" doc:"null unless the program came to an end; as of an exec"`
	Signal        *string           `json:"signal" doc:"Without SIG; null when it exited by itself"`
	TimedOut      bool              `json:"timed_out"`
	DurationMS    *int64            `json:"duration_ms" doc:"Of the program; null until it has run"`
	QueuedAt      moment            `json:"queued_at"`
	StartedAt     moment            `json:"started_at" doc:"null until the program runs"`
	FinishedAt    moment            `json:"finished_at" doc:"null until then"`
	InstallLog    *string           `json:"install_log" doc:"null: nothing was installed"`
	Metrics       jobMetrics        `json:"metrics"`
	Error         orJobFault        `json:"error"`
	SessionID     *string           `json:"session_id" doc:"null: none"`
	SessionShared bool              `json:"session_shared"`
	SandboxID     *string           `json:"sandbox_id" doc:"Of this attempt; null until it has one"`
	Attempt       int64             `json:"attempt" doc:"How many sandboxes it was given"`
	Priority      int               `json:"priority"`
	Timeout       float64           `json:"timeout_seconds"`
	Metadata      map[string]string `json:"metadata"`
}

// job is a job with what its program left behind, or so far.
type job struct {
	JobSummary
	Stdout           string            `json:"stdout" doc:"Head and tail when it is longer than 1 MiB; bytes that are no UTF-8 become U+FFFD"`
	Stderr           string            `json:"stderr" doc:"As stdout"`
	StdoutSize       int64             `json:"stdout_size" doc:"Bytes that were written"`
	StderrSize       int64             `json:"stderr_size" doc:"Bytes that were written"`
	StdoutGap        *cay.Gap          `json:"stdout_gap,omitzero" doc:"What is missing in stdout"`
	StderrGap        *cay.Gap          `json:"stderr_gap,omitzero" doc:"What is missing in stderr"`
	Lossy            streams.PerStream `json:"lossy" doc:"Bytes that are no UTF-8 became U+FFFD; the stream has them"`
	Truncated        streams.PerStream `json:"truncated" doc:"Some is missing here"`
	FilesChanged     []programFile     `json:"files_changed" doc:"Below /session or /workspace, /output and the user's home; at most 1000"`
	FilesTruncated   bool              `json:"files_truncated" doc:"More changed than is told"`
	Outputs          []jobOutput       `json:"outputs" doc:"The files that the program left below /output; kept as long as the job"`
	OutputsTruncated bool              `json:"outputs_truncated" doc:"Some could not be kept"`
}

type jobMetrics struct {
	CPUMS        *int64 `json:"cpu_ms" doc:"null until known, as the others"`
	PeakMemoryMB *int64 `json:"peak_memory_mb"`
	QueueMS      *int64 `json:"queue_ms" doc:"From the submission to the program's start, that of its sandbox included"`
	BootMS       *int64 `json:"boot_ms" doc:"Of its sandbox; null in lists"`
}

// jobOutput is a file that a job left behind.
type jobOutput struct {
	Path        string  `json:"path"`
	PathPercent string  `json:"path_percent,omitzero" doc:"The path percent-encoded, when it is no UTF-8"`
	MIME        string  `json:"mime"`
	Size        int64   `json:"size"`
	DataBase64  *[]byte `json:"data_base64,omitzero" camel:"data_base64" doc:"The file, until 1 MiB has been answered in all"`
	URL         *string `json:"url,omitzero" doc:"Where to download it, for an hour, without a key, when it is not here"`
}

// jobFault says why the platform, or a bound of the sandbox, ended a job.
type jobFault struct {
	Reason string `json:"reason" doc:"Stable: oom, disk_full, no_capacity, worker_lost, boot_failed, sandbox_ended, unprocessable; further ones may come"`
	Detail string `json:"detail"`
}

// orJobFault is a jobFault or null.
type orJobFault struct{ fault *jobFault }

// Schema implements huma.SchemaProvider.
func (orJobFault) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "Why the platform, or a bound of the sandbox, ended it; else null",
		OneOf:       []*huma.Schema{r.Schema(reflect.TypeFor[jobFault](), true, "JobFault"), {Type: "null"}},
	}
}

func summaryOf(j *cay.Job) JobSummary {
	out := JobSummary{
		ID: j.ID, Status: j.Status, Language: j.Spec.Language, ExitCode: j.ExitCode, Signal: nullable(j.Signal), TimedOut: j.Status == cay.JobTimeout,
		QueuedAt: moment(j.QueuedAt), StartedAt: moment(j.StartedAt), FinishedAt: moment(j.FinishedAt),
		SessionID: nullable(string(j.SessionID)), SessionShared: j.Spec.SessionShared, SandboxID: nullable(string(j.SandboxID)),
		Attempt: j.Attempt, Priority: j.Priority, Timeout: inSeconds(j.Spec.Timeout), Metadata: j.Metadata,
	}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if j.Fault != nil {
		out.Error.fault = &jobFault{j.Fault.Reason, j.Fault.Detail}
	}
	if !j.StartedAt.IsZero() {
		queue := max(0, j.StartedAt.Sub(j.QueuedAt).Milliseconds())
		out.Metrics.QueueMS = &queue
	}
	if j.ExitCode != nil || j.Duration > 0 {
		duration := j.Duration.Milliseconds()
		out.DurationMS = &duration
		cpu, peak := int64(j.Usage.CPUSeconds*1000), j.Usage.PeakMemoryMB
		out.Metrics.CPUMS, out.Metrics.PeakMemoryMB = &cpu, &peak
	}
	return out
}
