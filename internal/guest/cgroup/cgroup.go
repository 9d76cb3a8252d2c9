// Package cgroup keeps a sandbox's processes in control groups inside the sandbox: one parent with the limit on processes, and below
// it a group for each started process, which no descendant can leave. It needs gVisor's cgroup v2; these groups have nothing to do
// with those of the host.
package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Tree is the parent of all groups.
type Tree struct {
	dir int // O_PATH
}

// Mount mounts the cgroup file system at dir, makes the parent and hides the mount again: afterwards only the returned Tree reaches
// it, so that not even root of the sandbox can move a process to another group.
func Mount(dir string) (*Tree, error) {
	if err := unix.Mkdir(dir, 0o700); err != nil && err != unix.EEXIST {
		return nil, fmt.Errorf("make mount point for control groups: %w", err)
	}
	if err := unix.Mount("none", dir, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return nil, fmt.Errorf("mount control groups: %w", err)
	}
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if umountErr := unix.Unmount(dir, unix.MNT_DETACH); err == nil {
		err = umountErr
	}
	if err != nil {
		return nil, fmt.Errorf("hide control groups: %w", err)
	}
	defer unix.Close(root)
	_ = unix.Rmdir(dir)
	if err := write(root, "cgroup.subtree_control", "+pids"); err != nil {
		return nil, err
	}
	if err := unix.Mkdirat(root, "user", 0o700); err != nil && err != unix.EEXIST {
		return nil, fmt.Errorf("make parent group: %w", err)
	}
	parent, err := unix.Openat(root, "user", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open parent group: %w", err)
	}
	return &Tree{dir: parent}, nil
}

// Limit sets how many processes and threads all groups together may have.
func (t *Tree) Limit(pids int64) error { return write(t.dir, "pids.max", strconv.FormatInt(pids, 10)) }

// Current counts the processes and threads in all groups.
func (t *Tree) Current() (int64, error) {
	b, err := read(t.dir, "pids.current")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
}

// Group is one started process and all that descends from it.
type Group struct {
	tree *Tree
	name string

	mu  sync.Mutex
	dir int // O_PATH; -1 once removed
}

// Create makes a group.
func (t *Tree) Create(name string) (*Group, error) {
	if err := unix.Mkdirat(t.dir, name, 0o700); err != nil {
		return nil, fmt.Errorf("make group %s: %w", name, err)
	}
	dir, err := unix.Openat(t.dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Unlinkat(t.dir, name, unix.AT_REMOVEDIR)
		return nil, fmt.Errorf("open group %s: %w", name, err)
	}
	return &Group{tree: t, name: name, dir: dir}, nil
}

// FD is the directory, for clone3 with CLONE_INTO_CGROUP. It is valid until Remove.
func (g *Group) FD() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.dir
}

// Kill ends every process of the group at once, those being forked included. They may take a moment to be gone. Killing a group
// that was removed, and is therefore empty, is nil.
func (g *Group) Kill() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dir < 0 {
		return nil
	}
	return write(g.dir, "cgroup.kill", "1")
}

// Pids lists the group's processes.
func (g *Group) Pids() ([]int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dir < 0 {
		return nil, nil
	}
	b, err := read(g.dir, "cgroup.procs")
	if err != nil {
		return nil, err
	}
	var pids []int
	for line := range bytes.Lines(b) {
		if pid, err := strconv.Atoi(string(bytes.TrimSpace(line))); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Remove removes the group and reports whether it is gone: it stays while a process is left in it.
func (g *Group) Remove() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dir < 0 {
		return true
	}
	if err := unix.Unlinkat(g.tree.dir, g.name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return false
	}
	_ = unix.Close(g.dir)
	g.dir = -1
	return true
}

func write(dir int, name, value string) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.Write(fd, []byte(value))
		_ = unix.Close(fd)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func read(dir int, name string) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}
