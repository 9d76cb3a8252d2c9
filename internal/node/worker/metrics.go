package worker

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// otherKind is the label of processes that clients did not ask for as such: the programs of jobs.
const otherKind = "job"

// execLabels are the labels of a process that has ended.
type execLabels struct{ kind, reason string }

// metrics are what a node measures about itself. What is counted on the way of a request is resolved beforehand.
type metrics struct {
	registry             *prometheus.Registry
	hits, misses         prometheus.Counter
	claim, boot, destroy prometheus.Histogram
	durations            map[string]prometheus.Observer
	execs                map[execLabels]prometheus.Counter
	oom                  prometheus.Counter
}

func newMetrics(w *Worker) *metrics {
	histogram := func(name, help string, buckets ...float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	count := func(name, help string, value func() int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	claims := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cay_pool_claims_total", Help: "Creates of the shape that is prepared: a hit found one ready, a miss had to boot.",
	}, []string{"result"})
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "cay_exec_duration_seconds", Help: "From the start of a process to its end.",
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 5, 10, 30, 60, 300, 1800},
	}, []string{"kind"})
	execs := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cay_execs_total", Help: "Processes that have ended, by what they were asked for as and how they ended.",
	}, []string{"kind", "reason"})
	m := &metrics{
		registry: prometheus.NewRegistry(), hits: claims.WithLabelValues("hit"), misses: claims.WithLabelValues("miss"),
		claim: histogram("cay_sandbox_claim_duration_seconds", "To give a sandbox that is up to its owner.", .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5),
		boot:  histogram("cay_sandbox_boot_duration_seconds", "Of kernel and agent, ahead of time or not.", .1, .25, .5, 1, 2, 4, 8, 16, 32, 64),
		destroy: histogram("cay_sandbox_destroy_duration_seconds", "Until a sandbox was proven gone, what it was given to end by itself included.",
			.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60),
		durations: map[string]prometheus.Observer{}, execs: map[execLabels]prometheus.Counter{},
		oom: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cay_oom_kills_total", Help: "Processes killed for their sandbox's memory, and sandboxes ended for it as a whole.",
		}),
	}
	for _, kind := range []string{string(cay.RecordExec), string(cay.RecordCode), string(cay.RecordProcess), string(cay.RecordTerminal), otherKind} {
		m.durations[kind] = durations.WithLabelValues(kind)
		for _, reason := range []cay.ExitReason{
			cay.ExitExited, cay.ExitSignaled, cay.ExitTimeout, cay.ExitOOM, cay.ExitKilled, cay.ExitStartFailed, cay.ExitSandboxEnded,
		} {
			m.execs[execLabels{kind, string(reason)}] = execs.WithLabelValues(kind, string(reason))
		}
	}
	m.registry.MustRegister(
		claims, m.claim, m.boot, m.destroy, durations, execs, m.oom, nodeState{w},
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "cay_pool_prepared", Help: "Sandboxes that are up and belong to nobody yet."},
			func() float64 { return float64(w.pool.Ready()) }),
		count("cay_agent_reconnects_total", "Connections of an agent beyond its first.", w.counted.Reconnects.Load),
		count("cay_protocol_violations_total", "Of agents, which sandboxes are ended for when they repeat themselves.", w.counted.Violations.Load),
		count("cay_spool_bytes_total", "Output of processes that was taken in.", w.counted.Stored.Load),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// ended counts a process.
func (m *metrics) ended(p spool.Process) {
	kind := otherKind
	if p.Origin != nil {
		kind = p.Origin.Kind
	}
	if c := m.execs[execLabels{kind, string(p.Exit.Reason)}]; c != nil {
		c.Inc()
	}
	if d := m.durations[kind]; d != nil {
		d.Observe(max(p.EndedAt.Sub(p.StartedAt), 0).Seconds())
	}
}

// since is the time since began, in seconds.
func since(began time.Time) float64 { return time.Since(began).Seconds() }

var (
	sandboxesDesc = prometheus.NewDesc("cay_node_sandboxes", "Sandboxes of an owner, by their state.", []string{"state"}, nil)
	memoryDesc    = prometheus.NewDesc("cay_node_memory_mb", "Memory: what sandboxes were promised, and what they use.", []string{"kind"}, nil)
	coresDesc     = prometheus.NewDesc("cay_node_cpu_cores", "Cores: what sandboxes were promised, and what may be.", []string{"kind"}, nil)
)

// nodeState tells of the sandboxes that there are.
type nodeState struct{ w *Worker }

// Describe implements prometheus.Collector.
func (nodeState) Describe(ch chan<- *prometheus.Desc) {
	ch <- sandboxesDesc
	ch <- memoryDesc
	ch <- coresDesc
}

// Collect implements prometheus.Collector.
func (n nodeState) Collect(ch chan<- prometheus.Metric) {
	states := map[state]int{booting: 0, running: 0, frozen: 0, dying: 0}
	var promisedMB, usedMB int64
	var promised float64
	n.w.mu.Lock()
	for _, b := range n.w.boxes {
		b.mu.Lock()
		states[b.state]++
		b.mu.Unlock()
		promised += b.cpu
		promisedMB += b.memoryMB
		b.usage.mu.Lock()
		usedMB += b.usage.last.MemoryBytes >> 20
		b.usage.mu.Unlock()
	}
	n.w.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, label string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, label)
	}
	for s, count := range states {
		gauge(sandboxesDesc, float64(count), string(s))
	}
	gauge(memoryDesc, float64(promisedMB), "promised")
	gauge(memoryDesc, float64(usedMB), "used")
	gauge(coresDesc, promised, "promised")
	gauge(coresDesc, n.w.cfg.CPU, "capacity")
}

// gather encodes what was measured.
func (m *metrics) gather() (*nodev1.MetricsResponse, error) {
	families, err := m.registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	var b bytes.Buffer
	encoder := expfmt.NewEncoder(&b, expfmt.NewFormat(expfmt.TypeProtoDelim))
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return nil, fmt.Errorf("encode metrics: %w", err)
		}
	}
	return &nodev1.MetricsResponse{Families: b.Bytes()}, nil
}

func (s service) Metrics(context.Context, *connect.Request[nodev1.MetricsRequest]) (*connect.Response[nodev1.MetricsResponse], error) {
	return answer(s.w.measured.gather())
}
