package router

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/spool"
)

// hold is the reader that holds a process back. Guarded by the process's mu.
type hold struct {
	pos        int64 // passed on
	seen       int64 // produced when that was last looked at
	progressed time.Time
	armed      bool
	timer      *time.Timer
	over       chan struct{} // closed when the reader was too slow
}

// Attachment is one reader of a process, and perhaps the one whose stdin counts. It must be closed. Next and Passed are for one
// goroutine, stdin for another.
type Attachment struct {
	p      *Process
	opts   attachOptions
	reader *spool.Reader
	over   chan struct{} // nil without a hold
	once   sync.Once
}

type attachOptions struct {
	hold, foreground, killOnDisconnect, takeStdin bool
}

// Attach adds a reader to a process that runs or has ended.
func (s *Session) Attach(ctx context.Context, spec AttachSpec) (*Attachment, error) {
	p, err := s.find(spec.Ref)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.startErr != nil {
		return nil, p.startErr
	}
	s.Touch()
	return s.attach(p, spec.Offset, attachOptions{foreground: spec.Foreground, takeStdin: spec.TakeStdin})
}

// find is Find, and finds the processes that ended before this node began as well.
func (s *Session) find(ref string) (*Process, error) {
	p, err := s.Find(ref)
	if err != nil {
		if log, ok := s.cfg.Spool.Get(cay.ID(ref)); ok && log.Process().Exit != nil {
			return endedProcess(s, log), nil
		}
	}
	return p, err
}

// Output is the log of a process, running or ended.
func (s *Session) Output(ref string) (*spool.Log, error) {
	p, err := s.find(ref)
	if err != nil {
		return nil, err
	}
	return p.log, nil
}

// endedProcess stands for a process that ended before this node began.
func endedProcess(s *Session, log *spool.Log) *Process {
	p := &Process{s: s, id: log.Process().ID, log: log, started: closed, done: closed}
	p.in.dropped = true
	return p
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (s *Session) attach(p *Process, offset int64, opts attachOptions) (*Attachment, error) {
	if offset > p.log.Produced() {
		return nil, cay.Errorf(cay.InvalidRequest, "offset %d is beyond the end of the output, %d", offset, p.log.Produced()).On("offset")
	}
	a := &Attachment{p: p, opts: opts, reader: p.log.NewReader(offset)}
	if opts.foreground {
		s.foreground.Add(1)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers++
	if p.hangup != nil {
		p.hangup.Stop()
		p.hangup = nil
	}
	if opts.takeStdin {
		p.in.owner = a
		p.in.wakeWriter() // the earlier owner, which may wait for room
	}
	if opts.hold && !p.isDone() {
		h := &hold{progressed: time.Now(), over: make(chan struct{})}
		h.timer = time.AfterFunc(s.timing.HoldStall, func() { p.checkHold(h) })
		h.armed = true
		p.hold = h
		a.over = h.over
	}
	return a, nil
}

// checkHold ends a hold that made no progress for too long while there was something to read.
func (p *Process) checkHold(h *hold) {
	p.mu.Lock()
	if p.hold != h || p.isDone() {
		p.mu.Unlock()
		return
	}
	stall := p.s.timing.HoldStall
	idle := time.Since(h.progressed)
	switch {
	case p.log.Produced() <= h.pos:
		h.armed = false
	case p.frozen || idle < stall:
		h.timer.Reset(max(stall-idle, time.Millisecond*10))
	default:
		p.hold = nil
		close(h.over)
		p.mu.Unlock()
		p.acknowledge()
		return
	}
	p.mu.Unlock()
}

// Process is what is read.
func (a *Attachment) Process() *Process { return a.p }

// Offset is the combined offset of the next byte.
func (a *Attachment) Offset() int64 { return a.reader.Offset() }

// StdinOffset is how many bytes of stdin the process has been sent so far.
func (a *Attachment) StdinOffset() int64 {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	return a.p.in.end()
}

// Next returns the next run of output. ended means that all output was read and the process has ended. A reader that held the
// process and was too slow gets cay.SlowConsumer.
func (a *Attachment) Next(ctx context.Context) (c spool.Chunk, ended bool, err error) {
	for {
		select {
		case <-a.over: // nil without a hold: never
			return c, false, errSlow()
		default:
		}
		exit := a.p.log.Process().Exit // before the read: output never follows the exit
		c, ok, err := a.reader.Next()
		if err != nil {
			return c, false, err
		}
		if ok {
			if a.p.tty {
				a.p.s.Touch()
			}
			return c, false, nil
		}
		if exit != nil {
			return c, true, nil
		}
		select {
		case <-a.p.log.After(a.reader.Offset()):
		case <-a.over:
			return c, false, errSlow()
		case <-a.p.s.closed:
			return c, false, errClosed()
		case <-ctx.Done():
			return c, false, ctx.Err()
		}
	}
}

func errSlow() error {
	return cay.Errorf(cay.SlowConsumer, "nothing was read for too long; attach again at the offset reached")
}

// Ended waits for the end of the process, without reading its output.
func (a *Attachment) Ended(ctx context.Context) error {
	select {
	case <-a.p.done:
		return nil
	case <-a.p.s.closed:
		if a.p.isDone() {
			return nil
		}
		return errClosed()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Passed says that everything before offset has been passed on, which lets a held process produce more.
func (a *Attachment) Passed(offset int64) {
	if a.over == nil {
		return
	}
	p := a.p
	p.mu.Lock()
	if p.hold != nil && p.hold.over == a.over && offset > p.hold.pos {
		p.hold.pos = offset
		p.hold.progressed = time.Now()
	}
	p.mu.Unlock()
	p.acknowledge()
}

// Detach leaves without what a lost reader would set off.
func (a *Attachment) Detach() {
	a.p.mu.Lock()
	a.opts.killOnDisconnect = false
	a.p.mu.Unlock()
	a.Close()
}

// Close ends the reader. What it was started with decides whether the process is killed.
func (a *Attachment) Close() {
	a.once.Do(func() {
		p := a.p
		a.reader.Close()
		if a.opts.foreground {
			p.s.foreground.Add(-1)
			p.s.Touch()
		}
		p.mu.Lock()
		p.readers--
		held := p.hold != nil && a.over != nil && p.hold.over == a.over
		if held {
			p.hold.timer.Stop()
			p.hold = nil
		}
		kill := a.opts.killOnDisconnect && !p.isDone()
		p.watchHangup()
		p.mu.Unlock()
		if kill && p.s.open() {
			p.kill()
		}
		if held {
			p.acknowledge()
		}
	})
}

func (s *Session) open() bool {
	select {
	case <-s.closed:
		return false
	default:
		return true
	}
}

// watchHangup starts the clock of a terminal that nobody reads. With p.mu.
func (p *Process) watchHangup() {
	if !p.hangupOnDisconnect || p.readers > 0 || p.isDone() || p.hangup != nil || !p.s.open() {
		return
	}
	hup := false
	p.hangup = time.AfterFunc(p.s.timing.Hangup, func() {
		p.mu.Lock()
		if p.readers > 0 || p.isDone() || p.hangup == nil {
			p.mu.Unlock()
			return
		}
		if p.frozen {
			p.hangup.Reset(p.s.timing.Hangup)
			p.mu.Unlock()
			return
		}
		if hup {
			p.mu.Unlock()
			p.kill()
			return
		}
		hup = true
		p.signalled = unix.SIGHUP
		p.hangup.Reset(p.s.timing.HangupKill)
		p.mu.Unlock()
		p.s.tell(signalMessage(p.id, unix.SIGHUP, true))
	})
}
