package api

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay"
)

// SandboxCounts says how many sandboxes of any project there are, by status, how many operations nobody has taken yet and since when the
// oldest of those waits (zero: none does), and what all sandboxes have sent out.
type SandboxCounts interface {
	CountSandboxes(ctx context.Context) (byStatus map[cay.Status]int64, queued int64, oldest time.Time, err error)
	EgressBytes(ctx context.Context) (int64, error)
}

// sandboxMetrics counts sandboxes when it is asked, as queueMetrics counts jobs.
type sandboxMetrics struct {
	counts    SandboxCounts
	log       *slog.Logger
	sandboxes *prometheus.Desc
	queue     *prometheus.Desc
	oldest    *prometheus.Desc
	egress    *prometheus.Desc

	mu     sync.Mutex
	sent   int64 // guarded by mu; what was counted last
	purged int64 // guarded by mu; what was counted once and is kept no more
}

func newSandboxMetrics(counts SandboxCounts, log *slog.Logger) *sandboxMetrics {
	return &sandboxMetrics{
		counts: counts, log: log,
		sandboxes: prometheus.NewDesc("cay_sandboxes", "Sandboxes that have not ended, by status.", []string{"status"}, nil),
		queue:     prometheus.NewDesc("cay_sandbox_queue", "Creates, ends, pauses and resumes of sandboxes that nobody has begun.", nil, nil),
		oldest:    prometheus.NewDesc("cay_sandbox_queue_oldest_seconds", "How long the oldest of those has waited; 0 when none waits.", nil, nil),
		egress:    prometheus.NewDesc("cay_egress_bytes_total", "Bytes that sandboxes have sent out.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *sandboxMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.sandboxes, m.queue, m.oldest, m.egress} {
		out <- d
	}
}

// Collect implements prometheus.Collector. Counts that cannot be had are left out.
func (m *sandboxMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), countWait)
	defer cancel()
	byStatus, queued, oldest, err := m.counts.CountSandboxes(ctx)
	if err != nil {
		m.log.Warn("sandboxes were not counted for the metrics", "error", err)
	} else {
		for _, status := range cay.Statuses {
			if !status.Ended() {
				out <- prometheus.MustNewConstMetric(m.sandboxes, prometheus.GaugeValue, float64(byStatus[status]), string(status))
			}
		}
		out <- prometheus.MustNewConstMetric(m.queue, prometheus.GaugeValue, float64(queued))
		out <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, waitedSince(oldest).Seconds())
	}
	sent, err := m.counts.EgressBytes(ctx)
	if err != nil {
		m.log.Warn("egress was not counted for the metrics", "error", err)
		return
	}
	out <- prometheus.MustNewConstMetric(m.egress, prometheus.CounterValue, float64(m.everSent(sent)))
}

// everSent makes a counter of a sum from which old days are purged: a counter that falls is taken for one that began anew.
func (m *sandboxMetrics) everSent(sent int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.purged += max(0, m.sent-sent)
	m.sent = sent
	return m.purged + sent
}

// waitedSince is how long something waits that began to then; zero for the zero time.
func waitedSince(oldest time.Time) time.Duration {
	if oldest.IsZero() {
		return 0
	}
	return max(0, time.Since(oldest))
}
