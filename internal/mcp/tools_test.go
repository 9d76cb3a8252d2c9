package mcp_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client/clienttest"
)

var allTools = []string{
	"close_sandbox", "create_sandbox", "create_session", "delete_file", "download_file", "get_port_url", "get_sandbox", "list_files", "list_sandboxes",
	"list_sessions", "move_file", "process_output", "read_file", "run_code", "run_command", "start_process", "stop_process", "upload_file", "write_file",
}

func TestEveryToolSaysWhatItTakesAndGives(t *testing.T) {
	r := newRig(t)
	list, err := r.session.ListTools(within(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
		in, out := schema(t, tool.InputSchema), schema(t, tool.OutputSchema)
		if len(tool.Description) < 30 || tool.Title == "" || tool.Annotations == nil || tool.Annotations.DestructiveHint == nil || tool.Annotations.OpenWorldHint == nil {
			t.Errorf("%s lacks a description, a title or hints", tool.Name)
		}
		if in.AdditionalProperties == nil || in.AdditionalProperties.Not == nil {
			t.Errorf("%s takes unknown arguments", tool.Name)
		}
		if len(out.Properties) == 0 {
			t.Errorf("%s does not say what it answers", tool.Name)
		}
		for name, p := range in.Properties {
			if p.Description == "" || len(p.Types) > 0 {
				t.Errorf("%s.%s: description %q, types %v", tool.Name, name, p.Description, p.Types)
			}
			if (p.Type == "number" || p.Type == "integer") && (p.Maximum == nil || p.Minimum == nil) {
				t.Errorf("%s.%s is a number without bounds", tool.Name, name)
			}
			if p.Type == "string" && p.MaxLength == nil && len(p.Enum) == 0 {
				t.Errorf("%s.%s is a text without a bound", tool.Name, name)
			}
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, allTools) {
		t.Errorf("the tools are %v", names)
	}
}

func schema(t *testing.T, v any) *jsonschema.Schema {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	s := new(jsonschema.Schema)
	if err := json.Unmarshal(data, s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatIsNotAToolIsNotOffered(t *testing.T) {
	r := newRig(t)
	if _, err := r.session.ListPrompts(within(t), nil); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("prompts/list: %v", err)
	}
	if c := r.session.InitializeResult().Capabilities; c.Tools == nil || c.Logging != nil || c.Prompts != nil || c.Resources != nil {
		t.Errorf("capabilities %+v", c)
	}
}

type ended struct {
	SandboxID       string `json:"sandbox_id"`
	ProcessID       string `json:"process_id"`
	ExitCode        int    `json:"exit_code"`
	OK              bool   `json:"ok"`
	Stdout          string `json:"stdout"`
	Stderr          string `json:"stderr"`
	StdoutBytes     int64  `json:"stdout_bytes"`
	StdoutTruncated bool   `json:"stdout_truncated"`
	Lossy           bool   `json:"lossy"`
}

func TestACommandThatFailsIsAResult(t *testing.T) {
	r := newRig(t)
	res := r.call("run_command", args{"command": "exit 3"})
	if e := structured[ended](t, res); e.ExitCode != 3 || e.OK || e.ProcessID == "" || !strings.Contains(textOf(res), "exit code 3") {
		t.Errorf("%+v, %s", e, textOf(res))
	}
	if got := r.seen(); !slices.Equal(got, []string{"run_command ok"}) {
		t.Errorf("observed %v", got)
	}
}

func TestOfLongOutputHeadAndTailAreShown(t *testing.T) {
	r := newRig(t)
	res := r.call("run_command", args{"command": "seq 100000"})
	e := structured[ended](t, res)
	if !strings.HasPrefix(e.Stdout, "1\n2\n") || !strings.HasSuffix(e.Stdout, "99999\n100000\n") || !strings.Contains(e.Stdout, "bytes left out") || !e.StdoutTruncated {
		t.Errorf("stdout %.40q … %q", e.Stdout, e.Stdout[max(0, len(e.Stdout)-40):])
	}
	if len(e.Stdout) > 17<<10 || e.StdoutBytes != 588895 {
		t.Errorf("%d bytes of %d are shown", len(e.Stdout), e.StdoutBytes)
	}
	if text := textOf(res); !strings.Contains(text, "process_output with process_id "+e.ProcessID) {
		t.Errorf("the text does not say where the rest is: %s", text[len(text)-200:])
	}
}

func TestOutputThatIsNotTextDoesNotBreakTheResult(t *testing.T) {
	r := newRig(t)
	r.api.Handle("hostile", func(_ context.Context, p *clienttest.Proc) int {
		p.Stdout.Write([]byte("\x1b]0;title\x07\x1b[2J\x00ok\xff\xfe\r\n" + strings.Repeat("ä", 20000)))
		return 0
	})
	e := structured[ended](t, r.call("run_command", args{"command": "hostile"}))
	if !e.Lossy || !utf8.ValidString(e.Stdout) || !strings.Contains(e.Stdout, "ok\uFFFD") || strings.Count(e.Stdout, "\uFFFD") > 2 {
		t.Errorf("lossy %v, %.60q", e.Lossy, e.Stdout)
	}
}

func TestRacingCallsMakeOneDefaultSandbox(t *testing.T) {
	r := newRig(t)
	for round := range 2 { // the second after the first one's sandbox has ended
		var wg sync.WaitGroup
		ids := make([]string, 16)
		for i := range ids {
			wg.Go(func() { ids[i] = structured[ended](t, r.call("run_command", args{"command": "true"})).SandboxID })
		}
		wg.Wait()
		slices.Sort(ids)
		if made := r.api.Sandboxes(); len(slices.Compact(ids)) != 1 || len(made) != 1 {
			t.Fatalf("round %d: calls used %v, there are %v", round, slices.Compact(ids), made)
		}
		r.call("close_sandbox", nil)
	}
	r.call("close_sandbox", nil) // there is none: no error
}

func TestVariablesStayUnlessTheCallIsFresh(t *testing.T) {
	r := newRig(t)
	r.call("run_code", args{"code": "x = 40"})
	if text := textOf(r.call("run_code", args{"code": "x + 2"})); text != "42" {
		t.Errorf("x + 2 is %q", text)
	}
	r.call("run_code", args{"code": "print(1)", "fresh": true})
	res := r.call("run_code", args{"code": "raise oops"})
	out := structured[struct {
		Error *struct{ Value, Traceback string }
	}](t, res)
	if out.Error == nil || !strings.Contains(out.Error.Value, "oops") || !strings.Contains(textOf(res), "oops") {
		t.Errorf("%+v: %s", out.Error, textOf(res))
	}
	r.refused("run_code", args{"code": "1", "stdin": "x"}, "invalid_request")
}

// onePixel is a PNG.
const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="

func TestPicturesComeAsPictures(t *testing.T) {
	r := newRig(t)
	pixel, _ := base64.StdEncoding.DecodeString(onePixel)
	files := map[string]string{"/output/a.svg": `<svg xmlns="http://www.w3.org/2000/svg"/>`, "/output/lie.png": "no picture", "/output/t.csv": "a,b"}
	for i := range 9 {
		files[fmt.Sprintf("/output/%d.png", i)] = string(pixel)
	}
	r.api.HandleLanguage("python", func(context.Context, *clienttest.Proc, string, map[string]string) clienttest.Outcome {
		return clienttest.Outcome{Files: files, Shown: map[string]any{"image/png": onePixel}}
	})
	res := r.call("run_code", args{"code": "draw()"})
	pictures, drawings := 0, 0
	for _, c := range res.Content {
		switch c := c.(type) {
		case *sdk.ImageContent:
			pictures++
			if c.MIMEType != "image/png" || string(c.Data) != string(pixel) {
				t.Errorf("%s of %d bytes", c.MIMEType, len(c.Data))
			}
		case *sdk.EmbeddedResource:
			drawings++
		}
	}
	if pictures+drawings != 8 {
		t.Errorf("%d pictures and %d drawings are shown, want 8 in all", pictures, drawings)
	}
	if !strings.Contains(textOf(res), "/output/lie.png") {
		t.Errorf("what is not shown is not named: %s", textOf(res))
	}
}

func TestFaultsSayTheirReasonAndWhatToDo(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		tool   string
		args   args
		reason string
		says   string
	}{
		{"run_command", args{"command": "true", "bogus": 1}, "invalid_request", "bogus"},
		{"run_command", args{"command": ""}, "invalid_request", "command"},
		{"run_command", nil, "invalid_request", "command"},
		{"run_command", args{"command": "true", "timeout_seconds": 1e9}, "invalid_request", "3600"},
		{"run_command", args{"command": "true", "sandbox_id": "sbx_nope"}, "not_found", "list_sandboxes"},
		{"read_file", args{"path": "/workspace/nope"}, "not_found", "list_files"},
		{"read_file", args{"path": "x", "start_line": 5, "end_line": 4}, "invalid_request", "end_line"},
		{"write_file", args{"path": "x", "content": "a", "content_base64": "YQ=="}, "invalid_request", "not both"},
		{"write_file", args{"path": "x", "content_base64": "?"}, "invalid_request", "base64"},
		{"write_file", args{"path": "x", "mode": "9"}, "invalid_request", "octal"},
		{"create_sandbox", args{"metadata": args{"cay.mcp": "x"}}, "invalid_request", "label"},
		{"get_port_url", args{"port": 70000}, "invalid_request", "65535"},
	} {
		if text := r.refused(c.tool, c.args, c.reason); !strings.Contains(text, c.says) {
			t.Errorf("%s %v does not speak of %q: %s", c.tool, c.args, c.says, text)
		}
	}
	r.api.Refuse("GET", "/sandboxes", 401, "unauthorized", 0)
	if text := r.refused("list_sandboxes", nil, "unauthorized"); strings.Contains(text, clienttest.Key) || !strings.Contains(text, "key") {
		t.Error(text)
	}
}

func TestACallThatIsCanceledKillsItsCommand(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error, 1)
	go func() {
		_, err := r.session.CallTool(ctx, &sdk.CallToolParams{
			Name: "run_command", Arguments: args{"command": "block"}, Meta: sdk.Meta{"progressToken": "t"},
		})
		ended <- err
	}()
	if p := <-r.progress; !strings.Contains(p.Message, "blocking") || p.ProgressToken != "t" {
		t.Errorf("progress %+v", p)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("the canceled call succeeded")
	}
	eventually(t, "the kill", func() bool { return r.processes()["block"] == "exited" })
	eventually(t, "the end of the call", func() bool { return slices.Contains(r.seen(), "run_command canceled") })
}

// processes are those of all sandboxes: status by command.
func (r *rig) processes() map[string]string {
	out := map[string]string{}
	for _, id := range r.api.Sandboxes() {
		list, err := r.client.Processes(id).List(within(r.t), false)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, p := range list {
			out[strings.Join(p.Command, " ")] = p.Status
		}
	}
	return out
}

func TestProcessesAreStartedReadAndStopped(t *testing.T) {
	r := newRig(t)
	r.call("start_process", args{"command": "trap", "name": "svc"})
	out := structured[struct {
		Stdout     string
		NextOffset int64 `json:"next_offset"`
		Status     string
		Complete   bool
	}](t, r.call("process_output", args{"process_id": "svc", "wait_seconds": 60}))
	if out.Stdout != "trapping\n" || out.NextOffset != 9 || out.Status != "running" || out.Complete {
		t.Errorf("%+v", out)
	}
	again := r.call("process_output", args{"process_id": "svc", "offset": 9, "wait_seconds": 0.05})
	if text := textOf(again); !strings.Contains(text, "go on with offset 9") {
		t.Error(text)
	}
	stopped := structured[struct {
		Status   string
		ExitCode *int `json:"exit_code"`
	}](t, r.call("stop_process", args{"process_id": "svc", "grace_seconds": 0.1}))
	if stopped.Status != "exited" || stopped.ExitCode == nil || *stopped.ExitCode != 137 {
		t.Errorf("%+v", stopped)
	}
}

func TestFilesAreWrittenReadMovedAndDeleted(t *testing.T) {
	r := newRig(t)
	type file struct {
		Content   string
		Encoding  string
		StartLine int64 `json:"start_line"`
		EndLine   int64 `json:"end_line"`
		More      bool
		Lossy     bool
	}
	read := func(a args) file { return structured[file](t, r.call("read_file", a)) }
	r.call("write_file", args{"path": "a.txt", "content": "one\ntwö\nthree"})
	if f := read(args{"path": "/workspace/a.txt", "start_line": 2, "end_line": 2}); f != (file{"twö\n", "text", 2, 2, true, false}) {
		t.Errorf("%+v", f)
	}
	if f := read(args{"path": "a.txt", "max_bytes": 6}); f != (file{"one\n", "text", 1, 1, true, false}) {
		t.Errorf("%+v", f)
	}
	if f := read(args{"path": "a.txt", "start_line": 2, "max_bytes": 3}); f != (file{"tw", "text", 2, 2, true, false}) {
		t.Errorf("%+v", f)
	}
	if f := read(args{"path": "a.txt", "start_line": 9}); f != (file{Encoding: "text"}) {
		t.Errorf("%+v", f)
	}
	r.call("upload_file", args{"path": "b.bin", "data_base64": "AP8B"})
	if f := read(args{"path": "b.bin"}); f.Content != "AP8B" || f.Encoding != "base64" {
		t.Errorf("%+v", f)
	}
	r.refused("read_file", args{"path": "b.bin", "max_bytes": 2}, "payload_too_large")
	r.call("write_file", args{"path": "p.png", "content_base64": onePixel})
	if res := r.call("read_file", args{"path": "p.png"}); len(res.Content) != 2 {
		t.Errorf("a picture comes as %d parts", len(res.Content))
	}
	r.call("move_file", args{"from": "a.txt", "to": "c.txt"})
	if text := textOf(r.call("list_files", nil)); strings.Contains(text, "a.txt") || !strings.Contains(text, "/workspace/c.txt") {
		t.Error(text)
	}
	r.call("delete_file", args{"path": "c.txt"})
	r.refused("read_file", args{"path": "c.txt"}, "not_found")
	up := structured[struct{ URL, Command string }](t, r.call("upload_file", args{"path": "d.txt"}))
	if up.URL == "" || !strings.Contains(up.Command, "'"+up.URL+"'") {
		t.Errorf("%+v", up)
	}
	if res := r.call("download_file", args{"path": "b.bin"}); string(res.Content[1].(*sdk.EmbeddedResource).Resource.Blob) != "\x00\xff\x01" {
		t.Errorf("%+v", res.Content[1])
	}
	if res := r.call("download_file", args{"path": "b.bin", "url_only": true}); res.Content[1].(*sdk.ResourceLink).URI == "" {
		t.Errorf("%+v", res.Content[1])
	}
}

func TestSandboxesSessionsAndPorts(t *testing.T) {
	r := newRig(t)
	session := structured[struct {
		SessionID string `json:"session_id"`
	}](t, r.call("create_session", args{"name": "thesis"})).SessionID
	if text := textOf(r.call("list_sessions", args{"name": "thesis"})); !strings.Contains(text, session) {
		t.Error(text)
	}
	id := structured[ended](t, r.call("create_sandbox", args{"session_id": session, "metadata": args{"name": "mine"}})).SandboxID
	if text := textOf(r.call("get_sandbox", args{"sandbox_id": id})); !strings.Contains(text, "named mine") || strings.Contains(text, "default") {
		t.Error(text)
	}
	if text := textOf(r.call("get_sandbox", nil)); !strings.Contains(text, "the default sandbox") {
		t.Error(text)
	}
	if text := textOf(r.call("list_sandboxes", args{"limit": 1})); !strings.Contains(text, "There are more") {
		t.Error(text)
	}
	port := structured[struct {
		URL, Token string
		BrowserURL string `json:"browser_url"`
	}](t, r.call("get_port_url", args{"port": 8000, "sandbox_id": id}))
	if port.URL == "" || port.Token == "" || !strings.Contains(port.BrowserURL, port.Token) {
		t.Errorf("%+v", port)
	}
	r.call("close_sandbox", args{"sandbox_id": id})
	if slices.Contains(r.api.Sandboxes(), id) {
		t.Error("the sandbox is still there")
	}
}
