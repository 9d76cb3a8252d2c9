package scheduler

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// traced begins the span of the work, in the trace of whoever asked for the operation; what a clock demands is a trace of its own. How long a
// create stood in the queue since it could be taken is a span before it.
func (w *work) traced(ctx context.Context) (context.Context, tracing.Span) {
	sb := w.sb
	ctx = tracing.With(ctx, sb.Traceparent)
	about := []tracing.Attribute{
		tracing.SandboxID(sb.ID), tracing.ProjectID(sb.ProjectID), tracing.WorkerID(sb.WorkerID), tracing.Attempt(sb.Attempt),
	}
	if sb.Op == cay.OpCreate && tracing.Within(ctx) {
		tracing.Completed(ctx, "queue.wait", later(sb.CreatedAt, sb.NotBefore), w.leasedAt, about...)
	}
	return tracing.Start(ctx, "schedule."+string(sb.Op), about...)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
