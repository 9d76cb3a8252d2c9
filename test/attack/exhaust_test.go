package attack

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// Defences, one for each: RLIMIT_NOFILE and the sentry's own table; sockets and inotify watches as memory of the sandbox under its
// limit; the inode bound of the overlay; disk_gb as the overlay's size; sizes on every tmpfs; pids; the spool's quota on the host.
// All of it is charged to the sandbox's cgroup, and when memory runs out it is the sandbox that pays.
var exhaustions = map[string]struct{ program, why string }{
	"file descriptors": {`
import os, time
fds = []
try:
    while True: fds.append(os.open('/dev/null', os.O_RDONLY))
except OSError as e: print('stopped at', len(fds), e, flush=True)
time.sleep(hold)
`, "RLIMIT_NOFILE"},
	"file descriptors of many processes": {`
import os, time
for _ in range(60):
    if os.fork() == 0:
        fds = []
        try:
            while True: fds.append(os.open('/dev/zero', os.O_RDONLY))
        except OSError: pass
        time.sleep(hold); os._exit(0)
time.sleep(hold)
`, "memory limit"},
	"sockets": {`
import socket, time
held = []
try:
    while True: held.append(socket.socketpair())
except OSError as e: print('stopped at', len(held), e, flush=True)
time.sleep(hold)
`, "RLIMIT_NOFILE"},
	"inotify watches": {`
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
end = time.time() + hold
n = 0
fd = libc.inotify_init()
os.makedirs('/tmp/watch', exist_ok=True)
while time.time() < end:
    d = '/tmp/watch/%d' % n
    try: os.mkdir(d)
    except OSError as e: print('stopped at', n, e, flush=True); time.sleep(1); continue
    libc.inotify_add_watch(fd, d.encode(), 0xfff)
    n += 1
`, "inode bound"},
	"five million empty files": {`
import os, time
end = time.time() + hold * 4
n = 0
for d in range(5000):
    try:
        os.mkdir('/workspace/%d' % d)
        for f in range(1000):
            os.close(os.open('/workspace/%d/%d' % (d, f), os.O_CREAT | os.O_WRONLY)); n += 1
    except OSError as e:
        print('stopped at', n, e, flush=True); break
    if time.time() > end: print('out of time at', n, flush=True); break
time.sleep(1)
`, "inode bound"},
	"empty files in shared memory": {`
import os, time
end = time.time() + hold * 2
n = 0
try:
    while time.time() < end:
        os.close(os.open('/dev/shm/%d' % n, os.O_CREAT | os.O_WRONLY)); n += 1
except OSError as e: print(e)
print('stopped at', n, flush=True)
`, "inode bound of every tmpfs"},
	"shared memory": {`
import time
for path in ('/dev/shm/fill', '/tmp/fill'):
    try:
        with open(path, 'wb') as f:
            while True: f.write(b'x' * (1 << 20)); f.flush()
    except OSError as e: print(path, e, flush=True)
time.sleep(1)
`, "size of every tmpfs"},
	"disk": {`
try:
    with open('/workspace/fill', 'wb') as f:
        while True: f.write(b'x' * (1 << 20))
except OSError as e: print(e)
`, "size of the overlay"},
	"sparse files": {`
import os
for n in range(100):
    try:
        with open('/workspace/sparse%d' % n, 'wb') as f:
            f.truncate(1 << 40); f.seek(1 << 39); f.write(b'x')
    except OSError as e: print(e); break
`, "size of the overlay"},
	"memory": {`
held = []
while True: held.append(bytearray(16 << 20))
`, "memory limit"},
	"memory by pipes": {`
import os, fcntl, time
held = []
try:
    while True:
        r, w = os.pipe(); os.set_blocking(w, False); held.append((r, w))
        try: fcntl.fcntl(w, 1031, 1 << 20)
        except OSError: pass
        try:
            while True: os.write(w, b'x' * 65536)
        except BlockingIOError: pass
except OSError as e: print('stopped at', len(held), e, flush=True)
time.sleep(hold)
`, "RLIMIT_NOFILE, memory limit"},
	"memory by mappings": {`
import mmap, time
held = []
end = time.time() + hold
try:
    while time.time() < end:
        m = mmap.mmap(-1, 4096 * 2, prot=mmap.PROT_READ); held.append(m)
except (OSError, MemoryError) as e: print('stopped at', len(held), e, flush=True)
`, "memory limit"},
	"processes": {`
import os, time
n = 0
end = time.time() + hold
while time.time() < end:
    try:
        if os.fork() == 0:
            os.setsid(); time.sleep(hold * 10); os._exit(0)
        n += 1
    except OSError: time.sleep(.01)
print(n, flush=True)
`, "pids"},
	"threads": {`
import threading, time
n = 0
def wait(): time.sleep(hold * 10)
threading.stack_size(65536)
end = time.time() + hold
while time.time() < end:
    try: threading.Thread(target=wait, daemon=True).start(); n += 1
    except RuntimeError: time.sleep(.01)
print(n, flush=True)
import os; os._exit(0)
`, "pids"},
	"output": {`
import os, time
end = time.time() + hold * 2
n = 0
while time.time() < end: n += os.write(1, b'x' * 65536)
`, "quota of the spool, credit of the hop"},
	"output of many processes": {`
import os, time
for _ in range(30):
    if os.fork() == 0:
        end = time.time() + hold
        while time.time() < end: os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)
        os._exit(0)
time.sleep(hold)
`, "quota of the spool, credit of the hop"},
	"the processor": {`
import os, time
for _ in range(8):
    if os.fork() == 0:
        end = time.time() + hold
        while time.time() < end: pass
        os._exit(0)
time.sleep(hold)
`, "cpu"},
	"deep directories": {`
import os, time
end = time.time() + hold
n = 0
try:
    while time.time() < end and n < 50000:
        os.mkdir('d' * 100); os.chdir('d' * 100); n += 1
except OSError as e: print(e)
print(n, flush=True)
`, "the agent's walks are bounded"},
}

func TestExhaustingAResourceStaysInTheSandbox(t *testing.T) {
	for name, e := range exhaustions {
		for _, user := range users {
			if user == "root" && !testkit.Soak() && name != "five million empty files" && name != "processes" && name != "memory" && name != "file descriptors" {
				continue // the limits below do not ask who it is; the soak run tries all the same
			}
			t.Run(name+" as "+user, func(t *testing.T) {
				a := newArena(t, 1, fields{"memory_mb": 256, "disk_gb": 0.2, "pids": 100, "cpu": 0.5})
				a.attackers[0].RequireProgram("python3")
				a.within(t, func() { exhaust(t, a, e.program, user) })
			})
		}
	}
}

// exhaust runs the program. What it does to its own sandbox, up to that one's end, is allowed; the reason must be a true one.
func exhaust(t *testing.T, a *arena, program, user string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	seconds := testkit.Scaled(4, 20)
	out, err := a.inst.Exec(ctx, a.attackers[0].ID, []string{"python3", "-c", fmt.Sprintf("hold = %d\n%s", seconds, program)},
		fields{"user": user, "timeout_seconds": seconds * 5, "max_output_bytes": 1 << 20})
	if err == nil {
		kept := out.Stdout
		if len(kept) > 200 {
			kept = kept[:50] + "…"
		}
		t.Logf("exit code %d, %s, %d bytes: %q %.300q", out.ExitCode, out.Reason, out.StdoutSize, kept, out.Stderr)
	}
	now, getErr := a.inst.GetSandbox(ctx, a.attackers[0].ID)
	switch {
	case getErr != nil:
		t.Errorf("the attacker cannot be asked for: %v", getErr)
	case now.Status == "READY":
		// It lives: then it must be of use. Where its processes have filled a limit and live on, a command may be refused for it.
		resp, err := a.inst.Do(ctx, "POST", "/v1/sandboxes/"+a.attackers[0].ID+"/exec", fields{"command": "echo usable"})
		if err != nil || resp.Status >= 500 || resp.Status/100 == 4 && resp.Status != 422 && resp.Status != 410 {
			t.Errorf("it is READY and of no use: %v %v", resp, err)
		}
		if resp, err := a.inst.Do(ctx, "GET", "/v1/sandboxes/"+a.attackers[0].ID+"/files/stat?path=/tmp", nil); err != nil || resp.Status != 200 && resp.Status != 410 {
			t.Errorf("it is READY and its files are out of reach: %v %v", resp, err)
		}
	case now.StatusReason != "oom" && now.StatusReason != "disk_full" && now.StatusReason != "evicted":
		t.Errorf("it is %s for the reason %q; %v", now.Status, now.StatusReason, err)
	default:
		t.Logf("it is %s: %s", now.Status, now.StatusReason)
	}
}

// Defence: windows between node, server and client. A stream that nobody reads costs the server some 4 MiB (the windows, and
// what its garbage collector lets lie), whatever its program writes.
func TestManyStreamsOfOneSandboxDoNotStarveTheOthers(t *testing.T) {
	a := newArena(t, 1)
	a.within(t, func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for n := range 25 {
			s, resp, err := a.inst.OpenEvents(ctx, "POST", "/v1/sandboxes/"+a.attackers[0].ID+"/exec", fields{"command": "yes | head -c 50000000; sleep 60"})
			if err != nil {
				t.Errorf("stream %d: %v", n, err)
				return
			}
			if s == nil {
				if resp.Status >= 500 && resp.Status != 503 {
					t.Errorf("stream %d: %v", n, resp)
				}
				break
			}
			defer s.Close() // and never read
		}
		<-time.After(3 * time.Second) // the time in which unread streams would pile up
	})
}
