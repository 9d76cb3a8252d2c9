package agent

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/cayhq/cay/internal/guest/user"
	"golang.org/x/sys/unix"
)

// rootCapabilities are those that root of a sandbox may have: what changes files, users and its own processes. The agent alone can
// mount, raise limits or make devices.
var rootCapabilities = []int{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID,
	unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT,
}

// Harden makes this process hard to reach and to imitate for the processes that it will start. Call it first in main.
func Harden() error {
	unix.Umask(0o022)
	// What this process was started with is nobody else's. Everything opened later is close-on-exec anyway.
	if err := unix.CloseRange(3, 1<<31-1, unix.CLOSE_RANGE_CLOEXEC); err != nil && err != unix.ENOSYS {
		return fmt.Errorf("keep descriptors: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("make undumpable: %w", err)
	}
	if os.Getpid() != 1 {
		// Orphans come here all the same.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("adopt orphans: %w", err)
		}
	}
	// A handler, unlike SIG_IGN, is not inherited. Nobody reads the channel: what somebody sends has no effect. Real faults still panic.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGALRM,
		syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTRAP, syscall.SIGSYS, syscall.SIGXCPU, syscall.SIGVTALRM,
		syscall.SIGPROF, syscall.SIGIO, syscall.SIGPWR, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGSTKFLT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU)
	if os.Geteuid() == 0 {
		return dropBounding()
	}
	return nil
}

// dropBounding limits what a process of root gets at exec. The agent's own capabilities stay.
func dropBounding() error {
	keep := map[int]bool{}
	for _, c := range rootCapabilities {
		keep[c] = true
	}
	for c := range unix.CAP_LAST_CAP + 1 {
		if keep[c] {
			continue
		}
		switch held, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0); {
		case err == unix.EINVAL: // the kernel knows no more
			return nil
		case err != nil:
			return fmt.Errorf("read capability %d: %w", c, err)
		case held == 0:
			continue
		}
		if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c), 0); errno != 0 {
			return fmt.Errorf("drop capability %d: %w", c, errno)
		}
	}
	return nil
}

// PrepareRoot makes the directories that every sandbox has, and its user known.
func PrepareRoot(passwd, group string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs("/tmp", &fs); err == nil && fs.Type == unix.TMPFS_MAGIC {
		// runsc mounts memory there; the disk below counts towards the sandbox's quota.
		_ = unix.Unmount("/tmp", unix.MNT_DETACH)
	}
	if err := os.MkdirAll("/tmp", 0o777); err != nil {
		return fmt.Errorf("make /tmp: %w", err)
	}
	if err := unix.Chmod("/tmp", 0o1777); err != nil {
		return fmt.Errorf("open /tmp to all: %w", err)
	}
	for _, dir := range []string{"/workspace", "/output", "/home/" + user.Sandbox} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
		if err := os.Chown(dir, user.SandboxUID, user.SandboxGID); err != nil {
			return fmt.Errorf("give %s away: %w", dir, err)
		}
	}
	id := strconv.Itoa(user.SandboxUID)
	if err := appendEntry(passwd, id, user.Sandbox+":x:"+id+":"+id+"::/home/"+user.Sandbox+":/bin/sh\n"); err != nil {
		return err
	}
	return appendEntry(group, id, user.Sandbox+":x:"+id+":\n")
}

// appendEntry adds a line to passwd or group unless it has one of that name or id.
func appendEntry(file, id, line string) error {
	b, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read %s: %w", file, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		if f := strings.Split(lines.Text(), ":"); f[0] == user.Sandbox || len(f) > 2 && f[2] == id {
			return nil
		}
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		line = "\n" + line
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("open %s: %w", file, err)
	}
	defer f.Close()
	if _, err := f.WriteString(line); err != nil {
		return fmt.Errorf("add the sandbox's user to %s: %w", file, err)
	}
	return nil
}
