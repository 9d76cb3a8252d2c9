package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

func TestTheSandboxIsSetUpAndClaimed(t *testing.T) {
	n := gvisor(t)
	for command, want := range map[string]string{
		"hostname": "claimed",
		"pwd":      "/workspace",
		"stat -c '%a %U' /workspace /output /home/sandbox /tmp | sort -u": "1777 root\n755 sandbox",
		"stat -f -c %T /tmp /workspace | sort -u":                         n.sh("stat -f -c %T /"),
		"id -un; id -Gn": "sandbox\nsandbox extra",
		"ls -A /.cay":    "bin\ns",
		"cat /proc/1/environ 2>/dev/null | wc -c": "0",
		"touch /output/x ~/x /tmp/x && echo all":  "all",
	} {
		if got := n.sh(command); got != want {
			t.Errorf("%s: %q, wanted %q", command, got, want)
		}
	}
	claim := func(c *guestv1.Claim) *guestv1.Problem {
		return n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Claim{Claim: c}}).GetProblem()
	}
	if p := claim(&guestv1.Claim{SandboxId: "sbx_1"}); p != nil {
		t.Errorf("the same claim again: %v", p)
	}
	if p := claim(&guestv1.Claim{SandboxId: "sbx_2"}); p.GetReason() != "conflict" {
		t.Errorf("another's claim: %v", p)
	}
	stats := n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_GetStats{GetStats: &guestv1.GetStats{}}})).GetStats()
	if stats.DiskTotalBytes != 256<<20 || stats.DiskUsedBytes <= 0 || stats.Pids != 0 {
		t.Errorf("stats %v", stats)
	}
}

func TestRootOfTheSandboxCannotReachTheAgentOrLeaveItsTree(t *testing.T) {
	n := gvisor(t)
	for _, command := range []string{
		"mkdir -p /m && mount -t cgroup2 none /m", "mount -t tmpfs none /mnt", "hostname other", "mknod /tmp/d c 1 3",
		"for f in $(ls /proc/1/fd); do readlink /proc/1/fd/$f && exit 0; ls /proc/1/fd/$f/ && exit 0; done; exit 1",
		"head -c 1 /proc/1/mem", "cat /proc/1/environ | grep .", "ls /proc/1/root/", "ls /proc/1/cwd/", "ulimit -Hu 100000",
	} {
		if out, errs, exit := n.run(&guestv1.Start{Shell: command, User: "root", Cwd: "/"}); exit.Code == 0 {
			t.Errorf("%s: worked: %q %q", command, out, errs)
		}
	}
	for _, sig := range []string{"HUP", "INT", "QUIT", "TERM", "USR1", "ABRT", "SEGV", "PIPE", "ALRM", "IO", "SYS"} {
		n.run(&guestv1.Start{Shell: "kill -" + sig + " 1", User: "root"})
	}
	if n.sh("echo fine") != "fine" {
		t.Error("the agent fell to a signal")
	}
}

func TestADoubleForkWithoutSessionParentOrEnvironmentIsKilledWithItsTree(t *testing.T) {
	n := gvisor(t)
	p := n.shell(`(setsid env -i /bin/sh -c '(/bin/sleep 7001 &)' &) ; (setsid env -i /bin/sh -c '(setsid /bin/sleep 7002 &) &' &) ; echo up; sleep 7003`)
	p.says("up")
	eventually(t, "all hide", func() bool { return len(n.owned(p.id)) >= 3 })
	n.must(p.signal(9, true))
	for _, left := range n.processes() {
		if strings.Contains(strings.Join(left.Command, " "), "sleep 700") {
			t.Errorf("%v survives", left)
		}
	}
	p.wait()

	q := n.shell("setsid sh -c 'sleep 7004 & sleep 7005' & exit 0")
	q.wait() // ended and forgotten: the tree can still be named
	eventually(t, "the children run", func() bool { return len(n.owned(q.id)) >= 2 })
	n.must(q.signal(9, true))
	if left := n.owned(q.id); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	eventually(t, "the group is gone", func() bool { return q.signal(9, true).GetProblem().GetReason() == "not_found" })
}

func TestAForkBombStaysWithinTheLimitAndEndsWithItsTree(t *testing.T) {
	for _, name := range []string{"sandbox", "root"} {
		t.Run(name, func(t *testing.T) {
			n := gvisor(t)
			p := n.start(&guestv1.Start{Shell: ":(){ :|:& };:; sleep 1000", User: name})
			stats := func() int64 {
				return n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_GetStats{GetStats: &guestv1.GetStats{}}})).GetStats().GetPids()
			}
			eventually(t, "the bomb has gone off", func() bool { return stats() >= 50 })
			highest := int64(0)
			for began := time.Now(); time.Since(began) < 3*time.Second; <-time.After(20 * time.Millisecond) {
				highest = max(highest, stats())
			}
			if highest > 64 {
				t.Errorf("up to %d processes, 64 were promised", highest)
			}
			full := false
			for range 200 {
				q, r := n.try(&guestv1.Start{Argv: []string{"true"}})
				if r.GetProblem() == nil {
					q.wait()
					continue
				}
				if pr := r.GetProblem(); pr.Reason != "unprocessable" || !strings.Contains(pr.Detail, "process limit reached") {
					t.Errorf("a start in a full sandbox: %v", r)
				}
				full = true
				break
			}
			t.Logf("a start was refused: %v", full)
			n.must(p.signal(9, true))
			p.wait()
			if got := n.sh("echo fine"); got != "fine" || stats() != 0 {
				t.Errorf("afterwards: %q, %d processes", got, stats())
			}
		})
	}
}

func TestReclaimKillsTheLargestAndItsProcessSaysOom(t *testing.T) {
	n := gvisor(t)
	small := n.shell("sleep 1000")
	eat := "/usr/bin/python3 -c 'x=bytearray(120<<20); print(1, flush=True); import time; time.sleep(1000)'"
	direct := n.start(&guestv1.Start{Shell: "exec " + eat})
	direct.says("1")
	reclaim := func(promise int64) []*guestv1.Killed_Victim {
		return n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Reclaim{Reclaim: &guestv1.Reclaim{PromiseBytes: promise}}})).GetKilled().GetVictims()
	}
	if v := reclaim(256 << 20); len(v) != 1 || v[0].ProcessId != direct.id || v[0].RssBytes < 100<<20 || v[0].Pid != direct.pid {
		t.Errorf("victims %v", v)
	}
	if exit := direct.wait(); !exit.Oom || exit.Code != 137 {
		t.Errorf("exit %v", exit)
	}
	child := n.shell(eat + "; exit $?")
	child.says("1")
	reclaim(256 << 20)
	if exit := child.wait(); !exit.Oom || exit.Code != 137 || exit.Signal != 0 {
		t.Errorf("exit of the parent %v", exit)
	}
	if v := reclaim(1 << 40); len(v) != 1 || v[0].ProcessId != small.id {
		t.Errorf("without a large one: %v", v)
	}
	if exit := small.wait(); !exit.Oom {
		t.Errorf("exit %v", exit)
	}
}

func TestAFullDiskIsSaidAndLeavesNothing(t *testing.T) {
	n := gvisor(t)
	h := n.upload(&guestv1.WriteFile{Path: "/workspace/big"}, &zeros{left: 300 << 20})
	if h.GetProblem().GetReason() != "disk_full" {
		t.Errorf("a write beyond the disk: %v", h)
	}
	if left := n.sh("ls -A"); left != "" {
		t.Errorf("left %q", left)
	}
	n.run(&guestv1.Start{Shell: "head -c 400M /dev/zero > fill"})
	if n.sh("echo works") != "works" {
		t.Error("nothing runs on a full disk")
	}
	if r := n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Remove{Remove: &guestv1.Remove{Path: "/workspace/fill"}}}); r.GetProblem() != nil {
		t.Errorf("remove on a full disk: %v", r)
	}
	n.write1(t, "/workspace/small", "fits")
}

// zeros is a stream of zero bytes.
type zeros struct{ left int64 }

func (z *zeros) Read(b []byte) (int, error) {
	n := int(min(int64(len(b)), z.left))
	if n == 0 {
		return 0, fmt.Errorf("no more")
	}
	clear(b[:n])
	z.left -= int64(n)
	return n, nil
}

func TestFiveHundredQuickOrphansLeaveNoZombiesInside(t *testing.T) {
	n := gvisor(t)
	for range 50 {
		n.sh("for i in 1 2 3 4 5 6 7 8 9 0; do (sleep .05 &) ; done")
	}
	eventually(t, "no process is left", func() bool { return len(n.processes()) == 0 })
}

type discard struct{}

func (*discard) Write(b []byte) (int, error) { return len(b), nil }
