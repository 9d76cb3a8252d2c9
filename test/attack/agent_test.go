package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// breaches are the attacks of the hostile program, with the defence that each is stopped by.
var breaches = map[string]string{
	"flood":     "a small backlog; one live and one pending connection",
	"silent":    "a deadline for the hello",
	"slow":      "a deadline for the preamble",
	"garbage":   "the preamble's check",
	"oversized": "the bound of a frame's length, before anything is allocated",
	"reserved":  "unknown types and bits end the connection",
	"early":     "the hello comes first",
	"hellos":    "generations never go back; the number of processes is bounded",
	"forge":     "an answer needs its question, an exit its process",
	"replay":    "output's offset must be the next",
	"reorder":   "output's offset must be the next",
	"tokens":    "tokens are random, good once, and expected only while a transfer waits",
	"agent":     "what the agent says is checked for size, number and order; three violations within a minute end the sandbox",
	"bigagent":  "the credit of a process's output",
}

// The real agent lives, and the guest's root attacks beside it. It may lose its own sandbox by that; nothing else.
func TestRootAttacksTheAgentsSocketFromInside(t *testing.T) {
	for name, defence := range breaches {
		t.Run(name, func(t *testing.T) {
			a := newArena(t)
			arm(t, a.attacker)
			a.within(t, func() {
				out, err := a.inst.Exec(t.Context(), a.attacker.ID, []string{"/tmp/hostile", "-hold", "4s", name}, fields{"user": "root", "timeout_seconds": 40})
				now, getErr := a.inst.GetSandbox(t.Context(), a.attacker.ID)
				t.Logf("%s (defence: %s): %q, %v; the sandbox is %s %s", name, defence, strings.TrimSpace(said(out)), err, now.Status, now.StatusReason)
				if getErr != nil {
					t.Error(getErr)
				}
			})
		})
	}
}

// The agent is out of the way (its kernel is stopped, as a hostile guest would hold it), and the hostile program has its socket to
// itself, from where the guest's connections come.
func TestAFalseAgentInTheAgentsPlace(t *testing.T) {
	for name, defence := range breaches {
		t.Run(name, func(t *testing.T) {
			testkit.RequireRoot(t)
			inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
			attacker := inst.Create(t)
			sockets, err := filepath.Glob(filepath.Join(inst.RunDir(), "s", "*", "a.sock"))
			if err != nil || len(sockets) != 1 {
				t.Fatalf("the agent's socket: %v %v", sockets, err)
			}
			kernels := inst.Kernels()
			neighbour := inst.Create(t)
			neighbour.Must("echo mine > /workspace/mine")
			a := &arena{inst: inst, attacker: attacker, neighbour: neighbour}

			program, err := hostile()
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "hostile")
			if err := testkit.WriteProgram(path, program); err != nil {
				t.Fatal(err)
			}
			for _, k := range kernels {
				if err := syscall.Kill(k.PID, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			a.within(t, func() {
				cmd := exec.Command(path, "-socket", sockets[0], "-hold", "6s", name)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				provoke(t, a)
				err := cmd.Wait()
				now, getErr := inst.GetSandbox(t.Context(), attacker.ID)
				t.Logf("%s (defence: %s): %q, %v; the sandbox is %s %s", name, defence, strings.TrimSpace(out.String()), err, now.Status, now.StatusReason)
				if getErr != nil {
					t.Error(getErr)
				}
			})
		})
	}
}

// provoke makes the node ask the false agent for everything it can be asked for. Any answer will do, but there must be one: the
// platform waits for nobody for ever, and a fault of the guest is no 500.
func provoke(t *testing.T, a *arena) {
	base := "/v1/sandboxes/" + a.attacker.ID
	var wg sync.WaitGroup
	for range 2 {
		for what, call := range map[string]func(ctx context.Context) (testkit.Response, error){
			"exec": func(ctx context.Context) (testkit.Response, error) {
				return a.inst.Do(ctx, "POST", base+"/exec", fields{"command": "true", "timeout_seconds": 3})
			},
			"read": func(ctx context.Context) (testkit.Response, error) {
				return a.inst.Do(ctx, "GET", base+testkit.FilePath("/etc/passwd"), nil)
			},
			"write": func(ctx context.Context) (testkit.Response, error) {
				return a.inst.Do(ctx, "PUT", base+testkit.FilePath("/tmp/x"), make([]byte, 1<<20))
			},
			"list": func(ctx context.Context) (testkit.Response, error) {
				return a.inst.Do(ctx, "GET", base+"/files/list?path=/", nil)
			},
			"stat": func(ctx context.Context) (testkit.Response, error) {
				return a.inst.Do(ctx, "GET", base+"/files/stat?path=/", nil)
			},
			"ps": func(ctx context.Context) (testkit.Response, error) {
				return a.inst.Do(ctx, "GET", base+"/processes?all=true", nil)
			},
		} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 45*time.Second)
				defer cancel()
				resp, err := call(ctx)
				switch {
				case errors.Is(err, context.DeadlineExceeded):
					t.Errorf("%s: no answer within 45 s", what)
				case err != nil:
					t.Logf("%s: %v", what, err) // a download that is cut in the middle
				case resp.Status == 500:
					t.Errorf("%s: %v", what, resp)
				default:
					t.Logf("%s: %.200s", what, resp)
				}
			})
		}
	}
	wg.Wait()
}

// Defence: PID 1 cannot be ended by signals from inside, and a silent sandbox still has a limit, a clock and a cgroup.
func TestKillingTheAgentDoesNotFreeTheSandbox(t *testing.T) {
	a := newArena(t, fields{"ttl_seconds": 20})
	a.within(t, func() {
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		_, _ = a.inst.Exec(ctx, a.attacker.ID, `kill -9 1; kill -STOP 1; kill -SEGV 1; kill -TERM 1; kill -9 -1; echo survived`, fields{"user": "root", "timeout_seconds": 10}) // either way
		now, err := a.inst.GetSandbox(ctx, a.attacker.ID)
		if err != nil {
			t.Error(err)
			return
		}
		if now.Status == "READY" {
			if out, err := a.inst.Exec(ctx, a.attacker.ID, "echo alive"); err != nil || out.Stdout != "alive\n" {
				t.Errorf("it is READY and does not answer: %+v %v", out, err)
			}
		}
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
	testkit.Eventually(t, 60*time.Second, "its clock ends it", func() error {
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
