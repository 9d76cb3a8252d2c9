package router

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// traceStart makes the span of what an agent did to start a process: as long as it says, but no longer than the node waited, and in the middle
// of that. tookUS is the guest's word.
func traceStart(ctx context.Context, process cay.ID, asked, answered time.Time, tookUS int64) {
	waited := answered.Sub(asked)
	took := waited
	if tookUS > 0 && tookUS < waited.Microseconds() {
		took = time.Duration(tookUS) * time.Microsecond
	}
	begun := asked.Add((waited - took) / 2)
	tracing.CompletedByAgent(ctx, "agent.start", begun, begun.Add(took), tracing.ProcessID(process))
}

// traceEnd makes the span of a process that has ended, in the trace of the request that started it.
func traceEnd(m spool.Process) {
	if m.Traceparent == "" || m.Exit == nil {
		return
	}
	ctx := tracing.With(context.Background(), m.Traceparent)
	tracing.Completed(ctx, "process", m.StartedAt, m.EndedAt, tracing.ProcessID(m.ID), tracing.Reason(m.Exit.Reason), tracing.ExitCode(m.Exit.Code))
}
