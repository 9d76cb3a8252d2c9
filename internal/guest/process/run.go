package process

import (
	"syscall"
	"time"

	"github.com/cayhq/cay/internal/guest/cgroup"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// Steering takes the signals that are meant for a Run. An ended one is os.ErrProcessDone.
type Steering func(sig syscall.Signal) error

// Run is a program that a Kernel runs, as the node sees it: a process with output, exit and signals of its own.
type Run struct{ p *process }

// StartRun makes a Run known and has begin queue it. begin returns the pid that the node is told; the Run waits until it has
// returned. Every Run ends by Finish.
func (t *Table) StartRun(req *guestv1.Start, steer Steering, begin func(*Run) (pid int, err error), started func(*guestv1.Started)) error {
	return t.open(req, started, func(p *process, _ Defaults) error {
		p.steer = steer
		pid, err := begin(&Run{p})
		if err == nil {
			p.pid = pid
			p.announce(started)
		}
		return err
	})
}

// Lend gives what k prints from now on to the Run, whose time begins.
func (r *Run) Lend(k *Kernel) {
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = time.Now()
	p.pid, p.lender, p.before = k.PID(), k, k.meter()
	k.lend(p)
}

// Print adds a line of the agent's own to what the Run says on stderr.
func (r *Run) Print(text string) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.p.say(text)
}

// Finish ends the Run after what is in the pipes now. drained is called once all of it was read: then the Kernel may serve the next
// one. drained must not block.
func (r *Run) Finish(f Fate, report Report, drained func()) {
	p := r.p
	p.mu.Lock()
	if p.started.IsZero() {
		p.started = time.Now()
	}
	p.exit = p.exited(f)
	if p.lender != nil {
		p.exit.CpuUs = p.lender.meter().since(p.before).Microseconds()
	}
	p.attach(report)
	p.drained = drained
	for i := range p.sources {
		p.limit(&p.sources[i])
	}
	for i := range p.sources {
		for s := &p.sources[i]; s.open() && p.readOnce(s); {
		}
	}
	p.settle()
	p.mu.Unlock()
	p.table.notify()
}

func (p *process) steered() Steering {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.steer
}

// owned is the control group of what runs for p now.
func (p *process) owned() *cgroup.Group {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lender != nil && p.exit == nil {
		return p.lender.group()
	}
	return p.group
}
