package jobs

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/cayhq/cay"
)

const (
	defaultPage = 50
	maxPage     = 200
)

// now is the time as the store keeps it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// errUnchanged is what a change returns when there is nothing to write.
var errUnchanged = errors.New("unchanged")

// mutate is the one way a row changes: change edits it within a guarded write, after which those who wait for it know. errUnchanged from
// change is no error: the row comes back as it is.
func (j *Jobs) mutate(ctx context.Context, id cay.ID, change func(*cay.Job) error) (*cay.Job, error) {
	var was cay.JobStatus
	row, err := j.store.MutateJob(ctx, id, func(row *cay.Job) error {
		was = row.Status
		return change(row)
	})
	if err != nil && !errors.Is(err, errUnchanged) {
		return nil, err
	}
	if err == nil {
		j.metrics.moved(was, row)
	}
	j.feed.publish(row)
	return row, nil
}

// owned answers cay.NotFound for a row of another project.
func owned(row *cay.Job, project cay.ID) error {
	if row.ProjectID != project {
		return cay.Errorf(cay.NotFound, "there is no job %s", row.ID)
	}
	return nil
}

// Get returns the job.
func (j *Jobs) Get(ctx context.Context, project, id cay.ID) (*cay.Job, error) {
	row, err := j.store.Job(ctx, id)
	if err != nil {
		return nil, err
	}
	return row, owned(row, project)
}

// Wait returns the job as soon as it has finished, or as it is when ctx ends; ctx's end is no error.
func (j *Jobs) Wait(ctx context.Context, project, id cay.ID) (*cay.Job, error) {
	w := j.feed.watch(id)
	defer w.leave()
	row, err := w.now(context.WithoutCancel(ctx))
	if err == nil {
		err = owned(row, project)
	}
	if err != nil {
		return nil, err
	}
	for !row.Status.Finished() {
		next, ok := w.next(ctx)
		if !ok {
			break
		}
		row = next
	}
	return row, nil
}

// List returns a page of the project's jobs, without input and result, and the cursor of the next.
func (j *Jobs) List(ctx context.Context, project cay.ID, q cay.JobQuery) ([]*cay.Job, string, error) {
	if q.Limit == 0 {
		q.Limit = defaultPage
	}
	if q.Limit < 1 || q.Limit > maxPage {
		return nil, "", cay.Errorf(cay.InvalidRequest, "limit is between 1 and %d", maxPage).On("limit")
	}
	for _, status := range q.Statuses {
		if !slices.Contains(cay.JobStatuses, status) {
			return nil, "", cay.Errorf(cay.InvalidRequest, "there is no status %q", string(status)).On("status")
		}
	}
	return j.store.ListJobs(ctx, project, q)
}

// Cancel asks for the end. A job that nobody holds is canceled at once; of one that runs the program is killed; a finished one stays as it
// is, and a program that ends by itself first has ended so. It returns when the job has finished, or as it is when ctx ends.
func (j *Jobs) Cancel(ctx context.Context, project, id cay.ID) (*cay.Job, error) {
	row, err := j.mutate(ctx, id, func(row *cay.Job) error {
		if err := owned(row, project); err != nil {
			return err
		}
		at := now()
		switch {
		case row.Status.Finished():
			return errUnchanged
		case row.Status == cay.JobQueued && !row.LeaseUntil.After(at):
			row.CancelAsked = true
			return row.Transition(cay.JobCanceled, at)
		case row.CancelAsked:
			return errUnchanged
		}
		row.CancelAsked = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	if row.Status.Finished() {
		j.discard(row) // of an earlier attempt there may be a sandbox
		return row, nil
	}
	j.mu.Lock()
	if w := j.working[id]; w != nil {
		w.cancel()
	}
	j.mu.Unlock()
	return j.Wait(ctx, project, id)
}

// OpenOutput reads a file that the job left in /output.
func (j *Jobs) OpenOutput(ctx context.Context, project, id cay.ID, path string) (cay.JobOutput, io.ReadCloser, error) {
	row, err := j.Get(ctx, project, id)
	if err != nil {
		return cay.JobOutput{}, nil, err
	}
	kept, err := decodeResult(row.Result)
	if err != nil {
		return cay.JobOutput{}, nil, err
	}
	i := slices.IndexFunc(kept.Outputs, func(o cay.JobOutput) bool { return o.Path == path })
	if i < 0 {
		return cay.JobOutput{}, nil, cay.Errorf(cay.NotFound, "job %s has no output %q", id, path).On("path")
	}
	r, err := j.blobs.Read(ctx, kept.Outputs[i].Key)
	return kept.Outputs[i], r, err
}
