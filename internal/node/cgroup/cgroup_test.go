package cgroup

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forEachTree runs a test on every kind of tree that this host can have and that enforces what the test needs. Where there is none, as
// for an ordinary user, nothing can be tested.
func forEachTree(t *testing.T, test func(t *testing.T, tree Tree), needs ...Controller) {
	h, err := readHost()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("cay-test-%d", os.Getpid())
	bare := host{v1: h.v1}
	kinds := map[string]func() (Tree, error){
		"v1 with a unified hierarchy": func() (Tree, error) {
			tree, err := openV1(h, name)
			if err == nil && tree.unified == nil {
				return nil, fmt.Errorf("no unified hierarchy")
			}
			return tree, err
		},
		"v1 alone": func() (Tree, error) { return openV1(bare, name) },
		"v2": func() (Tree, error) {
			if len(h.v1) > 0 && h.unified != nil {
				// On a hybrid host the unified hierarchy has no controllers; freezing and killing are the same.
				tree := &v2{dir: filepath.Join(h.unified.own, name)}
				return tree, tree.usable()
			}
			return openV2(h, name)
		},
	}
	ran := false
	for kind, open := range kinds {
		tree, err := open()
		if err != nil {
			t.Logf("%s: this host has none: %v", kind, err)
			continue
		}
		if slices.ContainsFunc(needs, func(r Controller) bool { return !tree.Enforces(r) }) {
			t.Logf("%s: %s", kind, tree.Note())
			continue
		}
		ran = true
		t.Run(kind, func(t *testing.T) {
			t.Cleanup(func() {
				if err := tree.Remove(); err != nil {
					t.Errorf("remove the tree: %v", err)
				}
				if names, err := tree.List(); err != nil || len(names) > 0 {
					t.Errorf("groups left: %v, %v", names, err)
				}
			})
			test(t, tree)
		})
	}
	if !ran && os.Getenv("CAY_TEST_REQUIRE_ALL") != "" && os.Geteuid() == 0 {
		t.Error("no kind of control group could be tested")
	}
}

func create(t *testing.T, tree Tree, l Limits) Group {
	t.Helper()
	g, err := tree.Create("leaf", l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := g.Kill(ctx); err != nil {
			t.Errorf("kill: %v", err)
		}
		if err := g.Remove(); err != nil {
			t.Errorf("remove: %v", err)
		}
		if g.Exists() {
			t.Error("the group still exists")
		}
	})
	return g
}

func start(t *testing.T, g Group, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := poll(ctx, func() (bool, error) { return ok(), nil }); err != nil {
		t.Fatalf("never: %s", what)
	}
}

func TestAProcessIsBornInItsGroupAndThisOneStaysOutside(t *testing.T) {
	forEachTree(t, func(t *testing.T, tree Tree) {
		before, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		g := create(t, tree, Limits{})
		cmd := exec.Command("/bin/cat", "/proc/self/cgroup")
		var out strings.Builder
		cmd.Stdout = &out
		if err := g.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		want := map[Version][]string{V1: {"cpu", "memory", "pids"}, V2: {""}}[tree.Version()]
		for line := range strings.Lines(out.String()) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			for c := range strings.SplitSeq(f[1], ",") {
				if slices.Contains(want, c) && !strings.HasSuffix(f[2], "/leaf") {
					t.Errorf("the process was in %s", line)
				}
			}
		}
		after, err := os.ReadFile("/proc/self/cgroup")
		if err != nil || string(before) != string(after) {
			t.Errorf("this process moved: %s", after)
		}
	})
}

func TestKillReachesForkingAndFrozenMembers(t *testing.T) {
	forEachTree(t, func(t *testing.T, tree Tree) {
		for name, frozen := range map[string]bool{"forking": false, "frozen": true} {
			t.Run(name, func(t *testing.T) {
				g := create(t, tree, Limits{Pids: 64})
				start(t, g, `while :; do sh -c 'sleep 100 & sleep .01' & sleep .01; done 2>/dev/null`)
				eventually(t, "several members", func() bool {
					p, err := g.Pids()
					return err == nil && len(p) > 5
				})
				if frozen {
					if err := g.Freeze(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := g.Kill(t.Context()); err != nil {
					t.Fatal(err)
				}
				if p, err := g.Pids(); err != nil || len(p) > 0 {
					t.Errorf("survivors: %v, %v", p, err)
				}
			})
		}
	})
}

func TestFreezingStopsTheClockOfAGroup(t *testing.T) {
	forEachTree(t, func(t *testing.T, tree Tree) {
		g := create(t, tree, Limits{})
		start(t, g, "while :; do :; done")
		used := func() time.Duration {
			u, err := g.Usage()
			if err != nil {
				t.Fatal(err)
			}
			return u.CPU
		}
		eventually(t, "cpu use", func() bool { return used() > 10*time.Millisecond })
		for range 2 { // idempotent
			if err := g.Freeze(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if frozen, err := g.Frozen(); err != nil || !frozen {
			t.Errorf("frozen: %v, %v", frozen, err)
		}
		before := used()
		other := exec.Command("/bin/sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")
		if err := other.Run(); err != nil { // time for the frozen one to go on, if it could
			t.Fatal(err)
		}
		if after := used(); after != before {
			t.Errorf("a frozen group used %v", after-before)
		}
		for range 2 {
			if err := g.Thaw(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "cpu use after the thaw", func() bool { return used() > before })
	})
}

func TestLimitsHold(t *testing.T) {
	forEachTree(t, func(t *testing.T, tree Tree) {
		t.Run("memory", func(t *testing.T) {
			g := create(t, tree, Limits{MemoryBytes: 48 << 20})
			cmd := start(t, g, "head -c 200000000 /dev/zero | tail >/dev/null; kill -9 $$")
			if err := cmd.Wait(); err == nil {
				t.Error("200 MB fitted into 48 MiB")
			}
			if n, err := g.OOMKills(); err != nil || n == 0 {
				t.Errorf("kills counted: %d, %v", n, err)
			}
			if u, err := g.Usage(); err != nil || u.Peak < 40<<20 || u.Peak > 48<<20 {
				t.Errorf("peak: %d, %v", u.Peak, err)
			}
		})
		t.Run("pids", func(t *testing.T) {
			g := create(t, tree, Limits{Pids: 8})
			cmd := start(t, g, "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 100 & done 2>/dev/null")
			if err := cmd.Wait(); err == nil {
				t.Error("11 processes fitted into 8")
			}
			if p, err := g.Pids(); err != nil || len(p) == 0 || len(p) > 8 {
				t.Errorf("members: %v, %v", p, err)
			}
		})
		t.Run("cpu", func(t *testing.T) {
			g := create(t, tree, Limits{CPU: 0.1})
			began := time.Now()
			start(t, g, "while :; do :; done & while :; do :; done")
			eventually(t, "300 ms of cpu use", func() bool {
				u, err := g.Usage()
				return err == nil && u.CPU > 300*time.Millisecond
			})
			if took := time.Since(began); took < 2*time.Second {
				t.Errorf("300 ms at a tenth of a core took %v", took)
			}
		})
	}, CPU, Memory, Pids)
}

func TestTheWatchReportsWhatCannotBeReclaimedAndNotPageCache(t *testing.T) {
	forEachTree(t, func(t *testing.T, tree Tree) {
		const threshold = 64 << 20
		g := create(t, tree, Limits{MemoryBytes: 512 << 20, MemoryWatch: threshold})
		ctx, cancel := context.WithCancel(t.Context())
		reports := make(chan int64, 1000)
		done := make(chan struct{})
		go func() {
			defer close(done)
			g.WatchMemory(ctx, threshold, func(n int64) { reports <- n })
		}()
		defer func() {
			cancel()
			<-done
		}()

		file := filepath.Join(t.TempDir(), "cache")
		cmd := exec.Command("/bin/sh", "-c", "head -c 150000000 /dev/zero >"+file)
		if err := g.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		select {
		case n := <-reports:
			t.Fatalf("page cache was reported as %d bytes of memory", n)
		default:
		}

		// tail holds everything, as there is no line, until it is killed.
		start(t, g, "(head -c 120000000 /dev/zero; sleep 100) | tail >/dev/null")
		for range 2 { // it says so again while memory stays above
			select {
			case n := <-reports:
				if n <= threshold {
					t.Errorf("%d bytes were reported, below the threshold", n)
				}
			case <-time.After(time.Minute):
				t.Fatal("no report")
			}
		}
	}, Memory)
}

func TestAGroupIsFoundAgainByItsLocationAndTakesItsTreeAlong(t *testing.T) {
	forEachTree(t, func(t *testing.T, tree Tree) {
		made, err := tree.Create("leaf", Limits{})
		if err != nil {
			t.Fatal(err)
		}
		cmd := start(t, made, "sleep 100")
		b, err := json.Marshal(made.Location())
		if err != nil {
			t.Fatal(err)
		}
		var l Location
		if err := json.Unmarshal(b, &l); err != nil {
			t.Fatal(err)
		}
		g := At(l)
		if p, err := g.Pids(); err != nil || !slices.Contains(p, cmd.Process.Pid) {
			t.Errorf("members: %v, %v", p, err)
		}
		if err := g.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := g.Remove(); err != nil {
			t.Fatal(err)
		}
		dirs := append(slices.Collect(maps.Values(l.Dirs)), l.Unified)
		for _, d := range dirs {
			if d != "" && exists(filepath.Dir(d)) {
				t.Errorf("%s is left", filepath.Dir(d))
			}
		}
	})
}

func TestAGroupThatIsNotThereHasNothing(t *testing.T) {
	forEachTree(t, func(t *testing.T, tree Tree) {
		g := tree.Open("nowhere")
		if g.Exists() {
			t.Error("it exists")
		}
		if p, err := g.Pids(); err != nil || len(p) != 0 {
			t.Errorf("pids: %v, %v", p, err)
		}
		if u, err := g.Usage(); err != nil || u != (Usage{}) {
			t.Errorf("usage: %+v, %v", u, err)
		}
		if n, err := g.OOMKills(); err != nil || n != 0 {
			t.Errorf("kills: %d, %v", n, err)
		}
		if frozen, err := g.Frozen(); err != nil || frozen {
			t.Errorf("frozen: %v, %v", frozen, err)
		}
		if err := g.Kill(t.Context()); err != nil {
			t.Errorf("kill: %v", err)
		}
		if err := g.Remove(); err != nil {
			t.Errorf("remove: %v", err)
		}
		g.WatchMemory(t.Context(), 1, func(int64) { t.Error("a report") })
	})
}

// TestV2LimitsAreWrittenAsTheKernelReadsThem uses plain files: not every machine has the controllers on version 2.
func TestV2LimitsAreWrittenAsTheKernelReadsThem(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []string{"cpu.max", "memory.max", "memory.high", "memory.swap.max", "pids.max"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g := &v2Group{dir: dir, enforces: wanted}
	if err := g.SetLimits(Limits{CPU: 1.5, MemoryBytes: 1 << 30, MemoryWatch: 1 << 29, Pids: 100}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"cpu.max": "150000 100000", "memory.max": "1073741824", "memory.high": "536870912", "memory.swap.max": "0", "pids.max": "100"} {
		if got, err := read(dir, file); err != nil || got != want {
			t.Errorf("%s is %q, want %q (%v)", file, got, want, err)
		}
	}
	stat := "anon 100\nfile 5000\nkernel 7\nshmem 20\nfile_mapped 9\nslab 1\n"
	if err := os.WriteFile(filepath.Join(dir, "memory.stat"), []byte(stat), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, err := g.memory(); err != nil || n != 120 {
		t.Errorf("memory: %d, %v", n, err)
	}
}
