package router

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

func signalMessage(id cay.ID, sig unix.Signal, tree bool) *guestv1.ToAgent {
	return &guestv1.ToAgent{Message: &guestv1.ToAgent_Signal{Signal: &guestv1.Signal{
		ProcessId: string(id), Signal: int32(sig), Tree: tree,
	}}}
}

func signalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return "RT" // a real-time signal
}

// parseSignal takes "INT", "SIGINT" or "2".
func parseSignal(name string) (unix.Signal, error) {
	if n, ok := parsePID(name); ok && n < 65 {
		return unix.Signal(n), nil
	}
	upper := strings.ToUpper(name)
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(upper, "SIG")); sig != 0 {
		return sig, nil
	}
	return 0, cay.Errorf(cay.InvalidRequest, "there is no signal %q", cleanText(name, 32)).On("signal")
}

// Signal sends a signal to a process by id, name or pid; with tree, to all that descends from it.
func (s *Session) Signal(ctx context.Context, ref, signal string, tree bool) error {
	sig, err := parseSignal(signal)
	if err != nil {
		return err
	}
	s.Touch()
	m := &guestv1.Signal{Signal: int32(sig), Tree: tree}
	if p, err := s.Find(ref); err == nil {
		p.mu.Lock() // first: whoever has read the exit finds it done
		ended := p.isDone()
		p.signalled = sig
		p.mu.Unlock()
		if ended {
			return cay.Errorf(cay.Conflict, "process %s has ended", p.id)
		}
		m.ProcessId = string(p.id)
	} else if pid, ok := parsePID(ref); ok {
		m.Pid = pid
	} else {
		return err
	}
	return s.done(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_Signal{Signal: m}}, false)
}

// kill ends a process and its descendants, for the platform's reasons, also if the agent can be told only later.
func (p *Process) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	p.s.tell(signalMessage(p.id, unix.SIGKILL, true))
}
