package attack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type fields = testkit.Fields

// users are whom an attacker inside may be.
var users = []string{"sandbox", "root"}

// asEach runs a test as both of them, in one sandbox.
func asEach(t *testing.T, sb *testkit.Sandbox, test func(t *testing.T, sb *testkit.Sandbox, as fields)) {
	t.Helper()
	for _, user := range users {
		t.Run("as "+user, func(t *testing.T) { test(t, sb.In(t), fields{"user": user, "timeout_seconds": 100}) })
	}
}

// arena is a server of its own with a neighbour that must not suffer, and the sandboxes that attack.
type arena struct {
	inst      *testkit.Instance
	neighbour *testkit.Sandbox
	attackers []*testkit.Sandbox
}

func newArena(t *testing.T, attackers int, more ...fields) *arena {
	t.Helper()
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
	a := &arena{inst: inst, neighbour: inst.Create(t)}
	a.neighbour.Must("echo mine > /workspace/mine")
	for range attackers {
		a.attackers = append(a.attackers, inst.Create(t, more...))
	}
	return a
}

// within checks while attack runs, and once more after it, that the neighbour is served, and that node and server stay within
// bounds of memory; and at the end that the attackers can be deleted, with nothing left of them.
func (a *arena) within(t *testing.T, attack func()) {
	t.Helper()
	const mostGrowth = 128 << 20
	type watched struct {
		role testkit.Role
		pid  int
		stop func() (int64, int64)
	}
	var watch []watched
	for _, role := range []testkit.Role{testkit.RoleServer, testkit.RoleNode} {
		pid, err := a.inst.PID(role)
		if err != nil {
			t.Fatal(err)
		}
		watch = append(watch, watched{role, pid, testkit.WatchRSS(pid)})
	}
	var attacking sync.WaitGroup
	over := make(chan struct{})
	attacking.Go(func() { defer close(over); attack() })
	var suffered error
	slowest := time.Duration(0)
	for going := true; going && suffered == nil; {
		select {
		case <-over:
			going = false
		default:
		}
		begun := time.Now()
		suffered = a.serveNeighbour(t.Context())
		slowest = max(slowest, time.Since(begun))
	}
	attacking.Wait()
	t.Logf("the neighbour's slowest command took %v", slowest)
	if suffered != nil {
		t.Error(suffered)
	}
	for _, w := range watch {
		before, peak := w.stop()
		t.Logf("%s: %d MiB before, at most %d MiB", w.role, before>>20, peak>>20)
		if peak-before > mostGrowth {
			t.Errorf("%s grew by %d MiB", w.role, (peak-before)>>20)
		}
		if now, err := a.inst.PID(w.role); err != nil || now != w.pid {
			t.Errorf("%s has ended under the attack: pid %d, before %d, %v", w.role, now, w.pid, err)
		}
	}
	a.gone(t)
	if err := a.serveNeighbour(t.Context()); err != nil {
		t.Error(err)
	}
}

func (a *arena) serveNeighbour(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := a.inst.Exec(ctx, a.neighbour.ID, "cat /workspace/mine")
	if err == nil && out.Stdout != "mine\n" {
		err = fmt.Errorf("%+v", out)
	}
	if err != nil {
		return fmt.Errorf("the neighbour is not served: %w", err)
	}
	return nil
}

// gone deletes the attackers and looks for what is left of them.
func (a *arena) gone(t *testing.T) {
	t.Helper()
	for _, sb := range a.attackers {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		if err := a.inst.DeleteSandbox(ctx, sb.ID); err != nil {
			t.Error(err)
		}
		cancel()
	}
	testkit.Eventually(t, time.Minute, "only the neighbour is left", func() error {
		if k := a.inst.Kernels(); len(k) != 1 {
			return fmt.Errorf("%d kernels: %v", len(k), k)
		}
		for _, pattern := range []string{filepath.Join(a.inst.RunDir(), "s", "*"), filepath.Join(a.inst.DataDir, "sandboxes", "*")} {
			if found, err := filepath.Glob(pattern); err != nil || len(found) != 1 {
				return fmt.Errorf("%v: %v", found, err)
			}
		}
		return nil
	})
}

// handle is the name of a sandbox's directories on its node.
func (a *arena) handle(t *testing.T, sb *testkit.Sandbox) string {
	t.Helper()
	records, err := filepath.Glob(filepath.Join(a.inst.DataDir, "sandboxes", "*", "sandbox.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if text, err := os.ReadFile(r); err == nil && strings.Contains(string(text), sb.ID) {
			return filepath.Base(filepath.Dir(r))
		}
	}
	t.Fatalf("no directory of %s among %v", sb.ID, records)
	return ""
}

// hostile builds the hostile program once; it is static, so that it runs on the host as well as inside.
var hostile = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "hostile")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "hostile"), "./test/attack/hostile")
	cmd.Dir = testkit.ModuleRoot()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the hostile program: %w\n%s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "hostile"))
})

// arm uploads the hostile program.
func arm(t *testing.T, sb *testkit.Sandbox) {
	t.Helper()
	program, err := hostile()
	if err != nil {
		t.Fatal(err)
	}
	sb.Put("/tmp/hostile", program, "mode", "0755")
}

// canary is a file of the host that nobody inside may see.
func canary(t *testing.T) (path, content string) {
	t.Helper()
	content = testkit.NewKey()
	f, err := os.CreateTemp("/tmp", "cay-canary-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(f.Name()) })
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	if err := f.Chmod(0o644); err != nil { // as open as it can be
		t.Fatal(err)
	}
	return f.Name(), content
}

// said is everything that a command printed.
func said(out testkit.ExecResult) string { return strings.Join([]string{out.Stdout, out.Stderr}, "\n") }

func parseHex(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
