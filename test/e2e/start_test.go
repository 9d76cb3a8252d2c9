package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

func TestASecondServerOnTheSameDataSaysSoAndEnds(t *testing.T) {
	inst := testkit.Server(t)
	cmd := inst.Command("up")
	for i, kv := range cmd.Env {
		if strings.HasPrefix(kv, "CAY_LISTEN=") {
			cmd.Env[i] = "CAY_LISTEN=127.0.0.1:0" // the port is not what stops it
		}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended with code 0")
		}
	case <-time.After(time.Minute):
		_ = cmd.Process.Kill()
		<-ended
		t.Fatal("it does not end")
	}
	if !strings.Contains(out.String(), inst.DataDir) || strings.Contains(out.String(), "ready http") {
		t.Errorf("it says %q", out.String())
	}
	if err := inst.Ready(t.Context()); err != nil {
		t.Errorf("the first one suffered: %v", err)
	}
}

func TestAPortInUseIsSaidAndNothingIsLeftRunning(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	inst, err := testkit.NewInstance(testkit.Options{Env: []string{"CAY_LISTEN=" + l.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
	})
	err = inst.Start()
	if err == nil {
		t.Fatal("it started")
	}
	if !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("it says %v", err)
	}
}

func TestAGracefulStopKeepsSandboxesForTheNextStart(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{})
	w, err := newWitness(t.Context(), inst)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := inst.Stop(); err != nil {
			t.Fatal(err)
		}
		if code, err := inst.ExitCode(time.Minute); err != nil || code != 0 {
			t.Errorf("cay up ended with %d, %v", code, err)
		}
		for _, p := range inst.Owned() {
			if len(p.Cmdline) > 1 && (p.Cmdline[1] == "server" || p.Cmdline[1] == "node") {
				t.Errorf("still there: %v", p)
			}
		}
		if len(inst.Kernels()) == 0 {
			t.Fatal("the sandbox did not outlive the stop")
		}
		if err := inst.Start(); err != nil {
			t.Fatal(err)
		}
		if err := w.testify(t.Context(), inst); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAGracefulStopEndsOpenStreamsWithAWord(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{})
	sb := inst.Create(t)
	stream, tr := sb.Open(t.Context(), "echo begun; sleep 300", fields{"timeout_seconds": nil})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := sb.Dial(ctx, "/exec?process_id="+tr.ProcessID)
	var seen testkit.Transcript
	if _, err := w.Collect(ctx, &seen, func(tr *testkit.Transcript) bool { return len(tr.Stdout) > 0 }); err != nil {
		t.Fatal(err)
	}
	closed := make(chan string, 1)
	go func() {
		code, err := w.Collect(ctx, &seen, nil)
		closed <- fmt.Sprint(int(code), " ", err)
	}()
	begun := time.Now()
	if err := inst.Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 45*time.Second {
		t.Errorf("the stop took %v", took)
	}
	rest, _ := stream.ReadAll()
	if rest.Exit != nil {
		t.Errorf("the stream claims an exit: %+v", rest.Exit)
	}
	if got := <-closed; !strings.HasPrefix(got, "1012 ") {
		t.Errorf("the WebSocket was closed with %s, want 1012", got)
	}
	if err := inst.Start(); err != nil {
		t.Fatal(err)
	}
	if got := sb.Count("sleep 300"); got != 1 {
		t.Errorf("%d of the process are left after the restart", got)
	}
}

func TestTheGeneratedKeyIsPrintedOnceAndKeptForItsOwnerOnly(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{NoKey: true})
	if resp, err := inst.Do(t.Context(), "GET", "/v1/sandboxes", nil); err != nil || resp.Status != 200 {
		t.Fatalf("the key from the file: %v %v", resp, err)
	}
	info, err := os.Stat(filepath.Join(inst.DataDir, "key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("key file: %v, %v", info.Mode(), err)
	}
	if n := strings.Count(inst.Logs(), inst.Key); n != 1 {
		t.Errorf("the key was printed %d times", n)
	}
	key := inst.Key
	if err := inst.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := inst.Start(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(inst.Logs(), key); n != 1 {
		t.Errorf("after a restart the key was printed %d times", n)
	}
	if resp, err := inst.Do(t.Context(), "GET", "/v1/sandboxes", nil); err != nil || resp.Status != 200 {
		t.Errorf("after a restart: %v %v", resp, err)
	}
}

func TestAGivenKeyNeverAppearsInTheLog(t *testing.T) {
	inst := testkit.Server(t)
	if strings.Contains(inst.Logs(), inst.Key) {
		t.Error("it does")
	}
	raw, err := os.ReadFile(filepath.Join(inst.DataDir, "server", "cay.db"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte(inst.Key)) || bytes.Contains(raw, []byte(inst.Key[4:])) {
		t.Error("the store holds the key itself")
	}
}

func TestTheServerHasNoPrivileges(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	pid, err := inst.PID(testkit.RoleServer)
	if err != nil {
		t.Fatal(err)
	}
	for field, want := range map[string]string{"CapEff:": "0000000000000000", "CapPrm:": "0000000000000000", "CapInh:": "0000000000000000", "CapAmb:": "0000000000000000", "NoNewPrivs:": "1", "Groups:": ""} {
		if got, err := testkit.Status(pid, field); err != nil || got != want {
			t.Errorf("%s %q, want %q (%v)", field, got, want, err)
		}
	}
	for _, field := range []string{"Uid:", "Gid:"} {
		got, err := testkit.Status(pid, field)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range strings.Fields(got) {
			if id == "0" {
				t.Errorf("%s %s", field, got)
			}
		}
	}
	// What it holds open must not be more than it may open.
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, inst.DataDir) && !strings.HasPrefix(to, filepath.Join(inst.DataDir, "server")) {
			t.Errorf("it holds %s open", to)
		}
	}
}

func TestTheNodeListensOnNothingButItsSocket(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	pid, err := inst.PID(testkit.RoleNode)
	if err != nil {
		t.Fatal(err)
	}
	mine := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "socket:[") {
			mine[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	if len(mine) == 0 {
		t.Fatal("its sockets were not found")
	}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "raw", "raw6"} {
		text, err := os.ReadFile("/proc/net/" + table)
		if err != nil {
			continue // a host without IPv6
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 9 && mine[f[9]] {
				t.Errorf("a %s socket: %s", table, line)
			}
		}
	}
	socket := filepath.Join(inst.RunDir(), "node.sock")
	info, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	server, err := inst.PID(testkit.RoleServer)
	if err != nil {
		t.Fatal(err)
	}
	uid, err := testkit.Status(server, "Uid:")
	if err != nil {
		t.Fatal(err)
	}
	if owner := fmt.Sprint(info.Sys().(*syscall.Stat_t).Uid); info.Mode().Perm() != 0o600 || owner != strings.Fields(uid)[0] {
		t.Errorf("%s: mode %v, owner %s, server's user %s", socket, info.Mode(), owner, uid)
	}
	inst.Create(t)
	for _, pattern := range []string{filepath.Join(inst.RunDir(), "s", "*"), filepath.Join(inst.DataDir, "sandboxes", "*")} {
		dirs, err := filepath.Glob(pattern)
		if err != nil || len(dirs) == 0 {
			t.Errorf("%s: %v %v", pattern, dirs, err)
		}
		for _, dir := range append(dirs, filepath.Dir(pattern)) {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o066 != 0 || dir != filepath.Dir(pattern) && info.Mode().Perm()&0o011 != 0 {
				t.Errorf("%s: %v, %v", dir, info.Mode(), err)
			}
		}
	}
}

func TestTheAPIIsClosedToStrangers(t *testing.T) {
	inst := testkit.Server(t)
	for name, headers := range map[string][]string{
		"no key":           {"Authorization", ""},
		"a wrong key":      {"Authorization", "Bearer " + testkit.NewKey()},
		"another scheme":   {"Authorization", "Basic " + inst.Key},
		"a prefix of it":   {"Authorization", "Bearer " + inst.Key[:len(inst.Key)-1]},
		"in upper case":    {"Authorization", "Bearer " + strings.ToUpper(inst.Key)},
		"key in X-API-Key": {"Authorization", "", "X-API-Key", testkit.NewKey()},
	} {
		for _, path := range []string{"/v1/sandboxes", "/v1/info", "/metrics"} {
			if resp, err := inst.Do(t.Context(), "GET", path, nil, headers...); err != nil || resp.Status != 401 {
				t.Errorf("%s, %s: %v %v", name, path, resp, err)
			}
		}
	}
	if resp, err := inst.Do(t.Context(), "GET", "/v1/sandboxes", nil, "Authorization", "", "X-API-Key", inst.Key); err != nil || resp.Status != 200 {
		t.Errorf("X-API-Key: %v %v", resp, err)
	}
	// DNS rebinding: a page of evil.example that resolves to 127.0.0.1.
	for _, host := range []string{"evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1].evil.example"} {
		if resp, err := inst.Do(t.Context(), "GET", "/v1/sandboxes", nil, "Host", host); err != nil || resp.Status/100 != 4 {
			t.Errorf("Host %s: %v %v", host, resp, err)
		}
	}
	_, port, err := net.SplitHostPort(inst.Listen)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{inst.Listen, "localhost:" + port} {
		if resp, err := inst.Do(t.Context(), "GET", "/v1/sandboxes", nil, "Host", host); err != nil || resp.Status != 200 {
			t.Errorf("Host %s: %v %v", host, resp, err)
		}
	}
	resp, err := inst.Do(t.Context(), http.MethodOptions, "/v1/sandboxes", nil, "Origin", "https://evil.example", "Access-Control-Request-Method", "POST")
	if err != nil || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a foreign origin: %v %v", resp.Header, err)
	}
}

func TestTheDataDirectoryIsClosedToOthers(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	info, err := os.Stat(inst.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		t.Errorf("others may write into %s: %v", inst.DataDir, info.Mode())
	}
	db, err := os.Stat(filepath.Join(inst.DataDir, "server", "cay.db"))
	if err != nil || db.Mode().Perm()&0o077 != 0 {
		t.Errorf("the store: %v, %v", db.Mode(), err)
	}
}
