package worker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"connectrpc.com/connect"

	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

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
