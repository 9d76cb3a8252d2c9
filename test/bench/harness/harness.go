// Package harness measures contenders beside each other: it takes their samples in turn, sums them up, holds them against what
// was promised and prints the outcome. It knows nothing of what is measured; package peer and the groups of test/bench do.
package harness

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Contender is one thing that is measured in a group.
type Contender struct {
	Name string
	// Sample takes one sample, in the unit of the group.
	Sample func(ctx context.Context) (float64, error)
	// After brings the machine back to rest after a sample; it is not measured. It may be nil.
	After func(ctx context.Context) error
}

// Plan says how many samples are taken.
type Plan struct {
	Rounds int           // at most this many samples of each contender, the warm-up not counted
	Budget time.Duration // no round begins after this, but for the first Least ones
	Least  int           // rounds that are run whatever they take
	Warmup bool          // one round is thrown away first
}

// Series is what a contender came to.
type Series struct {
	Name    string    `json:"name"`
	Samples []float64 `json:"samples"`
	Summary
	// Fault says why there are no samples, or no further ones: not on the machine, or failed.
	Fault string `json:"fault,omitempty"`
}

// Absent is the series of a contender that cannot be measured here.
func Absent(name, why string) Series { return Series{Name: name, Fault: why} }

// Interleave takes samples A B C A B C …, so that whatever else the machine is doing disturbs all alike. A contender that fails is
// left out from then on and its series says why; the others go on. It returns early, with what there is, when ctx ends.
func Interleave(ctx context.Context, plan Plan, contenders []Contender) []Series {
	series := make([]Series, len(contenders))
	for i, c := range contenders {
		series[i].Name = c.Name
	}
	begin := time.Now()
	first := 0
	if plan.Warmup {
		first = -1
	}
	for round := first; round < plan.Rounds; round++ {
		if round >= plan.Least && time.Since(begin) > plan.Budget {
			break
		}
		for i, c := range contenders {
			s := &series[i]
			if s.Fault != "" || ctx.Err() != nil {
				continue
			}
			value, err := c.Sample(ctx)
			if c.After != nil {
				err = errors.Join(err, c.After(ctx))
			}
			switch {
			case ctx.Err() != nil: // what was under way was cut off and says nothing
			case err != nil:
				s.Fault = err.Error()
			case round >= 0:
				s.Samples = append(s.Samples, value)
			}
		}
	}
	for i := range series {
		s := &series[i]
		s.Summary = Summarize(s.Samples)
		if s.N == 0 && s.Fault == "" {
			s.Fault = fmt.Sprintf("not measured: %v", context.Cause(ctx))
		}
	}
	return series
}

// Millis times do, in milliseconds.
func Millis(do func() error) (float64, error) {
	begin := time.Now()
	err := do()
	return InMillis(time.Since(begin)), err
}

// InMillis is d in milliseconds.
func InMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
