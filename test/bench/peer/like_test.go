package peer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const bundle = `{"ociVersion":"1.0.2","process":{"args":["/.cay/bin/cay-agent"],"env":["A=b"],"cwd":"/"},"root":{"path":"/r"},
"mounts":[{"destination":"/usr/bin","type":"bind","source":"/usr/bin"},{"destination":"/.cay/s","type":"bind","source":"/run/cay/x/s/h"}],
"linux":{"cgroupsPath":"/cay/x","namespaces":[{"type":"pid"}]},"annotations":{"com.cayhq.cpus":"2","dev.gvisor.spec.mount.channel.source":"/run/cay/x/s/h"}}`

func specOf(t *testing.T, argv []string, sockets string) specs.Spec {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(bundle), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := Like{Config: path}.spec(argv, sockets)
	if err != nil {
		t.Fatal(err)
	}
	var d specs.Spec
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestABundleRunsTheCommandInTheSameRootWithSocketsOfItsOwn(t *testing.T) {
	d := specOf(t, []string{"/bin/echo", "ready"}, "/tmp/own")
	if !slices.Equal(d.Process.Args, []string{"/bin/echo", "ready"}) || !slices.Equal(d.Process.Env, []string{"A=b"}) {
		t.Errorf("process %+v", d.Process)
	}
	if len(d.Mounts) != 2 || d.Mounts[0].Source != "/usr/bin" || d.Mounts[1].Source != "/tmp/own" {
		t.Errorf("mounts %+v", d.Mounts)
	}
	if d.Root.Path != "/r" || d.Linux.CgroupsPath != "" || len(d.Linux.Namespaces) != 1 {
		t.Errorf("%+v", d)
	}
	if d.Annotations["com.cayhq.cpus"] != "2" || d.Annotations["dev.gvisor.spec.mount.channel.source"] != "/tmp/own" {
		t.Errorf("annotations %v", d.Annotations)
	}
}

func TestWithoutACommandTheAgentRuns(t *testing.T) {
	if d := specOf(t, nil, "/tmp/own"); !slices.Equal(d.Process.Args, []string{"/.cay/bin/cay-agent"}) {
		t.Errorf("%v", d.Process.Args)
	}
}

func TestWhatASandboxWritesGoesToADirectoryOfItsOwn(t *testing.T) {
	l := Like{Flags: []string{"--platform=systrap", "--overlay2=root:dir=/data/h/disk,size=5/nr_inodes=6"}}
	if got, want := l.flags("/own"), []string{"--platform=systrap", "--overlay2=root:dir=/own,size=5/nr_inodes=6"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestFlagsAreTakenFromARunningSandbox(t *testing.T) {
	got := RunscFlags([]string{"runsc-sandbox", "--root=/run/x", "--log-fd=3", "--platform=systrap", "--debug-log=/x", "-overlay2=none", "boot", "--bundle=/b", "--controller-fd=4"})
	if want := []string{"--platform=systrap", "-overlay2=none"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if RunscFlags(nil) != nil {
		t.Error("flags of nothing")
	}
}
