package files

import (
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// Chmod changes mode and owner as the kernel lets the user, and describes the file. It follows the path's own symlink but none below:
// recursively, symlinks are left as they are. It ends at the first thing that may not be changed.
func (f *Files) Chmod(req *guestv1.Chmod) (*guestv1.FileInfo, error) {
	c := &change{uid: -1, gid: -1, mode: req.Mode & permissions, setMode: req.SetMode, recursive: req.Recursive}
	if req.Owner != "" {
		owner, err := f.users.Lookup(req.Owner)
		if err != nil {
			return nil, cay.Errorf(cay.Unprocessable, "%v", err).On("user")
		}
		c.uid, c.gid = int(owner.UID), int(owner.GID)
	}
	var info *guestv1.FileInfo
	err := f.as(req.User, "chmod", &req.Path, func(user.Account) error {
		fd, err := openAt(unix.AT_FDCWD, req.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := c.apply(fd, req.Path, 0); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		info = f.describe(req.Path, &st)
		return nil
	})
	return info, err
}

// change is what is to be done to each file. It runs as the user.
type change struct {
	uid, gid  int // -1: as it is
	mode      uint32
	setMode   bool
	recursive bool
}

// apply changes the file that an O_PATH descriptor stands for, and recursively what it holds: before the directory itself, where the
// new mode would close it.
func (c *change) apply(fd int, name string, level int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	down := c.recursive && isDir(&st)
	closing := c.setMode && c.mode&0o500 != 0o500
	if down && closing {
		if err := c.below(fd, name, level); err != nil {
			return err
		}
	}
	if c.uid >= 0 {
		if err := unix.Fchownat(fd, "", c.uid, c.gid, unix.AT_EMPTY_PATH); err != nil {
			return forbidden("change the owner of", name, err)
		}
	}
	if c.setMode {
		// An O_PATH descriptor is changed by its name in /proc: fchmod refuses it, and a path could lead elsewhere by now.
		if err := unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), c.mode); err != nil {
			return forbidden("chmod", name, err)
		}
	}
	if down && !closing {
		return c.below(fd, name, level)
	}
	return nil
}

func forbidden(what, name string, err error) error {
	if err == unix.EPERM || err == unix.EACCES {
		return cay.Errorf(cay.Forbidden, "%s %s: not permitted; user=root may", what, name)
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (c *change) below(fd int, name string, level int) error {
	if level >= maxLevels {
		return cay.Errorf(cay.Unprocessable, "chmod %s: directories lie more than %d deep", name, maxLevels)
	}
	dir, err := openDirectoryAt(fd, ".")
	if err != nil {
		return forbidden("list", name, err)
	}
	defer unix.Close(dir)
	return eachName(dir, func(child string) error {
		path := name + "/" + child
		st, err := statAt(dir, child)
		if err == unix.ENOENT || err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return nil
		}
		if err != nil {
			return forbidden("look at", path, err)
		}
		fd, err := openAt(dir, child, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT {
			return nil
		}
		if err != nil {
			return forbidden("open", path, err)
		}
		defer unix.Close(fd)
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return nil // it became one meanwhile
		}
		return c.apply(fd, path, level+1)
	})
}
