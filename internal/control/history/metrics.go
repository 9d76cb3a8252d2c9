package history

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay"
)

// counts are what the server tells of its history on /metrics.
type counts struct {
	records   *prometheus.CounterVec
	lost      prometheus.Counter
	auditLost prometheus.Counter
}

func newCounts() counts {
	c := counts{
		records:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cay_history_records_total", Help: "Records of processes that were written, by kind."}, []string{"kind"}),
		lost:      prometheus.NewCounter(prometheus.CounterOpts{Name: "cay_history_lost_total", Help: "Records of processes that were not written: a node could not keep them until they were fetched, or what it said was refused."}),
		auditLost: prometheus.NewCounter(prometheus.CounterOpts{Name: "cay_audit_lost_total", Help: "Entries of the audit log that were not written: refusals beyond what is kept of a second, or more than the queue holds."}),
	}
	for _, kind := range cay.RecordKinds {
		if kind.OfProcess() {
			c.records.WithLabelValues(string(kind))
		}
	}
	return c
}

// Describe implements prometheus.Collector.
func (h *History) Describe(out chan<- *prometheus.Desc) {
	h.counts.records.Describe(out)
	h.counts.lost.Describe(out)
	h.counts.auditLost.Describe(out)
}

// Collect implements prometheus.Collector.
func (h *History) Collect(out chan<- prometheus.Metric) {
	h.counts.records.Collect(out)
	h.counts.lost.Collect(out)
	h.counts.auditLost.Collect(out)
}
