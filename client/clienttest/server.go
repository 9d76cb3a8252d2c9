package clienttest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Key is the API key that a [Server] accepts.
const Key = "cay_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// Server is a running fake. Make it with [New]; its methods are safe for concurrent use.
type Server struct {
	URL string

	http *httptest.Server
	quit chan struct{} // closed by Close

	mu        sync.Mutex
	sandboxes map[string]*sandbox // guarded by mu
	order     []string            // ids by creation; guarded by mu
	replays   map[string]any      // idempotency key → *sandbox or *process; guarded by mu
	programs  map[string]Program  // guarded by mu
	requests  []Request           // guarded by mu
	refusals  []refusal           // guarded by mu
	cuts      []int               // bytes of output after which the next streams break; guarded by mu
	live      map[int]func()      // breaks each open stream; guarded by mu
	nextLive  int                 // guarded by mu
	wg        sync.WaitGroup      // programs
}

// Request is what a client asked, for tests that look at it.
type Request struct {
	Method, Path, Query string
	Header              http.Header
}

type refusal struct {
	method, path string // path is a suffix
	status       int
	reason       string
	retryAfter   int
}

type sandbox struct {
	doc       map[string]any      // guarded by Server.mu
	processes map[string]*process // guarded by Server.mu
	order     []string            // guarded by Server.mu
	files     *tree
}

// New starts a server; [Server.Close] ends it.
func New() *Server {
	s := &Server{
		quit: make(chan struct{}), sandboxes: map[string]*sandbox{}, replays: map[string]any{},
		programs: maps.Clone(builtins), live: map[int]func(){},
	}
	s.http = httptest.NewServer(s.routes())
	s.URL = s.http.URL
	return s
}

// Close breaks every stream, ends every program and waits for them.
func (s *Server) Close() {
	close(s.quit)
	s.Break()
	s.mu.Lock()
	for _, sb := range s.sandboxes {
		for _, p := range sb.processes {
			p.signal("KILL")
		}
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.http.Close()
}

// Handle makes name a program of every sandbox.
func (s *Server) Handle(name string, p Program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.programs[name] = p
}

// Refuse answers the next request of that method whose path ends in suffix with a problem. retryAfter is in seconds; 0: not said.
func (s *Server) Refuse(method, suffix string, status int, reason string, retryAfter int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = append(s.refusals, refusal{method, suffix, status, reason, retryAfter})
}

// CutAfter makes each of the next len(bytes) streams break once so many bytes of output have gone out on it.
func (s *Server) CutAfter(bytes ...int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts = append(s.cuts, bytes...)
}

// Break cuts every open stream, as a lost network would, and answers how many there were.
func (s *Server) Break() int {
	s.mu.Lock()
	live := slices.Collect(maps.Values(s.live))
	s.live = map[int]func(){}
	s.mu.Unlock()
	for _, cut := range live {
		cut()
	}
	return len(live)
}

// Requests answers every request so far, in order.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Sandboxes answers the ids of the sandboxes that have not ended, oldest first.
func (s *Server) Sandboxes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for _, id := range s.order {
		if s.sandboxes[id].active() {
			ids = append(ids, id)
		}
	}
	return ids
}

// SetStatus moves a sandbox to a status, for tests of what clients make of it.
func (s *Server) SetStatus(id, status, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxes[id].doc["status"], s.sandboxes[id].doc["status_reason"] = status, reason
}

func (sb *sandbox) status() string { return sb.doc["status"].(string) }

func (sb *sandbox) active() bool {
	return sb.status() == "CREATING" || sb.status() == "READY" || sb.status() == "PAUSED"
}

func (s *Server) track(cut func()) (untrack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nextLive
	s.nextLive++
	s.live[n] = cut
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.live, n)
	}
}

// takeCut answers after how many bytes the stream that begins now is to break; -1 never.
func (s *Server) takeCut() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cuts) == 0 {
		return -1
	}
	n := s.cuts[0]
	s.cuts = s.cuts[1:]
	return n
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { answer(w, 200, map[string]any{"status": "ready"}) })
	mux.HandleFunc("GET /v1/info", s.info)
	mux.HandleFunc("GET /v1/runtimes", func(w http.ResponseWriter, r *http.Request) { answer(w, 200, map[string]any{"items": runtimes}) })
	mux.HandleFunc("POST /v1/sandboxes", s.create)
	mux.HandleFunc("GET /v1/sandboxes", s.list)
	mux.HandleFunc("GET /v1/sandboxes/{id}", s.with(s.get))
	mux.HandleFunc("DELETE /v1/sandboxes/{id}", s.with(s.delete))
	mux.HandleFunc("PATCH /v1/sandboxes/{id}", s.with(s.update))
	mux.HandleFunc("POST /v1/sandboxes/{id}/pause", s.with(s.become("PAUSED")))
	mux.HandleFunc("POST /v1/sandboxes/{id}/resume", s.with(s.become("READY")))
	mux.HandleFunc("POST /v1/sandboxes/{id}/timeout", s.with(s.timeout))
	mux.HandleFunc("POST /v1/sandboxes/{id}/keepalive", s.with(s.get))
	s.execRoutes(mux)
	s.fileRoutes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "req_"+rand.Text())
		if ref, ok := s.note(r); ok {
			if ref.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(ref.retryAfter))
			}
			problem(w, ref.status, ref.reason, "refused for a test")
			return
		}
		if r.URL.Path != "/readyz" && r.Header.Get("Authorization") != "Bearer "+Key {
			problem(w, 401, "unauthorized", "the key is not known")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) note(r *http.Request) (refusal, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Clone()})
	for i, ref := range s.refusals {
		if ref.method == r.Method && strings.HasSuffix(r.URL.Path, ref.path) {
			s.refusals = slices.Delete(s.refusals, i, i+1)
			return ref, true
		}
	}
	return refusal{}, false
}

// with finds the sandbox of the path.
func (s *Server) with(h func(http.ResponseWriter, *http.Request, *sandbox)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		sb := s.sandboxes[r.PathValue("id")]
		s.mu.Unlock()
		if sb == nil {
			problem(w, 404, "not_found", "there is no sandbox "+r.PathValue("id"))
			return
		}
		h(w, r, sb)
	}
}

// usable is with for what needs a sandbox that runs.
func (s *Server) usable(h func(http.ResponseWriter, *http.Request, *sandbox)) http.HandlerFunc {
	return s.with(func(w http.ResponseWriter, r *http.Request, sb *sandbox) {
		s.mu.Lock()
		status := sb.status()
		s.mu.Unlock()
		switch status {
		case "READY", "PAUSED": // resumed by use
			h(w, r, sb)
		case "CREATING":
			w.Header().Set("Retry-After", "1")
			problem(w, 409, "not_ready", "the sandbox is still being created")
		default:
			problem(w, 410, "gone", "the sandbox is "+status)
		}
	})
}

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
		"workdir": "/workspace",
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
		id := newID("sbx_")
		maps.Copy(doc, map[string]any{
			"id": id, "sandbox_id": id, "status": status, "status_reason": nil, "worker_id": "wrk_test", "created_at": now(),
			"ready_at": now(), "expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339), "ended_at": nil,
			"create_ms": map[string]int{"total": 7}, "usage": map[string]int{},
		})
		sb = &sandbox{doc: doc, processes: map[string]*process{}, files: newTree()}
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
		if !matches(sb, q.Get("status"), q) {
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

func matches(sb *sandbox, statuses string, q map[string][]string) bool {
	if statuses != "" {
		want := strings.Split(statuses, ",")
		if !slices.Contains(want, sb.status()) && !(slices.Contains(want, "active") && sb.active()) {
			return false
		}
	}
	metadata, _ := sb.doc["metadata"].(map[string]any)
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
		sb.doc["status"], sb.doc["status_reason"], sb.doc["ended_at"] = "TERMINATED", "deleted", now()
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

func decode(w http.ResponseWriter, r *http.Request, into any) bool {
	if media := r.Header.Get("Content-Type"); media != "application/json" {
		problem(w, 415, "unsupported_media_type", fmt.Sprintf("the content type is %q", media))
		return false
	}
	if err := json.NewDecoder(r.Body).Decode(into); err != nil {
		problem(w, 400, "invalid_request", err.Error())
		return false
	}
	return true
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body)
}

func problem(w http.ResponseWriter, status int, reason, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{
		"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail, "reason": reason,
		"request_id": w.Header().Get("X-Request-Id"),
	})
}
