package worker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/journal"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// freeze stops a sandbox's processes and the clocks that belong to them.
func (w *Worker) freeze(ctx context.Context, id string) error {
	b, err := w.find(id)
	if err != nil {
		return err
	}
	b.moving.Lock()
	defer b.moving.Unlock()
	return w.freezeBox(ctx, b)
}

// freezeBox needs b.moving.
func (w *Worker) freezeBox(ctx context.Context, b *box) error {
	f, ok := w.cfg.Driver.(driver.Freezer)
	if !ok || !w.cfg.Driver.Info().CanFreeze {
		return cay.Errorf(cay.NotImplemented, "this worker cannot pause sandboxes")
	}
	b.mu.Lock()
	st, p := b.state, b.prepared
	b.mu.Unlock()
	switch st {
	case frozen:
		return nil
	case booting:
		return cay.Errorf(cay.NotReady, "the sandbox is still booting").After(time.Second)
	case dying:
		return cay.Errorf(cay.Gone, "the sandbox has ended")
	}
	began := time.Now()
	p.session.Freeze() // first, so that nothing is under way to an agent that cannot answer
	if err := f.Freeze(ctx, b.handle); err != nil {
		// It may stand still in part, or have been about to when ctx ended.
		undo, cancel := context.WithTimeout(w.ctx(), w.timing.Thaw)
		defer cancel()
		if undone := f.Thaw(undo, b.handle); undone != nil && !errors.Is(undone, driver.ErrGone) {
			w.log.Error("sandbox may stand still although its pause failed", "sandbox", b.id, "error", undone)
		}
		p.session.Thaw()
		w.note(p, journal.Boot, journal.Error, "it could not be paused, and runs on")
		return unlessGone(err, "pause")
	}
	b.setState(running, frozen)
	w.note(p, journal.Boot, journal.Info, "paused within "+milliseconds(began))
	return nil
}

func unlessGone(err error, what string) error {
	if errors.Is(err, driver.ErrGone) {
		return cay.Errorf(cay.Gone, "the sandbox has ended").Because(err)
	}
	return &cay.Error{Reason: cay.Internal, Detail: "the worker could not " + what + " the sandbox", Cause: err}
}

// setState moves from one state to another; one that the sandbox reached meanwhile stays.
func (b *box) setState(from, to state) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == from {
		b.state = to
	}
}

// thaw undoes freeze and waits until the agent answers.
func (w *Worker) thaw(ctx context.Context, id string) error {
	b, err := w.find(id)
	if err != nil {
		return err
	}
	b.moving.Lock()
	err = w.thawBox(ctx, b)
	p := b.speaker()
	b.moving.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.timing.Thaw)
	defer cancel()
	return p.session.Connected(ctx)
}

// thawBox needs b.moving.
func (w *Worker) thawBox(ctx context.Context, b *box) error {
	b.mu.Lock()
	st, p := b.state, b.prepared
	b.mu.Unlock()
	switch st {
	case running:
		return nil
	case booting:
		return cay.Errorf(cay.NotReady, "the sandbox is still booting").After(time.Second)
	case dying:
		return cay.Errorf(cay.Gone, "the sandbox has ended")
	}
	f, ok := w.cfg.Driver.(driver.Freezer)
	if !ok {
		return cay.Errorf(cay.NotImplemented, "this worker cannot resume sandboxes")
	}
	began := time.Now()
	if err := f.Thaw(ctx, b.handle); err != nil {
		return unlessGone(err, "resume")
	}
	p.session.Thaw()
	b.setState(frozen, running)
	w.note(p, journal.Boot, journal.Info, "resumed within "+milliseconds(began))
	return nil
}

// adoption is the one Adopt of this node's life; later calls get its answer.
type adoption struct {
	done   chan struct{}
	answer *nodev1.AdoptResponse
}

// adopt compares what an earlier node left with what the store knows.
func (w *Worker) adopt(ctx context.Context, req *nodev1.AdoptRequest) (*nodev1.AdoptResponse, error) {
	w.mu.Lock()
	a := w.adopting
	if a == nil {
		if w.closing {
			w.mu.Unlock()
			return nil, cay.Errorf(cay.Unavailable, "the worker is restarting; try again").After(time.Second)
		}
		a = &adoption{done: make(chan struct{})}
		w.adopting = a
		var inherited []*box
		for _, b := range w.boxes {
			if b.inherited {
				inherited = append(inherited, b)
			}
		}
		w.work.Go(func() {
			defer close(a.done)
			a.answer = w.settleInherited(inherited, req.Sandboxes)
		})
	}
	w.mu.Unlock()
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// A repeated call may know other sandboxes; each is judged by what is so now.
	answer := &nodev1.AdoptResponse{}
	for _, known := range req.Sandboxes {
		if b, err := w.find(known.SandboxId); err == nil && b.usable() {
			answer.Running = append(answer.Running, known.SandboxId)
		} else {
			answer.Lost = append(answer.Lost, known.SandboxId)
		}
	}
	return answer, nil
}

func (b *box) usable() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state == running || b.state == frozen
}

// adopted reports whether an Adopt has been answered.
func (w *Worker) adopted() bool {
	w.mu.Lock()
	a := w.adopting
	w.mu.Unlock()
	if a == nil {
		return false
	}
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

func (w *Worker) settleInherited(inherited []*box, known []*nodev1.AdoptRequest_Known) *nodev1.AdoptResponse {
	paused := make(map[string]bool, len(known))
	for _, k := range known {
		paused[k.SandboxId] = k.Paused
	}
	ctx, cancel := context.WithTimeout(w.ctx(), w.timing.Adopt)
	defer cancel()
	var each sync.WaitGroup
	for _, b := range inherited {
		shouldPause, ok := paused[string(b.id)]
		if !ok {
			w.background(func() {
				if err := w.takeDown(b, 0); err != nil {
					w.log.Error("sandbox without a row not destroyed", "sandbox", b.id, "error", err)
				}
			})
			continue
		}
		each.Go(func() { w.takeOver(ctx, b, shouldPause) })
	}
	each.Wait()
	return nil
}

// takeOver brings one inherited sandbox into the state that its row has. One whose agent does not answer is lost.
func (w *Worker) takeOver(ctx context.Context, b *box, shouldPause bool) {
	b.moving.Lock()
	if shouldPause {
		if err := w.freezeBox(ctx, b); err != nil && b.usable() {
			w.log.Error("sandbox not paused at adoption", "sandbox", b.id, "error", err)
		}
		b.moving.Unlock()
		return
	}
	err := w.thawBox(ctx, b)
	p := b.speaker()
	b.moving.Unlock()
	if err == nil && p != nil {
		err = p.session.Connected(ctx)
	}
	if err == nil {
		w.note(p, journal.Boot, journal.Info, "its worker has restarted, and has the sandbox again")
	}
	if err != nil && b.usable() && w.ctx().Err() == nil {
		w.log.Error("sandbox not adopted", "sandbox", b.id, "error", err)
		w.end(b, ending{reason: cay.ReasonWorkerLost, detail: "its agent did not answer after the worker's restart", destroy: true})
	}
}
