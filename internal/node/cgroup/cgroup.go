// Package cgroup keeps sandboxes in control groups of their own: limits that hold from a process's first instant, freezing, use,
// and a kill that reaches every member. It serves hosts with cgroup v1 (with or without a unified hierarchy beside it), v2, and
// those on which groups cannot be made at all. It knows nothing of sandboxes, only of names, limits and processes.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"
)

// Version is which kind of control groups a tree uses.
type Version string

const (
	V1   Version = "v1"
	V2   Version = "v2"
	None Version = "none"
)

// Controller is a kind of limit.
type Controller string

const (
	CPU    Controller = "cpu"
	Memory Controller = "memory"
	Pids   Controller = "pids"
)

// ErrUnsupported means that this host's control groups cannot do it.
var ErrUnsupported = errors.New("not supported by this host's control groups")

// Limits are a group's bounds; zero means none.
type Limits struct {
	CPU         float64 // cores
	MemoryBytes int64   // hard: the kernel kills beyond it
	MemoryWatch int64   // bytes from which WatchMemory reports; on v2 also where the kernel begins to reclaim
	Pids        int64   // tasks, threads included
}

// Usage is what a group has used.
type Usage struct {
	CPU    time.Duration
	Memory int64 // bytes that the kernel cannot reclaim without swap: anonymous and shared memory
	Peak   int64 // the most bytes charged at once, page cache included
}

// Tree makes groups beneath one directory (in each hierarchy), which is beneath the group of this process.
type Tree interface {
	Version() Version
	// Enforces reports whether limits of that kind hold.
	Enforces(Controller) bool
	CanFreeze() bool
	// Note says for people why something is not enforced; "" when all is.
	Note() string
	// Create makes the group, or takes the one that exists, and sets its limits.
	Create(name string, l Limits) (Group, error)
	// Open names a group without making it.
	Open(name string) Group
	// List names the groups that exist.
	List() ([]string, error)
	// Remove removes the tree's own directories when no group is left in them; otherwise it does nothing.
	Remove() error
}

// Group is one control group (one directory in each hierarchy). A group that does not exist has no members and no use.
type Group interface {
	// Start starts cmd as a member: no instruction of it runs outside of the limits.
	Start(cmd *exec.Cmd) error
	SetLimits(Limits) error
	// Pids lists the members. Zombies are none.
	Pids() ([]int, error)
	// Kill sends SIGKILL to every member, also to frozen ones and those that are being forked, and returns once there is none.
	Kill(ctx context.Context) error
	// Freeze and Thaw return once it is done.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error
	Frozen() (bool, error)
	Usage() (Usage, error)
	// OOMKills counts how often the kernel killed a member because of the memory limit.
	OOMKills() (int64, error)
	// WatchMemory calls over, with the bytes that cannot be reclaimed, whenever they are above threshold; again every 100 ms while they
	// stay there. It returns when ctx ends or the group is gone, at once where memory is not measured.
	WatchMemory(ctx context.Context, threshold int64, over func(current int64))
	// Remove removes the empty group.
	Remove() error
	// Exists reports whether any directory of the group exists.
	Exists() bool
	// Location is where the group is: a later process may stand in another group itself, and would look elsewhere.
	Location() Location
}

// Location is where a group's directories are. It can be stored and gives the group back by At.
type Location struct {
	Version  Version           `json:"version"`
	Dirs     map[string]string `json:"dirs,omitempty"` // v1, by controller
	Unified  string            `json:"unified,omitempty"`
	Enforces []Controller      `json:"enforces,omitempty"` // v2
}

// At is the group at a location, of this tree or of one that an earlier process made. Removing it removes the tree's directories
// with it when they are empty.
func At(l Location) Group {
	switch l.Version {
	case V1:
		g := &v1Group{v1: v1{dirs: l.Dirs}, ends: true}
		if l.Unified != "" {
			g.unified = &v2Group{dir: l.Unified, ends: true}
		}
		return g
	case V2:
		return &v2Group{dir: l.Unified, enforces: l.Enforces, ends: true}
	}
	return noGroup{}
}

// Options say which tree to open.
type Options struct {
	Name string  // of the tree's own directory, such as "cay-1a2b3c"
	Only Version // "": the best that this host and user have
}

// Open finds out what the host offers to this process and returns a tree; it changes nothing but, on v2 where the group is
// delegated to this user, the place of its own process. Where nothing works the tree's version is None.
func Open(o Options) (Tree, error) {
	if o.Name == "" {
		return nil, errors.New("open control groups: no name")
	}
	host, err := readHost()
	if err != nil {
		return nil, fmt.Errorf("find the control groups: %w", err)
	}
	var notes []string
	if o.Only == "" || o.Only == V1 {
		t, err := openV1(host, o.Name)
		if err == nil {
			return t, nil
		}
		notes = append(notes, err.Error())
	}
	if o.Only == "" || o.Only == V2 {
		t, err := openV2(host, o.Name)
		if err == nil {
			return t, nil
		}
		notes = append(notes, err.Error())
	}
	if o.Only != "" && o.Only != None {
		return nil, fmt.Errorf("open control groups %s: %s", o.Only, notes[len(notes)-1])
	}
	note := "no control groups that this user may use"
	if len(notes) > 0 {
		note += ": " + notes[len(notes)-1]
	}
	return none{note: note}, nil
}

// CPU quotas are given in microseconds for each period of 100 ms, the kernel's default.
const cpuPeriod = 100_000

// quota is the CPU quota for cores; the kernel refuses less than 1 ms.
func quota(cores float64) int64 { return max(int64(cores*cpuPeriod), 1000) }
