package api

import (
	"context"
	"net/http"
	"strconv"

	"github.com/cayhq/cay"
)

// projectEvent is something that happened to a sandbox, a job or a session.
type projectEvent struct {
	ID        string         `json:"id" doc:"Digits; grows with every event"`
	Type      cay.EventType  `json:"type" doc:"status, oom, disk_full (of a sandbox), job_status, session_status; further ones may come"`
	At        moment         `json:"at"`
	SandboxID *string        `json:"sandbox_id" doc:"Of a job the one that it runs in; null: none"`
	JobID     *string        `json:"job_id" doc:"Of a job's; null of others"`
	SessionID *string        `json:"session_id" doc:"Of a session's; null of others"`
	Data      map[string]any `json:"data" doc:"Of status: from, to, reason. Of oom: process_id, pid, rss_mb. Of disk_full: disk_mb, limit_mb. Of job_status: from, to, attempt. Of session_status: from, to, reason. from is empty of what is new"`
}

func projectEventOf(e cay.Event) projectEvent {
	out := projectEvent{
		ID: strconv.FormatInt(e.Seq, 10), Type: e.Type, At: moment(e.At), SandboxID: nullable(string(e.SandboxID)),
		JobID: nullable(string(e.JobID)), SessionID: nullable(string(e.SessionID)), Data: e.Data,
	}
	if out.Data == nil {
		out.Data = map[string]any{}
	}
	return out
}

type projectEventList struct {
	Items      []projectEvent `json:"items"`
	NextCursor *string        `json:"next_cursor" doc:"Give it as after for what follows; null at the end of what there is now"`
	Reset      bool           `json:"reset" doc:"Events after the id that was given are no longer kept: the page begins with the oldest that is"`
}

type projectEventsInput struct {
	FeedQuery
	Types string `query:"types" doc:"Only those, comma-joined: status, oom, disk_full, job_status, session_status" example:"job_status,session_status"`
}

func (a *API) listProjectEvents(w http.ResponseWriter, r *http.Request, in *projectEventsInput) error {
	after, err := in.position()
	if err != nil {
		return err
	}
	types, err := words("types", in.Types, asStrings(cay.EventTypes))
	if err != nil {
		return err
	}
	project := exchangeOf(r.Context()).identity.ProjectID
	q := cay.EventQuery{Types: fromStrings[cay.EventType](types), After: after, Limit: in.Limit}
	stream, follow := in.streamed(r)
	if !stream {
		p, err := a.History.Events(r.Context(), project, q)
		if err != nil {
			return err
		}
		list := projectEventList{Reset: p.Reset, Items: make([]projectEvent, len(p.Events))}
		for i, e := range p.Events {
			list.Items[i] = projectEventOf(e)
		}
		if n := len(p.Events); n == in.Limit {
			list.NextCursor = &list.Items[n-1].ID
		}
		return writeJSON(w, list)
	}
	if err := noHead(r); err != nil {
		return err
	}
	q.Limit = followPage
	first, err := a.History.Events(r.Context(), project, q)
	if err != nil {
		return err
	}
	batch := func(p cay.EventPage, err error) feedBatch {
		b := feedBatch{end: !follow && len(p.Events) < followPage, err: err}
		if p.Reset {
			b.events, q.After = append(b.events, feedEvent{"reset", "", struct{}{}}), 0
		}
		for _, e := range p.Events {
			out := projectEventOf(e)
			b.events, q.After = append(b.events, feedEvent{string(e.Type), out.ID, out}), e.Seq
		}
		q.After = max(q.After, p.Next)
		return b
	}
	return a.sendFeed(w, r, batch(first, nil), func(ctx context.Context) feedBatch {
		if !follow {
			return batch(a.History.Events(ctx, project, q))
		}
		return batch(a.History.NextEvents(ctx, project, q))
	})
}
