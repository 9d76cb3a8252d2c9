package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// untraced are the paths that are asked all the time by whatever watches the server.
var untraced = map[string]bool{"/healthz": true, "/readyz": true, "/metrics": true}

// traced continues the trace of the request's traceparent, or begins one, with the request's span, which is named once it is known what the
// request is for.
func (a *API) traced(r *http.Request) (context.Context, tracing.Span) {
	ctx := tracing.With(r.Context(), r.Header.Get("Traceparent"))
	if untraced[r.URL.Path] && !a.Ports.Owns(r.Host) {
		return ctx, tracing.Span{}
	}
	return tracing.StartServer(ctx, "HTTP")
}

// endSpan says what the request came to. A client's fault is no failure of the span, but has its reason.
func endSpan(span tracing.Span, x *exchange, status int) {
	defer span.End()
	if !span.Recording() {
		return
	}
	span.Rename("HTTP " + cmp.Or(x.action, unmatched))
	span.Set(tracing.ProjectID(x.identity.ProjectID), tracing.KeyID(x.identity.KeyID))
	switch {
	case strings.HasPrefix(string(x.object), cay.PrefixSandbox):
		span.Set(tracing.SandboxID(x.object))
	case strings.HasPrefix(string(x.object), cay.PrefixJob):
		span.Set(tracing.JobID(x.object))
	}
	if x.err == nil {
		return
	}
	reason := cay.ReasonOf(x.err)
	if d := (*problem.Document)(nil); errors.As(x.err, &d) {
		reason = d.Reason
	}
	span.Set(tracing.Reason(reason))
	if status >= 500 && (!x.guest || reason == cay.Internal) {
		span.Fail(string(reason))
	}
}
