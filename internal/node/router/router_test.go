package router_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

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
