package worker_test

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// reader follows a node's records as a server does.
type reader struct {
	n    *node
	boot string
	next int64
	lost int64
}

// read acknowledges what was read before and waits until there is something.
func (r *reader) read(limit int32) []*nodev1.ProcessRecord {
	r.n.t.Helper()
	a, err := r.n.Records(r.n.t.Context(), connect.NewRequest(&nodev1.RecordsRequest{Boot: r.boot, After: r.next, WaitMs: 60_000, Limit: limit}))
	if err != nil {
		r.n.t.Fatal(err)
	}
	r.boot, r.next, r.lost = a.Msg.Boot, a.Msg.Next, a.Msg.Lost
	return a.Msg.Records
}

// none says that nothing is left to be read.
func (r *reader) none() {
	r.n.t.Helper()
	a, err := r.n.Records(r.n.t.Context(), connect.NewRequest(&nodev1.RecordsRequest{Boot: r.boot, After: r.next}))
	if err != nil || len(a.Msg.Records) > 0 || a.Msg.Next != r.next {
		r.n.t.Errorf("there is more: %v, %v", a, err)
	}
}

// run runs a process to its end and returns its id and exit.
func (n *node) run(sandbox string, change func(*nodev1.StartProcess), argv ...string) (string, *nodev1.Exit) {
	n.t.Helper()
	first := startInput(sandbox, change, argv...)
	_, _, exit := n.process(n.t.Context(), first).drain()
	return first.GetStart().ProcessId, exit
}

func as(kind string) func(*nodev1.StartProcess) {
	return func(st *nodev1.StartProcess) { st.Kind, st.Actor = kind, "key_1" }
}

func endsAtOnce(p *agenttest.Process) *guestv1.Exited { return nil }

func (n *node) createFor(project string) string {
	n.t.Helper()
	r := createRequest(cay.NewID(cay.PrefixSandbox), 1)
	r.Msg.ProjectId = project
	if _, err := n.Create(n.t.Context(), r); err != nil {
		n.t.Fatal(err)
	}
	return r.Msg.SandboxId
}

func TestEveryProcessOfAKindLeavesOneRecord(t *testing.T) {
	d := newFakeDriver()
	d.scripts["echo"], d.scripts["exit"] = endsAtOnce, func(*agenttest.Process) *guestv1.Exited { return &guestv1.Exited{Code: 3} }
	n := startNode(t, d, t.TempDir())
	box := n.createFor("prj_1")
	n.run(box, nil, "echo") // of no kind
	n.run(box, as("unheard-of"), "echo")
	want := map[string]string{}
	id, _ := n.run(box, as("exec"), "echo", "two words", "it's", "plain")
	want[id] = `exec exited echo 'two words' 'it'\''s' plain`
	id, exit := n.run(box, func(st *nodev1.StartProcess) {
		st.Kind, st.Spec.Shell, st.Spec.Name = "process", "exit", "worker"
	})
	want[id] = "process exited exit"
	if exit.Code != 3 {
		t.Fatalf("%v", exit)
	}
	r := &reader{n: n}
	got := map[string]string{}
	for len(got) < len(want) {
		for _, rec := range r.read(0) {
			if got[rec.ProcessId] != "" {
				t.Errorf("two records of %s", rec.ProcessId)
			}
			got[rec.ProcessId] = rec.Kind + " " + rec.Exit.Reason + " " + rec.Command
			if rec.SandboxId != box || rec.ProjectId != "prj_1" || rec.StartedUnixMs == 0 || rec.EndedUnixMs < rec.StartedUnixMs {
				t.Errorf("got %v", rec)
			}
			if (rec.Kind == "exec") != (rec.Actor == "key_1") || (rec.Kind == "process") != (rec.Exit.Code == 3 && rec.Name == "worker") {
				t.Errorf("got %v", rec)
			}
		}
	}
	for id, w := range want {
		if got[id] != w {
			t.Errorf("got %q, want %q", got[id], w)
		}
	}
	r.none()
}

func TestARecordTellsTheTraceOfItsStart(t *testing.T) {
	d := newFakeDriver()
	d.scripts["x"] = endsAtOnce
	n := startNode(t, d, t.TempDir())
	box := n.create()
	for header, want := range map[string]string{
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": "4bf92f3577b34da6a3ce929d0e0e4736",
		"00-zz": "", "": "",
	} {
		s := n.Process(t.Context())
		s.RequestHeader().Set("traceparent", header)
		if err := s.Send(startInput(box, as("exec"), "x")); err != nil {
			t.Fatal(err)
		}
		(&stream{s, t}).drain()
		_ = s.CloseRequest()
		_ = s.CloseResponse()
		r := &reader{n: n}
		if list := r.read(0); len(list) != 1 || list[0].TraceId != want {
			t.Errorf("%q: got %v", header, list)
		}
		r.none()
	}
}

func TestWhatIsAcknowledgedIsForgottenAndTheRestComesAgain(t *testing.T) {
	d := newFakeDriver()
	d.scripts["x"] = endsAtOnce
	n := startNode(t, d, t.TempDir())
	box := n.create()
	for range 5 {
		n.run(box, as("exec"), "x")
	}
	r := &reader{n: n}
	first := r.read(2)
	repeated := &reader{n: n, boot: r.boot} // as after an answer that was lost
	if again := repeated.read(2); len(first) != 2 || len(again) != 2 || first[0].ProcessId != again[0].ProcessId || first[1].ProcessId != again[1].ProcessId {
		t.Fatalf("got %v, then %v", first, again)
	}
	if rest := append(r.read(2), r.read(2)...); len(rest) != 3 || rest[0].ProcessId == first[0].ProcessId || rest[0].ProcessId == first[1].ProcessId {
		t.Errorf("got %v after the acknowledgement", rest)
	}
	r.none()
	stranger := &reader{n: n, boot: "another", next: 1000}
	a, err := n.Records(t.Context(), connect.NewRequest(&nodev1.RecordsRequest{Boot: stranger.boot, After: stranger.next}))
	if err != nil || len(a.Msg.Records) != 0 || a.Msg.Next != 5 || a.Msg.Lost != 0 {
		t.Errorf("a reader of an earlier start got %v, %v", a, err)
	}
}

func TestAReaderThatWaitsIsToldOfAnEnd(t *testing.T) {
	d := newFakeDriver()
	d.scripts["x"] = endsAtOnce
	n := startNode(t, d, t.TempDir())
	box := n.create()
	got := make(chan int, 1)
	go func() {
		a, err := n.Records(context.Background(), connect.NewRequest(&nodev1.RecordsRequest{WaitMs: 60_000, Limit: 1}))
		if err != nil {
			t.Error(err)
			got <- 0
			return
		}
		got <- len(a.Msg.Records)
	}()
	n.run(box, as("exec"), "x")
	if c := <-got; c != 1 {
		t.Errorf("%d records", c)
	}
}

func TestProcessesThatEndWithTheirSandboxLeaveRecords(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	r := &reader{n: n}
	for _, way := range []struct {
		reason string
		end    func(box string)
	}{
		{"sandbox_ended", func(box string) {
			if _, err := n.destroy(box, 1); err != nil {
				t.Fatal(err)
			}
		}},
		{"sandbox_ended", func(box string) { d.die(box, false) }},
		{"oom", func(box string) { d.die(box, true) }},
	} {
		box := n.create()
		first := startInput(box, as("process"), "sleep")
		n.process(t.Context(), first).next()
		way.end(box)
		if list := r.read(0); len(list) != 1 || list[0].ProcessId != first.GetStart().ProcessId || list[0].Exit.Reason != way.reason {
			t.Errorf("want %s, got %v", way.reason, list)
		}
	}
	r.none()
}

func TestARestartedNodeKnowsWhatItsProcessesWereAskedForAs(t *testing.T) {
	dir, d := t.TempDir(), newFakeDriver()
	d.scripts["x"] = endsAtOnce
	n := startNode(t, d, dir)
	boxes := []string{n.createFor("prj_1"), n.createFor("prj_1")}
	ended, _ := n.run(boxes[0], as("exec"), "x")
	want := map[string]string{ended: "exec exited x"}
	for _, box := range boxes {
		first := startInput(box, as("code"), "sleep", "a while")
		n.process(t.Context(), first).next()
		want[first.GetStart().ProcessId] = "code sandbox_ended sleep 'a while'"
	}
	eventually(t, "everything is on disk", func() bool {
		return len(n.logsOnDisk()) == 3
	})
	n.stop()
	d.of(boxes[1]).status.Alive = false // it ends while nobody looks

	n = startNode(t, d, dir)
	if _, err := n.Adopt(t.Context(), connect.NewRequest(&nodev1.AdoptRequest{Sandboxes: []*nodev1.AdoptRequest_Known{{SandboxId: boxes[0]}}})); err != nil {
		t.Fatal(err)
	}
	if _, err := n.destroy(boxes[0], 1); err != nil {
		t.Fatal(err)
	}
	r := &reader{n: n}
	got := map[string]string{}
	for len(got) < len(want) {
		for _, rec := range r.read(0) {
			if got[rec.ProcessId] != "" || rec.ProjectId != "prj_1" || rec.Actor != "key_1" {
				t.Errorf("got %v", rec)
			}
			got[rec.ProcessId] = rec.Kind + " " + rec.Exit.Reason + " " + rec.Command
		}
	}
	for id, w := range want {
		if got[id] != w {
			t.Errorf("got %q, want %q", got[id], w)
		}
	}
	r.none()
}

func TestNoAgentsWordExceedsWhatItsSandboxCanHaveUsed(t *testing.T) {
	d := newFakeDriver()
	for name, exit := range map[string]*guestv1.Exited{
		"honest": {CpuUs: 1000, PeakRssKb: 100<<10 + 1, DurationMs: 1},
		"liar":   {CpuUs: math.MaxInt64, PeakRssKb: math.MaxInt64, DurationMs: math.MaxInt64},
		"minus":  {CpuUs: math.MinInt64, PeakRssKb: math.MinInt64, DurationMs: math.MinInt64},
	} {
		d.scripts[name] = func(*agenttest.Process) *guestv1.Exited { return exit }
	}
	n := startNode(t, d, t.TempDir())
	box := n.create() // 1 core, 512 MiB
	r := &reader{n: n}
	for name, want := range map[string]struct{ cpu, peak int64 }{"honest": {1, 101}, "liar": {-1, 512}, "minus": {0, 0}} {
		_, exit := n.run(box, as("exec"), name)
		rec := r.read(0)[0]
		wall := rec.EndedUnixMs - rec.StartedUnixMs + 1
		if exit.CpuMs != rec.Exit.CpuMs || exit.PeakMemoryMb != want.peak || rec.Exit.PeakMemoryMb != want.peak {
			t.Errorf("%s: %v and %v", name, exit, rec)
		}
		if want.cpu >= 0 && exit.CpuMs != want.cpu || exit.CpuMs < 0 || exit.CpuMs > wall+100 {
			t.Errorf("%s used %d ms of CPU within %d", name, exit.CpuMs, wall)
		}
		if rec.Exit.DurationMs < 0 || rec.Exit.DurationMs > wall {
			t.Errorf("%s ran for %d ms of %d", name, rec.Exit.DurationMs, wall)
		}
	}
}

func TestALongCommandIsClippedWithoutSplittingACharacter(t *testing.T) {
	d := newFakeDriver()
	long := "x" + strings.Repeat("ä", cay.MaxRecordCommand)
	d.scripts["x"], d.scripts[long] = endsAtOnce, endsAtOnce
	n := startNode(t, d, t.TempDir())
	box := n.create()
	r := &reader{n: n}
	for _, change := range []func(*nodev1.StartProcess){
		func(st *nodev1.StartProcess) { st.Spec.Argv = []string{"x", long, long} },
		func(st *nodev1.StartProcess) { st.Spec.Argv, st.Spec.Shell = nil, long },
	} {
		n.run(box, func(st *nodev1.StartProcess) { st.Kind = "exec"; change(st) })
		rec := r.read(0)[0]
		if c := rec.Command; len(c) > cay.MaxRecordCommand || len(c) < cay.MaxRecordCommand-3 || !utf8.ValidString(c) {
			t.Errorf("%d bytes: %.20q", len(c), c)
		}
	}
}

// logsOnDisk are the process.json of all sandboxes.
func (n *node) logsOnDisk() []string {
	list, err := filepath.Glob(filepath.Join(n.dir, "sandboxes", "*", "spool", "prc_*", "process.json"))
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}
