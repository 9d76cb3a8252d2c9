package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Sample is what a sandbox used at a moment.
type Sample struct {
	At             time.Time `json:"at"`
	CPUCores       float64   `json:"cpu_cores"`   // since the sample before
	CPUSeconds     float64   `json:"cpu_seconds"` // in all
	MemoryMB       float64   `json:"memory_mb"`
	PeakMemoryMB   float64   `json:"peak_memory_mb"`
	DiskMB         float64   `json:"disk_mb"`
	Pids           int64     `json:"pids"`
	NetworkRxBytes int64     `json:"network_rx_bytes"` // in all
	NetworkTxBytes int64     `json:"network_tx_bytes"`
}

// Metrics are a sandbox's samples, oldest first.
type Metrics struct {
	Items    []Sample      `json:"items"`
	Interval time.Duration `json:"-"` // between samples

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON reads interval_seconds.
func (m *Metrics) UnmarshalJSON(data []byte) error {
	type plain Metrics
	doc := struct {
		*plain
		Interval seconds `json:"interval_seconds"`
	}{plain: (*plain)(m)}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	m.Interval = doc.Interval.duration()
	m.Raw = append(m.Raw[:0:0], data...)
	return nil
}

// MetricsOptions selects samples; zero is the last hour.
type MetricsOptions struct {
	From, To time.Time
	Limit    int
}

// Metrics answers what a sandbox has used over time. Asking is no use of the sandbox: its idle clock runs on.
func (c *Client) Metrics(ctx context.Context, sandbox string, o MetricsOptions) (*Metrics, error) {
	query := url.Values{}
	for name, at := range map[string]time.Time{"from": o.From, "to": o.To} {
		if !at.IsZero() {
			query.Set(name, formatTime(at))
		}
	}
	if o.Limit > 0 {
		query.Set("limit", strconv.Itoa(o.Limit))
	}
	m := new(Metrics)
	if _, err := c.json(ctx, &call{method: http.MethodGet, path: sandboxPath(sandbox, "metrics"), query: query}, m); err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", sandbox, err)
	}
	return m, nil
}

func formatTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// SandboxEvent is something that happened to a sandbox.
type SandboxEvent struct {
	ID        string          `json:"id"`
	SandboxID string          `json:"sandbox_id"`
	Type      string          `json:"type"`
	At        time.Time       `json:"at"`
	Data      json.RawMessage `json:"data"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (e *SandboxEvent) UnmarshalJSON(data []byte) error {
	type plain SandboxEvent
	return keeping(data, (*plain)(e), &e.Raw)
}

// MarshalJSON writes the object as it came.
func (e SandboxEvent) MarshalJSON() ([]byte, error) {
	type plain SandboxEvent
	return orRaw(e.Raw, plain(e))
}

// EventReset is the Type of an event that says: what came after the id asked for is no longer all kept, and what follows begins
// with the oldest that is.
const EventReset = "reset"

// FeedOptions says where a feed begins and whether it goes on.
type FeedOptions struct {
	After  string // the id of the last one known; "": from the oldest that is kept
	Follow bool   // wait for more, until the sandbox's end or ctx's
}

// Events yields what happened to a sandbox, oldest first, also to one that has ended. With Follow it goes on as things happen,
// over broken connections, until the sandbox has ended.
func (c *Client) Events(ctx context.Context, sandbox string, o FeedOptions) iter.Seq2[SandboxEvent, error] {
	return entries(ctx, c, ofSandbox(sandbox, "events"), o, func(ev sseEvent) (e SandboxEvent, ok bool, err error) {
		if ev.name == EventReset {
			return SandboxEvent{SandboxID: sandbox, Type: EventReset}, true, nil
		}
		err = json.Unmarshal(ev.data, &e)
		return e, err == nil, err
	})
}

// LogEntry is a line of what boot, the agent and the installation of packages said; a process's output is in [Processes.Logs].
type LogEntry struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Source  string    `json:"source"` // boot, agent, packages
	Level   string    `json:"level"`
	Message string    `json:"message"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (l *LogEntry) UnmarshalJSON(data []byte) error {
	type plain LogEntry
	return keeping(data, (*plain)(l), &l.Raw)
}

// MarshalJSON writes the object as it came.
func (l LogEntry) MarshalJSON() ([]byte, error) {
	type plain LogEntry
	return orRaw(l.Raw, plain(l))
}

// Logs yields what was said around a sandbox, oldest first. With Follow it goes on, over broken connections, until the sandbox has
// ended.
func (c *Client) Logs(ctx context.Context, sandbox string, o FeedOptions) iter.Seq2[LogEntry, error] {
	return entries(ctx, c, ofSandbox(sandbox, "logs"), o, func(ev sseEvent) (e LogEntry, ok bool, err error) {
		if ev.name != "log" {
			return e, false, nil
		}
		err = json.Unmarshal(ev.data, &e)
		return e, err == nil, err
	})
}

// growing is where a list that grows is read.
type growing struct {
	path      []string
	query     url.Values
	attempted string
	unending  bool // the list has no last entry: the server ends a stream of it only when it restarts
}

// ofSandbox is a list of a sandbox, which ends with it.
func ofSandbox(sandbox, what string) growing {
	return growing{path: sandboxPath(sandbox, what), attempted: what + " of " + sandbox}
}

// entries yields a list that grows: what there is, or as it grows. Either way it is read as a stream, which tells of a reset.
func entries[T any](ctx context.Context, c *Client, of growing, o FeedOptions, decode func(sseEvent) (T, bool, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		f := &feed{c: c, attempted: of.attempted, unending: of.unending,
			open: func(lastID string) *call {
				query := cloneValues(of.query)
				query.Set("follow", strconv.FormatBool(o.Follow))
				if o.After != "" && lastID == "" {
					query.Set("after", o.After)
				}
				return &call{method: http.MethodGet, path: of.path, query: query}
			},
			event: func(ev sseEvent) (bool, error) {
				if err := errorEvent(ev); err != nil {
					return false, err
				}
				e, ok, err := decode(ev)
				if err != nil {
					return false, fmt.Errorf("%w: event %q: %w", errProtocol, ev.name, err)
				}
				return ok && !yield(e, nil), nil
			},
		}
		if err := f.run(ctx); err != nil {
			yield(none, err)
		}
	}
}

// errorEvent is the error that an event of that name tells; nil for any other.
func errorEvent(ev sseEvent) error {
	if ev.name != "error" {
		return nil
	}
	var doc struct{ Reason, Detail string }
	if err := json.Unmarshal(ev.data, &doc); err != nil {
		return fmt.Errorf("%w: event error: %w", errProtocol, err)
	}
	return &Error{Reason: doc.Reason, Detail: doc.Detail, Body: ev.data}
}
