package router

import (
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// handle takes one frame of an agent. An error ends the connection.
func (s *Session) handle(c *connection, f wire.Frame) error {
	switch f.Type {
	case wire.FrameStdout:
		return s.output(c, cay.Stdout, f)
	case wire.FrameStderr:
		return s.output(c, cay.Stderr, f)
	case wire.FrameMessage:
	default:
		return violation("frame of type %d", f.Type)
	}
	m := new(guestv1.ToNode)
	if f.Stream != 0 {
		return violation("message with a stream number")
	}
	if err := proto.Unmarshal(f.Payload, m); err != nil {
		return violation("message: %v", err)
	}
	if m.ReplyTo != 0 {
		return s.answered(m)
	}
	switch m := m.Message.(type) {
	case *guestv1.ToNode_Exited:
		return s.exited(m.Exited)
	case *guestv1.ToNode_StdinAck:
		return s.stdinAck(c, m.StdinAck)
	case *guestv1.ToNode_Log:
		s.said(m.Log)
		return nil
	default:
		return violation("unasked %T", m)
	}
}

// output moves a run into the spool and acknowledges it.
func (s *Session) output(c *connection, stream cay.Stream, f wire.Frame) error {
	offset, data, err := wire.SplitData(f.Payload)
	if err != nil {
		return err
	}
	s.mu.Lock()
	p, known := s.streams[f.Stream]
	issued := f.Stream <= s.nextStream
	s.mu.Unlock()
	if !known {
		if !issued {
			return violation("output of a process that was never started")
		}
		return nil // of one that the node has settled already
	}
	p.mu.Lock()
	if p.connNext >= 0 && p.connNext != offset {
		next := p.connNext
		p.mu.Unlock()
		return violation("output at %d where %d is next", offset, next)
	}
	p.connNext = offset + int64(len(data))
	p.mu.Unlock()
	switch err := p.log.Append(stream, offset, data); {
	case err == nil:
		s.cfg.Counters.Stored.Add(int64(len(data)))
	case errors.Is(err, spool.ErrEnded):
	case errors.Is(err, spool.ErrOrder):
		return violation("%v", err)
	case !p.unkept.Swap(true): // once: a full disk of the host is met by every frame
		s.cfg.Log.Error("output not kept", "process", p.id, "error", err)
	}
	p.acknowledge()
	return nil
}

// acknowledge tells the agent how much of p's output it need not keep: all that the spool has, or what a holder allows.
func (p *Process) acknowledge() {
	s := p.s
	p.mu.Lock()
	target := p.log.Produced()
	if h := p.hold; h != nil {
		if h.seen <= h.pos && target > h.pos { // it had read all: its time begins now
			h.progressed = time.Now()
		}
		h.seen = target
		if !h.armed && target > h.pos {
			h.armed = true
			h.timer.Reset(s.timing.HoldStall)
		}
		target = min(target, h.pos+holdWindow)
	}
	due := target - p.acked
	if due >= ackEvery {
		p.acked = target
	}
	p.mu.Unlock()
	if due <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if due >= ackEvery {
		if s.conn != nil {
			s.conn.out.ack(p, target)
		}
		return
	}
	// Little output: its acknowledgement can wait for company, since each wakes the agent.
	s.lazy[p] = struct{}{}
	if len(s.lazy) == 1 {
		if s.lazyTimer == nil {
			s.lazyTimer = time.AfterFunc(s.timing.LazyAck, s.acknowledgeLazy)
		} else {
			s.lazyTimer.Reset(s.timing.LazyAck)
		}
	}
}

func (s *Session) acknowledgeLazy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.lazy {
		delete(s.lazy, p)
		s.ackNow(s.conn, p)
	}
}

// ackNow acknowledges all that may be. With s.mu.
func (s *Session) ackNow(c *connection, p *Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	target := p.log.Produced()
	if p.hold != nil {
		target = min(target, p.hold.pos+holdWindow)
	}
	if target > p.acked && c != nil {
		p.acked = target
		c.out.ack(p, target)
	}
}

func (s *Session) exited(m *guestv1.Exited) error {
	id := cay.ID(m.ProcessId)
	s.mu.Lock()
	p, known := s.processes[id]
	s.mu.Unlock()
	if !known {
		// Ended before this node began, or given up: the agent need not keep it. An exit of something that never was costs it a
		// Forget and us nothing.
		if _, ok := cay.ParseID(cay.PrefixProcess, m.ProcessId); !ok {
			return violation("exit of a process with a malformed id")
		}
		s.tell(forgetMessage(id))
		return nil
	}
	p.mu.Lock()
	ran := p.ran
	p.mu.Unlock()
	if !ran {
		return violation("exit before start")
	}
	if p.isDone() {
		s.tell(forgetMessage(id))
		return nil
	}
	missing := m.Produced != p.log.Produced()
	err := p.settle(m)
	if missing {
		return violation("exit at offset %d where output ends at %d", m.Produced, p.log.Produced())
	}
	return err
}

func (s *Session) stdinAck(c *connection, m *guestv1.StdinAck) error {
	s.mu.Lock()
	p, known := s.processes[cay.ID(m.ProcessId)]
	s.mu.Unlock()
	if !known {
		return nil // given up meanwhile
	}
	p.mu.Lock()
	err := p.in.ack(m.Offset)
	more := p.in.sent < p.in.end()
	p.mu.Unlock()
	if err == nil && more {
		c.out.stdinReady(p)
	}
	return err
}

// reconcile compares what the agent says it runs with what the node knows, and queues on c what the agent must be told again.
// With s.mu.
func (s *Session) reconcile(c *connection, h *guestv1.Hello) error {
	if len(h.Processes) > maxRunning {
		return violation("hello with %d processes", len(h.Processes))
	}
	named := make(map[*Process]bool, len(h.Processes))
	for _, r := range h.Processes {
		id, ok := cay.ParseID(cay.PrefixProcess, r.ProcessId)
		if !ok || r.Acknowledged < 0 || r.Produced < r.Acknowledged || r.Produced > 1<<60 || r.Stream == 0 {
			return violation("hello with a malformed process")
		}
		p := s.processes[id]
		if p == nil && s.adopting {
			p = s.adopt(id, r)
		}
		switch {
		case p == nil || p.isDone():
			// Settled here, alive there: it must not run on unseen.
			c.out.add(appendMessage(nil, signalMessage(id, unix.SIGKILL, true)))
			c.out.add(appendMessage(nil, forgetMessage(id)))
			continue
		case named[p]:
			return violation("hello names a process twice")
		case p.stream != r.Stream:
			return violation("stream %d of process %s, which has %d", r.Stream, p.id, p.stream)
		}
		named[p] = true
		p.log.Skip(r.Acknowledged)
		p.mu.Lock()
		err := p.in.reconnected(r.StdinOffset, s.adopting)
		p.connNext = -1
		p.acked = r.Acknowledged
		kill, interrupt := p.killed, p.interrupted
		if p.report != nil && !p.timedOut { // it was missing before
			p.report.Stop()
			p.report = nil
		}
		p.mu.Unlock()
		if err != nil {
			return err
		}
		switch {
		case kill:
			c.out.add(appendMessage(nil, signalMessage(id, unix.SIGKILL, true)))
		case interrupt:
			c.out.add(appendMessage(nil, signalMessage(id, unix.SIGINT, false)))
		}
		s.ackNow(c, p)
		c.out.stdinReady(p)
	}
	for _, p := range s.streams {
		p.mu.Lock()
		p.connNext = -1
		ran := p.ran
		p.mu.Unlock()
		if ran && !named[p] { // else its start is asked again
			s.missing(c, p)
		}
	}
	return nil
}

// adopt makes an entry for a process that an earlier node started and could not write down. With s.mu.
func (s *Session) adopt(id cay.ID, r *guestv1.Running) *Process {
	if s.streams[r.Stream] != nil || len(s.streams) >= maxRunning || r.Stream > s.nextStream {
		return nil
	}
	log, ok := s.cfg.Spool.Get(id)
	if !ok {
		var err error
		log, err = s.cfg.Spool.Create(spool.Process{ID: id, Stream: r.Stream, PID: r.Pid, StartedAt: time.Now()})
		if err != nil {
			return nil
		}
	} else if log.Process().Exit != nil {
		return nil
	}
	log.Update(func(m *spool.Process) {
		m.Stream, m.PID = r.Stream, r.Pid
		if m.StartedAt.IsZero() {
			m.StartedAt = time.Now()
		}
	})
	p := s.resume(log)
	s.markDirty(p)
	return p
}

// missing settles a process that the agent no longer names, unless its exit comes soon. With s.mu.
func (s *Session) missing(c *connection, p *Process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.report != nil || p.exit != nil {
		return // a timeout is settled anyway, and so is a program that has ended
	}
	p.report = time.AfterFunc(s.timing.Lost, func() {
		s.mu.Lock()
		same := s.conn == c
		s.mu.Unlock()
		if same {
			p.finish(exitOf(cay.ExitKilled, "the sandbox's agent lost it"))
			return
		}
		p.mu.Lock()
		p.report = nil // the next hello decides
		p.mu.Unlock()
	})
}
