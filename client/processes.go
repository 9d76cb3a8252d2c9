package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Process is a process of a sandbox. Only those that a client started have an ID.
type Process struct {
	ID         string    `json:"id"`
	PID        int64     `json:"pid"`
	PPID       int64     `json:"ppid"`
	Name       string    `json:"name"`
	Command    []string  `json:"-"`
	User       string    `json:"user"`
	Cwd        string    `json:"cwd"`
	Status     string    `json:"status"` // running, exited, failed
	ExitCode   int       `json:"exit_code"`
	Signal     string    `json:"signal"`
	Reason     string    `json:"reason"`
	StartedAt  time.Time `json:"started_at"`
	EndedAt    time.Time `json:"ended_at"`
	CPUSeconds float64   `json:"cpu_seconds"`
	MemoryMB   float64   `json:"memory_mb"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

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

// Processes answers the processes that clients started and that run or ended not long ago; with all, every process there is.
func (c *Client) Processes(ctx context.Context, sandbox string, all bool) ([]Process, error) {
	query := url.Values{}
	if all {
		query.Set("all", "true")
	}
	var out []Process
	for p, err := range pages[Process](ctx, c, sandboxPath(sandbox, "processes"), query) {
		if err != nil {
			return nil, fmt.Errorf("list processes of %s: %w", sandbox, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// Process answers a process by its id, decimal pid, or name.
func (c *Client) Process(ctx context.Context, sandbox, process string) (*Process, error) {
	p := new(Process)
	_, err := c.json(ctx, &call{method: http.MethodGet, path: sandboxPath(sandbox, "processes", process)}, p)
	return orNil(p, err)
}

// ProcessLogs is a stretch of a process's kept output.
type ProcessLogs struct {
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	NextOffset int64  `json:"next_offset"`

	Raw json.RawMessage `json:"-"`
}

// UnmarshalJSON keeps the object as it came in Raw.
func (l *ProcessLogs) UnmarshalJSON(data []byte) error {
	type plain ProcessLogs
	if err := json.Unmarshal(data, (*plain)(l)); err != nil {
		return err
	}
	l.Raw = append(l.Raw[:0:0], data...)
	return nil
}

// Logs answers kept output from offset on as text, at most limit bytes (0: the server's choice). [Client.StreamProcess] gives
// bytes, in order of both streams.
func (c *Client) Logs(ctx context.Context, sandbox, process string, offset, limit int64) (*ProcessLogs, error) {
	query := url.Values{"offset": {strconv.FormatInt(offset, 10)}}
	if limit > 0 {
		query.Set("limit", strconv.FormatInt(limit, 10))
	}
	logs := new(ProcessLogs)
	_, err := c.json(ctx, &call{method: http.MethodGet, path: sandboxPath(sandbox, "processes", process, "logs"), query: query}, logs)
	return orNil(logs, err)
}

// Signal sends a signal, named without SIG, to a process or to its whole tree.
func (c *Client) Signal(ctx context.Context, sandbox, process, signal string, tree bool) error {
	body := map[string]any{"signal": signal, "tree": tree}
	r, err := (&call{method: http.MethodPost, path: sandboxPath(sandbox, "processes", process, "signal")}).withJSON(body)
	if err != nil {
		return err
	}
	r.set("Idempotency-Key", newIdempotencyKey())
	if _, err := c.json(ctx, r, nil); err != nil {
		return fmt.Errorf("send signal %s to %s: %w", signal, process, err)
	}
	return nil
}
