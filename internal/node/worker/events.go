package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/journal"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// noticed handles what the driver saw. It must not block.
func (w *Worker) noticed(e driver.Event) {
	w.mu.Lock()
	b := w.handles[e.Handle]
	w.mu.Unlock()
	if b == nil {
		if e.Type == driver.EventExited {
			w.pool.Drop(func(p *prepared) bool { return p.handle == e.Handle })
		}
		return
	}
	switch e.Type {
	case driver.EventExited:
		end := ending{reason: cay.ReasonWorkerLost, detail: "the sandbox's kernel ended"}
		if e.OOM {
			end = ending{reason: cay.ReasonOOM, detail: "the sandbox used more memory than it may, and was ended as a whole", oom: true}
		}
		w.background(func() { w.end(b, end) })
	case driver.EventMemory:
		b.mu.Lock()
		due := !b.reclaiming && b.state == running
		b.reclaiming = b.reclaiming || due
		b.mu.Unlock()
		if due {
			w.background(func() { w.reclaim(b, e) })
		}
	}
}

// reclaim has the agent kill for memory, and ends the sandbox when that does not bring it below its promise soon.
func (w *Worker) reclaim(b *box, e driver.Event) {
	defer func() {
		b.mu.Lock()
		b.reclaiming = false
		b.mu.Unlock()
	}()
	p := b.speaker()
	promise := e.Promise
	if promise <= 0 {
		promise = b.memoryMB << 20
	}
	ctx, cancel := context.WithTimeout(w.ctx(), 4*w.timing.Reclaim)
	victims, err := p.session.Reclaim(ctx, promise)
	cancel()
	if err != nil {
		w.log.Warn("no memory reclaimed", "sandbox", b.id, "error", err)
	}
	for _, v := range victims {
		w.measured.oom.Inc()
		w.note(p, journal.Boot, journal.Warn, fmt.Sprintf("out of memory: process %d with %d MiB was killed", v.PID, v.RSS>>20))
		w.events.publish(oomEvent(b, v))
	}
	if !w.rest(w.timing.Reclaim) {
		return
	}
	st, ok := w.cfg.Driver.(driver.Statser)
	if !ok {
		return
	}
	ctx, cancel = context.WithTimeout(w.ctx(), 4*w.timing.Reclaim)
	defer cancel()
	now, err := st.Stats(ctx, b.handle)
	if err != nil || now.MemoryBytes <= max(promise, e.Limit) {
		return
	}
	w.end(b, ending{
		reason: cay.ReasonOOM, detail: "the sandbox used more memory than it may, and killing its processes did not help", oom: true, destroy: true,
	})
}

func oomEvent(b *box, v router.Victim) *nodev1.Event {
	return &nodev1.Event{SandboxId: string(b.id), AtUnixMs: time.Now().UnixMilli(), Event: &nodev1.Event_Oom{Oom: &nodev1.Oom{
		Process: v.Process, Pid: v.PID, RssMb: v.RSS >> 20,
	}}}
}

// measureAll samples every sandbox at intervals and tells watchers of those in use, until ctx ends.
func (w *Worker) measureAll(ctx context.Context) {
	tick := time.NewTicker(w.timing.Sample)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.measure(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (w *Worker) measure(ctx context.Context) {
	w.mu.Lock()
	boxes := make([]*box, 0, len(w.boxes))
	for _, b := range w.boxes {
		boxes = append(boxes, b)
	}
	w.mu.Unlock()
	for _, b := range boxes {
		if !b.usable() {
			continue
		}
		w.sample(ctx, b)
		if e := b.activity(w.timing.Usage); e != nil {
			w.events.publish(e)
		}
	}
}

// activity is news of a sandbox's use, or nil. What it has used is news after a while, also when nobody uses it.
func (b *box) activity(while time.Duration) *nodev1.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.prepared == nil || b.state != running && b.state != frozen {
		return nil
	}
	foreground, last := b.prepared.session.Activity()
	full := b.usage.full(b.diskBytes(), b.diskFull)
	used := b.state == running && (foreground || foreground != b.reportedFg || last.UnixMilli() != b.reported || full != b.diskFull)
	if !used && time.Since(b.reportedAt) < while {
		return nil
	}
	b.reportedAt = time.Now()
	b.diskFull = full
	b.reported, b.reportedFg = last.UnixMilli(), foreground
	return &nodev1.Event{SandboxId: string(b.id), AtUnixMs: time.Now().UnixMilli(), Event: &nodev1.Event_Activity{Activity: &nodev1.Activity{
		Foreground: foreground, LastActiveUnixMs: last.UnixMilli(), Usage: b.usage.message(),
	}}}
}

const (
	maxMissed  = 1024 // events kept while nobody watches
	maxWaiting = 4096 // events that one watcher may be behind
)

// broadcaster hands events to watchers without ever waiting for one. A watcher that falls too far behind is cut off and comes again.
type broadcaster struct {
	mu       sync.Mutex
	closed   bool
	watchers map[*watcher]struct{}
	missed   []*nodev1.Event // kills for memory that nobody watched
}

type watcher struct {
	events chan *nodev1.Event // closed when it was cut off
}

func newBroadcaster() *broadcaster { return &broadcaster{watchers: map[*watcher]struct{}{}} }

func (b *broadcaster) publish(e *nodev1.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.watchers) == 0 && e.GetOom() != nil {
		if b.missed = append(b.missed, e); len(b.missed) > maxMissed {
			b.missed = b.missed[1:]
		}
	}
	for w := range b.watchers {
		select {
		case w.events <- e:
		default:
			if e.GetActivity() != nil {
				continue // the next says the same or more
			}
			delete(b.watchers, w)
			close(w.events)
		}
	}
}

// subscribe adds a watcher; what nobody has seen comes first.
func (b *broadcaster) subscribe() (*watcher, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, false
	}
	w := &watcher{events: make(chan *nodev1.Event, maxWaiting)}
	for _, e := range b.missed {
		w.events <- e
	}
	b.missed = nil
	b.watchers[w] = struct{}{}
	return w, true
}

func (b *broadcaster) unsubscribe(w *watcher) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.watchers[w]; ok {
		delete(b.watchers, w)
		close(w.events)
	}
}

func (b *broadcaster) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for w := range b.watchers {
		delete(b.watchers, w)
		close(w.events)
	}
}
