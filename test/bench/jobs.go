package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/test/bench/harness"
	"github.com/cayhq/cay/test/bench/peer"
)

const cayJob = "Cay, a job"

// runJob submits the program and waits for its end.
func (s *server) runJob(ctx context.Context) error {
	j, err := s.RunJob(ctx, printOne)
	if err == nil && !j.Said("1\n") {
		err = fmt.Errorf("%v", j)
	}
	return err
}

// jobs measures print(1) from the submission to the end, by several callers at once, beside callers who each run a container for it:
// how long one takes, and how many there are in a second.
func (b *bench) jobs(ctx context.Context, budget time.Duration) []harness.Group {
	lanes := 2 * runtime.NumCPU()
	latency := harness.Group{Name: "jobs", Title: fmt.Sprintf("print(1) as a job, %d at once: submission to end", lanes), Unit: "ms", Base: cayJob}
	rate := harness.Group{Name: "jobs-rate", Title: fmt.Sprintf("print(1) as jobs, %d at once", lanes), Unit: "1/s", Base: cayJob}
	bursts := []*burst{{name: cayJob, run: b.warm.runJob}}
	for _, p := range b.peers {
		container, ok := p.Peer.(*peer.DockerRuntime)
		if !ok {
			continue
		}
		name := runName(p.Name())
		if p.absent != "" {
			latency.Series = append(latency.Series, harness.Absent(name, p.absent))
			continue
		}
		bursts = append(bursts, &burst{name: name, run: func(ctx context.Context) error {
			_, err := container.Run(ctx, pythonPath, "-c", printOne)
			return err
		}})
	}
	const rounds = 2 // in turn, so that whatever else the machine is doing disturbs all alike
	for range rounds {
		for _, u := range bursts {
			u.spell(ctx, lanes, budget/time.Duration(rounds*len(bursts)))
		}
	}
	for _, u := range bursts {
		latency.Series = append(latency.Series, u.series(u.took))
		rate.Series = append(rate.Series, u.series(u.rates))
		if len(u.took) > 0 {
			latency.Notes = append(latency.Notes, fmt.Sprintf("%s: 99 of 100 within %s ms", u.name, harness.Number(percentile(u.took, 99))))
		}
	}
	return []harness.Group{latency, rate}
}

// burst is one way of running the program, by several callers at once.
type burst struct {
	name string
	run  func(context.Context) error

	mu     sync.Mutex // guards the rest
	took   []float64  // ms
	rates  []float64  // a second, of each round
	faults []error
}

// spell runs for a while; what has begun by then is waited for.
func (u *burst) spell(ctx context.Context, lanes int, budget time.Duration) {
	begin, before := time.Now(), len(u.took)
	var wave sync.WaitGroup
	for range lanes {
		wave.Go(func() {
			for first := true; first || time.Since(begin) < budget; first = false {
				took, err := harness.Millis(func() error { return u.run(ctx) })
				u.mu.Lock()
				if err != nil {
					u.faults = append(u.faults, err)
				} else {
					u.took = append(u.took, took)
				}
				failed := len(u.faults) > 0
				u.mu.Unlock()
				if failed {
					return
				}
			}
		})
	}
	wave.Wait()
	if len(u.faults) == 0 {
		u.rates = append(u.rates, float64(len(u.took)-before)/time.Since(begin).Seconds())
	}
}

func (u *burst) series(samples []float64) harness.Series {
	s := harness.NewSeries(u.name, samples)
	if err := errors.Join(u.faults...); err != nil {
		s.Fault = u.faults[0].Error()
	}
	return s
}

// percentile is the smallest sample that p of 100 do not exceed.
func percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(0, int(math.Ceil(p/100*float64(len(sorted))))-1)]
}

// Contenders of the group of sessions.
const (
	plainReady   = "Cay warm, create to READY"
	sessionReady = "Cay warm, create to READY with a session"
)

// sessions measures a fresh sandbox that has a session's volume beside one that has none.
func (b *bench) sessions(ctx context.Context, budget time.Duration) harness.Group {
	group := harness.Group{Name: "session", Title: "A fresh sandbox with a session's volume", Unit: "ms", Base: plainReady}
	session, err := b.warm.CreateSession(ctx, nil)
	if err != nil {
		group.Series = []harness.Series{harness.Absent(sessionReady, err.Error())}
		return group
	}
	var id string
	create := func(fields testkit.Fields) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			return harness.Millis(func() error {
				made, err := b.warm.CreateSandbox(ctx, fields)
				id = made.ID
				return err
			})
		}
	}
	after := func(ctx context.Context) error {
		if err := b.warm.DeleteSandbox(ctx, id); err != nil {
			return err
		}
		return b.warm.rest(ctx)
	}
	group.Series = harness.Interleave(ctx, b.plan(15, budget), []harness.Contender{
		{Name: plainReady, Sample: create(nil), After: after},
		{Name: sessionReady, Sample: create(testkit.Fields{"session_id": session.ID}), After: after},
	})
	if err := b.warm.DeleteSession(ctx, session.ID); err != nil {
		group.Notes = append(group.Notes, err.Error())
	}
	return group
}
