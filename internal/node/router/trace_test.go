package router

import (
	"context"
	"math"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cayhq/cay/internal/observe/tracing"
)

func TestWhatAnAgentSaysOfItsTimeStaysWithinWhatTheNodeWaited(t *testing.T) {
	to := tracetest.NewSpanRecorder()
	uninstall, err := tracing.Install(t.Context(), tracing.Config{Service: "node", Agent: "agent"}, to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := uninstall(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	asked := time.Now()
	answered := asked.Add(10 * time.Millisecond)
	for took, want := range map[int64]time.Duration{
		4000: 4 * time.Millisecond, 0: 10 * time.Millisecond, -1: 10 * time.Millisecond, math.MinInt64: 10 * time.Millisecond,
		math.MaxInt64: 10 * time.Millisecond, 10_001: 10 * time.Millisecond,
	} {
		to.Reset()
		traceStart(t.Context(), "prc_1", asked, answered, took)
		s := to.Ended()[0]
		if got := s.EndTime().Sub(s.StartTime()); got != want || s.StartTime().Before(asked) || s.EndTime().After(answered) {
			t.Errorf("%d µs make a span of %v, %v after the question", took, got, s.StartTime().Sub(asked))
		}
	}
}
