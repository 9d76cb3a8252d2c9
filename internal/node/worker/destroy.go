package worker

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

var errDestroyed = errors.New("it was destroyed")

// destroy ends a sandbox and answers when it is proven gone. A caller that leaves does not stop it.
func (w *Worker) destroy(ctx context.Context, req *nodev1.DestroyRequest) (*nodev1.Usage, error) {
	id, ok := cay.ParseID(cay.PrefixSandbox, req.SandboxId)
	if !ok {
		return nil, cay.Errorf(cay.InvalidRequest, "a destroy needs a sandbox id")
	}
	w.mu.Lock()
	if seen := w.fences.attempt[id]; req.Attempt < seen {
		w.mu.Unlock()
		return nil, errFenced(req.Attempt, seen)
	}
	b, known := w.boxes[id]
	if !known {
		w.fences.note(id, req.Attempt)
		w.mu.Unlock()
		return w.finals.usage(id), nil
	}
	if w.closing {
		w.mu.Unlock()
		return nil, cay.Errorf(cay.Unavailable, "the worker is restarting; try again").After(time.Second)
	}
	b.mu.Lock()
	seen := b.attempt
	b.attempt = max(seen, req.Attempt)
	b.mu.Unlock()
	if req.Attempt < seen {
		w.mu.Unlock()
		return nil, errFenced(req.Attempt, seen)
	}
	w.fences.note(id, req.Attempt)
	var err error
	done := make(chan struct{})
	w.work.Go(func() {
		defer close(done)
		err = w.takeDown(b, time.Duration(max(req.GraceMs, 0))*time.Millisecond)
	})
	w.mu.Unlock()
	select {
	case <-done:
		if err != nil {
			return nil, err
		}
		return b.usage.message(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

const maxGrace = 30 * time.Second

// takeDown is destroy for one sandbox; calls for the same one come after each other, and the later ones find it gone.
func (w *Worker) takeDown(b *box, grace time.Duration) error {
	began := time.Now()
	if b.abort != nil {
		b.abort(errDestroyed)
	}
	<-b.settled
	b.moving.Lock()
	defer b.moving.Unlock()
	b.mu.Lock()
	was, gone, p := b.state, b.gone, b.prepared
	b.state = dying
	b.mu.Unlock()
	if gone {
		return nil
	}
	if p != nil {
		if was == running && grace > 0 {
			p.session.Quiesce(w.ctx(), min(grace, maxGrace))
		}
		w.sample(context.Background(), b)
		p.session.End()
		p.retire()
	}
	w.finals.keep(b.id, &b.usage)
	ctx, cancel := context.WithTimeout(context.Background(), w.timing.Destroy)
	defer cancel()
	if err := w.cfg.Driver.Destroy(ctx, b.handle); err != nil {
		w.log.Error("sandbox not destroyed", "sandbox", b.id, "error", err)
		return cay.Errorf(cay.Unavailable, "the sandbox could not be ended yet; it is tried again").After(time.Second).Because(err)
	}
	w.detachVolumes(b)
	_ = os.RemoveAll(w.spoolDir(b.handle)) // gone already where the driver removed all
	b.usage.remove(w.usagePath(b.handle))
	_ = os.RemoveAll(w.journalDir(b.handle))
	_ = os.Remove(w.samplesPath(b.handle))
	w.mu.Lock()
	if w.boxes[b.id] == b {
		delete(w.boxes, b.id)
	}
	if w.handles[b.handle] == b {
		delete(w.handles, b.handle)
	}
	w.mu.Unlock()
	b.mu.Lock()
	b.gone = true
	b.mu.Unlock()
	w.measured.destroy.Observe(since(began))
	return nil
}

// end settles a sandbox that ended without being asked. Its entry stays until the control plane asks for its destruction, so that
// every watcher, also a later one, learns why.
func (w *Worker) end(b *box, e ending) {
	b.mu.Lock()
	if b.ended != nil || b.gone || b.state == dying {
		b.mu.Unlock()
		return
	}
	e.at = time.Now()
	b.ended = &e
	if b.state == booting { // the create says so
		b.mu.Unlock()
		b.abort(errEndedInBoot)
		return
	}
	b.state = dying
	p := b.prepared
	b.mu.Unlock()
	w.sample(context.Background(), b) // while its figures can still be read
	w.log.Warn("sandbox ended by itself", "sandbox", b.id, "reason", string(e.reason), "detail", e.detail)
	if p != nil {
		if e.oom {
			w.measured.oom.Inc()
			p.session.MarkOOM()
		}
		p.session.End()
	}
	if e.destroy {
		ctx, cancel := context.WithTimeout(context.Background(), w.timing.Destroy)
		defer cancel()
		b.moving.Lock()
		defer b.moving.Unlock()
		if p != nil {
			p.samples.Close()
			p.journal.Close()
		}
		if err := w.cfg.Driver.Destroy(ctx, b.handle); err != nil { // the control plane's Destroy follows the event
			w.log.Error("sandbox not destroyed", "sandbox", b.id, "error", err)
		}
	}
	w.events.publish(b.endedEvent())
}

func (b *box) endedEvent() *nodev1.Event {
	b.mu.Lock()
	e := *b.ended
	b.mu.Unlock()
	return &nodev1.Event{SandboxId: string(b.id), AtUnixMs: e.at.UnixMilli(), Event: &nodev1.Event_Ended{Ended: &nodev1.Ended{
		Reason: string(e.reason), Detail: e.detail, Usage: b.usage.message(),
	}}}
}
