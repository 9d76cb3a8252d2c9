//go:build peers

// The peers are not Cay's to test in every run, and few machines have them all: go test -tags peers ./test/bench/peer

package peer

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// runscOf is the runsc that the tests are told of, or that the build left; "" for none.
func runscOf(t *testing.T) string {
	t.Helper()
	return builtFile(os.Getenv("CAY_TEST_RUNSC"), "build/runsc")
}

// builtFile is told, or else the built file of the repository; "" when neither is there.
func builtFile(told, built string) string {
	for _, path := range []string{told, filepath.Join("../../..", built)} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if abs, err := filepath.Abs(path); err == nil {
			return abs
		}
	}
	return ""
}

// start starts p for the test, which is skipped where p is absent.
func start(t *testing.T, p Peer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := p.Start(ctx); errors.As(err, new(Absent)) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
}

// leavesNothing fails the test when, at its end, there are files, mounts or cgroups of its peers. Call it first.
func leavesNothing(t *testing.T, cgroup string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cbt") // short: paths of sockets are bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() {
		info, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range mountsBelow(string(info), dir) {
			t.Errorf("left a mount: %s", at)
		}
		if cgroup != "" {
			left, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroup)
			if len(left) > 0 {
				t.Errorf("left cgroups: %v", left)
			}
		}
		if err := os.Remove(dir); err != nil { // fails when something is in it
			t.Errorf("left files: %v", err)
		}
	})
}

func runs(t *testing.T, r Runner) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	first, err := r.Run(ctx, "/bin/echo", "hello")
	if err != nil || first <= 0 {
		t.Fatalf("%s run: %v, %v", r.Name(), first, err)
	}
	if _, err := r.Run(ctx, "/bin/sh", "-c", "echo out; exit 3"); err == nil {
		t.Errorf("%s run: a command that failed passed for a sample", r.Name())
	}
	if _, err := r.Run(ctx, "/bin/true"); err == nil {
		t.Errorf("%s run: a command without output has no first byte", r.Name())
	}
	if r.Version() == "" || r.Version() == "unknown" {
		t.Errorf("%s has no version", r.Name())
	}
}

func execs(t *testing.T, e Execer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := e.Exec(ctx, &out, "/bin/echo", "hello"); err != nil || out.String() != "hello\n" {
		t.Fatalf("%s exec: %q, %v", e.Name(), out.String(), err)
	}
	if err := e.Exec(ctx, io.Discard, "/bin/sh", "-c", "exit 3"); err == nil {
		t.Errorf("%s exec: a command that failed passed for a sample", e.Name())
	}
}

func TestNativeAndBwrapRunTheMachinesPrograms(t *testing.T) {
	runs(t, Native{})
	execs(t, Native{})
	b := new(Bwrap)
	start(t, b)
	runs(t, b)
}

func TestRuntimesRunTheHostsProgramsAndLeaveNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, p := range []Runner{
		&Box{OCI{Program: runscOf(t), Label: "runsc", Flags: []string{"--platform=systrap", "--network=none", "--ignore-cgroups"}}},
		&Box{OCI{Program: "runc", Label: "runc", Cgroup: "cay-bench-test"}},
		&OCI{Program: "crun", Label: "crun", Flags: []string{"--cgroup-manager=disabled"}, Hide: MixedCgroups()},
	} {
		t.Run(p.Name(), func(t *testing.T) {
			leavesNothing(t, "cay-bench-test")
			start(t, p)
			runs(t, p)
			if e, ok := p.(Execer); ok {
				execs(t, e)
			}
		})
	}
}

func TestPodmanLeavesNothing(t *testing.T) {
	p := &Podman{Cgroup: "cay-bench-test-podman"}
	leavesNothing(t, p.Cgroup)
	start(t, p)
	runs(t, p)
	execs(t, p)
}

func TestADockerDaemonOfOnesOwnLeavesNothing(t *testing.T) {
	d := &Docker{Runsc: runscOf(t), Cgroup: "cay-bench-test-docker"}
	leavesNothing(t, d.Cgroup)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := d.Start(ctx); errors.As(err, new(Absent)) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, runtime := range []string{"", "runsc"} {
		if runtime == "runsc" && d.Runsc == "" {
			continue
		}
		r := d.With(runtime)
		start(t, r)
		runs(t, r)
		execs(t, r)
	}
}

func TestAPeerThatIsNotInstalledIsAbsent(t *testing.T) {
	err := (&OCI{Program: "no-such-runtime", Label: "none"}).Start(t.Context())
	if !errors.As(err, new(Absent)) {
		t.Errorf("got %v", err)
	}
}

func TestTheImageHoldsThePrograms(t *testing.T) {
	var b bytes.Buffer
	if err := WriteImage(&b); err != nil {
		t.Fatal(err)
	}
	names := map[string]*tar.Header{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if names[h.Name] != nil {
			t.Errorf("%s twice", h.Name)
		}
		names[h.Name] = h
	}
	for _, program := range []string{"/bin/sh", "/bin/echo"} {
		at, err := filepath.EvalSymlinks(program)
		if err != nil {
			t.Fatal(err)
		}
		if h := names[at]; h == nil || h.Mode&0o111 == 0 {
			t.Errorf("%s (%s): %+v", program, at, h)
		}
	}
}

func TestLddIsUnderstood(t *testing.T) {
	got := parseLdd("\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f2)\n\tlibgone.so => not found\n")
	if want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMountsAreTakenApartFromTheInside(t *testing.T) {
	info := "1 0 8:1 / / rw - ext4 a rw\n2 1 0:5 / /t/x rw - tmpfs a rw\n3 2 0:6 / /t/x/y rw - tmpfs a rw\n4 1 0:7 / /t/xy rw - tmpfs a rw\n"
	if got := mountsBelow(info, "/t/x"); !slices.Equal(got, []string{"/t/x/y", "/t/x"}) {
		t.Errorf("got %v", got)
	}
}

func TestTheAgentAloneRunsCommandsAndStreams(t *testing.T) {
	runsc, agent := runscOf(t), builtFile(os.Getenv("CAY_TEST_AGENT"), "build/cay-agent")
	if runsc == "" || agent == "" || os.Geteuid() != 0 {
		t.Skip("needs root, runsc and the agent, which `make build` leaves under build/")
	}
	leavesNothing(t, "")
	dir := t.TempDir()
	if err := makeRoot(filepath.Join(dir, "root"), "/.cay/bin", agentSockets); err != nil {
		t.Fatal(err)
	}
	s := hostSpec(filepath.Join(dir, "root"), []string{"/.cay/bin/" + filepath.Base(agent), "-socket", agentSockets + "/a.sock"})
	all := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE",
		"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_RESOURCE"}
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Effective: all, Permitted: all}
	s.Mounts = append(s.Mounts,
		specs.Mount{Destination: "/.cay/bin", Type: "bind", Source: filepath.Dir(agent), Options: []string{"bind", "ro"}},
		specs.Mount{Destination: agentSockets, Type: "bind", Source: "/nowhere", Options: []string{"bind", "ro"}})
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	a := &Agent{Runsc: runsc, Like: Like{Config: config, Flags: []string{
		"--platform=systrap", "--network=none", "--ignore-cgroups", "--host-uds=open", "--overlay2=root:dir=/nowhere,size=1000000",
	}}}
	start(t, a)
	execs(t, a)
	var n int
	if err := a.Exec(t.Context(), writerFunc(func(p []byte) { n += len(p) }), "/bin/dd", "if=/dev/zero", "bs=64k", "count=100", "status=none"); err != nil || n != 100*64<<10 {
		t.Errorf("%d bytes, %v", n, err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}
