package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cayhq/cay/test/bench/harness"
	"github.com/cayhq/cay/test/bench/peer"
)

// Contenders that targets are about.
const (
	cayAPI     = "Cay, API"
	agentAlone = "Cay's agent alone"
	runscExec  = "runsc exec"
	dockerExec = "docker exec"
)

// execs measures a command in a sandbox that is up, from the call to the complete answer.
func (b *bench) execs(ctx context.Context, name, title string, budget time.Duration, want string, argv ...string) harness.Group {
	contenders := []harness.Contender{{Name: cayAPI, Sample: func(ctx context.Context) (float64, error) {
		return harness.Millis(func() error { return b.cold.exec(ctx, b.box, want, argv...) })
	}}}
	group := harness.Group{Name: name, Title: title, Unit: "ms", Base: cayAPI}
	for _, p := range b.peers {
		execer, ok := p.Peer.(peer.Execer)
		if !ok {
			continue
		}
		if p.absent != "" {
			group.Series = append(group.Series, harness.Absent(execName(p.Name()), p.absent))
			continue
		}
		contenders = append(contenders, harness.Contender{Name: execName(p.Name()), Sample: func(ctx context.Context) (float64, error) {
			return harness.Millis(func() error {
				var out strings.Builder
				if err := execer.Exec(ctx, &out, argv...); err != nil {
					return err
				}
				if out.String() != want {
					return fmt.Errorf("%v printed %q", argv, out.String())
				}
				return nil
			})
		}})
	}
	group.Series = append(harness.Interleave(ctx, b.plan(60, budget), contenders), group.Series...)
	return group
}

// execName is the name of a peer's exec in the tables.
func execName(name string) string {
	switch name {
	case peer.AgentName, peer.NativeName:
		return name
	}
	return name + " exec"
}
