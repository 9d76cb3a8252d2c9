package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// census is what an idle server with no sandbox has.
type census struct {
	residue map[string]int
	fds     map[testkit.Role]int
}

func count(inst *testkit.Instance) (census, error) {
	inst.HTTP.CloseIdleConnections()
	c := census{residue: inst.Residue().Counts(), fds: map[testkit.Role]int{}}
	c.residue["processes"] = 0
	for _, p := range inst.Owned() {
		if len(p.Cmdline) > 0 || p.State == "Z" { // a prepared sandbox's kernel keeps some stubs without a command line, more or fewer
			c.residue["processes"]++
		}
	}
	for _, role := range []testkit.Role{testkit.RoleUp, testkit.RoleServer, testkit.RoleNode} {
		pid, err := inst.PID(role)
		if err != nil {
			return c, err
		}
		if c.fds[role], err = testkit.FDs(pid); err != nil {
			return c, err
		}
	}
	return c, nil
}

// noGrowth waits until the server has no more than it had before. Descriptors may differ by a few: idle connections come and go.
func noGrowth(t *testing.T, inst *testkit.Instance, before census) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "nothing has grown", func() error {
		now, err := count(inst)
		if err != nil {
			return err
		}
		for kind, n := range now.residue {
			if n > before.residue[kind] {
				return fmt.Errorf("%d %s, %d before: %+v", n, kind, before.residue[kind], inst.Residue())
			}
		}
		const slack = 6
		for role, n := range now.fds {
			if n > before.fds[role]+slack {
				return fmt.Errorf("%s has %d descriptors open, %d before", role, n, before.fds[role])
			}
		}
		return nil
	})
}

func cycle(ctx context.Context, inst *testkit.Instance) error {
	sb, err := inst.CreateSandbox(ctx, nil)
	if err != nil {
		return err
	}
	out, err := inst.Exec(ctx, sb.ID, "echo $((6*7))")
	if err != nil || out.Stdout != "42\n" {
		return fmt.Errorf("exec: %+v %v", out, err)
	}
	return inst.DeleteSandbox(ctx, sb.ID)
}

func TestSandboxesOneAfterAnotherLeaveNothing(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
	if err := cycle(t.Context(), inst); err != nil { // what is set up once is no growth
		t.Fatal(err)
	}
	before, err := count(inst)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	rounds := testkit.Scaled(25, 500)
	for i := range rounds {
		if err := cycle(t.Context(), inst); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	t.Logf("%d rounds, %v each", rounds, (time.Since(begun) / time.Duration(rounds)).Round(time.Millisecond))
	noGrowth(t, inst, before)
}

func TestEightSandboxesAtOnceTenTimesLeaveNothing(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{})
	if err := cycle(t.Context(), inst); err != nil {
		t.Fatal(err)
	}
	var before census
	testkit.Eventually(t, time.Minute, "the pool is full", func() (err error) {
		// The node's socket and gVisor's name space for the network; of each sandbox the directories, the state and its lock, and the
		// sockets of its agent and its kernel. One that is still booting has fewer.
		const prepared, sockets, files = 2, 1 + 2*2, 2 + 2*6
		if n := len(inst.Kernels()); n != prepared {
			return fmt.Errorf("%d kernels", n)
		}
		before, err = count(inst)
		if got := before.residue; err == nil && (got["sockets"] != sockets || got["files"] != files) {
			err = fmt.Errorf("%d sockets, %d files", got["sockets"], got["files"])
		}
		return err
	})
	for round := range testkit.Scaled(3, 10) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := cycle(t.Context(), inst); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
	}
	noGrowth(t, inst, before)
}

func TestACreateWhoseClientLeavesIsNotLost(t *testing.T) {
	inst := testkit.Server(t)
	tag := testkit.NewKey()[4:20]
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(30*time.Millisecond, cancel)
	_, _ = inst.CreateSandbox(ctx, fields{"metadata": fields{"tag": tag}, "cpu": 2}) // either way
	testkit.Eventually(t, time.Minute, "the sandbox is READY, or was never asked for", func() error {
		list, err := inst.ListSandboxes(t.Context(), "metadata.tag="+tag)
		if err == nil && len(list) == 1 && list[0].Status != "READY" {
			err = fmt.Errorf("it is %s", list[0].Status)
		}
		return err
	})
}
