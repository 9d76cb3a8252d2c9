package worker

import (
	"context"
	"math"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

type processStream = connect.BidiStream[nodev1.ProcessInput, nodev1.ProcessOutput]

// Process serves one reader of a process: what it sends goes to stdin in a goroutine of its own, which ends with the stream.
func (s service) Process(ctx context.Context, stream *processStream) error {
	first, err := stream.Receive()
	if err != nil {
		return noderpc.Encode(cay.Errorf(cay.InvalidRequest, "the first message starts or attaches").Because(err))
	}
	if at := first.GetAttach(); at.GetTakeStdin() && at.GetCollect() {
		return s.write(ctx, stream, at)
	}
	session, a, collect, err := s.begin(ctx, first)
	if err != nil {
		return noderpc.Encode(err)
	}
	defer a.Close()
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	s.w.background(func() { receive(ctx, stream, session, a, collect && first.GetAttach() != nil, leave) })
	err = send(ctx, stream, a, collect)
	if refused, ok := asError(context.Cause(ctx)); ok {
		err = refused
	} else if err == nil || left(ctx, err) {
		return nil
	}
	return s.broken(stream, a.Process().ID(), err)
}

// broken ends a stream that has begun: its error is a message, so that the client learns of it behind everything that came before.
func (s service) broken(stream *processStream, process cay.ID, err error) error {
	e := &nodev1.StreamError{Reason: string(cay.ReasonOf(err)), Detail: "the stream failed"}
	if ce, ok := asError(err); ok {
		e.Detail = ce.Detail
	} else {
		s.w.log.Error("process stream failed", "process", process, "error", err)
	}
	return stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Error{Error: e}})
}

// begin starts or attaches, as the first message says.
func (s service) begin(ctx context.Context, first *nodev1.ProcessInput) (*router.Session, *router.Attachment, bool, error) {
	switch in := first.Input.(type) {
	case *nodev1.ProcessInput_Start:
		spec, err := processSpec(in.Start.Spec)
		if err != nil {
			return nil, nil, false, err
		}
		session, err := s.w.use(in.Start.SandboxId)
		if err != nil {
			return nil, nil, false, err
		}
		if code := in.Start.Spec.Code; code != nil {
			if spec.Code, err = s.w.code(ctx, session, in.Start.SandboxId, code); err != nil {
				return nil, nil, false, err
			}
		}
		tracing.Current(ctx).Set(tracing.SandboxID(in.Start.SandboxId), tracing.ProcessID(in.Start.ProcessId), tracing.Kind(in.Start.Kind))
		a, err := session.Start(ctx, router.StartSpec{
			ID: cay.ID(in.Start.ProcessId), Spec: spec, Origin: origin(ctx, in.Start, spec.Code), Hold: !in.Start.Collect, Foreground: in.Start.Foreground,
			KillOnDisconnect: in.Start.KillOnDisconnect, HangupOnDisconnect: in.Start.HangupOnDisconnect,
		})
		return session, a, in.Start.Collect, err
	case *nodev1.ProcessInput_Attach:
		session, err := s.w.readable(in.Attach.SandboxId)
		if err != nil {
			return nil, nil, false, err
		}
		tracing.Current(ctx).Set(tracing.SandboxID(in.Attach.SandboxId))
		a, err := session.Attach(ctx, router.AttachSpec{
			Ref: in.Attach.ProcessId, Offset: in.Attach.Offset, Foreground: in.Attach.Foreground, TakeStdin: in.Attach.TakeStdin,
		})
		return session, a, in.Attach.Collect, err
	}
	return nil, nil, false, cay.Errorf(cay.InvalidRequest, "the first message starts or attaches")
}

func processSpec(p *nodev1.ProcessSpec) (cay.ProcessSpec, error) {
	command := len(p.GetArgv()) > 0 || p.GetShell() != ""
	if p == nil || !command && p.Code == nil && !p.Tty && !p.Login { // on a terminal the shell alone is a command
		return cay.ProcessSpec{}, cay.Errorf(cay.InvalidRequest, "there is no command").On("command")
	}
	if p.Code != nil && (command || p.Tty || p.Login) {
		return cay.ProcessSpec{}, cay.Errorf(cay.InvalidRequest, "a program has neither a command nor a terminal").On("code")
	}
	if p.TimeoutMs < 0 || p.TimeoutMs > math.MaxInt64/int64(time.Millisecond) {
		return cay.ProcessSpec{}, cay.Errorf(cay.InvalidRequest, "the timeout is out of range").On("timeout_seconds")
	}
	return cay.ProcessSpec{
		Argv: p.Argv, Shell: p.Shell, Env: p.Env, Cwd: p.Cwd, User: p.User, Timeout: time.Duration(p.TimeoutMs) * time.Millisecond,
		MaxOutput: p.MaxOutputBytes, TTY: p.Tty, Cols: uint16(min(p.Cols, math.MaxUint16)), Rows: uint16(min(p.Rows, math.MaxUint16)),
		StdinOpen: p.StdinOpen, Login: p.Login, Name: p.Name,
	}, nil
}

// receive feeds the process what the caller sends, at the pace at which it is taken. Errors are the caller's to notice: a process
// that has ended takes no stdin, as a broken pipe would not. strict: a resize that fails ends the stream.
func receive(ctx context.Context, stream *processStream, session *router.Session, a *router.Attachment, strict bool, leave context.CancelCauseFunc) {
	for {
		in, err := stream.Receive()
		if err != nil {
			return
		}
		switch in := in.Input.(type) {
		case *nodev1.ProcessInput_Stdin:
			_ = a.WriteStdin(ctx, in.Stdin)
		case *nodev1.ProcessInput_CloseStdin:
			_ = a.CloseStdin()
		case *nodev1.ProcessInput_Resize:
			err := a.Resize(ctx, uint16(min(in.Resize.Cols, math.MaxUint16)), uint16(min(in.Resize.Rows, math.MaxUint16)))
			if err != nil && strict {
				leave(err)
				return
			}
		case *nodev1.ProcessInput_Signal:
			_ = session.Signal(ctx, string(a.Process().ID()), in.Signal.Signal, in.Signal.Tree)
		case *nodev1.ProcessInput_Detach:
			a.Detach()
			leave(nil)
			return
		}
	}
}

// send passes on the output and then the exit; or, to collect, the exit and then what was kept.
func send(ctx context.Context, stream *processStream, a *router.Attachment, collect bool) error {
	log := a.Process().Log()
	started := &nodev1.Started{
		ProcessId: string(a.Process().ID()), Pid: log.Process().PID, Offset: a.Offset(), StdinOffset: a.StdinOffset(),
	}
	if err := stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Started{Started: started}}); err != nil {
		return err
	}
	if collect {
		if err := a.Ended(ctx); err != nil {
			return err
		}
		if err := sendExit(stream, log); err != nil {
			return err
		}
		if err := sendReport(stream, log); err != nil {
			return err
		}
		for _, which := range []cay.Stream{cay.Stdout, cay.Stderr} {
			if err := sendKept(stream, log, which); err != nil {
				return err
			}
		}
		return nil
	}
	for {
		c, ended, err := a.Next(ctx)
		switch {
		case err != nil:
			return err
		case ended:
			if err := sendExit(stream, log); err != nil {
				return err
			}
			return sendReport(stream, log)
		case c.Gap > 0:
			gap := &nodev1.OutputGap{Stream: uint32(c.Stream), Offset: c.Offset, Bytes: c.Gap}
			err = stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Gap{Gap: gap}})
		default:
			err = sendData(stream, c)
		}
		if err != nil {
			return err
		}
		a.Passed(a.Offset())
	}
}

// sendKept sends what was kept of one stream, and a gap for each run that was not.
func sendKept(stream *processStream, log *spool.Log, which cay.Stream) error {
	var next int64
	gapTo := func(offset int64) error {
		if offset <= next {
			return nil
		}
		gap := &nodev1.OutputGap{Stream: uint32(which), Offset: next, Bytes: offset - next}
		return stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Gap{Gap: gap}})
	}
	size, err := log.Collect(which, func(c spool.Chunk) error {
		if err := gapTo(c.Offset); err != nil {
			return err
		}
		next = c.Offset + int64(len(c.Data))
		return sendData(stream, c)
	})
	if err != nil {
		return err
	}
	return gapTo(size)
}

func sendData(stream *processStream, c spool.Chunk) error {
	return stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Data{
		Data: &nodev1.Data{Stream: uint32(c.Stream), Offset: c.Offset, Data: c.Data, AtUnixMs: unixMS(c.At)},
	}})
}

// unixMS is zero for the zero time.
func unixMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func sendExit(stream *processStream, log *spool.Log) error {
	return stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Exit{Exit: exitMessage(*log.Process().Exit)}})
}

func exitMessage(e cay.ProcessExit) *nodev1.Exit {
	return &nodev1.Exit{
		Code: int32(e.Code), Signal: e.Signal, Reason: string(e.Reason), TimedOut: e.TimedOut, Killed: e.Killed, Oom: e.OOM,
		DurationMs: e.Duration.Milliseconds(), Detail: e.Detail, StdoutSize: e.StdoutLen, StderrSize: e.StderrLen,
		CpuMs: e.CPU.Round(time.Millisecond).Milliseconds(), PeakMemoryMb: e.PeakMemoryMB,
	}
}

func (s service) ListProcesses(ctx context.Context, r *connect.Request[nodev1.ListProcessesRequest]) (*connect.Response[nodev1.ListProcessesResponse], error) {
	return answer(s.w.listProcesses(ctx, r.Msg))
}

const listTimeout = 2 * time.Second

// listProcesses joins what clients started with what the agent sees now. Without an answer of the agent the former alone is listed,
// unless everything was asked for.
func (w *Worker) listProcesses(ctx context.Context, r *nodev1.ListProcessesRequest) (*nodev1.ListProcessesResponse, error) {
	session, err := w.readable(r.SandboxId)
	if err != nil {
		return nil, err
	}
	byID, byPID := map[string]*nodev1.ProcessInfo{}, map[int64]*nodev1.ProcessInfo{}
	list := &nodev1.ListProcessesResponse{}
	for _, log := range session.Logs() {
		info := processInfo(log.Process())
		byID[info.ProcessId] = info
		if info.Status == statusRunning && info.Pid != 0 {
			byPID[info.Pid] = info
		}
		list.Processes = append(list.Processes, info)
	}
	if len(byPID) == 0 && !r.All {
		return list, nil
	}
	if _, err := w.use(r.SandboxId); err != nil {
		if r.All {
			return nil, err
		}
		return list, nil
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	seen, err := session.Processes(ctx)
	if err != nil {
		if r.All {
			return nil, err
		}
		return list, nil
	}
	for _, p := range seen {
		info := byPID[p.Pid]
		if info == nil {
			if !r.All {
				continue
			}
			info = &nodev1.ProcessInfo{Pid: p.Pid, Command: p.Command, Status: statusRunning, StartedUnixMs: p.StartedUnixMs}
			list.Processes = append(list.Processes, info)
		}
		info.Ppid, info.State, info.CpuSeconds, info.RssMb = p.Ppid, p.State, p.CpuSeconds, p.RssBytes>>20
		info.User, info.Cwd = p.User, p.Cwd
	}
	return list, nil
}

// Values of ProcessInfo.status.
const (
	statusRunning = "running"
	statusExited  = "exited"
	statusFailed  = "failed"
)

func processInfo(p spool.Process) *nodev1.ProcessInfo {
	info := &nodev1.ProcessInfo{
		ProcessId: string(p.ID), Pid: p.PID, Name: p.Name, Command: p.Command, User: p.User, Cwd: p.Cwd, Status: statusRunning,
		StartedUnixMs: p.StartedAt.UnixMilli(), Tty: p.TTY, Cols: uint32(p.Cols), Rows: uint32(p.Rows),
	}
	if p.Exit != nil {
		info.Exit, info.EndedUnixMs, info.Status = exitMessage(*p.Exit), p.EndedAt.UnixMilli(), statusExited
		if p.Exit.Reason == cay.ExitStartFailed {
			info.Status = statusFailed
		}
	}
	return info
}
