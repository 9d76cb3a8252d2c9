package lifecycle

import (
	"context"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// strikers bounds the clocks that strike at once; they share commits.
const strikers = 16

// arm sets the sandbox's alarm to when the next of its clocks strikes.
func (s *Sandboxes) arm(id cay.ID) {
	e, sb := s.table.get(id)
	if e == nil {
		s.alarms.set(id, time.Time{})
		return
	}
	s.alarms.set(id, strikesAt(sb, e.activeAt(), e.foreground.Load()))
}

// strikesAt is when the next clock of the row strikes; zero: none runs.
func strikesAt(sb *cay.Sandbox, lastActive time.Time, foreground bool) time.Time {
	switch sb.Status {
	case cay.Creating:
		return sb.QueueDeadline
	case cay.Ready:
		at := sb.ExpiresAt
		if idle := idleEnd(sb, lastActive, foreground); !idle.IsZero() && idle.Before(at) {
			at = idle
		}
		return at
	case cay.Paused:
		if sb.Op == cay.OpResume {
			return time.Time{}
		}
		return sb.PausedAt.Add(sb.Spec.PausedTTL)
	default:
		return time.Time{}
	}
}

func idleEnd(sb *cay.Sandbox, lastActive time.Time, foreground bool) time.Time {
	if sb.Spec.IdleTimeout <= 0 || foreground {
		return time.Time{}
	}
	return lastActive.Add(sb.Spec.IdleTimeout + activityLag)
}

// strike lets the clocks of these sandboxes act. One that cannot act now strikes again after clockRetry.
func (s *Sandboxes) strike(ctx context.Context, ids []cay.ID) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, strikers)
	for _, id := range ids {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			s.strikeOne(ctx, id)
		})
	}
	wg.Wait()
}

func (s *Sandboxes) strikeOne(ctx context.Context, id cay.ID) {
	e, sb := s.table.get(id)
	if e == nil {
		return
	}
	at := now()
	if due := strikesAt(sb, e.activeAt(), e.foreground.Load()); due.IsZero() || due.After(at) {
		s.alarms.set(id, due) // it was used in the meantime
		return
	}
	acted := false
	_, err := s.mutate(ctx, id, func(sb *cay.Sandbox) error {
		acted = false
		err := s.timeUp(sb, e, at)
		acted = err == nil
		return err
	})
	if err != nil && ctx.Err() == nil {
		s.log.Error("a sandbox's time is up and it could not be ended", "sandbox", id, "error", err)
	}
	if !acted {
		s.alarms.set(id, at.Add(clockRetry))
	}
}

// timeUp does to the row what its clocks demand at the time; errUnchanged when they demand nothing.
func (s *Sandboxes) timeUp(sb *cay.Sandbox, e *entry, at time.Time) error {
	switch sb.Status {
	case cay.Creating:
		if at.Before(sb.QueueDeadline) || sb.LeaseUntil.After(at) {
			return errUnchanged // while it boots, the boot decides
		}
		detail := "no worker had room for the sandbox within its queue timeout"
		if sb.Detail != "" {
			detail = "the sandbox could not be booted within its queue timeout: " + sb.Detail
		}
		return failing(sb, cay.ReasonNoCapacity, detail, at)
	case cay.Ready:
		reason := cay.ReasonTTLExpired
		if at.Before(sb.ExpiresAt) {
			reason = cay.ReasonIdleTimeout
			if idle := idleEnd(sb, e.activeAt(), e.foreground.Load()); idle.IsZero() || at.Before(idle) {
				return errUnchanged
			}
		}
		if sb.Spec.OnTimeout == cay.OnTimeoutPause && !s.refusesPause(e) {
			if sb.Op == cay.OpPause {
				return errUnchanged // under way
			}
			queueing(sb, cay.OpPause)
			return nil
		}
		return s.ending(sb, reason, at)
	case cay.Paused:
		if sb.Op == cay.OpResume || at.Before(sb.PausedAt.Add(sb.Spec.PausedTTL)) {
			return errUnchanged
		}
		return s.ending(sb, cay.ReasonPausedTTLExpired, at)
	default:
		return errUnchanged
	}
}

// refusesPause reports whether the node has refused to pause the sandbox: then its time ends it.
func (s *Sandboxes) refusesPause(e *entry) bool {
	s.table.mu.RLock()
	defer s.table.mu.RUnlock()
	return e.refusal != nil
}

// failing moves a row that never became READY to FAILED. What may be left of it on a worker is still destroyed.
func failing(sb *cay.Sandbox, reason cay.StatusReason, detail string, at time.Time) error {
	if err := sb.Transition(cay.Failed, reason, at); err != nil {
		return err
	}
	sb.Detail = detail
	if sb.WorkerID != "" {
		queueing(sb, cay.OpDestroy)
	} else {
		settled(sb)
	}
	return nil
}
