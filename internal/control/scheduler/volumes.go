package scheduler

import (
	"context"
	"errors"
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// Volumes makes ready what a sandbox mounts; internal/control/sessions implements it.
type Volumes interface {
	// Prepare answers what a sandbox with a session mounts, once it is on the sandbox's worker. That takes as long as bringing it there
	// takes. cay.Conflict with worker_id: it is on that worker, and the sandbox has to go there.
	Prepare(ctx context.Context, sb *cay.Sandbox) ([]*nodev1.VolumeMount, error)
}

// mounts has ready what the sandbox mounts. Meanwhile the hand that was to boot it works for others.
func (s *Scheduler) mounts(ctx context.Context, sb *cay.Sandbox) ([]*nodev1.VolumeMount, error) {
	if sb.Spec.SessionID == "" {
		return nil, nil
	}
	s.mu.Lock()
	s.layDown()
	s.mu.Unlock()
	s.Wake()
	mounts, err := s.files.Prepare(ctx, sb)
	s.takeUp(ctx)
	return mounts, err
}

// layDown gives a hand that boots to whoever waits longest for one. s.mu is held.
func (s *Scheduler) layDown() {
	if len(s.waiting) == 0 {
		s.boots--
		return
	}
	close(s.waiting[0])
	s.waiting = s.waiting[1:]
}

// takeUp waits for a hand to boot with. When ctx ends it is one too many, for as long as it takes to notice that there is nothing to do.
func (s *Scheduler) takeUp(ctx context.Context) {
	s.mu.Lock()
	if s.boots < s.cfg.Boots {
		s.boots++
		s.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	s.waiting = append(s.waiting, turn)
	s.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := slices.Index(s.waiting, turn); i >= 0 {
			s.waiting = slices.Delete(s.waiting, i, i+1)
			s.boots++
		}
	}
}

// elsewhere is the worker that a refused sandbox has to go to; "" when the refusal says nothing of the kind.
func elsewhere(err error) cay.ID {
	var e *cay.Error
	if !errors.As(err, &e) || e.Reason != cay.Conflict {
		return ""
	}
	worker, _ := e.Extra["worker_id"].(string)
	return cay.ID(worker)
}
