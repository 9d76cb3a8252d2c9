package jobs

import (
	"context"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

const (
	expireLimit = 100 // rows in one look
	purgeLimit  = 100
)

// expire ends jobs that have waited for longer than they were to.
func (j *Jobs) expire(ctx context.Context) {
	rows, err := j.store.ExpiredJobs(ctx, time.Now(), expireLimit)
	if err != nil {
		if ctx.Err() == nil {
			j.log.Error("look for jobs that have waited too long", "error", err)
		}
		return
	}
	for _, row := range rows {
		_, err := j.mutate(ctx, row.ID, func(row *cay.Job) error {
			at := now()
			if row.Status != cay.JobQueued || row.LeaseUntil.After(at) || at.Before(row.QueueDeadline) {
				return errUnchanged
			}
			row.Fault = &noCapacity().fault
			return row.Transition(cay.JobError, at)
		})
		if err != nil && ctx.Err() == nil {
			j.log.Error("a job has waited too long and could not be ended", "job", row.ID, "error", err)
		}
	}
}

// sweep removes what nobody needs any more: first at once, for what an earlier start has left.
func (j *Jobs) sweep(ctx context.Context) {
	tick := time.NewTicker(j.cfg.Sweep)
	defer tick.Stop()
	for {
		j.sweepSandboxes(ctx)
		j.purge(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// sweepSandboxes deletes sandboxes whose job has finished, is on another attempt, or is not there any more.
func (j *Jobs) sweepSandboxes(ctx context.Context) {
	live, err := j.store.LiveSandboxes(ctx)
	if err != nil {
		if ctx.Err() == nil {
			j.log.Error("look for sandboxes that no job needs", "error", err)
		}
		return
	}
	for _, sb := range live {
		if !strings.HasPrefix(string(sb.Spec.ManagedBy), cay.PrefixJob) || !sb.Status.Active() {
			continue
		}
		row, err := j.store.Job(ctx, sb.Spec.ManagedBy)
		if err == nil && !row.Status.Finished() && row.SandboxID == sb.ID {
			continue
		}
		if err == nil || cay.ReasonOf(err) == cay.NotFound {
			_, err = j.sandboxes.Delete(ctx, sb.ProjectID, sb.ID)
		}
		if err != nil && ctx.Err() == nil {
			j.log.Error("a sandbox that no job needs was left", "sandbox", sb.ID, "job", sb.Spec.ManagedBy, "error", err)
		}
	}
}

// purge removes jobs that have been kept for long enough: first what they have in blob storage, then the row that names it.
func (j *Jobs) purge(ctx context.Context) {
	for {
		rows, err := j.store.OldJobs(ctx, time.Now().Add(-j.cfg.Retention), purgeLimit)
		if err != nil {
			if ctx.Err() == nil {
				j.log.Error("look for old jobs", "error", err)
			}
			return
		}
		for _, row := range rows {
			if err := j.remove(ctx, row.ID); err != nil {
				if ctx.Err() == nil {
					j.log.Error("an old job was not removed", "job", row.ID, "error", err)
				}
				return // the storage fails: the next look tries again
			}
		}
		if len(rows) < purgeLimit {
			return
		}
	}
}

func (j *Jobs) remove(ctx context.Context, id cay.ID) error {
	if err := j.blobs.DeleteBelow(ctx, blobsOf(id)); err != nil {
		return err
	}
	return j.store.DeleteJob(ctx, id)
}
