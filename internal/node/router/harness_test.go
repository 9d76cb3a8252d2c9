package router_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a session with its agent.
type rig struct {
	*router.Session
	t      testing.TB
	agent  *agenttest.Agent
	spool  *spool.Spool
	gaveUp chan string
}

func quick() router.Timing {
	return router.Timing{
		Hello: 20 * time.Second, Ping: 100 * time.Millisecond, PingAnswer: 20 * time.Second, Connected: 20 * time.Second,
		Answer: 30 * time.Second, HoldStall: 500 * time.Millisecond, Hangup: 100 * time.Millisecond, HangupKill: 50 * time.Millisecond,
		KillReport: 100 * time.Millisecond, Lost: 100 * time.Millisecond, LazyAck: 20 * time.Millisecond,
	}
}

func start(t testing.TB, agent *agenttest.Agent, change ...func(*router.Config)) *rig {
	t.Helper()
	return startIn(t, t.TempDir(), agent, change...)
}

func startIn(t testing.TB, dir string, agent *agenttest.Agent, change ...func(*router.Config)) *rig {
	t.Helper()
	sp, err := spool.Open(dir, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, agent: agent, spool: sp, gaveUp: make(chan string, 1)}
	cfg := router.Config{Dial: agent.Dial, Spool: sp, GiveUp: func(why string) { r.gaveUp <- why }, Timing: quick()}
	for _, c := range change {
		c(&cfg)
	}
	r.Session = router.New(cfg)
	t.Cleanup(func() {
		r.Close()
		agent.Kill()
		sp.Close()
	})
	return r
}

func (r *rig) run(spec router.StartSpec) *router.Attachment {
	r.t.Helper()
	if spec.ID == "" {
		spec.ID = cay.NewID(cay.PrefixProcess)
	}
	a, err := r.Start(r.t.Context(), spec)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(a.Close)
	return a
}

func argv(args ...string) cay.ProcessSpec { return cay.ProcessSpec{Argv: args, StdinOpen: true} }

// drain reads to the end and returns what came and the exit.
func drain(t testing.TB, a *router.Attachment) (out, errs string, exit cay.ProcessExit) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var data [2]bytes.Buffer
	for {
		c, ended, err := a.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ended {
			return data[0].String(), data[1].String(), *a.Process().Log().Process().Exit
		}
		data[c.Stream-1].Write(c.Data)
		a.Passed(a.Offset())
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("not in time: " + what)
		}
		time.Sleep(time.Millisecond)
	}
}

func echo(p *agenttest.Process) *guestv1.Exited {
	b := make([]byte, 64<<10)
	for {
		n, err := p.Read(b)
		if err != nil {
			return nil
		}
		if p.Write(wire.FrameStdout, b[:n]) != nil {
			return nil
		}
	}
}

func forever(p *agenttest.Process) *guestv1.Exited { p.Killed(); return nil }

func writes(n int) agenttest.Script {
	return func(p *agenttest.Process) *guestv1.Exited {
		for n := n; n > 0; n -= 60_000 {
			if p.Write(wire.FrameStdout, bytes.Repeat([]byte("x"), min(n, 60_000))) != nil {
				return nil
			}
		}
		return nil
	}
}

func scripts(s map[string]agenttest.Script) *agenttest.Agent { return &agenttest.Agent{Scripts: s} }
