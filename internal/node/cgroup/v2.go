package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// service is the leaf into which the processes of the node itself go where the group is theirs alone: version 2 allows no members
// in a group that hands out controllers.
const service = "service"

// v2 is a tree in the unified hierarchy.
type v2 struct {
	dir      string
	enforces []Controller
}

var wanted = []Controller{CPU, Memory, Pids}

// openV2 finds a group to build in. A group that was delegated to this process is used: processes in it that run this executable
// are moved into a leaf. Root without a delegated group builds at the top of the hierarchy.
func openV2(h host, name string) (*v2, error) {
	if h.unified == nil {
		return nil, errors.New("no cgroup v2")
	}
	base, err := baseOf(*h.unified)
	if err != nil {
		return nil, err
	}
	t := &v2{dir: filepath.Join(base, name)}
	if err := t.usable(); err != nil {
		return nil, err
	}
	available, err := read(base, "cgroup.controllers")
	if err != nil {
		return nil, fmt.Errorf("read the controllers: %w", err)
	}
	for _, c := range wanted {
		if slices.Contains(strings.Fields(available), string(c)) {
			t.enforces = append(t.enforces, c)
		}
	}
	if err := enable(base, t.enforces); err != nil {
		return nil, err
	}
	return t, nil
}

func baseOf(p place) (string, error) {
	own := p.own
	if filepath.Base(own) == service {
		return filepath.Dir(own), nil // moved there by this function, in this process or in the one that started it
	}
	switch {
	case !exists(filepath.Join(own, "cgroup.type")):
		return own, nil // the root of all groups may have members
	case delegated(own):
		leaf := filepath.Join(own, service)
		if err := os.MkdirAll(leaf, 0o755); err != nil {
			return "", fmt.Errorf("make control group %s: %w", leaf, err)
		}
		return own, moveOwn(own, leaf)
	case os.Geteuid() == 0:
		return p.mount, nil
	}
	return "", errors.New("the control group of this process is not delegated to its user")
}

// delegated reports that the group is this process's to divide: systemd says so by an attribute; a user can write only to what
// was given to it; and in a container the group at the top of the mount is the container's own.
func delegated(dir string) bool {
	var b [8]byte
	for _, attr := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(dir, attr, b[:]); err == nil && string(b[:n]) == "1" {
			return true
		}
	}
	if os.Geteuid() != 0 {
		return unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) == nil && unix.Access(dir, unix.W_OK) == nil
	}
	return !exists(filepath.Join(filepath.Dir(dir), "cgroup.procs"))
}

// moveOwn moves the processes of group from that run the executable of this process.
func moveOwn(from, to string) error {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return err
	}
	pids, err := members(from)
	if err != nil {
		return fmt.Errorf("list the members of %s: %w", from, err)
	}
	for _, pid := range append(pids, os.Getpid()) {
		exe, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || !os.SameFile(self, exe) {
			continue
		}
		if err := write(to, "cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("move process %d into %s: %w", pid, to, err)
		}
	}
	return nil
}

// enable hands the controllers on to the groups below dir.
func enable(dir string, controllers []Controller) error {
	if len(controllers) == 0 {
		return nil
	}
	var b strings.Builder
	for _, c := range controllers {
		fmt.Fprintf(&b, "+%s ", c)
	}
	if err := write(dir, "cgroup.subtree_control", strings.TrimSpace(b.String())); err != nil {
		return fmt.Errorf("hand on the controllers of %s: %w", dir, err)
	}
	return nil
}

func (t *v2) usable() error {
	if err := usable(t.dir); err != nil {
		return err
	}
	return nil
}

func (t *v2) Version() Version           { return V2 }
func (t *v2) Enforces(c Controller) bool { return slices.Contains(t.enforces, c) }
func (t *v2) CanFreeze() bool            { return true }

func (t *v2) Note() string {
	var missing []string
	for _, c := range wanted {
		if !t.Enforces(c) {
			missing = append(missing, string(c))
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return "cgroup v2 without the controllers " + strings.Join(missing, ", ")
}

func (t *v2) Create(name string, l Limits) (Group, error) {
	g := t.open(name)
	if err := os.MkdirAll(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make control group %s: %w", name, err)
	}
	err := enable(t.dir, t.enforces)
	if err == nil {
		err = g.SetLimits(l)
	}
	if err != nil {
		return nil, errors.Join(err, g.Remove())
	}
	return g, nil
}

func (t *v2) Open(name string) Group { return t.open(name) }
func (t *v2) open(name string) *v2Group {
	return &v2Group{dir: filepath.Join(t.dir, name), enforces: t.enforces}
}
func (t *v2) List() ([]string, error) { return listDirs([]string{t.dir}) }

func (t *v2) Remove() error {
	if names, err := t.List(); err != nil || len(names) > 0 {
		return err
	}
	return removeDir(t.dir)
}

type v2Group struct {
	dir      string
	enforces []Controller
	ends     bool // Remove removes an empty parent as well
}

func (g *v2Group) Location() Location {
	return Location{Version: V2, Unified: g.dir, Enforces: g.enforces}
}

func (g *v2Group) Exists() bool { return exists(g.dir) }

// Start has the kernel put the child into the group as part of its making (CLONE_INTO_CGROUP, Linux 5.7).
func (g *v2Group) Start(cmd *exec.Cmd) error {
	dir, err := os.Open(g.dir)
	if err != nil {
		return fmt.Errorf("open the control group: %w", err)
	}
	defer dir.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(dir.Fd())
	return cmd.Start()
}

func (g *v2Group) SetLimits(l Limits) error {
	bytesOrMax := func(n int64) string {
		if n <= 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	for _, c := range g.enforces {
		var err error
		switch c {
		case CPU:
			q := "max"
			if l.CPU > 0 {
				q = strconv.FormatInt(quota(l.CPU), 10)
			}
			err = write(g.dir, "cpu.max", fmt.Sprintf("%s %d", q, cpuPeriod))
		case Memory:
			err = write(g.dir, "memory.max", bytesOrMax(l.MemoryBytes))
			if err == nil {
				err = write(g.dir, "memory.high", bytesOrMax(l.MemoryWatch))
			}
			// Swap would turn the limit into a slow machine; kernels without swap have no such file.
			_ = write(g.dir, "memory.swap.max", "0")
		case Pids:
			err = write(g.dir, "pids.max", bytesOrMax(l.Pids))
		}
		if err != nil {
			return fmt.Errorf("limit %s: %w", c, err)
		}
	}
	return nil
}

func (g *v2Group) Pids() ([]int, error) { return members(g.dir) }

func (g *v2Group) Kill(ctx context.Context) error {
	err := write(g.dir, "cgroup.kill", "1")
	if err != nil && !exists(g.dir) {
		return nil
	}
	if err == nil {
		// Frozen members die as well. The group is empty when the kernel says so, not when the list is: it leaves out zombies.
		return poll(ctx, func() (bool, error) { return g.event("populated", 0) })
	}
	return killAll(ctx, g.Pids, func() { _ = write(g.dir, "cgroup.freeze", "0") }) // before Linux 5.14
}

// event reports whether cgroup.events has key at value; a group that is gone has what is awaited of it.
func (g *v2Group) event(key string, value int64) (bool, error) {
	keys, err := readKeys(g.dir, "cgroup.events")
	if gone(err) {
		return true, nil
	}
	return keys[key] == value, err
}

func (g *v2Group) Freeze(ctx context.Context) error { return g.freeze(ctx, 1) }
func (g *v2Group) Thaw(ctx context.Context) error   { return g.freeze(ctx, 0) }

func (g *v2Group) freeze(ctx context.Context, state int64) error {
	if err := write(g.dir, "cgroup.freeze", strconv.FormatInt(state, 10)); err != nil {
		return fmt.Errorf("freeze or thaw: %w", err)
	}
	if err := poll(ctx, func() (bool, error) { return g.event("frozen", state) }); err != nil {
		return fmt.Errorf("freeze or thaw: %w", err)
	}
	return nil
}

func (g *v2Group) Frozen() (bool, error) {
	keys, err := readKeys(g.dir, "cgroup.events")
	if gone(err) {
		return false, nil
	}
	return keys["frozen"] == 1, err
}

func (g *v2Group) cpu() (time.Duration, error) {
	keys, err := readKeys(g.dir, "cpu.stat")
	return time.Duration(keys["usage_usec"]) * time.Microsecond, err
}

func (g *v2Group) Usage() (Usage, error) {
	var u Usage
	var err error
	if u.CPU, err = g.cpu(); err != nil && !gone(err) {
		return Usage{}, fmt.Errorf("read cpu use: %w", err)
	}
	if u.Memory, err = g.memory(); err != nil && !gone(err) {
		return Usage{}, fmt.Errorf("read memory use: %w", err)
	}
	if u.Peak, err = readInt(g.dir, "memory.peak"); err != nil {
		u.Peak, err = readInt(g.dir, "memory.current") // before Linux 5.19
	}
	if err != nil && !gone(err) {
		return Usage{}, fmt.Errorf("read memory use: %w", err)
	}
	return u, nil
}

func (g *v2Group) memory() (int64, error) {
	b, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	// shmem is the third line of dozens: only the head of the file is parsed.
	if i := bytes.Index(b, []byte("\nfile_mapped ")); i > 0 {
		b = b[:i]
	}
	keys := parseKeys(b)
	return keys["anon"] + keys["shmem"], nil
}

func (g *v2Group) OOMKills() (int64, error) {
	keys, err := readKeys(g.dir, "memory.events")
	if gone(err) {
		return 0, nil
	}
	return keys["oom_kill"], err
}

func (g *v2Group) Remove() error { return removeLeaf(g.dir, g.ends) }
