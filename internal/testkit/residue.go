package testkit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Residue is what an instance has on the machine, as far as it can be told from other instances': everything that names its data
// directory, its run directory or its name.
type Residue struct {
	Processes []string
	Mounts    []string
	Loops     []string // loop devices of its volumes, unless another installation's sandbox may keep them
	Cgroups   []string
	Sockets   []string
	Files     []string // directories of sandboxes, and their state in the run directory
}

// err is nil when there is nothing.
func (r Residue) err() error {
	var faults []error
	for _, kind := range []struct {
		name  string
		items []string
	}{{"processes", r.Processes}, {"mounts", r.Mounts}, {"loop devices", r.Loops}, {"cgroups", r.Cgroups}, {"sockets", r.Sockets}, {"files", r.Files}} {
		if len(kind.items) > 0 {
			shown := kind.items
			if len(shown) > 10 {
				shown = append(slices.Clone(shown[:10]), "…")
			}
			faults = append(faults, fmt.Errorf("%d %s: %s", len(kind.items), kind.name, strings.Join(shown, "; ")))
		}
	}
	return errors.Join(faults...)
}

// Counts is the size of each kind, for comparing before and after while a server runs.
func (r Residue) Counts() map[string]int {
	return map[string]int{
		"processes": len(r.Processes), "mounts": len(r.Mounts), "loop devices": len(r.Loops), "cgroups": len(r.Cgroups), "sockets": len(r.Sockets), "files": len(r.Files),
	}
}

// Name is what the instance's run directory and cgroups are called.
func (i *Instance) Name() string {
	sum := sha256.Sum256([]byte(i.DataDir))
	return hex.EncodeToString(sum[:])[:12]
}

// RunDirs are the places in which the run directory may be; see ARCHITECTURE.md, files on a node.
func (i *Instance) RunDirs() []string {
	return []string{filepath.Join("/run/cay", i.Name()), filepath.Join(i.DataDir, "run")}
}

// RunDir is the run directory of a started instance.
func (i *Instance) RunDir() string {
	for _, dir := range i.RunDirs() {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return i.RunDirs()[0]
}

// belongs tells by what something names whether it is this instance's. The trailing slash keeps one temporary directory from
// matching another whose name begins alike.
func (i *Instance) belongs(text string) bool {
	return strings.Contains(text, i.tempDir+"/") || strings.Contains(text, i.Name())
}

// Residue looks now.
func (i *Instance) Residue() Residue {
	var r Residue
	for _, p := range i.Owned() {
		r.Processes = append(r.Processes, p.String())
	}
	r.Mounts = i.mounts()
	r.Loops = i.loops()
	r.Cgroups = i.cgroups()
	r.Sockets = i.sockets()
	r.Files = i.files()
	return r
}

// Owned lists the instance's processes: those whose command line, environment, executable or cgroup names it. Zombies count: nobody
// reaped them.
func (i *Instance) Owned() []Process {
	var out []Process
	for _, p := range Processes() {
		dir := fmt.Sprintf("/proc/%d", p.PID)
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if i.belongs(strings.Join(p.Cmdline, " ")) || i.belongs(exe) || i.belongs(string(group)) ||
			bytes.Contains(append(env, 0), []byte("HOME="+i.tempDir+"\x00")) {
			out = append(out, p)
		}
	}
	return out
}

// Kernels lists the instance's sentries: one for each sandbox that exists, prepared ones included.
func (i *Instance) Kernels() []Process {
	var out []Process
	for _, p := range i.Owned() {
		if len(p.Cmdline) > 0 && strings.HasPrefix(filepath.Base(p.Cmdline[0]), "runsc-sandbox") {
			out = append(out, p)
		}
	}
	return out
}

func (i *Instance) mounts() []string {
	info, _ := os.ReadFile("/proc/self/mountinfo")
	var out []string
	for line := range strings.Lines(string(info)) {
		if fields := strings.Fields(line); len(fields) > 4 && i.belongs(fields[4]+"/") {
			out = append(out, fields[4])
		}
	}
	return out
}

// loops leaves them out while sandboxes of others run: one that booted while a volume was mounted keeps its device until it ends.
func (i *Instance) loops() []string {
	kernels := 0
	for _, p := range Processes() {
		if len(p.Cmdline) > 0 && strings.HasPrefix(filepath.Base(p.Cmdline[0]), "runsc-sandbox") {
			kernels++
		}
	}
	if kernels > len(i.Kernels()) {
		return nil
	}
	var out []string
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && i.belongs(string(text)) {
			out = append(out, fmt.Sprintf("/dev/%s of %s", filepath.Base(filepath.Dir(filepath.Dir(file))), strings.TrimSpace(string(text))))
		}
	}
	return out
}

func (i *Instance) cgroups() []string {
	var out []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		if strings.Contains(path, i.Name()) {
			out = append(out, path)
		}
		return nil
	})
	return out
}

func (i *Instance) sockets() []string {
	table, _ := os.ReadFile("/proc/net/unix")
	var out []string
	for line := range strings.Lines(string(table)) {
		// Both ends of a connection have the name of the one that listens.
		if fields := strings.Fields(line); len(fields) == 8 && i.belongs(fields[7]) && !slices.Contains(out, fields[7]) {
			out = append(out, fields[7])
		}
	}
	return out
}

// files finds what belongs to single sandboxes. The store, the key, the unpacked executables and the like are meant to stay.
func (i *Instance) files() []string {
	var out []string
	patterns := []string{filepath.Join(i.DataDir, "sandboxes", "*")}
	for _, run := range i.RunDirs() {
		patterns = append(patterns, filepath.Join(run, "s", "*"), filepath.Join(run, "points", "*"), filepath.Join(run, "runsc", "*"), filepath.Join(run, "node.sock"))
	}
	for _, p := range patterns {
		found, _ := filepath.Glob(p)
		out = append(out, found...)
	}
	return out
}

// purge removes by force what a failed test left, so that it cannot disturb others.
func (i *Instance) purge() {
	_ = Until(10*time.Second, func() error {
		owned := i.Owned()
		for _, p := range owned {
			if p.PID != os.Getpid() {
				_ = syscall.Kill(p.PID, syscall.SIGKILL)
			}
		}
		i.thaw()
		if len(owned) > 0 {
			return fmt.Errorf("still there: %v", owned)
		}
		return nil
	})
	for range 3 { // mounts may be stacked
		for _, m := range i.mounts() {
			_ = unix.Unmount(m, unix.MNT_DETACH)
		}
	}
	groups := i.cgroups()
	slices.SortFunc(groups, func(a, b string) int { return len(b) - len(a) }) // children first
	for _, g := range groups {
		_ = os.Remove(g)
	}
	for _, run := range i.RunDirs() {
		_ = os.RemoveAll(run)
	}
}

// thaw lets frozen processes meet their SIGKILL: a v1 freezer holds it back.
func (i *Instance) thaw() {
	for _, g := range i.cgroups() {
		_ = os.WriteFile(filepath.Join(g, "freezer.state"), []byte("THAWED"), 0)
		_ = os.WriteFile(filepath.Join(g, "cgroup.freeze"), []byte("0"), 0)
	}
}

// Memory is what the instance's sandboxes use of the host's, in bytes, as its control groups count it.
func (i *Instance) Memory() int64 {
	var sum int64
	for _, group := range i.cgroups() {
		if strings.HasSuffix(group, i.Name()) {
			continue // the parent, which counts what is counted below it
		}
		for _, file := range []string{"memory.usage_in_bytes", "memory.current"} {
			if text, err := os.ReadFile(filepath.Join(group, file)); err == nil {
				n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64) // 0 when it is gone in the middle
				sum += n
			}
		}
	}
	return sum
}

// Blocks is how much of the disk a file takes, in bytes; a sparse file takes less than its size.
func Blocks(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512
	}
	return info.Size()
}
