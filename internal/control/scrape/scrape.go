// Package scrape puts together what GET /metrics shows: the metric families of the server itself and those that the connected nodes
// answer, whose series get the label worker. It neither decides who may look nor speaks HTTP, and keeps nothing between two looks.
package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
)

// workerLabel tells the series of one node from those of another, and from the server's, which do not have it.
const workerLabel = "worker"

// Nodes asks nodes for their metrics; internal/control/nodes implements it.
type Nodes interface {
	// Metrics answers the families of every node that answers in time, as nodev1.MetricsResponse has them, and how many workers that were
	// heard of lately do not. It bounds time and size of each.
	Metrics(ctx context.Context) (families map[cay.ID][]byte, lost int)
}

// Gatherer is a prometheus.Gatherer over the whole installation.
type Gatherer struct {
	own   prometheus.Gatherer
	nodes Nodes
	log   *slog.Logger
}

// New makes a gatherer of the server's own metrics and those of its nodes.
func New(own prometheus.Gatherer, nodes Nodes, log *slog.Logger) *Gatherer {
	return &Gatherer{own: own, nodes: nodes, log: log}
}

// Gather implements prometheus.Gatherer. What cannot be had is left out and logged: the rest is wanted most when something fails.
func (g *Gatherer) Gather() ([]*dto.MetricFamily, error) {
	var parts map[cay.ID][]byte
	var lost int
	var asking sync.WaitGroup
	asking.Go(func() { parts, lost = g.nodes.Metrics(context.Background()) })
	own, err := g.own.Gather()
	asking.Wait()

	all := families{}
	for _, f := range own {
		all[f.GetName()] = f
	}
	for _, worker := range slices.Sorted(maps.Keys(parts)) {
		if err := all.add(worker, parts[worker]); err != nil {
			g.log.Warn("metrics of a node were left out", "worker", worker, "error", err)
		}
	}
	all["cay_workers"] = workers(len(parts), lost)
	return slices.SortedFunc(maps.Values(all), func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) }), err
}

func workers(live, lost int) *dto.MetricFamily {
	status := func(name string, n int) *dto.Metric {
		return &dto.Metric{
			Label: []*dto.LabelPair{{Name: proto.String("status"), Value: proto.String(name)}},
			Gauge: &dto.Gauge{Value: proto.Float64(float64(n))},
		}
	}
	return &dto.MetricFamily{
		Name: proto.String("cay_workers"), Type: dto.MetricType_GAUGE.Enum(),
		Help:   proto.String("Workers that answer (live), and those heard of within the last day that do not (lost)."),
		Metric: []*dto.Metric{status("live", live), status("lost", lost)},
	}
}

// families are metric families by name.
type families map[string]*dto.MetricFamily

// add merges what a node answered. It is another process's word: whatever would make the page as a whole unreadable is left out. The
// error names all of that.
func (all families) add(worker cay.ID, encoded []byte) error {
	var faults []error
	for r := bytes.NewReader(encoded); ; {
		f := &dto.MetricFamily{}
		err := protodelim.UnmarshalOptions{MaxSize: int64(len(encoded))}.UnmarshalFrom(r, f)
		if errors.Is(err, io.EOF) {
			return errors.Join(faults...)
		}
		if err != nil {
			return errors.Join(append(faults, fmt.Errorf("decode: %w", err))...)
		}
		if err := all.merge(worker, f); err != nil {
			faults = append(faults, err)
		}
	}
}

// nodeName is what a node's metrics may be called.
var nodeName = regexp.MustCompile(`^(cay|go|process)_[a-zA-Z0-9_]{1,120}$`)

var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func (all families) merge(worker cay.ID, f *dto.MetricFamily) error {
	name := f.GetName()
	if !nodeName.MatchString(name) || !utf8.ValidString(f.GetHelp()) {
		return fmt.Errorf("a family has no name that a node may use: %.100q", name)
	}
	into := all[name]
	if into == nil {
		into = &dto.MetricFamily{Name: f.Name, Help: f.Help, Type: f.GetType().Enum(), Unit: f.Unit}
	} else if into.GetType() != f.GetType() {
		return fmt.Errorf("%s is a %s here and a %s there", name, into.GetType(), f.GetType())
	}
	seen := map[string]bool{}
	dropped := 0
	for _, m := range f.GetMetric() {
		key, ok := label(m, worker)
		if !ok || seen[key] || !holds(m, f.GetType()) {
			dropped++
			continue
		}
		seen[key] = true
		into.Metric = append(into.Metric, m)
	}
	if len(into.Metric) > 0 {
		all[name] = into
	}
	if dropped > 0 {
		return fmt.Errorf("%s has %d series that are malformed or there twice", name, dropped)
	}
	return nil
}

// label sets the worker of a series, in the order of names that readers expect, and answers what its labels are, as one string.
func label(m *dto.Metric, worker cay.ID) (key string, ok bool) {
	labels := []*dto.LabelPair{{Name: proto.String(workerLabel), Value: proto.String(string(worker))}}
	for _, l := range m.GetLabel() {
		switch {
		case l.GetName() == workerLabel:
		case !labelName.MatchString(l.GetName()) || !utf8.ValidString(l.GetValue()):
			return "", false
		default:
			labels = append(labels, l)
		}
	}
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	var b strings.Builder
	for i, l := range labels {
		if i > 0 && labels[i-1].GetName() == l.GetName() {
			return "", false
		}
		fmt.Fprintf(&b, "%s=%q,", l.GetName(), l.GetValue())
	}
	m.Label, m.TimestampMs = labels, nil
	return b.String(), true
}

// holds reports whether a series has the value that its type says. Exemplars are dropped: their labels could be anything.
func holds(m *dto.Metric, kind dto.MetricType) bool {
	switch kind {
	case dto.MetricType_COUNTER:
		if m.Counter != nil {
			m.Counter.Exemplar = nil
		}
		return m.Counter != nil
	case dto.MetricType_GAUGE:
		return m.Gauge != nil
	case dto.MetricType_SUMMARY:
		return m.Summary != nil
	case dto.MetricType_HISTOGRAM:
		if m.Histogram != nil {
			m.Histogram.Exemplars = nil
			for _, b := range m.Histogram.Bucket {
				b.Exemplar = nil
			}
		}
		return m.Histogram != nil
	}
	return false
}
