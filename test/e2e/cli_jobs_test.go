package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// wanting is a way to run cay against the shared server that checks its exit code and answers what it printed.
func wanting(t *testing.T) func(code int, stdin string, args ...string) string {
	return func(code int, stdin string, args ...string) string {
		t.Helper()
		out, errs, got := cli(t, stdin, args...)
		if got != code {
			t.Fatalf("cay %s: code %d, want %d; stdout %q, stderr %q", strings.Join(args, " "), got, code, out, errs)
		}
		return out
	}
}

func TestJobRunIsLikeTheLocalProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "script.js")
	if err := os.WriteFile(file, []byte("console.log('from', 'js')"), 0o644); err != nil {
		t.Fatal(err)
	}
	input := filepath.Join(dir, "input")
	if err := os.WriteFile(input, []byte("b\xff\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args     []string
		stdin    string
		out, err string // "*": something
		code     int
	}{
		"streams apart":          {[]string{"-c", "import sys; print('out'); print('err', file=sys.stderr)"}, "", "out\n", "err\n", 0},
		"the exit code":          {[]string{"-c", "raise SystemExit(42)"}, "", "", "", 42},
		"a signal":               {[]string{"-l", "bash", "-c", "kill -TERM $$"}, "", "", "", 143},
		"from a file":            {[]string{file}, "", "from js\n", "", 0},
		"from standard input":    {[]string{"-"}, "print(6 * 7)", "42\n", "", 0},
		"with input":             {[]string{"-l", "bash", "--stdin", input, "-c", "cat"}, "", "b\xff\n", "", 0},
		"without input":          {[]string{"-l", "bash", "-c", "cat; pwd"}, "", "/workspace\n", "", 0},
		"with an environment":    {[]string{"-l", "bash", "-e", "A=b=c", "-c", "echo $A"}, "", "b=c\n", "", 0},
		"its timeout":            {[]string{"--timeout", "1s", "-l", "bash", "-c", "echo so far; sleep 100"}, "", "so far\n", "cay: the program was ended at its timeout of 1s\n", 137},
		"a language there isn't": {[]string{"-l", "cobol", "-c", "1"}, "", "", "*", 125},
		"two programs":           {[]string{file, "-c", "1"}, "", "", "*", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, code := cli(t, c.stdin, append([]string{"job", "run"}, c.args...)...)
			if out != c.out || code != c.code || c.err != "*" && errs != c.err || c.err == "*" && errs == "" {
				t.Errorf("stdout %q, stderr %q, code %d; want %q, %q, %d", out, errs, code, c.out, c.err, c.code)
			}
		})
	}
}

func TestJobsAreSubmittedFollowedAndCanceled(t *testing.T) {
	t.Parallel()
	want := wanting(t)
	job := strings.TrimSpace(want(0, "", "job", "submit", "--metadata", "test=cli", "-l", "bash", "-c", "seq 3; echo w >&2; echo kept > /output/a.txt; exit 3"))
	if !strings.HasPrefix(job, "job_") {
		t.Fatalf("submit printed %q", job)
	}
	if out, errs, code := cli(t, "", "job", "logs", "-f", job); out != "1\n2\n3\n" || errs != "w\n" || code != 0 {
		t.Errorf("logs -f: %q, %q, code %d", out, errs, code)
	}
	dir := filepath.Join(t.TempDir(), "got")
	if out := want(0, "", "job", "wait", "--save", dir, job); out != "failed\n" {
		t.Errorf("wait: %q", out)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a.txt")); err != nil || string(got) != "kept\n" {
		t.Errorf("saved %q, %v", got, err)
	}
	if out := want(0, "", "job", "logs", job); out != "1\n2\n3\n" {
		t.Errorf("logs afterwards: %q", out)
	}
	var seen struct {
		Status   string
		ExitCode int `json:"exit_code"`
	}
	if err := json.Unmarshal([]byte(want(0, "", "job", "inspect", "-o", "json", job)), &seen); err != nil || seen.Status != "failed" || seen.ExitCode != 3 {
		t.Errorf("inspect: %+v, %v", seen, err)
	}
	if out := want(0, "", "job", "ls", "-a", "--metadata", "test=cli"); !strings.Contains(out, job) || !strings.Contains(out, "failed (3)") {
		t.Errorf("ls: %q", out)
	}

	long := strings.TrimSpace(want(0, "", "job", "submit", "-l", "bash", "-c", "echo began; sleep 1000"))
	testkit.Eventually(t, time.Minute, "it has begun", func() error {
		if out := want(0, "", "job", "logs", long); out != "began\n" {
			return fmt.Errorf("logs of one that runs: %q", out)
		}
		return nil
	})
	if out := want(0, "", "job", "cancel", long); out != long+"\n" {
		t.Errorf("cancel: %q", out)
	}
	if out := want(0, "", "job", "wait", long); out != "canceled\n" {
		t.Errorf("wait for what was canceled: %q", out)
	}
	if out := want(0, "", "job", "logs", long); out != "began\n" {
		t.Errorf("what it wrote: %q", out)
	}
	want(125, "", "job", "inspect", "job_00000000000000000000000000")
}

func TestCtrlCCancelsTheJob(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	cmd := inst.CLI("job", "run", "--metadata", "test=ctrlc", "-l", "bash", "-c", "echo up; sleep 1000")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(out); err != nil || len(rest) > 0 {
		t.Errorf("it printed %q, %v", rest, err)
	}
	_ = cmd.Wait() // its code is looked at below
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Errorf("code %d", code)
	}
	if out := wanting(t)(0, "", "job", "ls", "-a", "--metadata", "test=ctrlc"); !strings.Contains(out, "canceled") {
		t.Errorf("afterwards: %q", out)
	}
}

func TestJobRunSurvivesRestartsOfTheServer(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{})
	const lines = 60
	cmd := inst.CLI("job", "run", "-l", "bash", "-c", fmt.Sprintf("for i in $(seq %d); do echo line $i; sleep .2; done", lines))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(4*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	var got, want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	buf := make([]byte, 1<<10)
	for kills := 0; ; {
		n, err := out.Read(buf)
		got.Write(buf[:n])
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if seen := strings.Count(got.String(), "\n"); kills < 2 && seen >= 5+20*kills {
			kills++
			pid, err := inst.PID(testkit.RoleServer)
			if err != nil {
				t.Fatal(err)
			}
			if err := inst.Kill9(testkit.RoleServer); err != nil {
				t.Fatal(err)
			}
			if err := inst.Restarted(testkit.RoleServer, pid, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.String())
	}
	if got.String() != want.String() {
		t.Errorf("it printed %q", got.String())
	}
}
