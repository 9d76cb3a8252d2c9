package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/mounts"
)

// How a volume gets into a sandbox that runs: RunDir/v shows RunDir/points once more, as a mount of its own that is shared and that
// nobody can write through. RunDir/v/<handle> is bound into the sandbox when it boots, as a slave: what is mounted below it on the host
// later appears inside. A claim makes the mount point by way of points and mounts the volume there; root of the sandbox can write to
// the volume, and to nothing around it.
const guestVolumes = "/.cay/v"

var volumeNamePattern = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

func (d *Driver) pointsDir() string                   { return filepath.Join(d.cfg.RunDir, "points") }
func (d *Driver) volumesDir() string                  { return filepath.Join(d.cfg.RunDir, "v") }
func (d *Driver) boxPointsDir(h driver.Handle) string { return filepath.Join(d.pointsDir(), string(h)) }
func (d *Driver) boxVolumesDir(h driver.Handle) string {
	return filepath.Join(d.volumesDir(), string(h))
}
func (d *Driver) point(h driver.Handle, name string) string {
	return filepath.Join(d.boxVolumesDir(h), name)
}

// openVolumes makes the shared mount, or finds that of an earlier process. Where it cannot be made there are no volumes.
func (d *Driver) openVolumes() error {
	if d.rootless {
		return nil
	}
	for _, dir := range []string{d.pointsDir(), d.volumesDir()} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	mounted, err := mounts.Is(d.volumesDir())
	if err != nil {
		return err
	}
	if !mounted {
		err := bind(d.pointsDir(), d.volumesDir(), unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, unix.MS_SHARED)
		if err != nil {
			d.mountNote = fmt.Sprintf("volumes cannot be mounted: %v (Linux 5.12 or later and the right to mount are needed)", err)
			return nil
		}
	}
	d.canMount = true
	return nil
}

// bind mounts what is at source on target. The attributes are set before anybody can see it, other namespaces included.
func bind(source, target string, attributes uint64, propagation uint64) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open %s: %w", source, err)
	}
	defer unix.Close(tree)
	// First out of the group of mounts that it was copied from.
	attr := unix.MountAttr{Attr_set: attributes, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("set up %s: %w", target, err)
	}
	if propagation != unix.MS_PRIVATE {
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: propagation}); err != nil {
			return fmt.Errorf("set up %s: %w", target, err)
		}
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// mountVolumes shows a sandbox its volumes. Those that are shown already stay.
func (d *Driver) mountVolumes(h driver.Handle, volumes []driver.Volume) error {
	for _, v := range volumes {
		if mounted, err := mounts.Is(d.point(h, v.Name)); err != nil {
			return err
		} else if mounted {
			continue
		}
		if err := os.Mkdir(filepath.Join(d.boxPointsDir(h), v.Name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make the mount point of volume %s: %w", v.Name, err)
		}
		attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if v.ReadOnly {
			attributes |= unix.MOUNT_ATTR_RDONLY
		}
		if err := bind(v.Source, d.point(h, v.Name), attributes, unix.MS_PRIVATE); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// checkVolumes refuses, as unsupported, what this sandbox can never be shown.
func (d *Driver) checkVolumes(h driver.Handle, volumes []driver.Volume) error {
	if len(volumes) == 0 {
		return nil
	}
	if !d.canMount {
		return fmt.Errorf("volumes: %w", driver.ErrUnsupported)
	}
	if _, err := os.Stat(d.boxPointsDir(h)); err != nil {
		return fmt.Errorf("volumes: it was prepared without a place for them: %w", driver.ErrUnsupported)
	}
	for _, v := range volumes {
		if !volumeNamePattern.MatchString(v.Name) || !filepath.IsAbs(v.Source) {
			return fmt.Errorf("volume %q from %q: %w", v.Name, v.Source, driver.ErrUnsupported)
		}
	}
	return nil
}

// unmountVolumes takes a sandbox's volumes away; its processes are gone. Mount points are removed one by one and only if they are
// empty: nothing here could ever remove what is in a volume.
func (d *Driver) unmountVolumes(h driver.Handle) error {
	if err := unmountBelow(d.boxVolumesDir(h)); err != nil {
		return err
	}
	entries, err := os.ReadDir(d.boxPointsDir(h))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove its mount points: %w", err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(d.boxPointsDir(h), e.Name())); err != nil {
			return fmt.Errorf("remove its mount points: %w", err)
		}
	}
	return os.Remove(d.boxPointsDir(h))
}

// closeVolumes removes what all sandboxes together have, when there is none left.
func (d *Driver) closeVolumes() error {
	if d.rootless {
		return nil
	}
	return errors.Join(unmountBelow(d.volumesDir()), removeEmpty(d.volumesDir(), d.pointsDir()))
}
