package jobs

import (
	"context"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

const (
	feedScan = time.Second // between looks at the store for rows whose wake-up got lost
	maxLooks = 50          // rows in one look; the others have their turn in the next
)

// feed gives those who wait for a job its row whenever it has changed. All that wait for the same job share what was read. Whoever changes
// a row publishes it; a look at the store each second, of a bounded number of rows, makes up for what was not published here.
type feed struct {
	read func(ctx context.Context, id cay.ID) (*cay.Job, error)

	mu     sync.Mutex
	topics map[cay.ID]*topic // guarded by mu; only those that somebody waits for
	turns  []cay.ID          // guarded by mu; whose turn to be looked at is next, with those that nobody waits for any more
	queued map[cay.ID]bool   // guarded by mu; what is in turns
}

// topic is what the waiters for one job share. Its fields are guarded by feed.mu.
type topic struct {
	row     *cay.Job      // the newest that was read; nil: none yet
	changed chan struct{} // closed when row is replaced
	waiters int
}

func newFeed(read func(ctx context.Context, id cay.ID) (*cay.Job, error)) *feed {
	return &feed{read: read, topics: map[cay.ID]*topic{}, queued: map[cay.ID]bool{}}
}

// watcher is one who waits for a job. It is used by one goroutine and must leave.
type watcher struct {
	feed *feed
	id   cay.ID
	seen int64 // the version last taken
}

// watch begins to wait for a job.
func (f *feed) watch(id cay.ID) *watcher {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topics[id]
	if t == nil {
		t = &topic{changed: make(chan struct{})}
		f.topics[id] = t
		if !f.queued[id] {
			f.queued[id], f.turns = true, append(f.turns, id)
		}
	}
	t.waiters++
	return &watcher{feed: f, id: id}
}

func (w *watcher) leave() {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	t := w.feed.topics[w.id]
	if t.waiters--; t.waiters == 0 {
		delete(w.feed.topics, w.id)
	}
}

// now answers the row as it is in the store, which others that wait for it get as well.
func (w *watcher) now(ctx context.Context) (*cay.Job, error) {
	row, err := w.feed.read(ctx, w.id)
	if err != nil {
		return nil, err
	}
	w.feed.publish(row)
	row, _ = w.latest()
	w.seen = row.Version
	return row, nil
}

func (w *watcher) latest() (*cay.Job, <-chan struct{}) {
	w.feed.mu.Lock()
	defer w.feed.mu.Unlock()
	t := w.feed.topics[w.id]
	return t.row, t.changed
}

// changed is closed when there is a row that is newer than the one last taken.
func (w *watcher) changed() <-chan struct{} {
	row, changed := w.latest()
	if row != nil && row.Version > w.seen {
		return closed
	}
	return changed
}

// take answers the newest row that was published.
func (w *watcher) take() *cay.Job {
	row, _ := w.latest()
	w.seen = row.Version
	return row
}

// next waits for a newer row than the one last taken, of which there must have been one. ok is false when ctx ended first.
func (w *watcher) next(ctx context.Context) (row *cay.Job, ok bool) {
	select {
	case <-w.changed():
		return w.take(), true
	case <-ctx.Done():
		return nil, false
	}
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// publish gives a row to those who wait for it. Rows are never edited once they were published.
func (f *feed) publish(row *cay.Job) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topics[row.ID]
	if t == nil || t.row != nil && t.row.Version >= row.Version {
		return
	}
	t.row = row
	close(t.changed)
	t.changed = make(chan struct{})
}

// run looks at the store while anybody waits, until ctx ends.
func (f *feed) run(ctx context.Context, failed func(error)) {
	tick := time.NewTicker(feedScan)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, id := range f.due() {
			row, err := f.read(ctx, id)
			if err == nil {
				f.publish(row)
			} else if ctx.Err() == nil && cay.ReasonOf(err) != cay.NotFound {
				failed(err)
				break
			}
		}
	}
}

// due names the jobs whose turn it is to be looked at.
func (f *feed) due() []cay.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []cay.ID
	n := len(f.turns)
	for range n {
		if len(ids) == maxLooks {
			break
		}
		id := f.turns[0]
		f.turns = f.turns[1:]
		if t := f.topics[id]; t != nil {
			ids = append(ids, id)
		} else {
			delete(f.queued, id)
		}
	}
	f.turns = append(f.turns, ids...)
	return ids
}
