// Package tracing is where spans come from: OpenTelemetry with W3C Trace Context, exported by OTLP as the standard OTEL_ variables say, and
// not at all while they name no endpoint. It defines no span of a part; those stand with the part. What a span may say is closed: a name
// that the code has as a constant, and the attributes of this package, which are ids, words and numbers of Cay's own. There is no way to
// put into one what a client or a guest sent as text, nor an error's.
package tracing

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const scope = "github.com/cayhq/cay"

// tracers are what an export has set up. Without one nothing makes spans, but traces are passed on.
type tracers struct {
	own   trace.Tracer
	agent trace.Tracer
}

var current atomic.Pointer[tracers]

var propagator = propagation.TraceContext{}

// Span is a piece of work that has a beginning and an end. The zero Span says nothing and goes nowhere.
type Span struct{ span trace.Span }

// Start begins a span of work inside of this process. It must be ended.
func Start(ctx context.Context, name string, attributes ...Attribute) (context.Context, Span) {
	return start(ctx, trace.SpanKindInternal, name, attributes)
}

// StartServer begins the span of a request that this process serves, in the trace that ctx has from its caller or in a new one.
func StartServer(ctx context.Context, name string, attributes ...Attribute) (context.Context, Span) {
	return start(ctx, trace.SpanKindServer, name, attributes)
}

// StartClient begins the span of a request to another process, which Traceparent of the context carries there.
func StartClient(ctx context.Context, name string, attributes ...Attribute) (context.Context, Span) {
	return start(ctx, trace.SpanKindClient, name, attributes)
}

func start(ctx context.Context, kind trace.SpanKind, name string, attributes []Attribute) (context.Context, Span) {
	t := current.Load()
	if t == nil {
		return ctx, Span{}
	}
	ctx, span := t.own.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(fit(attributes)...))
	return ctx, Span{span}
}

// Completed makes a span of something that is over, below the one of ctx.
func Completed(ctx context.Context, name string, from, to time.Time, attributes ...Attribute) {
	if t := current.Load(); t != nil {
		completed(ctx, t.own, name, from, to, attributes)
	}
}

// CompletedByAgent is Completed for what the agent of a sandbox did, as this node saw it: an agent exports nothing itself. It does nothing
// where Config.Agent was not set.
func CompletedByAgent(ctx context.Context, name string, from, to time.Time, attributes ...Attribute) {
	if t := current.Load(); t != nil && t.agent != nil {
		completed(ctx, t.agent, name, from, to, attributes)
	}
}

func completed(ctx context.Context, t trace.Tracer, name string, from, to time.Time, attributes []Attribute) {
	_, span := t.Start(ctx, name, trace.WithTimestamp(from), trace.WithAttributes(fit(attributes)...))
	span.End(trace.WithTimestamp(to))
}

// Current is the span of ctx.
func Current(ctx context.Context) Span { return Span{trace.SpanFromContext(ctx)} }

// Set says more about the span.
func (s Span) Set(attributes ...Attribute) {
	if s.Recording() {
		s.span.SetAttributes(fit(attributes)...)
	}
}

// Rename gives a name to a span whose work was not known as it began.
func (s Span) Rename(name string) {
	if s.Recording() {
		s.span.SetName(name)
	}
}

// Fail marks the span as failed. reason is a stable word; "" is none, and marks nothing.
func (s Span) Fail(reason string) {
	if reason != "" && s.Recording() {
		s.Set(Reason(reason))
		s.span.SetStatus(codes.Error, "")
	}
}

// End ends the span. It is idempotent.
func (s Span) End() {
	if s.span != nil {
		s.span.End()
	}
}

// Recording reports whether anybody will see the span.
func (s Span) Recording() bool { return s.span != nil && s.span.IsRecording() }

// Traceparent is the W3C Trace Context of ctx, to be kept in a row or sent; "" when it is not traced.
func Traceparent(ctx context.Context) string {
	if !Within(ctx) {
		return ""
	}
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// With continues the trace that a traceparent names; anything else leaves ctx as it is. A tracestate is not passed on: it is a client's text.
func With(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagator.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
}

// Carry puts the span of from into ctx, for work that outlives the request that asks for it.
func Carry(ctx, from context.Context) context.Context {
	if !Within(from) {
		return ctx
	}
	return trace.ContextWithSpan(ctx, trace.SpanFromContext(from))
}

// Within reports whether ctx is traced.
func Within(ctx context.Context) bool { return trace.SpanContextFromContext(ctx).IsValid() }

// ID is the trace's id in hex; "" when ctx is not traced.
func ID(ctx context.Context) string {
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		return sc.TraceID().String()
	}
	return ""
}

// Attribute is one thing that a span says.
type Attribute struct{ kv attribute.KeyValue }

// maxWord bounds the text of an attribute, in bytes.
const maxWord = 64

// fit leaves out what is no id and no word of Cay's own.
func fit(attributes []Attribute) []attribute.KeyValue {
	kept := make([]attribute.KeyValue, 0, len(attributes))
	for _, a := range attributes {
		if a.kv.Value.Type() != attribute.STRING || isWord(a.kv.Value.AsString()) {
			kept = append(kept, a.kv)
		}
	}
	return kept
}

func isWord(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return s != "" && len(s) <= maxWord
}

func text[S ~string](key string, s S) Attribute { return Attribute{attribute.String(key, string(s))} }

// SandboxID names the sandbox that the work is done for. As with every id here, "" says nothing.
func SandboxID[ID ~string](id ID) Attribute { return text("cay.sandbox_id", id) }

// JobID names a job.
func JobID[ID ~string](id ID) Attribute { return text("cay.job_id", id) }

// ProcessID names a process in a sandbox by its id, never by a name that a client gave it.
func ProcessID[ID ~string](id ID) Attribute { return text("cay.process_id", id) }

// WorkerID names a node.
func WorkerID[ID ~string](id ID) Attribute { return text("cay.worker_id", id) }

// ProjectID names the project on whose behalf it is done.
func ProjectID[ID ~string](id ID) Attribute { return text("cay.project_id", id) }

// KeyID names the key that asked.
func KeyID[ID ~string](id ID) Attribute { return text("cay.key_id", id) }

// Kind says what kind of process it is: exec, code, process, terminal.
func Kind[S ~string](kind S) Attribute { return text("cay.kind", kind) }

// Reason is the stable word for how it went: of an error, an exit, an end.
func Reason[S ~string](reason S) Attribute { return text("cay.reason", reason) }

// ExitCode is a program's.
func ExitCode(code int) Attribute { return Attribute{attribute.Int("cay.exit_code", code)} }

// Attempt counts how often it was tried, from 1.
func Attempt(n int64) Attribute { return Attribute{attribute.Int64("cay.attempt", n)} }

// Warm says whether the sandbox had been prepared before anyone asked.
func Warm(warm bool) Attribute { return Attribute{attribute.Bool("cay.warm", warm)} }
