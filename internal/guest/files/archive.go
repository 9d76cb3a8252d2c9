package files

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

const (
	// smallFile is read before its entry is written, so that the entry tells its true size.
	smallFile = 64 << 10
	// maxLinked bounds the files with several names that are remembered; further ones become copies.
	maxLinked = 64 << 10
)

// ReadArchive writes an archive of what is below a directory, or of one file, to w. Symlinks stay symlinks; sockets, devices and
// FIFOs are left out, and so is what vanishes meanwhile. A file that may not be read, or that becomes shorter while it is read, ends
// it with an error: an archive is whole or it is none.
func (f *Files) ReadArchive(req *guestv1.ReadArchive, w io.Writer) error {
	out, err := compressor(w, req.Format)
	if err != nil {
		return err
	}
	p := newPipe()
	var walking sync.WaitGroup
	defer walking.Wait()
	defer p.stop()
	walking.Go(func() {
		p.close(f.as(req.User, "archive", &req.Path, func(user.Account) error {
			a := &archiver{files: f, tar: tar.NewWriter(p), links: map[inode]string{}, users: map[uint32]string{}, buf: make([]byte, pipePiece)}
			if err := a.start(req.Path); err != nil {
				return err
			}
			return a.tar.Close()
		}))
	})
	if _, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{p}, make([]byte, pipePiece)); err != nil {
		return err
	}
	return out.Close()
}

type inode struct{ dev, ino uint64 }

// archiver walks as the user.
type archiver struct {
	files *Files
	tar   *tar.Writer
	links map[inode]string // where a file with several names is in the archive
	users map[uint32]string
	buf   []byte
}

func (a *archiver) start(file string) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	if !isDir(&st) {
		if err := regular(file, &st); err != nil {
			return err
		}
		return a.entry(unix.AT_FDCWD, file, path.Base(file), true)
	}
	dir, err := openAt(unix.AT_FDCWD, file, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return a.directory(dir, "", &st, 0)
}

// directory archives what is in dir, which is called prefix in the archive.
func (a *archiver) directory(dir int, prefix string, above *unix.Stat_t, level int) error {
	if level > maxLevels {
		return cay.Errorf(cay.Unprocessable, "archive %s: directories lie more than %d deep", prefix, maxLevels)
	}
	return eachName(dir, func(name string) error {
		if unfinished(name) {
			return nil
		}
		rel := prefix + name
		st, err := statAt(dir, name)
		if err == unix.ENOENT {
			return nil
		}
		if err != nil {
			return named(rel, err)
		}
		if !isDir(&st) {
			return a.entry(dir, name, rel, false)
		}
		fd, err := openDirectoryAt(dir, name)
		switch err {
		case nil:
		case unix.ENOENT, unix.ENOTDIR, unix.ELOOP:
			return nil // gone, or another thing meanwhile
		default:
			return named(rel, err)
		}
		defer unix.Close(fd)
		if st.Dev != above.Dev && made(fd) {
			return nil
		}
		if err := a.header(&tar.Header{Typeflag: tar.TypeDir, Name: rel + "/"}, &st); err != nil {
			return err
		}
		return a.directory(fd, rel+"/", &st, level+1)
	})
}

// made reports whether a directory is of a file system that the kernel makes up.
func made(fd int) bool {
	var fs unix.Statfs_t
	if unix.Fstatfs(fd, &fs) != nil {
		return false
	}
	switch fs.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEVPTS_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return true
	}
	return false
}

// named says which entry an error is about.
func named(rel string, err error) error {
	if err == unix.EACCES || err == unix.EPERM {
		return cay.Errorf(cay.Forbidden, "archive %s: permission denied; user=root may read it", rel)
	}
	return fmt.Errorf("%s: %w", rel, err)
}

// entry archives what is no directory. follow: the name may be a symlink to a file, which then is meant.
func (a *archiver) entry(dir int, name, rel string, follow bool) error {
	st, err := statAt(dir, name)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return named(rel, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK && !follow {
		target, err := readlinkAt(dir, name)
		if err == unix.ENOENT || err == unix.EINVAL {
			return nil
		}
		if err != nil {
			return named(rel, err)
		}
		return a.header(&tar.Header{Typeflag: tar.TypeSymlink, Name: rel, Linkname: target}, &st)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG && !follow {
		return nil
	}
	flags := openContent
	if follow {
		flags &^= unix.O_NOFOLLOW
	}
	fd, err := openAt(dir, name, flags, 0)
	switch err {
	case nil:
	case unix.ENOENT, unix.ELOOP, unix.ENXIO:
		return nil
	default:
		return named(rel, err)
	}
	defer unix.Close(fd)
	if err := unix.Fstat(fd, &st); err != nil {
		return named(rel, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	if st.Nlink > 1 {
		key := inode{uint64(st.Dev), st.Ino}
		if first, ok := a.links[key]; ok {
			return a.header(&tar.Header{Typeflag: tar.TypeLink, Name: rel, Linkname: first}, &st)
		}
		if len(a.links) < maxLinked {
			a.links[key] = rel
		}
	}
	return a.content(fd, rel, &st)
}

func readlinkAt(dir int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// content writes a file's entry. A file that grows is archived as long as it was.
func (a *archiver) content(fd int, rel string, st *unix.Stat_t) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: rel, Size: st.Size}
	if st.Size <= smallFile {
		n := 0
		for n < smallFile {
			m, err := readFD(fd, a.buf[n:smallFile])
			if err != nil {
				return named(rel, err)
			}
			if m == 0 {
				break
			}
			n += m
		}
		h.Size = int64(n)
		if err := a.header(h, st); err != nil {
			return err
		}
		_, err := a.tar.Write(a.buf[:n])
		return err
	}
	if err := a.header(h, st); err != nil {
		return err
	}
	for left := st.Size; left > 0; {
		n, err := readFD(fd, a.buf[:min(left, int64(len(a.buf)))])
		if err != nil {
			return named(rel, err)
		}
		if n == 0 {
			return cay.Errorf(cay.Conflict, "archive %s: it became shorter while it was read; ask again", rel)
		}
		if _, err := a.tar.Write(a.buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

func readFD(fd int, b []byte) (n int, err error) {
	err = retry(func() (err error) {
		n, err = unix.Read(fd, b)
		return err
	})
	return n, err
}

func (a *archiver) header(h *tar.Header, st *unix.Stat_t) error {
	h.Mode = int64(st.Mode & permissions)
	h.ModTime = time.Unix(st.Mtim.Sec, 0)
	h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	name, known := a.users[st.Uid]
	if !known {
		name = text(a.files.users.Name(st.Uid))
		if len(a.users) < maxLinked {
			a.users[st.Uid] = name
		}
	}
	h.Uname = name
	if !utf8.ValidString(h.Name) || !utf8.ValidString(h.Linkname) {
		h.Format = tar.FormatGNU // keeps any bytes; PAX is UTF-8 by definition
	}
	err := a.tar.WriteHeader(h)
	if errors.Is(err, errPipe) || err == nil {
		return err
	}
	return cay.Errorf(cay.Unprocessable, "archive %s: %v", strings.ToValidUTF8(h.Name, "\uFFFD"), err)
}
