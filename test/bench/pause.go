package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cayhq/cay/test/bench/harness"
)

// Contenders of the pause group.
const (
	cayPause  = "Cay, pause"
	cayResume = "Cay, resume"
)

// pauses measures a pause and the resume after it, each from the call to the answer, when the sandbox is what was asked for.
func (b *bench) pauses(ctx context.Context, budget time.Duration) harness.Group {
	group := harness.Group{Name: "pause", Title: "Pause and resume of a sandbox that is up", Unit: "ms", Base: cayResume}
	sandbox, err := b.cold.create(ctx)
	if err != nil {
		group.Series = []harness.Series{harness.Absent(cayPause, err.Error()), harness.Absent(cayResume, err.Error())}
		return group
	}
	defer func() { _ = b.cold.DeleteSandbox(context.WithoutCancel(ctx), sandbox.ID) }() // the run ends with the server anyway
	turn := func(action, status string) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			return harness.Millis(func() error {
				var now created
				resp, err := b.cold.Do(ctx, "POST", "/v1/sandboxes/"+sandbox.ID+"/"+action, nil)
				if err == nil {
					err = resp.Decode(200, &now)
				}
				if err == nil && now.Status != status {
					err = fmt.Errorf("its status is %s", now.Status)
				}
				if err != nil {
					return fmt.Errorf("%s: %w", action, err)
				}
				return nil
			})
		}
	}
	group.Series = harness.Interleave(ctx, b.plan(60, budget), []harness.Contender{
		{Name: cayPause, Sample: turn("pause", "PAUSED")}, {Name: cayResume, Sample: turn("resume", "READY")},
	})
	return group
}
