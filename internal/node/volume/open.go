package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/node/mounts"
)

// Open finds the volumes in dir, which is made as needed, and what an earlier process has mounted of them. Who used them says Adopt,
// and Settle ends what is left over then. Where volumes cannot be kept, Unusable says why.
func Open(dir string, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{dir: dir, log: log, volumes: map[string]*volume{}}
	s.free = s.freeOnHost
	s.mkfs, s.unusable = tools()
	if s.unusable != "" {
		return s, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of volumes: %w", err)
	}
	dir, err := filepath.EvalSymlinks(dir) // as the kernel names mounts and loop devices
	if err != nil {
		return nil, fmt.Errorf("make the directory of volumes: %w", err)
	}
	s.dir = dir
	if err := s.find(); err != nil {
		return nil, fmt.Errorf("look for volumes: %w", err)
	}
	if err := errors.Join(s.share(), s.probe()); err != nil {
		s.unusable = fmt.Sprintf("volumes cannot be mounted here: %v", err)
	}
	return s, nil
}

// Close lets go of what the host keeps for volumes in general, unless one is mounted; those stay as they are for a later process.
// Nothing of the Store may be used any more.
func (s *Store) Close() error {
	if s.mkfs == "" {
		return nil
	}
	mounted, err := mounts.Below(s.dir)
	if err != nil || len(mounted) > 0 {
		return err
	}
	// A loop device that somebody else keeps has its image open: that is no reason to keep the mount.
	if err := unix.Unmount(s.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", s.dir, err)
	}
	return nil
}

// find enters what is in the directory.
func (s *Store) find() error {
	mounted, err := mounts.Below(s.dir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, tempName) {
			if point := s.mountPoint(name); slices.Contains(mounted, point) {
				if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
					return err
				}
			}
			if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
				return err
			}
			continue
		}
		info, err := os.Lstat(s.image(name))
		if !namePattern.MatchString(name) || err != nil || !info.Mode().IsRegular() {
			s.log.Warn("this is no volume and is left alone", "path", filepath.Join(s.dir, name))
			continue
		}
		s.volumes[name] = &volume{name: name, settled: settled, bytes: info.Size(), uses: map[*Use]bool{}, mounted: slices.Contains(mounted, s.mountPoint(name))}
	}
	return nil
}

// probe makes, mounts and removes a volume: whether loop devices, the file system and the right to mount are there, only that tells.
func (s *Store) probe() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	temp, err := s.temporary()
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	v := &volume{name: filepath.Base(temp)}
	if err := s.format(ctx, s.image(v.name), minBytes); err != nil {
		return err
	}
	v.moving.Lock()
	defer v.moving.Unlock()
	if err := s.mount(ctx, v); err != nil {
		return err
	}
	return s.unmount(ctx, v)
}

// tools finds what volumes are made with, or says why there can be none.
func tools() (mkfs, unusable string) {
	if os.Geteuid() != 0 {
		return "", "volumes need root: without it nothing can be mounted"
	}
	const name = "mkfs.ext4"
	for _, path := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if found, err := exec.LookPath(path); err == nil {
			mkfs = found
			break
		}
	}
	if mkfs == "" {
		return "", "volumes need mkfs.ext4: install e2fsprogs"
	}
	if _, err := os.Stat(loopControl); err != nil {
		return "", "volumes need loop devices: load the kernel's module loop"
	}
	return mkfs, ""
}
