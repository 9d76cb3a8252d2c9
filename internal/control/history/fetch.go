package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	batchLimit  = 500              // records of one fetch, and of one transaction
	answerGrace = 15 * time.Second // beyond what a node may wait
	emptyPause  = 100 * time.Millisecond
	writePeriod = 30 * time.Second // bounds one try to write a batch
)

// position is how far the records of a worker have been written. It belongs to whoever fetches from that worker, one at a time.
type position struct {
	boot  string
	after int64
	lost  int64 // of this boot, as far as counted
}

// follow fetches from every worker that can be asked, until ctx ends; then it fetches a last time.
func (h *History) follow(ctx context.Context) {
	type fetcher struct {
		stop context.CancelFunc
		done chan struct{}
	}
	fetchers, positions := map[cay.ID]fetcher{}, map[cay.ID]*position{}
	end := func(worker cay.ID) {
		fetchers[worker].stop()
		<-fetchers[worker].done
		delete(fetchers, worker)
	}
	for ctx.Err() == nil {
		live, changed := h.nodes.Live()
		for worker := range fetchers {
			if !slices.Contains(live, worker) {
				end(worker)
			}
		}
		for _, worker := range live {
			if _, there := fetchers[worker]; there {
				continue
			}
			if positions[worker] == nil {
				positions[worker] = new(position)
			}
			fetching, stop := context.WithCancel(ctx)
			f := fetcher{stop, make(chan struct{})}
			fetchers[worker] = f
			go func() {
				defer close(f.done)
				h.fetchAll(fetching, worker, positions[worker])
			}()
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	workers := make([]cay.ID, 0, len(fetchers))
	for worker := range fetchers {
		end(worker)
		workers = append(workers, worker)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.cfg.LastFetch)
	defer cancel()
	for _, worker := range workers {
		for more := true; more; {
			n, err := h.fetch(last, worker, positions[worker], 0)
			if err != nil {
				h.log.Warn("the last records of a worker were not fetched; it keeps them for the next start", "worker", worker, "error", err)
			}
			more = err == nil && n > 0
		}
	}
}

// fetchAll fetches from a worker until ctx ends.
func (h *History) fetchAll(ctx context.Context, worker cay.ID, at *position) {
	again := retry{least: h.cfg.MinRetry, most: h.cfg.MaxRetry}
	for ctx.Err() == nil {
		began := time.Now()
		n, err := h.fetch(ctx, worker, at, h.cfg.Poll)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if again.failures == 0 {
				h.log.Warn("records of processes were not fetched; trying again", "worker", worker, "error", err)
			}
			pause(ctx, again.wait())
		default:
			again.failures = 0
			if n == 0 { // it should have waited; one that does not is not asked all the time
				pause(ctx, emptyPause-time.Since(began))
			}
		}
	}
}

// fetch asks a worker once for what ended since at, writes that, and moves at on. It answers how many records there were. By asking
// again from at the node learns that they were written, and may forget them.
func (h *History) fetch(ctx context.Context, worker cay.ID, at *position, wait time.Duration) (int, error) {
	client, err := h.nodes.For(ctx, worker)
	if err != nil {
		return 0, err
	}
	asking, cancel := context.WithTimeout(ctx, wait+answerGrace)
	defer cancel()
	answer, err := client.Records(asking, connect.NewRequest(&nodev1.RecordsRequest{
		Boot: at.boot, After: at.after, WaitMs: wait.Milliseconds(), Limit: batchLimit,
	}))
	if err != nil {
		return 0, fmt.Errorf("ask worker %s for records: %w", worker, noderpc.Decode(err))
	}
	said := answer.Msg
	if said.Boot != at.boot {
		*at = position{boot: said.Boot}
	}
	if n := len(said.Records); n > 0 && said.Next <= at.after {
		return 0, errors.New("the node answered with records and does not go on")
	}
	if lost := said.Lost - at.lost; lost > 0 {
		h.counts.lost.Add(float64(lost))
		h.log.Warn("a worker could not keep records of processes until they were fetched", "worker", worker, "lost", lost)
		at.lost = said.Lost
	}
	for batch := range slices.Chunk(said.Records, batchLimit) {
		if err := h.write(ctx, worker, batch); err != nil {
			return 0, err
		}
	}
	at.after = said.Next
	return len(said.Records), nil
}

// write writes a batch in one transaction, again and again until it is written or ctx ends. What cannot be true is left out.
func (h *History) write(ctx context.Context, worker cay.ID, said []*nodev1.ProcessRecord) error {
	again := retry{least: h.cfg.MinRetry, most: h.cfg.MaxRetry}
	for {
		err := h.tryWrite(ctx, worker, said)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if again.failures == 0 {
			h.log.Error("records of processes were not written; trying again", "worker", worker, "records", len(said), "error", err)
		}
		if !pause(ctx, again.wait()) {
			return err
		}
	}
}

func (h *History) tryWrite(ctx context.Context, worker cay.ID, said []*nodev1.ProcessRecord) error {
	ctx, cancel := context.WithTimeout(ctx, writePeriod)
	defer cancel()
	records := make([]cay.Record, 0, len(said))
	boxes := map[cay.ID]*cay.Sandbox{} // nil: its row is no longer kept
	var refused error
	for _, s := range said {
		r, err := recordOf(s, time.Now())
		if err == nil {
			box, seen := boxes[r.SandboxID]
			if !seen {
				if box, err = h.store.Sandbox(ctx, r.SandboxID); err != nil && cay.ReasonOf(err) != cay.NotFound {
					return fmt.Errorf("look up the sandbox of a record: %w", err)
				}
				boxes[r.SandboxID] = box
			}
			err = belongs(&r, box, worker)
		}
		if err != nil {
			refused = err
			continue
		}
		if !h.cfg.Commands {
			r.Command = ""
		}
		records = append(records, r)
	}
	if len(records) > 0 {
		if err := h.store.AddRecords(ctx, records); err != nil {
			return err
		}
	}
	for _, r := range records {
		h.counts.records.WithLabelValues(string(r.Kind)).Inc()
	}
	if n := len(said) - len(records); n > 0 {
		h.counts.lost.Add(float64(n))
		h.log.Warn("records that a worker told were refused", "worker", worker, "records", n, "error", refused)
	}
	return nil
}
