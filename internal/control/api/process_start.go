package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// processRequest is the body of the start of a process: an exec's fields, of which encoding means nothing here, and more.
type processRequest struct {
	ExecRequest
	TerminalSize
	Name      *string `json:"name,omitzero" doc:"1 to 64 of letters, digits, '.', '_' and '-', neither all digits nor prc_…; unique among running processes"`
	StdinOpen *bool   `json:"stdin_open,omitzero" doc:"stdin stays open, for POST …/stdin and WebSockets. Default: with tty"`
}

// TerminalSize is what a start says of a terminal.
type TerminalSize struct {
	TTY  bool   `json:"tty,omitzero" doc:"On a terminal of its own; all output is stdout"`
	Cols uint16 `json:"cols,omitzero" doc:"Default 80"`
	Rows uint16 `json:"rows,omitzero" doc:"Default 24"`
}

// settle checks the size and fills in what is not given.
func (t *TerminalSize) settle() error {
	if !t.TTY && (t.Cols != 0 || t.Rows != 0) {
		return cay.Errorf(cay.InvalidRequest, "`cols` and `rows` need `tty`").On("cols")
	}
	if t.TTY && t.Cols == 0 {
		t.Cols = 80
	}
	if t.TTY && t.Rows == 0 {
		t.Rows = 24
	}
	return nil
}

func (p *processRequest) validate() error {
	if err := p.ExecRequest.validate(); err != nil {
		return err
	}
	if p.KillOnDisconnect {
		return cay.Errorf(cay.InvalidRequest, "`kill_on_disconnect` is of an exec; a process outlives the connection that started it").On("kill_on_disconnect")
	}
	if p.Name != nil {
		if err := checkProcessName(*p.Name); err != nil {
			return err
		}
	}
	return p.settle()
}

// maxProcessName is the most characters of a process's name.
const maxProcessName = 64

// checkProcessName refuses what could be taken for an id or a pid, or would need escaping in a path.
func checkProcessName(name string) error {
	ok := name != "" && len(name) <= maxProcessName && !strings.HasPrefix(name, cay.PrefixProcess) && name != "." && name != ".."
	digits := true
	for _, c := range []byte(name) {
		digit := c >= '0' && c <= '9'
		digits = digits && digit
		ok = ok && (digit || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || c == '_' || c == '-')
	}
	if !ok || digits {
		return cay.Errorf(cay.InvalidRequest, "`name` must be 1 to %d of letters, digits, '.', '_' and '-', and neither a number nor begin with %s", maxProcessName, cay.PrefixProcess).On("name")
	}
	return nil
}

// spec is the process as the node takes it; more is what goes to its stdin, after which it is closed unless open.
func (p *processRequest) spec() (spec *nodev1.ProcessSpec, more []byte, open bool) {
	spec = p.ExecRequest.spec()
	if !p.TimeoutSeconds.set {
		spec.TimeoutMs = 0
	}
	spec.Tty, spec.Cols, spec.Rows = p.TTY, uint32(p.Cols), uint32(p.Rows)
	if p.Name != nil {
		spec.Name = *p.Name
	}
	open = p.TTY
	if p.StdinOpen != nil {
		open = *p.StdinOpen
	}
	more, given := p.input()
	spec.StdinOpen = open || given
	return spec, more, open
}

type startProcessInput struct {
	Idempotent
	SandboxPath
	Payload payload[processRequest]
}

// stdinAtOnce is how much of stdin a node takes without waiting for the process, in bytes.
const stdinAtOnce = 256 << 10

// startProcess starts a process in the background. It answers when the process runs, or has failed to start; a long stdin is given to
// it after the answer, on a connection that serves no other request.
func (a *API) startProcess(w http.ResponseWriter, r *http.Request, in *startProcessInput) error {
	leave, err := a.enterStream()
	if err != nil {
		return err
	}
	defer leave()
	sb, node, err := a.enter(r.Context(), in.SandboxPath)
	if err != nil {
		return err
	}
	id := cay.NewID(cay.PrefixProcess)
	settle, fresh := func(bool) {}, true
	if in.IdempotencyKey != "" {
		id = keyedProcess("processes", sb.ProjectID, sb.ID, in.IdempotencyKey)
		if settle, fresh, err = a.execs.claim(r.Context(), id, in.Payload.sum); err != nil {
			return err
		}
	}
	spec, stdin, stays := in.Payload.value.spec()
	first := controlOf(sb.ID, id)
	if fresh {
		defer settle(false)
		first = &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Start{Start: &nodev1.StartProcess{
			SandboxId: string(sb.ID), ProcessId: string(id), Spec: spec, Collect: true,
			Kind: string(cay.RecordProcess), Actor: actorOf(r.Context()),
		}}}
	}
	ctx, release := a.attended(r)
	defer release()
	s, err := open(context.WithoutCancel(r.Context()), node, first)
	if err != nil {
		return err
	}
	defer s.end()
	st, err := s.started(ctx)
	if err != nil {
		return err
	}
	a.metrics.running(first, exchangeOf(ctx).began)
	fed := make(chan struct{})
	if fresh {
		settle(true)
		s.pumps.Go(func() { // a process that takes no more input has ended
			defer close(fed)
			if s.feedOpen(stdin, 0) == nil && spec.StdinOpen && !stays {
				_ = s.closeStdin()
			}
		})
	} else {
		close(fed)
	}
	if st.GetPid() == 0 { // it could not start: its exit is on the way
		if m, err := s.next(ctx); err != nil || m.GetExit() == nil {
			return errors.Join(err, errBroken())
		}
	}
	long := len(stdin) > stdinAtOnce
	if !long {
		<-fed
		s.detach()
	}
	p, err := findProcess(ctx, node, sb.ID, string(id))
	if err != nil {
		return err
	}
	body, err := json.Marshal(processOf(sb, p), json.Deterministic(true))
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if long && fresh {
		h.Set("Connection", "close")
	}
	w.WriteHeader(http.StatusCreated)
	if _, err := w.Write(body); err != nil {
		return err
	}
	if long && fresh {
		_ = http.NewResponseController(w).Flush()
		a.deliverInput(s, fed)
		s.detach()
	}
	return nil
}

// controlOf attaches to a process for its exit, or to say something to it, without its output meanwhile.
func controlOf(sandbox, process cay.ID) *nodev1.ProcessInput {
	in := attachTo(sandbox, process, 0, true)
	in.GetAttach().Foreground = false
	return in
}
