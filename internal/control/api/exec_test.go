package api

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func startedMsg(pid string, offset int64) *nodev1.ProcessOutput {
	return &nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Started{Started: &nodev1.Started{ProcessId: pid, Pid: 7, Offset: offset}}}
}

func dataMsg(s cay.Stream, offset int64, data string) *nodev1.ProcessOutput {
	return &nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Data{Data: &nodev1.Data{Stream: uint32(s), Offset: offset, Data: []byte(data)}}}
}

func gapMsg(s cay.Stream, offset, n int64) *nodev1.ProcessOutput {
	return &nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Gap{Gap: &nodev1.OutputGap{Stream: uint32(s), Offset: offset, Bytes: n}}}
}

func exitMsg(e *nodev1.Exit) *nodev1.ProcessOutput {
	if e.Reason == "" {
		e.Reason = "exited"
	}
	return &nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Exit{Exit: e}}
}

func errorMsg(reason cay.ErrorReason) *nodev1.ProcessOutput {
	return &nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Error{Error: &nodev1.StreamError{Reason: string(reason), Detail: "too slow"}}}
}

func idOf(first *nodev1.ProcessInput) string {
	if st := first.GetStart(); st != nil {
		return st.GetProcessId()
	}
	return first.GetAttach().GetProcessId()
}

// says is a process that says the messages, whatever it is told.
func says(msgs ...*nodev1.ProcessOutput) func(context.Context, *nodev1.ProcessInput, *processStream) error {
	return func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
		if err := s.Send(startedMsg(idOf(first), first.GetAttach().GetOffset())); err != nil {
			return err
		}
		for _, m := range msgs {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return nil
	}
}

func (r *rig) box() string { return "/v1/sandboxes/" + string(r.boxes.add(projectA, cay.Ready)) }

func TestAnExecAnswersItsResult(t *testing.T) {
	r := newRig(t)
	r.node.process = says(exitMsg(&nodev1.Exit{Code: 7, DurationMs: 12, StdoutSize: 3, StderrSize: 3}), dataMsg(cay.Stdout, 0, "out"), dataMsg(cay.Stderr, 0, "err"))
	a := r.status(r.do("POST", r.box()+"/exec", `{"command":"x"}`), 200)
	for k, want := range map[string]any{"exit_code": 7.0, "signal": nil, "ok": false, "reason": "exited", "stdout": "out", "stderr": "err", "stdout_size": 3.0, "duration_ms": 12.0, "timed_out": false, "killed": false, "oom": false} {
		if got := a.member(t, k); got != want {
			t.Errorf("%s is %v, want %v", k, got, want)
		}
	}
	if !strings.HasPrefix(a.member(t, "process_id").(string), "prc_") {
		t.Errorf("got %s", a.body)
	}
}

func TestAnExecWithoutOutputHasBothFields(t *testing.T) {
	r := newRig(t)
	r.node.process = says(exitMsg(&nodev1.Exit{}))
	a := r.status(r.do("POST", r.box()+"/exec", `{"command":["true"]}`), 200)
	if a.member(t, "stdout") != "" || a.member(t, "stderr") != "" || a.member(t, "ok") != true {
		t.Errorf("got %s", a.body)
	}
}

func TestTextIsExactOverChunksAndSaysWhatItLost(t *testing.T) {
	r := newRig(t)
	want := strings.Repeat("日本語\x00\"\\\n", 9000)
	var msgs []*nodev1.ProcessOutput
	msgs = append(msgs, exitMsg(&nodev1.Exit{StdoutSize: int64(len(want))}))
	for i := 0; i < len(want); i += 1000 {
		msgs = append(msgs, dataMsg(cay.Stdout, int64(i), want[i:min(i+1000, len(want))]))
	}
	msgs = append(msgs, dataMsg(cay.Stderr, 0, "\xff\xfe\x00ok"))
	r.node.process = says(msgs...)
	a := r.status(r.do("POST", r.box()+"/exec", `{"command":"x"}`), 200)
	if a.member(t, "stdout") != want || a.member(t, "stderr") != "\uFFFD\uFFFD\x00ok" {
		t.Errorf("got %.200s", a.body)
	}
	if lossy := a.member(t, "lossy").(map[string]any); lossy["stdout"] != false || lossy["stderr"] != true {
		t.Errorf("lossy is %v", lossy)
	}
	a = r.status(r.do("POST", r.box()+"/exec", `{"command":"x","encoding":"base64"}`), 200)
	got, err := base64.StdEncoding.DecodeString(a.member(t, "stderr_base64").(string))
	if err != nil || string(got) != "\xff\xfe\x00ok" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, _ := base64.StdEncoding.DecodeString(a.member(t, "stdout_base64").(string)); string(got) != want {
		t.Error("base64 is not exact")
	}
	if strings.Contains(string(a.body), `"stdout":"`) {
		t.Errorf("got %.200s", a.body)
	}
}

func TestAGapSaysWhatIsMissing(t *testing.T) {
	r := newRig(t)
	r.node.process = says(exitMsg(&nodev1.Exit{StdoutSize: 100}), dataMsg(cay.Stdout, 0, "head\xe6\x97"), gapMsg(cay.Stdout, 6, 89), dataMsg(cay.Stdout, 95, "\xa5tail"))
	a := r.status(r.do("POST", r.box()+"/exec", `{"command":"x","max_output_bytes":9}`), 200)
	gap, _ := a.member(t, "stdout_gap").(map[string]any)
	if gap["offset"] != 4.0 || gap["bytes"] != 92.0 || a.member(t, "truncated").(map[string]any)["stdout"] != true || a.member(t, "stdout") != "headtail" {
		t.Errorf("got %s", a.body)
	}
}

func TestWhatTheNodeRefusesIsAProblem(t *testing.T) {
	r := newRig(t)
	r.node.process = func(context.Context, *nodev1.ProcessInput, *processStream) error {
		return cay.Errorf(cay.Unprocessable, "there is no directory /nope").On("cwd")
	}
	a := r.refused(r.do("POST", r.box()+"/exec", `{"command":"x","cwd":"/nope"}`), cay.Unprocessable)
	if a.member(t, "field") != "cwd" {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("POST", r.box()+"/exec", `{"command":"x"}`, header("Accept", "text/event-stream")), cay.Unprocessable)
}

func TestAResultThatBreaksOffIsNotTakenForWhole(t *testing.T) {
	r := newRig(t)
	msgs := []*nodev1.ProcessOutput{exitMsg(&nodev1.Exit{})}
	for i := range 40 {
		msgs = append(msgs, dataMsg(cay.Stdout, int64(i)*60000, strings.Repeat("x", 60000)))
	}
	whole := says(msgs...)
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		if err := whole(ctx, first, s); err != nil {
			return err
		}
		return cay.Errorf(cay.Unavailable, "gone")
	}
	res, err := http.DefaultClient.Do(r.request("POST", r.box()+"/exec", `{"command":"x"}`))
	if err != nil {
		return // cut before the header: as good
	}
	defer res.Body.Close()
	if _, err := io.ReadAll(res.Body); err == nil && res.StatusCode == 200 {
		t.Error("the body ended as if it were whole")
	}
}

func TestExecBodiesAreChecked(t *testing.T) {
	r := newRig(t)
	box := r.box()
	for body, field := range map[string]string{
		`{}`: "command", `{"command":""}`: "command", `{"command":[]}`: "command", `{"command":[""]}`: "command", `{"command":5}`: "command",
		`{"command":["a",5]}`: "command.1", `{"command":"a\u0000b"}`: "command", `{"command":["a","\u0000"]}`: "command",
		`{"command":"x","timeout_seconds":0}`: "timeout_seconds", `{"command":"x","timeout_seconds":-1}`: "timeout_seconds",
		`{"command":"x","timeout_seconds":3e9}`: "timeout_seconds", `{"command":"x","timeout_seconds":"1"}`: "timeout_seconds",
		`{"command":"x","stdin":"a","stdin_base64":"YQ=="}`: "stdin_base64", `{"command":"x","stdin_base64":"%"}`: "stdin_base64",
		`{"command":"x","env":{"A=":"1"}}`: "env.A=", `{"command":"x","env":{"A\u0000":"1"}}`: "env.A\u0000", `{"command":"x","env":{"A":1}}`: "env.A",
		`{"command":"x","max_output_bytes":0}`: "max_output_bytes", `{"command":"x","max_output_bytes":1e12}`: "max_output_bytes",
		`{"command":"x","encoding":"latin1"}`: "encoding", `{"command":"x","cwd":"\u0000"}`: "cwd", `{"command":"x","nope":1}`: "nope",
		`{"command":"x","command":"y"}`: "command",
	} {
		a := r.refused(r.do("POST", box+"/exec", body), cay.InvalidRequest)
		if got := a.member(t, "field"); got != field {
			t.Errorf("%s: field is %q, want %q: %s", body, got, field, a.body)
		}
	}
	r.refused(r.do("POST", box+"/exec", `{"command":"x"}`, header("Last-Event-ID", "5")), cay.InvalidRequest)
}

func TestDefaultsAndNullsReachTheNode(t *testing.T) {
	r := newRig(t)
	specs := make(chan *nodev1.StartProcess, 1)
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		specs <- first.GetStart()
		return says(exitMsg(&nodev1.Exit{}))(ctx, first, s)
	}
	box := r.box()
	r.status(r.do("POST", box+"/exec", `{"command":"x"}`), 200)
	if st := <-specs; st.Spec.TimeoutMs != 60_000 || st.Spec.MaxOutputBytes != cay.DefaultMaxOutput || st.Spec.StdinOpen || !st.Foreground || !st.Collect || st.Spec.Shell != "x" {
		t.Errorf("got %v", st)
	}
	r.status(r.do("POST", box+"/exec", `{"command":["a","b"],"timeout_seconds":null,"stdin":"","kill_on_disconnect":true}`), 200)
	if st := <-specs; st.Spec.TimeoutMs != 0 || !st.Spec.StdinOpen || !st.KillOnDisconnect || len(st.Spec.Argv) != 2 {
		t.Errorf("got %v", st)
	}
	r.status(r.do("POST", box+"/exec", `{"command":"x","timeout_seconds":0.05}`), 200)
	if st := <-specs; st.Spec.TimeoutMs != 50 {
		t.Errorf("got %v", st)
	}
}

// wordCount reads stdin to its end and says its length.
func wordCount(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
	if err := s.Send(startedMsg(idOf(first), 0)); err != nil {
		return err
	}
	n := 0
	for {
		in, err := s.Receive()
		if err != nil {
			return err
		}
		n += len(in.GetStdin())
		if in.GetCloseStdin() {
			out := fmt.Sprint(n)
			exit := exitMsg(&nodev1.Exit{StdoutSize: int64(len(out))})
			if first.GetStart().GetCollect() {
				return errors.Join(s.Send(exit), s.Send(dataMsg(cay.Stdout, 0, out)))
			}
			return errors.Join(s.Send(dataMsg(cay.Stdout, 0, out)), s.Send(exit))
		}
	}
}

func TestStdinArrivesWhole(t *testing.T) {
	r := newRig(t)
	r.node.process = wordCount
	body := `{"command":"wc -c","stdin":"` + strings.Repeat("x", 5<<20) + `"}`
	if a := r.status(r.do("POST", r.box()+"/exec", body), 200); a.member(t, "stdout") != fmt.Sprint(5<<20) {
		t.Errorf("got %s", a.body)
	}
	if a := r.status(r.do("POST", r.box()+"/exec", `{"command":"wc -c","stdin_base64":"AAEC"}`), 200); a.member(t, "stdout") != "3" {
		t.Errorf("got %s", a.body)
	}
}

func TestAnExecKeyAttachesToTheSameProcess(t *testing.T) {
	r := newRig(t)
	firsts := make(chan *nodev1.ProcessInput, 4)
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		firsts <- first
		return says(exitMsg(&nodev1.Exit{}))(ctx, first, s)
	}
	box, key := r.box(), header("Idempotency-Key", "k")
	a := r.status(r.do("POST", box+"/exec", `{"command":"x","stdin":"abc"}`, key), 200)
	b := r.status(r.do("POST", box+"/exec", `{"command":"x","stdin":"abc"}`, key), 200)
	one, two := <-firsts, <-firsts
	if one.GetStart() == nil || two.GetAttach() == nil || idOf(one) != idOf(two) || a.member(t, "process_id") != b.member(t, "process_id") {
		t.Errorf("got %v, %v", one, two)
	}
	r.refused(r.do("POST", box+"/exec", `{"command":"y"}`, key), cay.IdempotencyMismatch)

	r.node.process = func(context.Context, *nodev1.ProcessInput, *processStream) error {
		return cay.Errorf(cay.Unavailable, "not now")
	}
	fault := header("Idempotency-Key", "fault")
	r.refused(r.do("POST", box+"/exec", `{"command":"x"}`, fault), cay.Unavailable)
	r.node.process = says(exitMsg(&nodev1.Exit{}))
	r.status(r.do("POST", box+"/exec", `{"command":"x"}`, fault), 200)
}

// event is a server-sent event.
type event struct {
	id, name string
	data     map[string]any
}

func parseEvents(t *testing.T, rd io.Reader) []event {
	t.Helper()
	var all []event
	var e event
	sc := bufio.NewScanner(rd)
	sc.Buffer(nil, 8<<20)
	for sc.Scan() {
		k, v, _ := strings.Cut(sc.Text(), ": ")
		switch k {
		case "id":
			e.id = v
		case "event":
			e.name = v
		case "data":
			if err := json.Unmarshal([]byte(v), &e.data); err != nil {
				t.Fatal(err)
			}
		case "":
			if e.name != "" {
				all = append(all, e)
			}
			e = event{}
		}
	}
	return all
}

func names(events []event) string {
	var s []string
	for _, e := range events {
		s = append(s, e.name+"@"+e.id)
	}
	return strings.Join(s, " ")
}

var asEvents = header("Accept", "text/event-stream")

func TestEventsCarryOffsetsAndWholeCharacters(t *testing.T) {
	r := newRig(t)
	r.node.process = says(dataMsg(cay.Stdout, 0, "caf\xc3"), dataMsg(cay.Stderr, 4, "e"), dataMsg(cay.Stdout, 5, "\xa9\n"), gapMsg(cay.Stdout, 7, 10), dataMsg(cay.Stdout, 17, "x\xe2"), exitMsg(&nodev1.Exit{StdoutSize: 18, StderrSize: 1}))
	a := r.status(r.do("POST", r.box()+"/exec", `{"command":"x"}`, asEvents), 200)
	if a.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("got %v", a.Header)
	}
	events := parseEvents(t, strings.NewReader(string(a.body)))
	// After "caf" half a character of stdout waits: the id stays before it, and stderr's event has none.
	if got, want := names(events), "start@0 stdout@3 stderr@ stdout@7 gap@17 stdout@18 stdout@19 exit@19"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	if events[1].data["data"] != "caf" || events[3].data["data"] != "é\n" || events[6].data["data"] != "\uFFFD" {
		t.Errorf("got %v", events)
	}
	last := events[len(events)-1].data
	if last["ok"] != true || last["truncated"].(map[string]any)["stdout"] != true || last["lossy"].(map[string]any)["stdout"] != true || last["stdout"] != nil {
		t.Errorf("got %v", last)
	}
}

func TestAStreamThatBreaksEndsWithAnError(t *testing.T) {
	r := newRig(t)
	for name, process := range map[string]func(context.Context, *nodev1.ProcessInput, *processStream) error{
		"unavailable":   says(dataMsg(cay.Stdout, 0, "x")),
		"slow_consumer": says(dataMsg(cay.Stdout, 0, "x"), errorMsg(cay.SlowConsumer)),
		"gone": func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
			_ = says(dataMsg(cay.Stdout, 0, "x"))(ctx, first, s)
			return cay.Errorf(cay.Gone, "the sandbox has ended")
		},
	} {
		r.node.process = process
		a := r.status(r.do("POST", r.box()+"/exec", `{"command":"x"}`, asEvents), 200)
		events := parseEvents(t, strings.NewReader(string(a.body)))
		if last := events[len(events)-1]; last.name != "error" || last.data["reason"] != name {
			t.Errorf("%s: got %v", name, events)
		}
	}
}

func TestAStreamIsAttachedToByOffsetAndName(t *testing.T) {
	r := newRig(t)
	attached := make(chan *nodev1.AttachProcess, 1)
	r.node.process = func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error {
		attached <- first.GetAttach()
		return says(exitMsg(&nodev1.Exit{}))(ctx, first, s)
	}
	id := string(cay.NewID(cay.PrefixProcess))
	r.node.procs = []*nodev1.ProcessInfo{{ProcessId: id, Pid: 42, Name: "web", Status: "running"}, {Pid: 43, Status: "running"}}
	box := r.box()
	for path, offset := range map[string]int64{"/processes/" + id + "/stream?offset=7": 7, "/processes/42/stream": 0, "/processes/web/stream?encoding=base64": 0} {
		r.status(r.do("GET", box+path, ""), 200)
		if a := <-attached; a.GetProcessId() != id || a.GetOffset() != offset || a.GetTakeStdin() {
			t.Errorf("%s: got %v", path, a)
		}
	}
	r.status(r.do("GET", box+"/processes/"+id+"/stream?offset=7", "", header("Last-Event-ID", "9")), 200)
	if a := <-attached; a.GetOffset() != 9 {
		t.Errorf("got %v", a)
	}
	r.refused(r.do("GET", box+"/processes/"+id+"/stream?offset=-1", ""), cay.InvalidRequest)
	r.refused(r.do("GET", box+"/processes/"+id+"/stream", "", header("Last-Event-ID", "x")), cay.InvalidRequest)
	r.refused(r.do("GET", box+"/processes/nobody/stream", ""), cay.NotFound)
	r.refused(r.do("GET", box+"/processes/43/stream", ""), cay.Conflict)
	if res, err := http.DefaultClient.Do(r.request("HEAD", box+"/processes/"+id+"/stream", "")); err != nil || res.StatusCode != 405 {
		t.Errorf("got %v, %v", res, err)
	}
}

func TestProcessesAreListedFoundAndSignalled(t *testing.T) {
	r := newRig(t)
	id := string(cay.NewID(cay.PrefixProcess))
	r.node.procs = []*nodev1.ProcessInfo{{ProcessId: id, Pid: 42, Name: "web", Status: "running", Command: []string{"a"}, StartedUnixMs: 1}}
	box := r.box()
	if a := r.status(r.do("GET", box+"/processes", ""), 200); len(a.member(t, "items").([]any)) != 1 {
		t.Errorf("got %s", a.body)
	}
	for _, name := range []string{id, "42", "web"} {
		if a := r.status(r.do("GET", box+"/processes/"+name, ""), 200); a.member(t, "id") != id {
			t.Errorf("%s: got %s", name, a.body)
		}
	}
	r.refused(r.do("GET", box+"/processes/7", ""), cay.NotFound)
	key := header("Idempotency-Key", "k")
	r.status(r.do("POST", box+"/processes/web/signal", `{"signal":"SIGTERM","tree":true}`, key), 204)
	r.status(r.do("POST", box+"/processes/web/signal", `{"signal":"SIGTERM","tree":true}`, key), 204)
	if got := r.node.sentSignals(); len(got) != 1 || got[0] != "TERM" {
		t.Errorf("got %v", got)
	}
	r.refused(r.do("POST", box+"/processes/web/signal", `{"signal":"te rm"}`), cay.InvalidRequest)
}

// runsUntilLeft starts, notes what it is told, and ends when its stream does.
func runsUntilLeft(left chan<- string) func(context.Context, *nodev1.ProcessInput, *processStream) error {
	return func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
		_ = s.Send(startedMsg(idOf(first), 0))
		said := ""
		for {
			in, err := s.Receive()
			switch {
			case err != nil:
				left <- said
				return err
			case in.GetDetach():
				said = "detach"
			}
		}
	}
}

func TestAClientThatLeavesEndsItsStream(t *testing.T) {
	r := newRig(t)
	for _, opts := range [][]with{nil, {asEvents}} {
		left := make(chan string, 1)
		r.node.process = runsUntilLeft(left)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		res, err := http.DefaultClient.Do(r.request("POST", r.box()+"/exec", `{"command":"x"}`, opts...).WithContext(ctx))
		if err == nil {
			_, _ = io.ReadAll(res.Body)
			res.Body.Close()
		}
		cancel()
		select {
		case <-left:
		case <-time.After(time.Minute):
			t.Fatal("the node's stream goes on")
		}
	}
}

func TestTheStdinOfAClientThatLeavesIsHeardToItsEnd(t *testing.T) {
	r := newRig(t)
	for name, opts := range map[string][]with{"as JSON": nil, "as events": {asEvents}} {
		for _, input := range []string{"", "to be sorted"} {
			heard := make(chan string, 1)
			ctx, leave := context.WithTimeout(context.Background(), time.Minute)
			r.node.process = func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
				leave() // before the server knows that the process runs, or soon after
				_ = s.Send(startedMsg(idOf(first), 0))
				said := ""
				for {
					in, err := s.Receive()
					if err != nil || in.GetDetach() {
						if err == nil {
							said += " detach"
						}
						heard <- said
						return nil
					}
					said += string(in.GetStdin())
					if in.GetCloseStdin() {
						said += " close"
					}
				}
			}
			body := fmt.Sprintf(`{"command":"sort","stdin":%q}`, input)
			res, err := http.DefaultClient.Do(r.request("POST", r.box()+"/exec", body, opts...).WithContext(ctx))
			if err == nil {
				_, _ = io.ReadAll(res.Body)
				res.Body.Close()
			}
			select {
			case got := <-heard:
				if want := input + " close detach"; got != want {
					t.Errorf("%s, stdin %q: the node heard %q, want %q", name, input, got, want)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: the node's stream goes on", name)
			}
		}
	}
}

func TestCloseDetachesAndTellsStreams(t *testing.T) {
	r := newRig(t)
	left := make(chan string, 1)
	r.node.process = runsUntilLeft(left)
	res, err := http.DefaultClient.Do(r.request("POST", r.box()+"/exec", `{"command":"x","kill_on_disconnect":true}`, asEvents))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.api.Close(ctx); err != nil {
		t.Fatal(err)
	}
	events := parseEvents(t, res.Body)
	if last := events[len(events)-1]; last.name != "error" || last.data["reason"] != "unavailable" {
		t.Errorf("got %v", events)
	}
	if got := <-left; got != "detach" {
		t.Errorf("the node was told %q", got)
	}
	r.refused(r.do("POST", r.box()+"/exec", `{"command":"x"}`), cay.Unavailable)
}

func TestKeepAliveCommentsComeWhileNothingDoes(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Keepalive = 10 * time.Millisecond })
	r.node.process = runsUntilLeft(make(chan string, 1))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	res, err := http.DefaultClient.Do(r.request("POST", r.box()+"/exec", `{"command":"x"}`, asEvents).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for sc := bufio.NewScanner(res.Body); sc.Scan(); {
		if strings.HasPrefix(sc.Text(), ":") {
			return
		}
	}
	t.Error("no comment came")
}

// flood says n bytes of stdout in runs of 32 KiB.
func flood(n int, collect bool) func(context.Context, *nodev1.ProcessInput, *processStream) error {
	return func(_ context.Context, first *nodev1.ProcessInput, s *processStream) error {
		_ = s.Send(startedMsg(idOf(first), 0))
		exit := exitMsg(&nodev1.Exit{StdoutSize: int64(n)})
		if collect {
			_ = s.Send(exit)
		}
		run := strings.Repeat("0123456789abcde\n", 2048)
		for at := 0; at < n; at += len(run) {
			if err := s.Send(dataMsg(cay.Stdout, int64(at), run)); err != nil {
				return err
			}
		}
		if !collect {
			return s.Send(exit)
		}
		return nil
	}
}

func TestLargeOutputTakesLittleMemory(t *testing.T) {
	r := newRig(t)
	const n = 128 << 20
	for _, form := range []struct {
		collect bool
		opts    []with
	}{{true, nil}, {false, []with{asEvents}}} {
		r.node.process = flood(n, form.collect)
		res, err := http.DefaultClient.Do(r.request("POST", r.box()+"/exec", `{"command":"x"}`, form.opts...))
		if err != nil {
			t.Fatal(err)
		}
		var peak uint64
		var total int64
		buf := make([]byte, 1<<20)
		for i := 0; ; i++ {
			k, err := res.Body.Read(buf)
			total += int64(k)
			if i%64 == 0 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapInuse)
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		res.Body.Close()
		if total < n {
			t.Errorf("got %d bytes", total)
		}
		if peak > 64<<20 {
			t.Errorf("the heap grew to %d MiB", peak>>20)
		}
	}
}
