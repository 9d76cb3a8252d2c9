package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/journal"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

type conn = net.Conn

var errEndedInBoot = errors.New("it ended while it booted")

// create brings a sandbox up, or joins or finds an earlier create of it. A caller that leaves does not stop it.
func (w *Worker) create(ctx context.Context, req *nodev1.CreateRequest) (*nodev1.CreateResponse, error) {
	id, ok := cay.ParseID(cay.PrefixSandbox, req.SandboxId)
	if !ok || req.Spec == nil {
		return nil, cay.Errorf(cay.InvalidRequest, "a create needs a sandbox id and a spec")
	}
	spec := req.Spec
	if spec.Cpu <= 0 || spec.Cpu > 1024 || spec.MemoryMb <= 0 || spec.MemoryMb > 1<<24 || spec.DiskGb <= 0 || spec.DiskGb > 1<<20 || spec.Pids <= 0 || spec.Pids > 1<<22 {
		return nil, cay.Errorf(cay.InvalidRequest, "limits are out of range")
	}
	if err := w.mustEnforce(spec.ExplicitLimits); err != nil {
		return nil, err
	}
	if err := w.checkMounts(spec.Volumes); err != nil {
		return nil, err
	}
	b, err := w.enter(ctx, id, req)
	if err != nil {
		return nil, err
	}
	select {
	case <-b.settled:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return nil, b.err
	}
	if b.state == dying {
		return nil, cay.Errorf(cay.BootFailed, "the sandbox ended while it was brought up") // as when the node was killed meanwhile: it may be tried again
	}
	return &nodev1.CreateResponse{BootMs: b.bootMS, Warm: b.warm}, nil
}

// mustEnforce refuses limits that the caller asked for and this host cannot keep.
func (w *Worker) mustEnforce(limits []string) error {
	if w.cfg.AllowUnenforced {
		return nil
	}
	enforced := w.cfg.Driver.Info().Enforced
	for _, l := range limits {
		if !slices.Contains(enforced, l) {
			return cay.Errorf(cay.Unprocessable, "this worker cannot enforce %s; leave it out, or allow unenforced limits in its configuration", l).On(l)
		}
	}
	return nil
}

// enter finds the sandbox's entry, fenced by attempt, or makes one and boots it in the background, in the trace of who asked.
func (w *Worker) enter(asked context.Context, id cay.ID, req *nodev1.CreateRequest) (*box, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return nil, cay.Errorf(cay.Unavailable, "the worker is restarting; try again").After(time.Second)
	}
	if seen := w.fences.attempt[id]; req.Attempt < seen {
		return nil, errFenced(req.Attempt, seen)
	}
	if b, ok := w.boxes[id]; ok {
		b.mu.Lock()
		defer b.mu.Unlock()
		if req.Attempt < b.attempt {
			return nil, errFenced(req.Attempt, b.attempt)
		}
		b.attempt = req.Attempt
		return b, nil
	}
	if len(w.boxes) >= w.cfg.MaxSandboxes {
		return nil, cay.Errorf(cay.NoCapacity, "the worker has %d sandboxes, its maximum", len(w.boxes)).After(time.Second)
	}
	s := req.Spec
	shape := driver.Shape{Image: s.Image, CPU: math.Ceil(s.Cpu), MemoryMB: s.MemoryMb, DiskGB: s.DiskGb, Pids: s.Pids}
	ctx, abort := context.WithCancelCause(tracing.Carry(w.ctx(), asked))
	b := &box{
		id: id, project: cay.ID(req.ProjectId), shape: shape, cpu: s.Cpu, memoryMB: s.MemoryMb, state: booting, attempt: req.Attempt, settled: make(chan struct{}), abort: abort,
		since: time.Now(),
	}
	w.boxes[id] = b
	w.work.Go(func() {
		defer abort(nil)
		w.bringUp(ctx, b, req)
	})
	return b, nil
}

// bringUp boots a sandbox, or takes a prepared one, and settles the create.
func (w *Worker) bringUp(ctx context.Context, b *box, req *nodev1.CreateRequest) {
	var p *prepared
	var warm bool
	err := w.attachVolumes(ctx, b, req.Spec.Volumes)
	if err == nil {
		p, warm, err = w.boot(ctx, b, req)
	}
	w.mu.Lock()
	b.mu.Lock()
	switch {
	case err == nil && b.ended == nil:
		b.state, b.prepared, b.warm, b.bootMS = running, p, warm, time.Since(b.since).Milliseconds()
	case err == nil:
		err = errEndedInBoot
		fallthrough
	default:
		b.err = bootError(err)
		b.state = dying
		delete(w.boxes, b.id) // a later attempt begins anew
		if w.handles[b.handle] == b {
			delete(w.handles, b.handle)
		}
	}
	b.mu.Unlock()
	w.mu.Unlock()
	if err != nil {
		w.log.Error("sandbox not booted", "sandbox", b.id, "error", err)
		if p != nil {
			b.leave(w.discard(p))
		}
		w.detachVolumes(b)
		b.mu.Lock()
		b.gone = true
		b.mu.Unlock()
	}
	close(b.settled)
	if err == nil {
		how := "booted for it"
		if warm {
			how = "prepared before"
		}
		w.note(p, journal.Boot, journal.Info, fmt.Sprintf("the sandbox is ready after %s, %s", milliseconds(b.since), how))
	}
}

func (w *Worker) boot(ctx context.Context, b *box, req *nodev1.CreateRequest) (p *prepared, warm bool, err error) {
	if b.shape == w.cfg.PoolShape {
		if p, ok := w.pool.Take(); ok {
			claiming, span := tracing.Start(ctx, "pool.claim", tracing.SandboxID(b.id), tracing.Warm(true))
			err := w.claim(claiming, b, p, req)
			span.Fail(string(cay.ReasonOf(err)))
			span.End()
			if err == nil {
				w.measured.hits.Inc()
				return p, true, nil
			} else if ctx.Err() != nil {
				return p, true, err
			} else {
				w.log.Warn("a prepared sandbox could not be claimed", "sandbox", b.id, "error", err)
				w.disown(b, p)
				b.leave(w.discard(p))
			}
		}
		if w.cfg.PoolSize > 0 {
			w.measured.misses.Inc()
		}
	}
	ctx, span := tracing.Start(ctx, "sandbox.boot", tracing.SandboxID(b.id), tracing.Warm(false))
	defer func() {
		span.Fail(string(cay.ReasonOf(err)))
		span.End()
	}()
	h := driver.Handle(b.id.Body())
	w.own(b, h)
	p, err = w.prepare(ctx, h, b.shape, b)
	if err != nil {
		return nil, false, err
	}
	return p, false, w.claim(ctx, b, p, req)
}

// own makes b answer for a handle.
func (w *Worker) own(b *box, h driver.Handle) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.handle = h
	w.handles[h] = b
}

func (w *Worker) disown(b *box, p *prepared) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.handles, p.handle)
	p.mu.Lock()
	p.owner = nil
	p.mu.Unlock()
	b.mu.Lock()
	b.prepared, b.ended = nil, nil // what happened to it is not the new one's
	b.mu.Unlock()
}

// claim gives a prepared sandbox to b: its limits outside, then its identity inside.
func (w *Worker) claim(ctx context.Context, b *box, p *prepared, req *nodev1.CreateRequest) error {
	began := time.Now()
	w.own(b, p.handle)
	p.mu.Lock()
	p.owner = b
	lost := p.lost
	p.mu.Unlock()
	if lost {
		return errEndedInBoot
	}
	b.mu.Lock()
	b.prepared = p
	b.mu.Unlock()
	s := req.Spec
	shown, mounts := b.mounts()
	err := w.cfg.Driver.Claim(ctx, p.handle, driver.Spec{SandboxID: b.id, ProjectID: b.project, CPU: s.Cpu, MemoryMB: s.MemoryMb, Pids: s.Pids, Volumes: shown})
	if err != nil {
		return err
	}
	asked := time.Now()
	err = p.session.Claim(ctx, &guestv1.Claim{
		SandboxId: string(b.id), Hostname: s.Hostname, Env: s.Env, User: s.User, Workdir: s.Workdir, Pids: s.Pids, Mounts: mounts,
	})
	tracing.CompletedByAgent(ctx, "agent.claim", asked, time.Now(), tracing.SandboxID(b.id), tracing.Reason(cay.ReasonOf(err)))
	if err == nil {
		w.measured.claim.Observe(since(began))
	}
	return err
}

// bootError is what a caller learns of a failed boot.
func bootError(err error) error {
	var e *cay.Error
	if errors.As(err, &e) && (e.Field == "volumes" || e.Reason == cay.InvalidImage || e.Reason == cay.NoCapacity || e.Reason == cay.Unprocessable || e.Reason == cay.DiskFull) {
		return e
	}
	detail := "the sandbox did not boot"
	switch {
	case errors.Is(err, errEndedInBoot) || errors.Is(err, driver.ErrGone):
		detail = "the sandbox ended while it booted"
	case errors.Is(err, errDestroyed):
		return cay.Errorf(cay.Gone, "the sandbox was deleted while it booted")
	case errors.Is(err, syscall.ENOSPC):
		return cay.Errorf(cay.DiskFull, "the worker's disk is full").Because(err)
	case errors.As(err, &e) && e.Reason == cay.BootFailed:
		detail = e.Detail
	case errors.Is(err, context.DeadlineExceeded) || errors.As(err, &e) && e.Reason == cay.Unavailable:
		detail = "the sandbox's agent did not say hello in time"
	}
	return cay.Errorf(cay.BootFailed, "%s", strings.TrimSpace(detail)).Because(err)
}
