package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

func TestR1AForkBombFailsInsideAndHurtsNobodyElse(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{})
	neighbour := inst.Create(t)
	percentile := func() time.Duration {
		var took []time.Duration
		for range 40 {
			begun := time.Now()
			neighbour.MustSay("ok\n", "echo ok")
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		return took[len(took)*9/10]
	}
	quiet := percentile()
	for name, bomb := range map[string]string{
		"shell": `bash -c ":(){ :|:& };:"; sleep 300`,
		// bash gives up once it cannot fork; what holds the exec until its timeout must not need to.
		"own sessions":   `(b(){ setsid sh -c 'sleep 300' & b; }; while :; do b; done); while :; do :; done`,
		"ignoring TERM":  `trap '' TERM; f(){ f & f & sleep 300; }; f; sleep 300`,
		"bomb as a file": `printf '#!/bin/sh\n$0 & $0 & sleep 300\n' > /tmp/b; chmod +x /tmp/b; /tmp/b; sleep 300`,
	} {
		t.Run(name, func(t *testing.T) {
			sb := inst.Create(t, fields{"pids": 64, "cpu": 0.5})
			stream, _ := sb.Open(t.Context(), bomb, fields{"timeout_seconds": testkit.Scaled(6, 20)})
			loud := percentile()
			t.Logf("neighbour's p90: %v quiet, %v beside the bomb", quiet, loud)
			if testkit.Soak() && loud > 2*quiet+10*time.Millisecond {
				t.Errorf("neighbour's p90 rose from %v to %v", quiet, loud)
			}
			if resp, err := inst.Do(t.Context(), "GET", "/v1/sandboxes", nil); err != nil || resp.Status != 200 {
				t.Errorf("the API: %v %v", resp, err)
			}
			tr, err := stream.ReadAll()
			if err != nil || tr.Exit == nil {
				t.Fatalf("the bomb's exec: %v, %+v", err, tr.Error)
			}
			// The tree is dead, and the sandbox is of use again.
			if out := sb.X("echo usable"); out.Stdout != "usable\n" {
				t.Errorf("afterwards: %+v", out)
			}
			if left := sb.Others(); len(left) != 0 {
				t.Errorf("%d survivors of the bomb, such as %q", len(left), left[0])
			}
			begun := time.Now()
			if err := inst.DeleteSandbox(t.Context(), sb.ID); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("delete took %v", took)
			}
		})
	}
}

func TestR1TheProcessLimitIsThePromisedOne(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"pids": 40})
	out := sb.X(`n=0; while [ $n -lt 100 ]; do sleep 30 & n=$((n+1)); done 2>&1; echo made $n`, fields{"timeout_seconds": 30})
	if !strings.Contains(out.Stdout+out.Stderr, "fork") && out.ExitCode == 0 {
		t.Errorf("100 processes were made: %+v", out)
	}
	// What is full stays reachable: the platform needs no process of the promise. Another command is refused with a reason.
	if n := listed(t, sb, "sleep 30"); n > 40 || n < 30 {
		t.Errorf("%d processes run, promised are 40", n)
	}
	if resp := sb.Call("POST", "/exec", fields{"command": "true"}); resp.Status == 422 && !strings.Contains(resp.Problem().Detail, "process limit") || resp.Status >= 500 {
		t.Errorf("one more: %v", resp)
	}
	sb.Put("/workspace/f", []byte("x"))
}

// hog takes memory until it is stopped; perl is part of every Debian, and its string is resident at once.
const hog = `perl -e '$x = "a" x (%d << 20); print length($x) >> 20, "\n"; sleep %d'`

func TestR2AllocatingPastTheLimitIsKilledAtTheLimit(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
	sb := inst.Create(t, fields{"memory_mb": 256})
	sb.RequireProgram("perl")
	sb.MustSay("128\n", fmt.Sprintf(hog, 128, 0))
	before := inst.Memory()
	peak := int64(0)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
				peak = max(peak, inst.Memory())
			}
		}
	}()
	out := sb.X(fmt.Sprintf(hog, 384, 5), fields{"timeout_seconds": 60})
	close(quit)
	<-done
	t.Logf("host: %d MiB before, at most %d MiB", before>>20, peak>>20)
	if !out.OOM || out.Reason != "oom" || out.OK {
		t.Errorf("%+v", out)
	}
	if peak < 200<<20 || peak > (256+192)<<20 { // the promise, the sandbox's own kernel, and the backstop's distance
		t.Errorf("the host gave %d MiB for a promise of 256", peak>>20)
	}
	livesOrDiedOfOOM(t, sb)
}

// livesOrDiedOfOOM: a sandbox that ran out of memory answers, or says soon that it ended for that.
func livesOrDiedOfOOM(t *testing.T, sb *testkit.Sandbox) {
	t.Helper()
	testkit.Eventually(t, time.Minute, "it lives or says what it died of", func() error {
		out, err := sb.Client.Exec(t.Context(), sb.ID, "echo alive")
		if err == nil && out.Stdout == "alive\n" {
			return nil
		}
		now := sb.Refresh()
		if now.StatusReason == "oom" {
			t.Log("the sandbox died of it")
			return nil
		}
		return fmt.Errorf("%v, and it is %s %s", err, now.Status, now.StatusReason)
	})
}

func TestR3RunningOutOfMemoryIsSaidAndTheSandboxLivesOrSaysThatItDied(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{
		"one big allocation":   `python3 -c "x=bytearray(2<<30)"`,
		"grown step by step":   `python3 -c "` + "\nx=[]\nwhile True: x.append(bytearray(4<<20))" + `"`,
		"many small processes": `for i in $(seq 30); do python3 -c "x=bytearray(40<<20); import time; time.sleep(30)" & done; wait`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := box(t, fields{"memory_mb": 512})
			sb.RequireProgram("python3")
			bystander, _ := sb.Open(t.Context(), `while :; do sleep 1; done`)
			defer bystander.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, err := sb.Client.Exec(ctx, sb.ID, command, fields{"timeout_seconds": 20})
			livesOrDiedOfOOM(t, sb)
			if err != nil {
				return // it died of it
			}
			if out.OK || strings.Contains(name, "one") && (!out.OOM || out.Reason != "oom") {
				// Python may also be refused the memory and say so itself.
				if !strings.Contains(out.Stderr, "MemoryError") {
					t.Errorf("%+v", out)
				}
			}
		})
	}
}

func TestR3AFastAllocationDoesNotOutrunTheLimit(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"memory_mb": 256})
	sb.RequireProgram("perl")
	for range 3 {
		out, err := sb.Client.Exec(t.Context(), sb.ID, fmt.Sprintf(hog, 2048, 5), fields{"timeout_seconds": 60})
		livesOrDiedOfOOM(t, sb)
		if sb.Refresh().Status != "READY" {
			return
		}
		if err != nil || !out.OOM || out.Reason != "oom" {
			t.Fatalf("%+v %v", out, err)
		}
	}
}

func TestR4AFullDiskIsENOSPCAndTheSandboxStaysOfUse(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"/workspace", "/tmp", "/output", "/home/sandbox", "/dev/shm", "/var/tmp", "/"} {
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			sb := box(t, fields{"disk_gb": 0.1, "memory_mb": 512})
			user := "sandbox"
			if dir == "/" {
				user = "root"
			}
			fill := strings.TrimSuffix(dir, "/") + "/fill"
			out := sb.X("dd if=/dev/zero of="+fill+" bs=1M count=1000", fields{"timeout_seconds": 100, "user": user})
			if out.ExitCode == 0 {
				t.Fatalf("a gigabyte fits into a promise of 0.1 GB (or of 512 MiB)")
			}
			if dir != "/var/tmp" && !strings.Contains(out.Stderr, "No space left") && !strings.Contains(out.Stderr, "ermission denied") && !out.OOM {
				t.Errorf("%+v", out)
			}
			sb.MustSay("alive\n", "echo alive")
			if dir != "/dev/shm" && strings.Contains(out.Stderr, "No space left") {
				if resp := sb.Call("PUT", testkit.FilePath("/workspace/more"), noise(8<<20)); resp.Status != 507 && resp.Status/100 != 2 {
					t.Errorf("an upload onto the full disk: %v", resp)
				}
			}
			sb.Must("rm -f "+fill, fields{"user": user})
			sb.Put("/workspace/after", noise(4<<20))
			if got := sb.Get("/workspace/after"); len(got) != 4<<20 {
				t.Errorf("%d bytes came back", len(got))
			}
		})
	}
}

func TestR4TheAgentsOwnDirectoryCannotBeFilled(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"disk_gb": 0.1})
	out := sb.X(`ls -laR /.cay; for d in /.cay /.cay/s; do dd if=/dev/zero of=$d/fill bs=1M count=400; done`, fields{"user": "root"})
	if out.ExitCode == 0 {
		t.Errorf("400 MiB went into the agent's directory: %q", out.Stdout)
	}
	sb.MustSay("alive\n", "echo alive")
}

func TestR4OutputIsBoundedOnTheHost(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
	sb := inst.Create(t)
	before := diskUse(t, inst.DataDir)
	megabytes := testkit.Scaled(400, 10_000)
	out := sb.X(fmt.Sprintf("head -c %d /dev/zero", megabytes<<20), fields{"timeout_seconds": 170, "max_output_bytes": 1 << 20})
	if out.StdoutSize != int64(megabytes)<<20 && !out.TimedOut {
		t.Errorf("size %d", out.StdoutSize)
	}
	if grown := diskUse(t, inst.DataDir) - before; grown > 64<<20 {
		t.Errorf("%d MiB of output left %d MiB on the host", megabytes, grown>>20)
	}
	sb.MustSay("alive\n", "echo alive")
}

// diskUse is what a tree holds, in bytes on the disk.
func diskUse(t *testing.T, root string) int64 {
	t.Helper()
	var sum int64
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // what vanishes meanwhile counts nothing
		}
		if info, err := d.Info(); err == nil {
			sum += testkit.Blocks(info)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
