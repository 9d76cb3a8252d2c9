package scrape_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/scrape"
)

// answers are what nodes say.
type answers struct {
	families map[cay.ID][]byte
	lost     int
}

func (a answers) Metrics(context.Context) (map[cay.ID][]byte, int) { return a.families, a.lost }

func encoded(t testing.TB, families ...*dto.MetricFamily) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, f := range families {
		if _, err := protodelim.MarshalTo(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func pair(name, value string) *dto.LabelPair {
	return &dto.LabelPair{Name: proto.String(name), Value: proto.String(value)}
}

func counter(name string, value float64, labels ...*dto.LabelPair) *dto.MetricFamily {
	return &dto.MetricFamily{
		Name: proto.String(name), Help: proto.String("Help of " + name + "."), Type: dto.MetricType_COUNTER.Enum(),
		Metric: []*dto.Metric{{Label: labels, Counter: &dto.Counter{Value: proto.Float64(value)}}},
	}
}

// page is what is shown, as text, and what was logged.
func page(t *testing.T, own prometheus.Gatherer, nodes answers) (text, log string) {
	t.Helper()
	var logged bytes.Buffer
	families, err := scrape.New(own, nodes, slog.New(slog.NewTextHandler(&logged, nil))).Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	if _, err := parser.TextToMetricFamilies(bytes.NewReader(b.Bytes())); err != nil {
		t.Fatalf("Prometheus could not read it: %v\n%s", err, b.String())
	}
	return b.String(), logged.String()
}

func serverWith(t *testing.T, names ...string) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewRegistry()
	for _, name := range names {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "Of the server."})
		c.Add(1)
		r.MustRegister(c)
	}
	return r
}

func TestFamiliesOfServerAndNodesAreOneAndTheLabelWorkerTellsThemApart(t *testing.T) {
	text, _ := page(t, serverWith(t, "process_things_total", "cay_own_total"), answers{families: map[cay.ID][]byte{
		"wrk_a": encoded(t, counter("process_things_total", 2), counter("cay_pool_claims_total", 3, pair("result", "hit"))),
		"wrk_b": encoded(t, counter("process_things_total", 4), counter("cay_pool_claims_total", 5, pair("result", "hit"))),
	}, lost: 1})
	for _, line := range []string{
		"process_things_total 1", `process_things_total{worker="wrk_a"} 2`, `process_things_total{worker="wrk_b"} 4`, "cay_own_total 1",
		`cay_pool_claims_total{result="hit",worker="wrk_a"} 3`, `cay_pool_claims_total{result="hit",worker="wrk_b"} 5`,
		`cay_workers{status="live"} 2`, `cay_workers{status="lost"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("%s is missing in\n%s", line, text)
		}
	}
	if n := strings.Count(text, "# TYPE process_things_total"); n != 1 {
		t.Errorf("the family that both have is there %d times", n)
	}
}

func TestANodeThatCallsAFamilyByAnotherTypeIsLeftOutThereAndNowhereElse(t *testing.T) {
	other := counter("cay_own_total", 7)
	other.Type, other.Metric[0].Gauge, other.Metric[0].Counter = dto.MetricType_GAUGE.Enum(), &dto.Gauge{Value: proto.Float64(7)}, nil
	text, log := page(t, serverWith(t, "cay_own_total"), answers{families: map[cay.ID][]byte{"wrk_a": encoded(t, other, counter("cay_good_total", 1))}})
	if !strings.Contains(text, "cay_own_total 1\n") || strings.Contains(text, "cay_own_total{") || !strings.Contains(text, `cay_good_total{worker="wrk_a"} 1`) {
		t.Errorf("the page is\n%s", text)
	}
	if !strings.Contains(log, "wrk_a") || !strings.Contains(log, "cay_own_total") {
		t.Errorf("the log does not say what was left out: %s", log)
	}
}

func TestWhatANodeSaysWronglyDoesNotMakeThePageUnreadable(t *testing.T) {
	good := counter("cay_good_total", 1)
	twice := counter("cay_twice_total", 1)
	twice.Metric = append(twice.Metric, &dto.Metric{Counter: &dto.Counter{Value: proto.Float64(2)}})
	empty := counter("cay_empty_total", 1)
	empty.Metric[0].Counter = nil
	for name, wrong := range map[string][]byte{
		"a name that only the server's Prometheus may use": encoded(t, counter("up", 0)),
		"a name with a line break":                         encoded(t, counter("cay_a\ncay_b", 1)),
		"a label with a line break":                        encoded(t, counter("cay_label_total", 1, pair("a\n", "b"))),
		"a label that is no UTF-8":                         encoded(t, counter("cay_label_total", 1, pair("a", "\xff"))),
		"a label twice":                                    encoded(t, counter("cay_label_total", 1, pair("a", "b"), pair("a", "c"))),
		"a series twice":                                   encoded(t, twice),
		"a counter without a value":                        encoded(t, empty),
		"another worker's label":                           encoded(t, counter("cay_worker_total", 1, pair("worker", "wrk_other"))),
		"half a message":                                   encoded(t, counter("cay_cut_total", 1))[:5],
		"a length without an end":                          {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
		"a length beyond what is there":                    {0xff, 0xff, 0xff, 0xff, 0x0f},
	} {
		t.Run(name, func(t *testing.T) {
			text, _ := page(t, serverWith(t, "cay_own_total"), answers{families: map[cay.ID][]byte{"wrk_a": append(encoded(t, good), wrong...)}})
			if !strings.Contains(text, "cay_own_total 1\n") || !strings.Contains(text, `cay_good_total{worker="wrk_a"} 1`) {
				t.Errorf("what is right is missing in\n%s", text)
			}
			if strings.Contains(text, "wrk_other") || strings.Contains(text, "\nup") {
				t.Errorf("the page has what no node may say\n%s", text)
			}
		})
	}
}

func TestWithoutTheServersOwnTheNodesAreShownAndTheErrorTold(t *testing.T) {
	broken := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, errors.New("broken") })
	families, err := scrape.New(broken, answers{families: map[cay.ID][]byte{"wrk_a": encoded(t, counter("cay_good_total", 1))}}, slog.New(slog.DiscardHandler)).Gather()
	if err == nil || len(families) != 2 {
		t.Errorf("%d families and %v, want those of the node, cay_workers, and the error", len(families), err)
	}
}

func FuzzWhateverANodeAnswersThePageCanBeRead(f *testing.F) {
	f.Add(encoded(f, counter("cay_good_total", 1, pair("a", "b"))))
	f.Add([]byte{0x02, 0x0a, 0x00})
	f.Fuzz(func(t *testing.T, data []byte) {
		page(t, serverWith(t, "cay_own_total"), answers{families: map[cay.ID][]byte{"wrk_a": data, "wrk_b": data}})
	})
}
