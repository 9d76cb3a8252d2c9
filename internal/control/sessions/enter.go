package sessions

import (
	"context"
	"slices"
	"time"

	"github.com/cayhq/cay"
)

const (
	maxEntries      = 3                // sandboxes that end while they are entered, until it is given up
	helperQueueWait = time.Minute      // for capacity
	helperTTL       = 24 * time.Hour   // a transfer may take long
	touchPeriod     = 10 * time.Second // between two notes of use, at most
)

// Enter returns a sandbox in which the session's files can be reached at cay.SessionPath, counting as use of the session: one that uses
// it and is READY, but no job's, or a helper: a small one that serves the session, made on first use and gone a while after the last.
func (s *Sessions) Enter(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	row, err := s.Get(ctx, project, id)
	if err != nil {
		return nil, err
	}
	if err := row.Usable(); err != nil {
		return nil, err
	}
	if err := s.possible(); err != nil {
		return nil, err
	}
	if err := s.touch(ctx, row); err != nil {
		return nil, err
	}
	for entries := 1; ; entries++ {
		sb, err := s.enterUser(ctx, row)
		if err == nil && sb == nil {
			if err := s.volumes.interrupt(ctx, id, archiving); err != nil {
				return nil, waited(id, err)
			}
			if err := s.helpers.do(ctx, id, helping, s.help(row)); err != nil {
				if ctx.Err() != nil {
					return nil, waited(id, err)
				}
				return nil, err
			}
			sb, err = s.enterUser(ctx, row)
		}
		if err == nil && sb != nil {
			return sb, nil
		}
		if cay.ReasonOf(err) == cay.Internal {
			return nil, err
		}
		if entries == maxEntries {
			return nil, cay.Errorf(cay.Unavailable, "the sandbox that shows the files of session %s has ended; try again", id).After(time.Second).Because(err)
		}
	}
}

func waited(id cay.ID, err error) error {
	return cay.Errorf(cay.Timeout, "the files of session %s are not at hand yet; try again", id).After(time.Second).Because(err)
}

// touch notes the use, unless it was noted just now.
func (s *Sessions) touch(ctx context.Context, row *cay.Session) error {
	period := min(touchPeriod, row.TTL/10)
	if s.cfg.ArchiveAfter > 0 {
		period = min(period, s.cfg.ArchiveAfter/10)
	}
	if time.Since(row.LastUsedAt) < period {
		return nil
	}
	_, err := s.mutate(ctx, row.ID, func(row *cay.Session, _ []*cay.Sandbox) error {
		if err := row.Usable(); err != nil {
			return err
		}
		used(row, now())
		return nil
	})
	return err
}

// enterUser enters a sandbox of the session that is READY; nil: there is none. A paused one is left in peace, and so is a job's, which
// ends with its program and whatever is under way in it.
func (s *Sessions) enterUser(ctx context.Context, row *cay.Session) (*cay.Sandbox, error) {
	users, err := s.store.SessionUsers(ctx, row.ID)
	if err != nil {
		return nil, err
	}
	var last error
	for _, sb := range users {
		if sb.Status != cay.Ready || sb.Op == cay.OpPause || sb.Spec.ManagedBy != "" && !serves(sb, row.ID) {
			continue
		}
		entered, err := s.sandboxes.Enter(ctx, row.ProjectID, sb.ID)
		if err == nil {
			return entered, nil
		}
		last = err
	}
	return nil, last
}

// help brings a helper up, or waits for the one that is on its way. It has the default shape: of that one there are prepared ones.
func (s *Sessions) help(row *cay.Session) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, helperTimeout)
		defer cancel()
		users, err := s.store.SessionUsers(ctx, row.ID)
		if err != nil {
			return err
		}
		var sb *cay.Sandbox
		if i := slices.IndexFunc(users, func(sb *cay.Sandbox) bool {
			return serves(sb, row.ID) && (sb.Status == cay.Creating || sb.Status == cay.Ready)
		}); i >= 0 {
			sb = users[i]
		} else {
			idle, ttl, queueWait := s.cfg.HelperIdle, helperTTL, helperQueueWait
			if sb, err = s.sandboxes.Create(ctx, row.ProjectID, cay.CreateSandbox{
				ManagedBy: row.ID, SessionID: row.ID, SessionShared: true, IdleTimeout: &idle, TTL: &ttl, QueueTimeout: &queueWait,
			}); err != nil {
				return err
			}
		}
		if sb, err = s.sandboxes.Wait(ctx, row.ProjectID, sb.ID, cay.Ready); err != nil {
			return err
		}
		switch {
		case sb.Status == cay.Ready || sb.Status == cay.Terminating || sb.Status == cay.Terminated:
			return nil // whoever waits looks again
		case sb.Status != cay.Failed:
			return cay.Errorf(cay.Unavailable, "the files of session %s are not at hand yet; try again", row.ID).After(time.Second)
		}
		reason := cay.BootFailed
		switch sb.StatusReason {
		case cay.ReasonUnprocessable:
			reason = cay.Unprocessable
		case cay.ReasonNoCapacity:
			reason = cay.NoCapacity
		}
		return cay.Errorf(reason, "the files of session %s cannot be reached: %s", row.ID, sb.Detail).With("sandbox_id", string(sb.ID))
	}
}
