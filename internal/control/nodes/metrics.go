package nodes

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	metricsTimeout = 2 * time.Second
	maxMetrics     = 4 << 20        // bytes of one node's families
	remembered     = 24 * time.Hour // how long a worker that is away counts as lost
)

// Metrics asks all connected nodes at once for their metric families, in the form of nodev1.MetricsResponse. One that does not answer in
// time, or at too great length, is left out. lost counts the workers that were heard of lately and are not in the answer.
func (n *Nodes) Metrics(ctx context.Context) (families map[cay.ID][]byte, lost int) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	n.mu.RLock()
	asked := make(map[cay.ID]*node, len(n.live))
	for id, node := range n.live {
		asked[id] = node
	}
	n.mu.RUnlock()
	families = map[cay.ID][]byte{}
	var mu sync.Mutex // guards families
	var asking sync.WaitGroup
	for id, node := range asked {
		asking.Go(func() {
			answer, err := node.metrics.Metrics(ctx, connect.NewRequest(&nodev1.MetricsRequest{}))
			if err != nil && connect.CodeOf(err) != connect.CodeUnimplemented { // else it is of a version that has none
				n.log.Warn("a node did not answer with its metrics", "worker", id, "error", noderpc.Decode(err))
				return
			}
			mu.Lock()
			defer mu.Unlock()
			families[id] = nil
			if err == nil {
				families[id] = answer.Msg.Families
			}
		})
	}
	asking.Wait()
	oldest := time.Now().Add(-remembered)
	n.mu.RLock()
	defer n.mu.RUnlock()
	for id, w := range n.workers {
		if _, answered := families[id]; !answered && w.HeartbeatAt.After(oldest) {
			lost++
		}
	}
	return families, lost
}
