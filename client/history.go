package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// History is what ran, and what was there, and is over: commands, programs, processes, terminals, jobs, sessions and sandboxes.
type History struct{ c *Client }

// History is that of the key's project.
func (c *Client) History() *History { return &History{c} }

// RecordKind says what a record tells of: one of these, or one of a newer server.
type RecordKind string

const (
	RecordSandbox  RecordKind = "sandbox"
	RecordJob      RecordKind = "job"
	RecordSession  RecordKind = "session"
	RecordExec     RecordKind = "exec"     // a command in the foreground
	RecordCode     RecordKind = "code"     // a program
	RecordProcess  RecordKind = "process"  // a command in the background
	RecordTerminal RecordKind = "terminal" // a shell on a TTY
)

// Record is one line of the history. What does not apply is zero.
type Record struct {
	ID           string        `json:"id"` // of what it tells: prc_, job_, ses_ or sbx_
	Kind         RecordKind    `json:"kind"`
	ProjectID    string        `json:"project_id"`
	KeyID        string        `json:"key_id"` // who asked for it; "": the platform itself, or not known
	SandboxID    string        `json:"sandbox_id"`
	SessionID    string        `json:"session_id"`
	Name         string        `json:"name"`
	Command      string        `json:"command"` // its beginning; "" where the server does not record commands
	Language     string        `json:"language"`
	Outcome      string        `json:"outcome"` // an exit's reason, a job's status, or the status_reason of a sandbox or session
	OK           bool          `json:"ok"`      // it ended as one would wish
	ExitCode     *int          `json:"exit_code"`
	Signal       string        `json:"signal"`
	StartedAt    time.Time     `json:"started_at"`
	EndedAt      time.Time     `json:"ended_at"`
	Duration     time.Duration `json:"-"`
	StdoutBytes  int64         `json:"stdout_bytes"`
	StderrBytes  int64         `json:"stderr_bytes"`
	CPUSeconds   float64       `json:"cpu_seconds"`
	PeakMemoryMB int64         `json:"peak_memory_mb"`
	TraceID      string        `json:"trace_id"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (r *Record) UnmarshalJSON(data []byte) error {
	type plain Record
	doc := struct {
		*plain
		DurationMS int64 `json:"duration_ms"`
	}{plain: (*plain)(r)}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	r.Duration = time.Duration(doc.DurationMS) * time.Millisecond
	r.Raw = append(r.Raw[:0:0], data...)
	return nil
}

// MarshalJSON writes the object as it came.
func (r Record) MarshalJSON() ([]byte, error) {
	type plain Record
	return orRaw(r.Raw, plain(r))
}

// HistoryOptions selects records; zero is all of the project, newest end first.
type HistoryOptions struct {
	Kinds       []RecordKind
	SandboxID   string
	SessionID   string
	KeyID       string
	Outcomes    []string
	OK          *bool     // only those that ended as one would wish, or that did not
	Text        string    // part of the command or the name
	From, To    time.Time // of the end: at or after, before
	AllProjects bool      // for keys with the scope admin
	Ascending   bool
	PageSize    int // of one request, at most 200
}

// List answers the records page by page as they are asked for. It ends after the first error.
func (h *History) List(ctx context.Context, o HistoryOptions) iter.Seq2[*Record, error] {
	query := pastQuery(o.From, o.To, o.AllProjects, o.Ascending, o.PageSize)
	setAll(query, map[string]string{
		"kind": joined(o.Kinds), "sandbox_id": o.SandboxID, "session_id": o.SessionID, "key_id": o.KeyID, "outcome": joined(o.Outcomes), "text": o.Text,
	})
	if o.OK != nil {
		query.Set("ok", strconv.FormatBool(*o.OK))
	}
	return pages[*Record](ctx, h.c, []string{"v1", "history"}, query, "list the history")
}

// Get answers the record of a process, job, session or sandbox that is over, by its id; what is not over yet is not_found.
func (h *History) Get(ctx context.Context, id string) (*Record, error) {
	r := new(Record)
	if _, err := h.c.json(ctx, &call{method: http.MethodGet, path: []string{"v1", "history", id}}, r); err != nil {
		return nil, fmt.Errorf("get the record of %s: %w", id, err)
	}
	return r, nil
}

// pastQuery is what all lists of what is over take.
func pastQuery(from, to time.Time, allProjects, ascending bool, pageSize int) url.Values {
	query := url.Values{}
	for name, at := range map[string]time.Time{"from": from, "to": to} {
		if !at.IsZero() {
			query.Set(name, formatTime(at))
		}
	}
	if allProjects {
		query.Set("all_projects", "true")
	}
	if ascending {
		query.Set("order", "asc")
	}
	if pageSize > 0 {
		query.Set("limit", strconv.Itoa(pageSize))
	}
	return query
}

// setAll sets what is not empty.
func setAll(query url.Values, values map[string]string) {
	for name, v := range values {
		if v != "" {
			query.Set(name, v)
		}
	}
}

func joined[S ~string](list []S) string {
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = string(s)
	}
	return strings.Join(names, ",")
}
