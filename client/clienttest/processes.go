package clienttest

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

func (s *Server) processRoutes(mux *http.ServeMux) {
	const base = "/v1/sandboxes/{id}/processes"
	mux.HandleFunc("POST "+base, s.usable(s.startProcess))
	mux.HandleFunc("GET "+base, s.usable(s.processes))
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request, *process){
		"GET ":         func(w http.ResponseWriter, _ *http.Request, p *process) { answer(w, 200, p.doc()) },
		"GET /stream":  s.stream,
		"GET /logs":    logs,
		"GET /wait":    wait,
		"POST /stdin":  writeStdin,
		"POST /signal": sendSignal,
		"POST /resize": resize,
	} {
		method, suffix, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" "+base+"/{process}"+suffix, s.usable(func(w http.ResponseWriter, r *http.Request, sb *sandbox) {
			if p := s.find(w, r, sb); p != nil {
				h(w, r, p)
			}
		}))
	}
}

func (s *Server) startProcess(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var d startDoc
	if !decode(w, r, &d) {
		return
	}
	p := s.startOnce(w, r, sb, d)
	if p == nil {
		return
	}
	s.mu.Lock()
	missing := s.programs[words(d.Command)[0]] == nil
	s.mu.Unlock()
	if missing { // which is known before the answer
		p.collect(r.Context())
	}
	answer(w, 201, p.doc())
}

// find takes an id, the name of a running process, or else of the last that had it.
func (s *Server) find(w http.ResponseWriter, r *http.Request, sb *sandbox) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := r.PathValue("process")
	if p := sb.processes[want]; p != nil {
		return p
	}
	var named *process
	for _, id := range sb.order {
		if p := sb.processes[id]; p.name == want && (named == nil || p.running() || !named.running()) {
			named = p
		}
	}
	if named == nil {
		problem(w, 404, "not_found", "there is no process "+want)
	}
	return named
}

func (p *process) doc() map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	doc := map[string]any{"id": p.id, "pid": 7, "name": p.name, "command": p.command, "user": "sandbox", "cwd": "/workspace", "tty": p.tty,
		"status": "running", "started_at": p.startedAt}
	if p.exit != nil {
		doc["status"], doc["exit_code"], doc["reason"], doc["signal"] = "exited", p.exit.ExitCode, p.exit.Reason, p.exit.Signal
		doc["ended_at"] = p.endedAt
		if p.exit.ExitCode == 127 {
			doc["status"], doc["reason"], doc["detail"] = "failed", "start_failed", "the command is not there"
		}
	}
	return doc
}

// processes answers those that were started; with all also the sandbox's first, which no client started.
func (s *Server) processes(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	if r.URL.Query().Get("all") == "true" {
		items = append(items, map[string]any{"pid": 1, "name": "", "command": []string{"cay-agent"}, "user": "root", "cwd": "/",
			"status": "running", "started_at": sb.doc["created_at"], "cpu_seconds": 0.1, "memory_mb": 4})
	}
	for _, id := range sb.order {
		items = append(items, sb.processes[id].doc())
	}
	answer(w, 200, map[string]any{"items": items})
}

// logs answers what there is of the stretch asked for, and never waits.
func logs(w http.ResponseWriter, r *http.Request, p *process) {
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil {
		limit = 1 << 20
	}
	chunks, exit, _ := p.from(offset)
	var out [3][]byte
	next := offset
	for _, c := range chunks {
		data := c.data[:min(len(c.data), limit)]
		out[c.stream] = append(out[c.stream], data...)
		next, limit = c.offset+len(data), limit-len(data)
		if limit == 0 {
			break
		}
	}
	p.mu.Lock()
	doc := map[string]any{"process_id": p.id, "offset": offset, "next_offset": next, "size": p.produced, "gaps": []any{}, "status": "running"}
	p.mu.Unlock()
	if exit != nil {
		doc["status"], doc["exit_code"] = "exited", exit.ExitCode
	}
	if r.URL.Query().Get("encoding") == "base64" {
		doc["stdout_base64"], doc["stderr_base64"] = append([]byte{}, out[1]...), append([]byte{}, out[2]...)
	} else {
		doc["stdout"], doc["stderr"] = string(out[1]), string(out[2])
	}
	answer(w, 200, doc)
}

// wait answers once the process has ended, or after timeout_seconds.
func wait(w http.ResponseWriter, r *http.Request, p *process) {
	limit, err := strconv.ParseFloat(r.URL.Query().Get("timeout_seconds"), 64)
	if err != nil {
		limit = 60
	}
	timer := time.NewTimer(time.Duration(limit * float64(time.Second)))
	defer timer.Stop()
	for {
		_, exit, changed := p.from(0)
		if exit == nil {
			select {
			case <-changed:
				continue
			case <-timer.C:
			case <-r.Context().Done():
				return
			}
		}
		answer(w, 200, p.doc())
		return
	}
}

// writeStdin passes the body on as it comes; bytes that the process has had are passed over.
func writeStdin(w http.ResponseWriter, r *http.Request, p *process) {
	p.mu.Lock()
	open, at := p.stdinOpen && p.exit == nil, p.stdinAt
	p.mu.Unlock()
	if !open {
		problem(w, 409, "conflict", "the process takes no input")
		return
	}
	if asked := r.URL.Query().Get("offset"); asked != "" {
		offset, err := strconv.Atoi(asked)
		switch {
		case err != nil || offset < 0:
			problem(w, 400, "invalid_request", "offset is not a number of bytes")
			return
		case offset > at:
			problem(w, 409, "conflict", fmt.Sprintf("the process has had %d bytes, not %d", at, offset))
			return
		}
		if _, err := io.CopyN(io.Discard, r.Body, int64(at-offset)); err != nil && err != io.EOF {
			return
		}
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Body.Read(buf)
		p.feed(buf[:n])
		if err == io.EOF {
			break
		} else if err != nil {
			return
		}
	}
	if r.URL.Query().Get("close") == "true" {
		p.mu.Lock()
		p.stdinOpen = false
		p.mu.Unlock()
		p.stdin.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	answer(w, 200, map[string]any{"stdin_offset": p.stdinAt})
}

func sendSignal(w http.ResponseWriter, r *http.Request, p *process) {
	var body struct {
		Signal string `json:"signal"`
		Tree   bool   `json:"tree"`
	}
	if !decode(w, r, &body) {
		return
	}
	p.signal(body.Signal)
	answer(w, 200, map[string]any{})
}

func resize(w http.ResponseWriter, r *http.Request, p *process) {
	var body struct{ Cols, Rows int }
	if !decode(w, r, &body) {
		return
	}
	if !p.tty || !p.running() {
		problem(w, 409, "conflict", "the process has no terminal, or has ended")
		return
	}
	select {
	case p.sizes <- [2]int{body.Cols, body.Rows}:
	default:
	}
	w.WriteHeader(204)
}
