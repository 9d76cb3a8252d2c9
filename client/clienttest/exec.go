package clienttest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
)

func (s *Server) execRoutes(mux *http.ServeMux) {
	const base = "/v1/sandboxes/{id}"
	mux.HandleFunc("POST "+base+"/exec", s.usable(s.exec))
	mux.HandleFunc("GET "+base+"/exec", s.usable(s.socket))
	mux.HandleFunc("GET "+base+"/terminal", s.usable(s.socket))
	mux.HandleFunc("GET "+base+"/processes", s.usable(s.processes))
	mux.HandleFunc("GET "+base+"/processes/{process}", s.usable(s.process))
	mux.HandleFunc("GET "+base+"/processes/{process}/stream", s.usable(s.stream))
	mux.HandleFunc("GET "+base+"/processes/{process}/logs", s.usable(s.logs))
	mux.HandleFunc("POST "+base+"/processes/{process}/signal", s.usable(s.sendSignal))
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var d startDoc
	if !decode(w, r, &d) {
		return
	}
	if d.Cwd == "/nope" {
		problem(w, 422, "unprocessable", "cwd /nope is not there")
		return
	}
	key := "exec " + r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	p, again := s.replays[key].(*process)
	s.mu.Unlock()
	if !again {
		p = s.start(sb, d, false)
		s.mu.Lock()
		s.replays[key] = p
		s.mu.Unlock()
	}
	if r.Header.Get("Accept") == "text/event-stream" {
		s.events(w, r, p, 0)
		return
	}
	stdout, stderr, exit := p.collect(r.Context())
	if exit == nil {
		return
	}
	doc := exitMembers(exit)
	doc["stdout_base64"], doc["stderr_base64"] = stdout, stderr
	answer(w, 200, doc)
}

func (p *process) collect(ctx context.Context) (stdout, stderr []byte, exit *exitDoc) {
	for {
		chunks, exit, changed := p.from(0)
		if exit == nil {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil, nil, nil
			}
		}
		for _, c := range chunks {
			if c.stream == 1 {
				stdout = append(stdout, c.data...)
			} else {
				stderr = append(stderr, c.data...)
			}
		}
		return stdout, stderr, exit
	}
}

func exitMembers(e *exitDoc) map[string]any {
	data, _ := json.Marshal(e)
	var m map[string]any
	json.Unmarshal(data, &m)
	return m
}

func (s *Server) stream(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	p := s.find(w, r, sb)
	if p == nil {
		return
	}
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	s.events(w, r, p, offset)
}

func (s *Server) events(w http.ResponseWriter, r *http.Request, p *process, offset int) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer s.track(cancel)()
	left := s.takeCut()
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	event := func(id int, name string, doc any) {
		data, _ := json.Marshal(doc)
		fmt.Fprintf(w, "id: %d\nevent: %s\ndata: %s\n\n", id, name, data)
		out.Flush()
	}
	event(offset, "start", map[string]any{"process_id": p.id, "offset": offset})
	fmt.Fprint(w, ": keep-alive\n\n")
	for {
		chunks, exit, changed := p.from(offset)
		for _, c := range chunks {
			data := c.data
			if left >= 0 {
				data = data[:min(left, len(data))]
				left -= len(data)
			}
			if len(data) > 0 {
				offset = c.offset + len(data)
				event(offset, streamName(c.stream), map[string]any{"data_base64": base64.StdEncoding.EncodeToString(data)})
			}
			if left == 0 {
				panic(http.ErrAbortHandler)
			}
		}
		if exit != nil {
			event(offset, "exit", exit)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		}
	}
}

func streamName(stream byte) string {
	if stream == 2 {
		return "stderr"
	}
	return "stdout"
}

// socket is a command, a terminal or an attachment over cay.exec.v1.
func (s *Server) socket(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	q := r.URL.Query()
	var p *process
	offset := 0
	if id := q.Get("process_id"); id != "" {
		s.mu.Lock()
		p = sb.processes[id]
		s.mu.Unlock()
		if p == nil {
			problem(w, 404, "not_found", "there is no process "+id)
			return
		}
		offset, _ = strconv.Atoi(q.Get("offset"))
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"cay.exec.v1"}})
	if err != nil {
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer s.track(func() { conn.CloseNow() })()
	switch {
	case p != nil:
	case strings.HasSuffix(r.URL.Path, "/terminal"):
		cols, _ := strconv.Atoi(q.Get("cols"))
		rows, _ := strconv.Atoi(q.Get("rows"))
		p = s.start(sb, startDoc{Command: []any{"tty"}, TTY: true, Cols: cols, Rows: rows}, true)
	default:
		var d startDoc
		_, data, err := conn.Read(ctx)
		if err != nil || json.Unmarshal(data, &d) != nil || d.Type != "start" {
			conn.Close(4400, "the first message is not a start")
			return
		}
		if d.Cwd == "/nope" {
			send(ctx, conn, map[string]any{"type": "error", "reason": "unprocessable", "detail": "cwd /nope is not there"})
			conn.Close(4422, "unprocessable")
			return
		}
		p = s.start(sb, d, true)
	}
	p.mu.Lock()
	started := map[string]any{"type": "started", "process_id": p.id, "offset": offset, "stdin_offset": p.stdinAt}
	p.mu.Unlock()
	send(ctx, conn, started)
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.input(ctx, conn)
	}()
	ended := s.deliver(ctx, conn, p, offset, read)
	if !ended {
		conn.CloseNow()
	}
	<-read
}

// deliver sends output until the exit or the connection's end.
func (s *Server) deliver(ctx context.Context, conn *websocket.Conn, p *process, offset int, gone <-chan struct{}) (ended bool) {
	left := s.takeCut()
	for {
		chunks, exit, changed := p.from(offset)
		for _, c := range chunks {
			data := c.data
			if left >= 0 {
				data = data[:min(left, len(data))]
				left -= len(data)
			}
			if len(data) > 0 {
				offset = c.offset + len(data)
				if conn.Write(ctx, websocket.MessageBinary, append([]byte{c.stream}, data...)) != nil {
					return false
				}
			}
			if left == 0 {
				return false
			}
		}
		if exit != nil {
			e := *exit
			e.Type = "exit"
			send(ctx, conn, e)
			conn.Close(websocket.StatusNormalClosure, "")
			return true
		}
		select {
		case <-changed:
		case <-gone:
			return false
		}
	}
}

func send(ctx context.Context, conn *websocket.Conn, v any) {
	data, _ := json.Marshal(v)
	conn.Write(ctx, websocket.MessageText, data)
}

func (p *process) input(ctx context.Context, conn *websocket.Conn) {
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			if p.tty && websocket.CloseStatus(err) == websocket.StatusNormalClosure {
				p.signal("HUP")
			}
			return
		}
		if kind == websocket.MessageBinary {
			p.feed(data)
			continue
		}
		var m struct {
			Type, Signal string
			Cols, Rows   int
		}
		json.Unmarshal(data, &m)
		switch m.Type {
		case "resize":
			select {
			case p.sizes <- [2]int{m.Cols, m.Rows}:
			default:
			}
		case "signal":
			p.signal(m.Signal)
		case "close_stdin":
			p.stdin.Close()
		}
	}
}

func (s *Server) find(w http.ResponseWriter, r *http.Request, sb *sandbox) *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := r.PathValue("process")
	if p := sb.processes[want]; p != nil {
		return p
	}
	for _, p := range sb.processes {
		if p.name == want {
			return p
		}
	}
	problem(w, 404, "not_found", "there is no process "+want)
	return nil
}

func (p *process) doc() map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	doc := map[string]any{"id": p.id, "pid": 7, "name": p.name, "command": p.command, "user": "sandbox", "cwd": "/workspace",
		"status": "running", "started_at": p.startedAt}
	if p.exit != nil {
		doc["status"], doc["exit_code"], doc["reason"] = "exited", p.exit.ExitCode, p.exit.Reason
		doc["ended_at"] = time.Now().UTC().Format(time.RFC3339)
	}
	return doc
}

func (s *Server) processes(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	for _, id := range sb.order {
		items = append(items, sb.processes[id].doc())
	}
	answer(w, 200, map[string]any{"items": items})
}

func (s *Server) process(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	if p := s.find(w, r, sb); p != nil {
		answer(w, 200, p.doc())
	}
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	p := s.find(w, r, sb)
	if p == nil {
		return
	}
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	chunks, _, _ := p.from(offset)
	var text [3]strings.Builder
	for _, c := range chunks {
		text[c.stream].Write(c.data)
		offset = c.offset + len(c.data)
	}
	answer(w, 200, map[string]any{"stdout": text[1].String(), "stderr": text[2].String(), "next_offset": offset})
}

func (s *Server) sendSignal(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var body struct {
		Signal string `json:"signal"`
		Tree   bool   `json:"tree"`
	}
	p := s.find(w, r, sb)
	if p == nil || !decode(w, r, &body) {
		return
	}
	p.signal(body.Signal)
	answer(w, 200, map[string]any{})
}
