package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

const maxSkipped = 10_000 // entries of a report

// CopyOptions tunes [Files.CopyTo], [Files.CopyFrom], [Files.UploadDirectory] and [Files.DownloadDirectory].
type CopyOptions struct {
	// Progress is told of bytes of content as they pass, one call at a time.
	Progress func(bytes int64)
}

// CopyReport says what a copy did.
type CopyReport struct {
	Files, Directories, Symlinks int
	Bytes                        int64
	Skipped                      []Skipped
}

// Skipped is an entry that was left out, and why.
type Skipped struct{ Path, Why string }

// copier collects a copy's report.
type copier struct {
	report   CopyReport
	progress func(int64)
}

func newCopier(o CopyOptions) *copier { return &copier{progress: o.Progress} }

func (c *copier) passed(n int) {
	c.report.Bytes += int64(n)
	if c.progress != nil && n > 0 {
		c.progress(int64(n))
	}
}

func (c *copier) skip(path, why string) {
	switch n := len(c.report.Skipped); {
	case n < maxSkipped:
		c.report.Skipped = append(c.report.Skipped, Skipped{path, why})
	case n == maxSkipped:
		c.report.Skipped = append(c.report.Skipped, Skipped{"…", "there are more"})
	}
}

// countingReader reports what is read through it.
type countingReader struct {
	io.Reader
	c *copier
}

func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.c.passed(n)
	return n, err
}

// countingFile lets a file be sent again after a fault (it can be read at any position) and reports what is read the first time. The
// reads of one attempt may overlap those of the next.
type countingFile struct {
	*os.File
	c    *copier
	mu   *sync.Mutex // guards mark and c
	mark *int64      // the furthest position reported
}

func (r countingFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := r.File.ReadAt(p, at)
	r.mu.Lock()
	defer r.mu.Unlock()
	if end := at + int64(n); end > *r.mark {
		r.c.passed(int(end - max(*r.mark, at)))
		*r.mark = end
	}
	return n, err
}

// CopyTo copies a local file or folder to the path remote of the sandbox; a folder as [Files.UploadDirectory] does. Files keep their
// permission bits.
func (f *Files) CopyTo(ctx context.Context, local, remote string, o CopyOptions) (*CopyReport, error) {
	info, err := os.Stat(local)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return f.UploadDirectory(ctx, local, remote, o)
	}
	c := newCopier(o)
	err = f.sendFile(ctx, c, local, remote)
	return &c.report, err
}

func (f *Files) sendFile(ctx context.Context, c *copier, path, to string) error {
	file, err := os.OpenFile(path, os.O_RDONLY|openNonblock, 0) // a pipe put in the file's place must not hold us
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		c.skip(path, neitherKind)
		return nil
	}
	content := countingFile{file, c, new(sync.Mutex), new(int64)}
	if _, err := f.Write(ctx, to, content, WriteOptions{Mode: info.Mode().Perm()}); err != nil {
		return err
	}
	c.report.Files++
	return nil
}

// CopyFrom copies the sandbox's file or directory remote to the path local, whose parent must exist; a directory as
// [Files.DownloadDirectory] does. Permission bits are kept, set-id bits are not. A file appears under its name only when it is whole.
func (f *Files) CopyFrom(ctx context.Context, remote, local string, o CopyOptions) (*CopyReport, error) {
	info, err := f.Stat(ctx, remote)
	if err != nil {
		return nil, err
	}
	isDir := info.IsDir()
	if info.IsSymlink() { // the one named is followed, as the server does on reading; those within a folder are not
		if isDir, err = f.isDir(ctx, remote); err != nil {
			return nil, err
		}
	}
	if isDir {
		return f.DownloadDirectory(ctx, remote, local, o)
	}
	return f.fetchOne(ctx, newCopier(o), info, remote, local)
}

// isDir finds out whether a symlink leads to a directory.
func (f *Files) isDir(ctx context.Context, path string) (bool, error) {
	for _, err := range f.List(ctx, path, 1) {
		if err == nil {
			return true, nil
		}
		if e := (*Error)(nil); errors.As(err, &e) && e.Status >= 400 && e.Status < 500 {
			return false, nil // reading it will tell
		}
		return false, err
	}
	return true, nil
}

func (f *Files) fetchOne(ctx context.Context, c *copier, info *FileInfo, remote, local string) (*CopyReport, error) {
	dir, name := filepath.Split(local)
	if dir == "" {
		dir = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	mode := info.Mode.Perm()
	if info.IsSymlink() {
		mode = 0o644
	}
	err = f.fetchFile(ctx, c, root, remote, name, mode)
	return &c.report, err
}

// fetchFile downloads into a file of another name and renames it when it is whole.
func (f *Files) fetchFile(ctx context.Context, c *copier, root *os.Root, from, to string, mode fs.FileMode) (err error) {
	body, err := f.Read(ctx, from, ReadOptions{})
	if err != nil {
		return err
	}
	defer body.Close()
	part := filepath.Join(filepath.Dir(to), partName())
	file, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			file.Close()
			root.Remove(part)
		}
	}()
	if _, err := io.Copy(file, countingReader{body, c}); err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	if err := file.Chmod(mode); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := root.Rename(part, to); err != nil {
		return err
	}
	c.report.Files++
	return nil
}
