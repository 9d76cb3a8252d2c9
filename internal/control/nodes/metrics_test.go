package nodes_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay/internal/control/nodes/nodetest"
)

func gauge(name, label string) *dto.MetricFamily {
	return &dto.MetricFamily{Name: proto.String(name), Help: proto.String("A gauge."), Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{{
		Label: []*dto.LabelPair{{Name: proto.String("a"), Value: proto.String(label)}}, Gauge: &dto.Gauge{Value: proto.Float64(1)},
	}}}
}

func TestANodeIsAskedForItsMetricsAndOneThatIsAwayIsLost(t *testing.T) {
	w := start(t, func(w *world) { w.node.Families = []*dto.MetricFamily{gauge("cay_test", "x")} })
	<-w.ready
	families, lost := w.Metrics(t.Context())
	if !bytes.Contains(families[w.node.Worker], []byte("cay_test")) || lost != 0 {
		t.Fatalf("%q and %d lost", families[w.node.Worker], lost)
	}
	w.node.Kill()
	nodetest.Eventually(t, "the node is lost", func() bool {
		families, lost := w.Metrics(t.Context())
		return len(families) == 0 && lost == 1
	})
}

func TestANodeThatSaysTooMuchIsLeftOut(t *testing.T) {
	w := start(t, func(w *world) { w.node.Families = []*dto.MetricFamily{gauge("cay_test", strings.Repeat("x", 5<<20))} })
	<-w.ready
	if families, lost := w.Metrics(t.Context()); len(families) != 0 || lost != 1 {
		t.Fatalf("%d nodes answered, %d are lost", len(families), lost)
	}
	if !w.Available(w.node.Worker) {
		t.Error("the node is used no longer")
	}
}

func TestANodeThatDoesNotAnswerHoldsNobodyUp(t *testing.T) {
	w := start(t, func(w *world) { w.node.OnMetrics = nodetest.Hang })
	<-w.ready
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if families, lost := w.Metrics(ctx); len(families) != 0 || lost != 1 {
		t.Fatalf("%d nodes answered, %d are lost", len(families), lost)
	}
	if ctx.Err() != nil {
		t.Error("the metrics waited for the node until they were called off")
	}
}
