package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/cgroup"
	"github.com/cayhq/cay/internal/guest/reaper"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// KernelConfig says what a Kernel is.
type KernelConfig struct {
	User, Cwd string
	Env       map[string]string
	// Prepare returns the command; it may change env.
	Prepare func(account user.Account, cwd string, env map[string]string) (argv []string, err error)
	// Control is the descriptor, from 3 on, at which the program finds its end of the control socket.
	Control int
	// Stdin makes the socket its standard input too; otherwise that is at its end.
	Stdin bool
	// Ended is told once when the process has ended. It must not block.
	Ended func(*Kernel, Fate)
}

// Kernel is a process that runs one program after the other and that the node does not see. What it prints belongs to the Run that
// has it, and to nobody in between. Its descendants live in its control group.
type Kernel struct {
	// Control is the agent's end of the control socket. What comes from it was written by the guest.
	Control *os.File

	p      *process
	closed bool // guarded by p.mu
}

// control is the descriptor that a kernel gets beside the usual three.
type control struct {
	fd    int // 0: none
	at    int
	stdin bool
}

func (c control) add(files []uintptr) []uintptr {
	if c.fd == 0 {
		return files
	}
	for len(files) <= c.at {
		files = append(files, ^uintptr(0))
	}
	files[c.at] = uintptr(c.fd)
	if c.stdin {
		files[0] = uintptr(c.fd)
	}
	return files
}

// StartKernel starts a kernel. Its owner closes it, also after it has ended.
func (t *Table) StartKernel(c KernelConfig) (*Kernel, error) {
	t.mu.Lock()
	defaults := t.defaults
	t.kernels++
	id := "kernel-" + strconv.FormatUint(t.kernels, 10)
	t.mu.Unlock()

	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a control socket: %w", err)
	}
	defer unix.Close(ends[1])
	if err := unix.SetNonblock(ends[0], true); err != nil {
		unix.Close(ends[0])
		return nil, fmt.Errorf("prepare the control socket: %w", err)
	}
	k := &Kernel{Control: os.NewFile(uintptr(ends[0]), "control")}
	p := &process{table: t, id: id, stdin: stdin{fd: -1}, forgotten: true, control: control{fd: ends[1], at: c.Control, stdin: c.Stdin}}
	for i := range p.sources {
		p.sources[i].fd = -1
	}
	k.p = p
	p.mu.Lock()
	defer p.mu.Unlock()
	req := &guestv1.Start{ProcessId: id, Env: c.Env, Cwd: c.Cwd, User: c.User}
	prog, missing, err := t.resolve(req, defaults, preparing(c.Prepare))
	if err == nil && missing != nil {
		err = cay.Errorf(cay.Unprocessable, "the interpreter cannot be started: %s", missing.text)
	}
	if err == nil {
		if err = p.run(prog, req, func(end reaper.End) { k.ended(end, c.Ended) }); err != nil {
			if wrong := prog.enter(); wrong != nil {
				err = wrong
			} else {
				err = cay.Errorf(cay.Unprocessable, "the interpreter %s cannot be started: %w", prog.path, err)
			}
		}
	}
	if err != nil {
		k.Control.Close()
		return nil, err
	}
	for i := range p.sources {
		p.sources[i].left = 0
	}
	return k, nil
}

// preparing is a Program that leaves nothing behind.
type preparing func(user.Account, string, map[string]string) ([]string, error)

func (f preparing) Prepare(account user.Account, cwd string, env map[string]string) ([]string, error) {
	return f(account, cwd, env)
}

func (f preparing) Report() Report { return nil }

// ended is called by the reaper.
func (k *Kernel) ended(end reaper.End, tell func(*Kernel, Fate)) {
	k.p.mu.Lock() // the start is over, and pid is known
	k.p.exit = &guestv1.Exited{CpuUs: end.CPU.Microseconds()}
	k.p.mu.Unlock()
	tell(k, fateOf(end.Status))
}

// meter is the CPU time that a kernel has used with the children that it waited for.
type meter struct {
	cpu   time.Duration
	known bool
}

// since is what was used between two looks; zero where either could not be taken.
func (m meter) since(before meter) time.Duration {
	if !m.known || !before.known {
		return 0
	}
	return max(m.cpu-before.cpu, 0)
}

// meter looks at what the kernel has used, in steps of 10 ms while it lives. How much memory a single run took cannot be told: the
// peak of a process is that of its whole life.
func (k *Kernel) meter() meter {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	if k.p.exit != nil {
		return meter{time.Duration(k.p.exit.CpuUs) * time.Microsecond, true}
	}
	s, ok := readStatus(k.p.pid)
	return meter{time.Duration(s.cpuTicks+s.childTicks) * time.Second / ticksPerSec, ok}
}

// PID is the kernel's.
func (k *Kernel) PID() int {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	return k.p.pid
}

// Signal sends sig to the kernel and to what it runs in its process group. os.ErrProcessDone when it has ended.
func (k *Kernel) Signal(sig syscall.Signal) error {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	if k.p.exit != nil {
		return os.ErrProcessDone
	}
	err := k.p.table.reaper.SignalGroup(k.p.pid, sig)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// Kill ends the kernel with all that descends from it; they are gone when it returns nil.
func (k *Kernel) Kill() error {
	if group := k.group(); group != nil {
		return killGroup(group)
	}
	return killAll(k.p.tree)
}

func (k *Kernel) group() *cgroup.Group {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	return k.p.group
}

// Close frees what belongs to a kernel that was killed. What a Run has of it is freed when that is done with it.
func (k *Kernel) Close() {
	k.Control.Close()
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	if k.closed {
		return
	}
	k.closed = true
	for i := range k.p.sources {
		k.p.closeSource(&k.p.sources[i])
	}
	if k.p.group != nil && !k.p.group.Remove() {
		k.p.table.linger(k.p.id, k.p.group)
	}
}

// lend moves the pipes to p, after what is in them was dropped. It expects p.mu.
func (k *Kernel) lend(p *process) {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	for i := range k.p.sources {
		s := &k.p.sources[i]
		if s.fd < 0 {
			continue
		}
		stale, _ := unix.IoctlGetInt(s.fd, unix.TIOCINQ)
		for block := blocks.Get().(*[wire.MaxDataRun]byte); stale > 0 && s.fd >= 0; {
			n, err := unix.Read(s.fd, block[:min(stale, len(block))])
			if err != nil || n <= 0 {
				break
			}
			stale -= n
		}
		p.sources[i] = *s
		p.sources[i].left = unlimited
		s.fd, s.armed = -1, false
		p.table.poller.assign(p.sources[i].token, func() { p.readable(i) })
	}
}

// giveBack returns the pipes that p had from its kernel, once it needs them no more. It expects p.mu.
func (p *process) giveBack() {
	if p.drained == nil || !p.complete() {
		return
	}
	k := p.lender
	for i := range p.sources {
		if s := &p.sources[i]; s.fd >= 0 && k != nil {
			k.take(i, *s)
			s.fd, s.armed = -1, false
		}
	}
	p.drained()
	p.drained = nil
}

func (k *Kernel) take(i int, s source) {
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	s.left = 0
	k.p.sources[i] = s
	if k.closed {
		k.p.closeSource(&k.p.sources[i])
		return
	}
	k.p.table.poller.assign(s.token, func() { k.p.readable(i) })
	_ = k.p.arm(&k.p.sources[i])
}
