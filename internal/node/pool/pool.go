// Package pool keeps sandboxes of one shape prepared before anyone asks. It knows when to prepare and when to throw away; how, and
// what a prepared sandbox is, its owner says. It never holds up a create: an empty pool is a miss.
package pool

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Config says what to keep ready.
type Config[T any] struct {
	Size    int // zero: nothing is prepared
	Prepare func(ctx context.Context) (T, error)
	Discard func(ctx context.Context, item T) // must free it; called with a context that outlives the pool's
	// Fingerprint names what prepared items are made from, such as the image's state; items of another one are not given away.
	Fingerprint func() string
	MaxBackoff  time.Duration // after failures to prepare; default 1 minute
	MinBackoff  time.Duration // default 1 s
	Log         *slog.Logger
}

type item[T any] struct {
	value       T
	fingerprint string
}

// Pool is safe for concurrent use.
type Pool[T any] struct {
	cfg    Config[T]
	cancel context.CancelFunc
	work   sync.WaitGroup
	wanted chan struct{} // capacity 1

	mu     sync.Mutex
	ready  []item[T]
	closed bool
}

// New begins to prepare, one item at a time.
func New[T any](cfg Config[T]) *Pool[T] {
	if cfg.Fingerprint == nil {
		cfg.Fingerprint = func() string { return "" }
	}
	if cfg.MinBackoff <= 0 {
		cfg.MinBackoff = time.Second
	}
	if cfg.MaxBackoff <= 0 {
		cfg.MaxBackoff = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool[T]{cfg: cfg, cancel: cancel, wanted: make(chan struct{}, 1)}
	if cfg.Size > 0 {
		p.work.Go(func() { p.refill(ctx) })
	}
	return p
}

// Take gives a prepared item away; false is a miss. It never waits.
func (p *Pool[T]) Take() (value T, ok bool) {
	now := p.cfg.Fingerprint()
	p.mu.Lock()
	var stale []item[T]
	for !ok && len(p.ready) > 0 && !p.closed {
		first := p.ready[0]
		p.ready = p.ready[1:]
		if first.fingerprint != now {
			stale = append(stale, first)
			continue
		}
		value, ok = first.value, true
	}
	if len(stale) > 0 {
		p.work.Go(func() { p.discard(stale) })
	}
	p.mu.Unlock()
	p.want()
	return value, ok
}

// Ready is the number of items that could be given away.
func (p *Pool[T]) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// Drop discards the items that match, such as one that died.
func (p *Pool[T]) Drop(match func(T) bool) {
	p.mu.Lock()
	if p.closed { // Close discards them all
		p.mu.Unlock()
		return
	}
	var keep, gone []item[T]
	for _, it := range p.ready {
		if match(it.value) {
			gone = append(gone, it)
		} else {
			keep = append(keep, it)
		}
	}
	p.ready = keep
	if len(gone) > 0 {
		p.work.Go(func() { p.discard(gone) })
	}
	p.mu.Unlock()
	p.want()
}

// Close stops preparing and discards what is ready.
func (p *Pool[T]) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.work.Wait()
	p.mu.Lock()
	rest := p.ready
	p.ready = nil
	p.mu.Unlock()
	p.discard(rest)
}

func (p *Pool[T]) discard(items []item[T]) {
	for _, it := range items {
		p.cfg.Discard(context.Background(), it.value)
	}
}

func (p *Pool[T]) want() {
	select {
	case p.wanted <- struct{}{}:
	default:
	}
}

func (p *Pool[T]) refill(ctx context.Context) {
	var pause time.Duration
	check := time.NewTicker(10 * time.Second) // notices another fingerprint without being asked
	defer check.Stop()
	for ctx.Err() == nil {
		p.dropStale()
		if p.Ready() >= p.cfg.Size {
			select {
			case <-p.wanted:
			case <-check.C:
			case <-ctx.Done():
			}
			continue
		}
		fingerprint := p.cfg.Fingerprint()
		value, err := p.cfg.Prepare(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			pause = min(max(2*pause, p.cfg.MinBackoff), p.cfg.MaxBackoff)
			p.cfg.Log.Warn("no sandbox could be prepared", "error", err, "again_in", pause)
			t := time.NewTimer(pause)
			select {
			case <-t.C:
			case <-ctx.Done():
			}
			t.Stop()
			continue
		}
		pause = 0
		p.mu.Lock()
		p.ready = append(p.ready, item[T]{value, fingerprint})
		p.mu.Unlock()
	}
}

func (p *Pool[T]) dropStale() {
	now := p.cfg.Fingerprint()
	p.mu.Lock()
	var keep, stale []item[T]
	for _, it := range p.ready {
		if it.fingerprint == now {
			keep = append(keep, it)
		} else {
			stale = append(stale, it)
		}
	}
	p.ready = keep
	p.mu.Unlock()
	p.discard(stale)
}
