package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// feed follows a stream of server-sent events that can be taken up again after the last id seen.
type feed struct {
	c         *Client
	attempted string
	open      func(lastID string) *call
	event     func(sseEvent) (stop bool, err error) // stop: the caller has left, or nothing can follow
	lost      func() (stop bool)                    // a connection broke and is being made again; may be nil
}

// errFeedEnded is the end of a stream in good order.
var errFeedEnded = errors.New("the server ended the stream")

// run returns nil once event has said stop, or the server has ended the stream in good order.
func (f *feed) run(ctx context.Context) error {
	var lastID string
	var brokenSince time.Time
	reached := false
	for attempt := 0; ; attempt++ {
		began := time.Now()
		progressed, stop, err := f.once(ctx, &lastID, &reached)
		if stop || errors.Is(err, errFeedEnded) {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if progressed || time.Since(began) >= shortLife {
			attempt, brokenSince = 0, time.Time{}
		}
		if brokenSince.IsZero() {
			brokenSince = time.Now()
		}
		after, again := mendable(err)
		if !again || !reached || time.Since(brokenSince) >= f.c.reconnectFor {
			return fmt.Errorf("%s: %w", f.attempted, err)
		}
		if f.lost != nil && f.lost() {
			return nil
		}
		if err := sleep(ctx, max(after, backoff(attempt))); err != nil {
			return err
		}
	}
}

// once follows one connection.
func (f *feed) once(ctx context.Context, lastID *string, reached *bool) (progressed, stop bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := f.open(*lastID)
	r.set("Accept", "text/event-stream")
	if *lastID != "" {
		r.set("Last-Event-ID", *lastID)
	}
	res, err := f.c.do(ctx, r)
	if err != nil {
		return false, false, err
	}
	defer res.Body.Close()
	*reached = true
	watch := newWatchdog(f.c.silence, func() { cancel(fmt.Errorf("nothing came for %s: %w", f.c.silence, errBroken)) })
	defer watch.stop()
	events := newSSEReader(watch.reader(res.Body))
	for {
		ev, err := events.next()
		switch {
		case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return progressed, false, errFeedEnded
		case err != nil:
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return progressed, false, err
		}
		watch.stop() // the caller's time is its own
		if ev.id != "" {
			*lastID = ev.id
		}
		stop, err = f.event(ev)
		if stop || err != nil {
			return true, stop, err
		}
		progressed = true
		watch.feed()
	}
}
