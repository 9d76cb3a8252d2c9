package scheduler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics is what the scheduler measures.
type metrics struct {
	warm, cold createTimes
}

// createTimes is where the time of creates goes, by one way to start.
type createTimes struct {
	queue, schedule, boot, total prometheus.Observer
}

// newMetrics registers the scheduler's metrics, unless r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "cay_sandbox_create_duration_seconds",
		Help:    "Where the time of creates that came to READY went: waiting in the queue, choosing a worker, on the worker, and in total; warm is from a prepared sandbox.",
		Buckets: []float64{.0025, .005, .01, .02, .04, .08, .15, .3, .6, 1.2, 2.5, 5, 15, 60, 300},

		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}, []string{"phase", "start"})
	if r != nil {
		r.MustRegister(took)
	}
	of := func(start string) createTimes {
		return createTimes{
			queue: took.WithLabelValues("queue", start), schedule: took.WithLabelValues("schedule", start),
			boot: took.WithLabelValues("boot", start), total: took.WithLabelValues("total", start),
		}
	}
	return &metrics{warm: of("warm"), cold: of("cold")}
}

// created takes the times of one sandbox's create, up to its READY.
func (m *metrics) created(warm bool, created, leased, asked, answered, ready time.Time) {
	to := m.cold
	if warm {
		to = m.warm
	}
	to.queue.Observe(leased.Sub(created).Seconds())
	to.schedule.Observe(asked.Sub(leased).Seconds())
	to.boot.Observe(answered.Sub(asked).Seconds())
	to.total.Observe(ready.Sub(created).Seconds())
}
