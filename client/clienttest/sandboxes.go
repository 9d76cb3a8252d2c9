package clienttest

import (
	"crypto/rand"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

var runtimes = []map[string]any{{"name": "python", "version": "3.12.1", "image": "host", "exec": []string{"python3"}}}

func (s *Server) info(w http.ResponseWriter, r *http.Request) {
	answer(w, 200, map[string]any{
		"version": "v0.0.0-test", "isolation": "none", "enforced": []string{"memory_mb"}, "features": []string{"exec"},
		"limits": map[string]any{"max_cpu": 4}, "runtimes": runtimes,
	})
}

func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()) }

func now() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000Z") }

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	doc := map[string]any{
		"image": "host", "cpu": 1, "memory_mb": 512, "disk_gb": 2, "pids": 256, "ttl_seconds": 3600, "on_timeout": "terminate",
		"auto_resume": true, "network": []string{}, "env": map[string]any{}, "metadata": map[string]any{}, "user": "sandbox",
		"workdir": "/workspace", "session_id": nil, "session_shared": false, "managed_by": nil,
	}
	if !decode(w, r, &doc) {
		return
	}
	status := "READY"
	if r.URL.Query().Get("wait_seconds") == "0" {
		status = "CREATING"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := "create " + r.Header.Get("Idempotency-Key")
	sb, again := s.replays[key].(*sandbox)
	if !again {
		files := newTree()
		if id, ok := doc["session_id"].(string); ok {
			ses, refused := s.sessionForLocked(id)
			if refused == nil {
				refused = s.sessionTakenLocked(ses, doc["session_shared"] == true)
			}
			if refused != nil {
				refused.answer(w)
				return
			}
			files = ses.files
		}
		id := newID("sbx_")
		maps.Copy(doc, map[string]any{
			"id": id, "sandbox_id": id, "status": status, "status_reason": nil, "worker_id": "wrk_test", "created_at": now(),
			"ready_at": now(), "expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "ended_at": nil,
			"create_ms": map[string]int{"total": 7}, "usage": map[string]int{},
		})
		sb = &sandbox{doc: doc, processes: map[string]*process{}, files: files, events: newJournal(), logs: newJournal()}
		sb.logs.add("log", map[string]any{"at": now(), "source": "boot", "level": "info", "message": "the sandbox is up"})
		sb.moved("CREATING", "READY", "")
		s.sandboxes[id], s.order, s.replays[key] = sb, append(s.order, id), sb
	}
	if sb.status() == "CREATING" {
		answer(w, 202, sb.doc)
		sb.doc["status"] = "READY" // by the time anyone looks
		return
	}
	answer(w, 201, sb.doc)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("limit"))
	if limit == 0 {
		limit = 50
	}
	var items []any
	next := ""
	passed := q.Get("cursor") == ""
	for _, id := range slices.Backward(s.order) {
		sb := s.sandboxes[id]
		if !passed {
			passed = id == q.Get("cursor")
			continue
		}
		if !matches(sb.doc, sb.active(), q) || sb.doc["managed_by"] != nil && q.Get("managed") != "true" ||
			q.Has("session_id") && q.Get("session_id") != sb.doc["session_id"] {
			continue
		}
		if len(items) == limit {
			next = items[limit-1].(map[string]any)["id"].(string)
			break
		}
		items = append(items, sb.doc)
	}
	answer(w, 200, map[string]any{"items": items, "next_cursor": next})
}

// matches reports whether a thing is among those that a list asks for by status and metadata.
func matches(doc map[string]any, active bool, q url.Values) bool {
	if statuses := q.Get("status"); statuses != "" {
		want := strings.Split(statuses, ",")
		if !slices.Contains(want, doc["status"].(string)) && !(slices.Contains(want, "active") && active) {
			return false
		}
	}
	metadata, _ := doc["metadata"].(map[string]any)
	for k, v := range q {
		if name, ok := strings.CutPrefix(k, "metadata."); ok && metadata[name] != v[0] {
			return false
		}
	}
	return true
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer(w, 200, sb.doc)
}

func (s *Server) delete(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb.active() {
		sb.moved(sb.status(), "TERMINATED", "deleted")
		sb.doc["status"], sb.doc["status_reason"], sb.doc["ended_at"] = "TERMINATED", "deleted", now()
		sb.ports = nil
	}
	for _, p := range sb.processes {
		p.signal("KILL")
	}
	w.WriteHeader(204)
}

func (s *Server) update(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var change map[string]any
	if !decode(w, r, &change) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(sb.doc, change)
	answer(w, 200, sb.doc)
}

func (s *Server) become(status string) func(http.ResponseWriter, *http.Request, *sandbox) {
	return func(w http.ResponseWriter, r *http.Request, sb *sandbox) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !sb.active() {
			problem(w, 410, "gone", "the sandbox is "+sb.status())
			return
		}
		if sb.status() != status {
			sb.moved(sb.status(), status, "")
		}
		sb.doc["status"] = status
		answer(w, 200, sb.doc)
	}
}

func (s *Server) timeout(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var body struct {
		TTLSeconds float64 `json:"ttl_seconds"`
	}
	if !decode(w, r, &body) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	end := time.Now().Add(time.Duration(body.TTLSeconds * float64(time.Second)))
	sb.doc["expires_at"] = end.UTC().Format(time.RFC3339)
	answer(w, 200, sb.doc)
}

func (s *Server) network(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer(w, 200, map[string]any{"allow": sb.doc["network"], "deny": []string{}})
}

func (s *Server) setNetwork(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var rules struct{ Allow, Deny []string }
	if !decode(w, r, &rules) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb.doc["network"] = rules.Allow
	answer(w, 200, map[string]any{"allow": rules.Allow, "deny": append([]string{}, rules.Deny...)})
}
