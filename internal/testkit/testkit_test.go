package testkit

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bare is an instance without a binary, for the parts that only look at the machine.
func bare(t *testing.T) *Instance {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cay")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &Instance{tempDir: dir, DataDir: filepath.Join(dir, "d"), Client: NewClient("", "")}
}

func TestAnInstanceThatNeverRanHasNoResidue(t *testing.T) {
	if err := bare(t).Residue().err(); err != nil {
		t.Fatal(err)
	}
}

func TestALeakedProcessIsFoundByItsCommandLineAndRemoved(t *testing.T) {
	i := bare(t)
	cmd := exec.Command("sh", "-c", "read x", i.DataDir+"/sandboxes/a")
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if n := len(i.Residue().Processes); n != 1 {
		t.Fatalf("found %d processes, want 1", n)
	}
	i.purge()
	if err := <-ended; err == nil {
		t.Fatal("the leaked process was not killed")
	}
}

func TestALeakedProcessIsFoundByItsEnvironment(t *testing.T) {
	i := bare(t)
	cmd := exec.Command("sh", "-c", "read x")
	cmd.Env = []string{"HOME=" + i.tempDir}
	hold, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, time.Minute, "the process is found", func() error {
		if len(i.Owned()) != 1 {
			return errors.New("not found")
		}
		return nil
	})
	hold.Close()
	_ = cmd.Wait()
}

func TestALeakedSocketFileAndDirectoryAreFound(t *testing.T) {
	i := bare(t)
	if err := os.MkdirAll(filepath.Join(i.DataDir, "sandboxes", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(i.tempDir, "d", "a.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := i.Residue()
	if len(r.Sockets) != 1 || len(r.Files) != 1 {
		t.Fatalf("found %+v", r)
	}
}

func TestALeakedMountAndCgroupAreFoundAndRemoved(t *testing.T) {
	RequireRoot(t)
	i := bare(t)
	at := filepath.Join(i.tempDir, "m")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", at, "tmpfs", 0, "size=4k"); err != nil {
		Missing(t, "permission to mount: %v", err)
	}
	group := "/sys/fs/cgroup/cay-" + i.Name()
	if _, err := os.Stat("/sys/fs/cgroup/pids"); err == nil {
		group = "/sys/fs/cgroup/pids/cay-" + i.Name()
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		_ = unix.Unmount(at, 0)
		Missing(t, "permission to make a cgroup: %v", err)
	}
	if r := i.Residue(); len(r.Mounts) != 1 || len(r.Cgroups) != 1 {
		t.Errorf("found %+v", r)
	}
	i.purge()
	if err := i.Residue().err(); err != nil {
		t.Fatalf("after the purge: %v", err)
	}
}

func serveEvents(t *testing.T, body string) *Client {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(srv.Close)
	return NewClient(srv.URL, "")
}

func TestAnEventStreamIsPutTogether(t *testing.T) {
	c := serveEvents(t, ": hello\n\nid: 0\nevent: start\ndata: {\"process_id\":\"prc_1\",\"offset\":0}\n\n"+
		"id: 3\nevent: stdout\ndata: {\"data\":\"a\\nb\"}\n\nid: 5\nevent: stderr\ndata: {\"data_base64\":\"/wA=\"}\n\n"+
		"event: exit\ndata: {\"exit_code\":7}\n\n")
	tr, err := c.StreamExec(context.Background(), "x", "y")
	if err != nil {
		t.Fatal(err)
	}
	if string(tr.Stdout) != "a\nb" || string(tr.Stderr) != "\xff\x00" || tr.Exit.ExitCode != 7 || tr.LastID != "5" {
		t.Fatalf("got %+v", tr)
	}
}

func TestAStreamThatEndsWithoutExitIsAnError(t *testing.T) {
	for name, body := range map[string]string{
		"between events": "event: stdout\ndata: {\"data\":\"a\"}\n\n",
		"within one":     "event: exit\ndata: {\"exit_code\":0}",
	} {
		if _, err := serveEvents(t, body).StreamExec(context.Background(), "x", "y"); err == nil {
			t.Errorf("cut %s: no error", name)
		}
	}
}

func TestUntilReportsTheLastError(t *testing.T) {
	n := 0
	err := Until(3*pollInterval, func() error { n++; return errors.New(strings.Repeat("x", n)) })
	if err == nil || len(err.Error()) != n {
		t.Fatalf("after %d calls: %v", n, err)
	}
	if err := Until(time.Second, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
}
