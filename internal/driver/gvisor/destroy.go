package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/cgroup"
	"github.com/cayhq/cay/internal/node/mounts"
)

// Destroy ends a sandbox and removes every trace of it. An error leaves it known, so that Destroy can come again.
func (d *Driver) Destroy(ctx context.Context, h driver.Handle) error {
	b, done, err := d.enter(ctx, h, false)
	if err != nil {
		return err
	}
	defer done()
	if b == nil {
		return nil
	}
	return d.destroy(ctx, b)
}

// destroy needs b to be busy. Its directory, with the record in it, goes last: until then a later process finds what is left.
func (d *Driver) destroy(ctx context.Context, b *box) error {
	h := b.handle
	b.mu.Lock()
	c, r := b.chn, b.rec
	b.mu.Unlock()
	if c != nil {
		c.end(driver.ErrGone)
	}
	members, err := b.group.Pids()
	if err != nil {
		return fmt.Errorf("destroy %s: %w", h, err)
	}
	family := []process{r.Sentry, r.Gofer}
	for _, pid := range members {
		if p, err := identify(pid); err == nil {
			family = append(family, p)
		}
	}
	if err := d.kill(ctx, b, &family); err != nil {
		return fmt.Errorf("destroy %s: kill: %w", h, err)
	}
	b.stop(driver.ErrGone)
	for _, p := range family {
		p.reap()
	}

	errs := []error{
		unmountBelow(d.dir(h)),
		d.unmountVolumes(h),
		removeAll(d.stateFile(h)),
		removeAll(strings.TrimSuffix(d.stateFile(h), ".state") + ".lock"),
		removeAll(controlSocket(d.cfg.RunDir, h)),
		removeAll(d.socketDir(h)),
		d.groupOf(b).Remove(),
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("destroy %s: %w", h, err)
	}
	if err := removeAll(d.dir(h)); err != nil {
		return fmt.Errorf("destroy %s: %w", h, err)
	}
	d.events.drop(h)
	d.forget(b)
	return nil
}

// groupOf is b's group in such a form that its removal takes along the directories above it if an earlier process made them
// elsewhere; those of this process's own tree stay for the next sandbox.
func (d *Driver) groupOf(b *box) cgroup.Group {
	if own := d.tree.Open(string(b.handle)); sameLocation(own.Location(), b.group.Location()) {
		return own
	}
	return b.group
}

func sameLocation(a, b cgroup.Location) bool {
	if a.Version != b.Version || a.Unified != b.Unified || len(a.Dirs) != len(b.Dirs) {
		return false
	}
	for c, dir := range a.Dirs {
		if b.Dirs[c] != dir {
			return false
		}
	}
	return true
}

// kill returns nil when no process of the sandbox is left: none in its control group, its sentry and gofer exited, and, where there
// are no control groups, none that names it on its command line.
func (d *Driver) kill(ctx context.Context, b *box, family *[]process) error {
	if err := b.signal(syscall.SIGKILL); err != nil {
		return err
	}
	if err := b.group.Kill(ctx); err != nil {
		return err
	}
	grouped := b.group.Location().Version != cgroup.None
	wait := time.Millisecond
	for {
		left := false
		if !grouped {
			found, err := strays(d.runscRoot(), b.handle)
			if err != nil {
				return err
			}
			*family = append(*family, found...)
			left = len(found) > 0
		}
		for _, p := range *family {
			alive, err := p.kill()
			if err != nil {
				return err
			}
			left = left || alive
		}
		if !left {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		wait = min(2*wait, 20*time.Millisecond)
	}
}

// kill sends SIGKILL to p, and to nothing else, if it still runs.
func (p process) kill() (alive bool, err error) {
	f, err := p.open()
	if errors.Is(err, driver.ErrGone) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	defer f.Close()
	if err := unix.PidfdSendSignal(int(f.Fd()), unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("kill %d: %w", p.PID, err)
	}
	return true, nil
}

// removeAll is os.RemoveAll of what may belong to the sandbox's own user ids: as root that is no matter.
func removeAll(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("remove its files: %w", err)
	}
	return nil
}

// unmountBelow detaches every mount below dir, the last one first.
func unmountBelow(dir string) error {
	points, err := mounts.At(dir)
	if err != nil {
		return err
	}
	for _, point := range slices.Backward(points) {
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	return nil
}

// removeNullNetns removes the network namespace that gVisor keeps for its gofers; the next start makes another.
func (d *Driver) removeNullNetns() error {
	err := unmountBelow(filepath.Join(d.runscRoot(), "null-netns"))
	if d.rootless && errors.Is(err, unix.EPERM) {
		err = nil
	}
	return errors.Join(err, removeAll(filepath.Join(d.runscRoot(), "null-netns")))
}

// removeEmpty removes the directories that are empty.
func removeEmpty(dirs ...string) error {
	for _, dir := range dirs {
		err := os.Remove(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTEMPTY) {
			return err
		}
	}
	return nil
}
