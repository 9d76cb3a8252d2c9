package lifecycle

import (
	"context"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// feedScan is how often the store is looked at for events whose wake-up got lost.
const feedScan = time.Second

// maxWoken bounds the sandboxes that one look names; beyond it everybody is woken.
const maxWoken = 1000

// feed wakes those who wait for events of a sandbox. A wake-up is a hint: whoever gets one reads the store. One look at the store each
// second for all of them makes up for those that got lost, or were never sent because another server wrote the event.
type feed struct {
	mu     sync.Mutex
	topics map[cay.ID]*topic // guarded by mu; only those that somebody waits for
}

// topic is what the waiters for one sandbox share. Its fields are guarded by feed.mu.
type topic struct {
	woken   chan struct{} // closed by the next wake-up
	waiters int
}

func newFeed() *feed { return &feed{topics: map[cay.ID]*topic{}} }

// wait begins to wait for the sandbox's next event: woken is closed after it. leave must be called once.
func (f *feed) wait(id cay.ID) (woken <-chan struct{}, leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.topics[id]
	if t == nil {
		t = &topic{woken: make(chan struct{})}
		f.topics[id] = t
	}
	t.waiters++
	return t.woken, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if t.waiters--; t.waiters == 0 && f.topics[id] == t {
			delete(f.topics, id)
		}
	}
}

// wake wakes who waits for the sandbox.
func (f *feed) wake(id cay.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.topics[id]; t != nil {
		delete(f.topics, id)
		close(t.woken)
	}
}

func (f *feed) wakeAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, t := range f.topics {
		delete(f.topics, id)
		close(t.woken)
	}
}

func (f *feed) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.topics) == 0
}

// run looks at the store while anybody waits, until ctx ends. since answers as the store's EventsSince.
func (f *feed) run(ctx context.Context, since func(ctx context.Context, after int64, limit int) ([]cay.ID, int64, error), failed func(error)) {
	tick := time.NewTicker(feedScan)
	defer tick.Stop()
	seen := int64(-1) // nothing was looked at yet, or not since all waiters had left
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if f.idle() {
			seen = -1
			continue
		}
		limit := maxWoken
		if seen < 0 {
			limit = 0 // who came before this look may have missed anything: all read once
		}
		ids, newest, err := since(ctx, seen, limit)
		if err != nil {
			if ctx.Err() == nil {
				failed(err)
			}
			continue
		}
		if seen < 0 || len(ids) >= maxWoken {
			f.wakeAll()
		}
		for _, id := range ids {
			f.wake(id)
		}
		seen = newest
	}
}
