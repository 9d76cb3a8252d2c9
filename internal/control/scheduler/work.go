package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	reportTimeout = 10 * time.Second // for writing an outcome, also while stopping
	firstBackoff  = 250 * time.Millisecond
	maxBackoff    = 15 * time.Second
	capacityWait  = time.Second // before a worker that said it is full is asked again
	maxMoves      = 5           // attempts at a pause or resume until it is given up
)

// work asks the node and reports what came of it.
func (s *Scheduler) work(ctx context.Context, w *work) {
	if context.Cause(ctx) == errSuperseded {
		return
	}
	ctx, span := w.traced(ctx)
	defer span.End()
	err := s.ask(ctx, w)
	span.Fail(string(cay.ReasonOf(err)))
	if context.Cause(ctx) == errSuperseded {
		return
	}
	report, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	switch {
	case err == nil:
	case ctx.Err() != nil: // stopping
		err = s.life.Retry(report, w.sb.ID, w.sb.Attempt, 0, false, false, "")
	default:
		err = s.failed(report, w.sb, err)
	}
	if err != nil && cay.ReasonOf(err) != cay.Conflict {
		s.log.Error("work on a sandbox was not recorded; its lease will run out", "sandbox", w.sb.ID, "operation", w.sb.Op, "error", err)
	}
}

// notRecorded is an outcome that could not be written. The node did its part, so that the lease may simply run out.
type notRecorded struct{ error }

func (e notRecorded) Unwrap() error { return e.error }

// ask does the row's operation on its node and, when that went well, reports it.
func (s *Scheduler) ask(ctx context.Context, w *work) error {
	sb := w.sb
	if sb.WorkerID == "" {
		return recorded(s.life.Destroyed(ctx, sb.ID, sb.Attempt, cay.Usage{}))
	}
	node, err := s.nodes.For(ctx, sb.WorkerID)
	if err != nil {
		return err
	}
	var mounts []*nodev1.VolumeMount
	if sb.Op == cay.OpCreate {
		if mounts, err = s.mounts(ctx, sb); err != nil {
			return err
		}
	}
	call, cancel := context.WithTimeout(ctx, s.timeout(sb.Op))
	defer cancel()
	asked := time.Now()
	id := string(sb.ID)
	switch sb.Op {
	case cay.OpCreate:
		answer, err := node.Create(call, request(&nodev1.CreateRequest{
			SandboxId: id, ProjectId: string(sb.ProjectID), Attempt: sb.Attempt, Spec: specMessage(sb, mounts),
		}))
		if err != nil {
			return noderpc.Decode(err)
		}
		answered := time.Now()
		if err := s.life.Booted(ctx, sb.ID, sb.Attempt, cay.CreateMS{
			Queue: w.leasedAt.Sub(sb.CreatedAt).Milliseconds(), Schedule: asked.Sub(w.leasedAt).Milliseconds(), Boot: answer.Msg.BootMs,
		}); err != nil {
			return recorded(err)
		}
		s.metrics.created(answer.Msg.Warm, sb.CreatedAt, w.leasedAt, asked, answered, time.Now())
		return nil
	case cay.OpDestroy:
		answer, err := node.Destroy(call, request(&nodev1.DestroyRequest{
			SandboxId: id, Attempt: sb.Attempt, GraceMs: s.cfg.DestroyGrace.Milliseconds(),
		}))
		if err != nil {
			return noderpc.Decode(err)
		}
		return recorded(s.life.Destroyed(ctx, sb.ID, sb.Attempt, usage(answer.Msg.Usage)))
	case cay.OpPause:
		if _, err := node.Freeze(call, request(&nodev1.FreezeRequest{SandboxId: id})); err != nil {
			return noderpc.Decode(err)
		}
		return recorded(s.life.Frozen(ctx, sb.ID, sb.Attempt))
	case cay.OpResume:
		if _, err := node.Thaw(call, request(&nodev1.ThawRequest{SandboxId: id})); err != nil {
			return noderpc.Decode(err)
		}
		return recorded(s.life.Thawed(ctx, sb.ID, sb.Attempt))
	default:
		return fmt.Errorf("sandbox %s has the unknown operation %q", sb.ID, sb.Op)
	}
}

func recorded(err error) error {
	if err != nil {
		return notRecorded{err}
	}
	return nil
}

func (s *Scheduler) timeout(op cay.Operation) time.Duration {
	switch op {
	case cay.OpCreate:
		return s.cfg.CreateTimeout
	case cay.OpDestroy:
		return s.cfg.DestroyTimeout + s.cfg.DestroyGrace
	default:
		return s.cfg.FreezeTimeout
	}
}

// failed decides between trying again and giving up.
func (s *Scheduler) failed(ctx context.Context, sb *cay.Sandbox, err error) error {
	var lost notRecorded
	if errors.As(err, &lost) {
		return lost.error
	}
	s.log.Warn("operation failed", "sandbox", sb.ID, "worker", sb.WorkerID, "operation", sb.Op, "attempt", sb.Attempt, "error", err)
	reason := cay.ReasonOf(err)
	switch sb.Op {
	case cay.OpCreate:
		return s.bootFailed(ctx, sb, reason, err)
	case cay.OpPause, cay.OpResume:
		if reason == cay.NotImplemented || reason == cay.Unprocessable || sb.FailureCount+1 >= maxMoves {
			return s.life.Refused(ctx, sb.ID, sb.Attempt, err)
		}
		return s.life.Retry(ctx, sb.ID, sb.Attempt, backoff(sb.FailureCount+1), true, false, "")
	default:
		return s.life.Retry(ctx, sb.ID, sb.Attempt, backoff(sb.FailureCount+1), true, false, "")
	}
}

func (s *Scheduler) bootFailed(ctx context.Context, sb *cay.Sandbox, reason cay.ErrorReason, err error) error {
	if worker := elsewhere(err); worker != "" {
		return s.life.Redirect(ctx, sb.ID, sb.Attempt, worker)
	}
	switch reason {
	case cay.Unavailable, cay.WorkerLost, cay.NotReady, cay.PreconditionFailed, cay.Conflict:
		// The platform's fault: the worker could not be reached, adopts, or has seen a higher attempt.
		return s.life.Retry(ctx, sb.ID, sb.Attempt, backoff(min(sb.Attempt, 8)), false, false, detail(err))
	case cay.NoCapacity:
		return s.life.Retry(ctx, sb.ID, sb.Attempt, capacityWait, false, true, "")
	case cay.Unprocessable, cay.InvalidRequest, cay.InvalidImage, cay.Gone:
		return s.life.BootFailed(ctx, sb.ID, sb.Attempt, cay.ReasonUnprocessable, detail(err))
	case cay.NotImplemented:
		return s.life.BootFailed(ctx, sb.ID, sb.Attempt, cay.ReasonBootFailed, detail(err))
	}
	if sb.FailureCount+1 >= s.cfg.MaxBoots {
		return s.life.BootFailed(ctx, sb.ID, sb.Attempt, cay.ReasonBootFailed, detail(err))
	}
	return s.life.Retry(ctx, sb.ID, sb.Attempt, backoff(sb.FailureCount+1), true, false, detail(err))
}

// detail is the sentence on a failed boot that its owner may read.
func detail(err error) string {
	var e *cay.Error
	switch {
	case errors.As(err, &e):
		return e.Detail
	case errors.Is(err, context.DeadlineExceeded):
		return "the sandbox did not boot in time"
	default:
		return "the sandbox did not boot"
	}
}

// backoff doubles with every failure.
func backoff(failures int64) time.Duration {
	d := firstBackoff
	for ; failures > 1 && d < maxBackoff; failures-- {
		d *= 2
	}
	return min(d, maxBackoff)
}
