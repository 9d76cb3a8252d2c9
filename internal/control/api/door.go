package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/camel"
)

// The simple door: jobs and sessions by short paths, with names in camelCase. Each operation is another form of one of /v1, whose handler
// it calls; what it says itself is names.
const (
	doorExecute  = "/execute"
	doorJob      = "/job"
	doorJobs     = "/jobs"
	doorStream   = "/stream"
	doorSession  = "/session"
	doorSessions = "/sessions"

	tagDoor = "Simple door"
)

func (a *API) doorRoutes(t *table) {
	const job, session = doorJob + "/{id}", doorSession + "/{id}"

	typed(t, "POST  ", doorExecute, useJobs, "simple-submit-job", a.execute)
	typed(t, "GET   ", doorJobs, useJobs, "simple-list-jobs", a.doorListJobs)
	typed(t, "GET   ", job, useJobs, "simple-get-job", a.doorGetJob)
	typed(t, "DELETE", job, useJobs, "simple-cancel-job", a.doorCancelJob)
	raw(t, "GET   ", job+"/stream", useJobs, "simple-stream-job", a.doorStreamJob)
	raw(t, "GET   ", doorStream, useJobs, "simple-stream", a.doorStream)

	typed(t, "POST  ", doorSession, useJobs, "simple-create-session", a.doorCreateSession)
	typed(t, "GET   ", doorSessions, useJobs, "simple-list-sessions", a.doorListSessions)
	typed(t, "GET   ", session, useJobs, "simple-get-session", a.doorGetSession)
	typed(t, "DELETE", session, useJobs, "simple-delete-session", a.doorDeleteSession)
	typed(t, "GET   ", session+"/files", useFiles, "simple-list-session-files", a.doorListSessionFiles)
	raw(t, "GET   ", session+"/files/content", useFiles, "simple-read-session-file", a.readSessionFile)
	raw(t, "HEAD  ", session+"/files/content", useFiles, "simple-head-session-file", a.headSessionFile)
	raw(t, "PUT   ", session+"/files/content", useFiles, "simple-write-session-file", a.doorWriteSessionFile)
	typed(t, "DELETE", session+"/files/content", useFiles, "simple-delete-session-file", a.deleteSessionFile)
	raw(t, "GET   ", session+"/archive", useFiles, "simple-read-session-archive", a.readSessionArchive)
	raw(t, "PUT   ", session+"/archive", useFiles, "simple-write-session-archive", a.writeSessionArchive)
}

// plainPayload is a body as the handler of /v1 takes it.
func plainPayload[T any](p payload[camel.Of[T]]) payload[T] {
	return payload[T]{value: p.value.Value, sum: p.sum}
}

type executeInput struct {
	Idempotent
	WaitSeconds float64 `query:"waitSeconds" default:"0" doc:"How long to wait for its end, 0 to 300"`
	Payload     payload[camel.Of[jobRequest]]
}

type doorJobAnswer struct {
	Status   int
	Location string `header:"Location"`
	Body     camel.Of[job]
}

func doorJobOf(out *jobAnswer, err error) (*doorJobAnswer, error) {
	if err != nil {
		return nil, err
	}
	return &doorJobAnswer{Status: out.Status, Body: camel.Of[job]{Value: out.Body}}, nil
}

func (a *API) execute(ctx context.Context, in *executeInput) (*doorJobAnswer, error) {
	out, err := doorJobOf(a.submit(ctx, doorExecute, &submitJobInput{in.Idempotent, in.WaitSeconds, plainPayload(in.Payload)}))
	if err == nil {
		out.Location = doorJob + "/" + string(out.Body.Value.ID)
	}
	return out, err
}

type doorGetJobInput struct {
	JobPath
	WaitSeconds float64 `query:"waitSeconds" default:"0" doc:"How long to wait for its end, 0 to 300"`
}

func (a *API) doorGetJob(ctx context.Context, in *doorGetJobInput) (*doorJobAnswer, error) {
	plain := getJobInput(*in)
	return doorJobOf(a.getJob(ctx, &plain))
}

func (a *API) doorCancelJob(ctx context.Context, in *JobPath) (*doorJobAnswer, error) {
	return doorJobOf(a.cancelJob(ctx, in))
}

// DoorListQuery is a ListQuery with names in camelCase.
type DoorListQuery struct {
	Limit        int    `query:"limit" default:"50" minimum:"1" maximum:"200"`
	Cursor       string `query:"cursor" doc:"nextCursor of the page before"`
	Order        string `query:"order" enum:"desc,asc" default:"desc" doc:"By time of creation"`
	CreatedAfter string `query:"createdAfter" doc:"RFC 3339" example:"2026-01-02T15:04:05Z"`
	metadata     map[string]string
}

// Resolve implements huma.Resolver.
func (q *DoorListQuery) Resolve(hc huma.Context) (faults []error) {
	q.metadata, faults = metadataQuery(hc)
	return faults
}

type doorListJobsInput struct {
	DoorListQuery
	Status    string `query:"status" doc:"Comma-joined; active stands for queued,running" example:"active"`
	SessionID string `query:"sessionId" doc:"Only those of this session"`
}

type doorListJobsAnswer struct {
	Body camel.Of[page[JobSummary]]
}

func (a *API) doorListJobs(ctx context.Context, in *doorListJobsInput) (*doorListJobsAnswer, error) {
	out, err := a.listJobs(ctx, &listJobsInput{ListQuery(in.DoorListQuery), in.Status, in.SessionID})
	if err != nil {
		return nil, err
	}
	return &doorListJobsAnswer{camel.Of[page[JobSummary]]{Value: out.Body}}, nil
}

func (a *API) doorStreamJob(w http.ResponseWriter, r *http.Request, in *streamJobInput) error {
	return a.watchJob(w, r, in.JobPath, in.SeqQuery, inCamel)
}

type doorStreamInput struct {
	JobID string `query:"jobId" required:"true" doc:"The job, job_…"`
	SeqQuery
}

// doorStream is doorStreamJob by a path without the job in it. It has no form of its own: the client says which.
func (a *API) doorStream(w http.ResponseWriter, r *http.Request, in *doorStreamInput) error {
	if !isUpgrade(r) && !accepts(r, eventStream) {
		w.Header().Set("Upgrade", "websocket")
		return cay.Errorf(cay.InvalidRequest, "this is a stream: upgrade to a WebSocket, or ask for events with Accept: %s", eventStream).On("Upgrade")
	}
	return a.watchJob(w, r, JobPath{in.JobID}, in.SeqQuery, inCamel)
}

type doorCreateSessionInput struct {
	Idempotent
	Payload payload[camel.Of[sessionRequest]]
}

type doorSessionAnswer struct {
	Status   int
	Location string `header:"Location"`
	Body     camel.Of[session]
}

func doorSessionOf(out *sessionAnswer, err error) (*doorSessionAnswer, error) {
	if err != nil {
		return nil, err
	}
	return &doorSessionAnswer{Status: out.Status, Body: camel.Of[session]{Value: out.Body}}, nil
}

func (a *API) doorCreateSession(ctx context.Context, in *doorCreateSessionInput) (*doorSessionAnswer, error) {
	out, err := doorSessionOf(a.newSession(ctx, doorSession, &createSessionInput{in.Idempotent, plainPayload(in.Payload)}))
	if err == nil {
		out.Location = doorSession + "/" + string(out.Body.Value.ID)
	}
	return out, err
}

func (a *API) doorGetSession(ctx context.Context, in *SessionPath) (*doorSessionAnswer, error) {
	return doorSessionOf(a.getSession(ctx, in))
}

type doorListSessionsInput struct {
	DoorListQuery
	Name   string `query:"name" doc:"Only the one of this name"`
	Status string `query:"status" doc:"Comma-joined; default: those that have not ended" example:"active,archived"`
}

type doorListSessionsAnswer struct {
	Body camel.Of[page[session]]
}

func (a *API) doorListSessions(ctx context.Context, in *doorListSessionsInput) (*doorListSessionsAnswer, error) {
	out, err := a.listSessions(ctx, &listSessionsInput{ListQuery(in.DoorListQuery), in.Name, in.Status})
	if err != nil {
		return nil, err
	}
	return &doorListSessionsAnswer{camel.Of[page[session]]{Value: out.Body}}, nil
}

type doorDeleteSessionAnswer struct {
	Status int
	Body   *camel.Of[session]
}

func (a *API) doorDeleteSession(ctx context.Context, in *deleteSessionInput) (*doorDeleteSessionAnswer, error) {
	out, err := a.deleteSession(ctx, in)
	if err != nil {
		return nil, err
	}
	spelled := &doorDeleteSessionAnswer{Status: out.Status}
	if out.Body != nil {
		spelled.Body = &camel.Of[session]{Value: *out.Body}
	}
	return spelled, nil
}

type doorListSessionFilesAnswer struct {
	Body camel.Of[page[file]]
}

func (a *API) doorListSessionFiles(ctx context.Context, in *listSessionFilesInput) (*doorListSessionFilesAnswer, error) {
	out, err := a.listSessionFiles(ctx, in)
	if err != nil {
		return nil, err
	}
	return &doorListSessionFilesAnswer{camel.Of[page[file]]{Value: out.Body}}, nil
}

func (a *API) doorWriteSessionFile(w http.ResponseWriter, r *http.Request, in *writeSessionFileInput) error {
	return a.putSessionFile(w, r, in, camelly)
}
