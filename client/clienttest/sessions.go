package clienttest

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// session is a tree of files that sandboxes and jobs share. Here they see all of it, where a real one has its /session alone.
type session struct {
	doc   map[string]any // guarded by Server.mu
	files *tree
	turn  chan struct{} // holds a token: the job that has it runs
}

func (ses *session) ended() bool { return ses.doc["status"] == "deleted" }

func (s *Server) sessionRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/sessions", s.createSession)
	mux.HandleFunc("GET /v1/sessions", s.listSessions)
	mux.HandleFunc("GET /v1/sessions/{id}", s.withSession(true, s.getSession))
	mux.HandleFunc("DELETE /v1/sessions/{id}", s.withSession(true, s.deleteSession))
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request, *tree){
		"GET /files": listFiles, "GET /files/content": readFile, "PUT /files/content": writeFile, "DELETE /files/content": removeFile,
		"GET /archive": s.downloadArchive, "PUT /archive": uploadArchive,
	} {
		method, suffix, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" /v1/sessions/{id}"+suffix, s.withSession(false, func(w http.ResponseWriter, r *http.Request, ses *session) {
			q := r.URL.Query()
			if path := q.Get("path"); path != "/session" && !strings.HasPrefix(path, "/session/") {
				q.Set("path", "/session/"+path)
			}
			r.URL.RawQuery = q.Encode()
			h(w, r, ses.files)
		}))
	}
}

func (s *Server) withSession(ended bool, h func(http.ResponseWriter, *http.Request, *session)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		ses := s.sessions[r.PathValue("id")]
		gone := ses != nil && ses.ended() && !ended
		s.mu.Unlock()
		switch {
		case ses == nil:
			problem(w, 404, "not_found", "there is no session "+r.PathValue("id"))
		case gone:
			problem(w, 410, "gone", "the session is deleted")
		default:
			h(w, r, ses)
		}
	}
}

// sessionForLocked finds the session that a sandbox or a job names; "" is none.
func (s *Server) sessionForLocked(id string) (*session, *fault) {
	ses := s.sessions[id]
	switch {
	case id == "":
		return nil, nil
	case ses == nil:
		return nil, &fault{422, "unprocessable", "there is no session " + id, map[string]any{"field": "session_id"}}
	case ses.ended():
		return nil, &fault{410, "gone", "the session is deleted", map[string]any{"status": "deleted", "status_reason": "deleted"}}
	}
	return ses, nil
}

// sessionTakenLocked is the conflict that one more sandbox would be; nil: it is none.
func (s *Server) sessionTakenLocked(ses *session, shared bool) *fault {
	for _, id := range s.usersLocked(ses) {
		if !shared || s.sandboxes[id].doc["session_shared"] != true {
			return &fault{409, "conflict", "the sandbox " + id + " uses the session", map[string]any{"sandbox_id": id}}
		}
	}
	return nil
}

func (s *Server) usersLocked(ses *session) []string {
	users := []string{}
	for _, id := range s.order {
		if sb := s.sandboxes[id]; sb.active() && sb.doc["session_id"] == ses.doc["id"] {
			users = append(users, id)
		}
	}
	return users
}

func (s *Server) createSession(w http.ResponseWriter, r *http.Request) {
	body := struct {
		Name       *string        `json:"name"`
		TTLSeconds float64        `json:"ttl_seconds"`
		DiskGB     float64        `json:"disk_gb"`
		Metadata   map[string]any `json:"metadata"`
	}{TTLSeconds: 604800, DiskGB: 2, Metadata: map[string]any{}}
	if !decode(w, r, &body) {
		return
	}
	key := "session " + r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	defer s.mu.Unlock()
	ses, again := s.replays[key].(*session)
	if !again {
		for id, other := range s.sessions {
			if name := other.doc["name"]; body.Name != nil && name == *body.Name && !other.ended() {
				(&fault{409, "already_exists", "the session " + id + " has the name", map[string]any{"session_id": id}}).answer(w)
				return
			}
		}
		id := newID("ses_")
		ses = &session{files: newTree(), turn: make(chan struct{}, 1)}
		ses.doc = map[string]any{"id": id, "name": nil, "status": "active", "status_reason": nil, "volume": "ses-" + strings.TrimPrefix(id, "ses_"),
			"disk_gb": body.DiskGB, "ttl_seconds": body.TTLSeconds, "worker_id": nil, "created_at": now(), "last_used_at": now(),
			"expires_at": time.Now().Add(time.Duration(body.TTLSeconds * float64(time.Second))).UTC().Format(time.RFC3339),
			"ended_at":   nil, "metadata": body.Metadata}
		if body.Name != nil {
			ses.doc["name"] = *body.Name
		}
		ses.turn <- struct{}{}
		ses.files.entries["/session"] = &Entry{Type: "directory", Mode: "0755"}
		s.sessions[id], s.sessionIDs, s.replays[key] = ses, append(s.sessionIDs, id), ses
	}
	answer(w, 201, s.sessionDocLocked(ses))
}

func (s *Server) sessionDocLocked(ses *session) map[string]any {
	ses.doc["used_by"] = s.usersLocked(ses)
	return ses.doc
}

func (s *Server) getSession(w http.ResponseWriter, r *http.Request, ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer(w, 200, s.sessionDocLocked(ses))
}

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := r.URL.Query()
	items := []any{}
	for _, id := range slices.Backward(s.sessionIDs) {
		ses := s.sessions[id]
		if q.Get("status") == "" && ses.ended() || !matches(ses.doc, !ses.ended(), q) || q.Has("name") && ses.doc["name"] != q.Get("name") {
			continue
		}
		items = append(items, s.sessionDocLocked(ses))
	}
	answer(w, 200, onePage(q, items))
}

func (s *Server) deleteSession(w http.ResponseWriter, r *http.Request, ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	users := s.usersLocked(ses)
	if len(users) > 0 && r.URL.Query().Get("force") != "true" {
		(&fault{409, "conflict", "the sandbox " + users[0] + " uses the session", map[string]any{"sandbox_id": users[0]}}).answer(w)
		return
	}
	for _, id := range users {
		sb := s.sandboxes[id]
		sb.doc["status"], sb.doc["status_reason"] = "TERMINATED", "deleted"
		for _, p := range sb.processes {
			p.signal("KILL")
		}
	}
	if !ses.ended() {
		ses.doc["status"], ses.doc["status_reason"], ses.doc["ended_at"] = "deleted", "deleted", now()
	}
	w.WriteHeader(204)
}

// SessionEntry answers what is at path, below /session, among a session's files.
func (s *Server) SessionEntry(id, path string) (Entry, bool) {
	s.mu.Lock()
	t := s.sessions[id].files
	s.mu.Unlock()
	return t.entry(path)
}
