package sessions

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// maxDue bounds the sessions of one look, beside those that are not tried again yet.
const maxDue = 100

// failure is what went wrong, and when it is tried again.
type failure struct {
	count int
	until time.Time
}

// again counts one failure more.
func (f failure) again() failure {
	wait := firstBackoff << min(f.count, 16)
	return failure{f.count + 1, time.Now().Add(min(wait, maxBackoff))}
}

// sweep begins what is due: it ends what has expired, archives what lies idle, and takes up what was left half done.
func (s *Sessions) sweep(ctx context.Context) {
	at := now()
	idleBefore, limit := time.Time{}, maxDue
	s.mu.Lock()
	if s.cfg.ArchiveAfter > 0 && !at.Before(s.storage.until) {
		idleBefore = at.Add(-s.cfg.ArchiveAfter)
	}
	for id, f := range s.failures {
		if at.After(f.until.Add(maxBackoff)) {
			delete(s.failures, id) // it was not due any more
		}
	}
	limit += len(s.failures)
	s.mu.Unlock()
	rows, err := s.store.DueSessions(ctx, at, idleBefore, limit)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Error("sessions could not be swept", "error", err)
		}
		return
	}
	for _, row := range rows {
		s.mu.Lock()
		waits := at.Before(s.failures[row.ID].until)
		s.mu.Unlock()
		if waits {
			continue
		}
		switch {
		case row.Status == cay.SessionDeleting:
			s.try(ctx, row.ID, ending, s.end(row.ID))
		case !at.Before(row.ExpiresAt) && row.Status != cay.SessionRestoring:
			s.try(ctx, row.ID, ending, s.expire(row.ID))
		case row.Status == cay.SessionRestoring:
			s.try(ctx, row.ID, restoring, s.restore(row.ID, row.WorkerID))
		case row.Status == cay.SessionActive || row.Status == cay.SessionArchiving:
			s.try(ctx, row.ID, archiving, s.archive(row.ID))
		}
	}
}

// try begins a task unless one is under way, and remembers when it may be tried again if it fails.
func (s *Sessions) try(ctx context.Context, id cay.ID, k kind, do func(context.Context) error) {
	s.volumes.begin(ctx, id, k, func(ctx context.Context) error {
		err := do(ctx)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil || ctx.Err() != nil {
			delete(s.failures, id)
			return err
		}
		s.failures[id] = s.failures[id].again()
		s.log.Error("a session was left as it is; it is tried again", "session", id, "to", string(k), "error", err, "at", s.failures[id].until)
		return err
	})
}

// storageFailed has all archives wait for blob storage.
func (s *Sessions) storageFailed(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.storage = s.storage.again()
	}
	return fmt.Errorf("archive to blob storage: %w", err)
}

func (s *Sessions) storageWorks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storage = failure{}
}

// expire ends a session whose time is up, unless it is in use.
func (s *Sessions) expire(id cay.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		if ok, err := s.idle(ctx, id); err != nil || !ok {
			return err
		}
		row, err := s.mutate(ctx, id, func(row *cay.Session, users []*cay.Sandbox) error {
			at := now()
			if row.Status.Ended() || at.Before(row.ExpiresAt) || len(users) > 0 {
				return errUnchanged
			}
			return row.Transition(cay.SessionDeleting, cay.ReasonTTLExpired, at)
		})
		if err != nil || row.Status != cay.SessionDeleting {
			return err
		}
		s.log.Info("a session has expired", "session", id)
		return s.end(id)(ctx)
	}
}

// sweepVolumes removes the volumes that nobody needs from all workers: those of sessions that are deleted or in blob storage alone.
// One whose session is not known, or is on another worker, is left where it is.
func (s *Sessions) sweepVolumes(ctx context.Context) {
	seen := map[string]bool{}
	for _, w := range s.nodes.Workers() {
		if !w.CanMount || !s.nodes.Available(w.ID) {
			continue
		}
		if err := s.sweepWorker(ctx, w.ID, seen); err != nil && ctx.Err() == nil {
			s.log.Error("the volumes of a worker could not be swept", "worker", w.ID, "error", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for volume := range s.reported {
		if !seen[volume] {
			delete(s.reported, volume)
		}
	}
}

func (s *Sessions) sweepWorker(ctx context.Context, worker cay.ID, seen map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	node, err := s.nodes.For(ctx, worker)
	if err != nil {
		return err
	}
	answer, err := node.ListVolumes(ctx, connect.NewRequest(&nodev1.ListVolumesRequest{}))
	if err != nil {
		return noderpc.Decode(err)
	}
	for _, v := range answer.Msg.Volumes {
		body, ours := strings.CutPrefix(v.Volume, "ses-")
		id, ok := cay.ParseID(cay.PrefixSession, cay.PrefixSession+body)
		if !ours || !ok {
			continue
		}
		seen[v.Volume] = true
		if needed, why := s.needed(ctx, id, worker); needed {
			if why != "" {
				s.report(v.Volume, worker, why)
			}
			continue
		}
		s.try(ctx, id, clearing, func(ctx context.Context) error {
			if needed, _ := s.needed(ctx, id, worker); needed { // it may have been restored meanwhile
				return nil
			}
			s.log.Info("a volume that nobody needs is removed", "volume", v.Volume, "worker", worker)
			return s.removeVolume(ctx, worker, v.Volume)
		})
	}
	return nil
}

// needed reports whether a worker must keep the volume of a session; why is what is strange about it.
func (s *Sessions) needed(ctx context.Context, id, worker cay.ID) (needed bool, why string) {
	row, err := s.store.Session(ctx, id)
	switch {
	case cay.ReasonOf(err) == cay.NotFound:
		return true, "there is no such session"
	case err != nil:
		return true, "its session cannot be read"
	case row.Status == cay.SessionDeleted:
		return false, ""
	case row.Status == cay.SessionArchived:
		return row.ArchiveDigest == "", ""
	case row.WorkerID != worker && row.WorkerID != "":
		return true, "its session is on another worker"
	default:
		return true, ""
	}
}

// report says once that a volume is left where it is.
func (s *Sessions) report(volume string, worker cay.ID, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.reported[volume] {
		s.reported[volume] = true
		s.log.Warn("a volume on a worker is left as it is", "volume", volume, "worker", worker, "because", why)
	}
}
