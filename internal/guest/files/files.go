// Package files works on a sandbox's files as one of its users: it looks, lists, makes, moves, removes, reads and writes. All paths
// are the sandbox's own and are resolved by its kernel; nothing here keeps a program inside from changing files at the same time.
// FIFOs, sockets and devices are described but never opened for their content.
package files

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

const (
	maxPath = 4095
	// permissions are the bits that a mode may have: those of access, setuid, setgid and sticky.
	permissions = 0o7777
)

// Files works for the users of one sandbox.
type Files struct {
	users *user.Database
	owner func() string // the sandbox's user
}

// New makes Files. owner names whom a request acts as that names nobody.
func New(users *user.Database, owner func() string) *Files { return &Files{users: users, owner: owner} }

// as runs act as the named user after a look at the path, which it first puts back into the bytes that it stands for. What act returns
// is turned into a cay.Error that says what was attempted.
func (f *Files) as(name, op string, wirePath *string, act func(user.Account) error) error {
	if err := unwire(wirePath, "path"); err != nil {
		return err
	}
	file := *wirePath
	if name == "" {
		name = f.owner()
	}
	account, err := f.users.Lookup(name)
	if err != nil {
		var e *cay.Error
		if errors.As(err, &e) {
			e.On("user")
		}
		return err
	}
	return problem(op, file, account.As(func() error { return act(account) }))
}

// unwire replaces a path as messages carry it by its own bytes, and refuses one that cannot be a path.
func unwire(wirePath *string, field string) error {
	file, ok := cay.ParseWirePath(*wirePath)
	if !ok || !strings.HasPrefix(file, "/") || strings.Contains(file, "\x00") {
		return cay.Errorf(cay.Unprocessable, "the path %q is not absolute", *wirePath).On(field)
	}
	if len(file) > maxPath {
		return cay.Errorf(cay.Unprocessable, "the path has %d bytes, at most %d are possible", len(file), maxPath).On(field)
	}
	*wirePath = file
	return nil
}

// problem turns an error of the kernel into one for the caller. No errno of a file operation is an internal error: the caller named
// the file.
func problem(op, file string, err error) error {
	if err == nil {
		return nil
	}
	var e *cay.Error
	if errors.As(err, &e) {
		return err
	}
	reason := cay.Unprocessable
	var errno unix.Errno
	if errors.As(err, &errno) {
		switch errno {
		case unix.ENOENT:
			reason = cay.NotFound
		case unix.EACCES, unix.EPERM, unix.EROFS:
			reason = cay.Forbidden
		case unix.EEXIST:
			reason = cay.AlreadyExists
		case unix.ENOSPC, unix.EDQUOT:
			reason = cay.DiskFull
		case unix.ENOTEMPTY, unix.EBUSY, unix.ETXTBSY:
			reason = cay.Conflict
		}
		err = errno
	}
	return cay.Errorf(reason, "%s %s: %w", op, file, err)
}

// Stat describes a file, a symlink itself unless it is to be followed.
func (f *Files) Stat(req *guestv1.Stat) (*guestv1.FileInfo, error) {
	var info *guestv1.FileInfo
	err := f.as(req.User, "stat", &req.Path, func(user.Account) error {
		var st unix.Stat_t
		stat := unix.Lstat
		if req.Follow {
			stat = unix.Stat
		}
		if err := stat(req.Path, &st); err != nil {
			return err
		}
		info = f.describe(req.Path, &st)
		return nil
	})
	return info, err
}

// describe expects to run as the user, since it reads a symlink's target.
func (f *Files) describe(file string, st *unix.Stat_t) *guestv1.FileInfo {
	info := &guestv1.FileInfo{
		Path: cay.WirePath(file), Name: []byte(path.Base(file)), Type: kind(st.Mode), Size: st.Size, Mode: st.Mode & permissions,
		Uid: st.Uid, Gid: st.Gid, User: text(f.users.Name(st.Uid)), ModifiedUnixNs: st.Mtim.Nano(), Inode: st.Ino,
	}
	if info.Type == "symlink" {
		if target, err := os.Readlink(file); err == nil {
			info.Target = cay.WirePath(target)
		}
	}
	return info
}

// text makes s fit for a message, whose strings are UTF-8. Paths go by cay.WirePath instead, which loses nothing.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func kind(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	}
	return "device"
}

// Mkdir makes a directory; with parents, those above it that are missing. One that exists is a cay.AlreadyExists.
func (f *Files) Mkdir(req *guestv1.Mkdir) (*guestv1.FileInfo, error) {
	var info *guestv1.FileInfo
	mode := req.Mode & permissions
	if mode == 0 {
		mode = 0o755
	}
	err := f.as(req.User, "make directory", &req.Path, func(user.Account) error {
		dir := strings.TrimRight(req.Path, "/")
		if dir == "" {
			return unix.EEXIST
		}
		if req.Parents {
			if err := os.MkdirAll(path.Dir(dir), 0o755); err != nil {
				return err
			}
		}
		if err := unix.Mkdir(dir, mode); err != nil {
			return err
		}
		if err := unix.Chmod(dir, mode); err != nil { // past the umask
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return err
		}
		info = f.describe(dir, &st)
		return nil
	})
	return info, err
}

// Move renames a file or directory and describes it in its new place. Without overwrite, a target that exists is a
// cay.AlreadyExists, decided by the kernel.
func (f *Files) Move(req *guestv1.Move) (*guestv1.FileInfo, error) {
	if err := unwire(&req.To, "to"); err != nil {
		return nil, err
	}
	var info *guestv1.FileInfo
	err := f.as(req.User, "move", &req.From, func(user.Account) error {
		var st unix.Stat_t
		if err := unix.Lstat(req.From, &st); err != nil {
			return err
		}
		flags := uint(0)
		if !req.Overwrite {
			flags = unix.RENAME_NOREPLACE
		}
		switch err := unix.Renameat2(unix.AT_FDCWD, req.From, unix.AT_FDCWD, req.To, flags); err {
		case nil:
			info = f.describe(req.To, &st)
			return nil
		case unix.EXDEV:
			return cay.Errorf(cay.Unprocessable, "move %s to %s: they are on different file systems", req.From, req.To).On("to")
		default:
			return fmt.Errorf("to %s: %w", req.To, err)
		}
	})
	return info, err
}

// Remove removes a file, or recursively a directory. A directory without that is a cay.Conflict.
func (f *Files) Remove(req *guestv1.Remove) error {
	return f.as(req.User, "remove", &req.Path, func(user.Account) error {
		var st unix.Stat_t
		if err := unix.Lstat(req.Path, &st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return unix.Unlink(req.Path)
		}
		if !req.Recursive {
			return cay.Errorf(cay.Conflict, "%s is a directory: say recursive to remove it with all that is in it", req.Path)
		}
		if path.Clean(req.Path) == "/" {
			return cay.Errorf(cay.Unprocessable, "the root directory cannot be removed").On("path")
		}
		dir, base := path.Split(strings.TrimRight(req.Path, "/"))
		if base == "." || base == ".." {
			return cay.Errorf(cay.Unprocessable, "name the directory itself to remove it, not by %s", base).On("path")
		}
		parent, err := openAt(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(parent)
		return removeAt(parent, base)
	})
}
