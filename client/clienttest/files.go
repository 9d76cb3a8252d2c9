package clienttest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	pathpkg "path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Entry is a file of a sandbox. Its Name need not be that of its path: a hostile sandbox may answer anything.
type Entry struct {
	Type    string // file, directory, symlink, fifo
	Mode    string
	Content []byte
	Target  string
	Name    string // overrides the name that lists answer
}

type tree struct {
	mu       sync.Mutex
	entries  map[string]*Entry // by clean absolute path; guarded by mu
	watchers map[*watcher]bool // guarded by mu
}

func newTree() *tree {
	t := &tree{entries: map[string]*Entry{}, watchers: map[*watcher]bool{}}
	for _, dir := range []string{"/", "/workspace", "/output", "/tmp"} {
		t.entries[dir] = &Entry{Type: "directory", Mode: "0755"}
	}
	return t
}

// Put puts an entry into a sandbox as a program inside might.
func (s *Server) Put(sandbox, path string, e Entry) {
	s.tree(sandbox).write(path, &e)
}

// write puts an entry in its place and tells those who watch.
func (t *tree) write(path string, e *Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writeLocked(path, e)
}

func (t *tree) writeLocked(path string, e *Entry) {
	t.parents(path)
	what := "create"
	if t.entries[path] != nil {
		what = "write"
	}
	t.entries[path] = e
	t.tellLocked(change{Type: what, Path: path})
}

// Entry answers what is at path in a sandbox.
func (s *Server) Entry(sandbox, path string) (Entry, bool) {
	return s.tree(sandbox).entry(path)
}

func (t *tree) entry(path string) (Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[path]; e != nil {
		return *e, true
	}
	return Entry{}, false
}

func (s *Server) tree(sandbox string) *tree {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sandboxes[sandbox].files
}

func (s *Server) fileRoutes(mux *http.ServeMux) {
	const base = "/v1/sandboxes/{id}/files"
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request, *tree){
		"GET " + base: readFile, "PUT " + base: writeFile, "DELETE " + base: removeFile,
		"GET " + base + "/stat": statFile, "GET " + base + "/list": listFiles,
		"POST " + base + "/mkdir": makeDir, "POST " + base + "/move": moveFile,
		"POST " + base + "/chmod": chmodFile, "POST " + base + "/compose": composeFile,
		"GET " + base + "/search": searchFiles, "GET " + base + "/watch": s.watchFiles,
	} {
		mux.HandleFunc(pattern, s.usable(func(w http.ResponseWriter, r *http.Request, sb *sandbox) { h(w, r, sb.files) }))
	}
	mux.HandleFunc("POST "+base+"/sign", s.usable(s.signFile))
}

func (t *tree) info(path string) map[string]any {
	e := t.entries[path]
	name := e.Name
	if name == "" {
		name = pathpkg.Base(path)
	}
	return map[string]any{"path": path, "name": name, "type": e.Type, "size": len(e.Content), "mode": e.Mode, "uid": 2000, "gid": 2000,
		"user": "sandbox", "modified_at": now(), "target": e.Target}
}

func (t *tree) get(w http.ResponseWriter, path string) *Entry {
	e := t.entries[pathpkg.Clean(path)]
	if e == nil {
		problem(w, 404, "not_found", path+" is not there")
	}
	return e
}

func readFile(w http.ResponseWriter, r *http.Request, t *tree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.get(w, r.URL.Query().Get("path"))
	if e == nil {
		return
	}
	if e.Type != "file" {
		problem(w, 422, "unprocessable", "it is a "+e.Type)
		return
	}
	sum := sha256.Sum256(e.Content)
	w.Header().Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(e.Content))
}

func writeFile(w http.ResponseWriter, r *http.Request, t *tree) {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		problem(w, 400, "invalid_request", "the body is short")
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	path := pathpkg.Clean(r.URL.Query().Get("path"))
	mode := r.URL.Query().Get("mode")
	old := t.entries[path]
	switch {
	case old != nil && r.Header.Get("If-None-Match") == "*":
		problem(w, 412, "precondition_failed", path+" exists")
		return
	case old != nil && old.Type == "directory":
		problem(w, 422, "unprocessable", path+" is a directory")
		return
	case mode == "" && old != nil:
		mode = old.Mode
	case mode == "":
		mode = "0644"
	}
	if limit, err := strconv.Atoi(r.URL.Query().Get("max_bytes")); err == nil && len(content) > limit {
		problem(w, 413, "payload_too_large", fmt.Sprintf("it may have %d bytes", limit))
		return
	}
	t.writeLocked(path, &Entry{Type: "file", Mode: mode, Content: content})
	answer(w, 201, t.info(path))
}

func (t *tree) parents(path string) {
	for dir := pathpkg.Dir(path); t.entries[dir] == nil; dir = pathpkg.Dir(dir) {
		t.entries[dir] = &Entry{Type: "directory", Mode: "0755"}
	}
}

func removeFile(w http.ResponseWriter, r *http.Request, t *tree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	path := pathpkg.Clean(r.URL.Query().Get("path"))
	if t.get(w, path) == nil {
		return
	}
	for other := range t.entries {
		if strings.HasPrefix(other, path+"/") {
			if r.URL.Query().Get("recursive") != "true" {
				problem(w, 409, "conflict", path+" is not empty")
				return
			}
			delete(t.entries, other)
		}
	}
	delete(t.entries, path)
	t.tellLocked(change{Type: "remove", Path: path})
	w.WriteHeader(204)
}

func statFile(w http.ResponseWriter, r *http.Request, t *tree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	path := r.URL.Query().Get("path")
	if t.get(w, path) != nil {
		answer(w, 200, t.info(pathpkg.Clean(path)))
	}
}

// listFiles answers pages of at most two entries, so that clients must page.
func listFiles(w http.ResponseWriter, r *http.Request, t *tree) {
	t.mu.Lock()
	defer t.mu.Unlock()
	dir := pathpkg.Clean(r.URL.Query().Get("path"))
	e := t.get(w, dir)
	if e == nil {
		return
	}
	if e.Type != "directory" {
		problem(w, 422, "unprocessable", "it is a "+e.Type)
		return
	}
	var names []string
	for _, path := range slices.Sorted(maps.Keys(t.entries)) {
		if path != "/" && pathpkg.Dir(path) == dir {
			names = append(names, path)
		}
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	to := min(len(names), from+2)
	items := []any{}
	for _, path := range names[from:to] {
		items = append(items, t.info(path))
	}
	next := ""
	if to < len(names) {
		next = fmt.Sprint(to)
	}
	answer(w, 200, map[string]any{"items": items, "next_cursor": next})
}

func makeDir(w http.ResponseWriter, r *http.Request, t *tree) {
	var body struct {
		Path, Mode string
		Parents    bool
	}
	if !decode(w, r, &body) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.entries[body.Path] != nil {
		if !body.Parents {
			problem(w, 409, "already_exists", body.Path+" exists")
			return
		}
	} else {
		t.writeLocked(body.Path, &Entry{Type: "directory", Mode: body.Mode})
	}
	answer(w, 201, t.info(body.Path))
}

func moveFile(w http.ResponseWriter, r *http.Request, t *tree) {
	var body struct {
		From, To  string
		Overwrite bool
	}
	if !decode(w, r, &body) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.get(w, body.From)
	if e == nil {
		return
	}
	if t.entries[body.To] != nil && !body.Overwrite {
		problem(w, 409, "already_exists", body.To+" exists")
		return
	}
	t.entries[body.To] = e
	delete(t.entries, body.From)
	t.tellLocked(change{Type: "rename", Path: body.From, To: body.To})
	answer(w, 200, t.info(body.To))
}

func chmodFile(w http.ResponseWriter, r *http.Request, t *tree) {
	var body struct {
		Path, Mode, User string
		Recursive        bool
	}
	if !decode(w, r, &body) {
		return
	}
	if body.Mode == "" && body.User == "" {
		problem(w, 400, "invalid_request", "give mode or user")
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	path := pathpkg.Clean(body.Path)
	if t.get(w, path) == nil {
		return
	}
	for other, e := range t.entries {
		if body.Mode != "" && (other == path || body.Recursive && strings.HasPrefix(other, path+"/")) {
			e.Mode = body.Mode
			t.tellLocked(change{Type: "chmod", Path: other})
		}
	}
	answer(w, 200, t.info(path))
}

func composeFile(w http.ResponseWriter, r *http.Request, t *tree) {
	var body struct {
		Sources    []string
		Path, Mode string
	}
	if !decode(w, r, &body) {
		return
	}
	if len(body.Sources) == 0 || len(body.Sources) > 1000 {
		problem(w, 400, "invalid_request", "sources must be 1 to 1000 paths")
		return
	}
	if body.Mode == "" {
		body.Mode = "0644"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var content []byte
	for _, source := range body.Sources {
		e := t.get(w, source)
		if e == nil {
			return
		}
		content = append(content, e.Content...)
	}
	for _, source := range body.Sources {
		delete(t.entries, pathpkg.Clean(source))
	}
	t.writeLocked(pathpkg.Clean(body.Path), &Entry{Type: "file", Mode: body.Mode, Content: content})
	answer(w, 200, t.info(pathpkg.Clean(body.Path)))
}

// signFile answers a URL that works, and whose signature nobody checks.
func (s *Server) signFile(w http.ResponseWriter, r *http.Request, _ *sandbox) {
	body := struct {
		Method, Path, User string
		TTLSeconds         float64 `json:"ttl_seconds"`
		MaxBytes           int64   `json:"max_bytes"`
	}{TTLSeconds: 3600}
	if !decode(w, r, &body) {
		return
	}
	if body.TTLSeconds < 1 || body.TTLSeconds > 604800 {
		problem(w, 400, "invalid_request", "ttl_seconds must be from 1 to 604800")
		return
	}
	expires := time.Now().Add(time.Duration(body.TTLSeconds * float64(time.Second)))
	q := url.Values{"path": {body.Path}, "key": {"key_test"}, "expires": {fmt.Sprint(expires.Unix())}, "signature": {"test"}}
	doc := map[string]any{"method": body.Method, "path": body.Path, "expires_at": expires.UTC().Format(time.RFC3339), "max_bytes": nil}
	if body.User != "" {
		q.Set("user", body.User)
	}
	if body.MaxBytes > 0 {
		q.Set("max_bytes", fmt.Sprint(body.MaxBytes))
		doc["max_bytes"] = body.MaxBytes
	}
	doc["url"] = s.URL + "/v1/sandboxes/" + r.PathValue("id") + "/files?" + q.Encode()
	answer(w, 200, doc)
}
