package clienttest

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	pathpkg "path"
	"slices"
	"strconv"
	"strings"
)

func (s *Server) archiveRoutes(mux *http.ServeMux) {
	const path = "/v1/sandboxes/{id}/archive"
	mux.HandleFunc("GET "+path, s.usable(func(w http.ResponseWriter, r *http.Request, sb *sandbox) { s.downloadArchive(w, r, sb.files) }))
	mux.HandleFunc("PUT "+path, s.usable(func(w http.ResponseWriter, r *http.Request, sb *sandbox) { uploadArchive(w, r, sb.files) }))
}

// SendArchive makes the next download of an archive these bytes, as a hostile sandbox might.
func (s *Server) SendArchive(raw []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.archive = raw
}

func (s *Server) takeArchive() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw := s.archive
	s.archive = nil
	return raw
}

// downloadArchive sends tar or tar.gz; this server has no zstd.
func (s *Server) downloadArchive(w http.ResponseWriter, r *http.Request, t *tree) {
	if raw := s.takeArchive(); raw != nil {
		w.Write(raw)
		return
	}
	q := r.URL.Query()
	dir := pathpkg.Clean(q.Get("path"))
	t.mu.Lock()
	top := t.get(w, dir)
	var names []string
	entries := map[string]Entry{}
	if top != nil {
		for _, path := range slices.Sorted(maps.Keys(t.entries)) {
			if name, ok := strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/"); ok && name != "" {
				names = append(names, name)
				entries[name] = *t.entries[path]
			}
		}
	}
	t.mu.Unlock()
	if top == nil {
		return
	}
	var out io.Writer = w
	w.Header().Set("Content-Disposition", "attachment")
	if left := s.takeCut(); left >= 0 {
		out = &cutWriter{w: w, left: left}
	}
	switch q.Get("format") {
	case "tar":
		w.Header().Set("Content-Type", "application/x-tar")
	case "", "tar.gz":
		w.Header().Set("Content-Type", "application/gzip")
		z := gzip.NewWriter(out)
		defer z.Close()
		out = z
	default:
		problem(w, 400, "invalid_request", "format must be tar or tar.gz")
		return
	}
	tw := tar.NewWriter(out)
	defer tw.Close()
	for _, name := range names {
		e := entries[name]
		if e.Name != "" {
			name = pathpkg.Join(pathpkg.Dir(name)) + "/" + e.Name
		}
		header := e.header(name)
		if header == nil {
			continue
		}
		if tw.WriteHeader(header) != nil {
			return
		}
		if _, err := tw.Write(e.Content); err != nil {
			return
		}
	}
}

func (e Entry) header(name string) *tar.Header {
	mode, _ := strconv.ParseInt(e.Mode, 8, 64)
	h := &tar.Header{Name: name, Mode: mode, Uid: 2000, Gid: 2000, Uname: "sandbox", Format: tar.FormatPAX}
	switch e.Type {
	case "file":
		h.Typeflag, h.Size = tar.TypeReg, int64(len(e.Content))
	case "directory":
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case "symlink":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Target
	case "hardlink":
		h.Typeflag, h.Linkname = tar.TypeLink, e.Target
	default:
		h.Typeflag = tar.TypeFifo
	}
	return h
}

// cutWriter breaks the connection after so many bytes.
type cutWriter struct {
	w    http.ResponseWriter
	left int
}

func (c *cutWriter) Write(p []byte) (int, error) {
	n, _ := c.w.Write(p[:min(len(p), c.left)])
	if c.left -= n; c.left == 0 {
		http.NewResponseController(c.w).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, nil
}

// uploadArchive takes tar and tar.gz, and writes nothing of an archive with an entry that leaves the path.
func uploadArchive(w http.ResponseWriter, r *http.Request, t *tree) {
	dir := pathpkg.Clean(r.URL.Query().Get("path"))
	written := map[string]*Entry{}
	report := map[string]int{"files": 0, "directories": 0, "bytes": 0, "skipped": 0}
	body := bufio.NewReader(r.Body)
	var in io.Reader = body
	if magic, _ := body.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(body)
		if err != nil {
			problem(w, 422, "unprocessable", "it is no gzip")
			return
		}
		in = z
	}
	for tr := tar.NewReader(in); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			problem(w, 422, "unprocessable", "it is no archive: "+err.Error())
			return
		}
		path := pathpkg.Join(dir, h.Name)
		if pathpkg.IsAbs(h.Name) || path != dir && !strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") {
			problem(w, 422, "unprocessable", fmt.Sprintf("the entry %q leaves the path", h.Name))
			return
		}
		e := &Entry{Mode: fmt.Sprintf("%04o", h.Mode&0o777)}
		switch h.Typeflag {
		case tar.TypeReg:
			e.Type = "file"
			if e.Content, err = io.ReadAll(tr); err != nil {
				problem(w, 400, "invalid_request", "the body is short")
				return
			}
			report["files"]++
			report["bytes"] += len(e.Content)
		case tar.TypeDir:
			e.Type = "directory"
			report["directories"]++
		case tar.TypeSymlink:
			e.Type, e.Target = "symlink", h.Linkname
			report["files"]++
		default:
			report["skipped"]++
			continue
		}
		written[path] = e
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		problem(w, 400, "invalid_request", "the body is short")
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries[dir] == nil {
		t.writeLocked(dir, &Entry{Type: "directory", Mode: "0755"})
	}
	for _, path := range slices.Sorted(maps.Keys(written)) {
		t.writeLocked(path, written[path])
	}
	answer(w, 200, report)
}
