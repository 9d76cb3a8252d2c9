// Package tracing is where spans come from and where they go: OpenTelemetry, exported by OTLP as the standard OTEL_ variables say, and not at
// all while they name no endpoint. It defines no span of a part; those stand with the part. No span may hold what a client or a guest
// sent as text, nor a secret: ids, kinds, reasons, codes and numbers only.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	oteltrace "go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

const scope = "github.com/cayhq/cay"

// tracer is what Start uses: of a process that exports nothing it makes no span, but passes a trace on.
var tracer oteltrace.Tracer = noop.NewTracerProvider().Tracer(scope)

var propagator = propagation.TraceContext{}

// Enabled reports whether the standard variables ask for an export of traces.
func Enabled() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || strings.EqualFold(os.Getenv("OTEL_TRACES_EXPORTER"), "none") {
		return false
	}
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" ||
		strings.EqualFold(os.Getenv("OTEL_TRACES_EXPORTER"), "otlp")
}

// Setup makes this process export its spans as service, where Enabled; else it does nothing. stop sends what is left and lets go; it
// is never nil. Not safe for use beside Start: it is to be called first.
func Setup(ctx context.Context, service, version string) (stop func(context.Context) error, err error) {
	provider, err := Provider(ctx, service, version)
	if err != nil || provider == nil {
		return func(context.Context) error { return nil }, err
	}
	otel.SetTracerProvider(provider)
	tracer = provider.Tracer(scope)
	return provider.Shutdown, nil
}

// Provider makes spans of a service of that name; nil where traces are not exported. The caller shuts it down.
func Provider(ctx context.Context, service, version string) (*trace.TracerProvider, error) {
	if !Enabled() {
		return nil, nil
	}
	var exporter trace.SpanExporter
	var err error
	switch protocol := firstOf("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"); protocol {
	case "", "http/protobuf":
		exporter, err = otlptracehttp.New(ctx)
	case "grpc":
		exporter, err = otlptracegrpc.New(ctx)
	default:
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL is %q; it may be http/protobuf or grpc", protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("set up the export of traces: %w", err)
	}
	// OTEL_RESOURCE_ATTRIBUTES is added to, and OTEL_SERVICE_NAME is not read: server, node and agent are told apart by their names.
	about, err := resource.New(ctx, resource.WithFromEnv(), resource.WithAttributes(semconv.ServiceName(service), semconv.ServiceVersion(version)))
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe this process to the collector of traces: %w", err)
	}
	return trace.NewTracerProvider(trace.WithBatcher(exporter), trace.WithResource(about)), nil
}

func firstOf(names ...string) string {
	i := slices.IndexFunc(names, func(n string) bool { return os.Getenv(n) != "" })
	if i < 0 {
		return ""
	}
	return os.Getenv(names[i])
}

// Start begins a span. end ends it; an error marks it as failed, by its reason alone (see Failed).
func Start(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, oteltrace.Span) {
	return tracer.Start(ctx, name, oteltrace.WithAttributes(attributes...))
}

// Span makes a span of something that is over.
func Span(ctx context.Context, name string, from, to time.Time, attributes ...attribute.KeyValue) {
	_, span := tracer.Start(ctx, name, oteltrace.WithTimestamp(from), oteltrace.WithAttributes(attributes...))
	span.End(oteltrace.WithTimestamp(to))
}

// Failed marks a span as failed. reason is a stable word, never an error's text.
func Failed(span oteltrace.Span, reason string) {
	span.SetStatus(codes.Error, reason)
}

// Traceparent is the W3C Trace Context of ctx, to be kept in a row or sent; "" when it is not traced.
func Traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// With continues the trace that a traceparent names; anything else leaves ctx as it is.
func With(ctx context.Context, traceparent string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagator.Extract(ctx, propagation.MapCarrier{"traceparent": traceparent})
}

// ID is the trace's id in hex; "" when ctx is not traced.
func ID(ctx context.Context) string {
	if sc := oteltrace.SpanContextFromContext(ctx); sc.HasTraceID() {
		return sc.TraceID().String()
	}
	return ""
}
