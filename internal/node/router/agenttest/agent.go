// Package agenttest is an agent for tests: it speaks the guest hop over whatever connections a test hands it, runs scripts written in
// Go instead of processes, and can be told to break the protocol. It is no model of the real agent's insides.
package agenttest

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// window is what an agent keeps of output that is not acknowledged.
const window = 256 << 10

// Script stands for a program. It writes with p.Write and returns its exit.
type Script func(p *Process) *guestv1.Exited

// Agent is one sandbox's agent. Set the fields before it is dialled.
type Agent struct {
	Generation uint64
	Scripts    map[string]Script // by argv[0], or the shell string, or the language of a program
	Reports    map[string][]byte // what ReadReport answers, by language
	Silent     bool              // dials, says hello, and then nothing
	NoHello    bool
	// Answer, when it is set and returns something, is used instead of the agent's own answer.
	Answer func(m *guestv1.ToAgent) *guestv1.ToNode
	Files  map[string][]byte
	Ports  map[int]func(net.Conn) // servers; a connection ends when its function returns
	// Transfer, when it is set, carries every transfer instead of the agent's own way; the connection is closed after it.
	Transfer func(b *guestv1.Bulk, c net.Conn)

	once sync.Once
	gone chan struct{}
	work sync.WaitGroup

	mu        sync.Mutex
	cond      *sync.Cond
	control   net.Conn
	claimed   string
	processes map[string]*Process
	starts    []*guestv1.Start
	bulk      map[[wire.TokenLen]byte]chan net.Conn
	left      map[[wire.TokenLen]byte]bool // tokens that nobody waits for any longer
	wmu       sync.Mutex
}

func (a *Agent) init() {
	a.once.Do(func() {
		a.cond = sync.NewCond(&a.mu)
		a.gone = make(chan struct{})
		a.processes = map[string]*Process{}
		a.bulk = map[[wire.TokenLen]byte]chan net.Conn{}
		if a.Generation == 0 {
			a.Generation = 1
		}
	})
}

// Dial is what a driver's Dial would be for this agent.
func (a *Agent) Dial(ctx context.Context, purpose driver.Purpose) (net.Conn, error) {
	a.init()
	if purpose.Kind == wire.ConnBulk {
		select {
		case conn := <-a.token(purpose.Token):
			return conn, nil
		case <-ctx.Done():
			a.leave(purpose.Token)
			return nil, ctx.Err()
		case <-a.gone:
			return nil, driver.ErrGone
		}
	}
	select {
	case <-a.gone:
		return nil, driver.ErrGone
	default:
	}
	node, agent, err := Pair()
	if err != nil {
		return nil, err
	}
	a.work.Go(func() { a.serve(agent) })
	return node, nil
}

func (a *Agent) token(t [wire.TokenLen]byte) chan net.Conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bulk[t] == nil {
		a.bulk[t] = make(chan net.Conn, 1)
	}
	return a.bulk[t]
}

// leave closes the connection of a token that nobody waits for any longer, also one that is still to come.
func (a *Agent) leave(t [wire.TokenLen]byte) {
	waiting := a.token(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left == nil {
		a.left = map[[wire.TokenLen]byte]bool{}
	}
	a.left[t] = true
	select {
	case conn := <-waiting:
		conn.Close()
	default:
	}
}

// deliver hands a connection to whoever waits for its token.
func (a *Agent) deliver(t [wire.TokenLen]byte, conn net.Conn) {
	waiting := a.token(t)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left[t] {
		conn.Close()
		return
	}
	waiting <- conn
}

// Drop ends the control connection, as a lost one would; the agent keeps its processes.
func (a *Agent) Drop() {
	a.init()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.control != nil {
		a.control.Close()
	}
}

// Kill ends the agent as the end of its sandbox would.
func (a *Agent) Kill() {
	a.init()
	a.mu.Lock()
	select {
	case <-a.gone:
	default:
		close(a.gone)
	}
	if a.control != nil {
		a.control.Close()
	}
	for _, p := range a.processes {
		p.end(9)
	}
	a.cond.Broadcast()
	a.mu.Unlock()
	a.work.Wait()
}

// Starts lists what was started.
func (a *Agent) Starts() []*guestv1.Start {
	a.init()
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]*guestv1.Start(nil), a.starts...)
}

// Claimed is the sandbox that claimed it.
func (a *Agent) Claimed() string {
	a.init()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claimed
}

// Known lists the processes that were not forgotten.
func (a *Agent) Known() int {
	a.init()
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.processes)
}

// Send writes raw frames to the control connection.
func (a *Agent) Send(b []byte) {
	a.mu.Lock()
	c := a.control
	a.mu.Unlock()
	if c != nil {
		a.wmu.Lock()
		defer a.wmu.Unlock()
		c.Write(b)
	}
}

// Tell sends a message.
func (a *Agent) Tell(m *guestv1.ToNode) { a.Send(Encode(m)) }

// Encode makes a message frame.
func Encode(m *guestv1.ToNode) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return wire.AppendFrame(nil, wire.Frame{Type: wire.FrameMessage, Payload: b})
}

func (a *Agent) serve(c net.Conn) {
	defer c.Close()
	if a.NoHello {
		<-a.gone
		return
	}
	a.mu.Lock()
	select {
	case <-a.gone:
		a.mu.Unlock()
		return
	default:
	}
	hello := &guestv1.Hello{Protocol: wire.GuestProtocol, Generation: a.Generation, Claimed: a.claimed != "", Version: "test"}
	var exits [][]byte
	for id, p := range a.processes {
		hello.Processes = append(hello.Processes, &guestv1.Running{
			ProcessId: id, Pid: p.PID, Produced: p.base + int64(len(p.kept)), Acknowledged: p.base, StdinOffset: p.received, Stream: p.Start.Stream,
		})
		p.sent = p.base
		if p.exit != nil {
			exits = append(exits, Encode(&guestv1.ToNode{Message: &guestv1.ToNode_Exited{Exited: p.exit}}))
		}
	}
	a.wmu.Lock()
	a.control = c
	c.Write(Encode(&guestv1.ToNode{Message: &guestv1.ToNode_Hello{Hello: hello}}))
	a.wmu.Unlock()
	for _, p := range a.processes {
		a.flush(p)
	}
	a.mu.Unlock()
	for _, e := range exits {
		a.Send(e)
	}
	r := wire.NewReader(bufio.NewReader(c))
	var parts []byte
	for {
		f, err := r.Read()
		if err != nil {
			return
		}
		if a.Silent {
			continue
		}
		switch f.Type {
		case wire.FramePart:
			parts = append(parts, f.Payload...)
		case wire.FrameStdin:
			a.stdin(f)
		case wire.FrameMessage:
			m := new(guestv1.ToAgent)
			if proto.Unmarshal(append(parts, f.Payload...), m) != nil {
				return
			}
			parts = nil
			a.handle(m)
		}
	}
}

func (a *Agent) stdin(f wire.Frame) {
	offset, data, _ := wire.SplitData(f.Payload)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.processes {
		if p.Start.Stream == f.Stream && offset <= p.received && offset+int64(len(data)) > p.received {
			data = data[p.received-offset:]
			p.received += int64(len(data))
			p.input.Write(data)
			a.cond.Broadcast()
		}
	}
}

func problem(reason, detail string) *guestv1.ToNode {
	return &guestv1.ToNode{Message: &guestv1.ToNode_Problem{Problem: &guestv1.Problem{Reason: reason, Detail: detail}}}
}

func (a *Agent) handle(m *guestv1.ToAgent) {
	var answer *guestv1.ToNode
	if a.Answer != nil {
		answer = a.Answer(m)
	}
	if answer == nil {
		answer = a.answer(m)
	}
	if answer != nil && m.Id != 0 {
		answer.ReplyTo = m.Id
		a.Tell(answer)
	}
	if s := m.GetStart(); s != nil && answer.GetStarted() != nil {
		a.run(s.ProcessId)
	}
}

func done() *guestv1.ToNode {
	return &guestv1.ToNode{Message: &guestv1.ToNode_Done{Done: &guestv1.Done{}}}
}

func (a *Agent) answer(m *guestv1.ToAgent) *guestv1.ToNode {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch m := m.Message.(type) {
	case *guestv1.ToAgent_Claim:
		if a.claimed != "" && a.claimed != m.Claim.SandboxId {
			return problem("conflict", "claimed already")
		}
		a.claimed = m.Claim.SandboxId
	case *guestv1.ToAgent_Start:
		return a.start(m.Start)
	case *guestv1.ToAgent_Ack:
		if p := a.processes[m.Ack.ProcessId]; p != nil && m.Ack.Offset > p.base {
			p.kept = p.kept[min(m.Ack.Offset-p.base, int64(len(p.kept))):]
			p.base = m.Ack.Offset
			a.cond.Broadcast()
		}
	case *guestv1.ToAgent_Signal:
		p := a.processes[m.Signal.ProcessId]
		for _, q := range a.processes {
			if p == nil && m.Signal.Pid != 0 && q.PID == m.Signal.Pid {
				p = q
			}
		}
		if p == nil {
			return problem("not_found", "no such process")
		}
		p.Signals = append(p.Signals, m.Signal)
		p.end(m.Signal.Signal)
		a.cond.Broadcast()
	case *guestv1.ToAgent_CloseStdin:
		if p := a.processes[m.CloseStdin.ProcessId]; p != nil {
			p.eof = true
			a.cond.Broadcast()
		}
	case *guestv1.ToAgent_Forget:
		if p := a.processes[m.Forget.ProcessId]; p != nil && p.exit != nil {
			delete(a.processes, m.Forget.ProcessId)
		}
	case *guestv1.ToAgent_ListProcesses:
		list := &guestv1.ProcessList{}
		for id, p := range a.processes {
			list.Processes = append(list.Processes, &guestv1.Process{ProcessId: id, Pid: p.PID, State: "S", Command: p.Start.Argv, RssBytes: 1 << 20})
		}
		list.Processes = append(list.Processes, &guestv1.Process{Pid: 9999, State: "R", Command: []string{"child"}})
		return &guestv1.ToNode{Message: &guestv1.ToNode_Processes{Processes: list}}
	case *guestv1.ToAgent_Stat:
		if b, ok := a.Files[m.Stat.Path]; ok {
			return file(m.Stat.Path, b)
		}
		return problem("not_found", "there is no "+m.Stat.Path)
	case *guestv1.ToAgent_List:
		list := &guestv1.FileList{}
		for path, b := range a.Files {
			list.Items = append(list.Items, file(path, b).GetFile())
		}
		return &guestv1.ToNode{Message: &guestv1.ToNode_Files{Files: list}}
	case *guestv1.ToAgent_Mkdir:
		return &guestv1.ToNode{Message: &guestv1.ToNode_File{File: &guestv1.FileInfo{Path: m.Mkdir.Path, Type: "directory"}}}
	case *guestv1.ToAgent_Move:
		a.Files[m.Move.To] = a.Files[m.Move.From]
		delete(a.Files, m.Move.From)
		return file(m.Move.To, a.Files[m.Move.To])
	case *guestv1.ToAgent_Remove:
		delete(a.Files, m.Remove.Path)
	case *guestv1.ToAgent_GetStats:
		return &guestv1.ToNode{Message: &guestv1.ToNode_Stats{Stats: &guestv1.Stats{DiskUsedBytes: 5 << 20, Pids: 3}}}
	case *guestv1.ToAgent_Reclaim:
		killed := &guestv1.Killed{}
		for id, p := range a.processes {
			killed.Victims = append(killed.Victims, &guestv1.Killed_Victim{ProcessId: id, Pid: p.PID, RssBytes: 900 << 20, Name: "hog"})
			p.end(9)
		}
		a.cond.Broadcast()
		return &guestv1.ToNode{Message: &guestv1.ToNode_Killed{Killed: killed}}
	case *guestv1.ToAgent_Bulk:
		bulk := m.Bulk
		a.work.Go(func() { a.transfer(bulk) })
	}
	return done()
}

func file(path string, b []byte) *guestv1.ToNode {
	return &guestv1.ToNode{Message: &guestv1.ToNode_File{File: &guestv1.FileInfo{
		Path: path, Name: []byte(path), Type: "file", Size: int64(len(b)), Mode: 0o644, Inode: 7,
	}}}
}

func (a *Agent) transfer(b *guestv1.Bulk) {
	node, c, err := Pair()
	if err != nil {
		return
	}
	defer c.Close()
	a.deliver([wire.TokenLen]byte(b.Token), node)
	if a.Transfer != nil {
		a.Transfer(b, c)
		return
	}
	header := func(h *guestv1.BulkHeader) {
		p, _ := proto.Marshal(h)
		c.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameHeader, Payload: p}))
	}
	if d := b.GetDialPort(); d != nil {
		serve := a.Ports[int(d.Port)]
		if serve == nil {
			header(&guestv1.BulkHeader{Problem: &guestv1.Problem{Reason: "unavailable", Detail: "refused"}})
			return
		}
		header(&guestv1.BulkHeader{Done: &guestv1.Done{}})
		serve(c)
		return
	}
	if r := b.GetReadReport(); r != nil {
		a.mu.Lock()
		p := a.processes[r.ProcessId]
		a.mu.Unlock()
		if p == nil {
			header(&guestv1.BulkHeader{Problem: &guestv1.Problem{Reason: "not_found", Detail: "no report"}})
			return
		}
		header(&guestv1.BulkHeader{Done: &guestv1.Done{}})
		for data := a.Reports[p.Start.Code.GetLanguage()]; len(data) > 0; {
			n := min(len(data), wire.MaxFrame)
			if _, err := c.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameData, Payload: data[:n]})); err != nil {
				return
			}
			data = data[n:]
		}
		c.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameEnd}))
		return
	}
	if r := b.GetReadFile(); r != nil {
		a.mu.Lock()
		data, ok := a.Files[r.Path]
		a.mu.Unlock()
		if !ok {
			header(&guestv1.BulkHeader{Problem: &guestv1.Problem{Reason: "not_found", Detail: "no file"}})
			return
		}
		header(&guestv1.BulkHeader{File: file(r.Path, data).GetFile()})
		data = data[min(r.Offset, int64(len(data))):]
		if r.Length >= 0 {
			data = data[:min(r.Length, int64(len(data)))]
		}
		for len(data) > 0 {
			n := min(len(data), wire.MaxFrame)
			if _, err := c.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameData, Payload: data[:n]})); err != nil {
				return
			}
			data = data[n:]
		}
		c.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameEnd}))
		return
	}
	w := b.GetWriteFile()
	var content bytes.Buffer
	r := wire.NewReader(c)
	for {
		f, err := r.Read()
		switch {
		case err != nil:
			return
		case f.Type == wire.FrameCommit:
			a.mu.Lock()
			if a.Files == nil {
				a.Files = map[string][]byte{}
			}
			a.Files[w.Path] = content.Bytes()
			a.mu.Unlock()
			header(&guestv1.BulkHeader{File: file(w.Path, content.Bytes()).GetFile()})
			return
		case content.Len() > 64<<20:
			header(&guestv1.BulkHeader{Problem: &guestv1.Problem{Reason: "disk_full", Detail: "no space left"}})
			return
		}
		content.Write(f.Payload)
	}
}

// Pair makes two connected unix sockets.
func Pair() (node, agent net.Conn, err error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "", Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	l.SetDeadline(time.Now().Add(5 * time.Second))
	dialed := make(chan error, 1)
	go func() {
		var err error
		agent, err = net.Dial("unix", l.Addr().String())
		dialed <- err
	}()
	node, err = l.Accept()
	if derr := <-dialed; err == nil {
		err = derr
	}
	return node, agent, err
}

// Lose forgets a process without a word.
func (a *Agent) Lose(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.processes[id]; p != nil {
		p.end(9)
		delete(a.processes, id)
		p.lost = true
	}
	a.cond.Broadcast()
}
