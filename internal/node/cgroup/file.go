package cgroup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// write writes value into a control file, which must exist.
func write(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %q: %w", value, err)
	}
	return nil
}

func read(dir, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(b)), err
}

func readInt(dir, file string) (int64, error) {
	s, err := read(dir, file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(s, 10, 64)
}

// readKeys reads a control file of "key value" lines.
func readKeys(dir, file string) (map[string]int64, error) {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	return parseKeys(b), nil
}

func parseKeys(b []byte) map[string]int64 {
	out := map[string]int64{}
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), " "); ok {
			if n, err := strconv.ParseInt(v, 10, 64); err == nil {
				out[k] = n
			}
		}
	}
	return out
}

// members lists the processes of a group, without this one: a thread of it stands in a v1 group while it starts a member.
func members(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if gone(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var out []int
	for f := range strings.FieldsSeq(string(b)) {
		// A member outside of this process's pid namespace reads as 0.
		if pid, err := strconv.Atoi(f); err == nil && pid > 0 && pid != os.Getpid() {
			out = append(out, pid)
		}
	}
	return out, nil
}

// gone reports that a group's directory is not there, or went while a file of it was open.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}

func exists(dir string) bool {
	_, err := os.Stat(dir)
	return err == nil
}

// removeDir removes a group. A member that died a moment ago may keep it busy.
func removeDir(dir string) error {
	var err error
	for range 50 {
		if err = os.Remove(dir); err == nil || gone(err) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	return fmt.Errorf("remove a control group: %w", err)
}

// removeLeaf removes a group and, if asked, its parent where that is empty: one with members or groups stays, by the kernel's rule.
func removeLeaf(dir string, parent bool) error {
	if err := removeDir(dir); err != nil {
		return err
	}
	if parent {
		_ = os.Remove(filepath.Dir(dir))
	}
	return nil
}

// poll calls done until it reports true, waiting 1 ms at first and 20 ms at last between calls.
func poll(ctx context.Context, done func() (bool, error)) error {
	wait := time.Millisecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			wait = min(wait*2, 20*time.Millisecond)
			timer.Reset(wait)
		}
	}
}

// killAll signals the members until pids finds none. thaw lets frozen ones meet the signal.
func killAll(ctx context.Context, pids func() ([]int, error), thaw func()) error {
	return poll(ctx, func() (bool, error) {
		found, err := pids()
		if err != nil {
			return false, err
		}
		for _, pid := range found {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return false, fmt.Errorf("kill %d: %w", pid, err)
			}
		}
		if len(found) > 0 {
			thaw()
		}
		return len(found) == 0, nil
	})
}
