package peer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const bundle = `{"ociVersion":"1.0.2","process":{"args":["/.cay/bin/cay-agent"],"env":["A=b"],"cwd":"/"},"root":{"path":"/r"},
"mounts":[{"destination":"/usr/bin","type":"bind","source":"/usr/bin"},{"destination":"/.cay/s","type":"bind","source":"/run/cay/x/s/h"}],
"linux":{"cgroupsPath":"/cay/x","namespaces":[{"type":"pid"}]},"annotations":{"com.cayhq.cpus":"2"}}`

type decoded struct {
	Process struct {
		Args, Env []string
	}
	Mounts []struct{ Destination, Source string }
	Linux  struct {
		CgroupsPath string
		Namespaces  []any
	}
	Annotations map[string]string
}

func specOf(t *testing.T, argv []string, sockets string) decoded {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(bundle), 0o600); err != nil {
		t.Fatal(err)
	}
	raw, err := Like{Config: path}.spec(argv, sockets)
	if err != nil {
		t.Fatal(err)
	}
	var d decoded
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAPlainBundleRunsTheCommandInTheSameRoot(t *testing.T) {
	d := specOf(t, []string{"/bin/echo", "ready"}, "")
	if !slices.Equal(d.Process.Args, []string{"/bin/echo", "ready"}) || !slices.Equal(d.Process.Env, []string{"A=b"}) {
		t.Errorf("process %+v", d.Process)
	}
	if len(d.Mounts) != 1 || d.Mounts[0].Destination != "/usr/bin" {
		t.Errorf("mounts %+v: the agent's sockets are the server's", d.Mounts)
	}
	if d.Linux.CgroupsPath != "" || len(d.Linux.Namespaces) != 1 || d.Annotations["com.cayhq.cpus"] != "2" {
		t.Errorf("%+v", d)
	}
}

func TestTheAgentsBundleHasSocketsOfItsOwn(t *testing.T) {
	d := specOf(t, nil, "/tmp/own")
	if !slices.Equal(d.Process.Args, []string{"/.cay/bin/cay-agent"}) || len(d.Mounts) != 2 || d.Mounts[1].Source != "/tmp/own" {
		t.Errorf("%+v", d)
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
