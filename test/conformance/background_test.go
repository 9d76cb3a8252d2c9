package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// process is a process as the API describes it.
type process struct {
	ID       string `json:"id"`
	PID      int64  `json:"pid"`
	Status   string `json:"status"`
	ExitCode *int   `json:"exit_code"`
	Reason   string `json:"reason"`
	Detail   string `json:"detail"`
}

type logPage struct {
	NextOffset int64  `json:"next_offset"`
	Size       int64  `json:"size"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	Status     string `json:"status"`
}

func background(t testing.TB, sb *testkit.Sandbox, command any, more ...fields) process {
	t.Helper()
	var p process
	if err := sb.Call("POST", "/processes", fields{"command": command}.With(more...)).Decode(201, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func wait(t testing.TB, sb *testkit.Sandbox, id string) process {
	t.Helper()
	var p process
	if err := sb.Call("GET", "/processes/"+id+"/wait?timeout_seconds=60", nil).Decode(200, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// readLogs pages through all that a process has written, and returns the pages joined.
func readLogs(t testing.TB, sb *testkit.Sandbox, id string, limit int) (stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	for at := int64(0); ; {
		var page logPage
		if err := sb.Call("GET", fmt.Sprintf("/processes/%s/logs?offset=%d&limit=%d", id, at, limit), nil).Decode(200, &page); err != nil {
			t.Fatal(err)
		}
		out.WriteString(page.Stdout)
		errs.WriteString(page.Stderr)
		if page.NextOffset == page.Size && page.Status != "running" {
			return out.String(), errs.String()
		}
		if at == page.NextOffset && page.Status != "running" {
			t.Fatalf("the page at %d of %d leads nowhere", at, page.Size)
		}
		at = page.NextOffset
	}
}

func TestP9ABackgroundProcessIsReadFromAnyOffset(t *testing.T) {
	sb := box(t)
	p := background(t, sb, "for i in $(seq 20); do echo $i; sleep .05; done", fields{"name": "printer"})
	testkit.Eventually(t, time.Minute, "some lines", func() error {
		var page logPage
		if err := sb.Call("GET", "/processes/printer/logs", nil).Decode(200, &page); err != nil || page.Size < 8 {
			return errors.Join(err, fmt.Errorf("%d bytes", page.Size))
		}
		return nil
	})
	stream := sb.AttachStream(t.Context(), p.ID, 4)
	defer stream.Close()
	tr, err := stream.ReadAll()
	if err != nil || tr.Exit == nil || tr.Exit.ExitCode != 0 || !strings.HasPrefix(string(tr.Stdout), "3\n4\n") || !strings.HasSuffix(string(tr.Stdout), "\n20\n") {
		t.Fatalf("%v: %q", err, tr.Stdout)
	}
	if done := wait(t, sb, "printer"); done.ID != p.ID || done.Status != "exited" || done.ExitCode == nil || *done.ExitCode != 0 {
		t.Errorf("got %+v", done)
	}
}

func TestPagesOfOutputJoinToExactlyWhatWasWritten(t *testing.T) {
	sb := box(t)
	p := background(t, sb, `i=0; while [ $i -lt 300 ]; do printf '日本語é😀'; printf 'ü' >&2; i=$((i+1)); done`)
	wait(t, sb, p.ID)
	for _, limit := range []int{9, 64, 1 << 20} {
		stdout, stderr := readLogs(t, sb, p.ID, limit)
		if stdout != strings.Repeat("日本語é😀", 300) || stderr != strings.Repeat("ü", 300) {
			t.Errorf("pages of %d bytes: %d and %d bytes of text", limit, len(stdout), len(stderr))
		}
	}
}

func TestP12ABackgroundProcessOutlivesTheTimeoutOfCommands(t *testing.T) {
	sb := box(t)
	sb.RequireProgram("python3")
	p := background(t, sb, []string{"python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"}, fields{"name": "web"})
	testkit.Eventually(t, time.Minute, "the server answers", func() error {
		if out := sb.X("python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8000/\").status)'"); out.Stdout != "200\n" {
			return fmt.Errorf("%s", out.Stderr)
		}
		return nil
	})
	var now process
	if err := sb.Call("GET", "/processes/web", nil).Decode(200, &now); err != nil || now.ID != p.ID || now.Status != "running" {
		t.Fatalf("%v: %+v", err, now)
	}
	if resp := sb.Call("POST", "/processes", fields{"command": "sleep 1", "name": "web"}); resp.Problem().Reason != "already_exists" {
		t.Errorf("the name again: %v", resp)
	}
	if resp := sb.Call("POST", "/processes/web/signal", fields{"signal": "KILL", "tree": true}); resp.Status != 204 {
		t.Fatal(resp)
	}
	if done := wait(t, sb, p.ID); done.Status != "exited" || done.Reason != "killed" {
		t.Errorf("got %+v", done)
	}
}

func TestP15AStartThatFailsSaysSo(t *testing.T) {
	sb := box(t)
	p := background(t, sb, []string{"/nope"})
	if p.Status != "failed" || p.ExitCode == nil || *p.ExitCode != 127 || p.Reason != "start_failed" || p.Detail == "" {
		t.Errorf("got %+v", p)
	}
	if resp := sb.Call("POST", "/processes", fields{"command": "true", "cwd": "/nope"}); resp.Status != 422 || resp.Problem().Field != "cwd" {
		t.Errorf("a directory that is not there: %v", resp)
	}
}

func TestStdinIsWrittenOnceHoweverOftenItIsSent(t *testing.T) {
	sb := box(t)
	p := background(t, sb, "cat", fields{"stdin_open": true})
	stdin := func(query url.Values, data string) (int64, testkit.Response) {
		resp := sb.Call("POST", "/processes/"+p.ID+"/stdin?"+query.Encode(), []byte(data), "Content-Type", "application/octet-stream")
		var at struct {
			Offset int64 `json:"stdin_offset"`
		}
		_ = resp.Decode(200, &at)
		return at.Offset, resp
	}
	large := strings.Repeat("0123456789", 100_000)
	for range 2 {
		if at, resp := stdin(url.Values{"offset": {"0"}}, large); at != int64(len(large)) {
			t.Fatal(resp)
		}
	}
	if _, resp := stdin(url.Values{"offset": {"2000000"}}, "x"); resp.Status != 409 {
		t.Errorf("beyond the end: %v", resp)
	}
	if at, resp := stdin(url.Values{"close": {"true"}}, "end"); at != int64(len(large)+3) {
		t.Fatal(resp)
	}
	wait(t, sb, p.ID)
	if out, _ := readLogs(t, sb, p.ID, 1<<20); out != large+"end" {
		t.Errorf("%d bytes came back", len(out))
	}
	if _, resp := stdin(nil, "x"); resp.Status != 409 {
		t.Errorf("after the end: %v", resp)
	}
}

func TestATerminalInTheBackgroundIsResized(t *testing.T) {
	sb := box(t)
	p := background(t, sb, "read line; stty size", fields{"tty": true, "cols": 100, "rows": 30})
	if resp := sb.Call("POST", "/processes/"+p.ID+"/resize", fields{"cols": 33, "rows": 22}); resp.Status != 204 {
		t.Fatal(resp)
	}
	if resp := sb.Call("POST", "/processes/"+p.ID+"/stdin", []byte("go\n"), "Content-Type", "application/octet-stream"); resp.Status != 200 {
		t.Fatal(resp)
	}
	wait(t, sb, p.ID)
	if out, _ := readLogs(t, sb, p.ID, 1<<20); !strings.Contains(out, "22 33") {
		t.Errorf("got %q", out)
	}
}

func TestStdinByRequestAndByWebSocketBothArrive(t *testing.T) {
	sb := box(t)
	p := background(t, sb, "cat", fields{"stdin_open": true})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ws := sb.Dial(ctx, "/exec?process_id="+p.ID)
	defer ws.Drop()
	want := ""
	for i, part := range []string{"one ", "two ", "three "} {
		if i == 1 {
			if resp := sb.Call("POST", "/processes/"+p.ID+"/stdin", []byte(part), "Content-Type", "application/octet-stream"); resp.Status != 200 {
				t.Fatal(resp)
			}
		} else if err := ws.Stdin(ctx, []byte(part)); err != nil {
			t.Fatal(err)
		}
		want += part
		testkit.Eventually(t, time.Minute, "it comes back", func() error {
			var page logPage
			if err := sb.Call("GET", "/processes/"+p.ID+"/logs", nil).Decode(200, &page); err != nil || page.Stdout != want {
				return errors.Join(err, fmt.Errorf("%q", page.Stdout))
			}
			return nil
		})
	}
}
