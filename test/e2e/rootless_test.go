package e2e

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

// stranger is a user without an account, groups or privileges.
const stranger = 61997

func TestWithoutRootSandboxesWorkAndLimitsThatCannotBeKeptAreRefused(t *testing.T) {
	opts := testkit.Options{}
	if os.Geteuid() == 0 {
		opts.Cred = &syscall.Credential{Uid: stranger, Gid: stranger}
	}
	inst := testkit.StartServer(t, opts)
	sb := inst.Create(t)
	sb.MustSay("hello\n", "echo hello")
	sb.MustSay("2000\n", "id -u")
	sb.Put("/workspace/f", []byte("content"))
	sb.MustSay("content", "cat f")
	if got := sb.Get("/workspace/f"); string(got) != "content" {
		t.Errorf("download: %q", got)
	}
	if out := sb.X("sleep 300 & wait", fields{"timeout_seconds": 0.2}); !out.TimedOut || sb.Count("sleep 300") != 0 {
		t.Errorf("timeout: %+v, %d survivors", out, sb.Count("sleep 300"))
	}

	// Nobody delegated cgroups to the stranger.
	for field, value := range map[string]any{"memory_mb": 256, "cpu": 1} {
		resp, err := inst.Do(t.Context(), "POST", "/v1/sandboxes", fields{"image": "host", field: value})
		if err != nil {
			t.Fatal(err)
		}
		if p := resp.Problem(); resp.Status != 422 || !strings.Contains(p.Field+p.Detail, field) {
			t.Errorf("an explicit %s: %v, want 422 that names it", field, resp)
		}
	}

	for _, role := range []testkit.Role{testkit.RoleUp, testkit.RoleServer, testkit.RoleNode} {
		pid, err := inst.PID(role)
		if err != nil {
			t.Fatal(err)
		}
		if caps, err := testkit.Status(pid, "CapEff:"); err != nil || strings.Trim(caps, "0") != "" {
			t.Errorf("%s has capabilities %s, %v", role, caps, err)
		}
	}
}

func TestWithoutRootACrashIsSurvivedToo(t *testing.T) {
	opts := testkit.Options{}
	if os.Geteuid() == 0 {
		opts.Cred = &syscall.Credential{Uid: stranger, Gid: stranger}
	}
	inst := testkit.StartServer(t, opts)
	w, err := newWitness(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Kill9(testkit.RoleUp); err != nil {
		t.Fatal(err)
	}
	if err := inst.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.testify(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
}
