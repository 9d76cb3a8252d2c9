package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/node/worker"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a worker behind a real socket, with its client.
type node struct {
	nodev1connect.NodeServiceClient
	t      testing.TB
	driver *fakeDriver
	dir    string
	socket string
	worker *worker.Worker
	stop   func()
}

func startNode(t testing.TB, d *fakeDriver, dir string, change ...func(*worker.Config)) *node {
	t.Helper()
	cfg := worker.Config{
		Driver: d, DataDir: dir, WorkerID: "wrk_00000000000000000000000001", CPU: 4, MemoryMB: 4096, DiskGB: 50,
		Timing: worker.Timing{Boot: 2 * time.Second, Adopt: time.Second, Thaw: 2 * time.Second, Reclaim: 50 * time.Millisecond, Sample: 20 * time.Millisecond},
		Router: router.Timing{HoldStall: 500 * time.Millisecond, Connected: time.Second, Hello: time.Second},
	}
	for _, c := range change {
		c(&cfg)
	}
	d.mu.Lock()
	d.dir = filepath.Join(dir, "sandboxes")
	d.mu.Unlock()
	w, err := worker.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(w.Handler())
	mux.Handle(w.PortHandler())
	sock := filepath.Join(t.TempDir(), "n")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	served := new(http.Protocols)
	served.SetUnencryptedHTTP2(true)
	served.SetHTTP1(true)
	srv := &http.Server{Handler: mux, Protocols: served, HTTP2: worker.HTTP2()}
	var work sync.WaitGroup
	work.Go(func() { srv.Serve(l) })
	ctx, cancel := context.WithCancel(context.Background())
	work.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", sock)
		},
		Protocols: protocols, HTTP2: worker.HTTP2(),
	}
	n := &node{t: t, driver: d, dir: dir, socket: sock, worker: w}
	n.NodeServiceClient = nodev1connect.NewNodeServiceClient(&http.Client{Transport: transport}, "http://node")
	var once sync.Once
	n.stop = func() {
		once.Do(func() {
			cancel()
			closing, done := context.WithTimeout(context.Background(), time.Minute)
			defer done()
			if err := w.Close(closing); err != nil {
				t.Error(err)
			}
			srv.Close()
			transport.CloseIdleConnections()
			work.Wait()
		})
	}
	t.Cleanup(func() {
		n.stop()
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, b := range d.boxes {
			b.agent.Kill()
		}
	})
	return n
}

func shape() driver.Shape {
	return driver.Shape{Image: "host", CPU: 1, MemoryMB: 512, DiskGB: 1, Pids: 128}
}

func createRequest(id cay.ID, attempt int64) *connect.Request[nodev1.CreateRequest] {
	return connect.NewRequest(&nodev1.CreateRequest{SandboxId: string(id), Attempt: attempt, Spec: &nodev1.Spec{
		Image: "host", Cpu: 1, MemoryMb: 512, DiskGb: 1, Pids: 128, Env: map[string]string{"A": "b"}, User: "sandbox", Workdir: "/workspace",
	}})
}

func (n *node) create() string {
	n.t.Helper()
	id := cay.NewID(cay.PrefixSandbox)
	if _, err := n.Create(n.t.Context(), createRequest(id, 1)); err != nil {
		n.t.Fatal(err)
	}
	return string(id)
}

func (n *node) destroy(id string, attempt int64) (*nodev1.Usage, error) {
	r, err := n.Destroy(n.t.Context(), connect.NewRequest(&nodev1.DestroyRequest{SandboxId: id, Attempt: attempt}))
	if err != nil {
		return nil, noderpc.Decode(err)
	}
	return r.Msg.Usage, nil
}

type stream struct {
	*connect.BidiStreamForClient[nodev1.ProcessInput, nodev1.ProcessOutput]
	t testing.TB
}

func (n *node) process(ctx context.Context, first *nodev1.ProcessInput) *stream {
	n.t.Helper()
	s := n.Process(ctx)
	if err := s.Send(first); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { s.CloseRequest(); s.CloseResponse() })
	return &stream{s, n.t}
}

func startInput(sandbox string, change func(*nodev1.StartProcess), argv ...string) *nodev1.ProcessInput {
	st := &nodev1.StartProcess{
		SandboxId: sandbox, ProcessId: string(cay.NewID(cay.PrefixProcess)), Spec: &nodev1.ProcessSpec{Argv: argv, StdinOpen: true}, Foreground: true,
	}
	if change != nil {
		change(st)
	}
	return &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Start{Start: st}}
}

func (s *stream) next() *nodev1.ProcessOutput {
	s.t.Helper()
	out, err := s.Receive()
	if err != nil {
		s.t.Fatal(noderpc.Decode(err))
	}
	return out
}

// drain reads to the end of the stream.
func (s *stream) drain() (started *nodev1.Started, data [2][]byte, exit *nodev1.Exit) {
	s.t.Helper()
	for {
		out, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return started, data, exit
		}
		if err != nil {
			s.t.Fatal(noderpc.Decode(err))
		}
		switch o := out.Output.(type) {
		case *nodev1.ProcessOutput_Started:
			started = o.Started
		case *nodev1.ProcessOutput_Data:
			data[o.Data.Stream-1] = append(data[o.Data.Stream-1], o.Data.Data...)
		case *nodev1.ProcessOutput_Exit:
			exit = o.Exit
		case *nodev1.ProcessOutput_Error:
			s.t.Fatalf("stream error %v", o.Error)
		}
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time: " + what)
		}
	}
}

func reason(err error) cay.ErrorReason { return cay.ReasonOf(noderpc.Decode(err)) }

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

func (s *stream) failure() error {
	for {
		if _, err := s.Receive(); err != nil {
			return noderpc.Decode(err)
		}
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

func TestCollectedOutputFollowsTheExit(t *testing.T) {
	d := newFakeDriver()
	d.scripts["big"] = func(p *agenttest.Process) *guestv1.Exited {
		for i := range 40 {
			p.Write(wire.FrameStdout, bytes.Repeat([]byte{byte(i)}, 10_000))
		}
		p.Write(wire.FrameStderr, []byte("end"))
		return nil
	}
	n := startNode(t, d, t.TempDir())
	s := n.process(t.Context(), startInput(n.create(), func(st *nodev1.StartProcess) {
		st.Collect, st.Spec.MaxOutputBytes = true, 200_000
	}, "big"))
	if s.next().GetStarted() == nil {
		t.Fatal("not started first")
	}
	exit := s.next().GetExit()
	if exit == nil || exit.StdoutSize != 400_000 || exit.StderrSize != 3 {
		t.Fatalf("%v", exit)
	}
	var next, kept int64
	var gaps int
	for {
		out, err := s.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if g := out.GetGap(); g != nil {
			if g.Stream != 1 || g.Offset != 100_000 || g.Bytes != 200_000 {
				t.Fatalf("%v", g)
			}
			continue
		}
		data := out.GetData()
		if data.Stream == 2 {
			if string(data.Data) != "end" || data.Offset != 0 {
				t.Fatalf("stderr %v", data)
			}
			continue
		}
		if data.Offset != next {
			gaps++
		}
		next = data.Offset + int64(len(data.Data))
		kept += int64(len(data.Data))
	}
	if next != 400_000 || kept != 200_000 || gaps != 1 {
		t.Fatalf("up to %d, kept %d, %d gaps", next, kept, gaps)
	}
}

func TestStdinSignalsAndDetachGoThroughTheStream(t *testing.T) {
	d := newFakeDriver()
	d.scripts["cat"] = func(p *agenttest.Process) *guestv1.Exited {
		b := make([]byte, 4096)
		for {
			k, err := p.Read(b)
			if err != nil {
				return nil
			}
			p.Write(wire.FrameStdout, b[:k])
		}
	}
	n := startNode(t, d, t.TempDir())
	id := n.create()
	first := startInput(id, func(st *nodev1.StartProcess) { st.KillOnDisconnect = true }, "cat")
	s := n.process(t.Context(), first)
	s.next()
	s.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Stdin{Stdin: []byte("one ")}})
	if got := s.next().GetData(); string(got.Data) != "one " {
		t.Fatalf("%v", got)
	}
	s.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Detach{Detach: true}})
	if _, err := s.Receive(); !errors.Is(err, io.EOF) {
		t.Fatalf("after the detach: %v", err)
	}
	s = n.process(t.Context(), &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Attach{Attach: &nodev1.AttachProcess{
		SandboxId: id, ProcessId: first.GetStart().ProcessId, TakeStdin: true,
	}}})
	if st := s.next().GetStarted(); st.StdinOffset != 4 || st.Offset != 0 {
		t.Fatalf("%v", st)
	}
	s.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Stdin{Stdin: []byte("two")}})
	s.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_CloseStdin{CloseStdin: true}})
	if _, data, exit := s.drain(); string(data[0]) != "one two" || exit.Reason != "exited" {
		t.Fatalf("%q %v", data, exit)
	}
	s = n.process(t.Context(), startInput(id, nil, "sleep"))
	s.next()
	s.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Signal{Signal: &nodev1.SignalProcess{Signal: "INT", Tree: true}}})
	if _, _, exit := s.drain(); exit.Signal != "INT" || exit.Code != 130 {
		t.Fatalf("%v", exit)
	}
}

func TestALostStreamKillsWhereThatWasAskedFor(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	ctx, cancel := context.WithCancel(t.Context())
	s := n.process(ctx, startInput(id, func(st *nodev1.StartProcess) { st.KillOnDisconnect = true }, "sleep"))
	s.next()
	cancel()
	s.CloseRequest() // a canceled context alone resets no stream whose sending half is still open
	s.CloseResponse()
	eventually(t, "it is killed", func() bool {
		r, err := n.ListProcesses(t.Context(), connect.NewRequest(&nodev1.ListProcessesRequest{SandboxId: id}))
		return err == nil && len(r.Msg.Processes) == 1 && r.Msg.Processes[0].GetExit().GetReason() == "killed"
	})
}

func TestProcessesAreListedWithWhatTheAgentSees(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir())
	id := n.create()
	s := n.process(t.Context(), startInput(id, func(st *nodev1.StartProcess) { st.Spec.Name = "napper" }, "sleep"))
	s.next()
	list := func(all bool) []*nodev1.ProcessInfo {
		r, err := n.ListProcesses(t.Context(), connect.NewRequest(&nodev1.ListProcessesRequest{SandboxId: id, All: all}))
		if err != nil {
			t.Fatal(err)
		}
		return r.Msg.Processes
	}
	if l := list(false); len(l) != 1 || l[0].Name != "napper" || l[0].State != "S" || l[0].RssMb != 1 {
		t.Fatalf("%v", l)
	}
	if l := list(true); len(l) != 2 || l[1].ProcessId != "" {
		t.Fatalf("%v", l)
	}
	if _, err := n.Signal(t.Context(), connect.NewRequest(&nodev1.SignalRequest{SandboxId: id, ProcessId: "napper", Signal: "TERM"})); err != nil {
		t.Fatal(err)
	}
	if _, _, exit := s.drain(); exit.Reason != "killed" {
		t.Fatalf("%v", exit)
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

// watch begins to watch and waits until it is in force.
func (n *node) watch() *connect.ServerStreamForClient[nodev1.Event] {
	n.t.Helper()
	s, err := n.Watch(n.t.Context(), connect.NewRequest(&nodev1.WatchRequest{}))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { s.Close() })
	if !s.Receive() || s.Msg().GetHello() == nil {
		n.t.Fatal("no hello", s.Err())
	}
	return s
}

func nextEvent[T any](t testing.TB, s *connect.ServerStreamForClient[nodev1.Event], pick func(*nodev1.Event) *T) *T {
	t.Helper()
	late := time.AfterFunc(10*time.Second, func() { s.Close() })
	defer late.Stop()
	for s.Receive() {
		if e := pick(s.Msg()); e != nil {
			return e
		}
	}
	t.Fatalf("no such event in time: %v", s.Err())
	return nil
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

func TestMemoryIsReclaimedAndWhatDoesNotHelpEndsTheSandbox(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	first := startInput(id, nil, "sleep")
	s := n.process(t.Context(), first)
	s.next()
	w := n.watch()
	b := d.of(id)
	d.events <- driver.Event{Handle: b.status.Handle, Type: driver.EventMemory, Promise: 512 << 20, Current: 600 << 20}
	if e := nextEvent(t, w, (*nodev1.Event).GetOom); e.Process != first.GetStart().ProcessId || e.RssMb != 900 {
		t.Fatalf("%v", e)
	}
	s.drain()
	d.change(b.status.Handle, func(b *fakeBox) { b.memory = 600 << 20 })
	eventually(t, "the sandbox is ended", func() bool {
		select {
		case d.events <- driver.Event{Handle: b.status.Handle, Type: driver.EventMemory, Promise: 512 << 20}:
		default:
		}
		boxes, _, _ := d.count()
		return boxes == 0
	})
	if e := nextEvent(t, w, (*nodev1.Event).GetEnded); e.Reason != "oom" || e.Usage.PeakMemoryMb != 600 {
		t.Fatalf("%v", e)
	}
}

func TestAnAlarmDoesNotWaitForMeasurements(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	s := n.process(t.Context(), startInput(id, nil, "sleep"))
	s.next()
	w := n.watch()
	measuring := make(chan struct{})
	defer close(measuring)
	d.mu.Lock()
	d.measuring = measuring
	d.mu.Unlock()
	eventually(t, "a measurement is under way", func() bool { return d.measured.Load() > 0 })
	d.events <- driver.Event{Handle: d.of(id).status.Handle, Type: driver.EventMemory, Promise: 512 << 20, Current: 600 << 20}
	nextEvent(t, w, (*nodev1.Event).GetOom)
}

func TestASandboxBelowItsLimitAfterAKillForMemoryLives(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	w := n.watch()
	handle := d.of(id).status.Handle
	alarm := driver.Event{Handle: handle, Type: driver.EventMemory, Promise: 512 << 20, Limit: 576 << 20, Current: 600 << 20}
	d.change(handle, func(b *fakeBox) { b.memory = alarm.Limit })
	stop := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			select {
			case d.events <- alarm:
			case <-stop:
				return
			}
		}
	})
	for range 2 { // the second kill comes only after what the first brought was judged
		s := n.process(t.Context(), startInput(id, nil, "sleep"))
		s.next()
		nextEvent(t, w, (*nodev1.Event).GetOom)
		s.drain()
	}
	close(stop)
	sending.Wait()
}

func TestMemoryIsReclaimedAlsoAfterAnAlarmThatCameWhilePaused(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	s := n.process(t.Context(), startInput(id, nil, "sleep"))
	s.next()
	w := n.watch()
	alarm := driver.Event{Handle: d.of(id).status.Handle, Type: driver.EventMemory, Promise: 512 << 20, Current: 600 << 20}
	if _, err := n.Freeze(t.Context(), connect.NewRequest(&nodev1.FreezeRequest{SandboxId: id})); err != nil {
		t.Fatal(err)
	}
	d.events <- alarm
	d.events <- driver.Event{Handle: "another", Type: driver.EventExited} // once this is taken, the alarm has been dealt with
	eventually(t, "the alarm is seen", func() bool { return len(d.events) == 0 })
	if _, err := n.Thaw(t.Context(), connect.NewRequest(&nodev1.ThawRequest{SandboxId: id})); err != nil {
		t.Fatal(err)
	}
	d.events <- alarm
	nextEvent(t, w, (*nodev1.Event).GetOom)
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

func TestUseIsSaidOnceASample(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir())
	w := n.watch()
	s := n.process(t.Context(), startInput(n.create(), nil, "sleep"))
	s.next()
	nextEvent(t, w, func(e *nodev1.Event) *nodev1.Activity {
		if a := e.GetActivity(); a.GetForeground() && a.Usage.CpuSeconds == 2 && a.LastActiveUnixMs > 0 {
			return a
		}
		return nil
	})
	s.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Detach{Detach: true}})
	nextEvent(t, w, func(e *nodev1.Event) *nodev1.Activity {
		if a := e.GetActivity(); a != nil && !a.Foreground {
			return a
		}
		return nil
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

func (d *fakeDriver) handle(h driver.Handle) *fakeBox {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.boxes[h]
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
