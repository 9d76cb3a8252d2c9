package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/driver"
)

// process is one process of one boot of the machine: a pid alone may be used again.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot
}

func readBootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// stat is what this package needs of /proc/PID/stat.
type stat struct {
	state  byte
	parent int
	start  uint64
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat reads proc(5)'s stat. The name in it may hold spaces and parentheses: fields are counted from the last one.
func parseStat(b []byte) (stat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, errors.New("malformed stat")
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 20 || len(f[0]) != 1 {
		return stat{}, errors.New("malformed stat")
	}
	parent, err1 := strconv.Atoi(f[1])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	return stat{state: f[0][0], parent: parent, start: start}, errors.Join(err1, err2)
}

// identify makes pid a process.
func identify(pid int) (process, error) {
	s, err := readStat(pid)
	if err != nil {
		return process{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return process{PID: pid, Start: s.start}, nil
}

// open returns a pidfd of p, or ErrGone if it has exited. What it refers to cannot change afterwards. The pidfd is asked and not the
// state in stat, which is a zombie's as soon as the first thread has ended, when others may still hold files open.
func (p process) open() (*os.File, error) {
	if p.PID <= 0 {
		return nil, driver.ErrGone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, driver.ErrGone
	} else if err != nil {
		return nil, fmt.Errorf("open a pidfd of %d: %w", p.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if now, err := identify(p.PID); err != nil || now != p || hasExited(uintptr(fd)) {
		return nil, errors.Join(driver.ErrGone, f.Close())
	}
	return f, nil
}

// reap collects p if it is a zombie of this process, which it is when this process is the nearest subreaper. It waits for nobody
// else's children and for none that run.
func (p process) reap() {
	s, err := readStat(p.PID)
	if err != nil || s.start != p.Start || s.parent != os.Getpid() || s.state != 'Z' {
		return
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
}

// strays finds the processes of h by their command lines, for hosts without control groups: runsc itself while it starts, and the
// sentry and gofer, which name runsc's root and the container.
func strays(root string, h driver.Handle) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !isStray(b, root, h) {
			continue
		}
		if p, err := identify(pid); err == nil {
			out = append(out, p)
		}
	}
	return out, nil
}

// isStray judges a command line, its arguments ended by zeros.
func isStray(cmdline []byte, root string, h driver.Handle) bool {
	args := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	return len(args) > 2 && args[len(args)-1] == string(h) && slices.Contains(args, "--root="+root)
}
