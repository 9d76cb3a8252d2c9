package lifecycle

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay"
)

// endReasons are all reasons for which a sandbox ends, so that each has its series from the start.
var endReasons = []cay.StatusReason{
	cay.ReasonDeleted, cay.ReasonTTLExpired, cay.ReasonIdleTimeout, cay.ReasonPausedTTLExpired, cay.ReasonOOM, cay.ReasonDiskFull,
	cay.ReasonBootFailed, cay.ReasonUnprocessable, cay.ReasonWorkerLost, cay.ReasonEvicted, cay.ReasonNoCapacity,
}

// newEnds makes the counter of ends by reason and registers it, unless r is nil.
func newEnds(r prometheus.Registerer) map[cay.StatusReason]prometheus.Counter {
	ends := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cay_sandbox_ends_total", Help: "Sandboxes that have ended, by the reason."}, []string{"reason"})
	if r != nil {
		r.MustRegister(ends)
	}
	of := map[cay.StatusReason]prometheus.Counter{}
	for _, reason := range endReasons {
		of[reason] = ends.WithLabelValues(string(reason))
	}
	return of
}

// counted counts the end of a sandbox whose row was from before a write that is through.
func (s *Sandboxes) counted(from cay.Status, sb *cay.Sandbox) {
	if from.Ended() || !sb.Status.Ended() {
		return
	}
	if counter := s.ends[sb.StatusReason]; counter != nil {
		counter.Inc()
	}
}
