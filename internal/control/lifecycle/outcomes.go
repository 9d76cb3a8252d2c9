package lifecycle

import (
	"context"
	"time"

	"github.com/cayhq/cay"
)

// leased is the guard of every outcome: the row must still have the operation, at the attempt that was leased. Else someone newer has
// it (a delete came in, the lease ran out), and the outcome no longer counts.
func leased(sb *cay.Sandbox, attempt int64, ops ...cay.Operation) error {
	for _, op := range ops {
		if sb.Op == op && sb.Attempt == attempt && sb.LeaseOwner != "" {
			return nil
		}
	}
	return cay.Errorf(cay.Conflict, "sandbox %s is %s with operation %q at attempt %d; attempt %d no longer counts",
		sb.ID, sb.Status, sb.Op, sb.Attempt, attempt).With("status", string(sb.Status))
}

// Booted makes the sandbox READY. ms is where the time went; its Total is filled in here.
func (s *Sandboxes) Booted(ctx context.Context, id cay.ID, attempt int64, ms cay.CreateMS) error {
	_, err := s.mutate(ctx, id, func(sb *cay.Sandbox) error {
		if err := leased(sb, attempt, cay.OpCreate); err != nil {
			return err
		}
		at := now()
		if err := sb.Transition(cay.Ready, "", at); err != nil {
			return err
		}
		s.table.saw(id, at)
		ms.Total = at.Sub(sb.CreatedAt).Milliseconds()
		sb.CreateMS, sb.Detail = ms, ""
		settled(sb)
		return nil
	})
	return err
}

// BootFailed makes the sandbox FAILED for good; what may be left of it on its worker is destroyed. reason is boot_failed, or
// unprocessable where the caller asked for what cannot be; detail is public.
func (s *Sandboxes) BootFailed(ctx context.Context, id cay.ID, attempt int64, reason cay.StatusReason, detail string) error {
	_, err := s.mutate(ctx, id, func(sb *cay.Sandbox) error {
		if err := leased(sb, attempt, cay.OpCreate); err != nil {
			return err
		}
		return failing(sb, reason, detail, now())
	})
	return err
}

// Destroyed makes the sandbox TERMINATED: its worker has proved it gone.
func (s *Sandboxes) Destroyed(ctx context.Context, id cay.ID, attempt int64, usage cay.Usage) error {
	_, err := s.mutate(ctx, id, func(sb *cay.Sandbox) error {
		if err := leased(sb, attempt, cay.OpDestroy); err != nil {
			return err
		}
		sb.Usage = newer(sb.Usage, usage)
		settled(sb)
		if sb.Status.Ended() { // a failed one, of which nothing is left now
			return nil
		}
		return sb.Transition(cay.Terminated, "", now())
	})
	return err
}

// Frozen makes the sandbox PAUSED.
func (s *Sandboxes) Frozen(ctx context.Context, id cay.ID, attempt int64) error {
	return s.moved(ctx, id, attempt, cay.OpPause, cay.Paused)
}

// Thawed makes the sandbox READY again.
func (s *Sandboxes) Thawed(ctx context.Context, id cay.ID, attempt int64) error {
	return s.moved(ctx, id, attempt, cay.OpResume, cay.Ready)
}

func (s *Sandboxes) moved(ctx context.Context, id cay.ID, attempt int64, op cay.Operation, to cay.Status) error {
	_, err := s.mutate(ctx, id, func(sb *cay.Sandbox) error {
		if err := leased(sb, attempt, op); err != nil {
			return err
		}
		settled(sb)
		return sb.Transition(to, "", now())
	})
	return err
}

// Refused gives up a pause or resume: the sandbox stays what it is, and who waits for it gets why.
func (s *Sandboxes) Refused(ctx context.Context, id cay.ID, attempt int64, why error) error {
	_, err := s.mutateRefusing(ctx, id, why, func(sb *cay.Sandbox) error {
		if err := leased(sb, attempt, cay.OpPause, cay.OpResume); err != nil {
			return err
		}
		settled(sb)
		return nil
	})
	return err
}

// Retry gives the lease back, to be taken again after a while. failure counts one failure of the sandbox itself. elsewhere gives up the
// place on its worker, where nothing of it may be left. detail is what its owner may read meanwhile; "" when that is nothing new.
func (s *Sandboxes) Retry(ctx context.Context, id cay.ID, attempt int64, after time.Duration, failure, elsewhere bool, detail string) error {
	_, err := s.mutate(ctx, id, func(sb *cay.Sandbox) error {
		if err := leased(sb, attempt, cay.OpCreate, cay.OpDestroy, cay.OpPause, cay.OpResume); err != nil {
			return err
		}
		sb.LeaseOwner, sb.LeaseUntil = "", time.Time{}
		if after > 0 {
			sb.NotBefore = now().Add(after)
		}
		if failure {
			sb.FailureCount++
		}
		if detail != "" && sb.Op == cay.OpCreate {
			sb.Detail = detail
		}
		if elsewhere && sb.Op == cay.OpCreate {
			sb.WorkerID = ""
		}
		return nil
	})
	return err
}

// Redirect gives the lease back and the place on its worker up, where nothing of the sandbox is: its session's volume is on another one.
func (s *Sandboxes) Redirect(ctx context.Context, id cay.ID, attempt int64, worker cay.ID) error {
	_, err := s.mutate(ctx, id, func(sb *cay.Sandbox) error {
		if err := leased(sb, attempt, cay.OpCreate); err != nil {
			return err
		}
		sb.LeaseOwner, sb.LeaseUntil = "", time.Time{}
		sb.WorkerID, sb.NearWorker = "", worker
		return nil
	})
	return err
}

// On returns the sandboxes that a worker must have: READY and PAUSED ones.
func (s *Sandboxes) On(worker cay.ID) []*cay.Sandbox {
	return s.table.all(func(sb *cay.Sandbox) bool {
		return sb.WorkerID == worker && (sb.Status == cay.Ready || sb.Status == cay.Paused)
	})
}

// Ended takes a worker's word that a sandbox has ended by itself. What is left of it is destroyed.
func (s *Sandboxes) Ended(ctx context.Context, worker, id cay.ID, reason cay.StatusReason, detail string, usage cay.Usage) error {
	_, err := s.mutate(ctx, id, func(sb *cay.Sandbox) error {
		if sb.WorkerID != worker || sb.Status != cay.Ready && sb.Status != cay.Paused {
			return errUnchanged // a boot that fails says so itself; an end that was asked for has its reason
		}
		sb.Usage = newer(sb.Usage, usage)
		sb.Detail = detail
		return s.ending(sb, reason, now())
	})
	if cay.ReasonOf(err) == cay.NotFound {
		return nil
	}
	return err
}

// Active takes a worker's word on a sandbox in use. foreground holds until it is taken back here or by Released.
func (s *Sandboxes) Active(id cay.ID, at time.Time, foreground bool, usage cay.Usage) {
	e, _ := s.table.get(id)
	if e == nil {
		return
	}
	if limit := time.Now(); at.After(limit) {
		at = limit // a worker's clock must not keep a sandbox alive
	}
	e.touch(at)
	forward(&e.seen, time.Now())
	s.table.measure(id, usage)
	s.noteDisk(id, usage)
	if was := e.foreground.Swap(foreground); was != foreground {
		if was {
			e.touch(time.Now())
		}
		s.arm(id)
	}
}

// Present takes a worker's word, at a time, that it has these sandboxes.
func (s *Sandboxes) Present(ids []cay.ID, at time.Time) {
	for _, id := range ids {
		s.table.saw(id, at)
	}
}

// Released takes back every foreground hold on a worker: it has started anew, and with it ended whatever held them.
func (s *Sandboxes) Released(worker cay.ID) {
	for _, sb := range s.On(worker) {
		if e, _ := s.table.get(sb.ID); e != nil && e.foreground.Swap(false) {
			e.touch(time.Now())
			s.arm(sb.ID)
		}
	}
}
