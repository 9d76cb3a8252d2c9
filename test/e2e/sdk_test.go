package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

func TestTheExamplesOfTheGoClientRunAgainstTheRealServer(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	cmd := exec.Command("go", "test", "-count=1", "-timeout=3m", "-run=^Example", "./client")
	cmd.Dir = testkit.ModuleRoot()
	cmd.Env = append(os.Environ(), "CAY_EXAMPLES_URL="+inst.URL, "CAY_EXAMPLES_KEY="+inst.Key)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestTheCommandLineRunsCodeAndKeepsContexts(t *testing.T) {
	t.Parallel()
	id, want := box(t)
	if out := want(0, "", "code", id, "print(1 + 1)"); out != "2\n" {
		t.Errorf("code: %q", out)
	}
	if out := want(3, "", "code", "-l", "bash", id, "echo hi; exit 3"); out != "hi\n" {
		t.Errorf("bash: %q", out)
	}
	if out := want(0, "input\n", "code", "-i", id, "print(input().upper())"); out != "INPUT\n" {
		t.Errorf("with input: %q", out)
	}
	if _, errs, code := cli(t, "", "code", "-l", "cobol", id, "1"); code != 125 || !strings.Contains(errs, "python") {
		t.Errorf("a language that is not there: code %d, %q", code, errs)
	}
	dir := filepath.Join(t.TempDir(), "got")
	want(0, "", "code", "--save", dir, id, "open('/output/plot.txt', 'w').write('plot')")
	if got, err := os.ReadFile(filepath.Join(dir, "plot.txt")); err != nil || string(got) != "plot" {
		t.Errorf("saved %q, %v", got, err)
	}

	ctx := strings.TrimSpace(want(0, "", "context", "create", id))
	want(0, "", "code", "-c", ctx, id, "n = 40")
	if out := want(0, "", "code", "-c", ctx, id, "n + 2"); out != "42\n" {
		t.Errorf("in the context: %q", out)
	}
	if _, errs, code := cli(t, "", "code", "-c", ctx, id, "raise ValueError('boom')"); code != 1 || !strings.Contains(errs, "ValueError: boom") {
		t.Errorf("an exception: code %d, %q", code, errs)
	}
	if out := want(0, "", "context", "ls", id); !strings.Contains(out, ctx) || !strings.Contains(out, "python") {
		t.Errorf("ls: %q", out)
	}
	want(0, "", "context", "restart", id, ctx)
	want(1, "", "code", "-c", ctx, id, "n")
	want(0, "", "context", "rm", id, ctx)
	want(125, "", "code", "-c", ctx, id, "1")
}
