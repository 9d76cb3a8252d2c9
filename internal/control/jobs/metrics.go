package jobs

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay"
)

// metrics is what is measured of jobs that this process brings on.
type metrics struct {
	finished map[cay.JobStatus]prometheus.Counter
	queued   prometheus.Histogram
	ran      prometheus.Histogram
}

// newMetrics registers the metrics of jobs, unless r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	finished := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cay_jobs_finished_total", Help: "Jobs that have finished, by the status that they came to."}, []string{"status"})
	duration := func(name, help string, buckets ...float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		})
	}
	m := &metrics{
		finished: map[cay.JobStatus]prometheus.Counter{},
		queued: duration("cay_job_queue_duration_seconds", "From the submission of a job to the first start of its program.",
			.025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300, 900, 3600),
		ran: duration("cay_job_run_duration_seconds", "How long the programs of jobs ran, of those that came to an end.",
			.025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300, 900, 3600, 6*3600, 24*3600),
	}
	for _, status := range cay.JobStatuses {
		if status.Finished() {
			m.finished[status] = finished.WithLabelValues(string(status))
		}
	}
	if r != nil {
		r.MustRegister(finished, m.queued, m.ran)
	}
	return m
}

// moved takes a write that is through, of a job that was from before it.
func (m *metrics) moved(from cay.JobStatus, row *cay.Job) {
	if from == row.Status {
		return
	}
	if row.Status == cay.JobRunning && row.Attempt <= 1 {
		m.queued.Observe(row.StartedAt.Sub(row.QueuedAt).Seconds())
	}
	if row.Status.Finished() {
		m.finished[row.Status].Inc()
		if row.ExitCode != nil {
			m.ran.Observe(row.Duration.Seconds())
		}
	}
}
