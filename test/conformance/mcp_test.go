package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/internal/testkit"
)

// model is a client of the tools of a real server.
type model struct {
	t        *testing.T
	session  *mcp.ClientSession
	progress chan string
}

// keyed adds a key to every request.
type keyed struct {
	key   string
	inner *http.Transport
}

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.key)
	return k.inner.RoundTrip(r)
}

// newModel connects to /mcp. The conversation's default sandbox is deleted with the test.
func newModel(t *testing.T, c *testkit.Client, conversation string) *model {
	t.Helper()
	m := &model{t: t, progress: make(chan string, 16)}
	implementation := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v0"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, p *mcp.ProgressNotificationClientRequest) {
			select {
			case m.progress <- p.Params.Message:
			default:
			}
		},
	})
	wire := &http.Transport{}
	var err error
	m.session, err = implementation.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: c.URL + "/mcp?conversation=" + conversation, HTTPClient: &http.Client{Transport: keyed{c.Key, wire}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if res, err := m.session.CallTool(ctx, &mcp.CallToolParams{Name: "close_sandbox"}); err != nil || res.IsError {
			t.Errorf("close_sandbox: %v %+v", err, res)
		}
		m.session.Close()
		wire.CloseIdleConnections()
	})
	return m
}

func (m *model) call(tool string, arguments fields) (map[string]any, *mcp.CallToolResult) {
	m.t.Helper()
	res, err := m.session.CallTool(m.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil || res.IsError {
		m.t.Fatalf("%s: %v %s", tool, err, textOf(res))
	}
	data, err := json.Marshal(res.StructuredContent)
	if err != nil {
		m.t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		m.t.Fatal(err)
	}
	return out, res
}

// textOf is the text of a result.
func textOf(res *mcp.CallToolResult) string {
	if res == nil {
		return ""
	}
	var b strings.Builder
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			b.WriteString(text.Text)
		}
	}
	return b.String()
}

// chart draws 64 by 64 pixels with what Python has of its own.
const chart = `import zlib, struct
def chunk(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))
rows = b''.join(b'\0' + bytes((4 * x, 4 * y, 128)[i] for x in range(64) for i in range(3)) for y in range(64))
with open('/output/chart.png', 'wb') as f:
    f.write(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 64, 64, 8, 2, 0, 0, 0)) + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))
with open('/output/data.csv', 'w') as f: print('a,b', file=f)
`

func TestAModelDrawsAChartWithOneCallAndSeesIt(t *testing.T) {
	t.Parallel()
	m := newModel(t, testkit.Server(t).Client, "chart")
	out, res := m.call("run_code", fields{"code": chart})
	var picture *mcp.ImageContent
	var link *mcp.ResourceLink
	for _, c := range res.Content {
		switch c := c.(type) {
		case *mcp.ImageContent:
			picture = c
		case *mcp.ResourceLink:
			link = c
		}
	}
	if picture == nil || link == nil {
		t.Fatalf("the result has %d parts: %s, %v", len(res.Content), textOf(res), out)
	}
	if drawn, err := png.Decode(bytes.NewReader(picture.Data)); err != nil || drawn.Bounds().Dx() != 64 || picture.MIMEType != "image/png" {
		t.Errorf("%s: %v", picture.MIMEType, err)
	}
	linked, err := http.Get(link.URI)
	if err != nil {
		t.Fatal(err)
	}
	defer linked.Body.Close()
	if body, err := io.ReadAll(linked.Body); err != nil || string(body) != "a,b\n" {
		t.Errorf("%s has %q, %v", link.URI, body, err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestAModelKeepsVariablesFilesAndProcesses(t *testing.T) {
	t.Parallel()
	m := newModel(t, testkit.Server(t).Client, "state")
	m.call("run_code", fields{"code": "x = 40"})
	if _, res := m.call("run_code", fields{"code": "x + 2"}); textOf(res) != "42" {
		t.Errorf("x + 2 is %q", textOf(res))
	}
	if out, _ := m.call("run_code", fields{"code": "raise ValueError('no')"}); out["ok"] != false || !strings.Contains(fmt.Sprint(out["error"]), "ValueError") {
		t.Errorf("%v", out)
	}
	m.call("write_file", fields{"path": "notes/a.txt", "content": "one\ntwo\n"})
	if out, _ := m.call("run_command", fields{"command": "cat notes/a.txt; echo err >&2; exit 3"}); out["stdout"] != "one\ntwo\n" || out["stderr"] != "err\n" || out["exit_code"] != 3.0 {
		t.Errorf("%v", out)
	}
	m.call("start_process", fields{"command": "echo up; exec sleep 1000", "name": "svc"})
	if out, _ := m.call("process_output", fields{"process_id": "svc", "wait_seconds": 60}); out["stdout"] != "up\n" || out["status"] != "running" {
		t.Errorf("%v", out)
	}
	if out, _ := m.call("stop_process", fields{"process_id": "svc"}); out["status"] != "exited" || out["signal"] != "TERM" {
		t.Errorf("%v", out)
	}
}

func TestAModelsCallsThatRaceShareOneSandbox(t *testing.T) {
	t.Parallel()
	c := testkit.Server(t).Client
	m := newModel(t, c, "race")
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			res, err := m.session.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_command", Arguments: fields{"command": "true"}})
			if err != nil || res.IsError {
				t.Errorf("%v %s", err, textOf(res))
				return
			}
			structured, _ := res.StructuredContent.(map[string]any)
			ids[i] = fmt.Sprint(structured["sandbox_id"])
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id == "" || id != ids[0] {
			t.Fatalf("the calls used %v", ids)
		}
	}
}

func TestACallThatAModelCancelsKillsItsCommand(t *testing.T) {
	t.Parallel()
	m := newModel(t, testkit.Server(t).Client, "cancel")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := m.session.CallTool(ctx, &mcp.CallToolParams{
			Name: "run_command", Arguments: fields{"command": "sleep 1234 & echo begun; wait"}, Meta: mcp.Meta{"progressToken": "p"},
		})
		ended <- err
	}()
	for message := ""; !strings.Contains(message, "begun"); { // what is slow to begin is told of as well
		select {
		case message = <-m.progress:
		case err := <-ended:
			t.Fatalf("the call ended: %v", err)
		}
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a canceled call succeeded")
	}
	testkit.Eventually(t, time.Minute, "the command is killed with what it started", func() error {
		out, _ := m.call("run_command", fields{"command": "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null | grep -c '^sleep 123[4]'"})
		if out["stdout"] != "0\n" {
			return fmt.Errorf("%v sleep on", out["stdout"])
		}
		return nil
	})
}

func TestAModelCannotReachAnotherProject(t *testing.T) {
	t.Parallel()
	mine := box(t)
	m := newModel(t, testkit.Server(t).NewTenant(t).Key(t, time.Time{}, "sandboxes:read", "sandboxes:write", "exec", "files"), "theirs")
	for _, tool := range []string{"get_sandbox", "close_sandbox", "run_command", "run_code", "list_files"} {
		arguments := fields{"sandbox_id": mine.ID}
		switch tool {
		case "run_command":
			arguments["command"] = "id"
		case "run_code":
			arguments["code"] = "1"
		}
		res, err := m.session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
		if err != nil || !res.IsError || res.Meta["cay/reason"] != "not_found" {
			t.Errorf("%s: %v %s", tool, err, textOf(res))
		}
	}
	if out, _ := m.call("list_sandboxes", nil); strings.Contains(fmt.Sprint(out), mine.ID) {
		t.Error("the list shows another project's sandbox")
	}
}

func TestTheMetricsCountCallsOfTools(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	m := newModel(t, inst.Client, "metrics")
	m.call("list_sandboxes", nil)
	resp, err := inst.Do(t.Context(), "GET", "/metrics", nil)
	if err != nil || !strings.Contains(string(resp.Body), `cay_mcp_calls_total{result="ok",tool="list_sandboxes"}`) {
		t.Errorf("%v: the calls of list_sandboxes are not counted", err)
	}
}
