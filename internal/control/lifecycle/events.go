package lifecycle

import (
	"context"
	"time"

	"github.com/cayhq/cay"
)

// noteTimeout bounds the write of an event that nobody waits for.
const noteTimeout = 10 * time.Second

// Events answers, oldest first, at most limit of what happened to the sandbox after the event numbered after. It works as long as the
// row is kept; looking is no activity.
func (s *Sandboxes) Events(ctx context.Context, project, id cay.ID, after int64, limit int) (cay.EventPage, error) {
	sb, err := s.find(ctx, project, id) // before the events: when it says that the sandbox has ended, they are all there
	if err != nil {
		return cay.EventPage{}, err
	}
	if limit < 1 || limit > maxPage {
		return cay.EventPage{}, invalid("limit", "limit is between 1 and %d", maxPage)
	}
	if after < 0 {
		return cay.EventPage{}, invalid("after", "after is the id of an event")
	}
	events, kept, err := s.store.Events(ctx, project, cay.EventQuery{SandboxID: id, After: after, Limit: limit})
	if err != nil {
		return cay.EventPage{}, err
	}
	page := cay.EventPage{Events: events, Reset: kept.Missed(after)}
	if page.Reset && after > kept.Newest {
		if page.Events, _, err = s.store.Events(ctx, project, cay.EventQuery{SandboxID: id, Limit: limit}); err != nil {
			return cay.EventPage{}, err
		}
	}
	page.Ended = sb.Status.Ended() && len(page.Events) < limit
	if n := len(page.Events); n > 0 && page.Events[n-1].Last() {
		page.Ended = true
	}
	return page, nil
}

// NextEvents is Events that waits until there is one, a reset or the end to tell of. It answers an empty page when ctx ends.
func (s *Sandboxes) NextEvents(ctx context.Context, project, id cay.ID, after int64, limit int) (cay.EventPage, error) {
	for {
		woken, leave := s.feed.wait(id)
		page, err := s.Events(ctx, project, id, after, limit)
		if err == nil && len(page.Events) == 0 && !page.Reset && !page.Ended {
			select {
			case <-woken:
				leave()
				continue
			case <-ctx.Done():
			}
		}
		leave()
		if ctx.Err() != nil {
			return cay.EventPage{}, nil
		}
		return page, err
	}
}

// tell records an event that is no part of a change of the row.
func (s *Sandboxes) tell(ctx context.Context, e cay.Event) error {
	if err := s.store.AddEvent(ctx, e); err != nil {
		return err
	}
	s.feed.wake(e.SandboxID)
	return nil
}

// ProcessKilled records that a process of the sandbox was killed for memory while the sandbox lives on.
func (s *Sandboxes) ProcessKilled(ctx context.Context, id cay.ID, at time.Time, process string, pid, rssMB int64) error {
	_, sb := s.table.get(id)
	if sb == nil {
		return nil
	}
	return s.tell(ctx, cay.Event{
		SandboxID: id, ProjectID: sb.ProjectID, Type: cay.EventOOM, At: at,
		Data: map[string]any{"process_id": process, "pid": pid, "rss_mb": rssMB},
	})
}

// noteDisk records that the sandbox's disk has become full: 99 % of it. It does so again only after a tenth was free in between. A
// server that starts anew may say it once more.
func (s *Sandboxes) noteDisk(id cay.ID, u cay.Usage) {
	e, sb := s.table.get(id)
	if e == nil {
		return
	}
	limit := int64(sb.Spec.DiskGB * 1024)
	switch {
	case u.DiskMB <= limit/10*9:
		e.diskFull.Store(false)
	case u.DiskMB < limit-limit/100 || e.diskFull.Swap(true):
	default:
		ctx, cancel := context.WithTimeout(context.Background(), noteTimeout)
		defer cancel()
		if err := s.tell(ctx, cay.Event{
			SandboxID: id, ProjectID: sb.ProjectID, Type: cay.EventDiskFull, At: now(), Data: map[string]any{"disk_mb": u.DiskMB, "limit_mb": limit},
		}); err != nil {
			s.log.Error("a full disk was not recorded", "sandbox", id, "error", err)
		}
	}
}
