package router_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

func encoded(t testing.TB, r *guestv1.CodeReport) []byte {
	t.Helper()
	b, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func programOf(language string, change ...func(*cay.Code)) cay.ProcessSpec {
	c := &cay.Code{Language: language, Argv: []string{"/usr/bin/" + language}, Source: []byte("1")}
	for _, f := range change {
		f(c)
	}
	return cay.ProcessSpec{Code: c}
}

func inContext(c *cay.Code) { c.Argv, c.ContextID = nil, "ctx_1" }

// reported is the report that a process left, once it has ended.
func reported(t testing.TB, a *router.Attachment) (*guestv1.CodeReport, cay.ProcessExit) {
	t.Helper()
	_, _, exit := drain(t, a)
	b, kept, err := a.Process().Log().Report()
	if err != nil || !kept {
		t.Fatalf("no report: %v", err)
	}
	m := &guestv1.CodeReport{}
	if err := proto.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	return m, exit
}

func TestAReportFollowsTheExit(t *testing.T) {
	small := encoded(t, &guestv1.CodeReport{ExecutionCount: 3, Error: &guestv1.CodeReport_Error{Name: "E"}})
	large := encoded(t, &guestv1.CodeReport{ExecutionCount: 4, Results: []*guestv1.CodeReport_Result{{
		IsMain: true, Data: []*guestv1.CodeReport_Data{{Mime: "image/png", Data: bytes.Repeat([]byte("x"), 15<<20)}},
	}}})
	agent := scripts(map[string]agenttest.Script{
		"python": func(*agenttest.Process) *guestv1.Exited { return &guestv1.Exited{Code: 1, Report: small} },
		"ruby":   func(*agenttest.Process) *guestv1.Exited { return &guestv1.Exited{ReportBytes: int64(len(large))} },
	})
	agent.Reports = map[string][]byte{"ruby": large}
	r := start(t, agent)
	m, exit := reported(t, r.run(router.StartSpec{Spec: programOf("python")}))
	if exit.Code != 1 || m.ExecutionCount != 3 || m.Error.GetName() != "E" {
		t.Errorf("%+v %v", exit, m)
	}
	m, exit = reported(t, r.run(router.StartSpec{Spec: programOf("ruby")}))
	if exit.Code != 0 || m.ExecutionCount != 4 || len(m.Results) != 1 || len(m.Results[0].Data[0].Data) != 15<<20 {
		t.Errorf("%+v, %d results", exit, len(m.Results))
	}
	eventually(t, "the agent forgets what is kept", func() bool { return agent.Known() == 0 })
}

// Whatever an agent says of a report, the exit comes, and nothing unfit is told.
func TestABadReportBecomesAnEmptyOneAndTheExitComes(t *testing.T) {
	long := &guestv1.CodeReport{}
	for i := range 1001 {
		long.FilesChanged = append(long.FilesChanged, &guestv1.CodeReport_FileChange{Path: fmt.Sprint("/", i), Op: "write"})
	}
	for name, c := range map[string]struct {
		exited *guestv1.Exited
		bulk   []byte
	}{
		"garbage":                   {exited: &guestv1.Exited{Report: []byte{0xff, 0xff}}},
		"text that is not UTF-8":    {exited: &guestv1.Exited{Report: []byte("\x2a\x03\x0a\x01\xff")}},
		"too many files":            {exited: &guestv1.Exited{Report: encoded(t, long)}},
		"a negative size":           {exited: &guestv1.Exited{ReportBytes: -1}},
		"a size beyond the bound":   {exited: &guestv1.Exited{ReportBytes: 16<<20 + 1}},
		"less than it said":         {exited: &guestv1.Exited{ReportBytes: 100_000}, bulk: make([]byte, 99_999)},
		"more than it said":         {exited: &guestv1.Exited{ReportBytes: 100_000}, bulk: make([]byte, 200_000)},
		"garbage on its connection": {exited: &guestv1.Exited{ReportBytes: 100_000}, bulk: bytes.Repeat([]byte{0xff}, 100_000)},
	} {
		t.Run(name, func(t *testing.T) {
			agent := scripts(map[string]agenttest.Script{"python": func(*agenttest.Process) *guestv1.Exited {
				return proto.Clone(c.exited).(*guestv1.Exited)
			}})
			agent.Reports = map[string][]byte{"python": c.bulk}
			r := start(t, agent)
			m, exit := reported(t, r.run(router.StartSpec{Spec: programOf("python")}))
			if exit.Reason != cay.ExitExited || !m.FilesTruncated || !m.ResultsTruncated || len(m.FilesChanged)+len(m.Results) > 0 {
				t.Errorf("%+v %v", exit, m)
			}
		})
	}
}

func TestAReportThatNeverComesHoldsNothingUp(t *testing.T) {
	agent := scripts(map[string]agenttest.Script{"python": func(*agenttest.Process) *guestv1.Exited { return &guestv1.Exited{ReportBytes: 50_000} }})
	agent.Answer = func(m *guestv1.ToAgent) *guestv1.ToNode {
		if m.GetBulk().GetReadReport() == nil {
			return nil
		}
		return &guestv1.ToNode{Message: &guestv1.ToNode_Done{Done: &guestv1.Done{}}} // and no connection
	}
	r := start(t, agent, func(c *router.Config) { c.Timing.Answer = 300 * time.Millisecond })
	if m, exit := reported(t, r.run(router.StartSpec{Spec: programOf("python")})); !m.ResultsTruncated || exit.Code != 0 {
		t.Errorf("%+v %v", exit, m)
	}
}

func TestWhatAProgramCanBeBlamedForIsLeftOut(t *testing.T) {
	deep := []byte(strings.Repeat("[", 200) + strings.Repeat("]", 200))
	report := encoded(t, &guestv1.CodeReport{
		FilesChanged: []*guestv1.CodeReport_FileChange{
			{Path: "/workspace/a", Size: 1, Op: "write"}, {Path: "relative", Op: "write"}, {Path: "/b", Op: "burn"}, {Path: "/c", Op: "write", Size: -1},
			{Path: cay.WirePath("/output/\xff"), Op: "create"}, {Path: "/nul\x00", Op: "write"},
		},
		Results: []*guestv1.CodeReport_Result{
			{Data: []*guestv1.CodeReport_Data{
				{Mime: "text/plain", Data: []byte("ok")}, {Mime: "no type", Data: []byte("x")}, {Mime: "application/json", Data: []byte("NaN"), Json: true},
				{Mime: "application/vnd.x+json", Data: deep, Json: true}, {Mime: "text/plain", Data: []byte("again")}, {Mime: "image/png", Data: []byte("{"), Json: true},
				{Mime: "application/geo+json", Data: []byte(`{"a":[1,"]]"]}`)},
			}},
			{Data: []*guestv1.CodeReport_Data{{Mime: "/", Data: []byte("x")}}},
		},
		ExecutionCount: -5,
	})
	r := start(t, scripts(map[string]agenttest.Script{"python": func(*agenttest.Process) *guestv1.Exited { return &guestv1.Exited{Report: report} }}))
	for range 4 { // a program is no broken agent, however often
		m, _ := reported(t, r.run(router.StartSpec{Spec: programOf("python")}))
		if len(m.FilesChanged) != 2 || !m.FilesTruncated || len(m.Results) != 1 || !m.ResultsTruncated || m.ExecutionCount != 0 {
			t.Fatalf("got %v", m)
		}
		var kinds []string
		for _, d := range m.Results[0].Data {
			kinds = append(kinds, fmt.Sprint(d.Mime, d.Json))
		}
		if got := strings.Join(kinds, " "); got != "text/plainfalse image/pngfalse application/geo+jsontrue" {
			t.Fatalf("got %s", got)
		}
	}
	select {
	case why := <-r.gaveUp:
		t.Fatal(why)
	default:
	}
}

func TestAReportSurvivesTheNode(t *testing.T) {
	dir := t.TempDir()
	report := encoded(t, &guestv1.CodeReport{ExecutionCount: 9})
	agent := scripts(map[string]agenttest.Script{"python": func(*agenttest.Process) *guestv1.Exited { return &guestv1.Exited{Report: report} }})
	r := startIn(t, dir, agent)
	a := r.run(router.StartSpec{Spec: programOf("python")})
	reported(t, a)
	eventually(t, "the agent forgets what is kept", func() bool { return agent.Known() == 0 })
	r.Close()
	again := startIn(t, dir, agent)
	b, err := again.Attach(t.Context(), router.AttachSpec{Ref: string(a.Process().ID())})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if m, _ := reported(t, b); m.ExecutionCount != 9 {
		t.Errorf("got %v", m)
	}
}

func TestATimeoutInAContextInterruptsThenKills(t *testing.T) {
	meek := func(p *agenttest.Process) *guestv1.Exited {
		p.Signalled(0)
		return &guestv1.Exited{Code: 130, Report: encoded(t, &guestv1.CodeReport{ExecutionCount: 1})}
	}
	stubborn := func(p *agenttest.Process) *guestv1.Exited {
		p.Signalled(1)
		return &guestv1.Exited{Signal: 9, Report: encoded(t, &guestv1.CodeReport{ContextLost: true})}
	}
	r := start(t, scripts(map[string]agenttest.Script{"python": meek, "ruby": stubborn}), func(c *router.Config) { c.Timing.Interrupt = 50 * time.Millisecond })
	spec := programOf("python", inContext)
	spec.Timeout = 50 * time.Millisecond
	for language, lost := range map[string]bool{"python": false, "ruby": true} {
		spec.Code.Language, spec.Code.ContextID = language, "ctx_"+language
		m, exit := reported(t, r.run(router.StartSpec{Spec: spec}))
		if !exit.TimedOut || exit.Reason != cay.ExitTimeout || exit.Code != 137 || exit.Signal != "KILL" || m.ContextLost != lost {
			t.Errorf("%s: %+v %v", language, exit, m)
		}
	}
}

func TestATimeoutInAContextCountsFromTheTurn(t *testing.T) {
	release := make(chan struct{})
	first := func(*agenttest.Process) *guestv1.Exited { <-release; return nil }
	second := func(p *agenttest.Process) *guestv1.Exited { p.Killed(); return &guestv1.Exited{Code: 130} }
	r := start(t, scripts(map[string]agenttest.Script{"python": first, "ruby": second}))
	a := r.run(router.StartSpec{Spec: programOf("python", inContext)})
	spec := programOf("ruby", inContext)
	spec.Timeout = 100 * time.Millisecond
	b := r.run(router.StartSpec{Spec: spec})
	if m := b.Process().Log().Process(); m.Waits != spec.Timeout || !m.Deadline.IsZero() {
		t.Errorf("while it waits: %+v", m)
	}
	close(release)
	drain(t, a)
	if _, exit := reported(t, b); !exit.TimedOut {
		t.Errorf("%+v", exit)
	}
}

func TestALongProgramGoesByAFile(t *testing.T) {
	source := bytes.Repeat([]byte("#"), 5<<20)
	agent := scripts(map[string]agenttest.Script{"python": func(*agenttest.Process) *guestv1.Exited { return nil }})
	r := start(t, agent)
	reported(t, r.run(router.StartSpec{Spec: programOf("python", func(c *cay.Code) { c.Source = source })}))
	code := agent.Starts()[0].Code
	if len(code.Source) != 0 || !strings.HasPrefix(code.SourcePath, "/tmp/.prc_") {
		t.Fatalf("got %v", code)
	}
	f, err := r.ReadFile(t.Context(), &guestv1.ReadFile{Path: code.SourcePath, Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Info.Size != int64(len(source)) {
		t.Errorf("the file has %d bytes", f.Info.Size)
	}
}

func contextAgent(list ...*guestv1.Context) *agenttest.Agent {
	return &agenttest.Agent{Answer: func(m *guestv1.ToAgent) *guestv1.ToNode {
		if m.GetListContexts() != nil {
			return &guestv1.ToNode{Message: &guestv1.ToNode_Contexts{Contexts: &guestv1.ContextList{Items: list}}}
		}
		if o := m.GetOpenContext(); o != nil {
			return &guestv1.ToNode{Message: &guestv1.ToNode_Context{Context: &guestv1.Context{ContextId: o.ContextId, Language: o.Language, Cwd: "/a\x1b", Status: "mad", ExecutionCount: -1}}}
		}
		return nil
	}}
}

func TestContextsAreKnownByWhatTheAgentSays(t *testing.T) {
	r := start(t, contextAgent(&guestv1.Context{ContextId: "ctx_2", Language: "ruby", User: "root"}))
	c, err := r.OpenContext(t.Context(), &guestv1.OpenContext{ContextId: "ctx_1", Language: "python"})
	if err != nil || c.Status != "idle" || c.ExecutionCount != 0 || strings.Contains(c.Cwd, "\x1b") {
		t.Fatalf("%v %v", c, err)
	}
	if info, err := r.Context(t.Context(), "ctx_2"); err != nil || info.Language != "ruby" || info.User != "root" {
		t.Errorf("%+v %v", info, err)
	}
	if _, err := r.Context(t.Context(), "ctx_3"); cay.ReasonOf(err) != cay.NotFound {
		t.Errorf("got %v", err)
	}
	for name, list := range map[string][]*guestv1.Context{
		"twice": {{ContextId: "a", Language: "b"}, {ContextId: "a", Language: "b"}}, "no language": {{ContextId: "a"}}, "an id that is none": {{ContextId: "a/b", Language: "b"}},
	} {
		if _, err := start(t, contextAgent(list...)).ListContexts(t.Context()); cay.ReasonOf(err) != cay.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAWriterComesBetweenTheOwnersInputAndBreaksNone(t *testing.T) {
	r := start(t, scripts(map[string]agenttest.Script{"cat": echo}))
	owner := r.run(router.StartSpec{Spec: argv("cat")})
	id := string(owner.Process().ID())
	if err := owner.WriteStdin(t.Context(), []byte("one ")); err != nil {
		t.Fatal(err)
	}
	w, err := r.WriteTo(t.Context(), id)
	if err != nil || w.Offset() != 4 {
		t.Fatalf("%v", err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- owner.WriteStdin(t.Context(), []byte("four")) }()
	for _, part := range []string{"two ", "three "} {
		if err := w.Write(t.Context(), []byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	next, err := r.WriteTo(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	next.Close()
	if out, _, _ := drain(t, owner); out != "one two three four" {
		t.Errorf("got %q", out)
	}
	if _, err := r.WriteTo(t.Context(), id); cay.ReasonOf(err) != cay.Conflict {
		t.Errorf("after the end: %v", err)
	}
	shut := r.run(router.StartSpec{Spec: cay.ProcessSpec{Argv: []string{"cat"}}})
	if _, err := r.WriteTo(t.Context(), string(shut.Process().ID())); cay.ReasonOf(err) != cay.Conflict {
		t.Errorf("without an open stdin: %v", err)
	}
}

func TestAStartThatFailedSaysWhy(t *testing.T) {
	r := start(t, &agenttest.Agent{})
	_, _, exit := drain(t, r.run(router.StartSpec{Spec: argv("/nope")}))
	if exit.Reason != cay.ExitStartFailed || exit.Detail != "not found" {
		t.Errorf("%+v", exit)
	}
}

func FuzzReport(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x0a\x06\x0a\x02/a\x1a\x00\x1a\x0a\x0a\x08\x0a\x04a/bc\x12\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		clean, err := router.Sanitize(b)
		if err != nil {
			return
		}
		m := &guestv1.CodeReport{}
		if err := proto.Unmarshal(clean, m); err != nil || len(m.FilesChanged) > 1000 || len(m.Results) > 1000 {
			t.Fatalf("%v: %v", err, m)
		}
		again, err := router.Sanitize(clean)
		if err != nil || len(again) != len(clean) {
			t.Fatalf("sanitized again: %v, %d of %d bytes", err, len(again), len(clean))
		}
	})
}
