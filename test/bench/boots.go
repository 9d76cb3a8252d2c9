package main

import (
	"context"
	"fmt"
	"time"

	"github.com/cayhq/cay/test/bench/harness"
	"github.com/cayhq/cay/test/bench/peer"
)

const (
	coldReady  = "Cay cold, create to READY"
	coldOutput = "Cay cold, create to first output"
	warmReady  = "Cay warm, create to READY"
	warmOutput = "Cay warm, create to first output"
	runscRun   = "runsc run"
)

// boots measures a fresh sandbox: from the call to READY, and to the first output of argv, which is to be want. Deletes are timed
// by the way.
func (b *bench) boots(ctx context.Context, name, title string, budget time.Duration, want string, argv ...string) harness.Group {
	group := harness.Group{Name: name, Title: title, Unit: "ms", Base: coldOutput}
	cold, warm := &life{server: b.cold}, &life{server: b.warm}
	contenders := append(cold.contenders(coldReady, coldOutput, want, argv), warm.contenders(warmReady, warmOutput, want, argv)...)
	for _, p := range b.peers {
		runner, ok := p.Peer.(peer.Runner)
		if !ok {
			continue
		}
		if p.absent != "" {
			group.Series = append(group.Series, harness.Absent(runName(p.Name()), p.absent))
			continue
		}
		contenders = append(contenders, harness.Contender{Name: runName(p.Name()), Sample: func(ctx context.Context) (float64, error) {
			first, err := runner.Run(ctx, argv...)
			return harness.InMillis(first), err
		}})
	}
	group.Series = append(harness.Interleave(ctx, b.plan(15, budget), contenders), group.Series...)
	b.deletes = append(append(b.deletes, cold.deletes...), warm.deletes...)
	group.Notes = []string{cold.note("cold"), warm.note("warm")}
	return group
}

// life makes, uses and deletes one sandbox after another.
type life struct {
	server  *server
	now     created
	begin   time.Time
	creates []phases
	deletes []float64 // ms
}

// contenders are a pair that shares each round's sandbox: the first takes the time to READY, the second adds an exec.
func (l *life) contenders(ready, output, want string, argv []string) []harness.Contender {
	return []harness.Contender{
		{Name: ready, Sample: func(ctx context.Context) (_ float64, err error) {
			l.begin = time.Now()
			l.now, err = l.server.create(ctx)
			took := harness.InMillis(time.Since(l.begin))
			l.creates = append(l.creates, l.now.Phases)
			return took, err
		}},
		{Name: output, Sample: func(ctx context.Context) (float64, error) {
			err := l.server.exec(ctx, l.now.ID, want, argv...)
			return harness.InMillis(time.Since(l.begin)), err
		}, After: func(ctx context.Context) error {
			took, err := harness.Millis(func() error { return l.server.DeleteSandbox(ctx, l.now.ID) })
			if err == nil {
				l.deletes = append(l.deletes, took)
				err = l.server.rest(ctx)
			}
			return err
		}},
	}
}

// note is what the server says of its creates.
func (l *life) note(name string) string {
	median := func(phase func(phases) float64) string {
		var samples []float64
		for _, p := range l.creates {
			samples = append(samples, phase(p))
		}
		return harness.Number(harness.Summarize(samples).Median)
	}
	return fmt.Sprintf("Cay %s says of itself, in the median: queue %s, schedule %s, boot %s, total %s ms", name,
		median(func(p phases) float64 { return p.Queue }), median(func(p phases) float64 { return p.Schedule }),
		median(func(p phases) float64 { return p.Boot }), median(func(p phases) float64 { return p.Total }))
}

func runName(name string) string {
	switch name {
	case "docker", "docker+runsc", "podman":
		return name + " run --rm"
	case peer.NativeName, "bwrap":
		return name
	}
	return name + " run"
}
