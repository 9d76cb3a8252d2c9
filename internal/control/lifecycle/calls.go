package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
)

const (
	defaultPage = 50
	maxPage     = 200
)

// Create checks the request against limits and quota, fills in defaults, and writes the row CREATING. It does not wait. Where the
// request names the id, a sandbox of that id which serves the same is the answer, whatever has become of it. One that serves a job or a
// session does not count as the project's own.
func (s *Sandboxes) Create(ctx context.Context, project cay.ID, req cay.CreateSandbox) (sb *cay.Sandbox, err error) {
	ctx, end := span(ctx, "sandbox.create")
	defer func() { end(sb, err) }()
	id, most := req.ID, s.cfg.MaxSandboxes
	if id == "" {
		id = cay.NewID(cay.PrefixSandbox)
	} else if sb, err := s.made(ctx, project, req); err == nil || cay.ReasonOf(err) != cay.NotFound {
		return sb, err
	}
	if req.ManagedBy != "" {
		most = 0
	}
	spec, queueWait, err := s.resolve(req)
	if err != nil {
		return nil, err
	}
	at := now()
	sb = &cay.Sandbox{
		ID: id, ProjectID: project, Spec: spec, Status: cay.Creating, Traceparent: tracing.Traceparent(ctx),
		CreatedAt: at, LastActiveAt: at, QueueDeadline: at.Add(queueWait), Op: cay.OpCreate, CreatedBy: req.KeyID, Version: 1,
	}
	if err := s.insert(ctx, sb, most); err != nil {
		if req.ID != "" && cay.ReasonOf(err) == cay.AlreadyExists {
			return s.made(ctx, project, req) // by a call at the same time
		}
		return nil, err
	}
	s.publish(sb, nil)
	return s.seen(sb), nil
}

const (
	leavePatience  = 30 * time.Second // for a sandbox that is ending
	finishPatience = time.Second      // for one of a job to begin to end, which it does once the job has finished
)

// insert writes a new row. A client's own sandbox waits a while for its session where that is held by one that is on its way out: whoever
// has seen a sandbox deleted or a job finish need not know that its files are let go of a moment later.
func (s *Sandboxes) insert(ctx context.Context, sb *cay.Sandbox, most int64) error {
	for {
		err := s.store.InsertSandbox(ctx, sb, most, s.cfg.MaxQueued)
		var held *cay.Error
		if sb.Spec.ManagedBy != "" || !errors.As(err, &held) || held.Reason != cay.Conflict {
			return err
		}
		holder, _ := held.Extra["sandbox_id"].(string)
		if holder == "" || !s.leaves(ctx, sb.ProjectID, cay.ID(holder)) {
			return err
		}
	}
}

// leaves waits for the end of a sandbox that is ending, or reports that it is not.
func (s *Sandboxes) leaves(ctx context.Context, project, id cay.ID) bool {
	sb, err := s.find(ctx, project, id)
	if err == nil && sb.Status.Active() && strings.HasPrefix(string(sb.Spec.ManagedBy), cay.PrefixJob) {
		finishing, cancel := context.WithTimeout(ctx, finishPatience)
		defer cancel()
		sb, err = s.Wait(finishing, project, id, cay.Terminating)
	}
	if err == nil && sb.Status == cay.Terminating {
		ending, cancel := context.WithTimeout(ctx, leavePatience)
		defer cancel()
		sb, err = s.Wait(ending, project, id, cay.Terminated)
	}
	return err == nil && sb.Status.Ended()
}

// Check answers why a create would be refused whatever the platform has to do at the moment, or nil.
func (s *Sandboxes) Check(req cay.CreateSandbox) error {
	_, _, err := s.resolve(req)
	return err
}

// made finds what an earlier create of the same id has made; cay.NotFound when there was none.
func (s *Sandboxes) made(ctx context.Context, project cay.ID, req cay.CreateSandbox) (*cay.Sandbox, error) {
	sb, err := s.store.Sandbox(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	if sb.ProjectID != project || sb.Spec.ManagedBy != req.ManagedBy {
		return nil, cay.Errorf(cay.AlreadyExists, "there is a sandbox %s already, and it serves something else", req.ID)
	}
	return s.seen(sb), nil
}

// find returns the project's row: from memory while it lives, else from the store.
func (s *Sandboxes) find(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	_, sb := s.table.get(id)
	if sb == nil {
		var err error
		if sb, err = s.store.Sandbox(ctx, id); err != nil {
			return nil, err
		}
	}
	if sb.ProjectID != project {
		return nil, cay.Errorf(cay.NotFound, "there is no sandbox %s", id)
	}
	return sb, nil
}

// Get returns the sandbox. Looking is no activity.
func (s *Sandboxes) Get(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	sb, err := s.find(ctx, project, id)
	if err != nil {
		return nil, err
	}
	return s.seen(sb), nil
}

// List returns a page of the project's sandboxes and the cursor of the next.
func (s *Sandboxes) List(ctx context.Context, project cay.ID, q cay.SandboxQuery) ([]*cay.Sandbox, string, error) {
	if q.Limit == 0 {
		q.Limit = defaultPage
	}
	if q.Limit < 1 || q.Limit > maxPage {
		return nil, "", invalid("limit", "limit is between 1 and %d", maxPage)
	}
	for _, status := range q.Statuses {
		if !slices.Contains(cay.Statuses, status) {
			return nil, "", invalid("status", "there is no status %q", string(status))
		}
	}
	for key, value := range q.Metadata {
		if !plain(key) || !plain(value) {
			return nil, "", invalid("metadata", "a metadata filter is not UTF-8 or holds a NUL")
		}
	}
	items, next, err := s.store.ListSandboxes(ctx, project, q)
	if err != nil {
		return nil, "", err
	}
	for _, sb := range items {
		s.table.fold(sb)
	}
	return items, next, nil
}

// Wait returns the sandbox as soon as its status is one of want or can no longer become one, or as it is when ctx ends; ctx's end is
// no error.
func (s *Sandboxes) Wait(ctx context.Context, project, id cay.ID, want ...cay.Status) (*cay.Sandbox, error) {
	sb, err := s.find(ctx, project, id)
	if err != nil {
		return nil, err
	}
	for !slices.Contains(want, sb.Status) && reachable(sb.Status, want) {
		next, _, ok := s.next(ctx, sb)
		if !ok {
			break
		}
		sb = next
	}
	return s.seen(sb), nil
}

// reachable reports whether any of want can still follow from.
func reachable(from cay.Status, want []cay.Status) bool {
	seen := []cay.Status{from}
	for i := 0; i < len(seen); i++ {
		for _, to := range cay.Statuses {
			if !cay.CanTransition(seen[i], to) || slices.Contains(seen, to) {
				continue
			}
			if slices.Contains(want, to) {
				return true
			}
			seen = append(seen, to)
		}
	}
	return false
}

// next waits until the row is newer than sb. refusal is why a node would not do the operation that sb still has. ok is false when ctx
// ended first.
func (s *Sandboxes) next(ctx context.Context, sb *cay.Sandbox) (row *cay.Sandbox, refusal error, ok bool) {
	for {
		row, changed, refusal := s.table.watch(sb.ID, sb.Version)
		if row == nil { // it ended between two looks, or has just been made
			row, err := s.store.Sandbox(ctx, sb.ID)
			if err != nil {
				return sb, nil, false
			}
			if row.Status.Ended() {
				return row, nil, true
			}
			s.publish(row, nil)
			continue
		}
		if row.Version > sb.Version {
			return row, refusal, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return sb, nil, false
		}
	}
}

// change mutates the project's row on a caller's behalf.
func (s *Sandboxes) change(ctx context.Context, project, id cay.ID, change func(*cay.Sandbox) error) (*cay.Sandbox, error) {
	return s.mutate(ctx, id, func(sb *cay.Sandbox) error {
		if sb.ProjectID != project {
			return cay.Errorf(cay.NotFound, "there is no sandbox %s", id)
		}
		return change(sb)
	})
}

// Delete moves the sandbox to TERMINATING and returns at once; one that ends or has ended is returned as it is.
func (s *Sandboxes) Delete(ctx context.Context, project, id cay.ID) (sb *cay.Sandbox, err error) {
	ctx, end := span(ctx, "sandbox.delete")
	defer func() { end(sb, err) }()
	sb, err = s.change(ctx, project, id, func(sb *cay.Sandbox) error {
		if !sb.Status.Active() {
			return errUnchanged
		}
		if err := s.ending(sb, cay.ReasonDeleted, now()); err != nil {
			return err
		}
		sb.Traceparent = tracing.Traceparent(ctx)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.seen(sb), nil
}

// Pause returns when the sandbox is PAUSED, or as it is when ctx ends. Idempotent.
func (s *Sandboxes) Pause(ctx context.Context, project, id cay.ID) (sb *cay.Sandbox, err error) {
	ctx, end := span(ctx, "sandbox.pause")
	defer func() { end(sb, err) }()
	return s.operate(ctx, project, id, cay.Paused, cay.OpPause, 0, func(sb *cay.Sandbox) error {
		if sb.Status == cay.Paused {
			return errUnchanged
		}
		if err := sb.Usable(); err != nil {
			return err
		}
		queueing(sb, cay.OpPause)
		sb.Traceparent = tracing.Traceparent(ctx)
		return nil
	})
}

// Resume returns when the sandbox is READY, or as it is when ctx ends. Its end is then now + ttl, capped at the maximum; ttl nil: what
// was left, or the whole TTL when nothing was. Idempotent: on a READY one only a ttl that was given counts.
func (s *Sandboxes) Resume(ctx context.Context, project, id cay.ID, ttl *time.Duration) (sb *cay.Sandbox, err error) {
	ctx, end := span(ctx, "sandbox.resume")
	defer func() { end(sb, err) }()
	var asked time.Duration
	if ttl != nil {
		if asked, err = s.ttl("ttl_seconds", ttl, 0); err != nil {
			return nil, err
		}
	}
	return s.operate(ctx, project, id, cay.Ready, cay.OpResume, asked, func(sb *cay.Sandbox) error {
		switch sb.Status {
		case cay.Ready:
			if asked == 0 {
				return errUnchanged
			}
			sb.ExpiresAt = now().Add(asked)
			return nil
		case cay.Paused:
			switch {
			case asked > 0:
				sb.TTLLeft = asked
			case sb.TTLLeft <= 0:
				sb.TTLLeft = sb.Spec.TTL
			}
			queueing(sb, cay.OpResume)
			sb.Traceparent = tracing.Traceparent(ctx)
			return nil
		default:
			return sb.Usable()
		}
	})
}

// operate brings the sandbox to a status by an operation that a node has to do. begin edits the row when no operation is under way:
// it queues the operation, answers errUnchanged or edits the row when the status is reached already, or says why it cannot be. ttl is
// what a resume that joins another wants to be left after it; zero for none.
func (s *Sandboxes) operate(ctx context.Context, project, id cay.ID, goal cay.Status, op cay.Operation, ttl time.Duration,
	begin func(*cay.Sandbox) error) (*cay.Sandbox, error) {
	for {
		sb, err := s.change(ctx, project, id, func(sb *cay.Sandbox) error {
			if sb.Status != cay.Creating && sb.Status.Active() && sb.Op != cay.OpNone {
				if sb.Op == op && ttl > 0 {
					sb.TTLLeft = ttl
					return nil
				}
				return errUnchanged // join it, or wait for the opposite to finish
			}
			if err := begin(sb); err != nil {
				return err
			}
			sb.LastActiveAt = now()
			return nil
		})
		if err != nil {
			return nil, err
		}
		for sb.Op == cay.OpPause || sb.Op == cay.OpResume {
			awaited := sb.Op
			next, refusal, ok := s.next(ctx, sb)
			if !ok {
				return s.seen(sb), nil
			}
			if refusal != nil && awaited == op {
				return nil, refusal
			}
			sb = next
		}
		if sb.Status == goal {
			return s.seen(sb), nil
		}
		if !sb.Status.Active() {
			return nil, sb.Usable()
		}
	}
}

// SetTimeout sets the end to now + ttl, capped at the maximum; with extendOnly it never comes earlier. While PAUSED, when the clock
// stands still, it sets what will be left.
func (s *Sandboxes) SetTimeout(ctx context.Context, project, id cay.ID, ttl time.Duration, extendOnly bool) (*cay.Sandbox, error) {
	ttl, err := s.ttl("ttl_seconds", &ttl, 0)
	if err != nil {
		return nil, err
	}
	sb, err := s.change(ctx, project, id, func(sb *cay.Sandbox) error {
		at := now()
		switch sb.Status {
		case cay.Ready:
			if end := at.Add(ttl); !extendOnly || end.After(sb.ExpiresAt) {
				sb.ExpiresAt = end
			}
		case cay.Paused:
			if !extendOnly || ttl > sb.TTLLeft {
				sb.TTLLeft = ttl
			}
		default:
			return sb.Usable()
		}
		sb.LastActiveAt = at
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.seen(sb), nil
}

// Update changes what PATCH may change.
func (s *Sandboxes) Update(ctx context.Context, project, id cay.ID, u cay.UpdateSandbox) (*cay.Sandbox, error) {
	if err := cay.CheckMetadata(u.Metadata); err != nil {
		return nil, err
	}
	if u.IdleTimeout != nil {
		if _, err := idleTimeout(*u.IdleTimeout); err != nil {
			return nil, err
		}
	}
	if u.OnTimeout != nil {
		if err := onTimeout(*u.OnTimeout); err != nil {
			return nil, err
		}
		workers := s.workers.Workers()
		if *u.OnTimeout == cay.OnTimeoutPause && len(workers) > 0 && !slices.ContainsFunc(workers, func(w cay.Worker) bool { return w.CanFreeze }) {
			return nil, cay.Errorf(cay.Unprocessable, "no worker here can pause a sandbox; use on_timeout terminate").On("on_timeout")
		}
	}
	sb, err := s.change(ctx, project, id, func(sb *cay.Sandbox) error {
		if !sb.Status.Active() {
			return sb.Usable()
		}
		if u.Metadata != nil {
			sb.Spec.Metadata = u.Metadata
		}
		if u.IdleTimeout != nil {
			sb.Spec.IdleTimeout = *u.IdleTimeout
		}
		if u.OnTimeout != nil {
			sb.Spec.OnTimeout = *u.OnTimeout
		}
		sb.LastActiveAt = now()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s.seen(sb), nil
}

// Enter returns a sandbox that is READY for use, counting the call as activity; a paused one with auto_resume is resumed first. While
// the sandbox lives it reads memory alone.
func (s *Sandboxes) Enter(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	if e, sb := s.table.get(id); e != nil && sb.ProjectID == project && sb.Status == cay.Ready && sb.Op != cay.OpPause {
		e.touch(time.Now())
		return s.seen(sb), nil
	}
	sb, err := s.find(ctx, project, id)
	if err != nil {
		return nil, err
	}
	if pausing := sb.Status == cay.Ready && sb.Op == cay.OpPause; sb.Status != cay.Paused && !pausing {
		if err := sb.Usable(); err != nil {
			return nil, err
		}
		return s.seen(sb), nil // it became READY between the two looks
	}
	if !sb.Spec.AutoResume {
		return nil, cay.Errorf(cay.SandboxPaused, "sandbox %s is paused; resume it first", id).With("status", string(cay.Paused))
	}
	sb, err = s.Resume(ctx, project, id, nil)
	if err != nil {
		return nil, err
	}
	if sb.Status != cay.Ready || sb.Op == cay.OpPause {
		return nil, errors.Join(ctx.Err(), sb.Usable())
	}
	return sb, nil
}

// Runtimes are the languages that a sandbox can be asked for by name.
func (s *Sandboxes) Runtimes(context.Context) ([]cay.Runtime, error) {
	workers := s.workers.Workers()
	if len(workers) == 0 {
		return nil, cay.Errorf(cay.Unavailable, "no worker has said yet which runtimes it has; try again").After(time.Second)
	}
	return runtimes(workers), nil
}

// Count says how many sandboxes that have not ended are in each status.
func (s *Sandboxes) Count() map[cay.Status]int {
	n := map[cay.Status]int{}
	s.table.all(func(sb *cay.Sandbox) bool {
		n[sb.Status]++
		return false
	})
	return n
}
