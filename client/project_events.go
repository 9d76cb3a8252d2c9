package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/url"
	"time"
)

// ProjectEvent is something that happened to a sandbox, a job or a session. Ids that do not apply are empty.
type ProjectEvent struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"` // status, oom, disk_full (of a sandbox), job_status, session_status, or one of a newer server; [EventReset]
	At        time.Time       `json:"at"`
	SandboxID string          `json:"sandbox_id"`
	JobID     string          `json:"job_id"`
	SessionID string          `json:"session_id"`
	Data      json.RawMessage `json:"data"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (e *ProjectEvent) UnmarshalJSON(data []byte) error {
	type plain ProjectEvent
	return keeping(data, (*plain)(e), &e.Raw)
}

// MarshalJSON writes the object as it came.
func (e ProjectEvent) MarshalJSON() ([]byte, error) {
	type plain ProjectEvent
	return orRaw(e.Raw, plain(e))
}

// ProjectEventOptions says where the events begin, which ones are told, and whether they go on.
type ProjectEventOptions struct {
	FeedOptions
	Types []string // only those; empty: all
}

// ProjectEvents yields what happened in the project, oldest first. With Follow it goes on as things happen, over broken connections,
// until ctx ends, with whose cause it then ends.
func (c *Client) ProjectEvents(ctx context.Context, o ProjectEventOptions) iter.Seq2[ProjectEvent, error] {
	query := url.Values{}
	setAll(query, map[string]string{"types": joined(o.Types)})
	f := growing{path: []string{"v1", "events"}, query: query, attempted: "events of the project", unending: o.Follow}
	return entries(ctx, c, f, o.FeedOptions, func(ev sseEvent) (e ProjectEvent, ok bool, err error) {
		if ev.name == EventReset {
			return ProjectEvent{Type: EventReset}, true, nil
		}
		err = json.Unmarshal(ev.data, &e)
		return e, err == nil, err
	})
}
