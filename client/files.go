package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"os"
	pathpkg "path"
	"slices"
	"strconv"
	"time"
)

// Files reads and writes the files of one sandbox. Paths are absolute and resolved inside the sandbox, nowhere else.
type Files struct {
	c    *Client
	at   fileRoutes
	user string
}

// fileRoutes are where the API has the files of a sandbox or, with fewer actions, of a session.
type fileRoutes struct {
	content, list, archive []string
	actions                []string // beginning of those that a sandbox has besides; nil: there are none
}

// Files is the sandbox's file system as its own user sees it.
func (c *Client) Files(sandbox string) *Files {
	files := sandboxPath(sandbox, "files")
	return &Files{c: c, at: fileRoutes{
		content: files, list: sandboxPath(sandbox, "files", "list"), archive: sandboxPath(sandbox, "archive"), actions: files,
	}}
}

// As is the same file system with another user's access and ownership.
func (f *Files) As(user string) *Files { return &Files{c: f.c, at: f.at, user: user} }

// FileInfo describes a file of a sandbox.
type FileInfo struct {
	Path       string      `json:"path"`
	Name       string      `json:"name"`
	Type       string      `json:"type"` // file, directory, symlink, …
	Size       int64       `json:"size"`
	Mode       fs.FileMode `json:"-"` // permission bits
	UID        int64       `json:"uid"`
	GID        int64       `json:"gid"`
	User       string      `json:"user"`
	ModifiedAt time.Time   `json:"modified_at"`
	Target     string      `json:"target"` // of a symlink

	Raw json.RawMessage `json:"-"` // the object as it came
}

// IsDir reports whether it is a directory.
func (i *FileInfo) IsDir() bool { return i.Type == "directory" || i.Type == "dir" }

// IsRegular reports whether it is a plain file.
func (i *FileInfo) IsRegular() bool { return i.Type == "file" || i.Type == "regular" }

// IsSymlink reports whether it is a symbolic link.
func (i *FileInfo) IsSymlink() bool { return i.Type == "symlink" }

// UnmarshalJSON reads the mode, an octal string, and a path that is no UTF-8 by its percent-encoding.
func (i *FileInfo) UnmarshalJSON(data []byte) error {
	type plain FileInfo
	doc := struct {
		*plain
		Mode        string `json:"mode"`
		PathPercent string `json:"path_percent"`
	}{plain: (*plain)(i)}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	if doc.PathPercent != "" {
		if err := unpercent(&i.Path, doc.PathPercent); err != nil {
			return err
		}
		i.Name = pathpkg.Base(i.Path)
	}
	if doc.Mode != "" {
		bits, err := strconv.ParseUint(doc.Mode, 8, 32)
		if err != nil {
			return fmt.Errorf("mode %q is not octal", doc.Mode)
		}
		i.Mode = modeOf(uint32(bits))
	}
	i.Raw = append(i.Raw[:0:0], data...)
	return nil
}

// unpercent sets path to what the percent-encoding says, where there is one: JSON cannot hold a path that is no UTF-8.
func unpercent(path *string, encoded string) error {
	if encoded == "" {
		return nil
	}
	raw, err := url.PathUnescape(encoded)
	if err != nil {
		return fmt.Errorf("path: %w", err)
	}
	*path = raw
	return nil
}

// MarshalJSON writes the object as it came.
func (i FileInfo) MarshalJSON() ([]byte, error) {
	if i.Raw != nil {
		return i.Raw, nil
	}
	type plain FileInfo
	return json.Marshal(struct {
		plain
		Mode string `json:"mode"`
	}{plain(i), formatMode(i.Mode)})
}

// modeOf turns Unix mode bits into Go's.
func modeOf(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			m |= flag
		}
	}
	return m
}

func formatMode(m fs.FileMode) string { return fmt.Sprintf("%04o", m.Perm()) }

func (f *Files) call(method, path string, query url.Values) *call {
	return f.callTo(f.at.content, method, path, query)
}

// actionCall is a call to what a sandbox's files have beyond content, list and archive.
func (f *Files) actionCall(method, path string, query url.Values, action string) *call {
	return f.callTo(append(slices.Clip(f.at.actions), action), method, path, query)
}

func (f *Files) callTo(route []string, method, path string, query url.Values) *call {
	if query == nil {
		query = url.Values{}
	}
	if path != "" {
		query.Set("path", path)
	}
	if f.user != "" {
		query.Set("user", f.user)
	}
	return &call{method: method, path: route, query: query}
}

// FileReader is a file being read.
type FileReader struct {
	io.ReadCloser
	Size       int64 // of what will be read; -1 when the server does not say
	ETag       string
	ModifiedAt time.Time // zero when the server does not say
}

// ReadOptions selects a part of a file; zero is all of it.
type ReadOptions struct {
	Offset, Length int64  // Length 0: to the end
	IfMatch        string // an ETag; another state is precondition_failed
}

// Read opens a file. The caller closes the reader. A body that the connection cuts short ends in io.ErrUnexpectedEOF.
func (f *Files) Read(ctx context.Context, path string, o ReadOptions) (*FileReader, error) {
	r := f.call(http.MethodGet, path, nil)
	switch {
	case o.Length > 0:
		r.set("Range", fmt.Sprintf("bytes=%d-%d", o.Offset, o.Offset+o.Length-1))
	case o.Offset > 0:
		r.set("Range", fmt.Sprintf("bytes=%d-", o.Offset))
	}
	if o.IfMatch != "" {
		r.set("If-Match", o.IfMatch)
	}
	res, err := f.c.do(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if (o.Offset > 0 || o.Length > 0) && res.StatusCode != http.StatusPartialContent {
		res.Body.Close()
		return nil, fmt.Errorf("read %s: the server ignored the range", path)
	}
	modified, _ := http.ParseTime(res.Header.Get("Last-Modified"))
	return &FileReader{ReadCloser: res.Body, Size: res.ContentLength, ETag: res.Header.Get("ETag"), ModifiedAt: modified}, nil
}

// WriteOptions says how to write a file; zero keeps the mode of what it replaces.
type WriteOptions struct {
	Mode    fs.FileMode // permission bits; 0: as it was, or the server's default
	IfMatch string      // an ETag the file must have; else precondition_failed
	Create  bool        // refuse to replace what exists: precondition_failed
	Size    int64       // of the content where it is known; 0: found out from content if that can tell, else not said
}

// Write puts content into a file, whose parents are made. Readers see the old file or the whole new one: when content fails or the
// connection breaks, nothing is written. It is repeated after a fault only where content can be read at any position, as a regular file or a bytes.Reader can.
func (f *Files) Write(ctx context.Context, path string, content io.Reader, o WriteOptions) (*FileInfo, error) {
	query := url.Values{}
	if o.Mode != 0 {
		query.Set("mode", formatMode(o.Mode))
	}
	r := f.call(http.MethodPut, path, query)
	r.set("Content-Type", "application/octet-stream")
	if o.IfMatch != "" {
		r.set("If-Match", o.IfMatch)
	}
	if o.Create {
		r.set("If-None-Match", "*")
	}
	if err := r.stream(content, o.Size); err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	info := &FileInfo{Path: path}
	if _, err := f.c.json(ctx, r, info); err != nil {
		return nil, fmt.Errorf("write %s: %w", path, err)
	}
	return info, nil
}

// stream makes content the body. What can be read at any position tells its size and can be sent again: each attempt gets a
// reader of its own, because net/http may still read the last one.
func (r *call) stream(content io.Reader, size int64) error {
	r.size = -1
	if size > 0 {
		r.size = size
	}
	at, ok := content.(interface {
		io.ReaderAt
		io.Seeker
	})
	if file, isFile := content.(*os.File); isFile {
		info, err := file.Stat()
		if err != nil {
			return err
		}
		ok = info.Mode().IsRegular()
	}
	if !ok {
		r.once = true
		r.open = func() (io.Reader, error) { return keepOpen{content}, nil }
		return nil
	}
	begin, err := at.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if size == 0 {
		end, err := at.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		if _, err := at.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		r.size = end - begin
	}
	r.open = func() (io.Reader, error) { return io.NewSectionReader(at, begin, r.size), nil }
	return nil
}

// keepOpen hides Close: net/http would close the caller's reader.
type keepOpen struct{ io.Reader }

// Stat describes a file; a symlink itself, not what it points to.
func (f *Files) Stat(ctx context.Context, path string) (*FileInfo, error) {
	if f.at.actions == nil {
		return f.listed(ctx, path)
	}
	info := new(FileInfo)
	if _, err := f.c.json(ctx, f.actionCall(http.MethodGet, path, nil, "stat"), info); err != nil {
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	return info, nil
}

// List yields what is in a directory, page by page. depth 0 or 1: its entries alone; more: so many levels.
func (f *Files) List(ctx context.Context, path string, depth int) iter.Seq2[FileInfo, error] {
	query := url.Values{}
	if depth > 0 {
		query.Set("depth", strconv.Itoa(depth))
	}
	r := f.callTo(f.at.list, http.MethodGet, path, query)
	return pages[FileInfo](ctx, f.c, r.path, r.query, "list "+path)
}

// Mkdir makes a directory; with parents also those above it, and none of them need be new.
func (f *Files) Mkdir(ctx context.Context, path string, mode fs.FileMode, parents bool) error {
	body := map[string]any{"path": path, "parents": parents}
	if mode != 0 {
		body["mode"] = formatMode(mode)
	}
	return f.act(ctx, "mkdir", path, body, nil)
}

// Move renames a file or directory. An existing target is already_exists unless overwrite.
func (f *Files) Move(ctx context.Context, from, to string, overwrite bool) error {
	return f.act(ctx, "move", from, map[string]any{"from": from, "to": to, "overwrite": overwrite}, nil)
}

// Remove removes a file or an empty directory; with recursive, all that is in it.
func (f *Files) Remove(ctx context.Context, path string, recursive bool) error {
	query := url.Values{}
	if recursive {
		query.Set("recursive", "true")
	}
	if _, err := f.c.json(ctx, f.call(http.MethodDelete, path, query), nil); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// FileHead is what a read of a file would answer, without its content.
type FileHead struct {
	Size       int64
	ETag       string
	ModifiedAt time.Time // zero when the server does not say
}

// Head answers a file's size and ETag, a symlink's target's.
func (f *Files) Head(ctx context.Context, path string) (*FileHead, error) {
	res, err := f.c.do(ctx, f.call(http.MethodHead, path, nil))
	if err != nil {
		return nil, fmt.Errorf("head %s: %w", path, err)
	}
	defer res.Body.Close()
	modified, _ := http.ParseTime(res.Header.Get("Last-Modified"))
	return &FileHead{Size: res.ContentLength, ETag: res.Header.Get("ETag"), ModifiedAt: modified}, nil
}

// ChmodOptions says what to change; zero leaves it.
type ChmodOptions struct {
	Mode      fs.FileMode // permission bits
	User      string      // the new owner
	Recursive bool        // and all below
}

// Chmod changes the mode or the owner of a file.
func (f *Files) Chmod(ctx context.Context, path string, o ChmodOptions) (*FileInfo, error) {
	body := map[string]any{"path": path}
	if o.Mode != 0 {
		body["mode"] = formatMode(o.Mode)
	}
	if o.User != "" {
		body["user"] = o.User
	}
	if o.Recursive {
		body["recursive"] = true
	}
	info := new(FileInfo)
	if err := f.act(ctx, "chmod", path, body, info); err != nil {
		return nil, err
	}
	return info, nil
}

// Compose puts up to 1000 files together into one at path and removes them: the parts of an upload that was made in pieces.
// Readers see the old file or the whole new one. Mode 0: the server's default.
func (f *Files) Compose(ctx context.Context, sources []string, path string, mode fs.FileMode) (*FileInfo, error) {
	body := map[string]any{"sources": sources, "path": path}
	if mode != 0 {
		body["mode"] = formatMode(mode)
	}
	info := new(FileInfo)
	if err := f.act(ctx, "compose", path, body, info); err != nil {
		return nil, err
	}
	return info, nil
}

// act posts to an action of the files group. out may be nil.
func (f *Files) act(ctx context.Context, action, path string, body map[string]any, out any) error {
	r, err := f.actionCall(http.MethodPost, "", nil, action).withJSON(body)
	if err != nil {
		return err
	}
	r.set("Idempotency-Key", newIdempotencyKey())
	if _, err := f.c.json(ctx, r, out); err != nil {
		return fmt.Errorf("%s %s: %w", action, path, err)
	}
	return nil
}
