package clienttest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// journal is a list that grows and that can be followed.
type journal struct {
	mu      sync.Mutex
	first   int // id of items[0]
	items   []journalItem
	ended   bool          // nothing follows
	changed chan struct{} // closed and renewed when items or ended change
}

type journalItem struct {
	name string // of the server-sent event
	doc  map[string]any
}

func newJournal() *journal { return &journal{first: 1, changed: make(chan struct{})} }

func (j *journal) add(name string, doc map[string]any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	doc["id"] = strconv.Itoa(j.first + len(j.items))
	j.items = append(j.items, journalItem{name, doc})
	j.notifyLocked()
}

func (j *journal) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	j.notifyLocked()
}

func (j *journal) notifyLocked() {
	close(j.changed)
	j.changed = make(chan struct{})
}

// after answers what came after an id; reset: something may be missing before.
func (j *journal) after(id int) (items []journalItem, reset, ended bool, changed <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	last := j.first + len(j.items) - 1
	if id > 0 && (id < j.first-1 || id > last) {
		reset, id = true, 0
	}
	return j.items[max(0, id-j.first+1):], reset, j.ended, j.changed
}

// moved records a change of status.
func (sb *sandbox) moved(from, to, reason string) {
	data := map[string]any{"from": from, "to": to}
	if reason != "" {
		data["reason"] = reason
	}
	sb.events.add("status", map[string]any{"sandbox_id": sb.doc["id"], "type": "status", "at": now(), "data": data})
	if to == "TERMINATED" || to == "FAILED" {
		sb.events.end()
		sb.logs.end()
	}
}

// Log adds a line to what was said around a sandbox.
func (s *Server) Log(sandbox, source, level, message string) {
	s.sandbox(sandbox).logs.add("log", map[string]any{"at": now(), "source": source, "level": level, "message": message})
}

// ForgetEvents drops a sandbox's oldest n events, as time does.
func (s *Server) ForgetEvents(sandbox string, n int) {
	j := s.sandbox(sandbox).events
	j.mu.Lock()
	defer j.mu.Unlock()
	j.items, j.first = j.items[n:], j.first+n
}

func (s *Server) sandbox(id string) *sandbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sandboxes[id]
}

func (s *Server) observationRoutes(mux *http.ServeMux) {
	const base = "/v1/sandboxes/{id}"
	mux.HandleFunc("GET "+base+"/metrics", s.usable(s.metrics))
	mux.HandleFunc("GET "+base+"/events", s.with(func(w http.ResponseWriter, r *http.Request, sb *sandbox) { s.journal(w, r, sb.events) }))
	mux.HandleFunc("GET "+base+"/logs", s.usable(func(w http.ResponseWriter, r *http.Request, sb *sandbox) { s.journal(w, r, sb.logs) }))
}

// metrics answers two samples, whatever is asked for.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request, _ *sandbox) {
	items := []any{}
	for i := range 2 {
		items = append(items, map[string]any{"at": time.Now().Add(time.Duration(i-2) * 5 * time.Second).UTC().Format("2006-01-02T15:04:05.000Z"),
			"cpu_cores": 0.5, "cpu_seconds": 10 + i, "memory_mb": 128, "peak_memory_mb": 256, "disk_mb": 12.5, "pids": 3,
			"network_rx_bytes": 2048, "network_tx_bytes": 1024})
	}
	answer(w, 200, map[string]any{"items": items, "interval_seconds": 5})
}

func (s *Server) journal(w http.ResponseWriter, r *http.Request, j *journal) {
	q := r.URL.Query()
	after, _ := strconv.Atoi(q.Get("after"))
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after, _ = strconv.Atoi(last)
	}
	items, reset, ended, changed := j.after(after)
	if r.Header.Get("Accept") != "text/event-stream" && q.Get("follow") != "true" {
		docs := []any{}
		for _, item := range items {
			docs = append(docs, item.doc)
		}
		answer(w, 200, map[string]any{"items": docs, "next_cursor": nil, "reset": reset})
		return
	}
	cut := make(chan struct{})
	defer s.track(sync.OnceFunc(func() { close(cut) }))()
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		if reset {
			fmt.Fprint(w, "event: reset\ndata: {}\n\n")
			after = 0
		}
		for _, item := range items {
			data, _ := json.Marshal(item.doc)
			fmt.Fprintf(w, "id: %s\nevent: %s\ndata: %s\n\n", item.doc["id"], item.name, data)
			after, _ = strconv.Atoi(item.doc["id"].(string))
		}
		if http.NewResponseController(w).Flush() != nil || ended || q.Get("follow") == "false" {
			return
		}
		select {
		case <-changed:
		case <-cut:
			panic(http.ErrAbortHandler)
		case <-r.Context().Done():
			return
		}
		items, reset, ended, changed = j.after(after)
	}
}
