package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cayhq/cay/test/bench/harness"
)

const atOnce = 8

// churn makes and deletes sandboxes, several at once, and shows the deletes that were timed by the way beside them.
func (b *bench) churn(ctx context.Context, rounds int) harness.Group {
	group := harness.Group{Name: "churn", Title: "Deletes, and creates and deletes at once", Unit: "ms"}
	var (
		mu               sync.Mutex // guards the slices
		creates, deletes []float64
		faults           []error
	)
	begin := time.Now()
	for range rounds {
		var wave sync.WaitGroup
		for range atOnce {
			wave.Go(func() {
				var made created
				createTook, err := harness.Millis(func() (err error) {
					made, err = b.cold.create(ctx)
					return err
				})
				var deleteTook float64
				if err == nil {
					deleteTook, err = harness.Millis(func() error { return b.cold.DeleteSandbox(ctx, made.ID) })
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					faults = append(faults, err)
					return
				}
				creates, deletes = append(creates, createTook), append(deletes, deleteTook)
			})
		}
		wave.Wait()
	}
	took := time.Since(begin)
	group.Series = []harness.Series{
		harness.NewSeries("delete, one at a time", b.deletes),
		harness.NewSeries(fmt.Sprintf("create to READY, %d at once", atOnce), creates),
		harness.NewSeries(fmt.Sprintf("delete, %d at once", atOnce), deletes),
	}
	group.Notes = []string{fmt.Sprintf("%d at once × %d: %d failed, %.1f sandboxes made and deleted a second", atOnce, rounds, len(faults), float64(len(creates))/took.Seconds())}
	if err := errors.Join(faults...); err != nil {
		group.Notes = append(group.Notes, "first failure: "+faults[0].Error())
	}
	return group
}
