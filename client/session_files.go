package client

import (
	"context"
	"fmt"
	"io"
	"iter"
	"net/http"
	pathpkg "path"
	"strings"
)

// SessionFiles reads and writes the files of one session, with or without a sandbox that uses it. Paths are the session's own: a/b,
// /a/b and /session/a/b are the same file, which answers name as a sandbox sees it, /session/a/b.
type SessionFiles struct{ files *Files }

// sessionRoot is where a sandbox has a session's files.
const sessionRoot = "/session"

// Files are the files of a session.
func (s *Sessions) Files(id string) *SessionFiles {
	return &SessionFiles{&Files{c: s.c, at: fileRoutes{
		content: sessionPath(id, "files", "content"), list: sessionPath(id, "files"), archive: sessionPath(id, "archive"),
	}}}
}

// List yields what is in a directory as [Files.List] does; "" is all of the session.
func (f *SessionFiles) List(ctx context.Context, path string, depth int) iter.Seq2[FileInfo, error] {
	return f.files.List(ctx, inSession(path), depth)
}

// Stat describes a file, a symlink itself: as the list of the directory that it is in has it.
func (f *SessionFiles) Stat(ctx context.Context, path string) (*FileInfo, error) {
	return f.files.Stat(ctx, inSession(path))
}

// Read opens a file as [Files.Read] does.
func (f *SessionFiles) Read(ctx context.Context, path string, o ReadOptions) (*FileReader, error) {
	return f.files.Read(ctx, inSession(path), o)
}

// Head answers a file's size and ETag.
func (f *SessionFiles) Head(ctx context.Context, path string) (*FileHead, error) {
	return f.files.Head(ctx, inSession(path))
}

// Write puts content into a file as [Files.Write] does.
func (f *SessionFiles) Write(ctx context.Context, path string, content io.Reader, o WriteOptions) (*FileInfo, error) {
	return f.files.Write(ctx, inSession(path), content, o)
}

// Remove removes a file or an empty directory; with recursive, all that is in it.
func (f *SessionFiles) Remove(ctx context.Context, path string, recursive bool) error {
	return f.files.Remove(ctx, inSession(path), recursive)
}

// OpenArchive opens a directory as an archive as [Files.OpenArchive] does; "" is all of the session.
func (f *SessionFiles) OpenArchive(ctx context.Context, path string, o ArchiveOptions) (io.ReadCloser, error) {
	return f.files.OpenArchive(ctx, inSession(path), o)
}

// DownloadArchive writes a directory to w as an archive as [Files.DownloadArchive] does; "" is all of the session.
func (f *SessionFiles) DownloadArchive(ctx context.Context, path string, w io.Writer, o ArchiveOptions) (bytes int64, err error) {
	return f.files.DownloadArchive(ctx, inSession(path), w, o)
}

// UploadArchive unpacks an archive below path as [Files.UploadArchive] does; "" is all of the session.
func (f *SessionFiles) UploadArchive(ctx context.Context, path string, archive io.Reader, o ArchiveOptions) (*ArchiveReport, error) {
	return f.files.UploadArchive(ctx, inSession(path), archive, o)
}

// CopyTo copies a local file or folder to the path remote of the session as [Files.CopyTo] does.
func (f *SessionFiles) CopyTo(ctx context.Context, local, remote string, o CopyOptions) (*CopyReport, error) {
	return f.files.CopyTo(ctx, local, inSession(remote), o)
}

// CopyFrom copies the session's file or directory remote to the path local as [Files.CopyFrom] does.
func (f *SessionFiles) CopyFrom(ctx context.Context, remote, local string, o CopyOptions) (*CopyReport, error) {
	return f.files.CopyFrom(ctx, inSession(remote), local, o)
}

// inSession is a path as a sandbox sees it. What ".." leads to is for the server to say.
func inSession(path string) string {
	if path == sessionRoot || strings.HasPrefix(path, sessionRoot+"/") {
		return path
	}
	return strings.TrimSuffix(sessionRoot+"/"+strings.TrimLeft(path, "/"), "/")
}

// listed finds a file in the list of its directory: a session has no other way to ask for one.
func (f *Files) listed(ctx context.Context, path string) (*FileInfo, error) {
	path = pathpkg.Clean(path)
	dir, name := pathpkg.Split(path)
	if path == sessionRoot { // in no directory of the session
		dir, name = path, ""
	}
	for info, err := range f.List(ctx, pathpkg.Clean(dir), 1) {
		if err != nil {
			return nil, fmt.Errorf("stat %s: %w", path, err)
		}
		if name == "" {
			break // that it can be listed is all there is to know
		}
		if info.Name == name {
			return &info, nil
		}
	}
	if name == "" {
		return &FileInfo{Path: path, Name: pathpkg.Base(path), Type: "directory", Mode: 0o755}, nil
	}
	return nil, &Error{Status: http.StatusNotFound, Reason: ReasonNotFound, Detail: fmt.Sprintf("stat %s: it is not there", path)}
}
