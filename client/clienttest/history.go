package clienttest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// past is what is over, as a test says.
type past struct {
	records []map[string]any // newest first
	usage   []map[string]any
	audit   []map[string]any // newest first
	events  *journal
}

// AddRecord puts a line into the history, as the newest.
func (s *Server) AddRecord(doc map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past.records = slices.Insert(s.past.records, 0, doc)
}

// AddUsage adds an item to the usage.
func (s *Server) AddUsage(item map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past.usage = append(s.past.usage, item)
}

// AddAudit puts an entry into the audit log, as the newest.
func (s *Server) AddAudit(doc map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	doc["id"] = strconv.Itoa(len(s.past.audit) + 1)
	s.past.audit = slices.Insert(s.past.audit, 0, doc)
}

// Happen tells those who follow the project of an event.
func (s *Server) Happen(kind string, doc map[string]any) {
	doc["type"], doc["at"] = kind, now()
	s.past.events.add(kind, doc)
}

func (s *Server) historyRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/history", func(w http.ResponseWriter, r *http.Request) {
		s.pastPage(w, r, func() []map[string]any { return s.past.records }, map[string]any{})
	})
	mux.HandleFunc("GET /v1/history/{id}", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, doc := range s.past.records {
			if doc["id"] == r.PathValue("id") {
				answer(w, 200, doc)
				return
			}
		}
		problem(w, 404, "not_found", "there is no record of "+r.PathValue("id"))
	})
	mux.HandleFunc("GET /v1/usage", func(w http.ResponseWriter, r *http.Request) {
		by := r.URL.Query().Get("group_by")
		if by == "" {
			by = "day"
		}
		s.pastPage(w, r, func() []map[string]any { return s.past.usage }, map[string]any{
			"from": r.URL.Query().Get("from"), "to": r.URL.Query().Get("to"), "group_by": strings.Split(by, ","), "total": map[string]any{"sandboxes": 1, "running_seconds": 60},
		})
	})
	mux.HandleFunc("GET /v1/audit", func(w http.ResponseWriter, r *http.Request) {
		s.pastPage(w, r, func() []map[string]any { return s.past.audit }, map[string]any{})
	})
	mux.HandleFunc("GET /v1/events", func(w http.ResponseWriter, r *http.Request) { s.journal(w, r, s.past.events) })
}

// pastFilters are parameters that select by the member of that name, or of the one given.
var pastFilters = map[string]string{"kind": "kind", "sandbox_id": "sandbox_id", "outcome": "outcome", "action": "action", "object": "object"}

// pastPage answers a page of a list; the cursor is how many items came before.
func (s *Server) pastPage(w http.ResponseWriter, r *http.Request, list func() []map[string]any, doc map[string]any) {
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []map[string]any
	for _, item := range list() {
		keep := true
		for param, member := range pastFilters {
			if want := q.Get(param); want != "" && item[member] != nil {
				keep = keep && slices.Contains(strings.Split(want, ","), item[member].(string))
			}
		}
		if want := q.Get("ok"); want != "" {
			keep = keep && item["ok"] == (want == "true")
		}
		if text, command := q.Get("text"), item["command"]; text != "" {
			keep = keep && command != nil && strings.Contains(command.(string), text)
		}
		if keep {
			found = append(found, item)
		}
	}
	limit, _ := strconv.Atoi(q.Get("limit"))
	if limit == 0 {
		limit = 50
	}
	from, _ := strconv.Atoi(q.Get("cursor"))
	from = min(from, len(found))
	to := min(from+limit, len(found))
	doc["items"], doc["next_cursor"] = append([]map[string]any{}, found[from:to]...), nil
	if to < len(found) {
		doc["next_cursor"] = strconv.Itoa(to)
	}
	answer(w, 200, doc)
}
