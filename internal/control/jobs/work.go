package jobs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
)

const (
	reportTimeout = 10 * time.Second // for writing what became of a job, also while stopping
	maxBackoff    = 30 * time.Second
	endPatience   = 30 * time.Second // for a sandbox to end that is ending
)

var (
	errLost     = errors.New("the lease on the job was lost")
	errStopping = errors.New("the server stops")
)

// work is one leased job under way.
type work struct {
	j     *Jobs
	row   *cay.Job // as last read or written under the lease; of the work's goroutine alone
	id    cay.ID
	fence int64
	at    time.Time // of the lease
	until time.Time // of the lease; of the goroutine that renews

	stop    context.CancelCauseFunc
	done    chan struct{}
	asked   chan struct{} // closed when the job is to be canceled
	askOnce sync.Once
	hand    sync.Once // gives back the place among the programs that run
}

func (j *Jobs) begin(ctx context.Context, row *cay.Job, at, until time.Time) {
	ctx, stop := context.WithCancelCause(ctx)
	w := &work{j: j, row: row, id: row.ID, fence: row.Fence, at: at, until: until, stop: stop, done: make(chan struct{}), asked: make(chan struct{})}
	j.mu.Lock()
	before := j.working[w.id]
	j.working[w.id] = w
	j.hands++
	j.mu.Unlock()
	j.workers.Go(func() {
		defer func() {
			stop(nil)
			w.release()
			j.mu.Lock()
			if j.working[w.id] == w {
				delete(j.working, w.id)
			}
			j.mu.Unlock()
			close(w.done)
		}()
		if before != nil {
			before.stop(errLost)
			<-before.done
		}
		w.run(ctx)
	})
}

// cancel makes the work end the job. It never blocks.
func (w *work) cancel() { w.askOnce.Do(func() { close(w.asked) }) }

func (w *work) isAsked() bool {
	select {
	case <-w.asked:
		return true
	default:
		return false
	}
}

// release gives back the place among the programs that run, to the next.
func (w *work) release() {
	w.hand.Do(func() {
		w.j.mu.Lock()
		w.j.hands--
		w.j.mu.Unlock()
		w.j.Wake()
	})
}

// verdict is what becomes of a job that did not come to the end of its program.
type verdict struct {
	status cay.JobStatus // "": it is queued again
	fault  cay.JobFault
	// counted: the attempt counts towards the most that there may be; else it is as if it had not been.
	counted bool
}

func (v *verdict) Error() string { return fmt.Sprintf("%s: %s", v.fault.Reason, v.fault.Detail) }

func failed(status cay.JobStatus, reason, detail string) *verdict {
	return &verdict{status: status, fault: cay.JobFault{Reason: reason, Detail: detail}}
}

// broken is a fault of the platform: the job is tried again.
func broken(reason, detail string) *verdict {
	return &verdict{counted: true, fault: cay.JobFault{Reason: reason, Detail: detail}}
}

var errCanceled = &verdict{status: cay.JobCanceled}

// run takes the job from wherever it is to its end, or gives it back.
func (w *work) run(ctx context.Context) {
	if ctx.Err() != nil && context.Cause(ctx) == errLost {
		return
	}
	ctx, end := w.traced(ctx)
	defer end()
	err := w.attempt(ctx)
	if err == nil || errors.Is(err, errLost) || context.Cause(ctx) == errLost {
		return
	}
	report, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
	defer cancel()
	var v *verdict
	switch {
	case errors.As(err, &v):
	case ctx.Err() != nil: // stopping
		err = w.write(report, func(row *cay.Job) error {
			row.LeaseOwner, row.LeaseUntil = "", time.Time{}
			return nil
		})
		w.unrecorded(err)
		return
	default:
		w.j.log.Error("a job's attempt failed", "job", w.id, "attempt", w.row.Attempt, "error", err)
		v = broken("internal", "the platform failed")
	}
	w.unrecorded(w.settle(report, v))
}

func (w *work) unrecorded(err error) {
	if err != nil && !errors.Is(err, errLost) {
		w.j.log.Error("what became of a job was not recorded; its lease will run out", "job", w.id, "error", err)
	}
}

// attempt goes the way of the job from where its row says that it is.
func (w *work) attempt(ctx context.Context) error {
	row, err := w.j.store.Job(ctx, w.id) // a cancelation may have come in before the work could hear of it
	if err != nil {
		return err
	}
	if row.Fence != w.fence {
		return errLost
	}
	w.took(row)
	if row.SandboxID == "" {
		if err := w.place(ctx); err != nil {
			return err
		}
	}
	sb, err := w.boot(ctx)
	if err != nil {
		return err
	}
	end, err := w.execute(ctx, sb)
	if err != nil {
		return err
	}
	return w.keep(ctx, sb, end)
}

// took notes a row of this lease.
func (w *work) took(row *cay.Job) {
	w.row = row
	if row.CancelAsked {
		w.cancel()
	}
}

// write changes the row, unless somebody else holds it by now.
func (w *work) write(ctx context.Context, change func(*cay.Job) error) error {
	row, err := w.j.mutate(ctx, w.id, func(row *cay.Job) error {
		if row.Fence != w.fence || row.LeaseOwner != w.j.owner {
			return errLost
		}
		return change(row)
	})
	if err != nil {
		return err
	}
	w.took(row)
	return nil
}

// place chooses the ids of the next attempt and writes them, before there is anything of it.
func (w *work) place(ctx context.Context) error {
	if w.isAsked() {
		return errCanceled
	}
	if !now().Before(w.row.QueueDeadline) {
		return noCapacity()
	}
	return w.write(ctx, func(row *cay.Job) error {
		row.Attempt++
		row.SandboxID, row.ProcessID = cay.NewID(cay.PrefixSandbox), cay.NewID(cay.PrefixProcess)
		return nil
	})
}

func noCapacity() *verdict {
	return failed(cay.JobError, string(cay.NoCapacity), "there was no room to run the job within its queue timeout")
}

// boot creates the attempt's sandbox, or finds it, and waits until it is READY.
func (w *work) boot(ctx context.Context) (*cay.Sandbox, error) {
	ctx, cancel := w.untilAsked(ctx)
	defer cancel()
	var sb *cay.Sandbox
	var err error
	if w.row.Status == cay.JobRunning {
		sb, err = w.j.sandboxes.Get(ctx, w.row.ProjectID, w.row.SandboxID)
	} else if w.isAsked() {
		return nil, errCanceled
	} else {
		sb, err = w.j.sandboxes.Create(ctx, w.row.ProjectID, sandboxOf(w.row))
	}
	if err == nil {
		sb, err = w.j.sandboxes.Wait(ctx, w.row.ProjectID, w.row.SandboxID, cay.Ready)
	}
	switch {
	case err == nil && sb.Status == cay.Ready:
		return sb, nil
	case err == nil && !sb.Status.Active():
		return nil, w.ended(sb)
	case w.isAsked():
		return nil, errCanceled
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err == nil:
		return nil, broken("boot_failed", "the sandbox did not become ready")
	}
	return nil, w.refused(err)
}

// untilAsked is a context that ends as well when the job is to be canceled.
func (w *work) untilAsked(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-w.asked:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-watching }
}

// refused is what a sandbox that could not be created means.
func (w *work) refused(err error) error {
	detail := publicDetail(err, "the sandbox could not be created")
	switch cay.ReasonOf(err) {
	case cay.Conflict, cay.NotReady, cay.NoCapacity, cay.Unavailable: // the session is in use or on its way; the platform has no room
		return &verdict{fault: cay.JobFault{Reason: string(cay.ReasonOf(err)), Detail: detail}}
	case cay.Gone:
		return failed(cay.JobError, "session_ended", detail)
	case cay.Unprocessable, cay.InvalidRequest, cay.InvalidImage, cay.NotImplemented:
		return failed(cay.JobError, string(cay.Unprocessable), detail)
	}
	w.j.log.Warn("a job's sandbox could not be created", "job", w.id, "sandbox", w.row.SandboxID, "error", err)
	return broken("boot_failed", detail)
}

// publicDetail is the sentence of an error that its owner may read, or otherwise.
func publicDetail(err error, otherwise string) string {
	var e *cay.Error
	if errors.As(err, &e) && e.Reason != cay.Internal {
		return e.Detail
	}
	return otherwise
}

// ended is what the end of the attempt's sandbox means for the job.
func (w *work) ended(sb *cay.Sandbox) error {
	detail := sb.Detail
	if detail == "" {
		detail = fmt.Sprintf("the job's sandbox ended: %s", sb.StatusReason)
	}
	switch sb.StatusReason {
	case cay.ReasonOOM, cay.ReasonDiskFull:
		return failed(cay.JobFailed, string(sb.StatusReason), detail)
	case cay.ReasonBootFailed, cay.ReasonWorkerLost, cay.ReasonEvicted:
		return broken(string(sb.StatusReason), detail)
	case cay.ReasonUnprocessable:
		return failed(cay.JobError, string(cay.Unprocessable), detail)
	case cay.ReasonNoCapacity:
		if !now().Before(w.row.QueueDeadline) {
			return noCapacity()
		}
		return &verdict{fault: cay.JobFault{Reason: string(cay.NoCapacity), Detail: detail}}
	}
	if w.isAsked() {
		return errCanceled
	}
	return failed(cay.JobError, "sandbox_ended", "the job's sandbox was ended while it ran: "+string(sb.StatusReason))
}

// settle writes a verdict and removes the attempt's sandbox.
func (w *work) settle(ctx context.Context, v *verdict) error {
	was := w.row
	err := w.write(ctx, func(row *cay.Job) error {
		at := now()
		status := v.status
		switch {
		case status == "" && row.CancelAsked:
			status = cay.JobCanceled
		case status == "" && v.counted && row.Attempt >= w.j.cfg.MaxAttempts:
			status = cay.JobError
		}
		if status == "" {
			return w.requeue(row, v, at)
		}
		if status != cay.JobCanceled {
			row.Fault = &v.fault
		}
		return conclude(row, status, at)
	})
	if err != nil {
		return err
	}
	if !w.row.Status.Finished() {
		w.j.log.Info("a job goes back to the queue", "job", w.id, "attempt", was.Attempt, "sandbox", was.SandboxID, "reason", v.fault.Reason, "detail", v.fault.Detail)
	}
	w.release()
	w.j.discard(was)
	return nil
}

// requeue puts the job back into the queue. One that has counted gets all of its queue timeout once more.
func (w *work) requeue(row *cay.Job, v *verdict, at time.Time) error {
	if row.Status != cay.JobQueued {
		if err := row.Transition(cay.JobQueued, at); err != nil {
			return err
		}
	}
	after := w.j.cfg.Busy
	if v.counted {
		after = min(w.j.cfg.Backoff<<(min(row.Attempt, 10)-1), maxBackoff)
		row.QueueDeadline = at.Add(row.Spec.QueueTimeout)
	} else if row.SandboxID != "" {
		row.Attempt--
	}
	row.SandboxID, row.ProcessID = "", ""
	row.LeaseOwner, row.LeaseUntil, row.NotBefore = "", time.Time{}, at.Add(after)
	return nil
}

// conclude ends the job. What only a program that ran can come to, it comes to by way of running.
func conclude(row *cay.Job, status cay.JobStatus, at time.Time) error {
	if row.Status == cay.JobQueued && !row.Status.CanBecome(status) {
		if err := row.Transition(cay.JobRunning, at); err != nil {
			return err
		}
	}
	return row.Transition(status, at)
}

// discard removes the sandbox of an attempt that is over. What it leaves is swept.
func (j *Jobs) discard(row *cay.Job) {
	if row.SandboxID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(tracing.With(context.Background(), row.Traceparent), reportTimeout)
	defer cancel()
	_, err := j.sandboxes.Delete(ctx, row.ProjectID, row.SandboxID)
	switch {
	case cay.ReasonOf(err) == cay.NotFound:
	case err != nil:
		j.log.Warn("a job's sandbox was not deleted yet", "job", row.ID, "sandbox", row.SandboxID, "error", err)
	case row.SessionID != "": // the next job of the session can begin once it is gone
		_, _ = j.sandboxes.Wait(ctx, row.ProjectID, row.SandboxID, cay.Terminated, cay.Failed) // the next look at the queue finds it as well
		j.Wake()
	}
}
