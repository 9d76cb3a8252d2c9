package history

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// Events answers, oldest first, what happened in the project after q.After.
func (h *History) Events(ctx context.Context, project cay.ID, q cay.EventQuery) (cay.EventPage, error) {
	if err := checkLimit(q.Limit); err != nil {
		return cay.EventPage{}, err
	}
	if q.After < 0 {
		return cay.EventPage{}, cay.Errorf(cay.InvalidRequest, "after is the id of an event").On("after")
	}
	events, kept, err := h.store.Events(ctx, project, q)
	if err != nil {
		return cay.EventPage{}, err
	}
	page := cay.EventPage{Events: events, Reset: kept.Missed(q.After)}
	if page.Reset && q.After > kept.Newest {
		q.After = 0
		if page.Events, _, err = h.store.Events(ctx, project, q); err != nil {
			return cay.EventPage{}, err
		}
	}
	return page, nil
}

// NextEvents is Events that waits until there is one, or a reset, to tell of. It answers an empty page when ctx ends. The page's Next is
// as far as was looked, so that who asks again from there misses nothing, and is not told of a reset because nothing happened for long.
func (h *History) NextEvents(ctx context.Context, project cay.ID, q cay.EventQuery) (cay.EventPage, error) {
	looked, leave := h.feed.enter()
	defer leave()
	for {
		newest, changed := looked()
		page, err := h.Events(ctx, project, q)
		if ctx.Err() != nil {
			return cay.EventPage{}, nil //nolint:nilerr // nobody waits any more
		}
		if err != nil {
			return cay.EventPage{}, err
		}
		if len(page.Events) < q.Limit {
			page.Next = newest // of an earlier time than the page: all up to there are in it
		}
		if len(page.Events) > 0 || page.Reset {
			return page, nil
		}
		q.After = max(q.After, newest)
		select {
		case <-changed:
		case <-ctx.Done():
			return cay.EventPage{}, nil
		}
	}
}

// newest is the id of the newest event of any project.
func (h *History) newest(ctx context.Context) (int64, error) {
	_, newest, err := h.store.EventsSince(ctx, 0, 0)
	return newest, err
}

// feed looks for new events for all who follow together, and not at all while nobody does.
type feed struct {
	begin chan struct{} // has one when somebody began to follow

	mu        sync.Mutex
	followers int           // guarded by mu
	seen      int64         // guarded by mu; the newest event that was found; 0: none yet
	changed   chan struct{} // guarded by mu; closed when there may be something new
}

func newFeed() *feed { return &feed{begin: make(chan struct{}, 1), changed: make(chan struct{})} }

// enter begins to follow. looked answers the newest event that is known, and what is closed when there may be another; whoever reads
// after that misses nothing. leave must be called once.
func (f *feed) enter() (looked func() (newest int64, changed <-chan struct{}), leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.followers++
	select {
	case f.begin <- struct{}{}:
	default:
	}
	return func() (int64, <-chan struct{}) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.seen, f.changed
		}, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.followers--
		}
}

func (f *feed) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.followers == 0
}

// found notes what a look found. first: the one before was too long ago for a comparison, so that everybody is to read.
func (f *feed) found(newest int64, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if newest == f.seen && !first {
		return
	}
	f.seen = newest
	close(f.changed)
	f.changed = make(chan struct{})
}

// run looks every so often while somebody follows, until ctx ends.
func (f *feed) run(ctx context.Context, every time.Duration, newest func(context.Context) (int64, error), log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	first, failing := true, false
	for {
		if f.idle() {
			first = true
			select {
			case <-f.begin:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		found, err := newest(ctx)
		if err != nil {
			if ctx.Err() == nil && !failing {
				log.Error("look for new events; trying again", "error", err)
			}
			failing = true
			continue
		}
		f.found(found, first)
		first, failing = false, false
	}
}
