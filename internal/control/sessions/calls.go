package sessions

import (
	"context"
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

const (
	defaultPage = 50
	maxPage     = 200
)

var nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func invalid(field, format string, args ...any) *cay.Error {
	return cay.Errorf(cay.InvalidRequest, format, args...).On(field)
}

// Create checks the request against bounds and quota, fills in defaults, and writes the row. Its volume is made when it is first used.
func (s *Sessions) Create(ctx context.Context, project cay.ID, req cay.CreateSession) (*cay.Session, error) {
	if err := s.possible(); err != nil {
		return nil, err
	}
	if req.ID == "" {
		req.ID = cay.NewID(cay.PrefixSession)
	} else if made, err := s.Get(ctx, project, req.ID); err == nil || cay.ReasonOf(err) != cay.NotFound {
		return made, err
	}
	at := now()
	row := &cay.Session{
		ID: req.ID, ProjectID: project, CreatedBy: req.KeyID, Name: req.Name, Metadata: req.Metadata, Status: cay.SessionActive,
		DiskGB: s.cfg.DefaultDiskGB, TTL: s.cfg.DefaultTTL, CreatedAt: at, LastUsedAt: at, Version: 1,
	}
	if req.Name != "" && !nameForm.MatchString(req.Name) {
		return nil, invalid("name", "name is 1 to 64 letters, digits, dots, underscores and hyphens")
	}
	if err := cay.CheckMetadata(req.Metadata); err != nil {
		return nil, err
	}
	if row.Metadata == nil {
		row.Metadata = map[string]string{}
	}
	if v := req.TTL; v != nil {
		if *v <= 0 || *v > maxSeconds*time.Second {
			return nil, invalid("ttl_seconds", "ttl_seconds is above 0 and at most %d; what exceeds the maximum of %d is capped",
				maxSeconds, int64(s.cfg.MaxTTL/time.Second))
		}
		row.TTL = min(*v, s.cfg.MaxTTL)
	}
	row.ExpiresAt = at.Add(row.TTL)
	if v := req.DiskGB; v != nil {
		if math.IsNaN(*v) || *v < minDiskGB {
			return nil, invalid("disk_gb", "disk_gb is at least %g", minDiskGB)
		}
		if *v > s.cfg.MaxDiskGB {
			return nil, cay.Errorf(cay.Unprocessable, "disk_gb %g is more than a session may have here; at most %g can be", *v, s.cfg.MaxDiskGB).On("disk_gb")
		}
		row.DiskGB = *v
	}
	if err := s.store.InsertSession(ctx, row, s.cfg.MaxSessions); err != nil {
		return nil, err
	}
	return row, nil
}

// Available reports whether sessions can be had: a worker is known that can mount volumes.
func (s *Sessions) Available() bool {
	return slices.ContainsFunc(s.nodes.Workers(), func(w cay.Worker) bool { return w.CanMount })
}

// possible refuses where no worker could ever mount a volume. While none is known, the first use has to find out.
func (s *Sessions) possible() error {
	if len(s.nodes.Workers()) == 0 || s.Available() {
		return nil
	}
	return cay.Errorf(cay.NotImplemented, "sessions need a node that runs as root: the nodes here run without, and cannot mount a volume")
}

// Get returns the session. Looking is no use.
func (s *Sessions) Get(ctx context.Context, project, id cay.ID) (*cay.Session, error) {
	row, err := s.store.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	if row.ProjectID != project {
		return nil, missing(id)
	}
	return row, nil
}

func missing(id cay.ID) error { return cay.Errorf(cay.NotFound, "there is no session %s", id) }

// List returns a page of the project's sessions and the cursor of the next.
func (s *Sessions) List(ctx context.Context, project cay.ID, q cay.SessionQuery) ([]*cay.Session, string, error) {
	if q.Limit == 0 {
		q.Limit = defaultPage
	}
	if q.Limit < 1 || q.Limit > maxPage {
		return nil, "", invalid("limit", "limit is between 1 and %d", maxPage)
	}
	for _, status := range q.Statuses {
		if !slices.Contains(cay.SessionStatuses, status) {
			return nil, "", invalid("status", "there is no status %q", string(status))
		}
	}
	if q.Name != "" && !nameForm.MatchString(q.Name) {
		return nil, "", invalid("name", "name is 1 to 64 letters, digits, dots, underscores and hyphens")
	}
	return s.store.ListSessions(ctx, project, q)
}

// Users are the sandboxes that use the session now, but for those that serve the session itself.
func (s *Sessions) Users(ctx context.Context, project, id cay.ID) ([]*cay.Sandbox, error) {
	if _, err := s.Get(ctx, project, id); err != nil {
		return nil, err
	}
	users, err := s.store.SessionUsers(ctx, id)
	if err != nil {
		return nil, err
	}
	return others(users, id), nil
}

// Delete begins the end of the session and returns when its files are gone, or as it is when ctx ends. While sandboxes use it it is
// cay.Conflict; with force they end first. One that has ended is returned as it is.
func (s *Sessions) Delete(ctx context.Context, project, id cay.ID, force bool) (*cay.Session, error) {
	row, user, err := s.begin(ctx, project, id, force)
	if user != nil && strings.HasPrefix(string(user.Spec.ManagedBy), cay.PrefixJob) {
		// Its job may have finished, and then it is about to end as well.
		finishing, cancel := context.WithTimeout(ctx, finishPatience)
		if sb, waited := s.sandboxes.Wait(finishing, project, user.ID, cay.Terminating); waited == nil && !sb.Status.Active() {
			row, _, err = s.begin(ctx, project, id, force)
		}
		cancel()
	}
	if err != nil {
		return nil, err
	}
	for wait := firstBackoff / 4; row.Status != cay.SessionDeleted; wait = min(2*wait, maxBackoff) {
		if err := s.volumes.do(ctx, id, ending, s.end(id)); err != nil && ctx.Err() == nil {
			s.log.Warn("a session could not be removed yet; it is tried again", "session", id, "error", err)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			break
		}
		if row, err = s.store.Session(ctx, id); err != nil {
			return nil, err
		}
	}
	return row, nil
}

// begin makes the session one that is deleting. One that is in use names its user beside the error, unless that is ending already: the
// end of the session waits for it.
func (s *Sessions) begin(ctx context.Context, project, id cay.ID, force bool) (row *cay.Session, user *cay.Sandbox, err error) {
	row, err = s.mutate(ctx, id, func(row *cay.Session, users []*cay.Sandbox) error {
		user = nil
		if row.ProjectID != project {
			return missing(id)
		}
		if row.Status.Ended() {
			return errUnchanged
		}
		for _, sb := range others(users, id) {
			if sb.Status.Active() && !force {
				user = sb
				return cay.Errorf(cay.Conflict, "sandbox %s uses the session; end it first, or delete with force", sb.ID).
					With("sandbox_id", string(sb.ID))
			}
		}
		return row.Transition(cay.SessionDeleting, cay.ReasonDeleted, now())
	})
	return row, user, err
}

// end removes all that there is of a session that is deleting: its users, its volume, its archive. It can be taken up anywhere.
func (s *Sessions) end(id cay.ID) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, endTimeout)
		defer cancel()
		if err := s.ends.take(ctx); err != nil {
			return err
		}
		defer s.ends.give()
		row, err := s.store.Session(ctx, id)
		if err != nil || row.Status != cay.SessionDeleting {
			return err
		}
		users, err := s.store.SessionUsers(ctx, id)
		if err != nil {
			return err
		}
		if err := s.endSandboxes(ctx, users); err != nil {
			return err
		}
		if row.WorkerID != "" {
			if err := s.removeVolume(ctx, row.WorkerID, row.Volume()); err != nil {
				return err
			}
		}
		if row.ArchiveKey != "" {
			if err := s.blobs.DeleteBelow(ctx, archiveFolder(id)); err != nil {
				return err
			}
		}
		_, err = s.settle(ctx, id, func(row *cay.Session, _ []*cay.Sandbox) error {
			row.WorkerID = ""
			forgetArchive(row)
			return row.Transition(cay.SessionDeleted, "", now())
		})
		return err
	}
}

// endSandboxes ends sandboxes and waits until their workers have let go of what they mounted.
func (s *Sessions) endSandboxes(ctx context.Context, list []*cay.Sandbox) error {
	for _, sb := range list {
		if _, err := s.sandboxes.Delete(ctx, sb.ProjectID, sb.ID); err != nil {
			return err
		}
	}
	for _, sb := range list {
		ended, err := s.sandboxes.Wait(ctx, sb.ProjectID, sb.ID, cay.Terminated, cay.Failed)
		if err != nil {
			return err
		}
		if !ended.Status.Ended() {
			return errors.Join(ctx.Err(), cay.Errorf(cay.Conflict, "sandbox %s is still ending", sb.ID))
		}
	}
	return nil
}
