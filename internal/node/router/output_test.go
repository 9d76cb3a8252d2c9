package router_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

func TestOutputComesByStreamAndTheExitFollowsIt(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"hi": func(p *agenttest.Process) *guestv1.Exited {
		p.Write(wire.FrameStdout, []byte("out"))
		p.Write(wire.FrameStderr, []byte("err"))
		return &guestv1.Exited{Code: 7, DurationMs: 12}
	}}))
	out, errs, exit := drain(t, r.run(router.StartSpec{Spec: argv("hi"), Hold: true}))
	if out != "out" || errs != "err" || exit.Code != 7 || exit.Reason != cay.ExitExited || exit.Killed || exit.Duration != 12*time.Millisecond {
		t.Fatalf("%q %q %+v", out, errs, exit)
	}
	if exit.StdoutLen != 3 || exit.StderrLen != 3 {
		t.Fatalf("sizes %+v", exit)
	}
	eventually(t, "the agent is told to forget it", func() bool { return r.agent.Known() == 0 })
}

func TestStdinOfAMebibyteArrivesThroughAWindow(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"cat": echo}))
	a := r.run(router.StartSpec{Spec: argv("cat"), Hold: true})
	in := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	go func() {
		if err := a.WriteStdin(t.Context(), in); err != nil {
			t.Error(err)
		}
		if err := a.CloseStdin(); err != nil {
			t.Error(err)
		}
	}()
	if out, _, _ := drain(t, a); out != string(in) {
		t.Fatalf("%d bytes came back of %d", len(out), len(in))
	}
}

func TestNothingIsLostOrDoubledWhenTheConnectionDropsTenTimes(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"cat": echo}))
	a := r.run(router.StartSpec{Spec: argv("cat"), Hold: true})
	in := bytes.Repeat([]byte("the quick brown fox jumps over it"), 60_000)
	var feeding sync.WaitGroup
	feeding.Go(func() {
		for i := 0; i < len(in); i += 50_000 {
			if err := a.WriteStdin(t.Context(), in[i:min(len(in), i+50_000)]); err != nil {
				t.Error(err)
			}
			if i%200_000 == 0 {
				r.agent.Drop()
			}
		}
		a.CloseStdin()
	})
	out, _, exit := drain(t, a)
	feeding.Wait()
	if out != string(in) || exit.Reason != cay.ExitExited {
		t.Fatalf("%d bytes came back of %d, %+v", len(out), len(in), exit)
	}
}

func TestTheReaderThatStartedItHoldsTheProcessBack(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"yes": writes(8 << 20)}), func(c *router.Config) { c.Timing.HoldStall = time.Minute })
	a := r.run(router.StartSpec{Spec: argv("yes"), Hold: true})
	log := a.Process().Log()
	eventually(t, "the window fills", func() bool { return log.Produced() >= 1<<20 })
	for range 50 { // it must not go on from here
		time.Sleep(time.Millisecond)
		if n := log.Produced(); n > 1<<20+256<<10 {
			t.Fatalf("%d bytes produced without a reader", n)
		}
	}
	if out, _, _ := drain(t, a); len(out) != 8<<20 {
		t.Fatalf("%d bytes", len(out))
	}
}

func TestAReaderWithoutProgressLosesItsHoldAndTheProcessRunsOn(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"yes": writes(4 << 20)}))
	a := r.run(router.StartSpec{Spec: argv("yes"), Hold: true})
	if err := a.Ended(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := a.Next(t.Context()); cay.ReasonOf(err) != cay.SlowConsumer {
		t.Fatalf("error %v", err)
	}
	again, err := r.Attach(t.Context(), router.AttachSpec{Ref: string(a.Process().ID())})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if out, _, _ := drain(t, again); len(out) != 4<<20 {
		t.Fatalf("%d bytes", len(out))
	}
}

// lines counts what is logged.
type lines struct{ atomic.Int64 }

func (l *lines) Write(b []byte) (int, error) { l.Add(1); return len(b), nil }

func TestOutputThatCannotBeKeptIsLoggedOnceForEachProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "spool")
	var logged lines
	r := startIn(t, dir, scripts(map[string]agenttest.Script{"yes": writes(1 << 20)}), func(c *router.Config) {
		c.Log = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelError}))
	})
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no directory can be made here
		t.Fatal(err)
	}
	a := r.run(router.StartSpec{Spec: argv("yes")})
	if err := a.Ended(t.Context()); err != nil {
		t.Fatal(err)
	}
	if stdout, _ := a.Process().Log().Sizes(); stdout != 1<<20 {
		t.Fatalf("%d bytes counted", stdout)
	}
	if n := logged.Load(); n < 1 || n > 3 { // that, and perhaps that its record was not written
		t.Fatalf("%d errors in the log", n)
	}
}

func TestAWriterWhoseStdinIsTakenOverIsToldWhileItWaits(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"deaf": func(p *agenttest.Process) *guestv1.Exited {
		p.Killed()
		return nil
	}}))
	first := r.run(router.StartSpec{Spec: argv("deaf")})
	told := make(chan error, 1)
	go func() { told <- first.WriteStdin(t.Context(), make([]byte, 1<<20)) }()
	eventually(t, "it has written what fits", func() bool { return first.StdinOffset() >= 256<<10 })
	second, err := r.Attach(t.Context(), router.AttachSpec{Ref: string(first.Process().ID()), TakeStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	select {
	case err := <-told:
		if cay.ReasonOf(err) != cay.Conflict {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits on")
	}
	// The room that the process's end makes is the second's to hear of.
	go func() { told <- second.WriteStdin(t.Context(), make([]byte, 1<<20)) }()
	if err := r.Signal(t.Context(), string(first.Process().ID()), "KILL", true); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-told:
		if cay.ReasonOf(err) != cay.Conflict {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the second waits on")
	}
}
