package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/bundle"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/driver/drivertest"
	"github.com/cayhq/cay/internal/node/cgroup"
	"github.com/cayhq/cay/internal/node/mounts"
)

func TestMain(m *testing.M) {
	if drivertest.Child(func(setup json.RawMessage) (driver.Driver, error) {
		var cfg Config
		if err := json.Unmarshal(setup, &cfg); err != nil {
			return nil, err
		}
		return New(context.Background(), cfg)
	}) {
		return
	}
	goleak.VerifyTestMain(m)
}

// executable is the runsc to test with: CAY_TEST_RUNSC, else the one that this binary carries.
func executable(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("CAY_TEST_RUNSC"); path != "" {
		return path
	}
	paths, err := bundle.Unpack(t.Context(), shortDir(t))
	if errors.Is(err, bundle.ErrEmpty) && os.Getenv("CAY_TEST_REQUIRE_ALL") == "" {
		t.Skip("no runsc: set CAY_TEST_RUNSC or run make build")
	} else if err != nil {
		t.Fatal(err)
	}
	return paths.Runsc
}

// shortDir is a temporary directory whose path leaves room for sockets, and which other users can pass.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func shape() driver.Shape {
	return driver.Shape{Image: "host", CPU: 1, MemoryMB: 256, DiskGB: 0.0625, Pids: 128}
}

// installation makes one in a directory of its own.
func installation(t *testing.T, runsc, agent string, version cgroup.Version) *drivertest.Installation {
	t.Helper()
	dir := shortDir(t)
	cfg := Config{
		DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), Runsc: runsc, Agent: agent,
		Instance: filepath.Base(dir), Cgroups: version,
	}
	return &drivertest.Installation{
		Shape:      shape(),
		ChildSetup: cfg,
		Open: func(t *testing.T) driver.Driver {
			t.Helper()
			d, err := New(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Residue: func(t *testing.T) []string { return residue(t, dir) },
		Processes: func(t *testing.T, h driver.Handle, p drivertest.Part) []int {
			name := map[drivertest.Part]string{drivertest.Kernel: "runsc-sandbox", drivertest.Files: "runsc-gofer"}[p]
			return processes(t, func(cmdline []byte) bool {
				return strings.HasPrefix(string(cmdline), name) && isStray(cmdline, filepath.Join(cfg.RunDir, "runsc"), h)
			})
		},
	}
}

func processes(t *testing.T, match func(cmdline []byte) bool) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")); err == nil && match(b) {
			out = append(out, pid)
		}
	}
	return out
}

// residue lists what names the installation in dir, but the files that are meant to stay.
func residue(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	for _, pid := range processes(t, func(b []byte) bool { return strings.Contains(string(b), dir+"/") }) {
		if pid != os.Getpid() {
			out = append(out, fmt.Sprintf("process %d", pid))
		}
	}
	points, err := mounts.At(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range points {
		if filepath.Base(m) != "null-netns" && m != filepath.Join(dir, "run", "v") { // of all sandboxes together
			out = append(out, "mount "+m)
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && filepath.Base(filepath.Dir(path)) == "cay-"+filepath.Base(dir) {
			out = append(out, "control group "+path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(sockets)) {
		if strings.Contains(line, dir+"/") {
			out = append(out, "socket "+strings.TrimSpace(line))
		}
	}
	for _, pattern := range []string{"data/sandboxes/*", "run/s/*", "run/points/*", "run/runsc/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if filepath.Base(f) != "null-netns" {
				out = append(out, "file "+f)
			}
		}
	}
	return out
}

func TestGVisorAsRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	runsc, agent := executable(t), drivertest.BuildAgent(t)
	t.Run("with control groups", func(t *testing.T) {
		drivertest.Run(t, func(t *testing.T) *drivertest.Installation { return installation(t, runsc, agent, "") })
	})
	t.Run("without", func(t *testing.T) {
		drivertest.Run(t, func(t *testing.T) *drivertest.Installation { return installation(t, runsc, agent, cgroup.None) })
	})
}

// TestGVisorWithoutRoot runs the suite as an ordinary user: as it is, or, started by root, in a child that has given root up.
func TestGVisorWithoutRoot(t *testing.T) {
	runsc, agent := executable(t), drivertest.BuildAgent(t)
	if os.Geteuid() != 0 {
		drivertest.Run(t, func(t *testing.T) *drivertest.Installation { return installation(t, runsc, agent, "") })
		return
	}
	const uid = 64321 // nobody's
	dir := shortDir(t)
	for _, d := range []string{"home", "tmp"} {
		if err := errors.Join(os.Mkdir(filepath.Join(dir, d), 0o700), os.Chown(filepath.Join(dir, d), uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	copied := map[string]string{"runsc": runsc, "agent": agent, "test": must(t, os.Executable)}
	for name, from := range copied {
		to := filepath.Join(dir, name)
		if out, err := exec.Command("cp", from, to).CombinedOutput(); err != nil {
			t.Fatalf("copy %s: %s", name, out)
		}
		if err := os.Chmod(to, 0o755); err != nil {
			t.Fatal(err)
		}
		copied[name] = to
	}
	cmd := exec.Command(copied["test"], "-test.run=^TestGVisorWithoutRoot$", "-test.v="+strconv.FormatBool(testing.Verbose()), "-test.timeout=8m")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "XDG_RUNTIME_DIR=") }),
		"CAY_TEST_RUNSC="+copied["runsc"], "CAY_DRIVERTEST_AGENT="+copied["agent"], "HOME="+filepath.Join(dir, "home"), "TMPDIR="+filepath.Join(dir, "tmp"))
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("as uid %d:\n%s", uid, out)
	if err != nil {
		t.Error(err)
	}
}

func must(t *testing.T, f func() (string, error)) string {
	t.Helper()
	s, err := f()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestRunscSaysItsVersion(t *testing.T) {
	out, err := exec.Command(executable(t), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if first, _, _ := strings.Cut(string(out), "\n"); first != "runsc version "+runscVersion {
		t.Errorf("%q: a build without the version accepts the state of any other", first)
	}
}

func TestEmptyFilesDoNotFillTheMemory(t *testing.T) {
	const each = 2500 // bytes of the sentry's memory, measured
	for _, s := range []driver.Shape{{MemoryMB: 64, DiskGB: 4}, {MemoryMB: 256, DiskGB: 100}, {MemoryMB: 1024, DiskGB: 0.1}, {MemoryMB: 1024, DiskGB: 4}} {
		n := inodes(s)
		if n < 1<<14 || n*each > s.MemoryMB<<20*2/3 {
			t.Errorf("%d files in %d MB", n, s.MemoryMB)
		}
	}
	if n := inodes(driver.Shape{MemoryMB: 1024, DiskGB: 4}); n != 4*inodesPerGB {
		t.Errorf("%d files on 4 GB", n)
	}
}

func TestAProcessIsKnownByItsStart(t *testing.T) {
	cmd := exec.Command("sleep", "100")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	other := process{PID: p.PID, Start: p.Start + 1}
	if _, err := other.open(); !errors.Is(err, driver.ErrGone) {
		t.Errorf("a process of another start was opened: %v", err)
	}
	if alive, err := other.kill(); alive || err != nil {
		t.Errorf("it was killed for another: %v, %v", alive, err)
	}
	f, err := p.open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if hasExited(f.Fd()) {
		t.Error("it has exited")
	}
	if alive, err := p.kill(); !alive || err != nil {
		t.Errorf("kill: %v, %v", alive, err)
	}
	if err := awaitExit(f); err != nil {
		t.Fatal(err)
	}
	p.reap()
	if _, err := readStat(p.PID); err == nil {
		t.Error("it is a zombie still")
	}
	if err := unix.Kill(p.PID, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("its pid: %v", err)
	}
	_ = cmd.Wait() // it was reaped already
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("1 (a) b) S 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21"))
	f.Add([]byte("1 (x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStat(b); err == nil && s.state == 0 {
			t.Error("no state")
		}
	})
}
