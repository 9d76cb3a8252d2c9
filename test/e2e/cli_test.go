package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/cayhq/cay/internal/testkit"
)

// cli runs the command line against the shared server.
func cli(t *testing.T, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := testkit.Server(t).CLI(args...)
	return run(t, cmd, stdin)
}

func run(t *testing.T, cmd *exec.Cmd, stdin string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Stdin = &out, &errs, strings.NewReader(stdin)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	err := cmd.Wait()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestRunIsLikeTheLocalCommand(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args     []string
		stdin    string
		out, err string
		code     int
	}{
		"output":                   {[]string{"run", "--", "echo", "hello", "a b"}, "", "hello a b\n", "", 0},
		"without the dashes":       {[]string{"run", "echo", "-n", "x"}, "", "x", "", 0},
		"streams apart":            {[]string{"run", "--", "sh", "-c", "printf out; printf err >&2"}, "", "out", "err", 0},
		"the exit code":            {[]string{"run", "--", "sh", "-c", "exit 42"}, "", "", "", 42},
		"a signal":                 {[]string{"run", "--", "sh", "-c", "kill -TERM $$"}, "", "", "", 143},
		"not found":                {[]string{"run", "--", "nosuchcmd"}, "", "", "*", 127},
		"not executable":           {[]string{"run", "--", "/etc/passwd"}, "", "", "*", 126},
		"stdin with -i":            {[]string{"run", "-i", "--", "cat"}, "from\x00stdin\n", "from\x00stdin\n", "", 0},
		"no stdin without -i":      {[]string{"run", "--", "cat"}, "ignored", "", "", 0},
		"environment":              {[]string{"run", "--env", "A=b=c", "-e", "B=", "--", "sh", "-c", "echo $A-$B-"}, "", "b=c--\n", "", 0},
		"output that is no text":   {[]string{"run", "--", "printf", `\377\000\n`}, "", "\xff\x00\n", "", 0},
		"a flag that there is not": {[]string{"run", "--no-such-flag"}, "", "", "*", 2},
		"no command":               {[]string{"run"}, "", "", "*", 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, errs, code := cli(t, c.stdin, c.args...)
			if out != c.out || code != c.code || c.err != "*" && errs != c.err || c.err == "*" && errs == "" {
				t.Errorf("stdout %q, stderr %q, code %d; want %q, %q, %d", out, errs, code, c.out, c.err, c.code)
			}
		})
	}
}

func TestRunRemovesItsSandbox(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{})
	if _, errs, code := run(t, inst.CLI("run", "--", "true"), ""); code != 0 {
		t.Fatalf("code %d, %s", code, errs)
	}
	if _, _, code := run(t, inst.CLI("run", "--", "false"), ""); code != 1 {
		t.Fatalf("code %d", code)
	}
	list, err := inst.ListSandboxes(t.Context(), "status=active")
	if err != nil || len(list) != 0 {
		t.Errorf("left: %+v, %v", list, err)
	}
}

func TestCtrlCEndsTheCommandAndRemovesTheSandbox(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{})
	cmd := inst.CLI("run", "--", "sh", "-c", `trap 'echo caught; exit 9' INT; echo up; while :; do sleep .1; done`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	first := make([]byte, 3)
	if _, err := io.ReadFull(out, first); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its code is looked at below
	if string(rest) != "caught\n" || cmd.ProcessState.ExitCode() != 9 {
		t.Errorf("printed %q, code %d", rest, cmd.ProcessState.ExitCode())
	}
	testkit.Eventually(t, time.Minute, "the sandbox is gone", func() error {
		list, err := inst.ListSandboxes(t.Context(), "status=active")
		if err == nil && len(list) > 0 {
			err = errors.New("it is still there")
		}
		return err
	})
}

func TestATerminalThroughThePTYFeelsLocal(t *testing.T) {
	inst := testkit.Server(t)
	const prompt = "ready> "
	cmd := inst.CLI("run", "-i", "-t", "--env", "PS1="+prompt, "--", "bash", "--norc")
	cmd.Env = append(cmd.Env, "TERM=xterm")
	cmd.SysProcAttr = nil // pty.Start sets its own
	term, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 93, Rows: 31})
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	stop := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	var shown string
	buf := make([]byte, 4096)
	// expect reads on until want was shown after all that was expected before.
	expect := func(want string) {
		t.Helper()
		for !strings.Contains(shown, want) {
			n, err := term.Read(buf)
			shown += string(buf[:n])
			if err != nil {
				t.Fatalf("waiting for %q: %v; shown %q", want, err, shown)
			}
		}
		_, shown, _ = strings.Cut(shown, want)
	}
	send := func(line string) {
		t.Helper()
		if _, err := io.WriteString(term, line); err != nil {
			t.Fatal(err)
		}
	}
	expect(prompt)
	send("stty size\r")
	expect("31 93\r\n")
	expect(prompt)
	if err := pty.Setsize(term, &pty.Winsize{Cols: 71, Rows: 23}); err != nil {
		t.Fatal(err)
	}
	send("until [ \"$(stty size)\" = '23 71' ]; do sleep .1; done; echo re'sized'\r")
	expect("resized")
	expect(prompt)
	// The shell that prints it is in the foreground by then: Ctrl-C is for it.
	send("sh -c 'echo u\"p\"; exec sleep 300'\r")
	expect("up\r\n")
	send("\x03")
	expect(prompt)
	send("echo back'-'again\r")
	expect("back-again")
	expect(prompt)
	send("exit 7\r")
	for err == nil {
		_, err = term.Read(buf)
	}
	_ = cmd.Wait() // its code is looked at below
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("code %d; shown %q", code, shown)
	}
}

var sandboxID = regexp.MustCompile(`^sbx_[0-9a-z]{26}$`)

func TestTheCommandsOfASandboxesLife(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	want := func(code int, stdin string, args ...string) string {
		t.Helper()
		out, errs, got := cli(t, stdin, args...)
		if got != code {
			t.Fatalf("cay %s: code %d, want %d; stdout %q, stderr %q", strings.Join(args, " "), got, code, out, errs)
		}
		return out
	}
	id := strings.TrimSpace(want(0, "", "create"))
	if !sandboxID.MatchString(id) {
		t.Fatalf("create printed %q", id)
	}
	var obj testkit.SandboxObject
	if err := json.Unmarshal([]byte(want(0, "", "inspect", id, "-o", "json")), &obj); err != nil || obj.ID != id || obj.Status != "READY" {
		t.Errorf("inspect: %+v, %v", obj, err)
	}
	var made testkit.SandboxObject
	if err := json.Unmarshal([]byte(want(0, "", "create", "-o", "json", "--memory", "256m")), &made); err != nil || made.MemoryMB != 256 {
		t.Errorf("create -o json: %+v, %v", made, err)
	}
	want(0, "", "rm", made.ID)
	if ps := want(0, "", "ps"); !strings.Contains(ps, id) || strings.Contains(ps, made.ID) {
		t.Errorf("ps: %q", ps)
	}
	if out := want(0, "", "exec", id, "--", "echo", "hi"); out != "hi\n" {
		t.Errorf("exec: %q", out)
	}
	want(3, "", "exec", id, "--", "sh", "-c", "exit 3")
	if out := want(0, "through\n", "exec", "-i", id, "--", "tr", "a-z", "A-Z"); out != "THROUGH\n" {
		t.Errorf("exec -i: %q", out)
	}

	dir := t.TempDir()
	local := filepath.Join(dir, "f")
	data := bytes.Repeat([]byte("line\x00\xff\n"), 50_000)
	if err := os.WriteFile(local, data, 0o640); err != nil {
		t.Fatal(err)
	}
	want(0, "", "cp", local, id+":/workspace/g")
	back := filepath.Join(dir, "back")
	want(0, "", "cp", id+":/workspace/g", back)
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, data) {
		t.Errorf("cp there and back: %d bytes, %v", len(got), err)
	}
	tree := filepath.Join(dir, "tree", "sub")
	if err := os.MkdirAll(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "leaf"), []byte("leaf"), 0o755); err != nil {
		t.Fatal(err)
	}
	want(0, "", "cp", filepath.Join(dir, "tree"), id+":/workspace/tree")
	if out := want(0, "", "exec", id, "--", "cat", "/workspace/tree/sub/leaf"); out != "leaf" {
		t.Errorf("cp of a folder: %q", out)
	}
	want(0, "", "cp", id+":/workspace/tree", filepath.Join(dir, "tree2"))
	if got, err := os.ReadFile(filepath.Join(dir, "tree2", "sub", "leaf")); err != nil || string(got) != "leaf" {
		t.Errorf("cp of a folder back: %q, %v", got, err)
	}
	if ls := want(0, "", "ls", id+":/workspace"); !strings.Contains(ls, "tree") || !strings.Contains(ls, "g") {
		t.Errorf("ls: %q", ls)
	}

	// F5: what is missing is an error, and leaves no file.
	missing := filepath.Join(dir, "missing")
	if _, errs, code := cli(t, "", "cp", id+":/workspace/no", missing); code == 0 || !strings.Contains(errs, "/workspace/no") {
		t.Errorf("cp of a missing file: code %d, %q", code, errs)
	}
	if _, err := os.Lstat(missing); err == nil {
		t.Error("cp of a missing file left a file")
	}

	want(0, "", "rm", id)
	if _, errs, code := cli(t, "", "exec", id, "--", "true"); code != 125 || errs == "" {
		t.Errorf("exec in a removed sandbox: code %d, %q", code, errs)
	}
	if now, err := inst.GetSandbox(t.Context(), id); err != nil || now.Status != "TERMINATED" {
		t.Errorf("after rm it is %s, %v", now.Status, err)
	}
}

func TestTheCommandLineSaysWhatToDoWhenItCannot(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	t.Run("no server", func(t *testing.T) {
		cmd := inst.CLI("ps")
		cmd.Env = append(cmd.Env, "CAY_URL=http://127.0.0.1:1")
		if _, errs, code := run(t, cmd, ""); code == 0 || !strings.Contains(errs, "127.0.0.1:1") {
			t.Errorf("code %d, %q", code, errs)
		}
	})
	t.Run("a wrong key", func(t *testing.T) {
		cmd := inst.CLI("ps")
		cmd.Env = append(cmd.Env, "CAY_API_KEY="+testkit.NewKey())
		if _, errs, code := run(t, cmd, ""); code == 0 || !strings.Contains(errs, "CAY_API_KEY") {
			t.Errorf("code %d, %q", code, errs)
		}
	})
	t.Run("a sandbox that is not there", func(t *testing.T) {
		if _, errs, code := cli(t, "", "inspect", "sbx_00000000000000000000000000"); code == 0 || !strings.Contains(errs, "sbx_") {
			t.Errorf("code %d, %q", code, errs)
		}
	})
}

func TestTheOwnersCommandLineNeedsNoKey(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{NoKey: true})
	cmd := inst.Command("run", "--", "echo", "found") // finds address and key by the data directory
	if out, errs, code := run(t, cmd, ""); out != "found\n" || code != 0 {
		t.Errorf("stdout %q, stderr %q, code %d", out, errs, code)
	}
}

func TestDoctorConfigAndVersionAnswer(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"config"}, {"doctor"}, {"completion", "bash"}, {"help"}} {
		out, errs, code := cli(t, "", args...)
		if code != 0 || out == "" {
			t.Errorf("cay %s: code %d, %q, %q", strings.Join(args, " "), code, out, errs)
		}
		if strings.Contains(out+errs, testkit.Server(t).Key) {
			t.Errorf("cay %s shows the key", strings.Join(args, " "))
		}
	}
}
