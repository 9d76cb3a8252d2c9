package files

import (
	"strings"

	"golang.org/x/sys/unix"
)

// What walks a tree that a program inside may change at the same time goes from directory to directory by descriptors and follows no
// symlink: it never comes to a place that is not below where it began.

const (
	// openContent opens a file that is no symlink, and does not wait for the other end of a FIFO.
	openContent = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	// maxLevels bounds how deep below its start a walk goes: each level is an open descriptor.
	maxLevels = 256
	// direntBuffer is how much of a directory is read at a time, in bytes.
	direntBuffer = 16 << 10
)

// retry makes a system call again when a signal came in between.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func openAt(dir int, name string, flags int, mode uint32) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Openat(dir, name, flags, mode)
		return err
	})
	return fd, err
}

// openDirectoryAt opens a directory that is no symlink. O_NOFOLLOW would not do: together with O_DIRECTORY gVisor follows a symlink,
// which Linux does not.
func openDirectoryAt(dir int, name string) (fd int, err error) {
	how := &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	err = retry(func() (err error) {
		fd, err = unix.Openat2(dir, name, how)
		return err
	})
	return fd, err
}

func statAt(dir int, name string) (st unix.Stat_t, err error) {
	err = retry(func() error { return unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

func isDir(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// eachName calls f with the names in a directory, in no order, some at a time. f may remove what it is given.
func eachName(dir int, f func(name string) error) error {
	buf := make([]byte, direntBuffer)
	for {
		var n int
		err := retry(func() (err error) {
			n, err = unix.ReadDirent(dir, buf)
			return err
		})
		if err != nil {
			return err
		}
		if n <= 0 {
			return nil
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if err := f(name); err != nil {
				return err
			}
		}
	}
}

// unfinished reports whether a name is that of a write or an archive under way.
func unfinished(name string) bool {
	return strings.HasPrefix(name, temporary) || strings.HasPrefix(name, staging)
}

// removeAt removes a tree below dir. What it may not remove stays, and is the error.
func removeAt(dir int, name string) error {
	refused := unix.Unlinkat(dir, name, 0)
	if refused == nil || refused == unix.ENOENT {
		return nil
	}
	fd, err := openDirectoryAt(dir, name)
	switch err {
	case nil:
	case unix.ENOENT:
		return nil
	case unix.EACCES: // one that may not be read can be removed when it is empty
		if unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) == nil {
			return nil
		}
		return err
	default: // it is no directory
		return refused
	}
	defer unix.Close(fd)
	for {
		seen := 0
		err := eachName(fd, func(name string) error {
			seen++
			return removeAt(fd, name)
		})
		if err != nil {
			return err
		}
		if seen == 0 {
			if err := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR); err != unix.ENOENT {
				return err
			}
			return nil
		}
		// A directory may leave out names while it loses others: read it again until it is empty.
		if _, err := unix.Seek(fd, 0, unix.SEEK_SET); err != nil {
			return err
		}
	}
}
