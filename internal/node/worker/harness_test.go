package worker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/worker"
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

func (s *stream) failure() error {
	for {
		if _, err := s.Receive(); err != nil {
			return noderpc.Decode(err)
		}
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
	late := time.AfterFunc(time.Minute, func() { s.Close() })
	defer late.Stop()
	for s.Receive() {
		if e := pick(s.Msg()); e != nil {
			return e
		}
	}
	t.Fatalf("no such event in time: %v", s.Err())
	return nil
}

func (d *fakeDriver) handle(h driver.Handle) *fakeBox {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.boxes[h]
}
