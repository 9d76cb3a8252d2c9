package attack

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// Defence: a volume is mounted without devices and set-id bits; its files are reached by a helper sandbox's agent, never by the host;
// bytes and inodes are those of its own file system.
func TestWhatAGuestPlantsInASessionHarmsNobody(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	session := inst.Session(t, fields{"disk_gb": 0.125})
	sb := inst.Create(t, fields{"session_id": session.ID})
	root := fields{"user": "root", "timeout_seconds": 120}
	sb.X(`cd /session; mknod null c 1 3; mknod disk b 8 0; mkfifo -m 666 fifo; cp "$(command -v id)" id; chmod 6755 id; ls -ln id`, root) // devices may be refused
	sb.RequireProgram("python3")
	sb.Must(`python3 -c "
import socket; socket.socket(socket.AF_UNIX).bind('/session/sock')"`, root)
	sb.Must(`cd /session; printf x > "$(printf 'n%.0s' $(seq 255))"; d=.; for i in $(seq 60); do d=$d/dddddddddd; done; mkdir -p $d; chmod -R 777 dddddddddd; ln -s / up; echo secret > mine; chmod 000 mine`, root)
	if out := sb.X("/session/id -u"); out.ExitCode == 0 && strings.TrimSpace(out.Stdout) != "2000" {
		t.Errorf("a set-id program of a volume runs as %q", out.Stdout)
	}
	if out := sb.X("cat /session/disk | head -c 10 | wc -c; [ ! -e /session/null ] || echo x > /session/null"); out.OK && !strings.HasPrefix(out.Stdout, "0") {
		t.Errorf("a device of a volume is one: %q", out.Stdout)
	}
	if err := inst.DeleteSandbox(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	// The file explorer meets all of it.
	for _, path := range []string{"null", "disk", "fifo", "sock", "up", "mine", "dddddddddd"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		resp, err := inst.Do(ctx, "GET", session.Path(testkit.SessionFile(path)), nil)
		cancel()
		if err != nil || resp.Status/100 != 4 {
			t.Errorf("download %s: %v %v", path, resp, err)
		}
	}
	for _, rest := range []string{"/files?path=/&depth=100", "/files?path=up/etc", "/archive?format=tar.gz"} {
		if resp := session.Call("GET", rest, nil); resp.Status >= 500 {
			t.Errorf("%s: %v", rest, resp)
		}
	}
	for _, f := range session.List("/") {
		if resp := session.Call("DELETE", testkit.SessionFile(f.Name, "recursive", "true"), nil); resp.Status >= 500 {
			t.Errorf("delete %q: %v", f.Name, resp)
		}
	}
	session.MustSay("fine\n", "sh", "echo fine > /session/new; cat /session/new")
}

// Defence: inodes are bounded by the volume, and its end is the end of one file of the host.
func TestASessionFullOfFilesEndsQuickly(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	session, other := inst.Session(t, fields{"disk_gb": 0.125}), inst.Session(t)
	j := session.Run("python", `
import errno
n = 0
try:
    while n < 1000000:
        open(f'/session/{n:07}', 'w').close()
        n += 1
except OSError as e:
    print(errno.errorcode[e.errno], n > 1000)
else:
    print('no bound')
`, fields{"timeout_seconds": 170})
	if !j.Said("ENOSPC True\n") {
		t.Errorf("%v", j)
	}
	other.MustSay("free\n", "sh", "touch /session/x && echo free")
	resp := session.Call("GET", "/files?path=/&limit=100", nil)
	if resp.Status >= 500 {
		t.Errorf("a list of very many: %v", resp)
	}
	begun := time.Now()
	if err := inst.DeleteSession(t.Context(), session.ID); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("its end took %v", took)
	}
}

// Defence: paths are resolved by an agent inside, below the volume or at least inside of a sandbox that holds nothing else.
func TestNoPathLeadsOutOfASession(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	path, content := canary(t)
	session := inst.Session(t)
	session.Put("f", []byte("f"))
	for _, p := range []string{
		path, ".." + path, "../../../../../.." + path, "/session/../../.." + path, "/session/./../" + path, "%2e%2e" + path, "f/../.." + path, "//" + path, "/proc/1/root" + path,
		"/proc/self/root" + path, "/.cay/v/../.." + path, strings.Repeat("../", 500) + path, "/session\x00" + path, "/sessionx" + path,
	} {
		for _, method := range []string{"GET", "HEAD", "PUT", "DELETE"} {
			resp := session.Call(method, testkit.SessionFile(p), []byte("overwritten"))
			if resp.Status >= 500 || strings.Contains(string(resp.Body), content) {
				t.Errorf("%s %.60q: %v", method, p, resp)
			}
		}
		if resp := session.Call("GET", testkit.SessionFile(p)[len("/files/content"):], nil); strings.Contains(string(resp.Body), content) {
			t.Errorf("%.60q: %v", p, resp)
		}
	}
	sb := inst.Create(t) // another's sandbox of the same project
	for _, p := range []string{"/.cay", "/.cay/v", "/session"} {
		if out := sb.X(fmt.Sprintf("ls %s/* 2>/dev/null", p), fields{"user": "root"}); strings.Contains(out.Stdout, session.ID) || strings.Contains(out.Stdout, session.Volume) {
			t.Errorf("a sandbox without the session sees %q", out.Stdout)
		}
	}
	if got := string(session.Get("f")); got != "f" {
		t.Errorf("the session's file holds %q", got)
	}
	unharmed(t, path, content)
}

// unharmed fails the test when a canary has changed.
func unharmed(t *testing.T, path, content string) {
	t.Helper()
	if now, err := os.ReadFile(path); err != nil || string(now) != content {
		t.Errorf("the host's file is now %q, %v", now, err)
	}
}
