package files

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// staging is how names of archives begin that are being written.
const staging = ".cay-archive-"

// WriteArchive writes what is in an archive below a directory, which is made where it is missing. r's io.EOF says that all of it is
// there; with any other error, nothing is written.
//
// The archive is first written as a whole into a staging directory of its own, inside the target, where nobody but the user and root
// can come; there, an entry has nothing around it to lead it astray, neither what was there before nor a symlink of the archive's
// own. When every entry is good and fits onto what is at the target, the tree is moved into its place by renames, directory by
// directory: what is replaced is replaced at once. A full disk is noticed before the first of them.
func (f *Files) WriteArchive(req *guestv1.WriteArchive, r io.Reader) (*guestv1.ArchiveInfo, error) {
	p := newPipe()
	var reading sync.WaitGroup
	reading.Go(func() { p.close(expand(p, r, req.Format)) })
	x := &extraction{end: &endOf{}, directories: map[string]directoryMeta{}, buf: make([]byte, pipePiece)}
	err := f.as(req.User, "write archive", &req.Path, func(account user.Account) error {
		x.account = account
		return x.run(req.Path, p)
	})
	p.stop()
	reading.Wait()
	if err != nil {
		return nil, err
	}
	return &x.info, nil
}

// expand writes to w what an archive holds, decompressed. What is wrong with it is a cay.Error; an error of r stays what it is.
func expand(w io.Writer, r io.Reader, format string) error {
	source := &sourceReader{r: r}
	in, err := decompressor(source, format)
	if err == nil {
		defer in.Close()
		_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{in}, make([]byte, pipePiece))
	}
	var e *cay.Error
	switch {
	case err == nil, errors.As(err, &e), errors.Is(err, errPipe):
		return err
	case source.err != nil && source.err != io.EOF:
		return source.err
	}
	return cay.Errorf(cay.Unprocessable, "the archive cannot be decompressed: %v; nothing was written", err).On("body")
}

// sourceReader remembers how its reader ended, which decompressors tell in words of their own.
type sourceReader struct {
	r   io.Reader
	err error
}

func (s *sourceReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil {
		s.err = err
	}
	return n, err
}

// directoryMeta is what a new directory gets once all that it holds is in it.
type directoryMeta struct {
	mode  uint32
	mtime unix.Timespec
}

// extraction runs as the user.
type extraction struct {
	account     user.Account
	info        guestv1.ArchiveInfo
	end         *endOf
	directories map[string]directoryMeta // by path below the target
	existing    map[string]bool          // directories that were at the target before
	buf         []byte

	target  int    // the target directory
	holder  int    // of the staging directory: usually the target
	name    string // of the staging directory
	stage   int
	at      trail
	renamed bool // something is in its place
}

// run extracts and merges. Whatever fails before the merge leaves nothing behind.
func (x *extraction) run(target string, r io.Reader) (err error) {
	made, err := makeDirectories(target)
	defer func() {
		if err != nil && !x.renamed {
			for _, dir := range made {
				_ = unix.Rmdir(dir)
			}
		}
	}()
	if err != nil {
		return err
	}
	if x.target, err = openAt(unix.AT_FDCWD, target, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	defer unix.Close(x.target)
	if err := x.prepare(); err != nil {
		return err
	}
	defer func() {
		x.at.close()
		unix.Close(x.stage)
		_ = removeAt(x.holder, x.name)
		if x.holder != x.target {
			unix.Close(x.holder)
		}
	}()
	in := tar.NewReader(io.TeeReader(r, x.end))
	for {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return unreadable(err)
		}
		if err := x.entry(h, in); err != nil {
			return err
		}
	}
	// What follows the end belongs to the stream: its checksum, and whether it is all there.
	if !x.end.whole() {
		return cay.Errorf(cay.Unprocessable, "the archive ends before its end mark: it was cut, or is no tar; nothing was written").On("body")
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, x.buf); err != nil {
		return err
	}
	return x.merge()
}

// unreadable is an archive that is no good; an error of its source stays what it is.
func unreadable(err error) error {
	switch {
	case errors.Is(err, tar.ErrHeader), errors.Is(err, tar.ErrFieldTooLong):
		return cay.Errorf(cay.Unprocessable, "the archive is no tar, or is damaged; nothing was written").On("body")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return cay.Errorf(cay.Unprocessable, "the archive was cut; nothing was written").On("body")
	}
	return err
}

// makeDirectories makes what is missing of a path, and returns what it made, the deepest first.
func makeDirectories(dir string) (made []string, err error) {
	dir = strings.TrimRight(dir, "/")
	var missing []string
	for at := dir; at != ""; at = at[:strings.LastIndexByte(at, '/')] {
		var st unix.Stat_t
		err := unix.Stat(at, &st)
		if err == nil {
			break
		}
		if err != unix.ENOENT {
			return nil, err
		}
		missing = append(missing, strings.TrimRight(at, "/"))
	}
	for i := len(missing) - 1; i >= 0; i-- {
		switch err := unix.Mkdir(missing[i], 0o755); err {
		case nil:
			made = append([]string{missing[i]}, made...)
		case unix.EEXIST: // somebody was faster, or it is a symlink that leads nowhere
		default:
			return made, err
		}
	}
	return made, nil
}

// prepare makes the staging directory: in the target, or, where the user may not write there, on the same file system.
func (x *extraction) prepare() error {
	x.name = staging + strings.ToLower(rand.Text())
	x.holder = x.target
	err := unix.Mkdirat(x.holder, x.name, 0o700)
	if err == unix.EACCES || err == unix.EROFS {
		if err = x.elsewhere(err); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	x.stage, err = openDirectoryAt(x.holder, x.name)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(x.stage, &st); err != nil {
		unix.Close(x.stage)
		return err
	}
	if st.Mode&permissions != 0o700 || st.Uid != x.account.UID && unix.Geteuid() == 0 {
		unix.Close(x.stage)
		return cay.Errorf(cay.Conflict, "write archive: a program in the sandbox took the place of %s", x.name)
	}
	x.at = trail{root: x.stage}
	return nil
}

const spareHolder = "/tmp"

func (x *extraction) elsewhere(refusal error) error {
	spare, err := openDirectoryAt(unix.AT_FDCWD, spareHolder)
	if err != nil {
		return refusal
	}
	var here, there unix.Stat_t
	if unix.Fstat(x.target, &here) != nil || unix.Fstat(spare, &there) != nil || here.Dev != there.Dev || unix.Mkdirat(spare, x.name, 0o700) != nil {
		unix.Close(spare)
		return refusal
	}
	x.holder = spare
	return nil
}

// entry writes one entry into the staging directory.
func (x *extraction) entry(h *tar.Header, content io.Reader) error {
	kind := kindOf(h.Typeflag)
	if kind == metaEntry {
		return nil
	}
	rel, err := entryPath("entry", h.Name)
	if err != nil {
		return err
	}
	if kind == skipEntry {
		x.info.Skipped++
		return nil
	}
	if rel == "" {
		if kind != directoryEntry {
			return errLeaves("entry", h.Name, "it would take the place of the path itself")
		}
		return nil
	}
	mtime := unix.NsecToTimespec(h.ModTime.UnixNano())
	if kind == directoryEntry {
		mode := uint32(h.Mode) & 0o1777
		if _, err := x.at.enter(rel, mode); err != nil {
			return entryError(h.Name, err)
		}
		if _, again := x.directories[rel]; !again {
			x.info.Directories++
		}
		x.directories[rel] = directoryMeta{mode, mtime}
		return nil
	}
	parent, name := path.Split(rel)
	dir, err := x.at.enter(strings.TrimSuffix(parent, "/"), 0o755)
	if err != nil {
		return entryError(h.Name, err)
	}
	switch kind {
	case fileEntry:
		err = x.file(dir, name, uint32(h.Mode)&0o777, mtime, content)
	case symlinkEntry:
		err = afresh(dir, name, func() error { return unix.Symlinkat(h.Linkname, dir, name) })
		if err == nil {
			_ = unix.UtimesNanoAt(dir, name, []unix.Timespec{mtime, mtime}, unix.AT_SYMLINK_NOFOLLOW) // nothing depends on it
		}
	case hardLinkEntry:
		err = x.hardLink(h, dir, name)
	}
	if err != nil {
		return entryError(h.Name, err)
	}
	x.info.Files++
	return nil
}

// entryError says which entry an error is about. One of the archive's source, or one that says it already, stays what it is.
func entryError(name string, err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return unreadable(err)
	}
	switch errno {
	case unix.ELOOP, unix.ENOTDIR:
		return errLeaves("entry", name, "it leads through another entry that is no directory")
	case unix.EISDIR:
		return cay.Errorf(cay.Unprocessable, "the entry %q is a directory and a file in the archive; nothing was written", clipped(name)).On("body")
	case unix.ENOSPC, unix.EDQUOT:
		return cay.Errorf(cay.DiskFull, "the disk is full at the entry %q; nothing was written", clipped(name))
	}
	return fmt.Errorf("the entry %q: %w", clipped(name), errno)
}

// afresh makes something in the staging directory, in place of an earlier entry of that name.
func afresh(dir int, name string, make func() error) error {
	err := make()
	if err != unix.EEXIST {
		return err
	}
	if err := unix.Unlinkat(dir, name, 0); err != nil {
		return err
	}
	return make()
}

// umask is the agent's own: what it takes away has to be given by hand.
const umask = 0o022

func (x *extraction) file(dir int, name string, mode uint32, mtime unix.Timespec, content io.Reader) error {
	var fd int
	err := afresh(dir, name, func() (err error) {
		fd, err = openAt(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for {
		n, err := content.Read(x.buf)
		if werr := writeAll(fd, x.buf[:n]); werr != nil {
			return werr
		}
		x.info.Bytes += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if mode&umask != 0 {
		if err := unix.Fchmod(fd, mode); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{mtime, mtime}, unix.AT_SYMLINK_NOFOLLOW)
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// hardLink links to an earlier entry of the archive: what was at the target before is not the archive's to share.
func (x *extraction) hardLink(h *tar.Header, dir int, name string) error {
	rel, err := entryPath("hard link of "+clipped(h.Name)+" to", h.Linkname)
	if err != nil {
		return err
	}
	source := trail{root: x.stage}
	defer source.close()
	parent, base := path.Split(rel)
	from, err := source.find(strings.TrimSuffix(parent, "/"))
	if err == nil {
		err = afresh(dir, name, func() error { return unix.Linkat(from, base, dir, name, 0) })
	}
	if err == unix.ENOENT || rel == "" {
		return cay.Errorf(cay.Unprocessable, "the entry %q links to %q, which is not in the archive before it; nothing was written", clipped(h.Name), clipped(h.Linkname)).On("body")
	}
	return err
}

// trail is a way down from a directory: an open descriptor for each step, kept for the next one that goes the same way.
type trail struct {
	root  int
	steps []step
}

type step struct {
	name string
	fd   int
}

// enter goes to a directory below the root and makes what is missing of the way; the last step is made with the mode. It follows no
// symlink. The descriptor is good until the next call.
func (t *trail) enter(rel string, mode uint32) (int, error) { return t.walk(rel, &mode) }

// find is enter without making anything.
func (t *trail) find(rel string) (int, error) { return t.walk(rel, nil) }

func (t *trail) walk(rel string, mode *uint32) (int, error) {
	at, depth := t.root, 0
	for rest := rel; rest != ""; depth++ {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if depth < len(t.steps) {
			if t.steps[depth].name == name {
				at = t.steps[depth].fd
				continue
			}
			t.cut(depth)
		}
		fd, err := openDirectoryAt(at, name)
		if err == unix.ENOENT && mode != nil {
			want := uint32(0o755)
			if rest == "" {
				want = *mode&0o777 | 0o700 // the owner needs all of it until the end
			}
			if err = unix.Mkdirat(at, name, want); err == nil {
				fd, err = openDirectoryAt(at, name)
			}
		}
		if err != nil {
			return 0, err
		}
		t.steps = append(t.steps, step{name, fd})
		at = fd
	}
	return at, nil
}

// cut forgets the steps from depth on.
func (t *trail) cut(depth int) {
	for _, s := range t.steps[min(depth, len(t.steps)):] {
		unix.Close(s.fd)
	}
	t.steps = t.steps[:min(depth, len(t.steps))]
}

func (t *trail) close() { t.cut(0) }
