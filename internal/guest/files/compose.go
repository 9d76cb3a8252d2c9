package files

import (
	"errors"
	"io"
	"path"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// maxSources bounds the files that one is composed of.
const maxSources = 1000

// Compose writes one file of the content of several, in their order, and removes those. Readers see the old or the whole new file;
// with an error, everything is as it was.
func (f *Files) Compose(req *guestv1.Compose) (*guestv1.FileInfo, error) {
	if len(req.Sources) == 0 || len(req.Sources) > maxSources {
		return nil, cay.Errorf(cay.Unprocessable, "compose takes 1 to %d sources", maxSources).On("sources")
	}
	w, err := f.Create(&guestv1.WriteFile{Path: req.Path, User: req.User, Mode: req.Mode, SetMode: req.SetMode})
	if err != nil {
		return nil, err
	}
	parts := make([]inode, len(req.Sources))
	buf := make([]byte, pipePiece)
	for i, source := range req.Sources {
		if parts[i], err = f.appendTo(w, source, req.User, buf); err != nil {
			w.Abort()
			return nil, onField(err, "sources")
		}
	}
	info, err := w.Commit()
	if err != nil {
		return nil, err
	}
	for i, source := range req.Sources {
		_ = f.as(req.User, "remove", &source, func(user.Account) error {
			// The file is in its place: a source that was replaced meanwhile, or is that place, is another file now.
			if st, err := statAt(unix.AT_FDCWD, source); err == nil && (inode{uint64(st.Dev), st.Ino}) == parts[i] {
				return unix.Unlink(source)
			}
			return nil
		})
	}
	return info, nil
}

// appendTo copies a source, which the user must be able to remove afterwards.
func (f *Files) appendTo(w *Writing, source, as string, buf []byte) (inode, error) {
	r, err := f.Open(&guestv1.ReadFile{Path: source, User: as, Length: -1})
	if err != nil {
		return inode{}, err
	}
	defer r.Close()
	var st unix.Stat_t
	err = f.as(as, "remove", &source, func(user.Account) (err error) {
		if err := unix.Faccessat(unix.AT_FDCWD, path.Dir(source), unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
			return err
		}
		st, err = statAt(unix.AT_FDCWD, source)
		return err
	})
	if err != nil {
		return inode{}, err
	}
	for {
		n, err := r.ReadInto([][]byte{buf})
		if err == io.EOF {
			return inode{uint64(st.Dev), st.Ino}, nil
		}
		if err != nil {
			return inode{}, err
		}
		if _, err := w.Write(buf[:n]); err != nil {
			return inode{}, err
		}
	}
}

func onField(err error, field string) error {
	var e *cay.Error
	if errors.As(err, &e) && (e.Field == "" || e.Field == "path") {
		return e.On(field)
	}
	return err
}
