package gvisor

import (
	"context"
	"errors"
	"sync"

	"github.com/cayhq/cay/internal/driver"
)

// events queues what happened for the one watcher. At most one event of a type waits for each sandbox, so that the queue is
// bounded by their number; a later one of memory replaces an earlier.
type events struct {
	mu       sync.Mutex
	queue    []driver.Event // guarded by mu
	watching bool           // guarded by mu
	wake     chan struct{}
	watchers sync.WaitGroup
}

func newEvents() *events { return &events{wake: make(chan struct{}, 1)} }

func (e *events) add(ev driver.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() {
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}()
	for i, q := range e.queue {
		if q.Handle == ev.Handle && q.Type == ev.Type {
			e.queue[i] = ev
			return
		}
	}
	e.queue = append(e.queue, ev)
}

// drop forgets what waits of a sandbox that was destroyed.
func (e *events) drop(h driver.Handle) {
	e.mu.Lock()
	defer e.mu.Unlock()
	kept := e.queue[:0]
	for _, q := range e.queue {
		if q.Handle != h {
			kept = append(kept, q)
		}
	}
	e.queue = kept
}

func (e *events) next() (driver.Event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		return driver.Event{}, false
	}
	ev := e.queue[0]
	e.queue = e.queue[1:]
	return ev, true
}

var errWatched = errors.New("the driver's events are being watched already")

// watch ends with either context.
func (e *events) watch(ctx, driverCtx context.Context) (<-chan driver.Event, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if driverCtx.Err() != nil {
		return nil, driverCtx.Err()
	}
	if e.watching {
		return nil, errWatched
	}
	e.watching = true
	out := make(chan driver.Event)
	e.watchers.Go(func() {
		defer close(out)
		defer func() {
			e.mu.Lock()
			e.watching = false
			e.mu.Unlock()
		}()
		for {
			ev, ok := e.next()
			if !ok {
				select {
				case <-e.wake:
					continue
				case <-ctx.Done():
					return
				case <-driverCtx.Done():
					return
				}
			}
			select {
			case out <- ev:
			case <-ctx.Done():
				e.add(ev)
				return
			case <-driverCtx.Done():
				return
			}
		}
	})
	return out, nil
}

// close waits for the watcher, whose context has ended.
func (e *events) close() { e.watchers.Wait() }
