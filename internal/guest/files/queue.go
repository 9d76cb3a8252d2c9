package files

import (
	"sync"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

const (
	maxEvents     = 8192    // that wait
	maxEventBytes = 2 << 20 // of their paths
	eventsAtOnce  = 256
)

// eventQueue holds the events of a watch until they are sent. It never blocks whoever puts something: where it is full, an overflow
// event stands for everything up to when that has been taken.
type eventQueue struct {
	mu      sync.Mutex
	some    sync.Cond
	events  []*guestv1.WatchEvent
	bytes   int
	lossy   bool // the last event is an overflow
	ended   bool
	failure error
}

func newEventQueue() *eventQueue {
	q := &eventQueue{}
	q.some.L = &q.mu
	return q
}

// put adds an event. A write or chmod like the last one that waits says nothing new.
func (q *eventQueue) put(e *guestv1.WatchEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lossy || q.ended {
		return
	}
	if n := len(q.events); n > 0 && (e.Type == "write" || e.Type == "chmod") && q.events[n-1].Type == e.Type && q.events[n-1].Path == e.Path {
		return
	}
	size := len(e.Path) + len(e.To)
	if len(q.events) >= maxEvents || q.bytes+size > maxEventBytes {
		q.lose()
		return
	}
	q.events = append(q.events, e)
	q.bytes += size
	q.some.Signal()
}

// lose needs mu.
func (q *eventQueue) lose() {
	q.lossy = true
	q.events = append(q.events, &guestv1.WatchEvent{Type: "overflow"})
	q.some.Signal()
}

// overflow says that events were lost before they came here.
func (q *eventQueue) overflow() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.lossy && !q.ended {
		q.lose()
	}
}

// close ends the queue, once what waits is taken; the first error counts, nil is a good end.
func (q *eventQueue) close(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.ended {
		q.ended, q.failure = true, err
	}
	q.some.Broadcast()
}

// take waits for events and takes some; none and no error at a good end.
func (q *eventQueue) take() ([]*guestv1.WatchEvent, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.events) == 0 && !q.ended {
		q.some.Wait()
	}
	if q.failure != nil || len(q.events) == 0 {
		return nil, q.failure
	}
	n := min(len(q.events), eventsAtOnce)
	taken := q.events[:n:n]
	q.events = q.events[n:]
	for _, e := range taken {
		q.bytes -= len(e.Path) + len(e.To)
	}
	if len(q.events) == 0 {
		q.events, q.lossy = nil, false
	}
	return taken, nil
}
