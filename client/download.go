package client

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	pathpkg "path"
	"path/filepath"
	"strings"
)

const (
	maxCopyDepth = 256     // directories within directories
	maxCopyName  = 4096    // bytes of a path, or of a link's target
	maxCopyLinks = 100_000 // symbolic links of one download, which are kept in memory until the end
	maxTrailing  = 1 << 20 // bytes after an archive's end mark
	copyBuffer   = 256 << 10
)

// DownloadDirectory copies a directory of the sandbox to the path local, whose parent must exist, as one archive that is unpacked as
// it comes. What local holds already is merged with. The sandbox is not trusted: nothing is written outside local whatever it sends,
// a name that would lead out is an error, and symbolic links whose target is absolute or leaves local are skipped, which the report
// says. Permission bits and times of files are kept, set-id bits are not. A file appears under its name only when it is whole.
func (f *Files) DownloadDirectory(ctx context.Context, remote, local string, o CopyOptions) (*CopyReport, error) {
	body, err := f.OpenArchive(ctx, remote, ArchiveOptions{Format: Tar})
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if err := os.Mkdir(local, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(local)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	u := &unpacker{root: root, c: newCopier(o), buf: make([]byte, copyBuffer)}
	if err := u.run(body); err != nil {
		return &u.c.report, fmt.Errorf("download %s: %w", remote, err)
	}
	return &u.c.report, nil
}

// unpacker writes the entries of an archive that is not trusted below a root.
type unpacker struct {
	root   *os.Root
	c      *copier
	links  []pendingLink // made last, so that nothing is ever written through one
	parent string        // the directory that was made or checked last
	buf    []byte
}

// pendingLink is a symlink still to be made, by its path under the root.
type pendingLink struct{ path, target string }

func (u *unpacker) run(archive io.Reader) error {
	in := tar.NewReader(archive)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if err := u.entry(h, in); err != nil {
			return err
		}
	}
	// What follows the end mark tells whether the stream is whole.
	switch n, err := io.Copy(io.Discard, io.LimitReader(archive, maxTrailing+1)); {
	case err != nil:
		return fmt.Errorf("read archive: %w", err)
	case n > maxTrailing:
		return errors.New("read archive: it does not end after its end mark")
	}
	for _, l := range u.links {
		if err := makeSymlink(u.root, u.c, l); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	name, err := localName(h.Name)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.directory(name, h.FileInfo().Mode())
	case tar.TypeReg, tar.TypeSymlink, tar.TypeLink:
		if name == "." {
			return errors.New("an entry would take the place of the folder itself")
		}
	default:
		u.c.skip(h.Name, neitherKind)
		return nil
	}
	if err := u.within(filepath.Dir(name)); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		switch {
		case len(h.Linkname) > maxCopyName:
			u.c.skip(name, "the link's target is too long")
		case len(u.links) == maxCopyLinks:
			return fmt.Errorf("more than %d symbolic links", maxCopyLinks)
		default:
			u.links = append(u.links, pendingLink{name, h.Linkname})
		}
		return nil
	case tar.TypeLink:
		return u.hardLink(name, h.Linkname)
	}
	for key := range h.PAXRecords { // a few bytes of archive could fill the disk
		if strings.HasPrefix(key, "GNU.sparse.") {
			return fmt.Errorf("the file %s is sparse in the archive, which the server never makes", name)
		}
	}
	return u.file(name, h, content)
}

// localName is an entry's name as a path below the root, on this machine too; "." for the root itself.
func localName(name string) (string, error) {
	clean := pathpkg.Clean(name)
	local := filepath.FromSlash(clean)
	switch {
	case name == "" || strings.ContainsRune(name, 0) || !filepath.IsLocal(local) || strings.Contains("/"+name+"/", "/../") || filepath.ToSlash(local) != clean:
		return "", fmt.Errorf("the name %q would leave the folder", clipped(name))
	case len(name) > maxCopyName || strings.Count(clean, "/") > maxCopyDepth:
		return "", fmt.Errorf("the name %q is too long, or more than %d directories deep", clipped(name), maxCopyDepth)
	}
	return local, nil
}

// clipped is the beginning of a name of any length.
func clipped(name string) string {
	if len(name) > 200 {
		return name[:200] + "…"
	}
	return name
}

// within makes a directory below the root and those above it. What is there already must be directories, and not links to some.
func (u *unpacker) within(dir string) error {
	if dir == "." || dir == u.parent {
		return nil
	}
	if err := u.within(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := makeDir(u.root, dir); err != nil {
		return err
	}
	u.parent = dir
	return nil
}

func (u *unpacker) directory(name string, mode fs.FileMode) error {
	if name == "." {
		return nil
	}
	if err := u.within(name); err != nil {
		return err
	}
	u.c.report.Directories++
	return u.root.Chmod(name, mode.Perm()|0o700)
}

// makeDir makes a directory; what is there already must be one, and not a link to one.
func makeDir(root *os.Root, path string) error {
	err := root.Mkdir(path, 0o700)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := root.Lstat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "mkdir", Path: path, Err: errors.New("exists and is not a directory")}
	}
	return nil
}

func (u *unpacker) file(name string, h *tar.Header, content io.Reader) (err error) {
	part := filepath.Join(filepath.Dir(name), partName())
	file, err := u.root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			file.Close()
			u.root.Remove(part)
		}
	}()
	if _, err := io.CopyBuffer(struct{ io.Writer }{file}, struct{ io.Reader }{countingReader{content, u.c}}, u.buf); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if err := file.Chmod(h.FileInfo().Mode().Perm()); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := u.root.Chtimes(part, h.ModTime, h.ModTime); err != nil {
		return err
	}
	if err := u.root.Rename(part, name); err != nil {
		return err
	}
	u.c.report.Files++
	return nil
}

// partName is that of a file which is not whole yet.
func partName() string { return ".cay-" + newIdempotencyKey() }

// hardLink makes another name for a file that the archive brought before.
func (u *unpacker) hardLink(name, target string) error {
	from, err := localName(target)
	if err != nil {
		return err
	}
	if info, err := u.root.Lstat(from); err != nil || !info.Mode().IsRegular() {
		u.c.skip(name, fmt.Sprintf("it is another name of %q, which is not there", clipped(target)))
		return nil
	}
	part := filepath.Join(filepath.Dir(name), partName())
	if err := u.root.Link(from, part); err != nil {
		return err
	}
	if err := u.root.Rename(part, name); err != nil {
		u.root.Remove(part)
		return err
	}
	u.root.Remove(part) // where both were one file already, the rename did nothing
	u.c.report.Files++
	return nil
}

func makeSymlink(root *os.Root, c *copier, l pendingLink) error {
	target := filepath.FromSlash(l.target)
	switch {
	case target == "" || strings.ContainsRune(target, 0):
		c.skip(l.path, "the link has no target")
		return nil
	case filepath.IsAbs(target) || strings.HasPrefix(l.target, "/"):
		c.skip(l.path, fmt.Sprintf("the link's target %q is absolute", l.target))
		return nil
	case !filepath.IsLocal(filepath.Join(filepath.Dir(l.path), target)), climbsLate(target):
		c.skip(l.path, fmt.Sprintf("the link's target %q leaves the folder", l.target))
		return nil
	}
	if info, err := root.Lstat(l.path); err == nil && !info.IsDir() {
		if err := root.Remove(l.path); err != nil {
			return err
		}
	}
	if err := root.Symlink(target, l.path); err != nil {
		return err
	}
	c.report.Symlinks++
	return nil
}

// climbsLate reports whether target has a ".." after a name. What such a path means depends on whether the name is a link, so that
// a chain of links that stay inside one by one could lead out.
func climbsLate(target string) bool {
	named := false
	for part := range strings.SplitSeq(filepath.ToSlash(target), "/") {
		switch part {
		case "", ".":
		case "..":
			if named {
				return true
			}
		default:
			named = true
		}
	}
	return false
}
