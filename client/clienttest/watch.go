package clienttest

import (
	"encoding/json"
	"fmt"
	"net/http"
	pathpkg "path"
	"strings"
	"sync"
)

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
		below := strings.HasPrefix(c.Path, strings.TrimSuffix(w.dir, "/")+"/") && (w.recursive || pathpkg.Dir(c.Path) == w.dir)
		if !below && (c.Path != w.dir || c.Type != "remove") {
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
			if c.Path == dir { // what is watched is gone
				return
			}
		case <-watch.overflow:
			event("overflow", map[string]any{})
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		}
	}
}
