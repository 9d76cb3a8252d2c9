package router

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// Process is one process that a client started. What is to outlive the node is in its log.
type Process struct {
	s      *Session
	id     cay.ID
	name   string
	tty    bool
	stream uint64
	log    *spool.Log

	started  chan struct{} // closed when the agent has answered the start
	startErr error         // valid then
	unkept   atomic.Bool   // some of its output could not be stored

	done chan struct{} // closed when the exit is settled

	mu        sync.Mutex
	frozen    bool
	deadline  time.Time     // zero: none, or frozen
	remaining time.Duration // of the timeout, while frozen
	timeout   *time.Timer
	report    *time.Timer // reports the timeout of a silent agent
	hangup    *time.Timer

	code        *spool.Code      // nil: a command
	waits       time.Duration    // the timeout of a program whose turn in its context has not come
	interrupted bool             // a timeout has sent INT; KILL follows
	exit        *cay.ProcessExit // of a program whose report is being fetched

	timedOut   bool
	oom        bool
	killed     bool        // by the platform: must die, also after a reconnect
	signalled  unix.Signal // last signal that a client sent
	ran        bool        // the agent has answered the start
	notStarted bool        // the agent ran nothing: pid 0

	connNext int64 // offset that the next output of this connection must have; -1: not known yet
	acked    int64 // sent to the agent
	hold     *hold
	readers  int
	in       stdin

	hangupOnDisconnect bool
	forget             bool // the agent is to forget it once its exit is saved
}

// ID names the process.
func (p *Process) ID() cay.ID { return p.id }

// Log is its output.
func (p *Process) Log() *spool.Log { return p.log }

// Start runs a process and attaches its first reader. It answers when the agent has started it, before anything is on disk. A start
// that is repeated attaches to the first, without a hold. The error of a start that the agent refused is the guest's.
func (s *Session) Start(ctx context.Context, spec StartSpec) (*Attachment, error) {
	s.Touch()
	p, fresh, err := s.register(spec, tracing.Traceparent(ctx))
	if err != nil {
		return nil, err
	}
	if !fresh {
		select {
		case <-p.started:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if p.startErr != nil {
			return nil, p.startErr
		}
		return s.attach(p, 0, attachOptions{foreground: spec.Foreground, killOnDisconnect: spec.KillOnDisconnect, takeStdin: true})
	}
	// The reader is there before the first byte, so that the hold misses none.
	a, err := s.attach(p, 0, attachOptions{
		hold: spec.Hold, foreground: spec.Foreground, killOnDisconnect: spec.KillOnDisconnect, takeStdin: true,
	})
	if err != nil {
		s.abandon(p, err)
		return nil, err
	}
	ps := spec.Spec
	code, err := s.codeOf(ctx, p, ps.Code)
	if err != nil {
		a.Detach()
		s.abandon(p, err)
		return nil, err
	}
	asked := time.Now()
	// A caller that goes away in the middle does not undo the start: what it left may be attached to.
	answer, err := s.callAnswered(context.WithoutCancel(ctx), &guestv1.ToAgent{Message: &guestv1.ToAgent_Start{Start: &guestv1.Start{
		ProcessId: string(p.id), Argv: ps.Argv, Shell: ps.Shell, Env: ps.Env, Cwd: ps.Cwd, User: ps.User,
		Tty: ps.TTY, Cols: uint32(ps.Cols), Rows: uint32(ps.Rows), Stdin: ps.StdinOpen, Login: ps.Login, Stream: p.stream, Code: code,
	}}}, true, func(m *guestv1.ToNode) { p.answered(m, ps.Timeout) })
	if err == nil && answer.GetStarted() == nil {
		err = s.unexpected()
	}
	if err != nil {
		s.dropSource(code)
		a.Detach()
		s.abandon(p, err)
		return nil, err
	}
	traceStart(ctx, p.id, asked, time.Now(), answer.GetStarted().GetTookUs())
	pid := answer.GetStarted().GetPid()
	p.mu.Lock()
	if ps.Timeout > 0 && !p.queues() && !p.isDone() {
		p.startTimeout(ps.Timeout)
	}
	p.noteClock()
	p.mu.Unlock()
	p.log.Update(func(m *spool.Process) { m.PID = pid })
	close(p.started)
	s.changed(p)
	return a, nil
}

// answered notes the answer to a start in the order in which the agent sent it: the exit may be right behind it. With s.mu.
func (p *Process) answered(m *guestv1.ToNode, timeout time.Duration) {
	if st := m.GetStarted(); st != nil {
		p.mu.Lock()
		p.ran, p.notStarted = true, st.Pid == 0
		if p.queues() {
			p.enqueue(timeout)
		}
		p.mu.Unlock()
	}
}

// register makes the entry of a process, or finds the one that has its id.
func (s *Session) register(spec StartSpec, traceparent string) (p *Process, fresh bool, err error) {
	ps := spec.Spec
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, false, cay.Errorf(cay.Gone, "the sandbox has ended")
	}
	if p, ok := s.processes[spec.ID]; ok {
		return p, false, nil
	}
	if len(s.streams) >= maxRunning {
		return nil, false, cay.Errorf(cay.QuotaExceeded, "the sandbox runs %d processes already", maxRunning)
	}
	if other := s.names[ps.Name]; ps.Name != "" && other != nil {
		return nil, false, cay.Errorf(cay.AlreadyExists, "process %s is running under the name %q", other.id, ps.Name).On("name")
	}
	s.nextStream++
	command := ps.Argv
	var code *spool.Code
	switch c := ps.Code; {
	case c != nil:
		if command = c.Argv; len(command) == 0 {
			command = []string{c.Language}
		}
		code = &spool.Code{Language: c.Language, ContextID: c.ContextID, User: ps.User}
		if info, ok := s.contexts[c.ContextID]; ok {
			code.User = info.User
		}
	case len(command) == 0:
		command = []string{ps.Shell}
	}
	log, err := s.cfg.Spool.Create(spool.Process{
		ID: spec.ID, Name: ps.Name, Command: command, User: ps.User, Cwd: ps.Cwd, TTY: ps.TTY, StdinOpen: ps.StdinOpen,
		Cols: ps.Cols, Rows: ps.Rows, MaxOutput: ps.MaxOutput, Stream: s.nextStream, StartedAt: time.Now(),
		KillOnDisconnect: spec.KillOnDisconnect, HangupOnDisconnect: spec.HangupOnDisconnect, Code: code, Origin: spec.Origin, Traceparent: traceparent,
	})
	if err != nil {
		return nil, false, cay.Errorf(cay.InvalidRequest, "process_id is malformed or in use").Because(err)
	}
	return s.enter(log), true, nil
}

// enter puts a process that runs into the tables. With s.mu.
func (s *Session) enter(log *spool.Log) *Process {
	m := log.Process()
	p := &Process{
		s: s, id: m.ID, name: m.Name, tty: m.TTY, stream: m.Stream, log: log, started: make(chan struct{}), done: make(chan struct{}),
		code: m.Code, connNext: -1, acked: log.Produced(), hangupOnDisconnect: m.HangupOnDisconnect, frozen: s.isFrozen(),
	}
	p.in.room, p.in.turn = make(chan struct{}, 1), make(chan struct{}, 1)
	p.in.eof = m.StdinClosed
	s.processes[p.id] = p
	s.streams[p.stream] = p
	if p.name != "" {
		s.names[p.name] = p
	}
	return p
}

// forgetTables takes a process out of the tables of running ones. With s.mu.
func (s *Session) forgetTables(p *Process) {
	if s.streams[p.stream] == p {
		delete(s.streams, p.stream)
	}
	s.freeName(p)
	delete(s.lazy, p)
	s.dequeue(p)
}

// freeName lets another process have p's name. With s.mu.
func (s *Session) freeName(p *Process) {
	if s.names[p.name] == p {
		delete(s.names, p.name)
	}
}

// abandon removes a process whose start failed. When the agent may have started it after all, it is told to kill it.
func (s *Session) abandon(p *Process, err error) {
	p.startErr = err
	s.mu.Lock()
	s.forgetTables(p)
	delete(s.processes, p.id)
	s.mu.Unlock()
	if !guestReasons[cay.ReasonOf(err)] {
		s.tell(signalMessage(p.id, unix.SIGKILL, true))
		s.tell(forgetMessage(p.id))
	}
	close(p.started)
	p.stopTimers()
	s.cfg.Spool.Discard(p.log)
}

// takeOver finds the processes that an earlier node left. Those without an exit count as running until a hello says otherwise.
func (s *Session) takeOver() {
	s.mu.Lock()
	defer s.mu.Unlock()
	logs := s.cfg.Spool.Logs()
	slices.SortStableFunc(logs, func(a, b *spool.Log) int { return cmp.Compare(a.Process().Stream, b.Process().Stream) })
	for _, log := range logs {
		m := log.Process()
		if m.Exit != nil || m.Stream == 0 {
			continue // of one without a stream number the record is missing; hello names it if it runs
		}
		s.resume(log)
	}
}

// resume enters a process of an earlier node. With s.mu.
func (s *Session) resume(log *spool.Log) *Process {
	m := log.Process()
	p := s.enter(log)
	close(p.started)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.acked, p.ran = 0, true
	p.killed = m.KillOnDisconnect // whoever waited for it is gone
	if p.queues() {
		p.enqueue(m.Waits)
	}
	switch {
	case m.Remaining > 0:
		p.startTimeout(m.Remaining)
	case !m.Deadline.IsZero():
		p.startTimeout(max(time.Until(m.Deadline), time.Millisecond))
	}
	p.watchHangup()
	return p
}

// Find resolves an id, the name of a running process, or a pid.
func (s *Session) Find(ref string) (*Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.processes[cay.ID(ref)]; ok {
		return p, nil
	}
	if p, ok := s.names[ref]; ok && ref != "" {
		return p, nil
	}
	if pid, ok := parsePID(ref); ok {
		for _, p := range s.streams {
			if p.log.Process().PID == pid {
				return p, nil
			}
		}
	}
	return nil, cay.Errorf(cay.NotFound, "there is no process %q", cleanText(ref, 64))
}

func parsePID(ref string) (int64, bool) {
	if ref == "" || len(ref) > 10 || strings.Trim(ref, "0123456789") != "" {
		return 0, false
	}
	var n int64
	for _, c := range ref {
		n = n*10 + int64(c-'0')
	}
	return n, n > 0
}

// Logs lists what is known of all processes, running and ended.
func (s *Session) Logs() []*spool.Log { return s.cfg.Spool.Logs() }

// startTimeout begins the clock. With p.mu.
func (p *Process) startTimeout(d time.Duration) {
	if p.frozen {
		p.remaining, p.deadline = d, time.Time{}
		return
	}
	p.remaining, p.deadline = 0, time.Now().Add(d)
	p.timeout = time.AfterFunc(d, p.expire)
}

// expire ends a process whose time is up: its whole tree is killed, and the exit is reported even if the agent says nothing.
func (p *Process) expire() {
	p.mu.Lock()
	if p.frozen || p.deadline.IsZero() || p.isDone() {
		p.mu.Unlock()
		return
	}
	p.timedOut = true
	if p.queues() && !p.interrupted {
		p.interrupted = true
		p.startTimeout(p.s.timing.Interrupt)
		p.mu.Unlock()
		p.s.tell(signalMessage(p.id, unix.SIGINT, false))
		return
	}
	p.killed = true
	p.deadline = time.Time{}
	if p.report != nil {
		p.report.Stop()
	}
	p.report = time.AfterFunc(p.s.timing.KillReport, func() { p.finish(exitOf(cay.ExitTimeout, "")) })
	p.mu.Unlock()
	p.s.tell(signalMessage(p.id, unix.SIGKILL, true))
}

// setFrozen stops or continues the clocks. With s.mu.
func (p *Process) setFrozen(frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == frozen {
		return
	}
	p.frozen = frozen
	if frozen {
		if !p.deadline.IsZero() {
			p.timeout.Stop()
			p.remaining, p.deadline = max(time.Until(p.deadline), time.Millisecond), time.Time{}
		}
		if p.report != nil {
			p.report.Stop()
		}
	} else {
		if p.remaining > 0 {
			p.startTimeout(p.remaining)
		}
		if p.report != nil {
			p.report.Reset(p.s.timing.KillReport)
		}
		if p.hold != nil {
			p.hold.progressed = time.Now()
		}
	}
	p.noteClock()
}

func (p *Process) stopTimers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits, p.deadline, p.remaining = 0, time.Time{}, 0
	for _, t := range []*time.Timer{p.timeout, p.report, p.hangup} {
		if t != nil {
			t.Stop()
		}
	}
	if p.hold != nil {
		p.hold.timer.Stop()
	}
}

func (p *Process) isDone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// exitOf is an exit that the node settles by itself.
func exitOf(reason cay.ExitReason, detail string) cay.ProcessExit {
	e := cay.ProcessExit{Code: 128 + int(unix.SIGKILL), Signal: "KILL", Reason: reason, Detail: detail, Killed: true}
	e.TimedOut = reason == cay.ExitTimeout
	e.OOM = reason == cay.ExitOOM
	return e
}

// SandboxEnded is the exit of a process that ended with its sandbox.
func SandboxEnded() cay.ProcessExit { return exitOf(cay.ExitSandboxEnded, "the sandbox ended") }

// exitBy turns what the agent says of an end into an exit. What the node itself did to the process outranks the agent's word.
func (p *Process) exitBy(m *guestv1.Exited) cay.ProcessExit {
	e := cay.ProcessExit{Code: int(uint8(m.Code)), Reason: cay.ExitExited}
	if sig := unix.Signal(m.Signal); m.Signal > 0 && m.Signal < 65 {
		e.Code, e.Signal, e.Reason = 128+int(m.Signal), signalName(sig), cay.ExitSignaled
	}
	if m.DurationMs > 0 {
		e.Duration = time.Duration(min(m.DurationMs, int64(1<<40))) * time.Millisecond
	}
	e.CPU, e.PeakMemoryMB = p.used(m)
	p.mu.Lock()
	bySignal := e.Signal != ""
	switch {
	case p.notStarted && !bySignal:
		e.Reason, e.Detail = cay.ExitStartFailed, startFailure(p.log)
	case p.timedOut && (bySignal || p.interrupted || e.Code == 128+int(unix.SIGKILL)):
		said := e
		e = exitOf(cay.ExitTimeout, "")
		e.Duration, e.CPU, e.PeakMemoryMB = said.Duration, said.CPU, said.PeakMemoryMB
	case bySignal && (p.oom || m.Oom):
		e.Reason, e.OOM, e.Killed = cay.ExitOOM, true, true
	case bySignal && (p.killed || p.signalled == unix.Signal(m.Signal)):
		e.Reason, e.Killed = cay.ExitKilled, true
	}
	p.mu.Unlock()
	return e
}

// cpuSlack is what a process may have used beyond its time on all of its sandbox's cores, in seconds: kernels count in ticks.
const cpuSlack = 0.1

// used is what the agent says that a process used, within what can be: the sandbox's cores since the start, by this node's clock, and
// its memory.
func (p *Process) used(m *guestv1.Exited) (cpu time.Duration, peakMB int64) {
	limits := p.s.cfg.Limits()
	if limits.CPU <= 0 {
		return 0, 0
	}
	most := max(time.Since(p.log.Process().StartedAt).Seconds(), 0)*limits.CPU + cpuSlack
	said := float64(max(m.CpuUs, 0)) / 1e6
	peak := max(m.PeakRssKb, 0)
	peakMB = peak / 1024
	if peak%1024 != 0 {
		peakMB++
	}
	return time.Duration(min(said, most, math.MaxInt32) * float64(time.Second)), min(peakMB, limits.MemoryMB)
}

// startFailure is why a process did not start: what the agent wrote on its stderr.
func startFailure(log *spool.Log) string {
	var text []byte
	_, err := log.Collect(cay.Stderr, func(c spool.Chunk) error {
		text = append(text, c.Data[:min(len(c.Data), maxDetail-len(text))]...)
		return nil
	})
	if detail := cleanText(strings.TrimSpace(string(text)), maxDetail); err == nil && detail != "" {
		return detail
	}
	return "it cannot be executed"
}

// finish settles the exit, once. Readers get it after the last byte; the agent is told to forget the process when it is saved.
func (p *Process) finish(e cay.ProcessExit) {
	p.mu.Lock()
	if p.exit != nil {
		e = *p.exit
	}
	p.mu.Unlock()
	if e.Duration == 0 {
		e.Duration = time.Since(p.log.Process().StartedAt).Round(time.Millisecond)
	}
	if p.code != nil { // the first report counts: this is for a program that left none
		p.keepReport(lostReport(p.code.ContextID != ""))
	}
	s := p.s
	s.mu.Lock()
	s.freeName(p) // before anybody sees the exit, who may then start another of the name
	s.mu.Unlock()
	p.mu.Lock()
	if e.Reason == cay.ExitSandboxEnded && p.oom {
		e.Reason, e.OOM = cay.ExitOOM, true
	}
	if p.isDone() {
		p.mu.Unlock()
		return
	}
	p.log.End(e)
	traceEnd(p.log.Process())
	p.forget = true
	p.in.drop()
	close(p.done)
	p.mu.Unlock()
	p.stopTimers()
	s.cfg.Ended(p.log.Process())
	s.mu.Lock()
	s.forgetTables(p)
	s.markDirty(p)
	s.mu.Unlock()
}

// changed has a process's record written soon.
func (s *Session) changed(p *Process) {
	s.mu.Lock()
	s.markDirty(p)
	s.mu.Unlock()
}

// markDirty needs s.mu.
func (s *Session) markDirty(p *Process) {
	s.dirty[p] = struct{}{}
	select {
	case s.saves <- struct{}{}:
	default:
	}
}

// save writes changed records, away from every request's path, until ctx ends; then what is left. A process that has ended is
// forgotten by the agent only when its exit is safe.
func (s *Session) save(ctx context.Context) {
	sweep := time.NewTicker(time.Minute)
	defer sweep.Stop()
	for {
		select {
		case <-s.saves:
			s.saveDirty()
		case <-sweep.C:
			s.sweep()
		case <-ctx.Done():
			s.saveDirty()
			return
		}
	}
}

func (s *Session) saveDirty() {
	s.mu.Lock()
	dirty := s.dirty
	s.dirty = map[*Process]struct{}{}
	ended := s.ended
	s.mu.Unlock()
	for p := range dirty {
		p.mu.Lock()
		forget := p.forget
		p.mu.Unlock()
		if !ended { // else the spool goes as well
			if err := p.log.Save(); err != nil {
				s.cfg.Log.Error("process record not written", "process", p.id, "error", err)
			}
		}
		if forget {
			s.tell(forgetMessage(p.id))
		}
	}
}

// sweep drops ended processes whose time of keeping is over, and of the others what only their record needed: on disk it stays, for a
// node that starts anew.
func (s *Session) sweep() {
	s.cfg.Spool.Sweep()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.processes {
		if _, ok := s.cfg.Spool.Get(id); !ok {
			delete(s.processes, id)
		} else if _, unsaved := s.dirty[p]; !unsaved && p.isDone() {
			p.log.DropOrigin()
		}
	}
}

func forgetMessage(id cay.ID) *guestv1.ToAgent {
	return &guestv1.ToAgent{Message: &guestv1.ToAgent_Forget{Forget: &guestv1.Forget{ProcessId: string(id)}}}
}
