package api

import (
	"context"
	"net/http"
	"strconv"

	"github.com/cayhq/cay"
)

// sandboxEvent is something that happened to a sandbox.
type sandboxEvent struct {
	ID        string         `json:"id" doc:"Digits; grows with every event"`
	SandboxID cay.ID         `json:"sandbox_id"`
	Type      cay.EventType  `json:"type" doc:"status, oom, disk_full; further ones may come"`
	At        moment         `json:"at"`
	Data      map[string]any `json:"data" doc:"Of status: from, to, reason. Of oom: process_id, pid, rss_mb. Of disk_full: disk_mb, limit_mb"`
}

func eventOf(e cay.Event) sandboxEvent {
	out := sandboxEvent{ID: strconv.FormatInt(e.Seq, 10), SandboxID: e.SandboxID, Type: e.Type, At: moment(e.At), Data: e.Data}
	if out.Data == nil {
		out.Data = map[string]any{}
	}
	return out
}

// eventList is a page of events, and whether some are missing before it.
type eventList struct {
	Items      []sandboxEvent `json:"items"`
	NextCursor *string        `json:"next_cursor" doc:"Give it as after for what follows; null at the end of what there is now"`
	Reset      bool           `json:"reset" doc:"Events after the id that was given are no longer kept: the page begins with the oldest that is"`
}

type eventsInput struct {
	SandboxPath
	FeedQuery
}

// followPage is how many events a stream reads at once.
const followPage = 100

func (a *API) listEvents(w http.ResponseWriter, r *http.Request, in *eventsInput) error {
	id, err := in.id()
	if err != nil {
		return err
	}
	after, err := in.position()
	if err != nil {
		return err
	}
	project := exchangeOf(r.Context()).identity.ProjectID
	stream, follow := in.streamed(r)
	if !stream {
		p, err := a.Sandboxes.Events(r.Context(), project, id, after, in.Limit)
		if err != nil {
			return err
		}
		list := eventList{Reset: p.Reset}
		list.Items = make([]sandboxEvent, len(p.Events))
		for i, e := range p.Events {
			list.Items[i] = eventOf(e)
		}
		if n := len(p.Events); n == in.Limit && !p.Ended {
			list.NextCursor = &list.Items[n-1].ID
		}
		return writeJSON(w, list)
	}
	if err := noHead(r); err != nil {
		return err
	}
	first, err := a.Sandboxes.Events(r.Context(), project, id, after, followPage)
	if err != nil {
		return err
	}
	batch := func(p cay.EventPage, err error) feedBatch {
		b := feedBatch{end: p.Ended || !follow && len(p.Events) < followPage, err: err}
		if p.Reset {
			b.events, after = append(b.events, feedEvent{"reset", "", struct{}{}}), 0
		}
		for _, e := range p.Events {
			out := eventOf(e)
			b.events, after = append(b.events, feedEvent{string(e.Type), out.ID, out}), e.Seq
		}
		return b
	}
	return a.sendFeed(w, r, batch(first, nil), func(ctx context.Context) feedBatch {
		if !follow {
			return batch(a.Sandboxes.Events(ctx, project, id, after, followPage))
		}
		return batch(a.Sandboxes.NextEvents(ctx, project, id, after, followPage))
	})
}
