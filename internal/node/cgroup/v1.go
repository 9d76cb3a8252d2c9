package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// v1 uses the controllers cpu, memory and pids of version 1. Where a unified hierarchy is mounted beside them (a hybrid host), its
// groups kill, freeze and account, better than version 1 does; else freezer and cpuacct serve.
type v1 struct {
	dirs    map[string]string // controller to the tree's directory
	unified *v2
}

func openV1(h host, name string) (*v1, error) {
	t := &v1{dirs: map[string]string{}}
	for _, c := range []string{"cpu", "memory", "pids"} {
		p, ok := h.v1[c]
		if !ok {
			return nil, fmt.Errorf("no cgroup v1 controller %s", c)
		}
		t.dirs[c] = filepath.Join(p.own, name)
	}
	if h.unified != nil {
		// There the threads of this process stay where they are: without controllers nothing forbids members in inner groups.
		u := &v2{dir: filepath.Join(h.unified.own, name)}
		if u.usable() == nil {
			t.unified = u
		}
	}
	if t.unified == nil {
		for _, c := range []string{"cpuacct", "freezer"} {
			if p, ok := h.v1[c]; ok {
				t.dirs[c] = filepath.Join(p.own, name)
			}
		}
	}
	for _, dir := range t.distinct() {
		if err := usable(dir); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// usable tries whether groups can be made in dir, which is made if need be.
func usable(dir string) error {
	made := !exists(dir)
	probe := filepath.Join(dir, "probe")
	if err := os.MkdirAll(probe, 0o755); err != nil {
		return fmt.Errorf("make a control group: %w", err)
	}
	err := removeDir(probe)
	if made {
		err = errors.Join(err, removeDir(dir))
	}
	return err
}

// distinct lists the tree's directories once each: controllers may be mounted together.
func (t *v1) distinct() []string {
	var out []string
	for _, d := range t.dirs {
		out = append(out, d)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (t *v1) Version() Version { return V1 }
func (t *v1) Note() string     { return "" }
func (t *v1) CanFreeze() bool  { return t.unified != nil || t.dirs["freezer"] != "" }

func (t *v1) Enforces(c Controller) bool { return t.dirs[string(c)] != "" }

func (t *v1) Create(name string, l Limits) (Group, error) {
	g := t.open(name)
	for _, d := range g.distinct() {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, fmt.Errorf("make control group %s: %w", name, err)
		}
	}
	if g.unified != nil {
		if err := os.MkdirAll(g.unified.dir, 0o755); err != nil {
			return nil, fmt.Errorf("make control group %s: %w", name, err)
		}
	}
	if err := g.SetLimits(l); err != nil {
		return nil, errors.Join(err, g.Remove())
	}
	return g, nil
}

func (t *v1) Open(name string) Group { return t.open(name) }

func (t *v1) open(name string) *v1Group {
	g := &v1Group{v1: v1{dirs: make(map[string]string, len(t.dirs))}}
	for c, d := range t.dirs {
		g.dirs[c] = filepath.Join(d, name)
	}
	if t.unified != nil {
		g.unified = &v2Group{dir: filepath.Join(t.unified.dir, name)}
	}
	return g
}

func (t *v1) List() ([]string, error) {
	dirs := t.distinct()
	if t.unified != nil {
		dirs = append(dirs, t.unified.dir)
	}
	return listDirs(dirs)
}

func listDirs(dirs []string) ([]string, error) {
	var out []string
	for _, d := range dirs {
		entries, err := os.ReadDir(d)
		if err != nil && !gone(err) {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				out = append(out, e.Name())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (t *v1) Remove() error {
	if names, err := t.List(); err != nil || len(names) > 0 {
		return err
	}
	var errs []error
	for _, d := range t.distinct() {
		errs = append(errs, removeDir(d))
	}
	if t.unified != nil {
		errs = append(errs, t.unified.Remove())
	}
	return errors.Join(errs...)
}

type v1Group struct {
	v1      // with the group's directories
	unified *v2Group
	ends    bool // Remove removes empty parents as well
}

func (g *v1Group) Location() Location {
	l := Location{Version: V1, Dirs: g.dirs}
	if g.unified != nil {
		l.Unified = g.unified.dir
	}
	return l
}

func (g *v1Group) Exists() bool {
	return slices.ContainsFunc(g.distinct(), exists) || g.unified != nil && g.unified.Exists()
}

// Start moves the calling thread, and nothing else of this process, into the group for as long as it takes to fork: the child is
// born there. A thread that cannot be moved back ends with its goroutine.
func (g *v1Group) Start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		tid := strconv.Itoa(syscall.Gettid())
		var entered []string
		err := error(nil)
		for _, d := range g.distinct() {
			if err = write(d, "tasks", tid); err != nil {
				err = fmt.Errorf("enter the control group: %w", err)
				break
			}
			entered = append(entered, d)
		}
		if err == nil {
			if g.unified != nil {
				err = g.unified.Start(cmd)
			} else {
				err = cmd.Start()
			}
		}
		back := true
		for _, d := range entered {
			back = write(filepath.Dir(filepath.Dir(d)), "tasks", tid) == nil && back
		}
		if back {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

func (g *v1Group) SetLimits(l Limits) error {
	cpu := int64(-1)
	if l.CPU > 0 {
		cpu = quota(l.CPU)
	}
	err := write(g.dirs["cpu"], "cpu.cfs_period_us", strconv.Itoa(cpuPeriod))
	if err == nil {
		err = write(g.dirs["cpu"], "cpu.cfs_quota_us", strconv.FormatInt(cpu, 10))
	}
	if err != nil {
		return fmt.Errorf("limit cpu to %g cores: %w", l.CPU, err)
	}
	memory := int64(-1)
	if l.MemoryBytes > 0 {
		memory = l.MemoryBytes
	}
	if err := write(g.dirs["memory"], "memory.limit_in_bytes", strconv.FormatInt(memory, 10)); err != nil {
		return fmt.Errorf("limit memory to %d bytes: %w", l.MemoryBytes, err)
	}
	// Swap would turn the limit into a slow machine; kernels without swap accounting have no such file.
	_ = write(g.dirs["memory"], "memory.swappiness", "0")
	pids := "max"
	if l.Pids > 0 {
		pids = strconv.FormatInt(l.Pids, 10)
	}
	if err := write(g.dirs["pids"], "pids.max", pids); err != nil {
		return fmt.Errorf("limit pids to %d: %w", l.Pids, err)
	}
	return nil
}

func (g *v1Group) Pids() ([]int, error) {
	var out []int
	for _, d := range g.distinct() {
		p, err := members(d)
		if err != nil {
			return nil, err
		}
		out = append(out, p...)
	}
	if g.unified != nil {
		p, err := g.unified.Pids()
		if err != nil {
			return nil, err
		}
		out = append(out, p...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

func (g *v1Group) Kill(ctx context.Context) error {
	if g.unified != nil {
		if err := g.unified.Kill(ctx); err != nil {
			return err
		}
	}
	return killAll(ctx, g.Pids, func() {
		if g.unified == nil && g.dirs["freezer"] != "" {
			_ = write(g.dirs["freezer"], "freezer.state", "THAWED")
		}
	})
}

func (g *v1Group) Freeze(ctx context.Context) error {
	if g.unified != nil {
		return g.unified.Freeze(ctx)
	}
	return g.freezer(ctx, "FROZEN")
}

func (g *v1Group) Thaw(ctx context.Context) error {
	if g.unified != nil {
		return g.unified.Thaw(ctx)
	}
	return g.freezer(ctx, "THAWED")
}

func (g *v1Group) freezer(ctx context.Context, state string) error {
	dir := g.dirs["freezer"]
	if dir == "" {
		return ErrUnsupported
	}
	err := poll(ctx, func() (bool, error) {
		// Written again each time: a process that forks while it is being frozen can hold the group in FREEZING.
		if err := write(dir, "freezer.state", state); err != nil {
			return false, err
		}
		now, err := read(dir, "freezer.state")
		return now == state, err
	})
	if err != nil {
		return fmt.Errorf("set the freezer to %s: %w", state, err)
	}
	return nil
}

func (g *v1Group) Frozen() (bool, error) {
	if g.unified != nil {
		return g.unified.Frozen()
	}
	if g.dirs["freezer"] == "" {
		return false, nil
	}
	s, err := read(g.dirs["freezer"], "freezer.state")
	if gone(err) {
		return false, nil
	}
	return s == "FROZEN", err
}

func (g *v1Group) Usage() (Usage, error) {
	var u Usage
	var err error
	if g.unified != nil {
		u.CPU, err = g.unified.cpu()
	} else if dir := g.dirs["cpuacct"]; dir != "" {
		var ns int64
		ns, err = readInt(dir, "cpuacct.usage")
		u.CPU = time.Duration(ns)
	}
	if err != nil && !gone(err) {
		return Usage{}, fmt.Errorf("read cpu use: %w", err)
	}
	if u.Memory, err = g.memory(); err == nil {
		u.Peak, err = readInt(g.dirs["memory"], "memory.max_usage_in_bytes")
	}
	if err != nil && !gone(err) {
		return Usage{}, fmt.Errorf("read memory use: %w", err)
	}
	return u, nil
}

// memory is what cannot be reclaimed. The total_ keys cover groups below this one, of which there are none; on every kernel the
// plain keys exist as well.
func (g *v1Group) memory() (int64, error) {
	keys, err := readKeys(g.dirs["memory"], "memory.stat")
	return keys["rss"] + keys["shmem"], err
}

func (g *v1Group) OOMKills() (int64, error) {
	keys, err := readKeys(g.dirs["memory"], "memory.oom_control")
	if gone(err) {
		return 0, nil
	}
	return keys["oom_kill"], err
}

func (g *v1Group) Remove() error {
	var errs []error
	for _, d := range g.distinct() {
		errs = append(errs, removeLeaf(d, g.ends))
	}
	if g.unified != nil {
		errs = append(errs, g.unified.Remove())
	}
	return errors.Join(errs...)
}
