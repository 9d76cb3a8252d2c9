package image

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// fakeHost makes a small host: a merged /usr, one runtime in /usr/local, secrets around them.
func fakeHost(t *testing.T) string {
	t.Helper()
	host := t.TempDir()
	for _, d := range []string{"usr/bin", "usr/sbin", "usr/lib/modules/6.1", "usr/lib64", "usr/share", "usr/src", "usr/local/bin", "usr/local/go/bin", "etc/alternatives", "etc/ssl/certs", "etc/ssl/private", "etc/fonts", "opt"} {
		if err := os.MkdirAll(filepath.Join(host, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]fs.FileMode{
		"usr/bin/python3": 0o755, "usr/bin/bash": 0o755, "usr/bin/sh": 0o755, "usr/local/go/bin/go": 0o755, "usr/local/bin/deploy-token": 0o755,
		"etc/shadow": 0o640, "etc/passwd": 0o644, "etc/matplotlibrc": 0o644, "etc/fonts/fonts.conf": 0o644, "etc/ssl/certs/ca-certificates.crt": 0o644, "etc/ssl/certs/local.key": 0o600, "etc/ssl/private/key.pem": 0o644,
	} {
		if err := os.WriteFile(filepath.Join(host, name), []byte("#!/bin/sh\necho go version go1.22.3\n# "+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "etc/alternatives/awk": "/usr/bin/mawk", "etc/ssl/certs/a.0": "ca-certificates.crt",
	} {
		if err := os.Symlink(target, filepath.Join(host, link)); err != nil {
			t.Fatal(err)
		}
	}
	return host
}

func buildFake(t *testing.T) (host, root string, m []specs.Mount) {
	t.Helper()
	host = fakeHost(t)
	root = filepath.Join(t.TempDir(), "root")
	locals := localRuntimes(host)
	m = mounts(host, locals)
	if err := build(host, root, m, locals); err != nil {
		t.Fatal(err)
	}
	return host, root, m
}

func TestTheRootHoldsWhatProgramsNeed(t *testing.T) {
	_, root, _ := buildFake(t)
	for _, setting := range []string{"matplotlibrc", "fonts/fonts.conf"} { // Debian's matplotlib does not load without the first
		if _, err := os.Stat(filepath.Join(root, "etc", setting)); err != nil {
			t.Error(err)
		}
	}
	for path, want := range map[string]string{
		"bin": "usr/bin", "lib64": "usr/lib64", "etc/alternatives/awk": "/usr/bin/mawk", "etc/ssl/certs/a.0": "ca-certificates.crt",
		"usr/local/bin/python": "/usr/bin/python3", "usr/local/bin/go": "../go/bin/go",
	} {
		if got, err := os.Readlink(filepath.Join(root, path)); err != nil || got != want {
			t.Errorf("%s leads to %q, want %q (%v)", path, got, want, err)
		}
	}
	for path, want := range map[string]fs.FileMode{"tmp": fs.ModeSticky | 0o777, "root": 0o700, "workspace": 0o755, "usr/lib": 0o755, ".cay/s": 0o755, "usr/local/go": 0o755} {
		st, err := os.Stat(filepath.Join(root, path))
		if err != nil || !st.IsDir() || st.Mode()&(fs.ModePerm|fs.ModeSticky) != want {
			t.Errorf("%s: %v, %v", path, st, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(root, "etc/passwd")); err != nil || !strings.Contains(string(b), "sandbox:x:2000:2000:sandbox:/home/sandbox:/bin/bash\n") {
		t.Errorf("passwd: %s, %v", b, err)
	}
	if entries, err := os.ReadDir(filepath.Join(root, "tmp")); err != nil || len(entries) == 0 {
		t.Error("/tmp is empty: gVisor would mount memory over it")
	}
}

func TestNothingSecretIsInTheRootOrMounted(t *testing.T) {
	_, root, m := buildFake(t)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		for _, secret := range []string{"shadow", "local.key", "private", "deploy-token"} {
			if d.Name() == secret {
				t.Errorf("%s is shown", path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range m {
		if mount.Destination == "/usr/local" || mount.Destination == "/usr/local/bin" || mount.Destination == "/usr/src" || mount.Destination == "/usr" {
			t.Errorf("%s is shown", mount.Destination)
		}
		if mount.Type == "bind" {
			for _, o := range []string{"ro", "nosuid", "bind"} {
				if !slices.Contains(mount.Options, o) {
					t.Errorf("%s is not mounted %s", mount.Destination, o)
				}
			}
		}
	}
	if !slices.ContainsFunc(m, func(m specs.Mount) bool { return m.Destination == "/usr/lib/modules" && m.Type == "tmpfs" }) {
		t.Error("kernel modules are shown")
	}
	if slices.ContainsFunc(m, func(m specs.Mount) bool { return m.Destination == "/lib" }) {
		t.Error("a symlink is mounted")
	}
}

func TestTheFingerprintChangesWithThePackages(t *testing.T) {
	host := fakeHost(t)
	first, err := fingerprint(host)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := fingerprint(host); again != first {
		t.Error("it changes by itself")
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(host, "usr/bin"), old, old); err != nil {
		t.Fatal(err)
	}
	if now, _ := fingerprint(host); now == first {
		t.Error("a change of /usr/bin is not seen")
	}
	if _, err := fingerprint(t.TempDir()); err == nil {
		t.Error("an empty host has a fingerprint")
	}
}

func TestRuntimesAreAskedForTheirVersion(t *testing.T) {
	host := fakeHost(t)
	got := detect(t.Context(), host, localRuntimes(host))
	names := map[string]Runtime{}
	for _, r := range got {
		names[r.Name] = r
	}
	if r := names["go"]; r.Version != "1.22.3" || !slices.Equal(r.Exec, []string{"/usr/local/go/bin/go", "run"}) {
		t.Errorf("go: %+v", r)
	}
	if _, ok := names["javascript"]; ok {
		t.Error("a runtime that is missing is named")
	}
	if r := names["sh"]; len(r.Exec) != 1 {
		t.Errorf("sh: %+v", r)
	}
}

func TestVersionsCompareAsNumbers(t *testing.T) {
	for v, want := range map[string]bool{"22.6.0": true, "22.10.1": true, "23.0.0": true, "22.5.9": false, "18.19.0": false, "": false, "22": false} {
		if got := atLeast(v, "22.6"); got != want {
			t.Errorf("%q: %v", v, got)
		}
	}
}

func TestTheImageOfThisHostIsBuiltOnceAndPruned(t *testing.T) {
	dir := t.TempDir()
	h, err := BuildHost(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(h.Root())
	if err != nil {
		t.Fatal(err)
	}
	again, err := BuildHost(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(again.Root()); err != nil || !os.SameFile(before, after) {
		t.Error("it was built twice")
	}
	for _, r := range h.Runtimes() {
		if r.Name == "sh" {
			continue
		}
		if out, err := exec.Command(r.Exec[0], "--help").CombinedOutput(); len(out) == 0 {
			t.Errorf("%s does not run: %v", r.Name, err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "host-old"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Prune(dir, map[string]bool{h.Name(): true}); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
