package attack

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// Defence: the root file system is the sandbox's own, built of chosen parts of the host; nothing else is bound.
func TestFilesOfTheHostCannotBeRead(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	sb := inst.Create(t)
	path, content := canary(t)
	ways := []string{"", "/proc/1/root", "/proc/self/root", "/proc/1/cwd/../../..", "/../../../../..", "/proc/self/cwd/../../../..", "/dev/fd/../../../..", "/proc/1/task/1/root"}
	asEach(t, sb, func(t *testing.T, sb *testkit.Sandbox, as fields) {
		for _, way := range ways {
			if out := sb.X("cat "+way+path, as); strings.Contains(said(out), content) {
				t.Errorf("cat %s%s shows the host's file", way, path)
			}
		}
		for _, p := range []string{inst.DataDir, filepath.Join(inst.DataDir, "key"), inst.RunDir(), "/var/lib/cay", "/run/cay", "/var/run/docker.sock", "/root/.ssh", "/boot/grub", "/lib/modules", "/usr/src"} {
			if out := sb.X("ls -A "+p, as); out.ExitCode == 0 && strings.TrimSpace(out.Stdout) != "" {
				t.Errorf("%s is visible: %q", p, out.Stdout)
			}
		}
		out := sb.X(`find / -xdev \( -name 'cay-canary-*' -o -name cay.db -o -name node.sock \) 2>/dev/null; cat /proc/mounts /proc/self/mountinfo`, as)
		for _, secret := range []string{filepath.Base(path), inst.DataDir, inst.RunDir(), "cay.db", "node.sock"} {
			if strings.Contains(out.Stdout, secret) {
				t.Errorf("the sandbox sees %s", secret)
			}
		}
		if shadow, err := os.ReadFile("/etc/shadow"); err == nil {
			for line := range strings.Lines(string(shadow)) {
				if hash := strings.SplitN(line, ":", 3); len(hash) > 1 && len(hash[1]) > 13 && strings.Contains(said(sb.X("cat /etc/shadow", as)), hash[1]) {
					t.Errorf("the sandbox sees the password of %s", hash[0])
				}
			}
		}
	})
}

// Defence: the host image names what it binds of /usr; /usr/local is not among it.
func TestUsrLocalOfTheHostIsHidden(t *testing.T) {
	t.Parallel()
	sb := testkit.Server(t).Create(t)
	runtimes := []string{"python", "node", "npm", "npx", "corepack", "go", "gofmt"} // each is bound by its own path
	for _, name := range strings.Fields(sb.X("ls -A /usr/local/bin", fields{"user": "root"}).Stdout) {
		if !slices.Contains(runtimes, name) {
			t.Errorf("the sandbox sees /usr/local/bin/%s", name)
		}
	}
	for _, dir := range []string{"/usr/local/lib", "/usr/local/share", "/usr/local/etc", "/usr/local/src"} {
		if out := sb.X("find "+dir+" -mindepth 1 -maxdepth 1 ! -name node_modules 2>/dev/null", fields{"user": "root"}).Stdout; out != "" {
			t.Errorf("the sandbox sees %q", out)
		}
	}
}

// Defence: each sandbox has a kernel, a root and an overlay of its own.
func TestOtherSandboxesCannotBeSeen(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	victim, attacker := inst.Create(t), inst.Create(t)
	secret := testkit.NewKey()
	for _, dir := range []string{"/workspace", "/tmp", "/dev/shm", "/output", "/home/sandbox"} {
		victim.Must("echo " + secret + " > " + dir + "/secret && chmod 644 " + dir + "/secret")
	}
	victim.Must(`SECRET=` + secret + ` setsid sleep 4001 >/dev/null 2>&1 & echo`)
	victim.Must(`python3 -c "
import socket, os
s = socket.socket(); s.bind(('127.0.0.1', 4002)); s.listen()
u = socket.socket(socket.AF_UNIX); u.bind('\0cay-victim'); u.listen()
if os.fork() == 0:
    os.setsid(); os.close(0); os.close(1); os.close(2)
    import time; time.sleep(600)
"`)
	asEach(t, attacker, func(t *testing.T, sb *testkit.Sandbox, as fields) {
		out := sb.X(`grep -rs `+secret[4:30]+` /workspace /tmp /dev/shm /output /home /var /run; cat /proc/*/environ /proc/*/cmdline | tr '\0' ' '`, as)
		if strings.Contains(said(out), secret) || strings.Contains(said(out), "sleep 4001") {
			t.Error("the victim's file or process is visible")
		}
		out = sb.X(`python3 -c "
import socket
for fam, addr in ((socket.AF_INET, ('127.0.0.1', 4002)), (socket.AF_UNIX, '\0cay-victim')):
    try:
        s = socket.socket(fam); s.settimeout(2); s.connect(addr); print('connected', addr)
    except OSError as e: print(e)
"`, as)
		if strings.Contains(said(out), "connected") {
			t.Errorf("the victim's sockets can be reached: %s", said(out))
		}
	})
	if got := victim.Must("cat /tmp/secret"); got != secret+"\n" {
		t.Errorf("the victim's file holds %q", got)
	}
}

// Defence: the sandbox has no network but a loopback of its own.
func TestNoAddressOfTheHostOrBeyondCanBeReached(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	sb := inst.Create(t)
	sb.RequireProgram("python3")
	_, apiPort, err := net.SplitHostPort(inst.Listen)
	if err != nil {
		t.Fatal(err)
	}
	open, err := net.Listen("tcp", ":0") // on every address of the host
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	hits := make(chan string, 100)
	go func() { // ends with the listener
		for {
			c, err := open.Accept()
			if err != nil {
				close(hits)
				return
			}
			hits <- c.RemoteAddr().String()
			c.Close()
		}
	}()
	_, openPort, err := net.SplitHostPort(open.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	targets := []string{"127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254", "::ffff:a9fe:a9fe", "fd00:ec2::254", "10.0.0.1", "192.168.0.1", "172.17.0.1", "1.1.1.1", "localhost"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil {
			targets = append(targets, ip.String())
		}
	}
	asEach(t, sb, func(t *testing.T, sb *testkit.Sandbox, as fields) {
		out := sb.X(fmt.Sprintf(`python3 -c "
import socket
for host in '%s'.split():
    for port in (%s, %s, 22, 53, 80):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                for fam, k, proto, _, addr in socket.getaddrinfo(host, port, type=kind):
                    s = socket.socket(fam, k, proto); s.settimeout(.3); s.connect(addr)
                    s.send(b'hello')
                    if k == socket.SOCK_STREAM or s.recv(10): print('REACHED', host, port)
            except OSError: pass
print('tried')
"; ip link 2>/dev/null; cat /proc/net/dev`, strings.Join(targets, " "), apiPort, openPort), as)
		if strings.Contains(said(out), "REACHED") || !strings.Contains(out.Stdout, "tried") {
			t.Errorf("%s", said(out))
		}
		for line := range strings.Lines(out.Stdout) {
			if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && (strings.HasPrefix(name, "eth") || strings.HasPrefix(name, "veth")) {
				t.Errorf("an interface: %s", line)
			}
		}
	})
	open.Close()
	for hit := range hits {
		t.Errorf("the host's listener was reached from %s", hit)
	}
}

// Defence: of the host's unix sockets only the agent's own is bound, in a directory that holds nothing else, and it is root's alone.
func TestNoSocketOfTheHostCanBeReached(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	inst.Create(t) // whose socket must not be reached
	sb := inst.Create(t)
	sb.RequireProgram("python3")
	abstract, err := net.Listen("unix", "@cay-attack-"+testkit.NewKey()[4:12])
	if err != nil {
		t.Fatal(err)
	}
	defer abstract.Close()
	open := filepath.Join("/tmp", "cay-attack-"+testkit.NewKey()[4:12])
	named, err := net.Listen("unix", open)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	agents, err := filepath.Glob(filepath.Join(inst.RunDir(), "s", "*", "*"))
	if err != nil || len(agents) < 2 {
		t.Fatalf("the agents' sockets were not found: %v %v", agents, err)
	}
	targets := append(agents, filepath.Join(inst.RunDir(), "node.sock"), open, "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/systemd/private", "/run/dbus/system_bus_socket",
		"\x00"+strings.TrimPrefix(abstract.Addr().String(), "@"))
	var list strings.Builder
	for _, target := range targets {
		fmt.Fprintf(&list, "%q,", strings.ReplaceAll(target, "\x00", "\\0"))
	}
	script := `import socket, os
for p in [` + strings.ReplaceAll(list.String(), `\\0`, `\0`) + `]:
    for at in (p, '/proc/1/root' + p, '/.cay/s/../..' + p):
        try:
            s = socket.socket(socket.AF_UNIX); s.settimeout(1); s.connect(at); print('REACHED', at)
        except (OSError, ValueError): pass
for root, dirs, files in os.walk('/.cay'): print(root, dirs, files)
try:
    s = socket.socket(socket.AF_UNIX); s.connect('/.cay/s/a.sock'); print('AGENT', os.getuid())
except OSError as e: print(e)
print('tried')
`
	sb.Put("/tmp/reach.py", []byte(script))
	asEach(t, sb, func(t *testing.T, sb *testkit.Sandbox, as fields) {
		out := sb.X("python3 /tmp/reach.py", as)
		if strings.Contains(said(out), "REACHED") || !strings.Contains(out.Stdout, "tried") {
			t.Errorf("%s", said(out))
		}
		if as["user"] == "sandbox" && strings.Contains(out.Stdout, "AGENT") {
			t.Error("the sandbox's user reaches the agent's socket")
		}
	})
}

// Defence: the agent's socket directory is bound read-only, and gVisor makes no sockets on the host (host-uds is open only).
func TestNoSocketCanBeMadeOnTheHost(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	sb := inst.Create(t)
	sb.RequireProgram("python3")
	out := sb.X(`python3 -c "
import socket
for p in ('/.cay/s/b.sock', '/.cay/b.sock', '/usr/b.sock'):
    try:
        s = socket.socket(socket.AF_UNIX); s.bind(p); s.listen(); print('BOUND', p)
    except OSError as e: print(p, e)
"; rm -f /.cay/s/a.sock; touch /.cay/s/x; mv /.cay/s /.cay/t; ls -la /.cay/s`, fields{"user": "root"})
	if strings.Contains(out.Stdout, "BOUND /.cay/s/") {
		t.Errorf("%s", said(out))
	}
	if _, err := os.Lstat("/usr/b.sock"); err == nil {
		t.Error("/usr/b.sock appeared on the host")
	}
	found, err := filepath.Glob(filepath.Join(inst.RunDir(), "s", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if filepath.Base(f) != "a.sock" {
			t.Errorf("%s appeared", f)
		}
	}
	sb.MustSay("alive\n", "echo alive")
}

// Defence: a deadline and a size for what a client may send before it has said who it is; http.Server's own.
func TestASlowClientDoesNotHoldTheServer(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for range 300 {
		c, err := net.DialTimeout("tcp", inst.Listen, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		if _, err := c.Write([]byte("POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\n")); err != nil {
			t.Fatal(err)
		}
	}
	if err := inst.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}
