package api

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay"
)

// JobCounts says how many jobs of any project are queued and running, and since when the oldest queued one waits (zero: none does).
type JobCounts interface {
	CountJobs(ctx context.Context) (queued, running int64, oldest time.Time, err error)
}

// countWait bounds what GET /metrics waits for the counts.
const countWait = 2 * time.Second

// queueMetrics counts jobs when it is asked, so that what it says is true for all replicas and after a restart.
type queueMetrics struct {
	counts JobCounts
	log    *slog.Logger
	jobs   *prometheus.Desc
	oldest *prometheus.Desc
}

func newQueueMetrics(counts JobCounts, log *slog.Logger) *queueMetrics {
	return &queueMetrics{
		counts: counts, log: log,
		jobs:   prometheus.NewDesc("cay_jobs", "Jobs that have not finished, by status.", []string{"status"}, nil),
		oldest: prometheus.NewDesc("cay_job_queue_oldest_seconds", "How long the oldest queued job has waited; 0 when none waits.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *queueMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.jobs
	out <- m.oldest
}

// Collect implements prometheus.Collector. Counts that cannot be had are left out: all other metrics are wanted most when something fails.
func (m *queueMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), countWait)
	defer cancel()
	queued, running, oldest, err := m.counts.CountJobs(ctx)
	if err != nil {
		m.log.Warn("jobs were not counted for the metrics", "error", err)
		return
	}
	out <- prometheus.MustNewConstMetric(m.jobs, prometheus.GaugeValue, float64(queued), string(cay.JobQueued))
	out <- prometheus.MustNewConstMetric(m.jobs, prometheus.GaugeValue, float64(running), string(cay.JobRunning))
	out <- prometheus.MustNewConstMetric(m.oldest, prometheus.GaugeValue, waitedSince(oldest).Seconds())
}
