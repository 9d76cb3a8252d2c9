package clienttest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// port is a port that has an address outside.
type port struct {
	number    int
	public    bool
	token     string
	createdAt string
}

func (p *port) doc(sandbox string) map[string]any {
	doc := map[string]any{"port": p.number, "public": p.public, "token": p.token, "created_at": p.createdAt,
		"url": fmt.Sprintf("http://%d-%s.localhost:8080/", p.number, strings.TrimPrefix(sandbox, "sbx_"))}
	if p.public {
		doc["token"] = nil
	}
	return doc
}

// Serve makes h the server that listens on a port inside of every sandbox.
func (s *Server) Serve(port int, h http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers[port] = h
}

func (s *Server) portRoutes(mux *http.ServeMux) {
	const base = "/v1/sandboxes/{id}/ports"
	mux.HandleFunc("POST "+base, s.usable(s.exposePort))
	mux.HandleFunc("GET "+base, s.usable(s.listPorts))
	mux.HandleFunc("DELETE "+base+"/{port}", s.usable(s.closePort))
	mux.HandleFunc(base+"/{port}/{rest...}", s.usable(s.throughPort))
}

func (s *Server) exposePort(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var body struct {
		Port   int
		Public bool
	}
	if !decode(w, r, &body) {
		return
	}
	if body.Port < 1 || body.Port > 65535 {
		problem(w, 400, "invalid_request", "port must be from 1 to 65535")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range sb.ports {
		if p.number == body.Port {
			p.public = body.Public
			answer(w, 200, p.doc(r.PathValue("id")))
			return
		}
	}
	p := &port{number: body.Port, public: body.Public, token: newID(""), createdAt: now()}
	sb.ports = append(sb.ports, p)
	answer(w, 201, p.doc(r.PathValue("id")))
}

func (s *Server) listPorts(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	for _, p := range sb.ports {
		items = append(items, p.doc(r.PathValue("id")))
	}
	answer(w, 200, map[string]any{"items": items, "next_cursor": nil})
}

func (s *Server) closePort(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(sb.ports)
	sb.ports = slices.DeleteFunc(sb.ports, func(p *port) bool { return strconv.Itoa(p.number) == r.PathValue("port") })
	if len(sb.ports) == n {
		problem(w, 404, "not_found", "the port "+r.PathValue("port")+" is not exposed")
		return
	}
	w.WriteHeader(204)
}

// throughPort is the path form: what the platform's callers prove themselves with stays outside.
func (s *Server) throughPort(w http.ResponseWriter, r *http.Request, _ *sandbox) {
	number, _ := strconv.Atoi(r.PathValue("port"))
	s.mu.Lock()
	h := s.servers[number]
	s.mu.Unlock()
	if h == nil {
		w.Header().Set("Retry-After", "1")
		problem(w, 503, "unavailable", fmt.Sprintf("nothing listens on port %d of the sandbox", number))
		return
	}
	in := r.Clone(r.Context())
	for _, name := range []string{"Authorization", "X-API-Key", "Cay-Port-Token", "Cookie"} {
		in.Header.Del(name)
	}
	in.URL.Path, in.URL.RawPath, in.Host = "/"+r.PathValue("rest"), "", "localhost:"+r.PathValue("port")
	w.Header().Set("Content-Security-Policy", "sandbox")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	h.ServeHTTP(w, in)
}
