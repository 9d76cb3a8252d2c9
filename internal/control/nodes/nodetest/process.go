package nodetest

import (
	"context"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// Process is a process of a sandbox. It lives on when the node is killed, and ends with its sandbox.
type Process struct {
	Start *nodev1.StartProcess
	Gone  chan struct{} // closed when its sandbox is gone

	mu      sync.Mutex
	changed chan struct{}                    // guarded by mu; closed when anything of it changes
	runs    []*nodev1.ReadOutputResponse_Run // guarded by mu
	stdin   []byte                           // guarded by mu
	closed  bool                             // guarded by mu; stdin
	killed  bool                             // guarded by mu
	exit    *nodev1.Exit                     // guarded by mu
	report  *nodev1.CodeReport               // guarded by mu
}

// Processes are those that were ever started in a sandbox, each once.
func (n *Node) Processes(sandbox cay.ID) []*Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []*Process
	for _, p := range n.processes {
		if sandbox == "" || p.Start.SandboxId == string(sandbox) {
			list = append(list, p)
		}
	}
	return list
}

// change edits the process and wakes who waits for it.
func (p *Process) change(edit func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	edit()
	close(p.changed)
	p.changed = make(chan struct{})
}

// until waits until holds, which is called with the lock held. It is false when the sandbox went away or ctx ended first.
func (p *Process) until(ctx context.Context, holds func() bool) bool {
	for {
		p.mu.Lock()
		ok, changed := holds(), p.changed
		p.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-p.Gone:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func (p *Process) produced() int64 {
	if len(p.runs) == 0 {
		return 0
	}
	last := p.runs[len(p.runs)-1]
	return last.Offset + int64(len(last.Data)) + last.Gap
}

// Write adds output.
func (p *Process) Write(s cay.Stream, data string) {
	p.change(func() {
		p.runs = append(p.runs, &nodev1.ReadOutputResponse_Run{Stream: uint32(s), Offset: p.produced(), Data: []byte(data)})
	})
}

// Report says what it left behind.
func (p *Process) Report(r *nodev1.CodeReport) { p.change(func() { p.report = r }) }

// Stdin waits until stdin was closed, and returns all of it.
func (p *Process) Stdin() string {
	p.until(context.Background(), func() bool { return p.closed || p.killed })
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.stdin)
}

// Killed waits for a signal, or for the end of the sandbox.
func (p *Process) Killed() {
	p.until(context.Background(), func() bool { return p.killed })
}

// KilledExit is the exit of a process that a signal has ended.
func KilledExit() *nodev1.Exit {
	return &nodev1.Exit{Code: 137, Signal: "KILL", Reason: string(cay.ExitKilled), Killed: true, DurationMs: 5}
}

func (n *Node) process(id string) *Process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.processes[id]
}

// start runs a process unless it was started before.
func (n *Node) start(st *nodev1.StartProcess) (*Process, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.states[st.SandboxId] == "" {
		return nil, cay.Errorf(cay.NotFound, "there is no sandbox %s", st.SandboxId)
	}
	if p := n.processes[st.ProcessId]; p != nil {
		return p, nil
	}
	p := &Process{Start: st, Gone: make(chan struct{}), changed: make(chan struct{}), closed: !st.Spec.StdinOpen}
	n.processes[st.ProcessId] = p
	run, began := n.OnProcess, time.Now()
	n.running.Go(func() {
		exit := &nodev1.Exit{Reason: string(cay.ExitExited), DurationMs: 5}
		if run != nil {
			exit = run(p)
		}
		p.change(func() { p.exit = exit })
		if r := recordOf(p, began, time.Now(), exit); r != nil {
			n.AddRecord(r)
		}
	})
	return p, nil
}

// end lets the processes of a sandbox go with it. With n.mu.
func (n *Node) end(sandbox string) {
	for _, p := range n.processes {
		if p.Start.SandboxId != sandbox {
			continue
		}
		select {
		case <-p.Gone:
		default:
			close(p.Gone)
		}
	}
}

// Process implements the node service.
func (n *Node) Process(ctx context.Context, stream *connect.BidiStream[nodev1.ProcessInput, nodev1.ProcessOutput]) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	var p *Process
	if st := first.GetStart(); st != nil {
		if n.OnStart != nil {
			if err := n.OnStart(ctx, st); err != nil {
				return noderpc.Encode(err)
			}
		}
		if p, err = n.start(st); err != nil {
			return noderpc.Encode(err)
		}
	} else if p = n.process(first.GetAttach().GetProcessId()); p == nil {
		return noderpc.Encode(cay.Errorf(cay.NotFound, "there is no process %s", first.GetAttach().GetProcessId()))
	}
	at := first.GetAttach()
	p.mu.Lock()
	started := &nodev1.Started{ProcessId: p.Start.ProcessId, StdinOffset: int64(len(p.stdin))}
	beyond := at.GetOffset() > p.produced()
	p.mu.Unlock()
	if beyond {
		return noderpc.Encode(cay.Errorf(cay.InvalidRequest, "the offset is beyond the end").On("offset"))
	}
	if err := stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Started{Started: started}}); err != nil {
		return err
	}
	switch {
	case at.GetTakeStdin():
		return p.takeStdin(stream)
	case at == nil || at.Collect:
		return p.collect(ctx, stream)
	}
	return p.live(ctx, stream, at.Offset)
}

func (p *Process) takeStdin(stream *connect.BidiStream[nodev1.ProcessInput, nodev1.ProcessOutput]) error {
	for {
		m, err := stream.Receive()
		if err != nil {
			return err
		}
		switch in := m.Input.(type) {
		case *nodev1.ProcessInput_Stdin:
			p.change(func() { p.stdin = append(p.stdin, in.Stdin...) })
		case *nodev1.ProcessInput_CloseStdin:
			p.change(func() { p.closed = true })
		case *nodev1.ProcessInput_Detach:
			return stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Started{Started: &nodev1.Started{}}})
		}
	}
}

func errGone() error { return noderpc.Encode(cay.Errorf(cay.Gone, "the sandbox is gone")) }

func (p *Process) collect(ctx context.Context, stream *connect.BidiStream[nodev1.ProcessInput, nodev1.ProcessOutput]) error {
	if !p.until(ctx, func() bool { return p.exit != nil }) {
		return errGone()
	}
	if err := stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Exit{Exit: p.exit}}); err != nil {
		return err
	}
	report := p.report
	if report == nil {
		report = &nodev1.CodeReport{}
	}
	return stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Report{Report: report}})
}

func (p *Process) live(ctx context.Context, stream *connect.BidiStream[nodev1.ProcessInput, nodev1.ProcessOutput], offset int64) error {
	for {
		if !p.until(ctx, func() bool { return p.exit != nil || p.produced() > offset }) {
			return errGone()
		}
		page := p.page(offset, 1<<20)
		for _, r := range page.Runs {
			if err := stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Data{
				Data: &nodev1.Data{Stream: r.Stream, Offset: r.Offset, Data: r.Data},
			}}); err != nil {
				return err
			}
		}
		if page.NextOffset == offset {
			return stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Exit{Exit: p.exit}})
		}
		offset = page.NextOffset
	}
}

// page reads what was written from an offset on.
func (p *Process) page(offset, limit int64) *nodev1.ReadOutputResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := &nodev1.ReadOutputResponse{Produced: p.produced(), NextOffset: offset, Process: &nodev1.ProcessInfo{Exit: p.exit}}
	for _, r := range p.runs {
		skip := max(offset-r.Offset, 0)
		if skip >= int64(len(r.Data)) || limit <= 0 {
			continue
		}
		data := r.Data[skip:]
		data = data[:min(int64(len(data)), limit)]
		limit -= int64(len(data))
		page.Runs = append(page.Runs, &nodev1.ReadOutputResponse_Run{Stream: r.Stream, Offset: r.Offset + skip, Data: data})
		page.NextOffset = r.Offset + skip + int64(len(data))
	}
	return page
}

// ReadOutput implements the node service.
func (n *Node) ReadOutput(ctx context.Context, r *connect.Request[nodev1.ReadOutputRequest]) (*connect.Response[nodev1.ReadOutputResponse], error) {
	if n.OnRead != nil {
		if err := n.OnRead(ctx); err != nil {
			return nil, noderpc.Encode(err)
		}
	}
	p := n.process(r.Msg.ProcessId)
	if p == nil || n.State(cay.ID(r.Msg.SandboxId)) == "" {
		return nil, errGone()
	}
	return connect.NewResponse(p.page(r.Msg.Offset, r.Msg.Limit)), nil
}

// Signal implements the node service.
func (n *Node) Signal(_ context.Context, r *connect.Request[nodev1.SignalRequest]) (*connect.Response[nodev1.SignalResponse], error) {
	if p := n.process(r.Msg.ProcessId); p != nil {
		p.change(func() { p.killed = true })
	}
	return connect.NewResponse(&nodev1.SignalResponse{}), nil
}

// GetMetrics implements the node service: every sandbox has used the same.
func (n *Node) GetMetrics(context.Context, *connect.Request[nodev1.GetMetricsRequest]) (*connect.Response[nodev1.GetMetricsResponse], error) {
	return connect.NewResponse(&nodev1.GetMetricsResponse{Usage: &nodev1.Usage{CpuSeconds: 0.25, PeakMemoryMb: 33}}), nil
}

// ReadFile implements the node service: the sandboxes' files are Files.
func (n *Node) ReadFile(_ context.Context, r *connect.Request[nodev1.ReadFileRequest], stream *connect.ServerStream[nodev1.ReadFileResponse]) error {
	content, ok := n.Files[r.Msg.Path]
	if !ok {
		return noderpc.Encode(cay.Errorf(cay.NotFound, "there is no %s", r.Msg.Path))
	}
	info := &nodev1.FileInfo{Path: r.Msg.Path, Type: "file", Size: int64(len(content))}
	if err := stream.Send(&nodev1.ReadFileResponse{Part: &nodev1.ReadFileResponse_Info{Info: info}}); err != nil {
		return err
	}
	err := stream.Send(&nodev1.ReadFileResponse{Part: &nodev1.ReadFileResponse_Data{Data: []byte(content)}})
	if err == io.EOF {
		return nil
	}
	return err
}
