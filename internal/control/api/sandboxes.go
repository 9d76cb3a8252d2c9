package api

import (
	"context"
	"net/http"
	"time"

	"github.com/cayhq/cay"
)

const (
	defaultWait = 60 * time.Second // of a create, and of wait_for
	deleteWait  = 60 * time.Second // after which a delete answers 202
	switchWait  = 60 * time.Second // for pause and resume
)

type sandboxOutput struct {
	Status   int
	Location string `header:"Location"`
	Body     sandbox
}

func answerSandbox(status int, sb *cay.Sandbox) *sandboxOutput {
	return &sandboxOutput{Status: status, Body: sandboxOf(sb)}
}

type createSandboxInput struct {
	Idempotent
	WaitSeconds float64 `query:"wait_seconds" default:"60" doc:"How long to wait for READY, 0 to 300"`
	Wait        string  `query:"wait" enum:"true,false" doc:"false: the same as wait_seconds=0"`
	Payload     payload[sandboxRequest]
}

func (a *API) createSandbox(ctx context.Context, in *createSandboxInput) (*sandboxOutput, error) {
	wait, err := waitFor(in.WaitSeconds)
	if err != nil {
		return nil, err
	}
	if in.Wait == "false" {
		wait = 0
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
	project := who.ProjectID
	req.KeyID = who.KeyID
	once := a.once(project, "POST /v1/sandboxes", in.IdempotencyKey, in.Payload.sum).making(cay.PrefixSandbox)
	rec, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	id := cay.ID(rec.ObjectID)
	if fresh {
		req.ID = id
		sb, err := a.Sandboxes.Create(ctx, project, req)
		if err != nil {
			once.failed(ctx, err)
			return nil, err
		}
		id = sb.ID
		// From here on a repeated request finds this sandbox and waits for it by itself.
		if err := once.finish(ctx, http.StatusCreated, string(id)); err != nil {
			return nil, err
		}
	}
	exchangeOf(ctx).object = id
	sb, err := a.await(ctx, project, id, wait, cay.Ready, cay.Paused, cay.Terminating)
	if err != nil {
		return nil, err
	}
	status, err := createdStatus(sb)
	if !fresh && err != nil && sb.Status != cay.Failed {
		status, err = rec.Status, nil // the stored status and the object as it is now
	}
	if err != nil {
		if sb.Status == cay.Failed {
			once.forget(ctx) // server faults are not stored: the same key may try again
		}
		return nil, err
	}
	out := answerSandbox(status, sb)
	out.Location = "/v1/sandboxes/" + string(sb.ID)
	return out, nil
}

// createdStatus is what a create answers for the sandbox as it is at the end of the wait.
func createdStatus(sb *cay.Sandbox) (int, error) {
	switch sb.Status {
	case cay.Creating:
		return http.StatusAccepted, nil
	case cay.Ready, cay.Paused:
		return http.StatusCreated, nil
	case cay.Failed:
		reason := cay.BootFailed
		switch sb.StatusReason {
		case cay.ReasonNoCapacity:
			reason = cay.NoCapacity
		case cay.ReasonWorkerLost, cay.ReasonEvicted:
			reason = cay.WorkerLost
		case cay.ReasonDiskFull:
			reason = cay.DiskFull
		case cay.ReasonUnprocessable:
			reason = cay.Unprocessable
		}
		detail := sb.Detail
		if detail == "" {
			detail = "the sandbox failed: " + string(sb.StatusReason)
		}
		return 0, cay.Errorf(reason, "%s", detail).With("sandbox_id", string(sb.ID)).With("status_reason", string(sb.StatusReason))
	default:
		return 0, cay.Errorf(cay.Gone, "sandbox %s is %s (%s)", sb.ID, sb.Status, sb.StatusReason).
			With("sandbox_id", string(sb.ID)).With("status", string(sb.Status)).With("status_reason", string(sb.StatusReason))
	}
}

// await is the sandbox once it has one of the statuses, or as it is after wait.
func (a *API) await(ctx context.Context, project, id cay.ID, wait time.Duration, want ...cay.Status) (*cay.Sandbox, error) {
	if wait <= 0 {
		return a.Sandboxes.Get(ctx, project, id)
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	stop := a.whenClosing(cancel)
	defer stop()
	return a.Sandboxes.Wait(waiting, project, id, want...)
}

type getSandboxInput struct {
	SandboxPath
	WaitFor     string  `query:"wait_for" doc:"Answer once the status is one of these, comma-joined, or the sandbox has ended" example:"READY"`
	WaitSeconds float64 `query:"wait_seconds" default:"60" doc:"How long to wait_for, 0 to 300"`
}

func (a *API) getSandbox(ctx context.Context, in *getSandboxInput) (*sandboxOutput, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	wait, err := waitFor(in.WaitSeconds)
	if err != nil {
		return nil, err
	}
	want, err := statuses("wait_for", in.WaitFor)
	if err != nil {
		return nil, err
	}
	if len(want) == 0 {
		wait = 0
	}
	sb, err := a.await(ctx, exchangeOf(ctx).identity.ProjectID, id, wait, want...)
	if err != nil {
		return nil, err
	}
	return answerSandbox(http.StatusOK, sb), nil
}

// statuses reads a comma-joined list; `active` stands for those that count as such.
func statuses(field, s string) ([]cay.Status, error) {
	return listed(field, s, cay.Statuses, cay.Status.Active)
}

type listSandboxesInput struct {
	ListQuery
	Status    string `query:"status" doc:"Comma-joined; active stands for CREATING,READY,PAUSED" example:"active"`
	SessionID string `query:"session_id" doc:"Only those that use this session"`
	Managed   bool   `query:"managed" doc:"Also those that serve jobs and sessions"`
}

type listSandboxesOutput struct {
	Body page[sandbox]
}

func (a *API) listSandboxes(ctx context.Context, in *listSandboxesInput) (*listSandboxesOutput, error) {
	after, err := in.check()
	if err != nil {
		return nil, err
	}
	if err := checkSessionQuery(in.SessionID); err != nil {
		return nil, err
	}
	q := cay.SandboxQuery{
		Limit: in.Limit, Cursor: in.Cursor, Ascending: in.Order == "asc", Metadata: in.metadata, CreatedAfter: after,
		SessionID: cay.ID(in.SessionID), Managed: in.Managed,
	}
	if q.Statuses, err = statuses("status", in.Status); err != nil {
		return nil, err
	}
	found, next, err := a.Sandboxes.List(ctx, exchangeOf(ctx).identity.ProjectID, q)
	if err != nil {
		return nil, err
	}
	items := make([]sandbox, len(found))
	for i, sb := range found {
		items[i] = sandboxOf(sb)
	}
	return &listSandboxesOutput{Body: pageOf(items, next)}, nil
}

type sandboxUpdate struct {
	Metadata           map[string]string `json:"metadata,omitzero" doc:"Replaces the whole"`
	IdleTimeoutSeconds optional[float64] `json:"idle_timeout_seconds,omitzero" doc:"0 or null: none"`
	OnTimeout          *string           `json:"on_timeout,omitzero" enum:"terminate,pause"`
}

func (b *sandboxUpdate) validate() error {
	if err := checkOnTimeout(b.OnTimeout); err != nil {
		return err
	}
	return checkMetadata(b.Metadata)
}

type updateSandboxInput struct {
	SandboxPath
	Payload payload[sandboxUpdate]
}

func (a *API) updateSandbox(ctx context.Context, in *updateSandboxInput) (*sandboxOutput, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	body := in.Payload.value
	u := cay.UpdateSandbox{Metadata: body.Metadata}
	if body.IdleTimeoutSeconds.set {
		if u.IdleTimeout, err = asPointer(secondsOrNone("idle_timeout_seconds", body.IdleTimeoutSeconds.v)); err != nil {
			return nil, err
		}
	}
	if body.OnTimeout != nil {
		on := cay.OnTimeout(*body.OnTimeout)
		u.OnTimeout = &on
	}
	sb, err := a.Sandboxes.Update(ctx, exchangeOf(ctx).identity.ProjectID, id, u)
	if err != nil {
		return nil, err
	}
	return answerSandbox(http.StatusOK, sb), nil
}

type deleteSandboxOutput struct {
	Status int
	Body   *sandbox
}

func (a *API) deleteSandbox(ctx context.Context, in *SandboxPath) (*deleteSandboxOutput, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	project := exchangeOf(ctx).identity.ProjectID
	sb, err := a.Sandboxes.Delete(ctx, project, id)
	if err != nil {
		return nil, err
	}
	if !sb.Status.Ended() {
		if sb, err = a.await(ctx, project, id, deleteWait, cay.Terminated, cay.Failed); err != nil {
			return nil, err
		}
	}
	if sb.Status.Ended() {
		return &deleteSandboxOutput{Status: http.StatusNoContent}, nil
	}
	body := sandboxOf(sb)
	return &deleteSandboxOutput{Status: http.StatusAccepted, Body: &body}, nil
}

type SandboxAction struct {
	Idempotent
	SandboxPath
}

// act runs a POST on a sandbox whose answer is the sandbox, once for each idempotency key.
func (a *API) act(ctx context.Context, in SandboxAction, verb string, sum [32]byte, do func(project, id cay.ID) (*cay.Sandbox, error)) (*cay.Sandbox, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	project := exchangeOf(ctx).identity.ProjectID
	once := a.once(project, "POST /v1/sandboxes/"+string(id)+"/"+verb, in.IdempotencyKey, sum)
	_, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	if !fresh {
		return a.Sandboxes.Get(ctx, project, id)
	}
	sb, err := do(project, id)
	if err != nil {
		once.failed(ctx, err)
		return nil, err
	}
	return sb, once.finish(ctx, http.StatusOK, string(id))
}

type timeoutRequest struct {
	TTLSeconds *float64 `json:"ttl_seconds" doc:"The end will be now + this; what exceeds the maximum is capped"`
	ExtendOnly bool     `json:"extend_only,omitzero" doc:"Never bring the end nearer"`
}

func (b *timeoutRequest) validate() error {
	if b.TTLSeconds == nil {
		return cay.Errorf(cay.InvalidRequest, "`ttl_seconds` is needed").On("ttl_seconds")
	}
	return nil
}

type setTimeoutInput struct {
	SandboxAction
	Payload payload[timeoutRequest]
}

type setTimeoutOutput struct {
	Body sandbox
}

func (a *API) setTimeout(ctx context.Context, in *setTimeoutInput) (*setTimeoutOutput, error) {
	ttl, err := seconds("ttl_seconds", *in.Payload.value.TTLSeconds)
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	sb, err := a.act(ctx, in.SandboxAction, "timeout", in.Payload.sum, func(project, id cay.ID) (*cay.Sandbox, error) {
		return a.Sandboxes.SetTimeout(ctx, project, id, ttl, in.Payload.value.ExtendOnly)
	})
	if err != nil {
		return nil, err
	}
	out := &setTimeoutOutput{Body: sandboxOf(sb)}
	// The value in force: what was asked, unless it was capped or the end was later anyway.
	if left := sb.ExpiresAt.Sub(asked); sb.Status == cay.Ready && left > 0 {
		out.Body.TTL = left.Round(time.Millisecond).Seconds()
		if near := left - ttl; near >= -time.Millisecond && near < time.Second {
			out.Body.TTL = ttl.Seconds()
		} else if left >= time.Minute {
			out.Body.TTL = left.Round(time.Second).Seconds()
		}
	}
	return out, nil
}

func (a *API) keepAlive(ctx context.Context, in *SandboxAction) (*sandboxOutput, error) {
	sb, err := a.act(ctx, *in, "keepalive", [32]byte{}, func(project, id cay.ID) (*cay.Sandbox, error) {
		sb, err := a.Sandboxes.Get(ctx, project, id)
		if err != nil {
			return nil, err
		}
		if err := sb.Usable(); err != nil { // before Enter, which would resume a paused one
			return nil, err
		}
		return a.Sandboxes.Enter(ctx, project, id)
	})
	if err != nil {
		return nil, err
	}
	return answerSandbox(http.StatusOK, sb), nil
}

func (a *API) pauseSandbox(ctx context.Context, in *SandboxAction) (*sandboxOutput, error) {
	ctx, cancel := context.WithTimeout(ctx, switchWait)
	defer cancel()
	sb, err := a.act(ctx, *in, "pause", [32]byte{}, func(project, id cay.ID) (*cay.Sandbox, error) {
		return a.Sandboxes.Pause(ctx, project, id)
	})
	if err != nil {
		return nil, err
	}
	return answerSandbox(http.StatusOK, sb), nil
}

type resumeRequest struct {
	TTLSeconds *float64 `json:"ttl_seconds,omitzero" doc:"The end will be now + this; absent: what was left"`
}

type resumeInput struct {
	SandboxAction
	Payload payload[resumeRequest]
}

func (a *API) resumeSandbox(ctx context.Context, in *resumeInput) (*sandboxOutput, error) {
	var ttl *time.Duration
	if s := in.Payload.value.TTLSeconds; s != nil {
		var err error
		if ttl, err = asPointer(seconds("ttl_seconds", *s)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, switchWait)
	defer cancel()
	sb, err := a.act(ctx, in.SandboxAction, "resume", in.Payload.sum, func(project, id cay.ID) (*cay.Sandbox, error) {
		return a.Sandboxes.Resume(ctx, project, id, ttl)
	})
	if err != nil {
		return nil, err
	}
	return answerSandbox(http.StatusOK, sb), nil
}

type networkOutput struct {
	Body networkPolicy
}

func (a *API) getNetwork(ctx context.Context, in *SandboxPath) (*networkOutput, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	sb, err := a.Sandboxes.Get(ctx, exchangeOf(ctx).identity.ProjectID, id)
	if err != nil {
		return nil, err
	}
	if !sb.Status.Active() {
		return nil, sb.Usable()
	}
	return &networkOutput{Body: networkPolicy{Allow: sb.Spec.Network, Deny: []string{}}}, nil
}

type setNetworkInput struct {
	SandboxPath
	Payload payload[networkRules]
}

func (a *API) setNetwork(ctx context.Context, in *setNetworkInput) (*networkOutput, error) {
	return a.getNetwork(ctx, &in.SandboxPath) // rules are refused where they are decoded; what is left is what there is
}
