// Package reaper waits for all children of this process, those that it started and the orphans that fall to it as PID 1, and tells
// each start how its process ended. A process that uses it must not wait for children in any other way, os/exec included.
package reaper

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// End is how a child ended, and what it and those of its descendants used that were waited for; what descendants used that nobody
// waited for is in no figure.
//
// Inside gVisor CPU is counted in ticks of 10 ms in which a task was running as gVisor sees it: where the host has too few cores, the
// waiting for one is in it too, so that it is rather too much than too little (a loop of 1 s says 0.5 to 1.05 s; one that the host let
// have 7.7 of 27 s says 22 s). PeakRSS is exact there from about 24 MiB on: a process that touches 100 MiB says 115,500 KiB, its interpreter
// included, also when it has freed them before its end. Below that it is the memory of this process, from which it was forked.
type End struct {
	Status  syscall.WaitStatus
	CPU     time.Duration // user and system time
	PeakRSS int64         // KiB, of the largest of them
}

// Reaper waits for children. Its Run must be running for exits to be noticed.
type Reaper struct {
	orphaned func() // called after children that nobody started were reaped; must not block

	mu      sync.Mutex // also held over every fork: a pid is registered before it can be reaped, and reaped before it can be forked again
	watched map[int]func(End)
	forks   uint64
	forked  *sync.Cond
	stopped bool
}

// New makes a Reaper. orphaned may be nil.
func New(orphaned func()) *Reaper {
	r := &Reaper{orphaned: orphaned, watched: map[int]func(End){}}
	r.forked = sync.NewCond(&r.mu)
	return r
}

// Start forks by fork and calls exited, once and from Run's goroutine, when that process has ended. After an error of fork it is
// never called. exited may be called before Start returns; it must not block.
func (r *Reaper) Start(fork func() (pid int, err error), exited func(End)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return 0, err
	}
	r.watched[pid] = exited
	r.forks++
	r.forked.Signal()
	return pid, nil
}

// Signal sends sig to a process that Start returned. os.ErrProcessDone when it has been reaped: its pid may be another's by now.
func (r *Reaper) Signal(pid int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched[pid] == nil {
		return os.ErrProcessDone
	}
	return unix.Kill(pid, sig)
}

// SignalGroup is Signal to the process group that the process leads.
func (r *Reaper) SignalGroup(pid int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched[pid] == nil {
		return os.ErrProcessDone
	}
	return unix.Kill(-pid, sig)
}

// Stop makes Run return once no child is left.
func (r *Reaper) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.forked.Broadcast()
}

// Run reaps until Stop was called and no child is left.
func (r *Reaper) Run() error {
	for {
		r.mu.Lock()
		forks := r.forks
		r.mu.Unlock()

		switch err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil); err {
		case nil:
			r.reap()
		case unix.EINTR:
		case unix.ECHILD:
			// No child now, and only a fork of ours can bring one.
			r.mu.Lock()
			for r.forks == forks && !r.stopped {
				r.forked.Wait()
			}
			done := r.forks == forks
			r.mu.Unlock()
			if done {
				return nil
			}
		default:
			return fmt.Errorf("wait for children: %w", err)
		}
	}
}

// reap takes the status of one ended child.
func (r *Reaper) reap() {
	var status syscall.WaitStatus
	var used syscall.Rusage
	r.mu.Lock()
	pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, &used)
	exited := r.watched[pid]
	delete(r.watched, pid)
	r.mu.Unlock()
	switch {
	case err != nil || pid <= 0:
	case exited != nil:
		exited(End{Status: status, CPU: time.Duration(used.Utime.Nano() + used.Stime.Nano()), PeakRSS: used.Maxrss})
	case r.orphaned != nil:
		r.orphaned()
	}
}
