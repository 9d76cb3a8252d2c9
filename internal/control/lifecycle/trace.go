package lifecycle

import (
	"context"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// span makes a span of a call. end says which sandbox it was for and how it went.
func span(ctx context.Context, name string) (_ context.Context, end func(*cay.Sandbox, error)) {
	ctx, s := tracing.Start(ctx, name)
	return ctx, func(sb *cay.Sandbox, err error) {
		if sb != nil {
			s.Set(tracing.SandboxID(sb.ID), tracing.ProjectID(sb.ProjectID), tracing.JobID(jobOf(sb)))
		}
		s.Fail(string(cay.ReasonOf(err)))
		s.End()
	}
}

// jobOf is the job that the sandbox serves; "" when it serves none.
func jobOf(sb *cay.Sandbox) cay.ID {
	if strings.HasPrefix(string(sb.Spec.ManagedBy), cay.PrefixJob) {
		return sb.Spec.ManagedBy
	}
	return ""
}
