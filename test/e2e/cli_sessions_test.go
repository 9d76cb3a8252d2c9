package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

func TestTheCommandLineKeepsFilesInSessions(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t) // volumes are mounted
	want := wanting(t)
	ses := strings.TrimSpace(want(0, "", "session", "create", "--name", "cli-files", "--disk", "64m"))
	t.Cleanup(func() { want(0, "", "session", "rm", "--force", ses) })
	if out := want(0, "", "session", "ls"); !strings.Contains(out, "cli-files") || !strings.Contains(out, "64M") {
		t.Errorf("ls: %q", out)
	}

	// Without a sandbox of one's own.
	from := filepath.Join(t.TempDir(), "from")
	if err := os.MkdirAll(filepath.Join(from, "a", "empty"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "a", "not-utf8-\xff"), []byte("x"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "run"), []byte("#!/bin/sh\necho ran\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("run", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	want(0, "", "cp", from, ses+":there")
	want(0, "hello", "session", "files", "put", "-", "cli-files:note")
	if out := want(0, "", "session", "files", "ls", "cli-files"); !strings.Contains(out, "note") || !strings.Contains(out, "there") {
		t.Errorf("files ls: %q", out)
	}

	// From one job to the next, and to a sandbox.
	if out := want(0, "", "job", "run", "--session", "cli-files", "-l", "bash", "-c", "cat note; pwd; ./there/run; echo made > made"); out != "hello/session\nran\n" {
		t.Errorf("a job in it: %q", out)
	}
	if out := want(0, "", "job", "run", "--session", ses, "-c", "print(open('/session/made').read(), end='')"); out != "made\n" {
		t.Errorf("the next job: %q", out)
	}
	testkit.Eventually(t, time.Minute, "the job's sandbox is gone, and one of ours has the session", func() error {
		if out, errs, code := cli(t, "", "run", "--session", "cli-files", "--", "cat", "/session/made"); out != "made\n" || code != 0 {
			return fmt.Errorf("code %d, %q, %q", code, out, errs)
		}
		return nil
	})

	// And out again.
	to := filepath.Join(t.TempDir(), "to")
	want(0, "", "cp", ses+":there", to)
	if out, err := exec.Command("diff", "-r", "--no-dereference", from, to).CombinedOutput(); err != nil {
		t.Errorf("there and back: %v\n%s", err, out)
	}
	if out := want(0, "", "session", "files", "get", "cli-files:made", "-"); out != "made\n" {
		t.Errorf("files get: %q", out)
	}
	want(0, "", "session", "files", "rm", "-r", "cli-files:there", "cli-files:note")
	if out := want(0, "", "session", "files", "ls", "cli-files"); strings.Contains(out, "there") || !strings.Contains(out, "made") {
		t.Errorf("after rm: %q", out)
	}
	archive := filepath.Join(t.TempDir(), "all.tar.zst")
	want(0, "", "session", "export", "cli-files", archive)
	second := strings.TrimSpace(want(0, "", "session", "create"))
	want(0, "", "session", "import", second, archive)
	if out := want(0, "", "session", "files", "get", second+":made", "-"); out != "made\n" {
		t.Errorf("in the copy: %q", out)
	}
	want(0, "", "session", "rm", "--force", second)
	if out := want(0, "", "session", "inspect", second); !strings.Contains(out, "deleted") {
		t.Errorf("what was removed: %q", out)
	}
	want(125, "", "session", "files", "ls", second)
}

func TestASessionInUseIsHeldUntilForced(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	want := wanting(t)
	ses := strings.TrimSpace(want(0, "", "session", "create"))
	sbx := strings.TrimSpace(want(0, "", "create", "--session", ses))
	if _, errs, code := cli(t, "", "create", "--session", ses); code != 125 || !strings.Contains(errs, sbx) {
		t.Errorf("a second sandbox: code %d, %q", code, errs)
	}
	if _, errs, code := cli(t, "", "session", "rm", ses); code != 125 || !strings.Contains(errs, "--force") {
		t.Errorf("rm: code %d, %q", code, errs)
	}
	want(0, "", "exec", sbx, "sh", "-c", "echo kept > /session/x")
	if out := want(0, "", "ls", ses+":x"); !strings.Contains(out, "x") {
		t.Errorf("its files while it is used: %q", out)
	}
	if out := want(0, "", "session", "rm", "--force", ses); out != ses+"\n" {
		t.Errorf("rm --force: %q", out)
	}
	if out := want(0, "", "inspect", sbx); !strings.Contains(out, "TERMINATED") {
		t.Errorf("the sandbox that used it: %q", out)
	}
}
