package clienttest

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Program runs as a process of a sandbox and answers its exit code. It must return once ctx ends, which a signal that is not
// taken from Signals does.
type Program func(ctx context.Context, p *Proc) int

// Proc is a process as its program sees it.
type Proc struct {
	Args   []string // Args[0] is the program's name
	Env    map[string]string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	TTY    bool
	// Sizes brings the terminal's size, the first one at once.
	Sizes <-chan [2]int
	// Signals brings INT and TERM to a program that called Catch; KILL always ends ctx.
	Signals <-chan string
	Catch   func()
}

type chunk struct {
	stream byte // 1 stdout, 2 stderr
	offset int
	data   []byte
}

type process struct {
	id, name  string
	command   any
	startedAt string
	tty       bool
	cancel    context.CancelFunc
	stdin     *io.PipeWriter
	sizes     chan [2]int
	signals   chan string

	mu        sync.Mutex
	catching  bool           // guarded by mu
	killedBy  string         // guarded by mu
	stdinOpen bool           // guarded by mu
	output    []chunk        // guarded by mu
	produced  int            // guarded by mu
	stdinAt   int            // bytes of stdin taken; guarded by mu
	exit      *exitDoc       // guarded by mu
	outcome   map[string]any // of code; guarded by mu
	endedAt   string         // guarded by mu
	changed   chan struct{}  // closed and renewed when output or exit change; guarded by mu
}

type exitDoc struct {
	Type       string  `json:"type,omitempty"`
	ProcessID  string  `json:"process_id"`
	ExitCode   int     `json:"exit_code"`
	Signal     *string `json:"signal"`
	OK         bool    `json:"ok"`
	Reason     string  `json:"reason"`
	TimedOut   bool    `json:"timed_out"`
	Killed     bool    `json:"killed"`
	OOM        bool    `json:"oom"`
	DurationMS int64   `json:"duration_ms"`
	StdoutSize int     `json:"stdout_size"`
	StderrSize int     `json:"stderr_size"`
}

type outputWriter struct {
	p      *process
	stream byte
}

func (w outputWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.p.output = append(w.p.output, chunk{w.stream, w.p.produced, slices.Clone(b)})
	w.p.produced += len(b)
	w.p.notifyLocked()
	return len(b), nil
}

func (p *process) notifyLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// from answers what was written from offset on, the exit if that is all, and a channel that closes when there is more.
func (p *process) from(offset int) ([]chunk, *exitDoc, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []chunk
	for _, c := range p.output {
		if end := c.offset + len(c.data); end > offset {
			skip := max(0, offset-c.offset)
			out = append(out, chunk{c.stream, c.offset + skip, c.data[skip:]})
		}
	}
	return out, p.exit, p.changed
}

func (p *process) signal(name string) {
	p.mu.Lock()
	catching := p.catching
	if !catching || name == "KILL" {
		if p.killedBy == "" {
			p.killedBy = name
		}
		p.mu.Unlock()
		p.cancel()
		return
	}
	p.mu.Unlock()
	select {
	case p.signals <- name:
	default:
	}
}

// feed takes the next piece of stdin as it comes by one connection.
func (p *process) feed(b []byte) {
	n, _ := p.stdin.Write(b)
	p.mu.Lock()
	p.stdinAt += n
	p.mu.Unlock()
}

var signalNumbers = map[string]int{"HUP": 1, "INT": 2, "KILL": 9, "TERM": 15}

type startDoc struct {
	Type           string            `json:"type"`
	Command        any               `json:"command"`
	Stdin          string            `json:"stdin"`
	StdinBase64    []byte            `json:"stdin_base64"`
	TimeoutSeconds *float64          `json:"timeout_seconds"`
	Env            map[string]string `json:"env"`
	Cwd            string            `json:"cwd"`
	User           string            `json:"user"`
	Name           string            `json:"name"`
	TTY            bool              `json:"tty"`
	Cols, Rows     int
	Encoding       string `json:"encoding"`
	StdinOpen      bool   `json:"stdin_open"`

	Code      string `json:"code"`
	Language  string `json:"language"`
	ContextID string `json:"context_id"`
}

// start runs the command as a process of sb. openStdin: stdin comes by feed.
func (s *Server) start(sb *sandbox, d startDoc, openStdin bool) *process {
	args := words(d.Command)
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{
		id: newID("prc_"), name: d.Name, command: d.Command, startedAt: now(), tty: d.TTY, cancel: cancel, stdin: writer,
		stdinOpen: openStdin, sizes: make(chan [2]int, 16), signals: make(chan string, 16), changed: make(chan struct{}),
	}
	if d.TTY {
		p.sizes <- [2]int{d.Cols, d.Rows}
	}
	env := map[string]string{}
	s.mu.Lock()
	ofSandbox, _ := sb.doc["env"].(map[string]any)
	for k, v := range ofSandbox {
		env[k] = fmt.Sprint(v)
	}
	maps.Copy(env, d.Env)
	program := s.programs[args[0]]
	if d.Code != "" {
		program = s.codeProgramLocked(sb, p, d)
	}
	sb.processes[p.id], sb.order = p, append(sb.order, p.id)
	s.mu.Unlock()
	if program == nil {
		program = notFound
	}
	stdin := io.Reader(reader)
	if !openStdin {
		stdin = io.MultiReader(strings.NewReader(d.Stdin), strings.NewReader(string(d.StdinBase64)))
	}
	stderr := outputWriter{p, 2}
	if d.TTY {
		stderr.stream = 1
	}
	proc := &Proc{
		Args: args, Env: env, Stdin: stdin, Stdout: outputWriter{p, 1}, Stderr: stderr, TTY: d.TTY, Sizes: p.sizes, Signals: p.signals,
		Catch: func() { p.mu.Lock(); defer p.mu.Unlock(); p.catching = true },
	}
	began := time.Now()
	s.wg.Go(func() {
		stop := context.AfterFunc(ctx, func() { reader.CloseWithError(io.EOF) })
		defer stop()
		defer reader.Close()
		p.finish(program(ctx, proc), time.Since(began))
		cancel()
	})
	return p
}

func (p *process) finish(code int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &exitDoc{ProcessID: p.id, ExitCode: code, Reason: "exited", DurationMS: took.Milliseconds()}
	if p.killedBy != "" {
		e.ExitCode, e.Signal, e.Reason, e.Killed = 128+signalNumbers[p.killedBy], &p.killedBy, "signaled", p.killedBy == "KILL"
	}
	e.OK = e.ExitCode == 0
	for _, c := range p.output {
		if c.stream == 1 {
			e.StdoutSize += len(c.data)
		} else {
			e.StderrSize += len(c.data)
		}
	}
	p.exit, p.endedAt = e, now()
	p.notifyLocked()
}

func (p *process) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.exit == nil
}

// outcomeDoc is what code brought besides its output; nil for a command.
func (p *process) outcomeDoc() map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.outcome)
}

func words(command any) []string {
	switch c := command.(type) {
	case string:
		return append(strings.Fields(c), "")[:max(1, len(strings.Fields(c)))]
	case []any:
		var out []string
		for _, w := range c {
			out = append(out, fmt.Sprint(w))
		}
		return out
	}
	return []string{""}
}

func notFound(_ context.Context, p *Proc) int {
	fmt.Fprintf(p.Stderr, "%s: not found\n", p.Args[0])
	return 127
}
