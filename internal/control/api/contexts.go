package api

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// codeContext is an interpreter that keeps its state between programs.
type codeContext struct {
	ID             string `json:"id" doc:"ctx_…"`
	Language       string `json:"language"`
	Cwd            string `json:"cwd"`
	User           string `json:"user"`
	Status         string `json:"status" enum:"idle,busy"`
	ExecutionCount int64  `json:"execution_count"`
	CreatedAt      moment `json:"created_at"`
	LastUsedAt     moment `json:"last_used_at"`
}

func contextOf(sb *cay.Sandbox, c *nodev1.Context) codeContext {
	out := codeContext{
		ID: c.GetContextId(), Language: c.GetLanguage(), Cwd: c.GetCwd(), User: c.GetUser(), Status: c.GetStatus(), ExecutionCount: c.GetExecutionCount(),
		CreatedAt: unixMilli(c.GetCreatedUnixMs()), LastUsedAt: unixMilli(c.GetLastUsedUnixMs()),
	}
	if out.Cwd == "" {
		out.Cwd = sb.Spec.Workdir
	}
	if out.User == "" {
		out.User = sb.Spec.User
	}
	return out
}

// ContextPath names a context of a sandbox.
type ContextPath struct {
	SandboxPath
	Context string `path:"context" doc:"ctx_…"`
}

func (p ContextPath) context() (string, error) {
	if _, ok := cay.ParseID(cay.PrefixContext, p.Context); !ok {
		return "", errNoContext(p.Context)
	}
	return p.Context, nil
}

func errNoContext(id string) error {
	return cay.Errorf(cay.NotFound, "there is no context %q in the sandbox", clip(id, 100))
}

type createContextRequest struct {
	Language string            `json:"language,omitzero" doc:"Default: the sandbox's runtime, else python; one of python, javascript, typescript, bash, sh, php, ruby that the image has"`
	Cwd      string            `json:"cwd,omitzero" doc:"Default: the sandbox's workdir"`
	User     string            `json:"user,omitzero" doc:"A name or uid[:gid] of the sandbox"`
	Env      map[string]string `json:"env,omitzero" doc:"On top of the sandbox's; at most 1 MiB"`
}

func (c *createContextRequest) validate() error {
	for _, err := range []error{checkLanguage(c.Language), checkEnv(c.Env), plain("cwd", c.Cwd), plain("user", c.User)} {
		if err != nil {
			return err
		}
	}
	return nil
}

type createContextInput struct {
	Idempotent
	SandboxPath
	Payload payload[createContextRequest]
}

type contextOutput struct {
	Status int
	Body   codeContext
}

func (a *API) createContext(ctx context.Context, in *createContextInput) (*contextOutput, error) {
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	once := a.once(sb.ProjectID, "POST /v1/sandboxes/"+string(sb.ID)+"/contexts", in.IdempotencyKey, in.Payload.sum)
	rec, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	if !fresh {
		return answerContext(ctx, node, sb, rec.ObjectID, http.StatusCreated)
	}
	body, id := in.Payload.value, string(cay.NewID(cay.PrefixContext))
	if body.Language == "" {
		body.Language = sb.Spec.Runtime
	}
	res, err := node.OpenContext(ctx, connect.NewRequest(&nodev1.OpenContextRequest{
		SandboxId: string(sb.ID), ContextId: id, Language: body.Language, Cwd: body.Cwd, User: body.User, Env: body.Env,
	}))
	if err != nil {
		err = decode(err)
		once.failed(ctx, err)
		return nil, err
	}
	return &contextOutput{Status: http.StatusCreated, Body: contextOf(sb, res.Msg)}, once.finish(ctx, http.StatusCreated, id)
}

// answerContext answers a context as it is now.
func answerContext(ctx context.Context, node nodev1connect.NodeServiceClient, sb *cay.Sandbox, id string, status int) (*contextOutput, error) {
	items, err := contextsOf(ctx, node, sb)
	if err != nil {
		return nil, err
	}
	for _, c := range items {
		if c.ID == id {
			return &contextOutput{Status: status, Body: c}, nil
		}
	}
	return nil, errNoContext(id)
}

func contextsOf(ctx context.Context, node nodev1connect.NodeServiceClient, sb *cay.Sandbox) ([]codeContext, error) {
	res, err := node.ListContexts(ctx, connect.NewRequest(&nodev1.ListContextsRequest{SandboxId: string(sb.ID)}))
	if err != nil {
		return nil, decode(err)
	}
	items := make([]codeContext, len(res.Msg.GetItems()))
	for i, c := range res.Msg.GetItems() {
		items[i] = contextOf(sb, c)
	}
	return items, nil
}

type listContextsOutput struct {
	Body page[codeContext]
}

func (a *API) listContexts(ctx context.Context, in *SandboxPath) (*listContextsOutput, error) {
	sb, node, err := a.enter(ctx, *in)
	if err != nil {
		return nil, err
	}
	items, err := contextsOf(ctx, node, sb)
	if err != nil {
		return nil, err
	}
	return &listContextsOutput{Body: pageOf(items, "")}, nil
}

func (a *API) getContext(ctx context.Context, in *ContextPath) (*contextOutput, error) {
	id, err := in.context()
	if err != nil {
		return nil, err
	}
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	return answerContext(ctx, node, sb, id, http.StatusOK)
}

func (a *API) deleteContext(ctx context.Context, in *ContextPath) (*noContent, error) {
	id, err := in.context()
	if err != nil {
		return nil, err
	}
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	if _, err := node.CloseContext(ctx, connect.NewRequest(&nodev1.ContextRequest{SandboxId: string(sb.ID), ContextId: id})); err != nil {
		return nil, decode(err)
	}
	return &noContent{Status: http.StatusNoContent}, nil
}

type changeContextInput struct {
	Idempotent
	ContextPath
}

func (a *API) interruptContext(ctx context.Context, in *changeContextInput) (*contextOutput, error) {
	return a.changeContext(ctx, in, "interrupt", nodev1connect.NodeServiceClient.InterruptContext)
}

func (a *API) restartContext(ctx context.Context, in *changeContextInput) (*contextOutput, error) {
	return a.changeContext(ctx, in, "restart", nodev1connect.NodeServiceClient.RestartContext)
}

type contextCall = func(nodev1connect.NodeServiceClient, context.Context, *connect.Request[nodev1.ContextRequest]) (*connect.Response[nodev1.Context], error)

func (a *API) changeContext(ctx context.Context, in *changeContextInput, verb string, call contextCall) (*contextOutput, error) {
	id, err := in.context()
	if err != nil {
		return nil, err
	}
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	once := a.once(sb.ProjectID, "POST /v1/sandboxes/"+string(sb.ID)+"/contexts/"+id+"/"+verb, in.IdempotencyKey, [32]byte{})
	_, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	if !fresh {
		return answerContext(ctx, node, sb, id, http.StatusOK)
	}
	res, err := call(node, ctx, connect.NewRequest(&nodev1.ContextRequest{SandboxId: string(sb.ID), ContextId: id}))
	if err != nil {
		err = decode(err)
		once.failed(ctx, err)
		return nil, err
	}
	return &contextOutput{Status: http.StatusOK, Body: contextOf(sb, res.Msg)}, once.finish(ctx, http.StatusOK, id)
}
