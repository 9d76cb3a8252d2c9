package process

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/cgroup"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// killDeadline bounds the wait for a killed tree to be gone.
const killDeadline = 5 * time.Second

// Signal sends a signal to a process by id or pid, or to it and all that descends from it. A tree that is killed is gone when Signal
// returns nil. A process that has ended is a cay.NotFound, unless the tree is meant: then what is left of it is signalled.
func (t *Table) Signal(req *guestv1.Signal) error {
	sig := syscall.Signal(req.Signal)
	if sig < 1 || sig > 64 {
		return cay.Errorf(cay.Unprocessable, "there is no signal %d", req.Signal).On("signal")
	}
	if req.ProcessId == "" {
		return t.signalPid(int(req.Pid), sig, req.Tree)
	}
	p := t.find(req.ProcessId)
	group := t.group(req.ProcessId)
	if p == nil && group == nil {
		return errUnknown(req.ProcessId)
	}
	var err error
	switch {
	case p != nil && p.steered() != nil:
		err = p.steered()(sig)
	case !req.Tree && p == nil:
		err = os.ErrProcessDone
	case !req.Tree:
		err = p.signal(sig)
	case sig == unix.SIGKILL:
		kill := func() error { return t.killTree(req.ProcessId) }
		if group != nil {
			kill = func() error { return killGroup(group) }
		}
		if p == nil {
			err = kill()
		} else {
			err = p.whileKilled(kill)
		}
	default:
		for _, pid := range t.members(req.ProcessId, group) {
			_ = kill(pid, sig)
		}
	}
	if errors.Is(err, os.ErrProcessDone) {
		return cay.Errorf(cay.NotFound, "the process %s has ended", req.ProcessId)
	}
	return err
}

func (t *Table) signalPid(pid int, sig syscall.Signal, tree bool) error {
	if pid <= 1 || pid == os.Getpid() {
		return cay.Errorf(cay.Forbidden, "process %d is not the sandbox's to signal", pid)
	}
	list := scan()
	if !slices.ContainsFunc(list, func(s status) bool { return s.pid == pid }) {
		return cay.Errorf(cay.NotFound, "there is no process %d in the sandbox", pid)
	}
	pids := []int{pid}
	if tree {
		for _, s := range descendants(list, pid) {
			pids = append(pids, s.pid)
		}
	}
	for _, pid := range pids {
		_ = kill(pid, sig)
	}
	return nil
}

// kill never reaches this process, process groups or everything.
func kill(pid int, sig syscall.Signal) error {
	if pid <= 1 || pid == os.Getpid() {
		return nil
	}
	return unix.Kill(pid, sig)
}

// members are the pids of a started process's tree.
func (t *Table) members(id string, group *cgroup.Group) []int {
	if group != nil {
		pids, _ := group.Pids()
		return pids
	}
	return t.tree(id, scan())
}

func killGroup(group *cgroup.Group) error {
	if err := group.Kill(); err != nil {
		return err
	}
	return untilGone(func() bool {
		pids, err := group.Pids()
		return err == nil && len(pids) == 0
	})
}

// killTree kills without a control group: again and again, since what is forked meanwhile is not in the list.
func (t *Table) killTree(id string) error {
	return killAll(func(list []status) []int { return t.tree(id, list) })
}

func killAll(tree func([]status) []int) error {
	return untilGone(func() bool {
		pids := tree(scan())
		for _, pid := range pids {
			_ = kill(pid, unix.SIGKILL)
		}
		return len(pids) == 0
	})
}

func untilGone(gone func() bool) error {
	deadline := time.Now().Add(killDeadline)
	for wait := 500 * time.Microsecond; ; wait = min(2*wait, 50*time.Millisecond) {
		if gone() {
			return nil
		}
		if time.Now().After(deadline) {
			return cay.Errorf(cay.Timeout, "processes are left after %s of killing", killDeadline)
		}
		time.Sleep(wait)
	}
}

// tree finds a started process's living descendants without a control group: its session, whose environment names it, and their
// children. A process that left its session, cleared its environment and lost its parent escapes; only control groups have it.
func (t *Table) tree(id string, list []status) []int {
	if p := t.find(id); p != nil {
		return p.tree(list)
	}
	return treeOf(id, 0, 0, list)
}

func (p *process) tree(list []status) []int {
	main, session := 0, 0 // the pid may be another's once it was reaped, the session's number not while anyone is in it
	p.mu.Lock()
	if session = p.pid; p.exit == nil {
		main = p.pid
	} else if p.steer != nil {
		session = 0 // its kernel's
	}
	p.mu.Unlock()
	return treeOf(p.id, main, session, list)
}

func treeOf(id string, main, session int, list []status) []int {
	tag := []byte(tagVariable + "=" + id + "\x00")
	inside := map[int]bool{}
	for _, s := range list {
		if s.state == "Z" {
			continue
		}
		if s.pid == main || session > 0 && s.session == session {
			inside[s.pid] = true
		} else if env, err := os.ReadFile(processFolder + strconv.Itoa(s.pid) + "/environ"); err == nil && bytes.Contains(append([]byte{0}, env...), append([]byte{0}, tag...)) {
			inside[s.pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, s := range list {
			if s.state != "Z" && inside[s.ppid] && !inside[s.pid] {
				inside[s.pid], grown = true, true
			}
		}
	}
	pids := make([]int, 0, len(inside))
	for pid := range inside {
		pids = append(pids, pid)
	}
	return pids
}

// Reclaim frees memory: it kills the largest process if that holds a quarter of promise or more, else every process but this one.
// The started process that a victim belongs to is reported as oom if it dies of it.
//
// Everything stands still meanwhile: to look at hundreds of processes takes longer than they need to fill what is left. A process that
// a user had stopped runs on afterwards.
func (t *Table) Reclaim(promise int64) *guestv1.Killed {
	if os.Getpid() == 1 { // elsewhere, all processes would be those of the host
		_ = unix.Kill(-1, unix.SIGSTOP) // fails only when there is nobody to stop
		defer unix.Kill(-1, unix.SIGCONT)
	}
	list := scan()
	owners := t.owners(list)
	slices.SortFunc(list, func(a, b status) int { return int(min(max(b.rss-a.rss, -1), 1)) })
	if len(list) > 0 && list[0].rss >= promise/4 {
		list = list[:1]
	}
	killed := &guestv1.Killed{}
	for _, s := range list {
		if s.state == "Z" {
			continue
		}
		if p := t.find(owners[s.pid]); p != nil {
			p.mu.Lock()
			p.oom = true
			p.mu.Unlock()
		}
		if kill(s.pid, unix.SIGKILL) != nil {
			continue
		}
		killed.Victims = append(killed.Victims, &guestv1.Killed_Victim{ProcessId: owners[s.pid], Pid: int64(s.pid), RssBytes: s.rss, Name: s.name})
	}
	if len(killed.Victims) > maxVictims {
		killed.Victims = killed.Victims[:maxVictims]
	}
	return killed
}

// maxVictims bounds what a Killed names, so that it fits into a frame. All are killed.
const maxVictims = 256
