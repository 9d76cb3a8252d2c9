package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Fields are the members of a JSON object, as a test writes them.
type Fields map[string]any

// With is a copy of f with more set over it.
func (f Fields) With(more ...Fields) Fields {
	out := Fields{}
	for _, m := range append([]Fields{f}, more...) {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}

// Client speaks plain HTTP to a server.
type Client struct {
	URL, Key string
	HTTP     *http.Client
}

// NewClient makes a client whose requests are bounded by their contexts alone.
func NewClient(url, key string) *Client {
	return &Client{URL: url, Key: key, HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 5 * time.Second}}}
}

// Response is an answer, read to its end.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Problem is what an error answer says.
type Problem struct {
	Type, Title, Detail, Reason, Field string
	Status                             int
	RequestID                          string `json:"request_id"`
	StatusReason                       string `json:"status_reason"`
}

// Problem decodes an error answer; Reason is "" when it is none.
func (r Response) Problem() Problem {
	var p Problem
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/problem+json") {
		_ = json.Unmarshal(r.Body, &p) // what is not there stays empty, which no test expects
	}
	return p
}

func (r Response) String() string {
	body := string(r.Body)
	if len(body) > 500 {
		body = fmt.Sprintf("%s… (%d bytes)", body[:500], len(body))
	}
	return fmt.Sprintf("%d %s", r.Status, body)
}

// Decode reads the body as JSON, if the status is the one wanted.
func (r Response) Decode(want int, into any) error {
	if r.Status != want {
		return fmt.Errorf("status %d wanted, got %v", want, r)
	}
	if err := json.Unmarshal(r.Body, into); err != nil {
		return fmt.Errorf("decode %v: %w", r, err)
	}
	return nil
}

// Request builds a request with the client's key. body: nil, an io.Reader or []byte as it is, or something to be sent as JSON.
func (c *Client) Request(ctx context.Context, method, path string, body any, headers ...string) (*http.Request, error) {
	var r io.Reader
	contentType := ""
	switch b := body.(type) {
	case nil:
	case io.Reader:
		r, contentType = b, "application/octet-stream"
	case []byte:
		r, contentType = bytes.NewReader(b), "application/octet-stream"
	default:
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r, contentType = bytes.NewReader(raw), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, r)
	if err != nil {
		return nil, err
	}
	if c.Key != "" {
		req.Header.Set("Authorization", "Bearer "+c.Key)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for n := 0; n+1 < len(headers); n += 2 {
		if strings.EqualFold(headers[n], "Host") {
			req.Host = headers[n+1]
			continue
		}
		if headers[n+1] == "" { // not sent at all
			req.Header.Del(headers[n])
			continue
		}
		req.Header.Set(headers[n], headers[n+1])
	}
	return req, nil
}

// Do sends a request and reads the whole answer.
func (c *Client) Do(ctx context.Context, method, path string, body any, headers ...string) (Response, error) {
	req, err := c.Request(ctx, method, path, body, headers...)
	if err != nil {
		return Response{}, err
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return Response{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return Response{}, fmt.Errorf("read the answer of %s %s: %w", method, path, err)
	}
	return Response{resp.StatusCode, resp.Header, b}, nil
}

// Ready is nil once /readyz says so.
func (c *Client) Ready(ctx context.Context) error {
	resp, err := c.Do(ctx, "GET", "/readyz", nil)
	if err == nil && resp.Status != 200 {
		err = fmt.Errorf("readyz: %v", resp)
	}
	return err
}

// SandboxObject is the part of the API's sandbox object that tests look at.
type SandboxObject struct {
	ID           string            `json:"id"`
	SandboxID    string            `json:"sandbox_id"`
	Status       string            `json:"status"`
	StatusReason string            `json:"status_reason"`
	WorkerID     string            `json:"worker_id"`
	CPU          float64           `json:"cpu"`
	MemoryMB     int64             `json:"memory_mb"`
	DiskGB       float64           `json:"disk_gb"`
	Pids         int64             `json:"pids"`
	Env          map[string]string `json:"env"`
	Metadata     map[string]string `json:"metadata"`
	CreatedAt    time.Time         `json:"created_at"`
	ReadyAt      *time.Time        `json:"ready_at"`
	ExpiresAt    *time.Time        `json:"expires_at"`
	EndedAt      *time.Time        `json:"ended_at"`
	CreateMS     struct{ Queue, Schedule, Boot, Total int64 }
	Usage        struct {
		CPUSeconds   float64 `json:"cpu_seconds"`
		PeakMemoryMB int64   `json:"peak_memory_mb"`
		DiskMB       int64   `json:"disk_mb"`
	} `json:"usage"`
}

// CreateSandbox makes one and waits until it is READY.
func (c *Client) CreateSandbox(ctx context.Context, fields Fields) (SandboxObject, error) {
	var sb SandboxObject
	resp, err := c.Do(ctx, "POST", "/v1/sandboxes", Fields{"image": "host"}.With(fields))
	if err != nil {
		return sb, fmt.Errorf("create a sandbox: %w", err)
	}
	if err := resp.Decode(201, &sb); err != nil {
		return sb, fmt.Errorf("create a sandbox: %w", err)
	}
	if sb.Status != "READY" {
		return sb, fmt.Errorf("create a sandbox: 201 with status %s", sb.Status)
	}
	return sb, nil
}

// GetSandbox reads it.
func (c *Client) GetSandbox(ctx context.Context, id string) (SandboxObject, error) {
	var sb SandboxObject
	resp, err := c.Do(ctx, "GET", "/v1/sandboxes/"+id, nil)
	if err != nil {
		return sb, err
	}
	return sb, resp.Decode(200, &sb)
}

// DeleteSandbox deletes it and waits until its resources are free.
func (c *Client) DeleteSandbox(ctx context.Context, id string) error {
	return c.remove(ctx, "/v1/sandboxes/"+id, 204)
}

// remove deletes something and asks until the answer is that it is gone.
func (c *Client) remove(ctx context.Context, target string, gone int) error {
	return Until(2*time.Minute, func() error {
		resp, err := c.Do(ctx, "DELETE", target, nil)
		if err != nil {
			return fmt.Errorf("delete %s: %w", target, err)
		}
		if resp.Status != gone {
			return fmt.Errorf("delete %s: %v", target, resp)
		}
		return nil
	})
}

// ListSandboxes reads every page of a list; query is what follows the question mark.
func (c *Client) ListSandboxes(ctx context.Context, query string) ([]SandboxObject, error) {
	return list[SandboxObject](ctx, c, "/v1/sandboxes", query)
}

// list reads every page of a list.
func list[T any](ctx context.Context, c *Client, path, query string) ([]T, error) {
	var all []T
	cursor := ""
	for {
		resp, err := c.Do(ctx, "GET", path+"?limit=200&"+query+cursor, nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Items      []T    `json:"items"`
			NextCursor string `json:"next_cursor"`
		}
		if err := resp.Decode(200, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.NextCursor == "" {
			return all, nil
		}
		cursor = "&cursor=" + page.NextCursor
	}
}

// DeleteAll deletes whatever has not ended yet: jobs, sandboxes, sessions.
func (c *Client) DeleteAll(ctx context.Context) error {
	type named struct{ ID string }
	jobs, err := list[named](ctx, c, "/v1/jobs", "status=active")
	faults := []error{err}
	for _, j := range jobs {
		faults = append(faults, c.remove(ctx, "/v1/jobs/"+j.ID, 200))
	}
	live, err := c.ListSandboxes(ctx, "managed=true&status=CREATING,READY,PAUSED,TERMINATING")
	faults = append(faults, err)
	for _, sb := range live {
		faults = append(faults, c.DeleteSandbox(ctx, sb.ID))
	}
	sessions, err := list[named](ctx, c, "/v1/sessions", "")
	faults = append(faults, err)
	for _, s := range sessions {
		faults = append(faults, c.remove(ctx, "/v1/sessions/"+s.ID+"?force=true", 204))
	}
	return errors.Join(faults...)
}

// ExecResult is the answer of an exec.
type ExecResult struct {
	ProcessID    string `json:"process_id"`
	ExitCode     int    `json:"exit_code"`
	Signal       string `json:"signal"`
	OK           bool   `json:"ok"`
	Reason       string `json:"reason"`
	TimedOut     bool   `json:"timed_out"`
	Killed       bool   `json:"killed"`
	OOM          bool   `json:"oom"`
	DurationMS   int64  `json:"duration_ms"`
	Stdout       string `json:"stdout"`
	Stderr       string `json:"stderr"`
	StdoutBase64 []byte `json:"stdout_base64"`
	StderrBase64 []byte `json:"stderr_base64"`
	StdoutSize   int64  `json:"stdout_size"`
	StderrSize   int64  `json:"stderr_size"`
	StdoutGap    *Gap   `json:"stdout_gap"`
	StderrGap    *Gap   `json:"stderr_gap"`
	Truncated    PerStream
	Lossy        PerStream
}

// Gap is a run of output that was not kept.
type Gap struct {
	Stream        string
	Offset, Bytes int64
}

// PerStream is a flag for each stream.
type PerStream struct{ Stdout, Stderr bool }

// Exec runs a command. A string is run by the shell.
func (c *Client) Exec(ctx context.Context, id string, command any, more ...Fields) (ExecResult, error) {
	var out ExecResult
	resp, err := c.Do(ctx, "POST", "/v1/sandboxes/"+id+"/exec", Fields{"command": command}.With(more...))
	if err != nil {
		return out, fmt.Errorf("exec in %s: %w", id, err)
	}
	if err := resp.Decode(200, &out); err != nil {
		return out, fmt.Errorf("exec in %s: %w", id, err)
	}
	return out, nil
}
