package worker_test

import (
	"errors"
	"io"
	"runtime"
	"testing"

	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// BenchmarkExec is a start to its exit with one line of output, through the service.
func BenchmarkExec(b *testing.B) {
	d := newFakeDriver()
	d.scripts["true"] = func(p *agenttest.Process) *guestv1.Exited { p.Write(wire.FrameStdout, []byte("ok\n")); return nil }
	n := startNode(b, d, b.TempDir())
	id := n.create()
	for b.Loop() {
		s := n.Process(b.Context())
		if err := s.Send(startInput(id, nil, "true")); err != nil {
			b.Fatal(err)
		}
		(&stream{s, b}).drain()
		s.CloseRequest()
		s.CloseResponse()
	}
}

// BenchmarkOutput carries one process's output from the agent's socket through spool and service to a client that reads.
func BenchmarkOutput(b *testing.B) {
	const run = wire.MaxDataRun
	d := newFakeDriver()
	d.scripts["yes"] = func(p *agenttest.Process) *guestv1.Exited {
		p.Flood(make([]byte, run), b.N)
		return nil
	}
	n := startNode(b, d, b.TempDir())
	id := n.create()
	b.SetBytes(run)
	b.ResetTimer()
	s := n.process(b.Context(), startInput(id, nil, "yes"))
	var got int64
	for {
		out, err := s.Receive()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			b.Fatal(err)
		}
		if e := out.GetError(); e != nil {
			b.Fatal(e)
		}
		got += int64(len(out.GetData().GetData()))
	}
	if got != int64(b.N)*run {
		b.Fatalf("%d bytes of %d", got, int64(b.N)*run)
	}
	b.StopTimer()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapSys)/(1<<20), "heap-MB")
}
