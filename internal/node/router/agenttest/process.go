package agenttest

import (
	"bytes"
	"io"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// Process is a script that runs. Its fields are guarded by the agent's lock.
type Process struct {
	Start   *guestv1.Start
	PID     int64
	Signals []*guestv1.Signal

	a        *Agent
	kept     []run1 // one element for each byte that is not acknowledged
	base     int64
	sent     int64
	flooded  int64 // end of what Flood sent, which is not kept
	input    bytes.Buffer
	received int64
	taken    int64
	eof      bool
	killed   int32
	lost     bool
	exit     *guestv1.Exited
}

// run1 is one byte of output and its stream.
type run1 struct {
	stream wire.FrameType
	b      byte
}

func (a *Agent) start(s *guestv1.Start) *guestv1.ToNode {
	if p := a.processes[s.ProcessId]; p != nil {
		return &guestv1.ToNode{Message: &guestv1.ToNode_Started{Started: &guestv1.Started{Pid: p.PID}}}
	}
	if s.Cwd == "/nope" {
		return problem("unprocessable", "cwd /nope does not exist")
	}
	a.starts = append(a.starts, s)
	p := &Process{Start: s, a: a, PID: int64(100 + len(a.starts)), eof: !s.Stdin}
	if a.script(s) == nil {
		p.PID = 0
	}
	a.processes[s.ProcessId] = p
	return &guestv1.ToNode{Message: &guestv1.ToNode_Started{Started: &guestv1.Started{Pid: p.PID}}}
}

func (a *Agent) script(s *guestv1.Start) Script {
	name := s.Shell
	if s.Code != nil {
		name = s.Code.Language
	}
	if len(s.Argv) > 0 {
		name = s.Argv[0]
	}
	return a.Scripts[name]
}

func (a *Agent) run(id string) {
	a.mu.Lock()
	p := a.processes[id]
	a.mu.Unlock()
	if p == nil || p.exit != nil {
		return
	}
	script := a.script(p.Start)
	if script == nil {
		script = func(p *Process) *guestv1.Exited {
			p.Write(wire.FrameStderr, []byte("not found\n"))
			return &guestv1.Exited{Code: 127}
		}
	}
	a.work.Go(func() {
		e := script(p)
		a.mu.Lock()
		if e == nil {
			e = &guestv1.Exited{}
		}
		if p.killed != 0 && e.Signal == 0 && e.Code == 0 {
			e.Signal = p.killed
		}
		e.ProcessId, e.Produced = id, max(p.base+int64(len(p.kept)), p.flooded)
		p.exit = e
		lost := p.lost
		a.mu.Unlock()
		if lost {
			return
		}
		a.Tell(&guestv1.ToNode{Message: &guestv1.ToNode_Exited{Exited: e}})
	})
}

// end notes a signal that ends the process.
func (p *Process) end(sig int32) {
	if p.killed == 0 {
		p.killed = sig
	}
}

// Write produces output; it waits for credit, and fails when the process was killed.
func (p *Process) Write(stream wire.FrameType, data []byte) error {
	a := p.a
	for len(data) > 0 {
		a.mu.Lock()
		for len(p.kept) >= window && p.killed == 0 {
			a.cond.Wait()
		}
		if p.killed != 0 {
			a.mu.Unlock()
			return io.ErrClosedPipe
		}
		n := min(len(data), window-len(p.kept), wire.MaxDataRun)
		for _, b := range data[:n] {
			p.kept = append(p.kept, run1{stream, b})
		}
		a.flush(p)
		a.mu.Unlock()
		data = data[n:]
	}
	return nil
}

// flush sends what was not sent on this connection. With a.mu.
func (a *Agent) flush(p *Process) {
	var frames []byte
	for i := p.sent - p.base; i < int64(len(p.kept)); {
		stream := p.kept[i].stream
		var data []byte
		for j := i; j < int64(len(p.kept)) && p.kept[j].stream == stream && len(data) < wire.MaxDataRun; j++ {
			data = append(data, p.kept[j].b)
		}
		frames = wire.AppendData(frames, stream, p.Start.Stream, p.base+i, data)
		i += int64(len(data))
		p.sent = p.base + i
	}
	if a.control != nil {
		a.wmu.Lock()
		a.control.Write(frames)
		a.wmu.Unlock()
	}
}

// Read takes stdin; io.EOF when it was closed.
func (p *Process) Read(b []byte) (int, error) {
	a := p.a
	a.mu.Lock()
	for p.input.Len() == 0 && !p.eof && p.killed == 0 {
		a.cond.Wait()
	}
	if p.killed != 0 || p.input.Len() == 0 {
		a.mu.Unlock()
		return 0, io.EOF
	}
	n, _ := p.input.Read(b)
	p.taken += int64(n)
	ack := &guestv1.StdinAck{ProcessId: p.Start.ProcessId, Offset: p.taken}
	a.mu.Unlock()
	a.Tell(&guestv1.ToNode{Message: &guestv1.ToNode_StdinAck{StdinAck: ack}})
	return n, nil
}

// Killed waits until the process is killed and returns the signal.
func (p *Process) Killed() int32 {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	for p.killed == 0 {
		p.a.cond.Wait()
	}
	return p.killed
}

// Signalled waits for signal number n, from 0 on.
func (p *Process) Signalled(n int) *guestv1.Signal {
	p.a.mu.Lock()
	defer p.a.mu.Unlock()
	for len(p.Signals) <= n {
		p.a.cond.Wait()
	}
	return p.Signals[n]
}

// Flood writes data to stdout n times as fast as the credit allows, without being able to send any of it again.
func (p *Process) Flood(data []byte, n int) {
	a := p.a
	for range n {
		a.mu.Lock()
		for p.sent-p.base > window-int64(len(data)) && p.killed == 0 {
			a.cond.Wait()
		}
		if p.killed != 0 {
			a.mu.Unlock()
			return
		}
		at, c := p.sent, a.control
		p.sent += int64(len(data))
		p.flooded = p.sent
		a.mu.Unlock()
		a.wmu.Lock()
		c.Write(wire.AppendData(nil, wire.FrameStdout, p.Start.Stream, at, data))
		a.wmu.Unlock()
	}
}
