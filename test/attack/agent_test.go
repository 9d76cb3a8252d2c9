package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// breach is an attack of the hostile program, with the defence that stops it. One that violates the protocol on a connection that
// counts costs the sandbox, after three times within a minute.
type breach struct {
	attack, defence string
	violates        bool
}

var breaches = []breach{
	{"flood", "a small backlog; one live and one pending connection", false},
	{"silent", "a deadline for the hello", false},
	{"slow", "a deadline for the preamble", false},
	{"garbage", "the preamble's check", false},
	{"tokens", "tokens are random, good once, and expected only while a transfer waits", false},
	{"oversized", "the bound of a frame's length, before anything is allocated", true},
	{"reserved", "unknown types and bits end the connection", true},
	{"early", "the hello comes first", true},
	{"hellos", "generations never go back; the number of processes is bounded", true},
	{"forge", "an answer needs its question, an exit its process", true},
	{"replay", "output's offset must be the next", true},
	{"reorder", "output's offset must be the next", true},
	{"agent", "what the agent says is checked for size, number and order", true},
	{"bigagent", "the credit of a process's output", true},
}

// The real agent lives, and the guest's root attacks beside it, in every way at once. Each may lose its own sandbox by that; nothing
// else.
func TestRootAttacksTheAgentsSocketFromInside(t *testing.T) {
	a := newArena(t, len(breaches))
	for i := range breaches {
		arm(t, a.attackers[i])
	}
	a.within(t, func() {
		var wg sync.WaitGroup
		for i, b := range breaches {
			wg.Go(func() {
				id := a.attackers[i].ID
				out, err := a.inst.Exec(t.Context(), id, []string{"/tmp/hostile", "-hold", "10s", b.attack}, fields{"user": "root", "timeout_seconds": 120})
				now, getErr := a.inst.GetSandbox(t.Context(), id)
				t.Logf("%s (%s): %.300q, %v; the sandbox is %s %s", b.attack, b.defence, strings.TrimSpace(said(out)), err, now.Status, now.StatusReason)
				if getErr != nil {
					t.Error(getErr)
				}
				if err == nil && !strings.Contains(out.Stdout, b.attack+":") {
					t.Errorf("%s was not carried out: %+v", b.attack, out)
				}
			})
		}
		wg.Wait()
	})
}

// The agent is out of the way: its kernel is stopped, as a hostile guest can let it appear. Once it fails a ping, the hostile program
// is the agent, and the node asks it for everything it can ask for.
func TestAFalseAgentInTheAgentsPlace(t *testing.T) {
	a := newArena(t, len(breaches))
	program, err := hostile()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "hostile")
	if err := testkit.WriteProgram(path, program); err != nil {
		t.Fatal(err)
	}
	handles := make([]string, len(breaches))
	for i := range breaches {
		handles[i] = a.handle(t, a.attackers[i])
	}
	for _, k := range a.inst.Kernels() {
		if slices.ContainsFunc(handles, func(h string) bool { return slices.Contains(k.Cmdline, h) }) {
			if err := syscall.Kill(k.PID, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
	}
	a.within(t, func() {
		var wg sync.WaitGroup
		for i, b := range breaches {
			wg.Go(func() { a.breach(t, a.attackers[i], handles[i], path, b) })
		}
		wg.Wait()
	})
}

// breach runs the hostile program on the host against a sandbox's socket, while clients use that sandbox.
func (a *arena) breach(t *testing.T, sb *testkit.Sandbox, handle, program string, b breach) {
	cmd := exec.Command(program, "-socket", filepath.Join(a.inst.RunDir(), "s", handle, "a.sock"), "-hold", "30s", b.attack)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for going := true; going; {
		a.provoke(t, sb)
		select {
		case <-ended:
			going = false
		case <-time.After(time.Second): // the next round of requests
		}
	}
	now, err := a.inst.GetSandbox(t.Context(), sb.ID)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s (%s): %.300q; the sandbox is %s %s", b.attack, b.defence, strings.TrimSpace(out.String()), now.Status, now.StatusReason)
	if given := now.Status != "READY"; given != b.violates {
		t.Errorf("%s: the sandbox is %s %s", b.attack, now.Status, now.StatusReason)
	}
}

// provoke makes the node ask the false agent for everything it can be asked for. Any answer will do, but there must be one: the
// platform waits for nobody for ever, and a fault of the guest is no 500.
func (a *arena) provoke(t *testing.T, sb *testkit.Sandbox) {
	base := "/v1/sandboxes/" + sb.ID
	var wg sync.WaitGroup
	for _, ask := range []struct {
		method, rest string
		body         any
	}{
		{"POST", "/exec", fields{"command": "true", "timeout_seconds": 3}},
		{"GET", testkit.FilePath("/etc/passwd"), nil},
		{"PUT", testkit.FilePath("/tmp/x"), make([]byte, 1<<20)},
		{"GET", "/files/list?path=/", nil},
		{"GET", "/files/stat?path=/", nil},
		{"GET", "/processes?all=true", nil},
	} {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
			defer cancel()
			resp, err := a.inst.Do(ctx, ask.method, base+ask.rest, ask.body)
			if errors.Is(err, context.DeadlineExceeded) { // another error is an answer that was cut, as it may be
				t.Errorf("%s %s: no answer within 45 s", ask.method, ask.rest)
			}
			if resp.Status == 500 {
				t.Errorf("%s %s: %v", ask.method, ask.rest, resp)
			}
		})
	}
	wg.Wait()
}

// Defence: PID 1 cannot be ended by signals from inside, and a silent sandbox still has a limit, a clock and a cgroup.
func TestKillingTheAgentDoesNotFreeTheSandbox(t *testing.T) {
	a := newArena(t, 1, fields{"ttl_seconds": 20})
	a.within(t, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		_, _ = a.inst.Exec(ctx, a.attackers[0].ID, `kill -9 1; kill -STOP 1; kill -SEGV 1; kill -TERM 1; kill -9 -1; echo survived`, fields{"user": "root", "timeout_seconds": 10}) // either way
		// Its end may be known a moment later than it came.
		testkit.Eventually(t, time.Minute, "it answers, or has ended", func() error {
			now, err := a.inst.GetSandbox(ctx, a.attackers[0].ID)
			if err != nil || now.Status != "READY" {
				return err
			}
			out, err := a.inst.Exec(ctx, a.attackers[0].ID, "echo alive")
			if err == nil && out.Stdout != "alive\n" {
				err = fmt.Errorf("it is READY and answers %+v", out)
			}
			return err
		})
	})
}

// Defence: death and time are measured from outside. A sandbox whose agent has hung up is ended by its clock like any other.
func TestASandboxThatHasHungUpIsNotUnmetered(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
	sb := inst.Create(t, fields{"ttl_seconds": 8})
	kernels := inst.Kernels()
	for _, k := range kernels {
		if err := syscall.Kill(k.PID, syscall.SIGSTOP); err != nil { // it will not hear, answer, or leave by itself
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, time.Minute, "its clock ends it", func() error {
		now, err := inst.GetSandbox(t.Context(), sb.ID)
		if err == nil && now.Status != "TERMINATED" {
			err = fmt.Errorf("it is %s", now.Status)
		}
		return err
	})
	if left := inst.Kernels(); len(left) != 0 {
		t.Errorf("its kernel is still there: %v", left)
	}
}

// Defence: the sandbox's name is the socket it came by; nothing that it says names another.
func TestNothingInsideCanActForAnotherSandbox(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	victim, attacker := inst.Create(t), inst.Create(t)
	arm(t, attacker)
	victim.Must("echo safe > /workspace/f")
	_, _ = inst.Exec(t.Context(), attacker.ID, []string{"/tmp/hostile", "-hold", "3s", "forge"}, fields{"user": "root", "timeout_seconds": 20}) // either way
	victim.MustSay("safe\n", "cat /workspace/f")
	if now := victim.Refresh(); now.Status != "READY" {
		t.Errorf("the victim is %s %s", now.Status, now.StatusReason)
	}
}

// Defence: the socket is 0600 of the sandbox's root.
func TestTheUserCannotConnectToTheAgentsSocket(t *testing.T) {
	t.Parallel()
	sb := testkit.Server(t).Create(t)
	arm(t, sb)
	if out := sb.Run([]string{"/tmp/hostile", "connect"}); out.ExitCode == 0 {
		t.Errorf("it connects: %s", said(out))
	}
}
