package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Processes are those of one sandbox. A process is named by its id, its decimal pid, or the name it was given.
type Processes struct {
	c       *Client
	sandbox string
}

// Processes are those of a sandbox.
func (c *Client) Processes(sandbox string) *Processes { return &Processes{c: c, sandbox: sandbox} }

// Process is a process of a sandbox. Only those that a client started have an ID.
type Process struct {
	ID         string    `json:"id"`
	PID        int64     `json:"pid"`
	PPID       int64     `json:"ppid"`
	Name       string    `json:"name"`
	Command    []string  `json:"-"`
	User       string    `json:"user"`
	Cwd        string    `json:"cwd"`
	TTY        bool      `json:"tty"`
	Status     string    `json:"status"` // running, exited, failed
	ExitCode   int       `json:"exit_code"`
	Signal     string    `json:"signal"`
	Reason     string    `json:"reason"`
	Detail     string    `json:"detail"` // why it could not be started
	StartedAt  time.Time `json:"started_at"`
	EndedAt    time.Time `json:"ended_at"`
	CPUSeconds float64   `json:"cpu_seconds"`
	MemoryMB   float64   `json:"memory_mb"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool { return p.Status == "running" }

// UnmarshalJSON takes the command as a list or as the shell's line, which becomes a list of one.
func (p *Process) UnmarshalJSON(data []byte) error {
	type plain Process
	doc := struct {
		*plain
		Command json.RawMessage `json:"command"`
	}{plain: (*plain)(p)}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	var line string
	switch {
	case len(doc.Command) == 0:
	case json.Unmarshal(doc.Command, &p.Command) == nil:
	case json.Unmarshal(doc.Command, &line) == nil:
		p.Command = []string{line}
	}
	p.Raw = append(p.Raw[:0:0], data...)
	return nil
}

// MarshalJSON writes the object as it came.
func (p Process) MarshalJSON() ([]byte, error) {
	if p.Raw != nil {
		return p.Raw, nil
	}
	type plain Process
	return json.Marshal(struct {
		plain
		Command []string `json:"command"`
	}{plain(p), p.Command})
}

// ProcessRequest is a command to start in the background. Its Timeout of 0 is none, its Text does not count, and it outlives the
// connection that started it.
type ProcessRequest struct {
	ExecRequest

	Name       string // by which it can be found while it runs
	TTY        bool   // one terminal for input and output
	Cols, Rows int    // of the terminal; 0: the server's choice
	StdinOpen  bool   // input comes by [Processes.WriteStdin], until that closes it
}

// Start starts a command and answers once it runs, or could not be started: Status is failed then, and Detail says why.
func (p *Processes) Start(ctx context.Context, r ProcessRequest) (*Process, error) {
	members, err := r.members()
	if err != nil {
		return nil, err
	}
	if r.Name != "" {
		members["name"] = r.Name
	}
	if r.TTY {
		members["tty"] = true
	}
	if r.Cols > 0 || r.Rows > 0 {
		members["cols"], members["rows"] = max(r.Cols, 1), max(r.Rows, 1)
	}
	if r.StdinOpen {
		members["stdin_open"] = true
	}
	call, err := keyedPost(p.path(), members, r.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	return p.one(ctx, call, "start a process in "+p.sandbox)
}

// List answers the processes that clients started and that run or ended not long ago; with all, every process there is.
func (p *Processes) List(ctx context.Context, all bool) ([]Process, error) {
	query := url.Values{}
	if all {
		query.Set("all", "true")
	}
	return collect[Process](ctx, p.c, p.path(), query, "list processes of "+p.sandbox)
}

// Get answers one process.
func (p *Processes) Get(ctx context.Context, process string) (*Process, error) {
	return p.one(ctx, &call{method: http.MethodGet, path: p.path(process)}, "get process "+process)
}

// Stream attaches to a process and yields its output from offset on (0: all that is kept), as [Client.Stream] does. Where the
// process ran code, a [ResultEvent] follows the exit.
func (p *Processes) Stream(ctx context.Context, process string, offset int64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		f := &follower{c: p.c, sandbox: p.sandbox, process: process, offset: offset, until: untilEOF}
		f.run(ctx, yield)
	}
}

// Attach joins a process that runs, or ended not long ago, from offset on.
func (p *Processes) Attach(ctx context.Context, process string, offset int64, o SessionIO) (*Session, error) {
	s := p.c.newSession(p.sandbox, "exec", o)
	s.process, s.offset = process, offset
	return s.begin(ctx, s.attach)
}

// StdinOptions says how input is passed; zero appends and leaves it open.
type StdinOptions struct {
	// Offset is where the input belongs, counted from the process's first byte: what it has had already is passed over, so that a
	// write can be repeated. Nil: after what it has had.
	Offset *int64
	Close  bool // the input ends there
}

// WriteStdin passes input to a process started with StdinOpen and answers how many bytes it has had in all. It waits while the
// process does not read, and is repeated after a fault only with an Offset and where input can be read at any position.
func (p *Processes) WriteStdin(ctx context.Context, process string, input io.Reader, o StdinOptions) (offset int64, err error) {
	query := url.Values{}
	if o.Offset != nil {
		query.Set("offset", strconv.FormatInt(*o.Offset, 10))
	}
	if o.Close {
		query.Set("close", "true")
	}
	r := &call{method: http.MethodPost, path: p.path(process, "stdin"), query: query}
	r.set("Content-Type", "application/octet-stream")
	if input == nil {
		input = http.NoBody
	}
	if err := r.stream(input, 0); err != nil {
		return 0, fmt.Errorf("write to process %s: %w", process, err)
	}
	r.safe = o.Offset != nil
	var answer struct {
		StdinOffset int64 `json:"stdin_offset"`
	}
	if _, err := p.c.json(ctx, r, &answer); err != nil {
		return 0, fmt.Errorf("write to process %s: %w", process, err)
	}
	return answer.StdinOffset, nil
}

// Resize tells a process's terminal its new size.
func (p *Processes) Resize(ctx context.Context, process string, cols, rows int) error {
	return p.act(ctx, process, "resize", map[string]any{"cols": cols, "rows": rows}, "resize process "+process)
}

// Signal sends a signal, named without SIG, to a process or to its whole tree.
func (p *Processes) Signal(ctx context.Context, process, signal string, tree bool) error {
	return p.act(ctx, process, "signal", map[string]any{"signal": signal, "tree": tree}, "send signal "+signal+" to process "+process)
}

func (p *Processes) act(ctx context.Context, process, action string, body map[string]any, attempted string) error {
	r, err := keyedPost(p.path(process, action), body, "")
	if err != nil {
		return err
	}
	if _, err := p.c.json(ctx, r, nil); err != nil {
		return fmt.Errorf("%s: %w", attempted, err)
	}
	return nil
}

// Wait returns the process once it has ended, or an error once ctx has.
func (p *Processes) Wait(ctx context.Context, process string) (*Process, error) {
	for attempt := 0; ; attempt++ {
		asked := time.Now()
		found, err := p.WaitFor(ctx, process, time.Minute)
		if err != nil || !found.Running() {
			return found, err
		}
		if time.Since(asked) < time.Second { // the server did not wait for us
			if err := sleep(ctx, backoff(attempt)); err != nil {
				return nil, fmt.Errorf("wait for process %s: %w", process, err)
			}
		}
	}
}

// WaitFor returns the process once it has ended, or as it runs after the time given, of which the server takes at most 5 minutes.
func (p *Processes) WaitFor(ctx context.Context, process string, limit time.Duration) (*Process, error) {
	query := url.Values{"timeout_seconds": {formatSeconds(min(max(limit, 0), maxServerWait))}}
	return p.one(ctx, &call{method: http.MethodGet, path: p.path(process, "wait"), query: query}, "wait for process "+process)
}

func (p *Processes) path(more ...string) []string {
	return sandboxPath(p.sandbox, append([]string{"processes"}, more...)...)
}

func (p *Processes) one(ctx context.Context, r *call, attempted string) (*Process, error) {
	out := new(Process)
	if _, err := p.c.json(ctx, r, out); err != nil {
		return nil, fmt.Errorf("%s: %w", attempted, err)
	}
	return out, nil
}

// ProcessLogs is a stretch of a process's kept output.
type ProcessLogs struct {
	ProcessID  string      `json:"process_id"`
	Offset     int64       `json:"offset"` // counting stdout and stderr together
	NextOffset int64       `json:"next_offset"`
	Size       int64       `json:"size"` // of all output so far
	Stdout     []byte      `json:"stdout_base64"`
	Stderr     []byte      `json:"stderr_base64"`
	Gaps       []StreamGap `json:"gaps"` // what was not kept of this stretch
	Status     string      `json:"status"`
	ExitCode   int         `json:"exit_code"` // once Status is not running

	Raw json.RawMessage `json:"-"`
}

// StreamGap is output of one stream that was not kept.
type StreamGap struct {
	Stream string `json:"stream"` // stdout, stderr
	Gap
}

// Complete reports whether the process has ended and nothing of its output follows.
func (l *ProcessLogs) Complete() bool { return l.Status != "running" && l.NextOffset >= l.Size }

// UnmarshalJSON keeps the object as it came in Raw.
func (l *ProcessLogs) UnmarshalJSON(data []byte) error {
	type plain ProcessLogs
	return keeping(data, (*plain)(l), &l.Raw)
}

// LogsOptions selects a stretch of output; zero is the beginning, up to the server's limit.
type LogsOptions struct {
	Offset int64
	Limit  int64 // bytes; 0: the server's choice
}

// Logs answers what is kept of one stretch of output, and never waits. [Processes.LogPages] goes on, [Processes.Stream] follows.
func (p *Processes) Logs(ctx context.Context, process string, o LogsOptions) (*ProcessLogs, error) {
	query := url.Values{"offset": {strconv.FormatInt(o.Offset, 10)}, "encoding": {"base64"}}
	if o.Limit > 0 {
		query.Set("limit", strconv.FormatInt(o.Limit, 10))
	}
	logs := new(ProcessLogs)
	if _, err := p.c.json(ctx, &call{method: http.MethodGet, path: p.path(process, "logs"), query: query}, logs); err != nil {
		return nil, fmt.Errorf("logs of process %s: %w", process, err)
	}
	return logs, nil
}

// errStuck is a server that answers the same page again and again.
var errStuck = errors.New("the server does not advance")

// LogPages yields the output that there is, from o.Offset on, page by page, and ends there without waiting for more.
func (p *Processes) LogPages(ctx context.Context, process string, o LogsOptions) iter.Seq2[*ProcessLogs, error] {
	return func(yield func(*ProcessLogs, error) bool) {
		for {
			logs, err := p.Logs(ctx, process, o)
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(logs, nil) || logs.NextOffset >= logs.Size {
				return
			}
			if logs.NextOffset <= o.Offset {
				yield(nil, fmt.Errorf("logs of process %s from %d: %w", process, o.Offset, errStuck))
				return
			}
			o.Offset = logs.NextOffset
		}
	}
}
