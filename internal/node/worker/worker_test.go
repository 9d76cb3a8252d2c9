package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/node/worker"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestASandboxIsCreatedUsedAndDestroyed(t *testing.T) {
	d := newFakeDriver()
	d.scripts["hi"] = func(p *agenttest.Process) *guestv1.Exited {
		p.Write(wire.FrameStdout, []byte("out"))
		p.Write(wire.FrameStderr, []byte("err"))
		return &guestv1.Exited{Code: 7}
	}
	n := startNode(t, d, t.TempDir())
	id := n.create()
	if got := d.of(id).agent.Claimed(); got != id {
		t.Fatalf("claimed by %q", got)
	}
	started, data, exit := n.process(t.Context(), startInput(id, nil, "hi")).drain()
	if started.Pid == 0 || string(data[0]) != "out" || string(data[1]) != "err" || exit.Code != 7 || exit.Reason != "exited" {
		t.Fatalf("%v %q %v", started, data, exit)
	}
	usage, err := n.destroy(id, 2)
	if err != nil || usage.CpuSeconds != 2 || usage.DiskMb != 3 {
		t.Fatalf("%v %v", usage, err)
	}
	if boxes, _, _ := d.count(); boxes != 0 {
		t.Fatalf("%d left", boxes)
	}
	if left, _ := os.ReadDir(filepath.Join(n.dir, "sandboxes")); len(left) > 0 {
		if inside, _ := os.ReadDir(filepath.Join(n.dir, "sandboxes", left[0].Name())); len(inside) > 0 {
			t.Fatalf("left behind: %v", inside)
		}
	}
	if _, err := n.destroy(id, 2); err != nil {
		t.Fatalf("a second destroy: %v", err)
	}
	if err := n.process(t.Context(), startInput(id, nil, "hi")).failure(); cay.ReasonOf(err) != cay.NotFound {
		t.Fatalf("use after the end: %v", err)
	}
}

func TestARepeatedCreateJoinsTheFirstAndAnOlderAttemptIsRefused(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := cay.NewID(cay.PrefixSandbox)
	var all sync.WaitGroup
	for attempt := range int64(8) {
		all.Go(func() {
			_, err := n.Create(t.Context(), createRequest(id, 10+attempt))
			if err != nil && reason(err) != cay.PreconditionFailed {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if _, prepared, _ := d.count(); prepared != 1 {
		t.Fatalf("booted %d times", prepared)
	}
	if _, err := n.Create(t.Context(), createRequest(id, 1)); reason(err) != cay.PreconditionFailed {
		t.Fatalf("an older attempt: %v", err)
	}
	if _, err := n.destroy(string(id), 3); cay.ReasonOf(err) != cay.PreconditionFailed {
		t.Fatalf("an older destroy: %v", err)
	}
	if _, err := n.destroy(string(id), 30); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Create(t.Context(), createRequest(id, 29)); reason(err) != cay.PreconditionFailed {
		t.Fatalf("a create that was overtaken by a destroy: %v", err)
	}
}

func TestACallerThatLeavesDoesNotStopACreate(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := cay.NewID(cay.PrefixSandbox)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.Create(ctx, createRequest(id, 1)) // may or may not arrive
	r, err := n.Create(t.Context(), createRequest(id, 1))
	if err != nil || r.Msg.Warm {
		t.Fatal(err)
	}
}

func TestABootWithoutHelloFailsAndLeavesNothing(t *testing.T) {
	d := newFakeDriver()
	d.agent = func(a *agenttest.Agent) { a.NoHello = true }
	n := startNode(t, d, t.TempDir(), func(c *worker.Config) { c.Timing.Boot = 100 * time.Millisecond })
	id := cay.NewID(cay.PrefixSandbox)
	if _, err := n.Create(t.Context(), createRequest(id, 1)); reason(err) != cay.BootFailed {
		t.Fatal(err)
	}
	if boxes, _, _ := d.count(); boxes != 0 {
		t.Fatalf("%d left", boxes)
	}
	d.mu.Lock()
	d.agent = nil
	d.mu.Unlock()
	if _, err := n.Create(t.Context(), createRequest(id, 2)); err != nil {
		t.Fatalf("the next attempt: %v", err)
	}
}

func TestABootThatFindsTheDiskFullSaysSo(t *testing.T) {
	d := newFakeDriver()
	d.refuse = fmt.Errorf("boot: %w", &os.PathError{Op: "write", Path: "config.json", Err: syscall.ENOSPC})
	n := startNode(t, d, t.TempDir())
	if _, err := n.Create(t.Context(), createRequest(cay.NewID(cay.PrefixSandbox), 1)); reason(err) != cay.DiskFull {
		t.Fatal(err)
	}
}

func TestADestroyDuringBootWins(t *testing.T) {
	d := newFakeDriver()
	d.agent = func(a *agenttest.Agent) { a.NoHello = true }
	n := startNode(t, d, t.TempDir(), func(c *worker.Config) { c.Timing.Boot = time.Minute })
	id := cay.NewID(cay.PrefixSandbox)
	created := make(chan error, 1)
	go func() {
		_, err := n.Create(t.Context(), createRequest(id, 1))
		created <- err
	}()
	eventually(t, "it boots", func() bool { boxes, _, _ := d.count(); return boxes == 1 })
	if _, err := n.destroy(string(id), 2); err != nil {
		t.Fatal(err)
	}
	if err := <-created; reason(err) != cay.Gone {
		t.Fatal(err)
	}
	if boxes, _, _ := d.count(); boxes != 0 {
		t.Fatalf("%d left", boxes)
	}
}

func TestLimitsThatCannotBeKeptAreRefused(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir(), func(c *worker.Config) { c.MaxSandboxes = 1 })
	r := createRequest(cay.NewID(cay.PrefixSandbox), 1)
	r.Msg.Spec.ExplicitLimits = []string{"disk_gb"}
	if _, err := n.Create(t.Context(), r); reason(err) != cay.Unprocessable {
		t.Fatal(err)
	}
	n.create()
	if _, err := n.Create(t.Context(), createRequest(cay.NewID(cay.PrefixSandbox), 1)); reason(err) != cay.NoCapacity {
		t.Fatal(err)
	}
}

func TestAPreparedSandboxServesACreateOfItsShape(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir(), func(c *worker.Config) { c.PoolSize, c.PoolShape = 1, shape() })
	eventually(t, "one is prepared", func() bool { boxes, _, _ := d.count(); return boxes == 1 })
	var warm bool
	var ids []string
	eventually(t, "a create is warm", func() bool {
		id := cay.NewID(cay.PrefixSandbox)
		r, err := n.Create(t.Context(), createRequest(id, 1))
		if err != nil {
			t.Fatal(err)
		}
		warm = r.Msg.Warm
		ids = append(ids, string(id))
		return warm
	})
	n.stop()
	boxes, _, _ := d.count()
	if boxes != len(ids) {
		t.Fatalf("%d sandboxes after the close, %d were claimed", boxes, len(ids))
	}
}

func TestAFrozenSandboxRefusesWorkAndThaws(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir())
	id := n.create()
	for range 2 {
		if _, err := n.Freeze(t.Context(), connect.NewRequest(&nodev1.FreezeRequest{SandboxId: id})); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.process(t.Context(), startInput(id, nil, "sleep")).failure(); cay.ReasonOf(err) != cay.SandboxPaused {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := n.Thaw(t.Context(), connect.NewRequest(&nodev1.ThawRequest{SandboxId: id})); err != nil {
			t.Fatal(err)
		}
	}
	if n.process(t.Context(), startInput(id, nil, "sleep")).next().GetStarted() == nil {
		t.Fatal("not started")
	}
}

func TestTheEndOfASandboxIsSaidOnceAndAgainToLaterWatchers(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	s := n.process(t.Context(), startInput(id, nil, "sleep"))
	s.next()
	w := n.watch()
	d.die(id, true)
	if e := nextEvent(t, w, (*nodev1.Event).GetEnded); e.Reason != "oom" || e.Usage.CpuSeconds != 2 {
		t.Fatalf("%v", e)
	}
	if _, _, exit := s.drain(); exit.Reason != "oom" || !exit.Oom {
		t.Fatalf("%v", exit)
	}
	if e := nextEvent(t, n.watch(), (*nodev1.Event).GetEnded); e.Reason != "oom" {
		t.Fatalf("%v", e)
	}
	if err := n.process(t.Context(), startInput(id, nil, "sleep")).failure(); cay.ReasonOf(err) != cay.Gone {
		t.Fatal(err)
	}
	if _, err := n.destroy(id, 2); err != nil {
		t.Fatal(err)
	}
	if boxes, _, _ := d.count(); boxes != 0 {
		t.Fatalf("%d left", boxes)
	}
}

func TestAPauseThatFailsLeavesTheSandboxRunning(t *testing.T) {
	d := newFakeDriver()
	d.halfFrozen = errors.New("not in time")
	n := startNode(t, d, t.TempDir())
	id := n.create()
	if _, err := n.Freeze(t.Context(), connect.NewRequest(&nodev1.FreezeRequest{SandboxId: id})); err == nil {
		t.Fatal("the pause succeeded")
	}
	d.change(d.of(id).status.Handle, func(b *fakeBox) {
		if b.status.Frozen {
			t.Error("its processes stand still")
		}
	})
}

func TestARestartedNodeAdoptsWhatTheStoreKnowsAndEndsTheRest(t *testing.T) {
	d := newFakeDriver()
	d.scripts["count"] = func(p *agenttest.Process) *guestv1.Exited {
		p.Write(wire.FrameStdout, []byte("before"))
		p.Killed()
		return nil
	}
	dir := t.TempDir()
	n := startNode(t, d, dir)
	kept, paused, unknown, dead := n.create(), n.create(), n.create(), n.create()
	first := startInput(kept, nil, "count")
	s := n.process(t.Context(), first)
	s.next()
	s.next()
	for _, id := range []string{paused, kept} { // the store says of one of them that it runs
		if _, err := n.Freeze(t.Context(), connect.NewRequest(&nodev1.FreezeRequest{SandboxId: id})); err != nil {
			t.Fatal(err)
		}
	}
	n.stop()
	d.mu.Lock()
	for _, b := range d.boxes {
		if string(b.status.SandboxID) == dead {
			b.status.Alive = false
		}
	}
	d.boxes["half"] = &fakeBox{agent: &agenttest.Agent{}, thawed: open(), status: driver.Status{Handle: "half"}}
	d.mu.Unlock()

	n = startNode(t, d, dir)
	never := string(cay.NewID(cay.PrefixSandbox))
	r, err := n.Adopt(t.Context(), connect.NewRequest(&nodev1.AdoptRequest{Sandboxes: []*nodev1.AdoptRequest_Known{
		{SandboxId: kept}, {SandboxId: paused, Paused: true}, {SandboxId: dead}, {SandboxId: never},
	}}))
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Msg.Running) != 2 || len(r.Msg.Lost) != 2 {
		t.Fatalf("%v", r.Msg)
	}
	eventually(t, "the unknown and the half made are destroyed", func() bool {
		return d.of(unknown) == nil && d.handle("half") == nil
	})
	if !d.of(paused).status.Frozen || d.of(kept).status.Frozen {
		t.Fatal("frozen states do not agree with the store")
	}
	info, err := n.GetInfo(t.Context(), connect.NewRequest(&nodev1.GetInfoRequest{}))
	if err != nil || !info.Msg.Adopted {
		t.Fatal(info, err)
	}
	s = n.process(t.Context(), &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Attach{Attach: &nodev1.AttachProcess{
		SandboxId: kept, ProcessId: first.GetStart().ProcessId,
	}}})
	s.next()
	if got := s.next().GetData(); string(got.Data) != "before" {
		t.Fatalf("%v", got)
	}
	if _, err := n.Signal(t.Context(), connect.NewRequest(&nodev1.SignalRequest{SandboxId: kept, ProcessId: first.GetStart().ProcessId, Signal: "KILL"})); err != nil {
		t.Fatal(err)
	}
	if _, _, exit := s.drain(); exit.Signal != "KILL" {
		t.Fatalf("%v", exit)
	}
}

func TestADestroyThatFailsIsTriedAgain(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	d.mu.Lock()
	d.failing = 1
	d.mu.Unlock()
	if _, err := n.destroy(id, 2); cay.ReasonOf(err) != cay.Unavailable {
		t.Fatal(err)
	}
	if _, err := n.destroy(id, 2); err != nil {
		t.Fatal(err)
	}
	if boxes, _, _ := d.count(); boxes != 0 {
		t.Fatalf("%d left", boxes)
	}
}

func TestFilesGoThroughTheService(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir())
	id := n.create()
	content := bytes.Repeat([]byte("0123456789"), 300_000)
	w := n.WriteFile(t.Context())
	w.Send(&nodev1.WriteFileRequest{Part: &nodev1.WriteFileRequest_Header{Header: &nodev1.WriteFileHeader{SandboxId: id, Path: "/f"}}})
	for rest := content; len(rest) > 0; {
		k := min(len(rest), 200_000)
		if err := w.Send(&nodev1.WriteFileRequest{Part: &nodev1.WriteFileRequest_Data{Data: rest[:k]}}); err != nil {
			t.Fatal(err)
		}
		rest = rest[k:]
	}
	w.Send(&nodev1.WriteFileRequest{Part: &nodev1.WriteFileRequest_Commit{Commit: true}})
	info, err := w.CloseAndReceive()
	if err != nil || info.Msg.Size != int64(len(content)) || info.Msg.Etag != wire.ETag(7, int64(len(content)), 0) {
		t.Fatal(info, err)
	}
	r, err := n.ReadFile(t.Context(), connect.NewRequest(&nodev1.ReadFileRequest{SandboxId: id, Path: "/f", Offset: 3, Length: 1_000_000}))
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for r.Receive() {
		got = append(got, r.Msg().GetData()...)
	}
	if r.Err() != nil || !bytes.Equal(got, content[3:1_000_003]) {
		t.Fatalf("%d bytes, %v", len(got), r.Err())
	}
	cut := n.WriteFile(t.Context())
	cut.Send(&nodev1.WriteFileRequest{Part: &nodev1.WriteFileRequest_Header{Header: &nodev1.WriteFileHeader{SandboxId: id, Path: "/g"}}})
	cut.Send(&nodev1.WriteFileRequest{Part: &nodev1.WriteFileRequest_Data{Data: []byte("x")}})
	if _, err := cut.CloseAndReceive(); reason(err) != cay.InvalidRequest {
		t.Fatal(err)
	}
	if _, err := n.Stat(t.Context(), connect.NewRequest(&nodev1.StatRequest{SandboxId: id, Path: "/g"})); reason(err) != cay.NotFound {
		t.Fatal(err)
	}
}

func TestAnAgentThatBreaksTheProtocolEndsItsSandbox(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	w := n.watch()
	agent := d.of(id).agent
	done := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				agent.Tell(&guestv1.ToNode{Message: &guestv1.ToNode_Started{Started: &guestv1.Started{}}})
			}
		}
	})
	e := nextEvent(t, w, (*nodev1.Event).GetEnded)
	close(done)
	flood.Wait()
	if e.Reason != "worker_lost" || e.Detail == "" {
		t.Fatalf("%v", e)
	}
	if boxes, _, _ := d.count(); boxes != 0 {
		t.Fatalf("%d left", boxes)
	}
}
