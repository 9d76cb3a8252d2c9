package api

import (
	"context"
	"io"
	"math"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
)

const (
	cancelWait     = 30 * time.Second // after which a cancel answers 202
	maxJobText     = 1 << 20          // of each stream in one answer, in bytes
	maxJobInline   = 1 << 20          // of outputs in one answer, in bytes before base64
	jobsCollection = "/v1/jobs"
)

// has answers why an operation that needs a part of the server cannot be had, or nil.
func (a *API) has(part string) error {
	if part == needsJobs && a.Jobs == nil || part == needsSessions && a.Sessions == nil || part == needsHistory && a.History == nil {
		return cay.Errorf(cay.NotImplemented, "this server has no %s", part)
	}
	return nil
}

// JobPath is the {id} of a job's routes.
type JobPath struct {
	ID string `path:"id" doc:"The job, job_…"`
}

func (p JobPath) id() (cay.ID, error) {
	id, ok := cay.ParseID(cay.PrefixJob, p.ID)
	if !ok {
		return "", cay.Errorf(cay.NotFound, "there is no job %q", clip(p.ID, 100))
	}
	return id, nil
}

type submitJobInput struct {
	Idempotent
	WaitSeconds float64 `query:"wait_seconds" default:"0" doc:"How long to wait for its end, 0 to 300"`
	Payload     payload[jobRequest]
}

type jobAnswer struct {
	Status   int
	Location string `header:"Location"`
	Body     job
}

func (a *API) submitJob(ctx context.Context, in *submitJobInput) (*jobAnswer, error) {
	return a.submit(ctx, jobsCollection, in)
}

// submit writes a job, once for each idempotency key of the route, and waits as long as it is asked to.
func (a *API) submit(ctx context.Context, route string, in *submitJobInput) (*jobAnswer, error) {
	wait, err := waitFor(in.WaitSeconds)
	if err != nil {
		return nil, err
	}
	req, err := in.Payload.value.domain()
	if err != nil {
		return nil, err
	}
	if req.SessionID != "" {
		if err := a.sessionsThere(); err != nil {
			return nil, err
		}
	}
	who := exchangeOf(ctx).identity
	once := a.once(who.ProjectID, "POST "+route, in.IdempotencyKey, in.Payload.sum).making(cay.PrefixJob)
	rec, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	id := cay.ID(rec.ObjectID)
	var j *cay.Job
	if fresh {
		req.ID = id
		if j, err = a.Jobs.Submit(ctx, who.ProjectID, who.KeyID, req); err != nil {
			once.failed(ctx, err)
			return nil, err
		}
		id = j.ID
		if err := once.finish(ctx, http.StatusAccepted, string(id)); err != nil {
			return nil, err
		}
	}
	exchangeOf(ctx).object = id
	if j == nil || wait > 0 {
		if j, err = a.awaitJob(ctx, who.ProjectID, id, wait); err != nil {
			return nil, err
		}
	}
	out := &jobAnswer{Status: http.StatusAccepted, Location: jobsCollection + "/" + string(id)}
	if wait > 0 && j.Status.Finished() {
		out.Status = http.StatusOK
	}
	out.Body, err = a.jobOf(ctx, j)
	return out, err
}

// awaitJob is the job once it has finished, or as it is after wait.
func (a *API) awaitJob(ctx context.Context, project, id cay.ID, wait time.Duration) (*cay.Job, error) {
	if wait <= 0 {
		return a.Jobs.Get(ctx, project, id)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	stop := a.whenClosing(cancel)
	defer stop()
	return a.Jobs.Wait(waiting, project, id)
}

type getJobInput struct {
	JobPath
	WaitSeconds float64 `query:"wait_seconds" default:"0" doc:"How long to wait for its end, 0 to 300"`
}

func (a *API) getJob(ctx context.Context, in *getJobInput) (*jobAnswer, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	wait, err := waitFor(in.WaitSeconds)
	if err != nil {
		return nil, err
	}
	j, err := a.awaitJob(ctx, exchangeOf(ctx).identity.ProjectID, id, wait)
	if err != nil {
		return nil, err
	}
	out := &jobAnswer{Status: http.StatusOK}
	out.Body, err = a.jobOf(ctx, j)
	return out, err
}

// cancelJob answers when the job has ended, or that it has not yet.
func (a *API) cancelJob(ctx context.Context, in *JobPath) (*jobAnswer, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, cancelWait)
	defer cancel()
	stop := a.whenClosing(cancel)
	defer stop()
	j, err := a.Jobs.Cancel(waiting, exchangeOf(ctx).identity.ProjectID, id)
	if err != nil {
		return nil, err
	}
	out := &jobAnswer{Status: http.StatusOK}
	if !j.Status.Finished() {
		out.Status = http.StatusAccepted
	}
	out.Body, err = a.jobOf(ctx, j)
	return out, err
}

type listJobsInput struct {
	ListQuery
	Status    string `query:"status" doc:"Comma-joined; active stands for queued,running" example:"active"`
	SessionID string `query:"session_id" doc:"Only those of this session"`
}

type listJobsAnswer struct {
	Body page[JobSummary]
}

func (a *API) listJobs(ctx context.Context, in *listJobsInput) (*listJobsAnswer, error) {
	after, err := in.check()
	if err != nil {
		return nil, err
	}
	q := cay.JobQuery{Limit: in.Limit, Cursor: in.Cursor, Ascending: in.Order == "asc", Metadata: in.metadata, CreatedAfter: after, SessionID: cay.ID(in.SessionID)}
	if err := checkSessionQuery(in.SessionID); err != nil {
		return nil, err
	}
	if q.Statuses, err = listed("status", in.Status, cay.JobStatuses, func(s cay.JobStatus) bool { return !s.Finished() }); err != nil {
		return nil, err
	}
	found, next, err := a.Jobs.List(ctx, exchangeOf(ctx).identity.ProjectID, q)
	if err != nil {
		return nil, err
	}
	items := make([]JobSummary, len(found))
	for i, j := range found {
		items[i] = summaryOf(j)
	}
	return &listJobsAnswer{Body: pageOf(items, next)}, nil
}

// jobOf is a job with its output. That of a program that runs may be out of reach for a while; its status is answered all the same.
func (a *API) jobOf(ctx context.Context, j *cay.Job) (job, error) {
	out := job{JobSummary: summaryOf(j), FilesChanged: []programFile{}, Outputs: []jobOutput{}}
	if j.StartedAt.IsZero() && !j.Status.Finished() {
		return out, nil
	}
	result, err := a.Jobs.Result(ctx, j, maxJobText)
	if err != nil && !j.Status.Finished() && ctx.Err() == nil {
		again, getErr := a.Jobs.Get(ctx, j.ProjectID, j.ID)
		if getErr != nil || !again.Status.Finished() {
			return out, getErr
		}
		return a.jobOf(ctx, again) // it finished in between, and its sandbox is gone
	}
	if err != nil {
		return out, err
	}
	out.Stdout, out.Lossy.Stdout = outputText(result.Stdout, result.StdoutGap, j.Status.Finished())
	out.Stderr, out.Lossy.Stderr = outputText(result.Stderr, result.StderrGap, j.Status.Finished())
	out.StdoutSize, out.StderrSize, out.StdoutGap, out.StderrGap = result.StdoutSize, result.StderrSize, result.StdoutGap, result.StderrGap
	out.Truncated.Stdout, out.Truncated.Stderr = result.StdoutGap != nil, result.StderrGap != nil
	for _, f := range result.FilesChanged {
		c := programFile{Size: f.Size, Op: f.Op}
		c.Path, c.PathPercent = shown(f.Path)
		out.FilesChanged = append(out.FilesChanged, c)
	}
	out.FilesTruncated, out.OutputsTruncated = result.FilesTruncated, result.OutputsTruncated
	left := int64(maxJobInline)
	for _, f := range result.Outputs {
		o, err := a.jobOutputOf(ctx, j, f, &left)
		if err != nil {
			return out, err
		}
		out.Outputs = append(out.Outputs, o)
	}
	if j.SandboxID != "" {
		if sb, err := a.Sandboxes.Get(ctx, j.ProjectID, j.SandboxID); err == nil && !sb.ReadyAt.IsZero() { // else it is known no more
			out.Metrics.BootMS = &sb.CreateMS.Boot
		}
	}
	return out, nil
}

// outputText is output as text, head and tail each by itself. While more is to come, half a character at the end is left out.
func outputText(data []byte, gap *cay.Gap, whole bool) (text string, lossy bool) {
	var t streams.Text
	head := data
	if gap != nil {
		head = data[:min(gap.Offset, int64(len(data)))]
	}
	out := t.Append(make([]byte, 0, len(data)), head)
	if gap != nil {
		out = t.End(out)
		out = t.Append(out, data[len(head):])
	}
	if whole {
		out = t.End(out)
	}
	return string(out), t.Lossy
}

// jobOutputOf describes a file with its content while there is room left in the answer, else with its URL.
func (a *API) jobOutputOf(ctx context.Context, j *cay.Job, f cay.JobOutput, left *int64) (jobOutput, error) {
	out := jobOutput{MIME: f.MIME, Size: f.Size}
	out.Path, out.PathPercent = shown(f.Path)
	if f.Size <= *left {
		data, err := a.readOutput(ctx, j, f.Path, *left)
		if err != nil {
			return out, err
		}
		out.DataBase64 = &data
		*left -= int64(len(data))
		return out, nil
	}
	link, err := a.signURL(ctx, cay.SignedURL{Method: http.MethodGet, Of: j.ID, Path: f.Path, ExpiresAt: signedUntil(outputURLPeriod)})
	if err != nil {
		return out, err
	}
	out.URL = &link
	return out, nil
}

func (a *API) readOutput(ctx context.Context, j *cay.Job, name string, most int64) ([]byte, error) {
	_, content, err := a.Jobs.OpenOutput(ctx, j.ProjectID, j.ID, name)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	data, err := io.ReadAll(io.LimitReader(content, most+1))
	if err == nil && int64(len(data)) > most {
		err = cay.Errorf(cay.Internal, "an output of job %s is longer than was written down", j.ID)
	}
	return data, err
}

type readJobOutputInput struct {
	JobPath
	Path string `query:"path" required:"true" doc:"Of the file, as outputs has it"`
}

// readJobOutput downloads a file that a job left behind.
func (a *API) readJobOutput(w http.ResponseWriter, r *http.Request, in *readJobOutputInput) error {
	id, err := in.id()
	if err != nil {
		return err
	}
	if _, err := guestPath("path", in.Path); err != nil {
		return err
	}
	ctx, cancel := a.served(r.Context())
	defer cancel()
	f, content, err := a.Jobs.OpenOutput(ctx, exchangeOf(r.Context()).identity.ProjectID, id, in.Path)
	if err != nil {
		return err
	}
	defer content.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", disposition(path.Base(f.Path)))
	h.Set("Content-Length", strconv.FormatInt(f.Size, 10))
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	if r.Method == http.MethodHead {
		return nil
	}
	out := a.patient(w)
	defer out.reset()
	n, err := io.CopyN(out, content, f.Size)
	if err != nil && n == 0 && !answered(w) {
		h.Del("Content-Length") // nothing has left yet: the length that was promised can be taken back
		h.Del("Content-Disposition")
	}
	return err
}

// listed reads a comma-joined list of statuses; `active` stands for those that count as such.
func listed[S ~string](field, s string, all []S, active func(S) bool) ([]S, error) {
	if s == "" {
		return nil, nil
	}
	var list []S
	for name := range strings.SplitSeq(s, ",") {
		found := false
		for _, status := range all {
			if name == string(status) || name == "active" && active(status) {
				list, found = append(list, status), true
			}
		}
		if !found {
			return nil, cay.Errorf(cay.InvalidRequest, "`%s`: there is no status %q", field, clip(name, 100)).On(field)
		}
	}
	return list, nil
}

// checkSessionQuery refuses what is no session's ID.
func checkSessionQuery(s string) error {
	if _, ok := cay.ParseID(cay.PrefixSession, s); s != "" && !ok {
		return cay.Errorf(cay.InvalidRequest, "`session_id` must be the ID of a session").On("session_id")
	}
	return nil
}

// position reads a place in a stream, which is a whole number.
func position(field, s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n == math.MaxInt64 {
		return 0, cay.Errorf(cay.InvalidRequest, "`%s` must be a number that was given out here", field).On(field)
	}
	return n, nil
}

// MarshalJSONTo implements json.MarshalerTo.
func (f orJobFault) MarshalJSONTo(e *jsontext.Encoder) error { return marshalTo(e, f.fault) }
