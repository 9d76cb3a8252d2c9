package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/mounts"
)

// patience bounds how long a file system may stay busy after its last user is gone: the kernel lets go of a dead process's files a
// moment later.
const patience = 30 * time.Second

// share makes the directory a mount of its own whose mounts are everybody's. A process that starts in a mount namespace of its own, as
// every sandbox's do, gets a copy of all mounts; without this it would keep a volume mounted for as long as it has the copy.
func (s *Store) share() error {
	mounted, err := mounts.Is(s.dir)
	if err != nil || mounted {
		return err
	}
	if err := unix.Mount(s.dir, s.dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("share %s: %w", s.dir, err)
	}
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} { // out of the group of the mount above, and a group of its own
		if err := unix.Mount("", s.dir, "", propagation, ""); err != nil {
			return errors.Join(fmt.Errorf("share %s: %w", s.dir, err), unix.Unmount(s.dir, 0))
		}
	}
	return nil
}

// Use is one user's hold on a mounted volume.
type Use struct {
	store  *Store
	volume *volume
	user   string
}

// Dir is the directory to show: owned by the sandbox's user, everything in it guest's.
func (u *Use) Dir() string { return filepath.Join(u.store.mountPoint(u.volume.name), dataName) }

// Attach mounts a volume for user unless it is mounted already. One that is not there is a cay.Unprocessable, one that is being
// exported, imported or deleted a cay.Conflict.
func (s *Store) Attach(ctx context.Context, name, user string) (*Use, error) {
	if err := s.check(name); err != nil {
		return nil, err
	}
	u, err := s.hold(name, user)
	if err != nil {
		return nil, err
	}
	v := u.volume
	v.moving.Lock()
	defer v.moving.Unlock()
	if err := s.mount(ctx, v); err != nil {
		s.mu.Lock()
		delete(v.uses, u)
		s.mu.Unlock()
		return nil, fmt.Errorf("mount volume %s: %w", name, full(err))
	}
	return u, nil
}

func (s *Store) hold(name, user string) (*Use, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[name]
	if v == nil {
		return nil, cay.Errorf(cay.Unprocessable, "there is no volume %s on this worker", name).On("volumes")
	}
	if v.reserved != "" {
		return nil, cay.Errorf(cay.Conflict, "volume %s is being %s", name, v.reserved).On("volumes")
	}
	u := &Use{store: s, volume: v, user: user}
	v.uses[u] = true
	return u, nil
}

// Adopt is Attach for a user that an earlier process attached: nothing is mounted that is not.
func (s *Store) Adopt(name, user string) (*Use, error) {
	if err := s.check(name); err != nil {
		return nil, err
	}
	return s.hold(name, user)
}

// Release gives the hold up, and unmounts the volume with the last one. Call it once, when nothing of the user is left that could
// touch the files. On error the volume stays mounted; whoever needs it unmounted tries again.
func (u *Use) Release(ctx context.Context) error {
	s, v := u.store, u.volume
	v.moving.Lock()
	defer v.moving.Unlock()
	s.mu.Lock()
	delete(v.uses, u)
	s.mu.Unlock()
	return s.unmountIdle(ctx, v)
}

// unmountIdle leaves a volume mounted that has a user. It needs v.moving, as whoever is about to become one will.
func (s *Store) unmountIdle(ctx context.Context, v *volume) error {
	s.mu.Lock()
	used := len(v.uses) > 0
	s.mu.Unlock()
	if used {
		return nil
	}
	return s.unmount(ctx, v)
}

// Settle ends what an earlier process left mounted and nobody has adopted. With a mount goes its loop device.
func (s *Store) Settle(ctx context.Context) error {
	if s.unusable != "" {
		return nil
	}
	var errs []error
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.volumes))
	s.mu.Unlock()
	for _, v := range all {
		v.moving.Lock()
		errs = append(errs, s.unmountIdle(ctx, v))
		v.moving.Unlock()
	}
	mounted, err := mounts.Below(s.dir)
	errs = append(errs, err)
	for _, point := range mounted { // of a volume whose directory is no volume's any more
		if name, _, _ := strings.Cut(strings.TrimPrefix(point, s.dir+"/"), "/"); s.volumes[name] == nil {
			errs = append(errs, unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
		}
	}
	return errors.Join(errs...)
}

// An image that the host's disk has no room for any more becomes read-only, rather than losing what is written to it.
const (
	mountFlags   = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOATIME
	mountOptions = "discard,noinit_itable,errors=remount-ro"
)

// mount needs v.moving.
func (s *Store) mount(ctx context.Context, v *volume) error {
	if v.mounted {
		return nil
	}
	image, point := s.image(v.name), s.mountPoint(v.name)
	if err := os.Mkdir(point, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	f, err := os.OpenFile(image, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	// Two file systems on one image would destroy it. Another mount namespace may keep one: it is taken up again.
	loop, err := loopOf(f)
	kept := loop != nil
	if err == nil && !kept {
		loop, err = attachLoop(f)
	}
	if err != nil {
		return err
	}
	defer loop.Close() // the device goes when its last user does: from here on the mount
	if kept {          // unmount has left it read-only, and so it must be mounted
		err = unix.Mount(loop.Name(), point, "ext4", mountFlags|unix.MS_RDONLY, mountOptions)
		if err == nil {
			if err = unix.Mount("", point, "", mountFlags|unix.MS_REMOUNT, mountOptions); err != nil {
				err = errors.Join(err, unix.Unmount(point, unix.UMOUNT_NOFOLLOW))
			}
		}
	}
	if !kept || errors.Is(err, unix.EBUSY) { // or it is writable after all: this process's predecessor was cut off
		err = unix.Mount(loop.Name(), point, "ext4", mountFlags, mountOptions)
	}
	if err != nil {
		return fmt.Errorf("its file system: %w", err)
	}
	v.mounted = true
	if err := makeData(point); err != nil {
		return errors.Join(err, s.unmount(ctx, v))
	}
	return nil
}

// makeData makes the directory that is shown, once.
func makeData(point string) error {
	dir, err := unix.Open(point, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if err := unix.Mkdirat(dir, dataName, 0o755); errors.Is(err, unix.EEXIST) {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, dataName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return errors.New("its data is no directory")
		}
		return nil
	} else if err != nil {
		return err
	}
	return errors.Join(unix.Fchmodat(dir, dataName, 0o755, 0), unix.Fchownat(dir, dataName, owner, owner, unix.AT_SYMLINK_NOFOLLOW))
}

// unmount writes everything to the image, so that it is whole and nothing will change it, and lets go of it. It needs v.moving. The file
// system becomes read-only first, because the kernel keeps it for as long as another mount namespace has a copy of the mount.
func (s *Store) unmount(ctx context.Context, v *volume) error {
	if !v.mounted {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := poll(ctx, func() (bool, error) {
		err := unix.Mount("", s.mountPoint(v.name), "", mountFlags|unix.MS_REMOUNT|unix.MS_RDONLY, mountOptions)
		if !errors.Is(err, unix.EBUSY) { // a file system that is broken goes all the same
			err = unix.Unmount(s.mountPoint(v.name), unix.UMOUNT_NOFOLLOW)
		}
		if errors.Is(err, unix.EBUSY) {
			return false, nil
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // it is mounted no more
			err = nil
		}
		return true, err
	})
	if err != nil {
		return busy(v.name, err)
	}
	v.mounted = false
	return nil
}

func busy(name string, err error) error {
	return cay.Errorf(cay.Unavailable, "volume %s is still busy; try again", name).On("volumes").After(time.Second).Because(err)
}

// poll asks until it is told that it is done.
func poll(ctx context.Context, ask func() (done bool, err error)) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if done, err := ask(); done || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}
