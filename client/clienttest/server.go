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
)

// Key is the API key that a [Server] accepts.
const Key = "cay_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// Server is a running fake. Make it with [New]; its methods are safe for concurrent use.
type Server struct {
	URL string

	http *httptest.Server
	quit chan struct{} // closed by Close

	mu          sync.Mutex
	sandboxes   map[string]*sandbox  // guarded by mu
	order       []string             // ids by creation; guarded by mu
	replays     map[string]any       // idempotency key → *sandbox or *process; guarded by mu
	archive     []byte               // of the next download; nil: the true one; guarded by mu
	programs    map[string]Program   // guarded by mu
	requests    []Request            // guarded by mu
	refusals    []refusal            // guarded by mu
	past        past                 // guarded by mu, but for its events
	cuts        []int                // bytes of output after which the next streams break; guarded by mu
	outcomeCuts int                  // streams of code still to break before their result; guarded by mu
	languages   map[string]Language  // guarded by mu
	servers     map[int]http.Handler // inside of every sandbox, by port; guarded by mu
	jobs        map[string]*job      // guarded by mu
	jobOrder    []string             // guarded by mu
	held        chan struct{}        // keeps new jobs queued until it is closed; nil: they start; guarded by mu
	sessions    map[string]*session  // guarded by mu
	sessionIDs  []string             // by creation; guarded by mu
	live        map[int]func()       // breaks each open stream; guarded by mu
	nextLive    int                  // guarded by mu
	wg          sync.WaitGroup       // programs
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
	contexts  []*codeContext // guarded by Server.mu
	ports     []*port        // guarded by Server.mu
	events    *journal
	logs      *journal
}

// New starts a server; [Server.Close] ends it.
func New() *Server {
	s := &Server{
		quit: make(chan struct{}), sandboxes: map[string]*sandbox{}, replays: map[string]any{},
		programs: maps.Clone(builtins), live: map[int]func(){}, languages: map[string]Language{"python": sums, "bash": sums},
		servers: map[int]http.Handler{}, jobs: map[string]*job{}, sessions: map[string]*session{}, past: past{events: newJournal()},
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
		if sb := s.sandboxes[id]; sb.active() && sb.doc["managed_by"] == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// SetStatus moves a sandbox to a status, for tests of what clients make of it.
func (s *Server) SetStatus(id, status, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := s.sandboxes[id]
	sb.moved(sb.status(), status, reason)
	sb.doc["status"], sb.doc["status_reason"] = status, reason
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
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { answer(w, 200, map[string]any{"status": "ok"}) })
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
	mux.HandleFunc("GET /v1/sandboxes/{id}/network", s.with(s.network))
	mux.HandleFunc("PUT /v1/sandboxes/{id}/network", s.with(s.setNetwork))
	s.execRoutes(mux)
	s.processRoutes(mux)
	s.contextRoutes(mux)
	s.fileRoutes(mux)
	s.archiveRoutes(mux)
	s.portRoutes(mux)
	s.observationRoutes(mux)
	s.jobRoutes(mux)
	s.sessionRoutes(mux)
	s.historyRoutes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", "req_"+rand.Text())
		if ref, ok := s.note(r); ok {
			if ref.retryAfter > 0 {
				w.Header().Set("Retry-After", strconv.Itoa(ref.retryAfter))
			}
			problem(w, ref.status, ref.reason, "refused for a test")
			return
		}
		if !open(r) && r.Header.Get("Authorization") != "Bearer "+Key {
			problem(w, 401, "unauthorized", "the key is not known")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// open reports whether a request needs no key.
func open(r *http.Request) bool {
	return r.URL.Path == "/readyz" || r.URL.Path == "/healthz" || r.URL.Path == "/openapi.json" || r.URL.Query().Has("signature")
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
	(&fault{status, reason, detail, nil}).answer(w)
}

// fault is why a request is refused; more are further members of the problem.
type fault struct {
	status         int
	reason, detail string
	more           map[string]any
}

func (f *fault) answer(w http.ResponseWriter) {
	doc := map[string]any{
		"type": "about:blank", "title": http.StatusText(f.status), "status": f.status, "detail": f.detail, "reason": f.reason,
		"request_id": w.Header().Get("X-Request-Id"),
	}
	maps.Copy(doc, f.more)
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(f.status)
	json.NewEncoder(w).Encode(doc)
}
