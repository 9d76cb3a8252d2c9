package lifecycle

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// alarms wakes for many sandboxes with one timer: at most one alarm for each, ordered by time.
type alarms struct {
	mu    sync.Mutex
	queue alarmQueue        // guarded by mu
	byID  map[cay.ID]*alarm // guarded by mu
	kick  chan struct{}     // capacity 1: the earliest alarm may have changed
}

type alarm struct {
	id    cay.ID
	at    time.Time
	index int
}

func newAlarms() *alarms {
	return &alarms{byID: map[cay.ID]*alarm{}, kick: make(chan struct{}, 1)}
}

// set moves the sandbox's alarm to at; the zero time takes it away.
func (a *alarms) set(id cay.ID, at time.Time) {
	a.mu.Lock()
	x := a.byID[id]
	switch {
	case at.IsZero() && x == nil:
	case at.IsZero():
		heap.Remove(&a.queue, x.index)
		delete(a.byID, id)
	case x == nil:
		x = &alarm{id: id, at: at}
		a.byID[id] = x
		heap.Push(&a.queue, x)
	default:
		x.at = at
		heap.Fix(&a.queue, x.index)
	}
	first := len(a.queue) > 0 && a.queue[0] == x
	a.mu.Unlock()
	if first {
		select {
		case a.kick <- struct{}{}:
		default:
		}
	}
}

// due takes out what has struck, and says when the next one will (zero: never).
func (a *alarms) due(now time.Time) (ids []cay.ID, next time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.queue) > 0 && !a.queue[0].at.After(now) {
		x := heap.Pop(&a.queue).(*alarm)
		delete(a.byID, x.id)
		ids = append(ids, x.id)
	}
	if len(a.queue) > 0 {
		next = a.queue[0].at
	}
	return ids, next
}

// run calls strike with what is due until ctx ends.
func (a *alarms) run(ctx context.Context, strike func(context.Context, []cay.ID)) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		ids, next := a.due(time.Now())
		if len(ids) > 0 {
			strike(ctx, ids)
			continue
		}
		wait := time.Hour
		if !next.IsZero() {
			wait = time.Until(next)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-a.kick:
		case <-timer.C:
		}
	}
}

// alarmQueue is a heap by time.
type alarmQueue []*alarm

func (q alarmQueue) Len() int           { return len(q) }
func (q alarmQueue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q alarmQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}
func (q *alarmQueue) Push(x any) {
	a := x.(*alarm)
	a.index = len(*q)
	*q = append(*q, a)
}
func (q *alarmQueue) Pop() any {
	old := *q
	n := len(old) - 1
	a := old[n]
	old[n] = nil
	*q = old[:n]
	return a
}
