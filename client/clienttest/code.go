package clienttest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Language runs code as a process of a sandbox. vars are the variables of the context it runs in, which stay, or new ones.
type Language func(ctx context.Context, p *Proc, code string, vars map[string]string) Outcome

// Outcome is how a run of code ended. Main, Shown and Raised are answered of runs in a context alone.
type Outcome struct {
	ExitCode int
	Main     string            // the value of the last expression, as text; "": none
	Shown    map[string]any    // another result, by MIME type; nil: none
	Raised   string            // the message of an exception that nothing caught; "": none
	Files    map[string]string // written, by path; those below /output are answered with their content
}

// HandleLanguage makes name a language of every sandbox. There are python and bash from the beginning, which know sums alone; see
// [Server] for what they take.
func (s *Server) HandleLanguage(name string, l Language) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.languages[name] = l
}

// CutOutcomes makes the next n streams of code break after their exit, before their result.
func (s *Server) CutOutcomes(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomeCuts = n
}

func (s *Server) takeOutcomeCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outcomeCuts == 0 {
		return false
	}
	s.outcomeCuts--
	return true
}

// sums is a language of lines: "x = 1 + y", "print(x)", "save(/output/a.txt)", "raise oops", "read()", "loop()" and, as the last
// one, an expression.
func sums(ctx context.Context, p *Proc, code string, vars map[string]string) Outcome {
	out := Outcome{Files: map[string]string{}}
	lines := strings.Split(strings.TrimSpace(code), "\n")
	for i, line := range lines {
		line = strings.TrimSpace(line)
		argument := func(name string) (string, bool) {
			rest, ok := strings.CutPrefix(line, name+"(")
			return strings.TrimSuffix(rest, ")"), ok
		}
		if message, ok := strings.CutPrefix(line, "raise "); ok {
			fmt.Fprintln(p.Stderr, "Error: "+message)
			out.Raised, out.ExitCode = message, 1
			return out
		}
		if text, ok := argument("print"); ok {
			fmt.Fprintln(p.Stdout, value(text, vars))
		} else if path, ok := argument("save"); ok {
			out.Files[path] = "saved"
		} else if _, ok := argument("read"); ok {
			fmt.Fprintf(p.Stdout, "read %q\n", readAll(p))
		} else if _, ok := argument("loop"); ok {
			fmt.Fprintln(p.Stdout, "looping")
			<-ctx.Done()
			return out
		} else if name, expression, ok := strings.Cut(line, " = "); ok {
			vars[name] = value(expression, vars)
		} else if i == len(lines)-1 {
			out.Main = value(line, vars)
		}
	}
	return out
}

func readAll(p *Proc) string {
	var b strings.Builder
	buf := make([]byte, 1<<10)
	for {
		n, err := p.Stdin.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String()
		}
	}
}

// value is a sum of numbers and variables; anything else is itself, without its quotes.
func value(expression string, vars map[string]string) string {
	total := 0
	for term := range strings.SplitSeq(expression, "+") {
		term = strings.TrimSpace(term)
		if v, ok := vars[term]; ok {
			term = v
		}
		n, err := strconv.Atoi(term)
		if err != nil {
			return strings.Trim(term, `'"`)
		}
		total += n
	}
	return strconv.Itoa(total)
}

type codeContext struct {
	id, language, cwd string
	createdAt         string
	vars              map[string]string // of the one program that runs in it at a time; renewed by restart, guarded by Server.mu
	queue             chan struct{}     // held by the program that runs
	running           *process          // guarded by Server.mu
	count             int               // guarded by Server.mu
}

func (c *codeContext) docLocked() map[string]any {
	status := "idle"
	if c.running != nil {
		status = "busy"
	}
	return map[string]any{"id": c.id, "language": c.language, "cwd": c.cwd, "user": "sandbox", "status": status,
		"execution_count": c.count, "created_at": c.createdAt, "last_used_at": c.createdAt}
}

func (sb *sandbox) context(id string) *codeContext {
	for _, c := range sb.contexts {
		if c.id == id {
			return c
		}
	}
	return nil
}

func (s *Server) refuseCode(sb *sandbox, d startDoc) (status int, reason, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.ContextID != "" {
		c := sb.context(d.ContextID)
		switch {
		case c == nil:
			return 404, "not_found", "there is no context " + d.ContextID
		case d.Language != "" && d.Language != c.language:
			return 422, "unprocessable", "language: the context's is " + c.language
		case d.Cwd != "" || d.User != "" || len(d.Env) > 0 || d.Stdin != "" || d.StdinBase64 != nil:
			return 422, "unprocessable", "cwd, user, env and stdin are the context's"
		}
		return 0, "", ""
	}
	if d.Language != "" && s.languages[d.Language] == nil {
		return 422, "unprocessable", "the sandbox has no " + d.Language + "; it has bash, python"
	}
	return 0, "", ""
}

// codeProgramLocked makes code a program that leaves its outcome with p.
func (s *Server) codeProgramLocked(sb *sandbox, p *process, d startDoc) Program {
	c := sb.context(d.ContextID)
	name, vars := d.Language, map[string]string{}
	if name == "" {
		name = "python"
	}
	if c != nil {
		name = c.language
	}
	language := s.languages[name]
	return func(ctx context.Context, proc *Proc) int {
		count := 0
		if c != nil {
			select {
			case c.queue <- struct{}{}:
				defer func() { <-c.queue }()
			case <-ctx.Done():
				return 130
			}
			s.mu.Lock()
			c.running, vars = p, c.vars
			c.count++
			count = c.count
			s.mu.Unlock()
			defer func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				c.running = nil
			}()
		}
		o := language(ctx, proc, d.Code, vars)
		doc := o.doc(sb.files)
		doc["language"], doc["context_id"], doc["execution_count"], doc["context_lost"] = name, nil, count, false
		if c != nil {
			doc["context_id"] = c.id
		} else { // a program of its own has output, and no values
			doc["results"], doc["error"] = []any{}, nil
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.outcome = doc
		return o.ExitCode
	}
}

// doc writes the outcome's files and describes it.
func (o Outcome) doc(files *tree) map[string]any {
	changed, outputs, results := []any{}, []any{}, []any{}
	for path, content := range o.Files {
		files.write(path, &Entry{Type: "file", Mode: "0644", Content: []byte(content)})
		changed = append(changed, map[string]any{"path": path, "size": len(content), "op": "create"})
		if strings.HasPrefix(path, "/output/") {
			outputs = append(outputs, map[string]any{"path": path, "mime": "text/plain", "size": len(content), "data_base64": []byte(content)})
		}
	}
	if o.Shown != nil {
		o.Shown["is_main"] = false
		results = append(results, o.Shown)
	}
	if o.Main != "" {
		results = append(results, map[string]any{"text/plain": o.Main, "is_main": true})
	}
	doc := map[string]any{"files_changed": changed, "files_truncated": false, "outputs": outputs, "results": results,
		"results_truncated": false, "error": nil}
	if o.Raised != "" {
		doc["error"] = map[string]any{"name": "Error", "value": o.Raised, "traceback": "Error: " + o.Raised}
	}
	return doc
}

func (s *Server) contextRoutes(mux *http.ServeMux) {
	const base = "/v1/sandboxes/{id}/contexts"
	mux.HandleFunc("POST "+base, s.usable(s.createContext))
	mux.HandleFunc("GET "+base, s.usable(s.listContexts))
	for pattern, act := range map[string]func(http.ResponseWriter, *sandbox, *codeContext) error{
		"GET ":            func(http.ResponseWriter, *sandbox, *codeContext) error { return nil },
		"DELETE ":         closeContext,
		"POST /interrupt": interruptContext,
		"POST /restart":   restartContext,
	} {
		method, suffix, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" "+base+"/{context}"+suffix, s.usable(func(w http.ResponseWriter, r *http.Request, sb *sandbox) {
			s.mu.Lock()
			defer s.mu.Unlock()
			c := sb.context(r.PathValue("context"))
			if c == nil {
				problem(w, 404, "not_found", "there is no context "+r.PathValue("context"))
				return
			}
			if act(w, sb, c) == nil {
				answer(w, 200, c.docLocked())
			}
		}))
	}
}

// errAnswered is an action that has written its own answer.
var errAnswered = errors.New("answered")

func closeContext(w http.ResponseWriter, sb *sandbox, c *codeContext) error {
	if c.running != nil {
		c.running.signal("KILL")
	}
	sb.contexts = slices.DeleteFunc(sb.contexts, func(other *codeContext) bool { return other == c })
	w.WriteHeader(204)
	return errAnswered
}

func interruptContext(_ http.ResponseWriter, _ *sandbox, c *codeContext) error {
	if c.running != nil {
		c.running.signal("INT")
	}
	return nil
}

func restartContext(_ http.ResponseWriter, _ *sandbox, c *codeContext) error {
	if c.running != nil {
		c.running.signal("KILL")
	}
	c.vars, c.count = map[string]string{}, 0
	return nil
}

func (s *Server) createContext(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	var d startDoc
	if !decode(w, r, &d) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.Language == "" {
		d.Language = "python"
	}
	if s.languages[d.Language] == nil {
		problem(w, 422, "unprocessable", "the sandbox has no "+d.Language+"; it has bash, python")
		return
	}
	if d.Cwd == "" {
		d.Cwd = "/workspace"
	}
	key := r.URL.Path + " " + r.Header.Get("Idempotency-Key")
	c, again := s.replays[key].(*codeContext)
	if !again {
		c = &codeContext{id: newID("ctx_"), language: d.Language, cwd: d.Cwd, createdAt: now(), vars: map[string]string{}, queue: make(chan struct{}, 1)}
		sb.contexts = append(sb.contexts, c)
		s.replays[key] = c
	}
	answer(w, 201, c.docLocked())
}

func (s *Server) listContexts(w http.ResponseWriter, r *http.Request, sb *sandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []any{}
	for _, c := range sb.contexts {
		items = append(items, c.docLocked())
	}
	answer(w, 200, map[string]any{"items": items, "next_cursor": nil})
}
