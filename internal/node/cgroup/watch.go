package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	fastPoll    = 5 * time.Millisecond
	slowPoll    = 250 * time.Millisecond
	reportEvery = 100 * time.Millisecond
	// fastestGrowth is the rate at which a sandbox is assumed to fill memory at most, bytes a second: near the threshold it is looked
	// at as often as it takes to catch that.
	fastestGrowth = 4 << 30
)

// backstop is the time between looks when no alarm comes. The kernel's word on a threshold is a hint: on a busy machine one was seen to
// be missing.
const backstop = time.Second

// gauge is how a group's memory is watched.
type gauge struct {
	// charged is all that counts against the limit, page cache included; it may be well above memory.
	charged func() (int64, error)
	// memory is what cannot be reclaimed.
	memory func() (int64, error)
	// alarm yields when charged crosses the threshold; nil where the kernel cannot say, then the watch polls.
	alarm <-chan struct{}
}

// watch is WatchMemory on any gauge. Below the threshold it sleeps until the alarm, or the backstop; page cache, which the kernel gives back when
// pressed, can hold the charge above for long, so that there the interval follows from how far memory is from the threshold.
func (g gauge) watch(ctx context.Context, threshold int64, over func(current int64)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var reported time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.alarm:
		case <-timer.C:
		}
		charged, err := g.charged()
		if err != nil {
			return // the group is gone
		}
		if charged <= threshold && g.alarm != nil {
			timer.Reset(backstop)
			continue
		}
		memory, err := g.memory()
		if err != nil {
			return
		}
		if memory > threshold && time.Since(reported) >= reportEvery {
			reported = time.Now()
			over(memory)
		}
		timer.Reset(interval(threshold - memory))
	}
}

// interval is how long a watch may look away with that many bytes left.
func interval(headroom int64) time.Duration {
	d := time.Duration(float64(headroom) / fastestGrowth * float64(time.Second))
	return min(max(d, fastPoll), slowPoll)
}

func (g *v1Group) WatchMemory(ctx context.Context, threshold int64, over func(current int64)) {
	dir := g.dirs["memory"]
	alarm, stop, err := v1Alarm(dir, threshold)
	if err == nil {
		defer stop()
	}
	gauge{
		charged: func() (int64, error) { return readInt(dir, "memory.usage_in_bytes") },
		memory:  g.memory,
		alarm:   alarm,
	}.watch(ctx, threshold, over)
}

// v1Alarm asks for an eventfd to be signalled whenever usage crosses the threshold, in either direction.
func v1Alarm(dir string, threshold int64) (<-chan struct{}, func(), error) {
	usage, err := os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	if err != nil {
		return nil, nil, err
	}
	defer usage.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("make an eventfd: %w", err)
	}
	event := os.NewFile(uintptr(fd), "memory threshold")
	if err := write(dir, "cgroup.event_control", fmt.Sprintf("%d %d %d", fd, usage.Fd(), threshold)); err != nil {
		return nil, nil, errors.Join(err, event.Close())
	}
	alarm, stop := pump(event)
	return alarm, stop, nil
}

func (g *v2Group) WatchMemory(ctx context.Context, threshold int64, over func(current int64)) {
	if !slices.Contains(g.enforces, Memory) {
		return
	}
	alarm, stop, err := v2Alarm(g.dir)
	if err == nil {
		defer stop()
	}
	gauge{
		charged: func() (int64, error) { return readInt(g.dir, "memory.current") },
		memory:  g.memory,
		alarm:   alarm,
	}.watch(ctx, threshold, over)
}

// v2Alarm watches memory.events, which the kernel touches when use goes above memory.high; SetLimits put that to the threshold.
func v2Alarm(dir string) (<-chan struct{}, func(), error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, nil, fmt.Errorf("make an inotify: %w", err)
	}
	event := os.NewFile(uintptr(fd), "memory events")
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(dir, "memory.events"), unix.IN_MODIFY|unix.IN_DELETE_SELF); err != nil {
		return nil, nil, errors.Join(err, event.Close())
	}
	alarm, stop := pump(event)
	return alarm, stop, nil
}

// pump turns readability of f into a channel, until stop, which closes f and waits for the reader.
func pump(f *os.File) (alarm <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			if _, err := f.Read(buf); err != nil {
				return
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}()
	return c, func() {
		_ = f.Close()
		<-done
	}
}
