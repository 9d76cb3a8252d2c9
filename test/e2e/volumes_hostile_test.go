package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestAFullVolumeHurtsNobodyElse(t *testing.T) {
	n := startNode(t)
	n.createVolume("full", 64*mib)
	n.createVolume("other", 64*mib)
	a, b := n.create(at("full", "/session")), n.create(at("other", "/session"))
	before := free(t, n.DataDir)
	for _, user := range []string{"sandbox", "root"} {
		out := n.sh(a, user, "dd if=/dev/zero of=/session/big bs=1M count=200 2>&1; stat -c %s /session/big")
		if !strings.Contains(out, "No space left on device") {
			t.Errorf("as %s: %s", user, out)
		}
	}
	if got := n.sh(a, "sandbox", "echo x > /workspace/file && cat /workspace/file && rm -f /session/big && echo y > /session/file && cat /session/file"); got != "x\ny\n" {
		t.Errorf("the full one says %q", got)
	}
	n.sh(b, "sandbox", "dd if=/dev/zero of=/session/big bs=1M count=40 2>/dev/null && sync")
	if after := free(t, n.DataDir); before-after > 512*mib {
		t.Errorf("the host lost %d MiB", (before-after)>>20)
	}
}

func TestAMillionFilesEndAtTheVolumesInodes(t *testing.T) {
	n := startNode(t)
	n.createVolume("many", 64*mib)
	a := n.create(at("many", "/session"))
	out := n.sh(a, "root", `/usr/bin/python3 -c '
import os
n = 0
try:
    for n in range(1000000):
        os.close(os.open(f"/session/{n}", os.O_CREAT | os.O_WRONLY))
except OSError as e:
    print(n, e.errno)
'; df --output=itotal,iavail /session | tail -1; echo alive > /workspace/x && cat /workspace/x`)
	var files, errno, inodes, left int
	if _, err := fmt.Sscanf(out, "%d %d\n%d %d\nalive", &files, &errno, &inodes, &left); err != nil || errno != 28 || files > inodes || left != 0 || inodes > 64*mib/16384 {
		t.Errorf("a million files: %s (%v)", out, err)
	}
}

func TestWhatAGuestPutsIntoAVolumeHasNoPowerElsewhere(t *testing.T) {
	n := startNode(t)
	n.createVolume("one", 64*mib)
	a, b := n.create(at("one", "/session")), n.create(at("one", "/session"))
	data := filepath.Join(n.DataDir, "volumes", "one", "mount", "data")

	// Set-id bits give nothing to the next who runs the file.
	n.sh(a, "root", "cp /usr/bin/id /session/id && chown 0:0 /session/id && chmod 6755 /session/id")
	if got := n.sh(b, "sandbox", "/session/id -u; /session/id -g"); got != "2000\n2000\n" {
		t.Errorf("a set-id program made its user %q", got)
	}
	// Devices cannot be made, and would not work.
	if out, code, _ := n.run(a, "root", "mknod /session/sda b 8 0 && dd if=/session/sda of=/dev/null bs=1 count=1"); code == 0 {
		t.Errorf("a device was made and read: %s", out)
	}
	if out, code, _ := n.run(a, "root", "mknod /session/mem c 1 1 && cat /session/mem"); code == 0 {
		t.Errorf("a device was made and read: %s", out)
	}
	// Links lead nowhere but inside.
	n.sh(a, "root", "ln -s /etc/hostname /session/absolute && ln -s ../../../../../../../../etc/shadow /session/relative && ln -s /.cay/s/a.sock /session/agent && ln -s .. /session/up")
	if out, code, _ := n.run(b, "root", "cat /session/relative"); code == 0 {
		t.Errorf("a link led to %q", out)
	}
	if got := n.sh(b, "root", "ls -a /session/up/session | grep -c absolute; ls /session/up/ | grep -c lost+found; true"); got != "1\n0\n" {
		t.Errorf("above the volume: %q", got)
	}
	if got := n.sh(b, "root", "ls -a /.cay/v /.cay/v/one/../ | sort -u | tr '\\n' ' '"); strings.Contains(got, "lost+found") || strings.Contains(got, "image") {
		t.Errorf("beside the volume: %q", got)
	}
	// Around the volumes there is nothing to write to: that would be the host's memory.
	if out, code, _ := n.run(b, "root", "mkdir /.cay/v/more || echo x > /.cay/v/x || mv /.cay/v/one /.cay/v/two || rmdir /.cay/v/one"); code == 0 {
		t.Errorf("the directory of volumes was changed: %s", out)
	}
	// A socket is its sandbox's own.
	bind := `/usr/bin/python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX); s.bind("/session/sock"); s.listen()
c = socket.socket(socket.AF_UNIX); c.connect("/session/sock"); print("own")
open("/session/bound", "w").close()
import time
while True:
    try:
        open("/session/done"); break
    except FileNotFoundError: time.sleep(0.05)
'`
	var listening sync.WaitGroup
	listening.Go(func() {
		if out, code, err := n.run(a, "root", bind); err != nil || code != 0 || out != "own\n" {
			t.Errorf("a socket of its own: %q, exit %d, %v", out, code, err)
		}
	})
	got := n.sh(b, "root", `while [ ! -e /session/bound ]; do sleep 0.05; done; /usr/bin/python3 -c '
import socket
c = socket.socket(socket.AF_UNIX)
try:
    c.connect("/session/sock"); print("connected")
except OSError as e: print("refused")
'; touch /session/done`)
	listening.Wait()
	if got != "refused\n" {
		t.Errorf("the socket of another sandbox: %q", got)
	}
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(table), "/session/sock") || strings.Contains(string(table), data) {
		t.Error("a guest's socket is one of the host's")
	}
	err = filepath.WalkDir(data, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type()&(os.ModeSocket|os.ModeDevice|os.ModeNamedPipe) != 0 && e.Name() != "sda" && e.Name() != "mem" {
			t.Errorf("on the host there is %s, %v", e.Name(), e.Type())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAReadOnlyVolumeCannotBeWrittenToByAnybodyInside(t *testing.T) {
	n := startNode(t)
	n.createVolume("one", 64*mib)
	a := n.create(at("one", "/session"))
	n.sh(a, "sandbox", "echo kept > /session/file")
	b := n.create(&nodev1.VolumeMount{Volume: "one", Path: "/cache", ReadOnly: true})
	for _, user := range []string{"sandbox", "root"} {
		for _, path := range []string{"/cache", "/.cay/v/one"} {
			if out, code, _ := n.run(b, user, fmt.Sprintf("cd %[1]s && (echo x > %[1]s/new || echo x >> %[1]s/file || rm -f %[1]s/file || touch %[1]s/file || mkdir %[1]s/dir)", path)); code == 0 {
				t.Errorf("%s wrote to %s: %s", user, path, out)
			}
			// Changing a mode may claim to have worked; it must not have.
			if got := n.sh(b, user, fmt.Sprintf("chmod 777 %[1]s/file 2>/dev/null; stat -c %%a %[1]s/file", path)); got != "644\n" {
				t.Errorf("%s changed a mode in %s to %s", user, path, got)
			}
		}
	}
	if got := n.sh(b, "sandbox", "cat /cache/file; grep ' /cache ' /proc/mounts | grep -c '[ ,]ro[ ,]'"); got != "kept\n1\n" {
		t.Errorf("it reads %q", got)
	}
	n.sh(a, "sandbox", "echo more >> /session/file")
	if got := n.sh(b, "sandbox", "cat /cache/file"); got != "kept\nmore\n" {
		t.Errorf("afterwards it reads %q", got)
	}
}

func TestTwoSandboxesOfOneVolumeSeeEachOthersWritesAtOnce(t *testing.T) {
	n := startNode(t)
	n.createVolume("one", 64*mib)
	a, b := n.create(at("one", "/session")), n.create(at("one", "/session"))
	for i := range 5 {
		n.sh(a, "sandbox", fmt.Sprintf("echo %d > /session/file", i))
		if got := n.sh(b, "sandbox", "cat /session/file"); got != fmt.Sprintf("%d\n", i) {
			t.Fatalf("written %d, read %q", i, got)
		}
		n.sh(b, "sandbox", "echo more >> /session/file")
		if got := n.sh(a, "sandbox", "cat /session/file && mv /session/file /session/moved"); got != fmt.Sprintf("%d\nmore\n", i) {
			t.Fatalf("appended, read %q", got)
		}
		if got := n.sh(b, "sandbox", "ls /session && rm /session/moved && mkdir -p /session/dir"); got != "moved\n" && got != "dir\nmoved\n" {
			t.Fatalf("moved, listed %q", got)
		}
	}
	// Both at once, each to a file of its own: where the end of a file is, gVisor knows for one sandbox alone.
	var both sync.WaitGroup
	for _, id := range []string{a, b} {
		both.Go(func() {
			if out, code, err := n.run(id, "sandbox", "for i in $(seq 200); do echo $i >> /session/log-"+id+"; done"); code != 0 || err != nil {
				t.Errorf("append: exit %d, %v: %s", code, err, out)
			}
		})
	}
	both.Wait()
	for _, id := range []string{a, b} {
		if got := n.sh(id, "sandbox", "cat /session/log-* | wc -l"); strings.TrimSpace(got) != "400" {
			t.Errorf("of 400 lines there are %s", got)
		}
	}
	// Mapped memory is the file's.
	n.sh(a, "sandbox", "dd if=/dev/zero of=/session/map bs=4096 count=1 2>/dev/null")
	both.Go(func() {
		out, code, err := n.run(a, "sandbox", `/usr/bin/python3 -c '
import mmap, time
f = open("/session/map", "r+b")
m = mmap.mmap(f.fileno(), 4096)
m[0] = 1
end = time.time() + 60
while m[1] != 2 and time.time() < end: time.sleep(0.01)
print(m[1])'`)
		if out != "2\n" || code != 0 || err != nil {
			t.Errorf("one side: %q, exit %d, %v", out, code, err)
		}
	})
	got := n.sh(b, "sandbox", `/usr/bin/python3 -c '
import mmap, time
f = open("/session/map", "r+b")
m = mmap.mmap(f.fileno(), 4096)
end = time.time() + 60
while m[0] != 1 and time.time() < end: time.sleep(0.01)
m[1] = 2
print(m[0])'`)
	both.Wait()
	if got != "1\n" {
		t.Errorf("the other side: %q", got)
	}
}

func TestMoreThanASandboxsMemoryCanBeWrittenToAVolume(t *testing.T) {
	n := startNode(t)
	n.createVolume("big", 2048*mib)
	a := n.create(at("big", "/session"))
	if got := n.sh(a, "sandbox", "dd if=/dev/zero of=/session/big bs=1M count=1536 2>/dev/null; stat -c %s /session/big; echo alive"); got != "1610612736\nalive\n" {
		t.Errorf("1.5 GiB from a sandbox of 512 MiB: %q", got)
	}
}

func free(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}
