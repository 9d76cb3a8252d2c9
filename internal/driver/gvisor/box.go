package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/cgroup"
)

// box is one sandbox, or what is left of one.
type box struct {
	handle driver.Handle
	busy   chan struct{} // held by the operation in progress; group is written under it

	group cgroup.Group // never nil
	watch sync.WaitGroup

	mu         sync.Mutex
	rec        record             // guarded by mu
	chn        *channel           // guarded by mu; nil: nobody listens
	pidfd      *os.File           // guarded by mu; of the sentry; nil unless it runs
	exited     bool               // guarded by mu
	stopMemory context.CancelFunc // guarded by mu; nil: not watched
}

func newBox(h driver.Handle) *box {
	return &box{handle: h, busy: make(chan struct{}, 1), group: cgroup.At(cgroup.Location{})}
}

func (b *box) current() record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rec
}

func (b *box) setRecord(r record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rec = r
}

func (b *box) channel() *channel {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.chn
}

func (b *box) setChannel(c *channel) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.chn = c
}

// alive reports that its kernel runs, as far as the kernel of the host has said.
func (b *box) alive() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pidfd != nil && !b.exited
}

// attach watches the sentry, whose pidfd is f, until it exits or the box is stopped.
func (d *Driver) attach(b *box, f *os.File) {
	b.mu.Lock()
	b.pidfd, b.exited = f, false
	b.mu.Unlock()
	b.watch.Go(func() {
		if awaitExit(f) != nil {
			return // stopped
		}
		b.mu.Lock()
		b.exited = true
		r, c := b.rec, b.chn
		b.mu.Unlock()
		r.Sentry.reap()
		kills, err := b.group.OOMKills()
		if err != nil {
			d.log.Warn("cannot tell whether memory ran out", "sandbox", b.handle, "error", err)
		}
		if c != nil {
			c.end(driver.ErrGone)
		}
		d.events.add(driver.Event{Handle: b.handle, Type: driver.EventExited, OOM: kills > 0})
	})
	d.watchMemory(b)
}

// awaitExit returns nil when the process of the pidfd has exited, an error when f was closed before.
func awaitExit(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(hasExited)
}

// hasExited asks without waiting.
func hasExited(pidfd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if !errors.Is(err, unix.EINTR) {
			return n == 1
		}
	}
}

// watchMemory begins to watch the memory that the sandbox is promised now.
func (d *Driver) watchMemory(b *box) {
	if !d.tree.Enforces(cgroup.Memory) {
		return
	}
	ctx, cancel := context.WithCancel(d.ctx)
	b.mu.Lock()
	if b.stopMemory != nil {
		b.stopMemory()
	}
	b.stopMemory = cancel
	promise := b.rec.promise()
	b.mu.Unlock()
	b.watch.Go(func() {
		limit := promise + sentryOverhead
		b.group.WatchMemory(ctx, limit, func(current int64) {
			d.events.add(driver.Event{Handle: b.handle, Type: driver.EventMemory, Current: current, Promise: promise, Limit: limit})
		})
	})
}

// stop ends listening and watching, and waits for it; the sandbox is not touched.
func (b *box) stop(cause error) {
	b.mu.Lock()
	c, f, cancel := b.chn, b.pidfd, b.stopMemory
	b.chn, b.stopMemory = nil, nil
	b.mu.Unlock()
	if c != nil {
		c.end(cause)
	}
	if cancel != nil {
		cancel()
	}
	if f != nil {
		_ = f.Close()
	}
	b.watch.Wait()
	b.mu.Lock()
	b.pidfd = nil
	b.mu.Unlock()
}

// signal sends a signal to the sentry if it runs.
func (b *box) signal(s syscall.Signal) error {
	b.mu.Lock()
	f := b.pidfd
	b.mu.Unlock()
	if f == nil {
		return nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil // closed: it is gone
	}
	sent := error(nil)
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) })
	if err != nil || errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}

// stats reads the control group, and the size of the overlay's file, which has no name any more, where the sentry holds it open.
func (b *box) stats() (driver.Stats, error) {
	u, err := b.group.Usage()
	if err != nil && !errors.Is(err, cgroup.ErrUnsupported) {
		return driver.Stats{}, fmt.Errorf("measure %s: %w", b.handle, err)
	}
	pids, err := b.group.Pids()
	if err != nil {
		return driver.Stats{}, fmt.Errorf("measure %s: %w", b.handle, err)
	}
	s := driver.Stats{CPU: u.CPU, MemoryBytes: u.Memory, PeakBytes: u.Peak, HostPids: int64(len(pids))}
	s.DiskBytes, err = overlaySize(b.current().Sentry.PID)
	if err != nil && b.alive() {
		return driver.Stats{}, fmt.Errorf("measure the disk of %s: %w", b.handle, err)
	}
	return s, nil
}

const filestorePrefix = "runsc-filestore-"

func overlaySize(sentry int) (int64, error) {
	dir := fmt.Sprintf("/proc/%d/fd", sentry)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		target, err := os.Readlink(dir + "/" + e.Name())
		if err != nil || !strings.Contains(target, "/"+filestorePrefix) {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(dir+"/"+e.Name(), &st); err != nil {
			return 0, err
		}
		return st.Blocks * 512, nil
	}
	return 0, errors.New("no overlay file is open")
}
