package tracing

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func install(t *testing.T) *tracetest.SpanRecorder {
	t.Helper()
	to := tracetest.NewSpanRecorder()
	uninstall, err := Install(t.Context(), Config{Service: "a", Agent: "b"}, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := uninstall(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return to
}

func TestWithoutAnExportATraceIsPassedOnAsItCame(t *testing.T) {
	ctx, span := Start(With(t.Context(), parent), "x")
	defer span.End()
	if got := Traceparent(ctx); got != parent || span.Recording() {
		t.Errorf("got %q, recording %v", got, span.Recording())
	}
	for _, bad := range []string{"", "nonsense", "00-00000000000000000000000000000000-b7ad6b7169203331-01", parent + "-x", strings.ToUpper(parent)} {
		if got := With(t.Context(), bad); ID(got) != "" || Traceparent(got) != "" {
			t.Errorf("%q makes %q", bad, Traceparent(got))
		}
	}
}

func TestASpanSaysNothingButIDsWordsAndNumbers(t *testing.T) {
	to := install(t)
	for _, said := range []string{"rm -rf /", "hunter2!", "Secret", "a b", "a=b", "/etc/passwd", strings.Repeat("a", 65), "é", ""} {
		_, span := Start(t.Context(), "x", SandboxID(said), Reason(said), Kind(said))
		span.Fail(said)
		span.End()
	}
	_, span := Start(t.Context(), "x", SandboxID("sbx_01"), Attempt(2), Warm(true))
	span.End()
	ended := to.Ended()
	for _, s := range ended[:len(ended)-1] {
		if len(s.Attributes()) != 0 || s.Status().Description != "" {
			t.Errorf("a span says %v, %v", s.Attributes(), s.Status())
		}
	}
	if last := ended[len(ended)-1]; len(last.Attributes()) != 3 {
		t.Errorf("a span says %v", last.Attributes())
	}
}

func TestWorkThatOutlivesItsRequestGoesOnInItsTrace(t *testing.T) {
	to := install(t)
	ctx, span := StartServer(With(t.Context(), parent), "request")
	row := Traceparent(ctx)
	later := Carry(context.Background(), ctx)
	span.End()
	now := time.Now()
	Completed(With(context.Background(), row), "row", now, now)
	CompletedByAgent(later, "agent", now, now)
	for _, s := range to.Ended()[1:] {
		if s.Parent().SpanID() != to.Ended()[0].SpanContext().SpanID() || s.SpanContext().TraceID().String() != ID(With(t.Context(), parent)) {
			t.Errorf("%s is below %v", s.Name(), s.Parent())
		}
	}
	if got := to.Ended()[2].Resource().String(); !strings.Contains(got, "service.name=b") {
		t.Errorf("the agent's span is of %s", got)
	}
}

func TestTheTargetIsSaidWithoutWhatIsSecretInIt(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://user:pass@host:4318/base?token=t")
	if got, err := Target(); err != nil || got != "https://host:4318/base/v1/traces (http/protobuf)" {
		t.Errorf("got %q, %v", got, err)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	if got, err := Target(); err != nil || got != "https://host:4318 (grpc)" {
		t.Errorf("got %q, %v", got, err)
	}
	for name, bad := range map[string]string{
		"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon", "OTEL_EXPORTER_OTLP_ENDPOINT": "collector.test:99", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=%zzsecret",
		"OTEL_TRACES_EXPORTER": "console",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, bad)
			if _, err := Target(); err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), bad) {
				t.Errorf("got %v", err)
			}
		})
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if got, err := Target(); err != nil || got != "" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTheHeadersOfTheCollectorAreNotRepeated(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret,x=other")
	var out bytes.Buffer
	c := &complaints{log: slog.New(slog.NewTextHandler(&out, nil))}
	c.Handle(errors.New("401: you said Bearer s3cret, or Bearer%20s3cret, and other"))
	if got := out.String(); strings.Contains(got, "s3cret") || strings.Contains(got, "other") || !strings.Contains(got, "401") {
		t.Error(got)
	}
}

func TestACollectorThatIsAwayIsComplainedOfOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := &complaints{log: slog.New(slog.NewTextHandler(&out, nil))}
		for range 180 {
			c.Handle(errors.New("refused"))
			time.Sleep(time.Second)
		}
		if n := strings.Count(out.String(), "could not be exported"); n != 3 || !strings.Contains(out.String(), "failures_before=59") {
			t.Errorf("%d lines: %s", n, &out)
		}
	})
}
