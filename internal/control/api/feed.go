package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/control/api/streams"
)

// A feed is a list that grows, such as a sandbox's events: read in pages as JSON, or followed as server-sent events.

// FeedQuery is how a feed is asked for.
type FeedQuery struct {
	After       string `query:"after" doc:"The id of the last item seen: what came after it; default: from the oldest that is kept"`
	Limit       int    `query:"limit" default:"50" minimum:"1" maximum:"200" doc:"Of a page; a stream has none"`
	Follow      string `query:"follow" enum:"true,false" doc:"true: server-sent events, as with Accept: text/event-stream. false: a stream ends with what there is"`
	LastEventID string `header:"Last-Event-ID" doc:"The id of the last event that came; goes before after"`
}

// position is the id to go on from, zero for none.
func (q FeedQuery) position() (int64, error) {
	field, at := "after", q.After
	if q.LastEventID != "" {
		field, at = "Last-Event-ID", q.LastEventID
	}
	if at == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(at, 10, 64)
	if err != nil || n < 0 {
		return 0, cay.Errorf(cay.InvalidRequest, "`%s` must be an id that was given out here", field).On(field)
	}
	return n, nil
}

// streamed reports whether the answer is a stream, and whether it goes on once everything has been told.
func (q FeedQuery) streamed(r *http.Request) (stream, follow bool) {
	stream = q.Follow == "true" || accepts(r, eventStream)
	return stream, stream && q.Follow != "false"
}

// noHead refuses HEAD where the answer would be a stream.
func noHead(r *http.Request) error {
	if r.Method != http.MethodHead {
		return nil
	}
	return problem.From(cay.Errorf(cay.MethodNotAllowed, "a stream has no HEAD"), exchangeOf(r.Context()).requestID).WithHeader("Allow", http.MethodGet)
}

// beginEvents says that the answer is a stream of events, which nothing on the way is to hold back.
func beginEvents(h http.Header) {
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
}

// feedEvent is one event of a feed's stream.
type feedEvent struct {
	name, id string
	body     any
}

// feedBatch is what a feed has to tell next; end: nothing follows.
type feedBatch struct {
	events []feedEvent
	end    bool
	err    error
}

// sendFeed answers a stream of first and of what next answers, which blocks until there is something or ctx ends. A fault of next
// becomes an error event, and so does Close: a stream that just ends is whole. Only one batch is read ahead of the client.
func (a *API) sendFeed(w http.ResponseWriter, r *http.Request, first feedBatch, next func(context.Context) feedBatch) error {
	leave, err := a.enterStream()
	if err != nil {
		return err
	}
	defer leave()
	ctx, release := a.attended(r)
	defer release()
	reading, stop := context.WithCancel(ctx)
	batches := make(chan feedBatch)
	finished := make(chan struct{})
	defer func() {
		stop()
		<-finished
	}()
	go func() {
		defer close(finished)
		for b := first; reading.Err() == nil; b = next(reading) { // what next says of a reader who leaves is no end
			select {
			case batches <- b:
			case <-reading.Done():
				return
			}
			if b.end || b.err != nil {
				return
			}
		}
	}()

	beginEvents(w.Header())
	out := a.patient(w)
	defer out.reset()
	feed := streams.NewFeed(out)
	alive := time.NewTicker(a.Keepalive)
	defer alive.Stop()
	a.metrics.streams.Inc()
	defer a.metrics.streams.Dec()
	for {
		var b feedBatch
		select {
		case <-alive.C:
			feed.Comment()
		case b = <-batches:
		case <-ctx.Done():
			b.err = context.Cause(ctx)
		}
		if errors.Is(b.err, errClientGone) {
			return nil
		}
		a.metrics.told(ctx, b.err)
		if done, err := out.sendBatch(feed, b); done || err != nil {
			return nil //nolint:nilerr // the client is gone, or took nothing for too long: there is nobody to tell
		}
	}
}

// sendBatch writes and flushes a batch, also an empty one; done: it was the last.
func (p *patientWriter) sendBatch(feed *streams.Feed, b feedBatch) (done bool, err error) {
	for _, e := range b.events {
		if err := feed.Event(e.name, e.id, e.body); err != nil {
			return true, err
		}
	}
	if b.err != nil {
		d := problem.From(b.err, "")
		if err := feed.Event("error", "", streams.Failure{Reason: d.Reason, Detail: d.Detail}); err != nil {
			return true, err
		}
	}
	if err := feed.Flush(); err != nil {
		return true, err
	}
	return b.end || b.err != nil, p.control.Flush()
}
