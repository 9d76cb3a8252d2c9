package attack

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

// Defence: no_new_privs, and mounts without suid; a program with the bit runs as who started it.
func TestSetuidProgramsGiveNothing(t *testing.T) {
	t.Parallel()
	sb := testkit.Server(t).Create(t)
	for _, dir := range []string{"/tmp", "/workspace", "/home/sandbox"} {
		sb.Must("cp /usr/bin/id "+dir+"/suid && chown root:root "+dir+"/suid && chmod 6755 "+dir+"/suid && "+dir+"/suid -u", fields{"user": "root"})
		if got := sb.Must(dir + "/suid -u; " + dir + "/suid -g"); got != "2000\n2000\n" {
			t.Errorf("in %s a setuid program of root ran as %q", dir, got)
		}
	}
	out := sb.X(`for p in $(find / -xdev -perm -4000 -type f 2>/dev/null); do echo "$p"; done; echo | su -c id root; sudo -n id; mount -t tmpfs none /tmp`)
	if strings.Contains(out.Stdout, "uid=0") {
		t.Errorf("%s", said(out))
	}
}

// Defence: the sandbox's user holds no capability.
func TestTheUserCannotDoWhatOnlyRootMay(t *testing.T) {
	t.Parallel()
	sb := testkit.Server(t).Create(t)
	for name, command := range map[string]string{
		"mount":              `mount -t tmpfs none /mnt`,
		"chroot":             `chroot / true`,
		"chown":              `touch /tmp/mine && chown root /tmp/mine`,
		"kill the agent":     `kill -9 1`,
		"read its memory":    `head -c 1 /proc/1/mem`,
		"its environment":    `cat /proc/1/environ | grep -q .`,
		"its descriptors":    `ls /proc/1/fd | grep -q .`,
		"raise a limit":      `ulimit -Hn 1000000`,
		"hostname":           `hostname changed`,
		"clock":              `date -s 2001-01-01`,
		"low port":           `python3 -c "import socket; socket.socket().bind(('127.0.0.1', 80))" && test $(cat /proc/sys/net/ipv4/ip_unprivileged_port_start) -gt 80`,
		"raw socket":         `python3 -c "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"`,
		"device":             `mknod /tmp/sda b 8 0`,
		"write to /etc":      `touch /etc/x`,
		"write to /usr":      `touch /usr/x`,
		"write to /":         `touch /x`,
		"root's home":        `touch /root/x`,
		"sysrq":              `echo b > /proc/sysrq-trigger`,
		"core pattern":       `echo '|/bin/sh' > /proc/sys/kernel/core_pattern`,
		"setuid by a script": `python3 -c "import os; os.setuid(0)"`,
	} {
		if out := sb.X(command); out.ExitCode == 0 {
			t.Errorf("%s: %s succeeded: %s", name, command, said(out))
		}
	}
	if out := sb.X("grep -E '^Cap(Eff|Prm|Inh|Amb)' /proc/self/status | tr -d 'A-Za-z:\\t\\n0'"); out.Stdout != "" {
		t.Errorf("capabilities: %q", sb.X("grep Cap /proc/self/status").Stdout)
	}
}

// Defence: the guest's root has a reduced set of capabilities, and every system call ends in gVisor's kernel, not in the host's.
func TestRootInsideIsNotRootOnTheHost(t *testing.T) {
	t.Parallel()
	sb := testkit.Server(t).Create(t)
	root := fields{"user": "root"}
	for name, command := range map[string]string{
		"load a module": `python3 -c "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
import sys
sys.exit(0 if libc.syscall(175, b'x' * 64, 64, b'') == 0 else 1)"`,
		"kexec": `python3 -c "
import ctypes, sys
sys.exit(0 if ctypes.CDLL(None).syscall(246, 0, 0, 0, 0) == 0 else 1)"`,
		"reboot": `python3 -c "
import ctypes, sys
sys.exit(0 if ctypes.CDLL(None).syscall(169, 0xfee1dead, 672274793, 0x1234567, 0) == 0 else 1)"`,
		"read a disk":           `mknod /tmp/vda b 254 0 && head -c 1 /tmp/vda`,
		"read memory":           `mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem`,
		"the kernel's messages": `mknod /tmp/kmsg c 1 11 && head -c 1 /tmp/kmsg`,
		"mount a disk":          `mount /dev/vda /mnt`,
		"mount proc of host":    `mount -t proc proc /mnt && test -d /mnt/` + strconv.Itoa(os.Getpid()),
		"swap":                  `swapon /dev/vda`,
		"set the host's clock":  `date -s 2001-01-01 && test $(date +%Y) = 2001`,
		"the host's sysctl":     `echo 1 > /proc/sys/kernel/panic`,
		"raise a limit":         `ulimit -Hn 10000000`,
		"bpf": `python3 -c "
import ctypes, sys
sys.exit(0 if ctypes.CDLL(None).syscall(321, 0, b'\0' * 64, 64) >= 0 else 1)"`,
		"io_uring": `python3 -c "
import ctypes, sys
sys.exit(0 if ctypes.CDLL(None).syscall(425, 8, b'\0' * 120) >= 0 else 1)"`,
		"perf": `python3 -c "
import ctypes, sys
sys.exit(0 if ctypes.CDLL(None).syscall(298, b'\0' * 120, 0, -1, -1, 0) >= 0 else 1)"`,
	} {
		if out := sb.X(command, root); out.ExitCode == 0 {
			t.Errorf("%s succeeded: %s", name, said(out))
		}
	}
	const sysAdmin, sysModule, sysRawIO, sysPtrace, sysBoot, sysResource = 21, 16, 17, 19, 22, 24
	out := sb.Must("sed -n 's/^CapEff:\\t//p' /proc/self/status", root)
	caps := parseHex(t, out)
	for name, bit := range map[string]uint{"SYS_ADMIN": sysAdmin, "SYS_MODULE": sysModule, "SYS_RAWIO": sysRawIO, "SYS_PTRACE": sysPtrace, "SYS_BOOT": sysBoot, "SYS_RESOURCE": sysResource} {
		if caps&(1<<bit) != 0 {
			t.Errorf("root inside has CAP_%s", name)
		}
	}
	host, err := exec.Command("uname", "-r").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := sb.Must("uname -r", root); got == string(host) {
		t.Errorf("the kernel inside is the host's: %s", got)
	}
	dmesg := sb.X("dmesg", root)
	if dmesg.ExitCode == 0 && !strings.Contains(dmesg.Stdout, "gVisor") {
		t.Errorf("kernel messages: %q", dmesg.Stdout)
	}
}

// Defence: a process of another user, and one with more capabilities, cannot be traced. What root does to the agent is its own affair;
// it stays in the sandbox.
func TestTheAgentCannotBeTraced(t *testing.T) {
	t.Parallel()
	sb := testkit.Server(t).Create(t)
	sb.RequireProgram("python3")
	asEach(t, sb, func(t *testing.T, sb *testkit.Sandbox, as fields) {
		out := sb.X(`python3 -c "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print('ATTACHED' if libc.ptrace(16, 1, 0, 0) == 0 else 'refused')
print('SEIZED' if libc.ptrace(0x4206, 1, 0, 0) == 0 else 'refused')
for path in ('/proc/1/mem', '/proc/1/exe'):
    try:
        fd = os.open(path, os.O_RDWR); os.lseek(fd, 0x400000, 0); print('WROTE' if os.write(fd, b'x') == 1 else 'no')
    except OSError as e: print(path, e)
"`, as)
		for _, bad := range []string{"ATTACHED", "SEIZED", "WROTE"} {
			if strings.Contains(out.Stdout, bad) {
				t.Errorf("%s", said(out))
			}
		}
		sb.MustSay("alive\n", "echo alive")
	})
}

// Defence: user namespaces inside are gVisor's; root in one of them is nobody outside of it.
func TestANamespaceOfOnesOwnGivesNothingOutsideOfIt(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	sb := testkit.Server(t).Create(t)
	sb.Must("echo roots > /tmp/roots && chmod 600 /tmp/roots", fields{"user": "root"})
	out := sb.X(`unshare -Urm sh -c 'cat /tmp/roots; echo x > /usr/bin/cay-canary; mount -o remount,rw /usr; touch /usr/bin/cay-canary; kill -9 1; mount --bind /tmp /usr && touch /usr/cay-canary'`)
	if strings.Contains(out.Stdout, "roots") {
		t.Errorf("%s", said(out))
	}
	for _, p := range []string{"/usr/bin/cay-canary", "/usr/cay-canary", "/tmp/roots"} {
		if _, err := os.Lstat(p); err == nil {
			t.Errorf("%s appeared on the host", p)
		}
	}
	sb.MustSay("alive\n", "echo alive")
}

// Defence: what is shown of the host is bound read-only, and the sandbox's own writes go to an overlay that no other sandbox sees.
func TestTheReadOnlyRootCannotBeWrittenThrough(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	sb := inst.Create(t)
	digest := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return testkit.Digest(data)
	}
	env, err := filepath.EvalSymlinks("/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	before := digest(env)
	out := sb.X(`
for try in 1 2 3; do
  for f in /usr/bin/env /usr/bin/cay-canary /usr/lib/cay-canary /usr/share/cay-canary /bin/cay-canary /etc/ssl/certs/cay-canary; do
    echo owned > $f; echo owned >> $f; chmod 777 $f; chown 2000 $f; mv $f $f.old; ln -s /tmp $f; rm -f $f; truncate -s 0 $f
  done
  case $try in
  1) mount -o remount,rw /usr; mount -o remount,rw /; mount -o remount,rw,bind /usr/bin;;
  2) umount -l /usr /usr/bin /usr/lib; mkdir -p /tmp/u /tmp/w; mount -t overlay overlay -o lowerdir=/usr,upperdir=/tmp/u,workdir=/tmp/w /usr;;
  esac
done 2>&1
python3 -c "
import mmap, os
fd = os.open('/usr/bin/env', os.O_RDONLY); m = mmap.mmap(fd, 4096, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
try: m[0] = 1
except TypeError as e: print(e)
fd = os.open('/proc/self/fd/%d' % fd, os.O_RDWR)
os.write(fd, b'owned')
"
rm -rf /usr/* 2>/dev/null; true`, fields{"user": "root", "timeout_seconds": 100})
	t.Log(len(said(out)), "bytes of complaints")
	if digest(env) != before {
		t.Fatalf("%s of the host was changed", env)
	}
	for _, dir := range []string{"/usr/bin", "/usr/lib", "/usr/share", "/bin", "/etc/ssl/certs"} {
		if _, err := os.Lstat(filepath.Join(dir, "cay-canary")); err == nil {
			t.Errorf("%s/cay-canary appeared on the host", dir)
		}
	}
	other := inst.Create(t)
	other.MustSay("fine\n", "/usr/bin/env echo fine; test -e /usr/bin/cay-canary && echo canary; true")
}

// Defence: gVisor's devices are its own; there is none of the host.
func TestThereAreNoDevicesOfTheHost(t *testing.T) {
	t.Parallel()
	sb := testkit.Server(t).Create(t)
	harmless := map[string]bool{"null": true, "zero": true, "full": true, "random": true, "urandom": true, "tty": true, "ptmx": true, "console": true, "fuse": true, "tun": true}
	out := sb.Must(`find /dev \( -type b -o -type c \) ! -path '/dev/pts/*' -printf '%f\n'`, fields{"user": "root"})
	for name := range strings.Lines(out) {
		if name = strings.TrimSpace(name); !harmless[name] {
			t.Errorf("/dev/%s", name)
		}
	}
}
