package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	pathpkg "path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	copyWorkers  = 8
	maxCopyDepth = 256     // directories within directories
	maxCopyLinks = 100_000 // symbolic links of one download, which are kept in memory until the end
	maxSkipped   = 10_000  // entries of a report
)

// CopyOptions tunes [Files.CopyTo] and [Files.CopyFrom].
type CopyOptions struct {
	// Progress is told of bytes as they pass, from several goroutines at once.
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

// copier collects a copy's report; its methods may be called from several goroutines.
type copier struct {
	mu       sync.Mutex
	report   CopyReport // guarded by mu
	progress func(int64)
	bytes    atomic.Int64
}

func newCopier(o CopyOptions) *copier { return &copier{progress: o.Progress} }

func (c *copier) passed(n int) {
	c.bytes.Add(int64(n))
	if c.progress != nil && n > 0 {
		c.progress(int64(n))
	}
}

func (c *copier) count(what *int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*what++
}

func (c *copier) skip(path, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch n := len(c.report.Skipped); {
	case n < maxSkipped:
		c.report.Skipped = append(c.report.Skipped, Skipped{path, why})
	case n == maxSkipped:
		c.report.Skipped = append(c.report.Skipped, Skipped{"…", "there are more"})
	}
}

func (c *copier) result() *CopyReport {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Bytes = c.bytes.Load()
	return &c.report
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

// countingFile lets a file be sent again after a fault (it can be read at any position) and reports what is read the first time.
type countingFile struct {
	*os.File
	c    *copier
	mark *atomic.Int64 // the furthest position reported
}

func (r countingFile) ReadAt(p []byte, at int64) (int, error) {
	n, err := r.File.ReadAt(p, at)
	end := at + int64(n)
	for {
		seen := r.mark.Load()
		if end <= seen {
			return n, err
		}
		if r.mark.CompareAndSwap(seen, end) {
			r.c.passed(int(end - max(seen, at)))
			return n, err
		}
	}
}

// crew runs tasks on a few goroutines. The first error stops it.
type crew struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	slots  chan struct{}
	wg     sync.WaitGroup
}

func newCrew(ctx context.Context) *crew {
	ctx, cancel := context.WithCancelCause(ctx)
	return &crew{ctx: ctx, cancel: cancel, slots: make(chan struct{}, copyWorkers)}
}

// run starts task once a slot is free; it does not when the crew has been stopped.
func (w *crew) run(task func(ctx context.Context) error) {
	select {
	case w.slots <- struct{}{}:
	case <-w.ctx.Done():
		return
	}
	w.wg.Go(func() {
		defer func() { <-w.slots }()
		if err := task(w.ctx); err != nil {
			w.cancel(err)
		}
	})
}

func (w *crew) wait() error {
	w.wg.Wait()
	err := context.Cause(w.ctx)
	w.cancel(nil)
	return err
}

// CopyTo copies a local file or folder to the path remote of the sandbox. Files keep their permission bits. Symbolic links within
// a folder are made as links, with their targets as they are; devices, sockets and pipes are skipped, which the report says.
func (f *Files) CopyTo(ctx context.Context, local, remote string, o CopyOptions) (*CopyReport, error) {
	c := newCopier(o)
	info, err := os.Stat(local)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if err := f.sendFile(ctx, c, local, remote); err != nil {
			return c.result(), err
		}
		return c.result(), nil
	}
	if local, err = filepath.EvalSymlinks(local); err != nil { // WalkDir does not follow the one it starts from
		return nil, err
	}
	w := newCrew(ctx)
	err = filepath.WalkDir(local, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		rel, err := filepath.Rel(local, path)
		if err != nil {
			return err
		}
		to := pathpkg.Join(remote, filepath.ToSlash(rel))
		return f.sendEntry(w, c, path, to, d)
	})
	if err != nil {
		w.cancel(err)
	}
	err = w.wait()
	return c.result(), err
}

func (f *Files) sendEntry(w *crew, c *copier, path, to string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := f.Mkdir(w.ctx, to, info.Mode().Perm()|0o700, true); err != nil && ReasonOf(err) != ReasonAlreadyExists {
			return err
		}
		c.count(&c.report.Directories)
	case d.Type().IsRegular():
		w.run(func(ctx context.Context) error { return f.sendFile(ctx, c, path, to) })
	case d.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		w.run(func(ctx context.Context) error { return f.sendSymlink(ctx, c, target, to) })
	default:
		c.skip(path, "it is neither a file, a directory nor a symbolic link")
	}
	return nil
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
		c.skip(path, "it is neither a file, a directory nor a symbolic link")
		return nil
	}
	content := countingFile{file, c, new(atomic.Int64)}
	if _, err := f.Write(ctx, to, content, WriteOptions{Mode: info.Mode().Perm()}); err != nil {
		return err
	}
	c.count(&c.report.Files)
	return nil
}

// sendSymlink makes a link with the sandbox's own ln: the files API has no call for it.
func (f *Files) sendSymlink(ctx context.Context, c *copier, target, to string) error {
	r := Command("ln", "-sfn", "--", target, to)
	r.User = f.user
	res, err := f.c.Exec(ctx, f.sandbox, r)
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		c.skip(to, "the link could not be made: "+err.Error())
	case !res.OK:
		c.skip(to, "the link could not be made: "+strings.TrimSpace(string(res.Stderr)))
	default:
		c.count(&c.report.Symlinks)
	}
	return nil
}

// CopyFrom copies the sandbox's file or directory remote to the path local, whose parent must exist. Permission bits are kept,
// set-id bits are not. The sandbox is not trusted: nothing is written outside local whatever it answers, a name that would lead
// out is an error, and symbolic links whose target is absolute or leaves local are skipped, which the report says.
//
// A file appears under its name only when it is whole.
func (f *Files) CopyFrom(ctx context.Context, remote, local string, o CopyOptions) (*CopyReport, error) {
	c := newCopier(o)
	info, err := f.Stat(ctx, remote)
	if err != nil {
		return nil, err
	}
	if info.IsSymlink() { // the one named is followed, as the server does on reading; those within a folder are not
		if entries, err := f.isDir(ctx, remote); err != nil {
			return nil, err
		} else if entries {
			info.Type = "directory"
		}
	}
	if !info.IsDir() {
		return f.fetchOne(ctx, c, info, remote, local)
	}
	if err := os.Mkdir(local, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(local)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	w := newCrew(ctx)
	var links []pendingLink
	if err := f.fetchDir(w, c, root, remote, ".", 0, &links); err != nil {
		w.cancel(err)
	}
	if err := w.wait(); err != nil {
		return c.result(), err
	}
	for _, l := range links { // last, so that nothing is ever written through one
		if err := makeSymlink(root, c, l); err != nil {
			return c.result(), err
		}
	}
	return c.result(), nil
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
	return c.result(), err
}

// pendingLink is a symlink still to be made, by its path under the root.
type pendingLink struct{ path, target string }

// fetchDir copies the entries of one directory; rel is where they go under root.
func (f *Files) fetchDir(w *crew, c *copier, root *os.Root, remote, rel string, depth int, links *[]pendingLink) error {
	if depth > maxCopyDepth {
		return fmt.Errorf("copy %s: more than %d directories within one another", remote, maxCopyDepth)
	}
	for info, err := range f.List(w.ctx, remote, 1) {
		if err != nil {
			return err
		}
		name, err := safeName(info.Name)
		if err != nil {
			return fmt.Errorf("copy from %s: %w", remote, err)
		}
		from, to := strings.TrimSuffix(remote, "/")+"/"+name, filepath.Join(rel, name)
		switch {
		case info.IsDir():
			if err := makeDir(root, to); err != nil {
				return err
			}
			c.count(&c.report.Directories)
			if err := f.fetchDir(w, c, root, from, to, depth+1, links); err != nil {
				return err
			}
			if err := root.Chmod(to, info.Mode.Perm()|0o700); err != nil {
				return err
			}
		case info.IsRegular():
			w.run(func(ctx context.Context) error { return f.fetchFile(ctx, c, root, from, to, info.Mode.Perm()) })
		case info.IsSymlink():
			if len(*links) == maxCopyLinks {
				return fmt.Errorf("copy %s: more than %d symbolic links", remote, maxCopyLinks)
			}
			*links = append(*links, pendingLink{to, info.Target})
		default:
			c.skip(from, "it is neither a file, a directory nor a symbolic link")
		}
	}
	return nil
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

// safeName answers name if it is that of an entry directly below its directory, on this machine too.
func safeName(name string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || !filepath.IsLocal(name) ||
		filepath.Base(name) != name {
		return "", fmt.Errorf("the name %q would leave the folder", name)
	}
	return name, nil
}

// fetchFile downloads into a file of another name and renames it when it is whole.
func (f *Files) fetchFile(ctx context.Context, c *copier, root *os.Root, from, to string, mode fs.FileMode) (err error) {
	body, err := f.Read(ctx, from, ReadOptions{})
	if err != nil {
		return err
	}
	defer body.Close()
	part := filepath.Join(filepath.Dir(to), ".cay-"+newIdempotencyKey())
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
	c.count(&c.report.Files)
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
	c.count(&c.report.Symlinks)
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
