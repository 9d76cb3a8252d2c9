package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func (n *fakeNode) ReadOutput(_ context.Context, r *connect.Request[nodev1.ReadOutputRequest]) (*connect.Response[nodev1.ReadOutputResponse], error) {
	if n.output == nil {
		return nil, noderpc.Encode(cay.Errorf(cay.NotFound, "there is no such process"))
	}
	page, err := n.output(r.Msg)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return connect.NewResponse(page), nil
}

// background is a node whose processes run until their stdin is closed, and are listed.
func background(r *rig, firsts chan<- *nodev1.ProcessInput) {
	r.node.process = func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
		firsts <- first
		if st := first.GetStart(); st != nil {
			info := &nodev1.ProcessInfo{ProcessId: st.GetProcessId(), Pid: 7, Name: st.GetSpec().GetName(), Command: []string{"c"}, Status: "running", StartedUnixMs: 1, Tty: st.GetSpec().GetTty(), Cols: st.GetSpec().GetCols()}
			if st.GetSpec().GetShell() == "/nope" {
				info.Pid, info.Status, info.Exit = 0, "failed", &nodev1.Exit{Code: 127, Reason: "start_failed", Detail: "/nope: not found"}
			}
			r.node.mu.Lock()
			r.node.procs = append(r.node.procs, info)
			r.node.mu.Unlock()
			_ = s.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Started{Started: &nodev1.Started{ProcessId: st.GetProcessId(), Pid: info.Pid}}})
			if info.Exit != nil {
				return s.Send(exitMsg(info.Exit))
			}
		} else if err := s.Send(startedMsg(idOf(first), 0)); err != nil {
			return err
		}
		for {
			if in, err := s.Receive(); err != nil || in.GetDetach() {
				return nil
			}
		}
	}
}

func TestAProcessIsStartedAndDescribed(t *testing.T) {
	r := newRig(t)
	firsts := make(chan *nodev1.ProcessInput, 8)
	background(r, firsts)
	box, key := r.box(), header("Idempotency-Key", "k")
	a := r.status(r.do("POST", box+"/processes", `{"command":"srv","name":"web","tty":true,"cols":100}`, key), 201)
	st := (<-firsts).GetStart()
	if st.GetForeground() || st.GetKillOnDisconnect() || !st.GetCollect() || st.GetSpec().GetTimeoutMs() != 0 || st.GetSpec().GetRows() != 24 || !st.GetSpec().GetStdinOpen() {
		t.Errorf("got %v", st)
	}
	for name, want := range map[string]any{"id": st.GetProcessId(), "name": "web", "tty": true, "cols": 100.0, "status": "running", "user": "sandbox", "cwd": "/workspace", "exit_code": nil} {
		if got := a.member(t, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	again := r.status(r.do("POST", box+"/processes", `{"command":"srv","name":"web","tty":true,"cols":100}`, key), 201)
	if at := (<-firsts).GetAttach(); at.GetProcessId() != st.GetProcessId() || at.GetTakeStdin() || again.member(t, "id") != st.GetProcessId() {
		t.Errorf("got %v", at)
	}
	r.status(r.do("POST", box+"/processes", `{"command":"x","timeout_seconds":5,"stdin":""}`), 201)
	if st := (<-firsts).GetStart(); st.GetSpec().GetTimeoutMs() != 5000 || !st.GetSpec().GetStdinOpen() {
		t.Errorf("got %v", st)
	}
	failed := r.status(r.do("POST", box+"/processes", `{"command":"/nope"}`), 201)
	if failed.member(t, "status") != "failed" || failed.member(t, "exit_code") != 127.0 || failed.member(t, "reason") != "start_failed" || failed.member(t, "detail") != "/nope: not found" {
		t.Errorf("got %s", failed.body)
	}
}

func TestProcessBodiesAreChecked(t *testing.T) {
	r := newRig(t)
	box := r.box()
	for body, field := range map[string]string{
		`{}`: "command", `{"command":"x","name":""}`: "name", `{"command":"x","name":"1234"}`: "name", `{"command":"x","name":"prc_x"}`: "name",
		`{"command":"x","name":".."}`: "name", `{"command":"x","name":"a/b"}`: "name", `{"command":"x","name":"` + strings.Repeat("a", 65) + `"}`: "name",
		`{"command":"x","cols":3}`: "cols", `{"command":"x","kill_on_disconnect":true}`: "kill_on_disconnect", `{"command":"x","detach":true}`: "detach",
	} {
		if a := r.refused(r.do("POST", box+"/processes", body), cay.InvalidRequest); a.member(t, "field") != field {
			t.Errorf("%s: %s", body, a.body)
		}
	}
}

// A long stdin is given to the process behind the answer.
func TestALongStdinFollowsTheAnswer(t *testing.T) {
	r := newRig(t)
	got := make(chan int, 1)
	proceed := make(chan struct{})
	id := ""
	r.node.process = func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
		id = idOf(first)
		r.node.mu.Lock()
		r.node.procs = []*nodev1.ProcessInfo{{ProcessId: id, Status: "running"}}
		r.node.mu.Unlock()
		_ = s.Send(startedMsg(id, 0))
		<-proceed
		n := 0
		for {
			in, err := s.Receive()
			if err != nil || in.GetDetach() {
				return nil
			}
			if n += len(in.GetStdin()); in.GetCloseStdin() {
				got <- n
			}
		}
	}
	res, err := http.DefaultClient.Do(r.request("POST", r.box()+"/processes", `{"command":"wc","stdin":"`+strings.Repeat("x", 8<<20)+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, res.Body, res.ContentLength); err != nil || res.StatusCode != 201 || !res.Close {
		t.Errorf("got %d, %v, close %v", res.StatusCode, err, res.Close)
	}
	close(proceed)
	if n := <-got; n != 8<<20 {
		t.Errorf("%d bytes arrived", n)
	}
	res.Body.Close()
}

func logPage(next, size int64, status string, runs ...*nodev1.ReadOutputResponse_Run) func(*nodev1.ReadOutputRequest) (*nodev1.ReadOutputResponse, error) {
	return func(*nodev1.ReadOutputRequest) (*nodev1.ReadOutputResponse, error) {
		info := &nodev1.ProcessInfo{Status: status}
		if status != "running" {
			info.Exit = &nodev1.Exit{Code: 3}
		}
		return &nodev1.ReadOutputResponse{Runs: runs, NextOffset: next, Produced: size, Process: info}, nil
	}
}

func outRun(s cay.Stream, offset int64, data string) *nodev1.ReadOutputResponse_Run {
	return &nodev1.ReadOutputResponse_Run{Stream: uint32(s), Offset: offset, Data: []byte(data)}
}

func TestLogsArePagesOfOutput(t *testing.T) {
	r := newRig(t)
	box, id := r.box(), string(cay.NewID(cay.PrefixProcess))
	logs := box + "/processes/" + id + "/logs"
	for name, c := range map[string]struct {
		output func(*nodev1.ReadOutputRequest) (*nodev1.ReadOutputResponse, error)
		query  string
		want   string
	}{
		"both streams": {logPage(7, 7, "exited", outRun(1, 0, "a\n"), outRun(2, 2, "é\n"), outRun(1, 5, "b\n")), "",
			`"offset":0,"next_offset":7,"size":7,"stdout":"a\nb\n","stderr":"é\n","gaps":[],"lossy":{"stdout":false,"stderr":false},"status":"exited","exit_code":3`},
		"a character that is cut": {logPage(5, 9, "running", outRun(1, 0, "caf\xc3"), outRun(2, 4, "e")), "",
			`"offset":0,"next_offset":3,"size":9,"stdout":"caf","stderr":"","gaps":[],"lossy":{"stdout":false,"stderr":false},"status":"running","exit_code":null`},
		"a character that has no rest": {logPage(4, 4, "exited", outRun(1, 0, "caf\xc3")), "",
			`"offset":0,"next_offset":4,"size":4,"stdout":"caf�","stderr":"","gaps":[],"lossy":{"stdout":true,"stderr":false},"status":"exited","exit_code":3`},
		"a gap": {logPage(9, 9, "exited", outRun(1, 0, "a"), &nodev1.ReadOutputResponse_Run{Stream: 2, Offset: 1, Gap: 7}, outRun(1, 8, "b")), "",
			`"offset":0,"next_offset":9,"size":9,"stdout":"ab","stderr":"","gaps":[{"stream":"stderr","offset":1,"bytes":7}],"lossy":{"stdout":false,"stderr":false},"status":"exited","exit_code":3`},
		"bytes": {logPage(2, 9, "running", outRun(1, 0, "\xc3\x00")), "?encoding=base64",
			`"offset":0,"next_offset":2,"size":9,"stdout_base64":"wwA=","stderr_base64":"","gaps":[],"lossy":{"stdout":false,"stderr":false},"status":"running","exit_code":null`},
	} {
		r.node.output = c.output
		if a := r.status(r.do("GET", logs+c.query, ""), 200); strings.TrimSpace(string(a.body)) != `{"process_id":"`+id+`",`+c.want+`}` {
			t.Errorf("%s: %s", name, a.body)
		}
	}
	for _, query := range []string{"?offset=-1", "?limit=0", "?limit=99999999", "?encoding=x", "?offset=x"} {
		r.refused(r.do("GET", logs+query, ""), cay.InvalidRequest)
	}
}

// taker is a node that takes stdin from have on, as a process would that reads.
func taker(have int64, got chan<- string) func(context.Context, *nodev1.ProcessInput, *processStream) error {
	return func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
		if at := first.GetAttach(); !at.GetTakeStdin() || !at.GetCollect() || at.GetForeground() {
			return cay.Errorf(cay.Internal, "attached as %v", at)
		}
		at := have
		tell := func() error {
			return s.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Started{Started: &nodev1.Started{StdinOffset: at}}})
		}
		_ = tell()
		text := ""
		for {
			in, err := s.Receive()
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				got <- text
				return err
			case in.GetDetach():
				got <- text
				return tell()
			case in.GetCloseStdin():
				text += "|"
			}
			text += string(in.GetStdin())
			at += int64(len(in.GetStdin()))
		}
	}
}

func TestStdinIsWrittenFromAnOffset(t *testing.T) {
	r := newRig(t)
	got := make(chan string, 1)
	r.node.process = taker(5, got)
	stdin := r.box() + "/processes/" + string(cay.NewID(cay.PrefixProcess)) + "/stdin"
	raw := header("Content-Type", "application/octet-stream")
	for _, c := range []struct {
		query, body, arrives string
		offset               float64
	}{{"", "abc", "abc", 8}, {"?offset=5&close=true", "abc", "abc|", 8}, {"?offset=3", "abc", "c", 6}, {"?offset=0", "abc", "", 5}, {"?close=true", "", "|", 5}} {
		a := r.status(r.do("POST", stdin+c.query, c.body, raw), 200)
		if text := <-got; text != c.arrives || a.member(t, "stdin_offset") != c.offset {
			t.Errorf("%s: %q arrived, %s", c.query, text, a.body)
		}
	}
	if a := r.refused(r.do("POST", stdin+"?offset=6", "abc", raw), cay.Conflict); a.member(t, "stdin_offset") != 5.0 {
		t.Errorf("got %s", a.body)
	}
	<-got
	r.refused(r.do("POST", stdin+"?offset=-1", "abc", raw), cay.InvalidRequest)

	key := header("Idempotency-Key", "k")
	r.status(r.do("POST", stdin, "abc", raw, key), 200)
	<-got
	if a := r.status(r.do("POST", stdin, "abc", raw, key), 200); a.member(t, "stdin_offset") != 8.0 {
		t.Errorf("got %s", a.body)
	}
	large := strings.Repeat("x", 1<<20)
	r.status(r.do("POST", stdin, large, raw), 200)
	if text := <-got; text != large {
		t.Errorf("%d bytes arrived", len(text))
	}
}

func TestStdinThatCannotBeTakenIsAConflict(t *testing.T) {
	r := newRig(t)
	stdin := r.box() + "/processes/" + string(cay.NewID(cay.PrefixProcess)) + "/stdin"
	r.node.process = func(context.Context, *nodev1.ProcessInput, *processStream) error {
		return cay.Errorf(cay.Conflict, "it has ended")
	}
	r.refused(r.do("POST", stdin, "abc"), cay.Conflict)
	r.node.process = func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
		_ = s.Send(startedMsg(idOf(first), 0))
		_, _ = s.Receive()
		return s.Send(errorMsg(cay.Conflict))
	}
	r.refused(r.do("POST", stdin, strings.Repeat("x", 4<<20)), cay.Conflict)
	req := r.request("POST", stdin, "x")
	req.ContentLength = maxStdinBody + 1
	if res, err := http.DefaultClient.Do(req); err == nil {
		if res.Body.Close(); res.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("got %d", res.StatusCode)
		}
	}
}

// Whoever else writes to the process waits, so that a process that reads nothing must not hold a request for ever.
func TestAProcessThatReadsNothingEndsTheRequest(t *testing.T) {
	r := newRig(t, func(c *Config) { c.WriteTimeout = 300 * time.Millisecond })
	ended := make(chan struct{})
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		_ = s.Send(startedMsg(idOf(first), 0))
		<-ctx.Done()
		close(ended)
		return nil
	}
	stdin := r.box() + "/processes/" + string(cay.NewID(cay.PrefixProcess)) + "/stdin"
	r.refused(r.do("POST", stdin, strings.Repeat("x", 8<<20)), cay.Conflict)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the stream to the node goes on")
	}
}

func TestATerminalIsResized(t *testing.T) {
	r := newRig(t)
	sizes := make(chan string, 4)
	r.node.process = func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
		_ = s.Send(startedMsg(idOf(first), 0))
		for {
			in, err := s.Receive()
			switch {
			case err != nil || in.GetDetach():
				return nil
			case in.GetResize().GetCols() == 1:
				return s.Send(errorMsg(cay.Conflict))
			}
			sizes <- strconv.Itoa(int(in.GetResize().GetCols())) + "x" + strconv.Itoa(int(in.GetResize().GetRows()))
		}
	}
	resize := r.box() + "/processes/" + string(cay.NewID(cay.PrefixProcess)) + "/resize"
	r.status(r.do("POST", resize, `{"cols":100,"rows":30}`), 204)
	if got := <-sizes; got != "100x30" {
		t.Errorf("got %s", got)
	}
	r.refused(r.do("POST", resize, `{"cols":1,"rows":30}`), cay.Conflict)
	r.refused(r.do("POST", resize, `{"cols":1}`), cay.InvalidRequest)
	r.refused(r.do("POST", resize, `{"cols":70000,"rows":1}`), cay.InvalidRequest)
	r.node.process = says(exitMsg(&nodev1.Exit{}))
	r.refused(r.do("POST", resize, `{"cols":100,"rows":30}`), cay.Conflict)
}

func TestAWaitEndsWithTheProcessOrItsTime(t *testing.T) {
	r := newRig(t)
	id := string(cay.NewID(cay.PrefixProcess))
	wait := r.box() + "/processes/" + id + "/wait"
	r.node.procs = []*nodev1.ProcessInfo{{ProcessId: id, Status: "running"}}
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		_ = s.Send(startedMsg(id, 0))
		<-ctx.Done()
		return nil
	}
	if a := r.status(r.do("GET", wait+"?timeout_seconds=0.05", ""), 200); a.member(t, "status") != "running" {
		t.Errorf("got %s", a.body)
	}
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		r.node.mu.Lock()
		r.node.procs[0].Status, r.node.procs[0].Exit = "exited", &nodev1.Exit{Code: 4}
		r.node.mu.Unlock()
		return says(exitMsg(&nodev1.Exit{Code: 4}), dataMsg(cay.Stdout, 0, "x"))(ctx, first, s)
	}
	if a := r.status(r.do("GET", wait, ""), 200); a.member(t, "exit_code") != 4.0 {
		t.Errorf("got %s", a.body)
	}
	for _, query := range []string{"?timeout_seconds=-1", "?timeout_seconds=301", "?timeout_seconds=NaN"} {
		r.refused(r.do("GET", wait+query, ""), cay.InvalidRequest)
	}
}

func TestANameIsOfTheOneThatRunsElseOfTheLast(t *testing.T) {
	r := newRig(t)
	box := r.box()
	r.node.procs = []*nodev1.ProcessInfo{
		{ProcessId: "prc_b", Name: "web", Status: "exited", StartedUnixMs: 2}, {ProcessId: "prc_a", Name: "web", Status: "exited", StartedUnixMs: 1},
	}
	if a := r.status(r.do("GET", box+"/processes/web", ""), 200); a.member(t, "id") != "prc_b" {
		t.Errorf("got %s", a.body)
	}
	r.node.procs = append(r.node.procs, &nodev1.ProcessInfo{ProcessId: "prc_0", Name: "web", Status: "running", StartedUnixMs: 1})
	if a := r.status(r.do("GET", box+"/processes/web", ""), 200); a.member(t, "id") != "prc_0" {
		t.Errorf("got %s", a.body)
	}
}
