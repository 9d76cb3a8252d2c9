package process

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cayhq/cay/internal/guest/cgroup"
	"github.com/cayhq/cay/internal/guest/reaper"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// process is one started process, from its start until the node forgets it and nobody holds its pipes any more.
type process struct {
	table  *Table
	id     string
	stream uint64
	queued bool // in table.dirty; guarded by table.mu

	mu       sync.Mutex // held while it starts; before reaper's and table's locks
	failure  error      // the start's
	pid      int        // 0: nothing was run
	asked    time.Time
	took     time.Duration // from asked until it ran, or could not
	started  time.Time
	group    *cgroup.Group // nil without control groups
	terminal *os.File      // the master, keeps the descriptor of sources[0] alive

	out     backlog
	sources [2]source
	stdin   stdin

	program   Program  // what it runs when that is a source
	reporting bool     // the program's report is being made
	report    Report   // where the exit only says its size
	control   control  // of a kernel
	lender    *Kernel  // whose pipes sources are, while a run has them
	before    meter    // what the lender had used when it was lent
	steer     Steering // of a run: takes its signals
	drained   func()   // of a run: called once its output was read

	oom       bool // one of its processes was killed to reclaim memory
	killing   int  // kills of its whole tree under way
	exit      *guestv1.Exited
	exitSent  bool
	forgotten bool
}

// source is a pipe that the process writes to, or its terminal. Its descriptor does not block.
type source struct {
	fd     int // -1: closed
	stream wire.FrameType
	token  uint64
	armed  bool
	left   int64 // bytes still to deliver; unlimited until the process has ended, then what is read at 0 is dropped
	wide   bool  // the pipe was enlarged
}

const unlimited = -1

// open reports whether more is to be delivered from s.
func (s *source) open() bool { return s.fd >= 0 && s.left != 0 }

// watch begins reading fd. It expects p.mu, as all that follows here.
func (p *process) watch(i, fd int, stream wire.FrameType) error {
	s := &p.sources[i]
	*s = source{fd: fd, stream: stream, left: unlimited}
	s.token = p.table.poller.token(func() { p.readable(i) })
	return p.arm(s)
}

func (p *process) arm(s *source) error {
	if s.armed || s.fd < 0 {
		return nil
	}
	s.armed = true
	return p.table.poller.control(unix.EPOLL_CTL_ADD, s.fd, unix.EPOLLIN, s.token)
}

// disarm removes the descriptor: one without wanted events would still report a hang-up, forever.
func (p *process) disarm(s *source) {
	if s.armed {
		s.armed = false
		_ = p.table.poller.control(unix.EPOLL_CTL_DEL, s.fd, 0, s.token)
	}
}

func (p *process) closeSource(s *source) {
	if s.fd < 0 {
		return
	}
	p.table.poller.forget(s.token)
	if p.terminal != nil {
		p.disarm(s)
		p.terminal.Close()
	} else {
		unix.Close(s.fd)
	}
	s.fd, s.left = -1, 0
}

// readable is called by the poller.
func (p *process) readable(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.sources[i]
	if s.fd < 0 {
		return
	}
	before := p.out.produced
	for range heldPerProcess / wire.MaxDataRun {
		if at := p.out.produced; !p.readOnce(s) || p.out.produced-at < keepBlock {
			break
		}
	}
	p.settle()
	p.pace(s, p.out.produced-before)
}

const (
	// loud is how much output makes a process one whose output is worth gathering.
	loud = 256 << 10
	// widePipe is what the pipe of a loud process is enlarged to, so that the process runs on while its output is carried away.
	widePipe = 1 << 20
	// gather is how long the poller then waits where little was read: a wake-up for each small write would cost more than it carries.
	gather = time.Millisecond
)

// pace gathers the output of a loud process after n bytes were read.
func (p *process) pace(s *source, n int64) {
	if p.out.produced < loud || p.terminal != nil || n < minRead || s.fd < 0 {
		return
	}
	if !s.wide {
		s.wide = true
		_, _ = unix.FcntlInt(uintptr(s.fd), unix.F_SETPIPE_SZ, widePipe) // or stay as it is
	}
	if n < keepBlock {
		p.table.poller.pause(gather)
	}
}

// readOnce reads once from s and reports whether there may be more at once.
func (p *process) readOnce(s *source) (more bool) {
	room := wire.MaxDataRun
	if s.left != 0 {
		if room = min(room, p.room()); room == 0 {
			p.disarm(s)
			return false
		}
		if s.left > 0 {
			room = int(min(int64(room), s.left))
		}
	}
	block := blocks.Get().(*[wire.MaxDataRun]byte)
	n, err := unix.Read(s.fd, block[:room])
	kept := false
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
	case err != nil || n == 0: // EIO: the other side of the terminal is closed
		p.closeSource(s)
	case s.left == 0: // dropped
	default:
		kept = p.keep(s.stream, block, n)
		if s.left > 0 {
			s.left -= int64(n)
		}
		more = true
	}
	if !kept {
		blocks.Put(block)
	}
	return more
}

// room is how much may be read now.
func (p *process) room() int {
	room := heldPerProcess - p.out.held
	if p.table.held.Load() >= heldInAll {
		room = 0
	}
	if p.out.held == 0 {
		room = max(room, minRead)
	}
	return max(room, 0)
}

func (p *process) keep(stream wire.FrameType, block *[wire.MaxDataRun]byte, n int) (kept bool) {
	before := p.out.held
	kept = p.out.take(stream, block, n)
	p.table.held.Add(int64(p.out.held - before))
	p.table.touch(p)
	return kept
}

// acknowledge drops output before offset and reads on where that made room.
func (p *process) acknowledge(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.out.held
	p.out.ack(offset)
	p.table.held.Add(int64(p.out.held - before))
	if p.room() < heldPerProcess/4 && p.table.held.Load() < heldInAll {
		return // wait for room that is worth a read
	}
	for i := range p.sources {
		if s := &p.sources[i]; s.fd >= 0 && !s.armed {
			_ = p.arm(s)
		}
	}
}

// settle makes the exit known once the process has ended and all it wrote until then was read.
func (p *process) settle() {
	if p.complete() && !p.exitSent {
		p.exit.Produced = p.out.produced
		p.giveBack()
		p.table.touch(p)
	}
}

// complete reports whether the exit may follow the output that is there. Of a tree that is being killed the main process is not the
// last to go: who hears of its end relies on the others' being over.
func (p *process) complete() bool {
	return p.exit != nil && p.killing == 0 && !p.reporting && !p.sources[0].open() && !p.sources[1].open()
}

// whileKilled runs a kill of the whole tree and holds back the exit meanwhile. The kill is bounded by killDeadline.
func (p *process) whileKilled(kill func() error) error {
	p.mu.Lock()
	p.killing++
	p.mu.Unlock()
	err := kill()
	p.mu.Lock()
	p.killing--
	p.settle()
	p.mu.Unlock()
	p.table.notify()
	return err
}

// ended is called by the reaper.
func (p *process) ended(end reaper.End) {
	p.mu.Lock()
	p.exit = p.exited(fateOf(end.Status))
	p.exit.CpuUs, p.exit.PeakRssKb = end.CPU.Microseconds(), end.PeakRSS
	p.stdin.close(p)
	for i := range p.sources {
		p.limit(&p.sources[i])
	}
	for i := range p.sources {
		for s := &p.sources[i]; s.open() && p.readOnce(s); {
		}
	}
	p.reportSoon()
	p.settle()
	if p.group != nil && !p.group.Remove() {
		p.table.linger(p.id, p.group)
	}
	p.mu.Unlock()
	p.table.notify()
}

// exited is how the end is told.
func (p *process) exited(f Fate) *guestv1.Exited {
	exit := &guestv1.Exited{ProcessId: p.id, Code: f.Code, Signal: f.Signal, DurationMs: time.Since(p.started).Milliseconds()}
	exit.Oom = p.oom && exit.Code == 128+int32(syscall.SIGKILL)
	return exit
}

// limit leaves exactly what is in s now to be delivered.
func (p *process) limit(s *source) {
	if s.fd < 0 {
		return
	}
	n, err := unix.IoctlGetInt(s.fd, unix.TIOCINQ)
	if err == nil && p.terminal == nil {
		s.left = int64(n)
		return
	}
	// A terminal's line discipline may still be moving bytes: when nobody else has it open, its end is certain to come.
	poll := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(poll, 0); err == nil && poll[0].Revents&unix.POLLHUP != 0 {
		return
	}
	s.left = int64(n)
}

// signal sends sig to the process itself.
func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pid == 0 || p.exit != nil {
		return os.ErrProcessDone
	}
	err := p.table.reaper.Signal(p.pid, sig)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// append encodes what is pending, at most about limit bytes, and reports whether more is left.
func (p *process) append(b []byte, limit int) (out []byte, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forgotten {
		return b, false
	}
	b = p.stdin.appendAck(b, p.id)
	for {
		if len(b) >= limit {
			return b, true
		}
		stream, offset, data := p.out.next(wire.MaxDataRun)
		if data == nil {
			break
		}
		b = wire.AppendData(b, stream, p.stream, offset, data)
	}
	if p.complete() && !p.exitSent {
		p.exitSent = true
		b = appendMessage(b, &guestv1.ToNode{Message: &guestv1.ToNode_Exited{Exited: p.exit}})
	}
	return b, false
}

// forget drops what is kept. Pipes that descendants hold are drained on.
func (p *process) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forgotten = true
	before := p.out.held
	p.out.drop()
	p.table.held.Add(int64(p.out.held - before))
	for i := range p.sources {
		if s := &p.sources[i]; s.fd >= 0 {
			s.left = 0
			_ = p.arm(s)
		}
	}
	p.giveBack()
	if p.report != nil {
		p.report.Close()
		p.report = nil
	}
}
