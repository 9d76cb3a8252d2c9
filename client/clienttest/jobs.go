package clienttest

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// job is a program that runs once, as a process of a sandbox of its own.
type job struct {
	id       string
	request  jobRequest
	session  *session // nil: none
	queuedAt string

	// What follows is guarded by Server.mu.
	status                string
	sandbox               *sandbox // nil until it runs
	process               *process
	canceled, timedOut    bool
	startedAt, finishedAt string
	fault                 map[string]any // nil: none
	changed               chan struct{}  // closed and renewed when any of these changes
}

type jobRequest struct {
	startDoc
	Metadata      map[string]any `json:"metadata"`
	SessionID     string         `json:"session_id"`
	SessionShared bool           `json:"session_shared"`
	Timeout       float64        `json:"timeout_seconds"`
	Priority      *int           `json:"priority"`
}

func (s *Server) jobRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/jobs", s.submitJob)
	mux.HandleFunc("GET /v1/jobs", s.listJobs)
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request, *job){
		"GET ": s.getJob, "DELETE ": s.cancelJob, "GET /stream": s.streamJob, "GET /outputs": s.jobOutput,
	} {
		method, suffix, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" /v1/jobs/{id}"+suffix, func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			j := s.jobs[r.PathValue("id")]
			s.mu.Unlock()
			if j == nil {
				problem(w, 404, "not_found", "there is no job "+r.PathValue("id"))
				return
			}
			h(w, r, j)
		})
	}
}

// HoldJobs keeps jobs queued that would start from now on; ReleaseJobs lets them run.
func (s *Server) HoldJobs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = make(chan struct{})
}

// ReleaseJobs ends [Server.HoldJobs].
func (s *Server) ReleaseJobs() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held != nil {
		close(s.held)
		s.held = nil
	}
}

func (s *Server) submitJob(w http.ResponseWriter, r *http.Request) {
	request := jobRequest{Timeout: 60}
	if !decode(w, r, &request) {
		return
	}
	key := "job " + r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	j, again := s.replays[key].(*job)
	if !again {
		if request.Language == "" {
			request.Language = "python"
		}
		ses, refused := s.sessionForLocked(request.SessionID)
		switch {
		case s.languages[request.Language] == nil:
			refused = &fault{422, "unprocessable", "there is no " + request.Language + "; there are bash, python", nil}
		case request.Timeout <= 0 || request.Timeout > 86400:
			refused = &fault{400, "invalid_request", "timeout_seconds must be above 0 and at most 86400", nil}
		}
		if refused != nil {
			s.mu.Unlock()
			refused.answer(w)
			return
		}
		j = &job{id: newID("job_"), request: request, session: ses, queuedAt: now(), status: "queued", changed: make(chan struct{})}
		s.jobs[j.id], s.jobOrder, s.replays[key] = j, append(s.jobOrder, j.id), j
		held := s.held
		s.wg.Go(func() { s.runJob(j, held) })
	}
	s.mu.Unlock()
	w.Header().Set("Location", "/v1/jobs/"+j.id)
	status := 202
	if s.awaitJob(r, j) && r.URL.Query().Has("wait_seconds") {
		status = 200
	}
	answer(w, status, s.jobDoc(j, true))
}

// runJob is a job's life once it is in the queue. held is nil, or closed when it may start.
func (s *Server) runJob(j *job, held <-chan struct{}) {
	if held != nil && !s.jobWaits(j, held) {
		return
	}
	if j.session != nil && !j.request.SessionShared {
		if !s.jobWaits(j, j.session.turn) {
			return
		}
		defer func() { j.session.turn <- struct{}{} }()
	}
	sb := s.jobSandbox(j)
	p := s.start(sb, j.request.startDoc, false)
	s.changeJob(j, func() { j.status, j.sandbox, j.process, j.startedAt = "running", sb, p, now() })
	timer := time.NewTimer(time.Duration(j.request.Timeout * float64(time.Second)))
	defer timer.Stop()
	for {
		_, exit, more := p.from(0)
		s.mu.Lock()
		canceled, changed := j.canceled, j.changed
		s.mu.Unlock()
		switch {
		case exit != nil:
			s.changeJob(j, func() { j.finishLocked(exit) })
			return
		case canceled:
			p.signal("KILL")
		}
		select {
		case <-more:
		case <-changed:
		case <-timer.C:
			s.changeJob(j, func() { j.timedOut = true })
			p.signal("KILL")
		case <-s.quit:
			p.signal("KILL")
			return
		}
	}
}

// jobWaits waits for a queued job's turn, and reports whether it came before the job was canceled.
func (s *Server) jobWaits(j *job, turn <-chan struct{}) bool {
	for {
		s.mu.Lock()
		canceled, changed := j.canceled, j.changed
		s.mu.Unlock()
		if canceled {
			s.changeJob(j, func() { j.status, j.finishedAt = "canceled", now() })
			return false
		}
		select {
		case <-turn:
			return true
		case <-changed:
		case <-s.quit:
			return false
		}
	}
}

func (j *job) finishLocked(exit *exitDoc) {
	j.finishedAt = now()
	j.sandbox.doc["status"], j.sandbox.doc["ended_at"] = "TERMINATED", j.finishedAt
	switch {
	case j.canceled:
		j.status = "canceled"
	case j.timedOut:
		j.status = "timeout"
	case exit.ExitCode == 0:
		j.status = "success"
	default:
		j.status = "failed"
	}
}

// FailJob ends a job as a fault of the platform would.
func (s *Server) FailJob(id, reason, detail string) {
	s.mu.Lock()
	j := s.jobs[id]
	s.mu.Unlock()
	s.changeJob(j, func() {
		j.status, j.finishedAt, j.fault = "error", now(), map[string]any{"reason": reason, "detail": detail}
	})
}

func (s *Server) changeJob(j *job, change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.finishedAt != "" {
		return
	}
	change()
	close(j.changed)
	j.changed = make(chan struct{})
}

func (s *Server) jobSandbox(j *job) *sandbox {
	files := newTree()
	if j.session != nil {
		files = j.session.files
	}
	id := newID("sbx_")
	sb := &sandbox{files: files, processes: map[string]*process{}, events: newJournal(), logs: newJournal(), doc: map[string]any{
		"id": id, "sandbox_id": id, "status": "READY", "status_reason": nil, "image": "host", "managed_by": j.id, "workdir": "/workspace",
		"session_id": orNull(j.request.SessionID), "session_shared": j.request.SessionShared, "created_at": now(), "metadata": map[string]any{},
	}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sandboxes[id], s.order = sb, append(s.order, id)
	return sb
}

// awaitJob waits for the job's end as long as the request asks for, and reports whether it has come.
func (s *Server) awaitJob(r *http.Request, j *job) bool {
	limit, _ := strconv.ParseFloat(r.URL.Query().Get("wait_seconds"), 64)
	ctx, cancel := context.WithTimeout(r.Context(), time.Duration(limit*float64(time.Second)))
	defer cancel()
	for {
		s.mu.Lock()
		finished, changed := j.finishedAt != "", j.changed
		s.mu.Unlock()
		if finished {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-s.quit:
			return false
		}
	}
}

func (s *Server) getJob(w http.ResponseWriter, r *http.Request, j *job) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer s.track(cancel)() // a lost network cuts those who wait, too
	if s.awaitJob(r.WithContext(ctx), j); ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
	answer(w, 200, s.jobDoc(j, true))
}

func (s *Server) cancelJob(w http.ResponseWriter, r *http.Request, j *job) {
	s.changeJob(j, func() { j.canceled = true })
	q := r.URL.Query()
	q.Set("wait_seconds", "30")
	r.URL.RawQuery = q.Encode()
	status := 202
	if s.awaitJob(r, j) {
		status = 200
	}
	answer(w, status, s.jobDoc(j, true))
}

func (s *Server) listJobs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.mu.Lock()
	var found []*job
	for _, id := range slices.Backward(s.jobOrder) {
		j := s.jobs[id]
		status := map[string]any{"status": j.status, "metadata": j.request.Metadata}
		if matches(status, j.finishedAt == "", q) && (!q.Has("session_id") || q.Get("session_id") == j.request.SessionID) {
			found = append(found, j)
		}
	}
	s.mu.Unlock()
	items := []any{}
	for _, j := range found {
		items = append(items, s.jobDoc(j, false))
	}
	answer(w, 200, onePage(q, items))
}

// jobDoc is the job as the API shows it, in a list without what its program left behind.
func (s *Server) jobDoc(j *job, whole bool) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := j.request
	priority := 5
	if r.Priority != nil {
		priority = *r.Priority
	}
	doc := map[string]any{
		"id": j.id, "status": j.status, "language": r.Language, "lossy": eachPipe(false, false), "truncated": eachPipe(false, false),
		"exit_code": nil, "signal": nil, "timed_out": j.timedOut, "duration_ms": nil, "queued_at": j.queuedAt, "started_at": orNull(j.startedAt),
		"finished_at": orNull(j.finishedAt), "files_truncated": false, "outputs_truncated": false, "install_log": nil, "error": j.fault,
		"metrics":    map[string]any{"cpu_ms": nil, "peak_memory_mb": nil, "queue_ms": 1, "boot_ms": nil},
		"session_id": orNull(r.SessionID), "session_shared": r.SessionShared, "sandbox_id": nil, "attempt": 0, "priority": priority,
		"timeout_seconds": r.Timeout, "metadata": r.Metadata,
	}
	if r.Metadata == nil {
		doc["metadata"] = map[string]any{}
	}
	var out [3][]byte
	outputs := map[string]any{"files_changed": []any{}, "outputs": []any{}}
	if p := j.process; p != nil {
		doc["sandbox_id"], doc["attempt"] = j.sandbox.doc["id"], 1
		chunks, exit, _ := p.from(0)
		for _, c := range chunks {
			out[c.stream] = append(out[c.stream], c.data...)
		}
		if exit != nil && j.finishedAt != "" {
			doc["exit_code"], doc["signal"], doc["duration_ms"] = exit.ExitCode, exit.Signal, exit.DurationMS
			doc["metrics"] = map[string]any{"cpu_ms": 3, "peak_memory_mb": 16, "queue_ms": 1, "boot_ms": 20}
			for name := range outputs {
				if o := p.outcomeDoc(); o != nil {
					outputs[name] = o[name]
				}
			}
		}
	}
	if !whole {
		return doc
	}
	maps.Copy(doc, outputs)
	doc["stdout"], doc["stderr"] = strings.ToValidUTF8(string(out[1]), "\ufffd"), strings.ToValidUTF8(string(out[2]), "\ufffd")
	doc["stdout_size"], doc["stderr_size"] = len(out[1]), len(out[2])
	doc["lossy"] = eachPipe(doc["stdout"] != string(out[1]), doc["stderr"] != string(out[2]))
	return doc
}

func eachPipe(stdout, stderr bool) map[string]bool {
	return map[string]bool{"stdout": stdout, "stderr": stderr}
}

func (s *Server) jobOutput(w http.ResponseWriter, r *http.Request, j *job) {
	doc := s.jobDoc(j, true)
	for _, o := range doc["outputs"].([]any) {
		if o := o.(map[string]any); o["path"] == r.URL.Query().Get("path") {
			w.Header().Set("Content-Disposition", "attachment")
			w.Write(o["data_base64"].([]byte))
			return
		}
	}
	problem(w, 404, "not_found", "the job left no such output")
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// onePage cuts the items of a list at the cursor and the limit that a request names.
func onePage(q map[string][]string, items []any) map[string]any {
	from, _ := strconv.Atoi(first(q, "cursor"))
	limit, err := strconv.Atoi(first(q, "limit"))
	if err != nil {
		limit = 50
	}
	from = min(from, len(items))
	to := min(from+limit, len(items))
	next := any(nil)
	if to < len(items) {
		next = strconv.Itoa(to)
	}
	return map[string]any{"items": items[from:to], "next_cursor": next}
}

func first(q map[string][]string, name string) string {
	if v := q[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}
