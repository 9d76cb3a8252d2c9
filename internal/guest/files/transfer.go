package files

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// ETag names the state of a file: inode, size and time of change in hexadecimal, in quotes.
func ETag(info *guestv1.FileInfo) string {
	return fmt.Sprintf("\"%x-%x-%x\"", info.Inode, info.Size, info.ModifiedUnixNs)
}

// Reading is an open file with the range that was asked for.
type Reading struct {
	Info *guestv1.FileInfo
	file *os.File
	pos  int64
	left int64 // -1: to the end, whose place is not known, as with files of /proc
}

// Open opens a regular file for reading. A length below zero reads to the end; an offset behind the end is a
// cay.RangeNotSatisfiable.
func (f *Files) Open(req *guestv1.ReadFile) (*Reading, error) {
	var r *Reading
	err := f.as(req.User, "read", &req.Path, func(user.Account) error {
		var st unix.Stat_t
		if err := unix.Stat(req.Path, &st); err != nil {
			return err
		}
		if err := regular(req.Path, &st); err != nil {
			return err
		}
		// It may have become a FIFO meanwhile: never block.
		file, err := os.OpenFile(req.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		err = unix.Fstat(int(file.Fd()), &st)
		if err == nil {
			err = regular(req.Path, &st)
		}
		if err == nil && (req.Offset < 0 || req.Offset > st.Size) {
			err = cay.Errorf(cay.RangeNotSatisfiable, "the file has %d bytes, offset %d lies behind them", st.Size, req.Offset)
		}
		if err != nil {
			file.Close()
			return err
		}
		r = &Reading{Info: f.describe(req.Path, &st), file: file, pos: req.Offset, left: req.Length}
		if rest := st.Size - req.Offset; st.Size > 0 && (r.left < 0 || r.left > rest) {
			r.left = rest
		}
		return nil
	})
	return r, err
}

// regular refuses what has no content to read or to replace.
func regular(file string, st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return cay.Errorf(cay.Unprocessable, "%s is a %s, not a file", file, kind(st.Mode)).On("path")
	}
	return nil
}

// ReadInto fills the buffers in turn with one system call and returns how many bytes there were; io.EOF at the end of the range.
func (r *Reading) ReadInto(buffers [][]byte) (int, error) {
	if r.left >= 0 {
		room := r.left
		for i := range buffers {
			buffers[i] = buffers[i][:min(int64(len(buffers[i])), room)]
			room -= int64(len(buffers[i]))
		}
	}
	if len(buffers[0]) == 0 {
		return 0, io.EOF
	}
	for {
		n, err := unix.Preadv(int(r.file.Fd()), buffers, r.pos)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, problem("read", r.Info.Path, err)
		case n == 0:
			return 0, io.EOF
		}
		r.pos += int64(n)
		if r.left >= 0 {
			r.left -= int64(n)
		}
		return n, nil
	}
}

// Close closes the file.
func (r *Reading) Close() error { return r.file.Close() }

// Writing is a file that is being written beside the one it will replace.
type Writing struct {
	files   *Files
	req     *guestv1.WriteFile
	account user.Account
	file    *os.File
	target  string // where it will be, symlinks followed
	temp    string
}

// temporary is how names of unfinished writes begin.
const temporary = ".cay-write-"

// Create begins to write a file: parents are made, a symlink's target is meant, also one that does not exist yet. Nobody sees
// the file under its name before Commit.
func (f *Files) Create(req *guestv1.WriteFile) (*Writing, error) {
	w := &Writing{files: f, req: req}
	err := f.as(req.User, "write", &req.Path, func(account user.Account) error {
		w.account = account
		if strings.HasSuffix(req.Path, "/") {
			return unix.EISDIR
		}
		target, err := follow(req.Path)
		if err != nil {
			return err
		}
		w.target = target
		if _, _, err := w.replaced(); err != nil {
			return err
		}
		if err := os.MkdirAll(path.Dir(target), 0o755); err != nil {
			return err
		}
		w.temp = path.Join(path.Dir(target), temporary+strings.ToLower(rand.Text()))
		w.file, err = os.OpenFile(w.temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// follow resolves the symlinks that file itself is, whether or not the last of them leads to something.
func follow(file string) (string, error) {
	for range 40 {
		target, err := os.Readlink(file)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return file, nil // not a symlink, or nothing
		}
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(target, "/") {
			target = path.Dir(file) + "/" + target // not cleaned: .. behind a symlink is the kernel's to resolve
		}
		file = target
	}
	return "", unix.ELOOP
}

// replaced looks at what is there and checks the conditions of the request. It runs as the user.
func (w *Writing) replaced() (st unix.Stat_t, found bool, err error) {
	switch err := unix.Lstat(w.target, &st); {
	case err == unix.ENOENT:
		if w.req.IfMatch != "" {
			return st, false, cay.Errorf(cay.PreconditionFailed, "%s does not exist", w.req.Path)
		}
		return st, false, nil
	case err != nil:
		return st, false, err
	}
	if err := regular(w.req.Path, &st); err != nil {
		return st, true, err
	}
	if w.req.IfNoneMatch {
		return st, true, cay.Errorf(cay.PreconditionFailed, "%s exists", w.req.Path)
	}
	if tag := ETag(w.files.describe(w.target, &st)); w.req.IfMatch != "" && w.req.IfMatch != tag {
		return st, true, cay.Errorf(cay.PreconditionFailed, "%s has changed: it is %s now", w.req.Path, tag)
	}
	// A rename would get around the file's own permissions.
	return st, true, unix.Faccessat(unix.AT_FDCWD, w.target, unix.W_OK, unix.AT_EACCESS)
}

// Write appends to the file.
func (w *Writing) Write(b []byte) (int, error) {
	n, err := w.file.Write(b)
	return n, problem("write", w.req.Path, err)
}

// Commit puts the file in its place, with the mode asked for, else the mode and owner of what it replaces, else 0644.
func (w *Writing) Commit() (*guestv1.FileInfo, error) {
	var st unix.Stat_t
	var found bool
	err := w.files.as(w.req.User, "write", &w.req.Path, func(user.Account) (err error) {
		st, found, err = w.replaced()
		return err
	})
	if err == nil {
		err = problem("write", w.req.Path, w.adopt(&st, found))
	}
	var info *guestv1.FileInfo
	if err == nil {
		err = w.files.as(w.req.User, "write", &w.req.Path, func(user.Account) error {
			flags := uint(0)
			if w.req.IfNoneMatch {
				flags = unix.RENAME_NOREPLACE
			}
			err := unix.Renameat2(unix.AT_FDCWD, w.temp, unix.AT_FDCWD, w.target, flags)
			if err == unix.EEXIST {
				return cay.Errorf(cay.PreconditionFailed, "%s exists", w.req.Path)
			}
			if err == nil {
				err = unix.Fstat(int(w.file.Fd()), &st)
				info = w.files.describe(w.req.Path, &st)
			}
			return err
		})
	}
	if err != nil {
		w.Abort()
		return nil, err
	}
	return info, w.file.Close()
}

// adopt gives the new file its owner and mode. It runs as the agent: the old owner may be another.
func (w *Writing) adopt(st *unix.Stat_t, found bool) error {
	mode := uint32(0o644)
	foreign := false // the file belongs to somebody else than the writer
	if found {
		mode = st.Mode & permissions
		foreign = !w.account.Root() && st.Uid != w.account.UID
		if os.Geteuid() == 0 {
			if err := w.file.Chown(int(st.Uid), int(st.Gid)); err != nil {
				return err
			}
		}
	}
	if w.req.SetMode {
		if foreign {
			return cay.Errorf(cay.Forbidden, "the mode of %s is its owner's to set", w.req.Path)
		}
		mode = w.req.Mode & permissions
	}
	if !w.account.Root() {
		if found && !w.req.SetMode {
			mode &^= 0o6000 // as a write to the old file would have done
		}
		if mode&0o2000 != 0 && found && !w.account.In(st.Gid) {
			mode &^= 0o2000
		}
	}
	return unix.Fchmod(int(w.file.Fd()), mode)
}

// Abort leaves nothing behind.
func (w *Writing) Abort() {
	w.file.Close()
	_ = w.account.As(func() error { return unix.Unlink(w.temp) })
}
