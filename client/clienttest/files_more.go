package clienttest

import (
	"bytes"
	"encoding/json"
	"fmt"
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

// searchFiles answers pages of at most two, so that clients must page. A pattern of "everything" gives up half way.
func searchFiles(w http.ResponseWriter, r *http.Request, t *tree) {
	q := r.URL.Query()
	dir, pattern, contains := pathpkg.Clean(q.Get("path")), q.Get("pattern"), q.Get("contains")
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.get(w, dir) == nil {
		return
	}
	truncated := pattern == "everything"
	found := []map[string]any{}
	for _, path := range slices.Sorted(maps.Keys(t.entries)) {
		e := t.entries[path]
		fits, _ := pathpkg.Match(pattern, pathpkg.Base(path))
		if !strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") || pattern != "" && !fits && !truncated {
			continue
		}
		info := t.info(path)
		if contains != "" {
			lines := linesWith(e.Content, contains)
			if len(lines) == 0 {
				continue
			}
			info["lines"] = lines
		}
		found = append(found, info)
	}
	from, _ := strconv.Atoi(q.Get("cursor"))
	to := min(len(found), from+2)
	var next any
	if to < len(found) {
		next = fmt.Sprint(to)
	}
	answer(w, 200, map[string]any{"items": found[from:to], "next_cursor": next, "truncated": truncated})
}

func linesWith(content []byte, text string) []map[string]any {
	var out []map[string]any
	for i, line := range bytes.Split(content, []byte("\n")) {
		if bytes.Contains(line, []byte(text)) {
			out = append(out, map[string]any{"number": i + 1, "text": string(line)})
		}
	}
	return out
}

// change is what happened to a file.
type change struct {
	Type string `json:"type"`
	Path string `json:"path"`
	To   string `json:"to,omitempty"`
}

// watcher is one stream of changes below a directory.
type watcher struct {
	dir       string
	recursive bool
	changes   chan change
	overflow  chan struct{} // holds one once changes was full
}

func (t *tree) tellLocked(c change) {
	for w := range t.watchers {
		if !strings.HasPrefix(c.Path, strings.TrimSuffix(w.dir, "/")+"/") || !w.recursive && pathpkg.Dir(c.Path) != w.dir {
			continue
		}
		select {
		case w.changes <- c:
		default:
			w.lose()
		}
	}
}

func (w *watcher) lose() {
	select {
	case w.overflow <- struct{}{}:
	default:
	}
}

// Overflow makes every watch of a sandbox's files lose events.
func (s *Server) Overflow(sandbox string) {
	t := s.tree(sandbox)
	t.mu.Lock()
	defer t.mu.Unlock()
	for w := range t.watchers {
		w.lose()
	}
}

func (s *Server) watchFiles(w http.ResponseWriter, r *http.Request, t *tree) {
	dir := pathpkg.Clean(r.URL.Query().Get("path"))
	watch := &watcher{dir: dir, recursive: r.URL.Query().Get("recursive") == "true", changes: make(chan change, 256), overflow: make(chan struct{}, 1)}
	t.mu.Lock()
	found := t.get(w, dir)
	if found != nil {
		t.watchers[watch] = true
	}
	t.mu.Unlock()
	if found == nil {
		return
	}
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watchers, watch)
	}()
	cut := make(chan struct{})
	defer s.track(sync.OnceFunc(func() { close(cut) }))()
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(name string, doc any) {
		data, _ := json.Marshal(doc)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, data)
		http.NewResponseController(w).Flush()
	}
	event("ready", map[string]any{"path": dir})
	for {
		select {
		case c := <-watch.changes:
			event("change", c)
		case <-watch.overflow:
			event("overflow", map[string]any{})
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		}
	}
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
