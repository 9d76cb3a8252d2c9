package clienttest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/coder/websocket"
)

func (s *Server) execRoutes(mux *http.ServeMux) {
	const base = "/v1/sandboxes/{id}"
	mux.HandleFunc("POST "+base+"/exec", s.usable(s.exec))
	mux.HandleFunc("GET "+base+"/exec", s.usable(s.socket))
	mux.HandleFunc("GET "+base+"/terminal", s.usable(s.socket))
	mux.HandleFunc("POST "+base+"/code", s.usable(s.exec))
	mux.HandleFunc("GET "+base+"/code", s.usable(s.socket))
}

func (s *Server) exec(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var d startDoc
	if !decode(w, r, &d) {
		return
	}
	p := s.startOnce(w, r, sb, d)
	if p == nil {
		return
	}
	if r.Header.Get("Accept") == "text/event-stream" {
		s.events(w, r, p, 0, d.Encoding)
		return
	}
	stdout, stderr, exit := p.collect(r.Context())
	if exit == nil {
		return
	}
	doc := exitMembers(exit)
	if d.Encoding == "base64" {
		doc["stdout_base64"], doc["stderr_base64"] = append([]byte{}, stdout...), append([]byte{}, stderr...)
	} else {
		doc["stdout"], doc["stderr"] = string(stdout), string(stderr)
	}
	maps.Copy(doc, p.outcomeDoc())
	answer(w, 200, doc)
}

// startOnce starts what d asks for, unless the request's idempotency key did before; nil: it was refused.
func (s *Server) startOnce(w http.ResponseWriter, r *http.Request, sb *sandbox, d startDoc) *process {
	key := r.URL.Path + " " + r.Header.Get("Idempotency-Key")
	s.mu.Lock()
	p, again := s.replays[key].(*process)
	s.mu.Unlock()
	if again {
		return p
	}
	if status, reason, detail := s.refuseStart(sb, d, strings.HasSuffix(r.URL.Path, "/code")); status != 0 {
		problem(w, status, reason, detail)
		return nil
	}
	p = s.start(sb, d, d.StdinOpen)
	s.mu.Lock()
	s.replays[key] = p
	s.mu.Unlock()
	return p
}

// refuseStart says why d cannot be started; status 0: it can.
func (s *Server) refuseStart(sb *sandbox, d startDoc, code bool) (status int, reason, detail string) {
	if d.Cwd == "/nope" {
		return 422, "unprocessable", "cwd /nope is not there"
	}
	if code {
		return s.refuseCode(sb, d)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range sb.processes {
		if d.Name != "" && p.name == d.Name && p.running() {
			return 409, "already_exists", "a process with the name " + d.Name + " is running"
		}
	}
	return 0, "", ""
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

func (s *Server) stream(w http.ResponseWriter, r *http.Request, p *process) {
	offset, _ := strconv.Atoi(r.URL.Query().Get("offset"))
	s.events(w, r, p, offset, r.URL.Query().Get("encoding"))
}

func (s *Server) events(w http.ResponseWriter, r *http.Request, p *process, offset int, encoding string) {
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
				doc := map[string]any{"data": string(data)}
				if encoding == "base64" {
					doc = map[string]any{"data_base64": data}
				}
				event(offset, streamName(c.stream), doc)
			}
			if left == 0 {
				panic(http.ErrAbortHandler)
			}
		}
		if exit != nil {
			event(offset, "exit", exit)
			if outcome := p.outcomeDoc(); outcome != nil {
				if s.takeOutcomeCut() {
					panic(http.ErrAbortHandler)
				}
				event(offset, "result", outcome)
			}
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
		if status, reason, detail := s.refuseStart(sb, d, strings.HasSuffix(r.URL.Path, "/code")); status != 0 {
			send(ctx, conn, map[string]any{"type": "error", "reason": reason, "detail": detail})
			conn.Close(websocket.StatusCode(4000+status), reason)
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
			if outcome := p.outcomeDoc(); outcome != nil {
				if s.takeOutcomeCut() {
					return false
				}
				outcome["type"] = "result"
				send(ctx, conn, outcome)
			}
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
