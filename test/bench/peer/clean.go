package peer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// removeTree unmounts what is mounted at or below dir and removes dir.
func removeTree(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var faults []error
	for _, at := range mountsBelow(string(info), dir) {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			faults = append(faults, fmt.Errorf("unmount %s: %w", at, err))
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...) // what lies below a mount is not ours to remove
	}
	return os.RemoveAll(dir)
}

// mountsBelow lists the mount points at or below dir, the innermost first.
func mountsBelow(mountinfo, dir string) []string {
	var found []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			found = append(found, fields[4])
		}
	}
	slices.Reverse(found)
	return found
}

// removeCgroups removes the cgroups called name, and those below them, from every hierarchy. A runtime may put them at the root or below
// the cgroup that this process is in. They hold no process any more.
func removeCgroups(name string) error {
	var dirs []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains(strings.Split(path, "/"), name) {
			dirs = append(dirs, path)
		}
		return nil
	})
	slices.Reverse(dirs) // a child before its parent
	var faults []error
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// MixedCgroups is where the second version of cgroups is mounted beside the first; "" on machines with one version.
func MixedCgroups() string {
	const at = "/sys/fs/cgroup/unified"
	if _, err := os.Stat(at + "/cgroup.controllers"); err != nil {
		return ""
	}
	return at
}
