package testkit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Role is one of the processes of an instance.
type Role string

const (
	RoleUp     Role = "up"
	RoleServer Role = "server"
	RoleNode   Role = "node"
)

// Process is a process as /proc shows it.
type Process struct {
	PID, PPID int
	State     string // R, S, D, Z, T …
	Name      string // the kernel's short name
	Cmdline   []string
}

func (p Process) String() string {
	if len(p.Cmdline) == 0 {
		return fmt.Sprintf("%d [%s] %s", p.PID, p.Name, p.State)
	}
	line := strings.Join(p.Cmdline, " ")
	if len(line) > 160 {
		line = line[:160] + "…"
	}
	return fmt.Sprintf("%d %s", p.PID, line)
}

// Processes lists the machine's processes.
func Processes() []Process {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var out []Process
	for _, dir := range dirs {
		if p, err := readProcess(dir); err == nil {
			out = append(out, p)
		}
	}
	return out
}

func readProcess(dir string) (Process, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return Process{}, err
	}
	// pid (name) state ppid …; the name may hold spaces and parentheses.
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return Process{}, errors.New("malformed stat")
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 2 {
		return Process{}, errors.New("malformed stat")
	}
	p := Process{State: fields[0], Name: string(stat[open+1 : end])}
	p.PID, _ = strconv.Atoi(filepath.Base(dir))
	p.PPID, _ = strconv.Atoi(fields[1])
	if line, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil && len(line) > 0 {
		p.Cmdline = strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	}
	return p, nil
}

// PID finds the process of that role: `cay up` itself, or its child that was started as `cay server` or `cay node`.
func (i *Instance) PID(role Role) (int, error) {
	if i.cmd == nil {
		return 0, errors.New("cay up was not started")
	}
	if role == RoleUp {
		return i.cmd.Process.Pid, nil
	}
	for _, p := range Processes() {
		if p.PPID == i.cmd.Process.Pid && p.State != "Z" && len(p.Cmdline) > 1 && slices.Contains(p.Cmdline[1:], string(role)) {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("cay up (pid %d) has no child `%s`", i.cmd.Process.Pid, role)
}

// Kill9 kills one process of the instance and returns once it is gone. `cay up` takes server and node with it at once, so they
// must be gone soon as well.
func (i *Instance) Kill9(role Role) error {
	var victims []int
	pid, err := i.PID(role)
	if err != nil {
		return err
	}
	if role == RoleUp {
		for _, r := range []Role{RoleServer, RoleNode} {
			if child, err := i.PID(r); err == nil {
				victims = append(victims, child)
			}
		}
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill -9 %s: %w", role, err)
	}
	if role == RoleUp {
		<-i.done
	} else {
		victims = append(victims, pid)
	}
	return Until(time.Minute, func() error {
		for _, v := range victims {
			if p, err := readProcess("/proc/" + strconv.Itoa(v)); err == nil && p.State != "Z" && (role == RoleUp || p.PPID == i.cmd.Process.Pid) {
				return fmt.Errorf("still there: %v", p)
			}
		}
		return nil
	})
}

// Restarted waits until `cay up` has put another process of that role in the place of the one that was killed.
func (i *Instance) Restarted(role Role, killed int, timeout time.Duration) error {
	return Until(timeout, func() error {
		pid, err := i.PID(role)
		if err == nil && pid == killed {
			err = fmt.Errorf("%s still has pid %d", role, pid)
		}
		return err
	})
}

// RSS is the resident memory of a process that no file backs, in bytes.
func RSS(pid int) (int64, error) {
	return statusField(pid, "RssAnon:")
}

func statusField(pid int, field string) (int64, error) {
	text, err := Status(pid, field)
	if err != nil {
		return 0, err
	}
	kb, err := strconv.ParseInt(strings.TrimSuffix(text, " kB"), 10, 64)
	return kb << 10, err
}

// Status is one line of /proc/PID/status, without its name; field ends with a colon.
func Status(pid int, field string) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			return strings.TrimSpace(rest), nil
		}
	}
	return "", fmt.Errorf("/proc/%d/status has no %s", pid, field)
}

// FDs counts the open descriptors of a process.
func FDs(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries), err
}

// WatchRSS samples [RSS] of a process until the returned function is called, which says what it was at first and at most.
func WatchRSS(pid int) (stop func() (before, peak int64)) {
	before, _ := RSS(pid)
	peak := before
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(pollInterval)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				if now, err := RSS(pid); err == nil {
					peak = max(peak, now)
				}
			}
		}
	}()
	return func() (int64, int64) {
		close(quit)
		<-done
		return before, peak
	}
}
