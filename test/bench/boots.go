package main

import (
	"context"
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
	contenders := append(b.lifeOf(b.cold, coldReady, coldOutput, want, argv), b.lifeOf(b.warm, warmReady, warmOutput, want, argv)...)
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
	return group
}

// lifeOf is a pair of contenders that share each round's sandbox: the first takes the time to READY, the second adds an exec.
func (b *bench) lifeOf(s *server, ready, output, want string, argv []string) []harness.Contender {
	var (
		id    string
		begin time.Time
	)
	return []harness.Contender{
		{Name: ready, Sample: func(ctx context.Context) (_ float64, err error) {
			begin = time.Now()
			id, err = s.create(ctx)
			return harness.InMillis(time.Since(begin)), err
		}},
		{Name: output, Sample: func(ctx context.Context) (float64, error) {
			err := s.exec(ctx, id, want, argv...)
			return harness.InMillis(time.Since(begin)), err
		}, After: func(ctx context.Context) error {
			took, err := harness.Millis(func() error { return s.DeleteSandbox(ctx, id) })
			if err == nil {
				b.deletes = append(b.deletes, took)
				err = s.rest(ctx)
			}
			return err
		}},
	}
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
