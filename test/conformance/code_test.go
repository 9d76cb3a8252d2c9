package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// codeResult is the answer of a run of code.
type codeResult struct {
	testkit.ExecResult
	Language     string  `json:"language"`
	ContextID    *string `json:"context_id"`
	FilesChanged []struct {
		Path string `json:"path"`
		Size int64  `json:"size"`
		Op   string `json:"op"`
	} `json:"files_changed"`
	Outputs []struct {
		Path string  `json:"path"`
		MIME string  `json:"mime"`
		Size int64   `json:"size"`
		Data *[]byte `json:"data_base64"`
		URL  string  `json:"url"`
	} `json:"outputs"`
	Results []map[string]any `json:"results"`
	Error   *struct {
		Name string `json:"name"`
	} `json:"error"`
	ExecutionCount int64 `json:"execution_count"`
	ContextLost    bool  `json:"context_lost"`
}

// main is the text of the value of the last expression.
func (c codeResult) main() any {
	for _, r := range c.Results {
		if r["is_main"] == true {
			return r["text/plain"]
		}
	}
	return nil
}

func runCode(t testing.TB, sb *testkit.Sandbox, code string, more ...fields) codeResult {
	t.Helper()
	var out codeResult
	if err := sb.Call("POST", "/code", fields{"code": code}.With(more...)).Decode(200, &out); err != nil {
		t.Fatalf("%.100s: %v", code, err)
	}
	return out
}

func openContext(t testing.TB, sb *testkit.Sandbox, language string) string {
	t.Helper()
	var c struct {
		ID string `json:"id"`
	}
	if err := sb.Call("POST", "/contexts", fields{"language": language}).Decode(201, &c); err != nil {
		t.Fatal(err)
	}
	return c.ID
}

func TestI1ManyRunsThatImportMuchDoNotHang(t *testing.T) {
	sb := box(t)
	sb.RequireProgram("python3")
	ctx := openContext(t, sb, "python")
	var failures sync.Map
	var work sync.WaitGroup
	for lane := range 4 {
		work.Go(func() {
			for i := range 10 {
				in := fields{"code": fmt.Sprintf("import asyncio, decimal, email, json, http.client, unittest, xml.dom.minidom\nprint(%d)", i)}
				if lane == 0 {
					in["context_id"] = ctx
				}
				c, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				resp, err := sb.Do(c, "POST", sb.Path("/code"), in)
				cancel()
				var out codeResult
				if err == nil {
					err = resp.Decode(200, &out)
				}
				if err != nil || out.Stdout != fmt.Sprintln(i) {
					failures.Store(fmt.Sprint(lane, i), fmt.Sprintf("%v: %+v", err, out))
				}
			}
		})
	}
	work.Wait()
	failures.Range(func(k, v any) bool { t.Errorf("%v: %v", k, v); return true })
}

func TestI2ContextsAreIsolated(t *testing.T) {
	sb := box(t)
	sb.RequireProgram("python3")
	ids := make([]string, 15)
	for i := range ids {
		ids[i] = openContext(t, sb, "python")
		runCode(t, sb, fmt.Sprint("x = ", i), fields{"context_id": ids[i]})
	}
	for i, id := range ids {
		if got := runCode(t, sb, "x", fields{"context_id": id}); got.main() != fmt.Sprint(i) || got.ExecutionCount != 2 {
			t.Errorf("context %d: %+v", i, got)
		}
	}
}

func TestI3ATimeoutInterruptsAndTheContextLives(t *testing.T) {
	sb := box(t)
	sb.RequireProgram("python3")
	ctx := openContext(t, sb, "python")
	runCode(t, sb, "x = 7", fields{"context_id": ctx})
	out := runCode(t, sb, "while True: pass", fields{"context_id": ctx, "timeout_seconds": 2})
	if !out.TimedOut || out.ExitCode != 137 || out.Reason != "timeout" || out.ContextLost {
		t.Errorf("got %+v", out)
	}
	if got := runCode(t, sb, "x", fields{"context_id": ctx}); got.main() != "7" {
		t.Errorf("after the timeout: %+v", got)
	}
	stubborn := runCode(t, sb, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass", fields{"context_id": ctx, "timeout_seconds": 1})
	if !stubborn.TimedOut || !stubborn.ContextLost {
		t.Errorf("got %+v", stubborn)
	}
	if got := runCode(t, sb, "x", fields{"context_id": ctx}); got.Error == nil || got.Error.Name != "NameError" || got.ExitCode != 1 {
		t.Errorf("in the fresh interpreter: %+v", got)
	}
}

func TestCodeTellsWhatItLeftBehind(t *testing.T) {
	sb := box(t)
	sb.RequireProgram("python3")
	out := runCode(t, sb, "open('/output/t.csv','w').write('a,b\\n')\nopen('note','w').write('hi')\nprint('done')")
	if out.Stdout != "done\n" || out.Language != "python" || out.ContextID != nil || len(out.FilesChanged) != 2 {
		t.Errorf("got %+v", out)
	}
	if len(out.Outputs) != 1 || out.Outputs[0].MIME != "text/csv" || out.Outputs[0].Data == nil || string(*out.Outputs[0].Data) != "a,b\n" {
		t.Errorf("outputs: %+v", out.Outputs)
	}
	big := runCode(t, sb, "open('/output/big.bin','wb').truncate(30<<20)")
	if len(big.Outputs) != 1 || big.Outputs[0].Data != nil || big.Outputs[0].URL == "" || big.Outputs[0].Size != 30<<20 {
		t.Errorf("a large output: %+v", big.Outputs)
	}
	long := runCode(t, sb, "s = '"+strings.Repeat("x", 5<<20)+"'\nprint(len(s))")
	if long.Stdout != fmt.Sprintln(5<<20) {
		t.Errorf("a long program: %.300s", long.Stderr)
	}
	ctx := openContext(t, sb, "python")
	rich := runCode(t, sb, "class P:\n  def _repr_png_(self): return b'\\x89PNG'\n  def __repr__(self): return 'P'\nP()", fields{"context_id": ctx})
	if len(rich.Results) != 1 || rich.Results[0]["image/png"] != "iVBORw==" || rich.main() != "P" {
		t.Errorf("results: %+v", rich.Results)
	}
	if resp := sb.Call("POST", "/code", fields{"code": "x", "language": "cobol"}); resp.Status != 422 || resp.Problem().Field != "language" || !strings.Contains(resp.Problem().Detail, "python") {
		t.Errorf("an unknown language: %v", resp)
	}
	if resp := sb.Call("POST", "/code", fields{"code": "x", "context_id": "ctx_00000000000000000000000000"}); resp.Status != 404 {
		t.Errorf("an unknown context: %v", resp)
	}
}

func TestAResultLongerThanAMessageArrives(t *testing.T) {
	sb := box(t)
	sb.RequireProgram("python3")
	ctx := openContext(t, sb, "python")
	out := runCode(t, sb, "'x' * (12 << 20)", fields{"context_id": ctx})
	for _, r := range out.Results {
		if text, _ := r["text/plain"].(string); len(text) > 1<<20 {
			return
		}
	}
	larger := runCode(t, sb, "class P:\n  def _repr_png_(self): return b'x' * (12 << 20)\nP()", fields{"context_id": ctx})
	if len(larger.Results) != 1 || len(fmt.Sprint(larger.Results[0]["image/png"])) != 16<<20 {
		t.Errorf("%d results", len(larger.Results))
	}
}

func TestAContextSurvivesTheNodeAndAnAttachTellsTheResult(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{})
	sb := inst.Create(t)
	sb.RequireProgram("python3")
	ctx := openContext(t, sb, "python")
	first := runCode(t, sb, "x = 41\nx + 1", fields{"context_id": ctx})
	killed, err := inst.PID(testkit.RoleNode)
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Kill9(testkit.RoleNode); err != nil {
		t.Fatal(err)
	}
	if err := inst.Restarted(testkit.RoleNode, killed, time.Minute); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "readyz", func() error { return inst.Ready(t.Context()) })
	if got := runCode(t, sb, "x", fields{"context_id": ctx}); got.main() != "41" || got.Language != "python" {
		t.Errorf("after the restart: %+v", got)
	}
	stream := sb.AttachStream(t.Context(), first.ProcessID, 0)
	defer stream.Close()
	for {
		ev, err := stream.Next()
		if err != nil {
			t.Fatalf("no result: %v", err)
		}
		if ev.Name != "result" {
			continue
		}
		var out codeResult
		if err := json.Unmarshal([]byte(ev.Data), &out); err != nil || out.main() != "42" || out.ContextID == nil || *out.ContextID != ctx {
			t.Fatalf("%v: %s", err, ev.Data)
		}
		return
	}
}

func TestAWebSocketOfCodeEndsWithItsResult(t *testing.T) {
	sb := box(t)
	sb.RequireProgram("python3")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ws := sb.Dial(ctx, "/code")
	defer ws.Drop()
	if err := ws.Send(ctx, fields{"type": "start", "code": "print(input())\nopen('/output/x.txt','w').write('y')"}); err != nil {
		t.Fatal(err)
	}
	if err := ws.Stdin(ctx, []byte("typed\n")); err != nil {
		t.Fatal(err)
	}
	var stdout string
	for {
		msg, raw, channel, err := ws.Next(ctx)
		if err != nil {
			t.Fatalf("no result, after %q: %v", stdout, err)
		}
		if channel == 1 {
			stdout += string(raw)
		}
		if msg.Type != "result" {
			continue
		}
		var out codeResult
		if err := json.Unmarshal(raw, &out); err != nil || stdout != "typed\n" || len(out.Outputs) != 1 || string(*out.Outputs[0].Data) != "y" {
			t.Fatalf("%v: %q, %s", err, stdout, raw)
		}
		return
	}
}
