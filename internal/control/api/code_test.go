package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/coder/websocket"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func (n *fakeNode) OpenContext(_ context.Context, r *connect.Request[nodev1.OpenContextRequest]) (*connect.Response[nodev1.Context], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.Msg.GetLanguage() == "cobol" {
		return nil, noderpc.Encode(cay.Errorf(cay.Unprocessable, "its image has: python").On("language"))
	}
	c := &nodev1.Context{ContextId: r.Msg.GetContextId(), Language: r.Msg.GetLanguage(), Status: "idle", CreatedUnixMs: 1}
	n.contexts = append(n.contexts, c)
	return connect.NewResponse(c), nil
}

func (n *fakeNode) ListContexts(context.Context, *connect.Request[nodev1.ListContextsRequest]) (*connect.Response[nodev1.ListContextsResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return connect.NewResponse(&nodev1.ListContextsResponse{Items: slices.Clone(n.contexts)}), nil
}

func (n *fakeNode) contextCall(r *nodev1.ContextRequest, do func(int)) (*nodev1.Context, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.contexts, func(c *nodev1.Context) bool { return c.GetContextId() == r.GetContextId() })
	if i < 0 {
		return nil, noderpc.Encode(cay.Errorf(cay.NotFound, "there is no context"))
	}
	c := n.contexts[i]
	do(i)
	return c, nil
}

func (n *fakeNode) CloseContext(_ context.Context, r *connect.Request[nodev1.ContextRequest]) (*connect.Response[nodev1.ContextResponse], error) {
	_, err := n.contextCall(r.Msg, func(i int) { n.contexts = slices.Delete(n.contexts, i, i+1) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&nodev1.ContextResponse{}), nil
}

func (n *fakeNode) InterruptContext(_ context.Context, r *connect.Request[nodev1.ContextRequest]) (*connect.Response[nodev1.Context], error) {
	c, err := n.contextCall(r.Msg, func(int) {})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(c), nil
}

func (n *fakeNode) RestartContext(_ context.Context, r *connect.Request[nodev1.ContextRequest]) (*connect.Response[nodev1.Context], error) {
	c, err := n.contextCall(r.Msg, func(i int) { n.contexts[i].ExecutionCount++ })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(c), nil
}

func reportMsg(r *nodev1.CodeReport) *nodev1.ProcessOutput {
	return &nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Report{Report: r}}
}

// richReport is one of everything.
func richReport() *nodev1.CodeReport {
	return &nodev1.CodeReport{
		Language: "python", ContextId: "ctx_1", ExecutionCount: 3, FilesTruncated: true,
		FilesChanged: []*nodev1.CodeReport_FileChange{
			{Path: "/workspace/a", Size: 1, Op: "write"}, {Path: "/output/chart.png", Size: 5, Op: "create"}, {Path: "/output/gone", Size: 1, Op: "create"},
			{Path: "/output/old", Op: "remove"}, {Path: "/output/page", Size: 8, Op: "write"}, {Path: cay.WirePath("/output/\xff"), Size: 2, Op: "create"},
		},
		Results: []*nodev1.CodeReport_Result{
			{Data: []*nodev1.CodeReport_Data{
				{Mime: "text/plain", Data: []byte("<2> \"é\"\n\xff")}, {Mime: "image/png", Data: []byte{0, 255}},
				{Mime: "application/vnd.cay.table+json", Data: []byte("{\n\"rows\":[[1]]\r\n}"), Json: true}, {Mime: "image/svg+xml", Data: []byte("<svg/>")},
			}},
			{Data: []*nodev1.CodeReport_Data{{Mime: "text/plain", Data: []byte("4")}}, IsMain: true},
		},
		Error: &nodev1.CodeReport_Error{Name: "ValueError", Value: "no", Traceback: "line 1"},
	}
}

// checkOutcome checks what was made of richReport.
func checkOutcome(t *testing.T, m map[string]any) {
	t.Helper()
	for name, want := range map[string]string{
		"language": `"python"`, "context_id": `"ctx_1"`, "files_truncated": `true`, "results_truncated": `false`, "execution_count": `3`, "context_lost": `false`,
		"error":         `{"name":"ValueError","traceback":"line 1","value":"no"}`,
		"results":       `[{"application/vnd.cay.table+json":{"rows":[[1]]},"image/png":"AP8=","image/svg+xml":"\u003csvg/\u003e","is_main":false,"text/plain":"\u003c2\u003e \"é\"\n�"},{"is_main":true,"text/plain":"4"}]`,
		"outputs":       `[{"data_base64":"iVBORw==","mime":"image/png","path":"/output/chart.png","size":4},{"data_base64":"PGh0bWw+","mime":"text/html","path":"/output/page","size":6},{"data_base64":"","mime":"application/octet-stream","path":"/output/�","path_percent":"%2Foutput%2F%FF","size":0}]`,
		"files_changed": `[{"op":"write","path":"/workspace/a","size":1},{"op":"create","path":"/output/chart.png","size":5},{"op":"create","path":"/output/gone","size":1},{"op":"remove","path":"/output/old","size":0},{"op":"write","path":"/output/page","size":8},{"op":"create","path":"/output/�","path_percent":"%2Foutput%2F%FF","size":2}]`,
	} {
		if got, _ := json.Marshal(m[name]); string(got) != want {
			t.Errorf("%s is\n%s, want\n%s", name, got, want)
		}
	}
}

func leaveOutputs(r *rig) {
	r.node.files["/output/chart.png"] = []byte("\x89PNG")
	r.node.files["/output/page"] = []byte("<html>")
	r.node.files[cay.WirePath("/output/\xff")] = nil
}

// program runs to its end, in whatever form it is asked for.
func program(report *nodev1.CodeReport) func(context.Context, *nodev1.ProcessInput, *processStream) error {
	return func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		out, exit := dataMsg(cay.Stdout, 0, "hi\n"), exitMsg(&nodev1.Exit{Code: 1, StdoutSize: 3})
		if first.GetStart().GetCollect() || first.GetAttach().GetCollect() {
			return says(exit, reportMsg(report), out)(ctx, first, s)
		}
		return says(out, exit, reportMsg(report))(ctx, first, s)
	}
}

func TestCodeAnswersWhatItLeftBehind(t *testing.T) {
	r := newRig(t)
	leaveOutputs(r)
	r.node.process = program(richReport())
	a := r.status(r.do("POST", r.box()+"/code", `{"code":"1+1"}`), 200)
	var m map[string]any
	if err := json.Unmarshal(a.body, &m); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if m["stdout"] != "hi\n" || m["exit_code"] != 1.0 || m["reason"] != "exited" {
		t.Errorf("got %s", a.body)
	}
	checkOutcome(t, m)
}

func TestTheLastEventOfAProgramIsItsResult(t *testing.T) {
	r := newRig(t)
	leaveOutputs(r)
	r.node.process = program(richReport())
	box := r.box()
	for _, req := range [][2]string{{"POST", "/code"}, {"GET", "/processes/" + string(cay.NewID(cay.PrefixProcess)) + "/stream"}} {
		body := map[string]string{"POST": `{"code":"1+1"}`}[req[0]]
		a := r.status(r.do(req[0], box+req[1], body, asEvents), 200)
		events := parseEvents(t, strings.NewReader(string(a.body)))
		if names(events) != "start@0 stdout@3 exit@3 result@3" {
			t.Fatalf("%s: %s", req[1], a.body)
		}
		checkOutcome(t, events[3].data)
	}
}

func TestAWebSocketOfAProgramEndsWithItsResult(t *testing.T) {
	r := newRig(t)
	leaveOutputs(r)
	r.node.process = program(richReport())
	box := r.box()
	for _, path := range []string{"/code", "/code?process_id=" + string(cay.NewID(cay.PrefixProcess)), "/processes/" + string(cay.NewID(cay.PrefixProcess)) + "/stream"} {
		p := r.dial(box + path)
		if path == "/code" {
			p.say(`{"type":"start","code":"1+1"}`)
		}
		p.text("started")
		p.next()
		p.text("exit")
		checkOutcome(t, p.text("result"))
		if code, _ := p.closed(); code != websocket.StatusNormalClosure {
			t.Errorf("%s: closed with %d", path, code)
		}
	}
}

func TestACommandHasNoResult(t *testing.T) {
	r := newRig(t)
	r.node.process = says(exitMsg(&nodev1.Exit{}))
	box, id := r.box(), string(cay.NewID(cay.PrefixProcess))
	a := r.status(r.do("GET", box+"/processes/"+id+"/stream", "", asEvents), 200)
	if got := names(parseEvents(t, strings.NewReader(string(a.body)))); got != "start@0 exit@0" {
		t.Errorf("got %s", got)
	}
	p := r.dial(box + "/processes/" + id + "/stream")
	p.text("started")
	p.text("exit")
	if code, _ := p.closed(); code != websocket.StatusNormalClosure {
		t.Errorf("closed with %d", code)
	}
}

func TestOutputsBeyondWhatAnAnswerCarriesAreLinked(t *testing.T) {
	r := newRig(t)
	big := strings.Repeat("x", maxInline-3)
	r.node.files["/output/a.bin"], r.node.files["/output/b.csv"], r.node.files["/output/c"] = []byte(big), []byte("12345"), []byte("abc")
	r.node.process = program(&nodev1.CodeReport{FilesChanged: []*nodev1.CodeReport_FileChange{
		{Path: "/output/a.bin", Size: int64(len(big)), Op: "create"}, {Path: "/output/b.csv", Size: 1, Op: "create"},
		{Path: "/output/huge.zip", Size: 1 << 40, Op: "write"}, {Path: "/output/c", Size: 3, Op: "write"},
	}})
	a := r.status(r.do("POST", r.box()+"/code", `{"code":""}`), 200)
	var m struct {
		Outputs []struct {
			Path, MIME, URL string
			Data            *string `json:"data_base64"`
			Size            int64
		}
	}
	if err := json.Unmarshal(a.body, &m); err != nil || len(m.Outputs) != 4 {
		t.Fatalf("%v: %d outputs", err, len(m.Outputs))
	}
	for i, want := range []struct {
		mime   string
		size   int64
		inline bool
	}{{"text/plain", int64(len(big)), true}, {"text/csv", 5, false}, {"application/zip", 1 << 40, false}, {"text/plain", 3, true}} {
		o := m.Outputs[i]
		if o.MIME != want.mime || o.Size != want.size || (o.Data != nil) != want.inline || (o.URL == "") != want.inline {
			t.Errorf("%s: %s, %d bytes, url %q", o.Path, o.MIME, o.Size, o.URL)
		}
	}
	if data, err := base64.StdEncoding.DecodeString(*m.Outputs[0].Data); err != nil || string(data) != big {
		t.Errorf("the data differ: %v", err)
	}
	if !strings.Contains(m.Outputs[1].URL, "/files?path=%2Foutput%2Fb.csv") {
		t.Errorf("got %s", m.Outputs[1].URL)
	}
}

func TestAProgramWhoseReportIsLostSaysThatItMayBeIncomplete(t *testing.T) {
	r := newRig(t)
	r.node.process = says(exitMsg(&nodev1.Exit{}))
	a := r.status(r.do("POST", r.box()+"/code", `{"code":""}`), 200)
	if a.member(t, "files_truncated") != true || a.member(t, "results_truncated") != true || a.member(t, "error") != nil {
		t.Errorf("got %s", a.body)
	}
}

func TestCodeBodiesAreChecked(t *testing.T) {
	r := newRig(t)
	r.node.process = program(&nodev1.CodeReport{})
	box, ctx := r.box(), string(cay.NewID(cay.PrefixContext))
	for body, want := range map[string]struct {
		reason cay.ErrorReason
		field  string
	}{
		`{}`:                                         {cay.InvalidRequest, "code"},
		`{"code":1}`:                                 {cay.InvalidRequest, "code"},
		`{"code":"","command":"x"}`:                  {cay.InvalidRequest, "command"},
		`{"code":"","language":"a b"}`:               {cay.InvalidRequest, "language"},
		`{"code":"","timeout_seconds":-1}`:           {cay.InvalidRequest, "timeout_seconds"},
		`{"code":"","tty":true}`:                     {cay.InvalidRequest, "tty"},
		`{"code":"","context_id":"x"}`:               {cay.NotFound, ""},
		`{"code":"","context_id":"C","cwd":"/"}`:     {cay.Unprocessable, "cwd"},
		`{"code":"","context_id":"C","user":"root"}`: {cay.Unprocessable, "user"},
		`{"code":"","context_id":"C","env":{}}`:      {cay.Unprocessable, "env"},
		`{"code":"","context_id":"C","stdin":""}`:    {cay.Unprocessable, "stdin"},
	} {
		a := r.refused(r.do("POST", box+"/code", strings.Replace(body, `"C"`, `"`+ctx+`"`, 1)), want.reason)
		if got, _ := a.member(t, "field").(string); got != want.field {
			t.Errorf("%s: field %q, want %q", body, got, want.field)
		}
	}
}

func TestALanguageIsTheOneGivenElseTheSandboxesRuntime(t *testing.T) {
	r := newRig(t)
	seen := make(chan *nodev1.StartProcess, 1)
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		seen <- first.GetStart()
		return program(&nodev1.CodeReport{})(ctx, first, s)
	}
	id := r.boxes.add(projectA, cay.Ready)
	box, ctx := "/v1/sandboxes/"+string(id), string(cay.NewID(cay.PrefixContext))
	for _, c := range []struct{ runtime, body, language, context string }{
		{"", `{"code":"x"}`, "", ""}, {"ruby", `{"code":"x"}`, "ruby", ""}, {"ruby", `{"code":"x","language":"php"}`, "php", ""},
		{"ruby", `{"code":"x","context_id":"` + ctx + `"}`, "", ctx}, {"", `{"code":"x","language":"sh","context_id":"` + ctx + `"}`, "sh", ctx},
	} {
		r.boxes.change(id, func(sb *cay.Sandbox) { sb.Spec.Runtime = c.runtime })
		r.status(r.do("POST", box+"/code", c.body), 200)
		st := <-seen
		code := st.GetSpec().GetCode()
		if code.GetLanguage() != c.language || code.GetContextId() != c.context || string(code.GetSource()) != "x" || st.GetSpec().GetTimeoutMs() != 60_000 || !st.GetForeground() {
			t.Errorf("%s: %v", c.body, st)
		}
	}
}

func TestACodeKeyAttachesToTheSameProgram(t *testing.T) {
	r := newRig(t)
	firsts := make(chan *nodev1.ProcessInput, 3)
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		firsts <- first
		return program(richReport())(ctx, first, s)
	}
	box, key := r.box(), header("Idempotency-Key", "k")
	a := r.status(r.do("POST", box+"/code", `{"code":"x"}`, key), 200)
	b := r.status(r.do("POST", box+"/code", `{"code":"x"}`, key), 200)
	if string(a.body) != string(b.body) {
		t.Errorf("got %s, then %s", a.body, b.body)
	}
	if one, two := <-firsts, <-firsts; one.GetStart() == nil || two.GetAttach() == nil || idOf(one) != idOf(two) {
		t.Errorf("got %v, %v", one, two)
	}
	r.status(r.do("POST", box+"/exec", `{"command":"x"}`, key), 200)
	if third := <-firsts; third.GetStart() == nil {
		t.Error("an exec with the key of a program attached to it")
	}
}

func TestContextsAreOpenedListedAndClosed(t *testing.T) {
	r := newRig(t)
	box, key := r.box(), header("Idempotency-Key", "k")
	a := r.status(r.do("POST", box+"/contexts", `{"language":"python"}`, key), 201)
	id, _ := a.member(t, "id").(string)
	if !strings.HasPrefix(id, "ctx_") || a.member(t, "cwd") != "/workspace" || a.member(t, "user") != "sandbox" || a.member(t, "status") != "idle" {
		t.Fatalf("got %s", a.body)
	}
	if again := r.status(r.do("POST", box+"/contexts", `{"language":"python"}`, key), 201); again.member(t, "id") != id {
		t.Errorf("got %s", again.body)
	}
	if list := r.status(r.do("GET", box+"/contexts", ""), 200); len(list.member(t, "items").([]any)) != 1 || list.member(t, "next_cursor") != nil {
		t.Errorf("got %s", list.body)
	}
	for _, verb := range []string{"GET ", "POST /interrupt", "POST /restart"} {
		method, path, _ := strings.Cut(verb, " ")
		if got := r.status(r.do(method, box+"/contexts/"+id+path, ""), 200); got.member(t, "id") != id {
			t.Errorf("%s: %s", verb, got.body)
		}
	}
	restart := header("Idempotency-Key", "restart")
	r.status(r.do("POST", box+"/contexts/"+id+"/restart", "", restart), 200)
	if got := r.status(r.do("POST", box+"/contexts/"+id+"/restart", "", restart), 200); got.member(t, "execution_count") != 2.0 {
		t.Errorf("restarted again: %s", got.body)
	}
	r.status(r.do("DELETE", box+"/contexts/"+id, ""), 204)
	for _, verb := range []string{"GET ", "DELETE ", "POST /interrupt", "POST /restart"} {
		method, path, _ := strings.Cut(verb, " ")
		r.refused(r.do(method, box+"/contexts/"+id+path, ""), cay.NotFound)
		r.refused(r.do(method, box+"/contexts/none"+path, ""), cay.NotFound)
	}
	r.refused(r.do("POST", box+"/contexts", `{"language":"cobol"}`), cay.Unprocessable)
	r.refused(r.do("POST", box+"/contexts", `{"cwd":"a\u0000b"}`), cay.InvalidRequest)
}

// An output that breaks off in the middle must not be taken for a whole answer.
func TestAnAnswerWhoseOutputBreaksOffIsCut(t *testing.T) {
	r := newRig(t)
	r.node.files["/output/a"] = []byte(strings.Repeat("x", 1<<20))
	r.node.cutFiles = true
	r.node.process = program(&nodev1.CodeReport{FilesChanged: []*nodev1.CodeReport_FileChange{{Path: "/output/a", Size: 1 << 20, Op: "create"}}})
	res, err := r.srv.Client().Do(r.request("POST", r.box()+"/code", `{"code":""}`))
	if err == nil {
		defer res.Body.Close()
		var body []byte
		if body, err = io.ReadAll(res.Body); err == nil && res.StatusCode == 200 {
			t.Errorf("a whole answer: %.200s", fmt.Sprint(string(body)))
		}
	}
}
