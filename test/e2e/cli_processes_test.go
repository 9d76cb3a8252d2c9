package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

// box makes a sandbox on the shared server for one test, and answers a way to run cay that checks its exit code.
func box(t *testing.T) (id string, want func(code int, stdin string, args ...string) string) {
	t.Helper()
	want = wanting(t)
	id = strings.TrimSpace(want(0, "", "create"))
	t.Cleanup(func() { want(0, "", "rm", id) })
	return id, want
}

func TestTheCommandLineStartsFeedsAndEndsProcesses(t *testing.T) {
	t.Parallel()
	id, want := box(t)
	prc := strings.TrimSpace(want(0, "", "process", "start", "--name", "upper", "--stdin", id, "tr", "a-z", "A-Z"))
	if !strings.HasPrefix(prc, "prc_") {
		t.Fatalf("start printed %q", prc)
	}
	if out := want(0, "one\n", "process", "stdin", id, "upper"); out != "4\n" {
		t.Errorf("stdin: %q", out)
	}
	if out := want(0, "one\ntwo\n", "process", "stdin", "--offset", "0", "--close", id, "upper"); out != "8\n" {
		t.Errorf("stdin again from the beginning: %q", out)
	}
	if out := want(0, "", "process", "wait", id, "upper"); out != "0\n" {
		t.Errorf("wait: %q", out)
	}
	for _, args := range [][]string{{"logs", id, prc}, {"process", "logs", id, "upper"}, {"logs", "-f", id, prc}, {"process", "attach", id, prc}} {
		if out := want(0, "", args...); out != "ONE\nTWO\n" {
			t.Errorf("cay %s: %q", strings.Join(args, " "), out)
		}
	}
	want(0, "", "process", "start", "--name", "sleeper", id, "sleep", "1000")
	if out := want(0, "", "process", "ls", "-a", id); !strings.Contains(out, "sleeper") || !strings.Contains(out, "running") {
		t.Errorf("ls -a: %q", out)
	}
	want(0, "", "process", "kill", id, "sleeper")
	var ended struct {
		ExitCode int `json:"exit_code"`
		Signal   string
	}
	if err := json.Unmarshal([]byte(want(0, "", "process", "wait", "-o", "json", id, "sleeper")), &ended); err != nil || ended.ExitCode != 143 || ended.Signal != "TERM" {
		t.Errorf("killed: %+v, %v", ended, err)
	}
	want(127, "", "process", "start", id, "nosuchcmd")
	want(125, "", "process", "wait", id, "nosuchprocess")
}

func TestTheCommandLineCopiesFoldersAsTheyAre(t *testing.T) {
	t.Parallel()
	id, want := box(t)
	from := filepath.Join(t.TempDir(), "from")
	if err := os.MkdirAll(filepath.Join(from, "a", "empty"), 0o750); err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		if err := os.WriteFile(filepath.Join(from, "a", fmt.Sprintf("f%d ü\n", i)), bytes.Repeat([]byte{byte(i)}, i), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(from, "a", "not-utf8-\xff"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a/f1 ü\n", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	want(0, "", "cp", from, id+":/workspace/there")
	if out := want(0, "", "exec", id, "sh", "-c", "find /workspace/there -type f -user sandbox -printf x | wc -c"); strings.TrimSpace(out) != "501" {
		t.Errorf("files that are the sandbox user's: %q", out)
	}
	to := filepath.Join(t.TempDir(), "to")
	want(0, "", "cp", id+":/workspace/there", to)
	if out, err := exec.Command("diff", "-r", "--no-dereference", from, to).CombinedOutput(); err != nil {
		t.Errorf("there and back: %v\n%s", err, out)
	}
	archived := want(0, "", "cp", id+":/workspace/there", "-")
	tar := exec.Command("tar", "-t")
	tar.Stdin = strings.NewReader(archived)
	if out, err := tar.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("a/empty/")) {
		t.Errorf("as an archive: %v\n%.500s", err, out)
	}
}

func TestTheCommandLineTellsWhatHappenedAndSignsFiles(t *testing.T) {
	t.Parallel()
	id, want := box(t)
	want(0, "", "pause", id)
	want(0, "", "resume", id)
	if out := want(0, "", "events", id); strings.Count(out, "\n") != 3 || !strings.Contains(out, "from=READY to=PAUSED") {
		t.Errorf("events: %q", out)
	}
	want(0, "hello", "cp", "-", id+":note")
	res, err := http.Get(strings.TrimSpace(want(0, "", "sign", id+":note")))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK || string(body) != "hello" {
		t.Errorf("the signed URL answered %d %q, %v", res.StatusCode, body, err)
	}
	put := strings.TrimSpace(want(0, "", "sign", "--put", "--max-size", "4b", id+":note"))
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, put, strings.NewReader("too long"))
	if err != nil {
		t.Fatal(err)
	}
	refused, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	refused.Body.Close()
	if refused.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("more than was signed for: %d", refused.StatusCode)
	}
	if now, err := testkit.Server(t).GetSandbox(t.Context(), id); err != nil || now.Status != "READY" {
		t.Errorf("afterwards it is %s, %v", now.Status, err)
	}
}
