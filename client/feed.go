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
	unending  bool                                  // event alone knows the last one: the server ends a stream in the middle when it restarts
}

// errFeedEnded is the end of a stream in good order.
var errFeedEnded = errors.New("the server ended the stream")

// run returns nil once event has said stop, or the server has ended the stream in good order.
func (f *feed) run(ctx context.Context) error {
	var lastID string
	var broken outage
	reached := false
	for {
		began := time.Now()
		progressed, stop, err := f.once(ctx, &lastID, &reached)
		if stop || errors.Is(err, errFeedEnded) && !f.unending {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if progressed || time.Since(began) >= shortLife {
			broken = outage{}
		}
		if err = fmt.Errorf("%s: %w", f.attempted, err); !reached || !broken.mayPass(err, f.c.reconnectFor) {
			return err
		}
		if f.lost != nil && f.lost() {
			return nil
		}
		if err := broken.rest(ctx, err); err != nil {
			return err
		}
	}
}

// outage is a time in which one connection after another fails.
type outage struct {
	since    time.Time // zero before the first failure
	failures int
}

// mayPass reports whether it is worth trying again after err, which ended a connection.
func (o *outage) mayPass(err error, limit time.Duration) bool {
	if o.since.IsZero() {
		o.since = time.Now()
	}
	_, again := mendable(err)
	return again && time.Since(o.since) < limit
}

// rest waits before the next try, longer each time. It fails when ctx ends.
func (o *outage) rest(ctx context.Context, err error) error {
	after, _ := mendable(err)
	o.failures++
	return sleep(ctx, max(after, backoff(o.failures-1)))
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
