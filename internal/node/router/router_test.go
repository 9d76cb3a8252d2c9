package router_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
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

func TestATimeoutKillsTheTreeAndKeepsTheOutput(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"slow": func(p *agenttest.Process) *guestv1.Exited {
		p.Write(wire.FrameStdout, []byte("partial"))
		p.Killed()
		return nil
	}}))
	spec := argv("slow")
	spec.Timeout = 50 * time.Millisecond
	out, _, exit := drain(t, r.run(router.StartSpec{Spec: spec}))
	if out != "partial" || exit.Code != 137 || exit.Signal != "KILL" || !exit.TimedOut || exit.Reason != cay.ExitTimeout {
		t.Fatalf("%q %+v", out, exit)
	}
}

func TestATimeoutIsReportedAlthoughTheAgentIsSilent(t *testing.T) {
	release := make(chan struct{})
	r := start(t, scripts(map[string]agenttest.Script{"deaf": func(*agenttest.Process) *guestv1.Exited { <-release; return nil }}))
	defer close(release)
	spec := argv("deaf")
	spec.Timeout = 50 * time.Millisecond
	if _, _, exit := drain(t, r.run(router.StartSpec{Spec: spec})); exit.Reason != cay.ExitTimeout {
		t.Fatalf("%+v", exit)
	}
}

func TestAFrozenSandboxHasNoTime(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"slow": forever}))
	spec := argv("slow")
	spec.Timeout = 2 * time.Second // enough to be frozen before
	a := r.run(router.StartSpec{Spec: spec})
	r.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
	defer cancel()
	if err := a.Ended(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("it ended while frozen: %v", err)
	}
	r.Thaw()
	if _, _, exit := drain(t, a); exit.Reason != cay.ExitTimeout {
		t.Fatalf("%+v", exit)
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

func TestARepeatedStartAttachesAndRunsOnce(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"cat": echo}))
	id := cay.NewID(cay.PrefixProcess)
	first := r.run(router.StartSpec{ID: id, Spec: argv("cat")})
	second := r.run(router.StartSpec{ID: id, Spec: argv("cat")})
	if err := second.WriteStdin(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := first.WriteStdin(t.Context(), []byte("y")); cay.ReasonOf(err) != cay.Conflict {
		t.Fatalf("the first reader's stdin still counts: %v", err)
	}
	second.CloseStdin()
	if out, _, _ := drain(t, second); out != "x" {
		t.Fatalf("%q", out)
	}
	if n := len(r.agent.Starts()); n != 1 {
		t.Fatalf("started %d times", n)
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

func TestARefusedStartLeavesNothing(t *testing.T) {
	r := start(t, scripts(nil))
	spec := argv("x")
	spec.Cwd, spec.Name = "/nope", "srv"
	for range 2 { // the id and the name are free again
		_, err := r.Start(t.Context(), router.StartSpec{ID: "prc_00000000000000000000000000", Spec: spec})
		if cay.ReasonOf(err) != cay.Unprocessable || !strings.Contains(err.Error(), "cwd") {
			t.Fatal(err)
		}
	}
	if n := len(r.Logs()); n != 0 {
		t.Fatalf("%d logs", n)
	}
}

func TestAProgramThatIsNotThereHasAStartThatFailed(t *testing.T) {
	r := start(t, scripts(nil))
	_, errs, exit := drain(t, r.run(router.StartSpec{Spec: argv("nosuchcmd")}))
	if exit.Reason != cay.ExitStartFailed || exit.Code != 127 || errs == "" {
		t.Fatalf("%q %+v", errs, exit)
	}
}

func TestNamesAreUniqueAmongRunning(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"srv": forever}))
	spec := argv("srv")
	spec.Name = "web"
	a := r.run(router.StartSpec{Spec: spec})
	if _, err := r.Start(t.Context(), router.StartSpec{ID: cay.NewID(cay.PrefixProcess), Spec: spec}); cay.ReasonOf(err) != cay.AlreadyExists {
		t.Fatal(err)
	}
	if err := r.Signal(t.Context(), "web", "TERM", true); err != nil {
		t.Fatal(err)
	}
	_, _, exit := drain(t, a)
	if exit.Reason != cay.ExitKilled || exit.Signal != "TERM" || exit.Code != 143 || !exit.Killed {
		t.Fatalf("%+v", exit)
	}
	if err := r.Signal(t.Context(), string(a.Process().ID()), "TERM", true); cay.ReasonOf(err) != cay.Conflict {
		t.Fatalf("signal after the end: %v", err)
	}
	r.run(router.StartSpec{Spec: spec})
}

func TestATerminalWithoutReadersGetsHangUpThenKill(t *testing.T) {
	var got atomic.Int64
	r := start(t, scripts(map[string]agenttest.Script{"sh": func(p *agenttest.Process) *guestv1.Exited {
		got.Store(int64(p.Killed()))
		return nil
	}}))
	spec := argv("sh")
	spec.TTY = true
	a := r.run(router.StartSpec{Spec: spec, HangupOnDisconnect: true})
	a.Close()
	if err := a.Ended(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got.Load() != 1 {
		t.Fatalf("first signal %d", got.Load())
	}
}

func TestALostReaderKillsWhereThatWasAskedFor(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"slow": forever}))
	a := r.run(router.StartSpec{Spec: argv("slow"), KillOnDisconnect: true})
	a.Close()
	if err := a.Ended(t.Context()); err != nil {
		t.Fatal(err)
	}
	if exit := a.Process().Log().Process().Exit; exit.Reason != cay.ExitKilled {
		t.Fatalf("%+v", exit)
	}
	b := r.run(router.StartSpec{Spec: argv("slow"), KillOnDisconnect: true})
	b.Detach()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if b.Ended(ctx) == nil {
		t.Fatal("a detached process was killed")
	}
}

func TestARestartedNodeFindsProcessesOutputAndExits(t *testing.T) {
	agent := scripts(map[string]agenttest.Script{"cat": echo, "quick": func(p *agenttest.Process) *guestv1.Exited {
		p.Write(wire.FrameStdout, []byte("done"))
		return &guestv1.Exited{Code: 3}
	}})
	dir := t.TempDir()
	r := startIn(t, dir, agent)
	cat := r.run(router.StartSpec{Spec: argv("cat")})
	if err := cat.WriteStdin(t.Context(), []byte("before ")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its output came", func() bool { return cat.Process().Log().Produced() == 7 })
	quick := r.run(router.StartSpec{Spec: argv("quick")})
	drain(t, quick)
	id := cat.Process().ID()
	cat.Close()
	r.Close()
	r.spool.Close()

	r = startIn(t, dir, agent)
	a, err := r.Attach(t.Context(), router.AttachSpec{Ref: string(id), TakeStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := r.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := a.StdinOffset(); n != 7 {
		t.Fatalf("stdin offset %d", n)
	}
	if err := a.WriteStdin(t.Context(), []byte("after")); err != nil {
		t.Fatal(err)
	}
	a.CloseStdin()
	if out, _, exit := drain(t, a); out != "before after" || exit.Reason != cay.ExitExited {
		t.Fatalf("%q %+v", out, exit)
	}
	old, err := r.Attach(t.Context(), router.AttachSpec{Ref: string(quick.Process().ID())})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if out, _, exit := drain(t, old); out != "done" || exit.Code != 3 {
		t.Fatalf("%q %+v", out, exit)
	}
}

func TestAProcessThatWasNeverWrittenDownIsAdopted(t *testing.T) {
	agent := scripts(map[string]agenttest.Script{"cat": echo})
	r := start(t, agent)
	a := r.run(router.StartSpec{Spec: argv("cat")})
	if err := a.WriteStdin(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its output came", func() bool { return a.Process().Log().Produced() == 1 })
	id := a.Process().ID()
	a.Close()
	r.Close()
	r = start(t, agent) // with another directory
	if err := r.Connected(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, err := r.Attach(t.Context(), router.AttachSpec{Ref: string(id), TakeStdin: true})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.WriteStdin(t.Context(), []byte("y")); err != nil {
		t.Fatal(err)
	}
	again.CloseStdin()
	if out, _, _ := drain(t, again); !strings.HasSuffix(out, "y") {
		t.Fatalf("%q", out)
	}
}

func TestAProcessThatTheAgentNoLongerNamesIsSettled(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"slow": forever}))
	a := r.run(router.StartSpec{Spec: argv("slow")})
	r.agent.Lose(string(a.Process().ID()))
	r.agent.Drop()
	if _, _, exit := drain(t, a); exit.Reason != cay.ExitKilled || exit.Detail == "" {
		t.Fatalf("%+v", exit)
	}
}

func TestTheEndOfTheSandboxEndsItsProcesses(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"slow": forever}))
	a, b := r.run(router.StartSpec{Spec: argv("slow")}), r.run(router.StartSpec{Spec: argv("slow")})
	r.agent.Kill()
	r.End()
	for _, a := range []*router.Attachment{a, b} {
		if _, _, exit := drain(t, a); exit.Reason != cay.ExitSandboxEnded {
			t.Fatalf("%+v", exit)
		}
	}
	if _, err := r.Start(t.Context(), router.StartSpec{ID: cay.NewID(cay.PrefixProcess), Spec: argv("x")}); cay.ReasonOf(err) != cay.Gone {
		t.Fatal(err)
	}
}

func TestVictimsOfAReclaimEndWithOOM(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"hog": forever}))
	a := r.run(router.StartSpec{Spec: argv("hog")})
	victims, err := r.Reclaim(t.Context(), 1<<30)
	if err != nil || len(victims) != 1 || victims[0].Process != string(a.Process().ID()) {
		t.Fatalf("%v %v", victims, err)
	}
	if _, _, exit := drain(t, a); exit.Reason != cay.ExitOOM && exit.Reason != cay.ExitSignaled {
		t.Fatalf("%+v", exit)
	}
}

func TestASilentConnectionIsReplaced(t *testing.T) {
	agent := &agenttest.Agent{Silent: true}
	var dials atomic.Int64
	start(t, agent, func(c *router.Config) {
		dial := c.Dial
		c.Dial = func(ctx context.Context, p driver.Purpose) (net.Conn, error) { dials.Add(1); return dial(ctx, p) }
		c.Timing.PingAnswer = 200 * time.Millisecond
	})
	eventually(t, "it is dialled again", func() bool { return dials.Load() >= 2 })
}

func TestFilesGoBothWaysOverConnectionsOfTheirOwn(t *testing.T) {
	r := start(t, &agenttest.Agent{})
	content := bytes.Repeat([]byte("0123456789"), 500_000)
	w, err := r.WriteFile(t.Context(), &guestv1.WriteFile{Path: "/f"})
	if err != nil {
		t.Fatal(err)
	}
	for rest := content; len(rest) > 0; {
		n := min(len(rest), router.MaxData)
		if err := w.Write(rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	if info, err := w.Commit(); err != nil || info.Size != int64(len(content)) {
		t.Fatalf("%v %v", info, err)
	}
	w.Close()
	f, err := r.ReadFile(t.Context(), &guestv1.ReadFile{Path: "/f", Offset: 5, Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got []byte
	for {
		b, err := f.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, b...)
	}
	if !bytes.Equal(got, content[5:]) {
		t.Fatalf("%d bytes", len(got))
	}
	if _, err := r.ReadFile(t.Context(), &guestv1.ReadFile{Path: "/none", Length: -1}); cay.ReasonOf(err) != cay.NotFound {
		t.Fatal(err)
	}
}

func TestAWriteWithoutCommitWritesNothingAndAFullDiskIsSaid(t *testing.T) {
	r := start(t, &agenttest.Agent{})
	w, err := r.WriteFile(t.Context(), &guestv1.WriteFile{Path: "/f"})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write([]byte("half")); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := r.Stat(t.Context(), &guestv1.Stat{Path: "/f"}); cay.ReasonOf(err) != cay.NotFound {
		t.Fatal(err)
	}
	w, err = r.WriteFile(t.Context(), &guestv1.WriteFile{Path: "/big"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	run := make([]byte, router.MaxData)
	for range 4096 {
		if err = w.Write(run); err != nil {
			break
		}
	}
	if cay.ReasonOf(err) != cay.DiskFull {
		t.Fatalf("error %v", err)
	}
}
