package jobs

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// traced begins the span of an attempt, in the trace of the request that submitted the job. How long the job stood in the queue since it could
// be taken is a span before it, unless it is taken over from a holder that was lost.
func (w *work) traced(ctx context.Context) (_ context.Context, end func()) {
	row := w.row
	ctx = tracing.With(ctx, row.Traceparent)
	about := []tracing.Attribute{tracing.JobID(row.ID), tracing.ProjectID(row.ProjectID)}
	if row.SandboxID == "" && tracing.Within(ctx) {
		tracing.Completed(ctx, "job.queue", later(row.QueuedAt, row.NotBefore), w.at, about...)
	}
	ctx, span := tracing.Start(ctx, "job.run", about...)
	return ctx, func() {
		span.Set(tracing.Attempt(w.row.Attempt), tracing.SandboxID(w.row.SandboxID), tracing.ProcessID(w.row.ProcessID), tracing.Reason(w.row.Status))
		if w.row.Status == cay.JobError {
			span.Fail(string(cay.JobError))
		}
		if w.row.ExitCode != nil {
			span.Set(tracing.ExitCode(*w.row.ExitCode))
		}
		span.End()
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
