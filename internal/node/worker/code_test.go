package worker_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/node/worker"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func withRuntimes(c *worker.Config) {
	c.Runtimes = []*nodev1.Runtime{
		{Name: "python", Image: "host", Exec: []string{"/usr/bin/python3"}}, {Name: "go", Image: "host", Exec: []string{"/usr/bin/go", "run"}},
		{Name: "ruby", Image: "other", Exec: []string{"/usr/bin/ruby"}},
	}
}

func code(c *nodev1.CodeSpec, collect bool) func(*nodev1.StartProcess) {
	return func(st *nodev1.StartProcess) { st.Spec, st.Collect = &nodev1.ProcessSpec{Code: c}, collect }
}

func TestAProgramsReportFollowsItsExitInEveryForm(t *testing.T) {
	d := newFakeDriver()
	large, err := proto.Marshal(&guestv1.CodeReport{ExecutionCount: 2, Results: []*guestv1.CodeReport_Result{{
		Data: []*guestv1.CodeReport_Data{{Mime: "image/png", Data: make([]byte, 16<<20-100)}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	d.scripts["python"] = func(p *agenttest.Process) *guestv1.Exited {
		p.Write(wire.FrameStdout, []byte("out"))
		return &guestv1.Exited{ReportBytes: int64(len(large))}
	}
	d.agent = func(a *agenttest.Agent) { a.Reports = map[string][]byte{"python": large} }
	n := startNode(t, d, t.TempDir(), withRuntimes)
	sandbox := n.create()
	for _, collect := range []bool{true, false} {
		s := n.process(t.Context(), startInput(sandbox, code(&nodev1.CodeSpec{Source: []byte("1")}, collect)))
		if s.next().GetStarted() == nil {
			t.Fatal("not started first")
		}
		if !collect && s.next().GetData() == nil {
			t.Fatal("no output")
		}
		if s.next().GetExit() == nil {
			t.Fatal("no exit")
		}
		report := s.next().GetReport()
		if report.GetLanguage() != "python" || report.GetExecutionCount() != 2 || len(report.GetResults()[0].GetData()[0].GetData()) != 16<<20-100 {
			t.Fatalf("got %.200v", report)
		}
	}
	if got := d.of(sandbox).agent.Starts()[0].Code; got.Language != "python" || len(got.Argv) != 1 || got.Argv[0] != "/usr/bin/python3" {
		t.Errorf("the agent was told %v", got)
	}
}

func TestALanguageThatTheImageLacksIsRefusedWithThoseItHas(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir(), withRuntimes)
	sandbox := n.create()
	s := n.process(t.Context(), startInput(sandbox, code(&nodev1.CodeSpec{Language: "ruby"}, true)))
	_, err := s.Receive()
	if err = noderpc.Decode(err); cay.ReasonOf(err) != cay.Unprocessable || !strings.HasSuffix(err.Error(), "its image has: go, python") {
		t.Errorf("got %v", err)
	}
	_, err = n.OpenContext(t.Context(), connect.NewRequest(&nodev1.OpenContextRequest{SandboxId: sandbox, ContextId: "ctx_1", Language: "go"}))
	if err = noderpc.Decode(err); cay.ReasonOf(err) != cay.Unprocessable || !strings.HasSuffix(err.Error(), "its image has: python") {
		t.Errorf("got %v", err)
	}
}

func TestAProgramsDirectoryReachesTheAgentAndABadOneIsRefused(t *testing.T) {
	d := newFakeDriver()
	d.scripts["python"] = func(*agenttest.Process) *guestv1.Exited { return nil }
	n := startNode(t, d, t.TempDir(), withRuntimes)
	sandbox := n.create()
	s := n.process(t.Context(), startInput(sandbox, code(&nodev1.CodeSpec{Directory: "/sandbox"}, true)))
	s.next()
	if got := d.of(sandbox).agent.Starts()[0].Code.Directory; got != "/sandbox" {
		t.Errorf("the agent was told %q", got)
	}
	for _, spec := range []*nodev1.CodeSpec{
		{Directory: "sandbox"}, {Directory: "/"}, {Directory: "/a/"}, {Directory: "/a/../b"}, {Directory: "/a\x00"}, {Directory: "/" + strings.Repeat("a", 1024)},
		{Directory: "/sandbox", ContextId: "ctx_1"},
	} {
		_, err := n.process(t.Context(), startInput(sandbox, code(spec, true))).Receive()
		var refused *cay.Error
		if !errors.As(noderpc.Decode(err), &refused) || refused.Reason != cay.InvalidRequest || refused.Field != "directory" {
			t.Errorf("%v: %v", spec, err)
		}
	}
}

func TestOutputIsReadByPageAndStdinByWriter(t *testing.T) {
	d := newFakeDriver()
	d.scripts["cat"] = func(p *agenttest.Process) *guestv1.Exited {
		b := make([]byte, 1024)
		for {
			k, err := p.Read(b)
			if err != nil {
				return nil
			}
			p.Write(wire.FrameStdout, b[:k])
		}
	}
	n := startNode(t, d, t.TempDir())
	sandbox := n.create()
	first := startInput(sandbox, nil, "cat")
	s := n.process(t.Context(), first)
	s.next()
	id := first.GetStart().GetProcessId()
	attach := func() *stream {
		return n.process(t.Context(), &nodev1.ProcessInput{Input: &nodev1.ProcessInput_Attach{Attach: &nodev1.AttachProcess{
			SandboxId: sandbox, ProcessId: id, Collect: true, TakeStdin: true,
		}}})
	}
	w := attach()
	if st := w.next().GetStarted(); st == nil || st.StdinOffset != 0 {
		t.Fatalf("got %v", st)
	}
	for _, in := range []*nodev1.ProcessInput{
		{Input: &nodev1.ProcessInput_Stdin{Stdin: []byte("hello")}}, {Input: &nodev1.ProcessInput_CloseStdin{CloseStdin: true}}, {Input: &nodev1.ProcessInput_Detach{Detach: true}},
	} {
		if err := w.Send(in); err != nil {
			t.Fatal(err)
		}
	}
	if st := w.next().GetStarted(); st == nil || st.StdinOffset != 5 {
		t.Fatalf("got %v", st)
	}
	data := s.next().GetData()
	if data == nil || s.next().GetExit() == nil {
		t.Fatal("the process did not end")
	}
	if since := time.Since(time.UnixMilli(data.AtUnixMs)); since < -time.Second || since > time.Minute {
		t.Errorf("the output came %v ago", since)
	}
	if _, err := attach().Receive(); cay.ReasonOf(noderpc.Decode(err)) != cay.Conflict {
		t.Errorf("a writer after the end: %v", err)
	}
	page, err := n.ReadOutput(t.Context(), connect.NewRequest(&nodev1.ReadOutputRequest{SandboxId: sandbox, ProcessId: id, Offset: 1, Limit: 3}))
	if err != nil || page.Msg.NextOffset != 4 || page.Msg.Produced != 5 || string(page.Msg.Runs[0].Data) != "ell" || page.Msg.Process.Status != "exited" {
		t.Errorf("%v %v", page, err)
	} else if kept := page.Msg.Runs[0].AtUnixMs; kept != data.AtUnixMs {
		t.Errorf("what was sent as of %d is kept as of %d", data.AtUnixMs, kept)
	}
	for _, offset := range []int64{-1, 6} {
		_, err := n.ReadOutput(t.Context(), connect.NewRequest(&nodev1.ReadOutputRequest{SandboxId: sandbox, ProcessId: id, Offset: offset}))
		if cay.ReasonOf(noderpc.Decode(err)) != cay.InvalidRequest {
			t.Errorf("from %d: %v", offset, err)
		}
	}
}
