package api

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// decode turns what a node's call returned into a domain error.
func decode(err error) error { return noderpc.Decode(err) }

// process is a process of a sandbox.
type process struct {
	ID         *string  `json:"id" doc:"prc_…; null for one that no client started"`
	PID        int64    `json:"pid"`
	PPID       int64    `json:"ppid,omitzero"`
	Name       *string  `json:"name"`
	TTY        bool     `json:"tty"`
	Cols       uint32   `json:"cols,omitzero" doc:"Of the terminal, if it has one"`
	Rows       uint32   `json:"rows,omitzero"`
	Command    []string `json:"command"`
	User       string   `json:"user"`
	Cwd        string   `json:"cwd"`
	Status     string   `json:"status" enum:"running,exited,failed"`
	ExitCode   *int32   `json:"exit_code"`
	Signal     *string  `json:"signal"`
	Reason     *string  `json:"reason"`
	Detail     string   `json:"detail,omitzero" doc:"Why it did not start, or was ended"`
	StartedAt  moment   `json:"started_at"`
	EndedAt    moment   `json:"ended_at"`
	CPUSeconds float64  `json:"cpu_seconds"`
	MemoryMB   int64    `json:"memory_mb"`
	State      string   `json:"state,omitzero" doc:"As the kernel calls it: R, S, D, Z, T"`
}

// processOf is a process as clients see it. For one that a client started, what it left to the sandbox is the sandbox's.
func processOf(sb *cay.Sandbox, p *nodev1.ProcessInfo) process {
	out := process{
		ID: nullable(p.GetProcessId()), PID: p.GetPid(), PPID: p.GetPpid(), Name: nullable(p.GetName()), Command: p.GetCommand(),
		User: p.GetUser(), Cwd: p.GetCwd(), Status: p.GetStatus(), StartedAt: unixMilli(p.GetStartedUnixMs()), EndedAt: unixMilli(p.GetEndedUnixMs()),
		CPUSeconds: p.GetCpuSeconds(), MemoryMB: p.GetRssMb(), State: p.GetState(), TTY: p.GetTty(),
	}
	if out.TTY {
		out.Cols, out.Rows = p.GetCols(), p.GetRows()
	}
	if out.ID != nil {
		out.User, out.Cwd = cmp.Or(out.User, sb.Spec.User), cmp.Or(out.Cwd, sb.Spec.Workdir)
	}
	if e := p.GetExit(); e != nil {
		code := e.GetCode()
		out.ExitCode, out.Signal, out.Reason, out.Detail = &code, nullable(e.GetSignal()), nullable(e.GetReason()), e.GetDetail()
	}
	return out
}

// processRunning is the status of a process that has not ended.
const processRunning = "running"

func unixMilli(ms int64) moment {
	if ms <= 0 {
		return moment{}
	}
	return moment(time.UnixMilli(ms))
}

type listProcessesInput struct {
	SandboxPath
	All bool `query:"all" doc:"Every process of the sandbox, not only those that clients started"`
}

type listProcessesOutput struct {
	Body page[process]
}

func (a *API) listProcesses(ctx context.Context, in *listProcessesInput) (*listProcessesOutput, error) {
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	found, err := processesOf(ctx, node, sb.ID, in.All)
	if err != nil {
		return nil, err
	}
	items := make([]process, len(found))
	for i, p := range found {
		items[i] = processOf(sb, p)
	}
	return &listProcessesOutput{Body: pageOf(items, "")}, nil
}

func processesOf(ctx context.Context, node nodev1connect.NodeServiceClient, sandbox cay.ID, all bool) ([]*nodev1.ProcessInfo, error) {
	res, err := node.ListProcesses(ctx, connect.NewRequest(&nodev1.ListProcessesRequest{SandboxId: string(sandbox), All: all}))
	if err != nil {
		return nil, decode(err)
	}
	return res.Msg.GetProcesses(), nil
}

type ProcessPath struct {
	Process string `path:"process" doc:"prc_…, a pid, or a name: of the process that runs under it, else of the last that did"`
}

// findProcess looks a process up by its id, its pid or its name. Several that have ended may have had one name: the last counts,
// unless one is running.
func findProcess(ctx context.Context, node nodev1connect.NodeServiceClient, sandbox cay.ID, name string) (*nodev1.ProcessInfo, error) {
	pid, err := strconv.ParseInt(name, 10, 64)
	byPID := err == nil && pid > 0
	found, err := processesOf(ctx, node, sandbox, byPID)
	if err != nil {
		return nil, err
	}
	var last *nodev1.ProcessInfo
	for _, p := range found {
		switch {
		case p.GetProcessId() == name, byPID && p.GetPid() == pid && p.GetStatus() == processRunning,
			name != "" && p.GetName() == name && p.GetStatus() == processRunning:
			return p, nil
		case (byPID && p.GetPid() == pid || name != "" && p.GetName() == name) && p.GetStartedUnixMs() >= last.GetStartedUnixMs():
			last = p
		}
	}
	if last != nil {
		return last, nil
	}
	return nil, cay.Errorf(cay.NotFound, "there is no process %q in sandbox %s", clip(name, 100), sandbox)
}

// resolveProcess is the id of a process that output can be read from.
func (a *API) resolveProcess(ctx context.Context, node nodev1connect.NodeServiceClient, sandbox cay.ID, name string) (cay.ID, error) {
	if id, ok := cay.ParseID(cay.PrefixProcess, name); ok {
		return id, nil
	}
	p, err := findProcess(ctx, node, sandbox, name)
	if err != nil {
		return "", err
	}
	if p.GetProcessId() == "" {
		return "", cay.Errorf(cay.Conflict, "process %q was not started through the API, so that its output is not kept", clip(name, 100))
	}
	return cay.ID(p.GetProcessId()), nil
}

type getProcessInput struct {
	SandboxPath
	ProcessPath
}

type processOutput struct {
	Body process
}

func (a *API) getProcess(ctx context.Context, in *getProcessInput) (*processOutput, error) {
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	p, err := findProcess(ctx, node, sb.ID, in.Process)
	if err != nil {
		return nil, err
	}
	return &processOutput{Body: processOf(sb, p)}, nil
}

type signalRequest struct {
	Signal string `json:"signal" doc:"INT, TERM, KILL …, with or without SIG" example:"TERM"`
	Tree   bool   `json:"tree,omitzero" doc:"Also to everything it started"`
}

func (b *signalRequest) validate() (err error) {
	b.Signal, err = streams.SignalName(b.Signal)
	return err
}

type signalInput struct {
	Idempotent
	SandboxPath
	ProcessPath
	Payload payload[signalRequest]
}

type noContent struct {
	Status int
}

func (a *API) signalProcess(ctx context.Context, in *signalInput) (*noContent, error) {
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return nil, err
	}
	once := a.once(sb.ProjectID, "POST /v1/sandboxes/"+string(sb.ID)+"/processes/"+in.Process+"/signal", in.IdempotencyKey, in.Payload.sum)
	_, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	if !fresh {
		return &noContent{Status: http.StatusNoContent}, nil
	}
	target := in.Process
	if _, ok := cay.ParseID(cay.PrefixProcess, target); !ok {
		p, err := findProcess(ctx, node, sb.ID, target)
		if err != nil {
			once.failed(ctx, err)
			return nil, err
		}
		if target = p.GetProcessId(); target == "" {
			target = strconv.FormatInt(p.GetPid(), 10)
		}
	}
	if err := a.signal(ctx, node, sb.ID, target, in.Payload.value.Signal, in.Payload.value.Tree); err != nil {
		once.failed(ctx, err)
		return nil, err
	}
	return &noContent{Status: http.StatusNoContent}, once.finish(ctx, http.StatusNoContent, target)
}

type streamProcessInput struct {
	SandboxPath
	ProcessPath
	Offset      string `query:"offset" doc:"From here on, counting stdout and stderr together; default 0"`
	LastEventID string `header:"Last-Event-ID" doc:"The id of the last event that came; goes before offset"`
	Encoding    string `query:"encoding" enum:"utf8,base64" doc:"Default utf8; of no meaning for a WebSocket"`
}

// streamProcess attaches to a process: server-sent events, or a WebSocket that only reads.
func (a *API) streamProcess(w http.ResponseWriter, r *http.Request, in *streamProcessInput) error {
	if isUpgrade(r) {
		return a.webSocket(w, r, in.SandboxPath, func(c *conversation) error {
			c.readOnly = true
			return c.attachOr(in.Process, in.Offset, nil)
		})
	}
	if err := noHead(r); err != nil {
		return err
	}
	field, at := "offset", in.Offset
	if in.LastEventID != "" {
		field, at = "Last-Event-ID", in.LastEventID
	}
	offset, err := offsetOf(field, at)
	if err != nil {
		return err
	}
	leave, err := a.enterStream()
	if err != nil {
		return err
	}
	defer leave()
	sb, node, err := a.enter(r.Context(), in.SandboxPath)
	if err != nil {
		return err
	}
	id, err := a.resolveProcess(r.Context(), node, sb.ID, in.Process)
	if err != nil {
		return err
	}
	ctx, release := a.attended(r)
	defer release()
	s, err := open(context.WithoutCancel(r.Context()), node, attachTo(sb.ID, id, offset, false))
	if err != nil {
		return err
	}
	defer s.end()
	st, err := s.started(ctx)
	if err != nil {
		return err
	}
	return a.sendEvents(ctx, w, s, st, &eventView{
		process: id, encoding: streams.Encoding(in.Encoding), outcome: &programOutcome{a: a, node: node, sandbox: sb},
	})
}
