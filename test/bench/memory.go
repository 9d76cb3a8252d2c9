package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/test/bench/harness"
)

// watch follows the resident memory of server and node while streams run.
type watch struct {
	server *server
	growth map[testkit.Role][]float64 // MB over the value before, one for each stream
}

func newWatch(s *server) *watch {
	return &watch{s, map[testkit.Role][]float64{}}
}

const watchEvery = 25 * time.Millisecond

// during begins to watch; the function it returns ends that.
func (w *watch) during() (end func()) {
	stop := make(chan struct{})
	var done sync.WaitGroup
	for _, role := range []testkit.Role{testkit.RoleServer, testkit.RoleNode} {
		pid, err := w.server.PID(role)
		if err != nil {
			continue // the series is empty, which the table shows
		}
		before, err := testkit.RSS(pid)
		if err != nil {
			continue
		}
		i := len(w.growth[role])
		w.growth[role] = append(w.growth[role], 0)
		samples := w.growth[role]
		done.Go(func() {
			tick := time.NewTicker(watchEvery)
			defer tick.Stop()
			for {
				if now, err := testkit.RSS(pid); err == nil {
					samples[i] = max(samples[i], float64(now-before)/1e6)
				}
				select {
				case <-tick.C:
				case <-stop:
					return
				}
			}
		})
	}
	return func() {
		close(stop)
		done.Wait()
	}
}

// flatGrowth names the group of the growth.
const flatGrowth = "stream-memory"

func (w *watch) group() harness.Group {
	return harness.Group{
		Name: flatGrowth, Title: "Growth of resident memory during a stream", Unit: "MB", Series: []harness.Series{
			harness.NewSeries(string(testkit.RoleServer), w.growth[testkit.RoleServer]),
			harness.NewSeries(string(testkit.RoleNode), w.growth[testkit.RoleNode]),
		},
	}
}

const (
	idleSandboxes = 4
	idleCay       = "Cay"
)

// idleSandbox is what an idle sandbox adds to the memory of an idle server: the proportional set size of all processes of the
// server and its sandboxes, with some sandboxes less without, for each sandbox.
func (b *bench) idleSandbox(ctx context.Context) harness.Group {
	group := harness.Group{Name: "idle", Title: fmt.Sprintf("Memory (PSS) of an idle sandbox, one of %d", idleSandboxes), Unit: "MB"}
	value, processes, err := b.measureIdle(ctx)
	if err != nil {
		group.Series = []harness.Series{harness.Absent(idleCay, err.Error())}
		return group
	}
	group.Series = []harness.Series{harness.NewSeries(idleCay, []float64{value})}
	group.Notes = []string{fmt.Sprintf("%.1f processes for each sandbox", processes)}
	return group
}

func (b *bench) measureIdle(ctx context.Context) (mb, processes float64, err error) {
	s := b.cold
	if err := s.rest(ctx); err != nil {
		return 0, 0, err
	}
	before, processesBefore, err := s.pss()
	if err != nil {
		return 0, 0, err
	}
	var ids []string
	defer func() {
		for _, id := range ids {
			if err == nil {
				err = s.DeleteSandbox(ctx, id)
			}
		}
	}()
	for range idleSandboxes {
		made, err := s.create(ctx)
		if err != nil {
			return 0, 0, err
		}
		ids = append(ids, made.ID)
	}
	if err := s.rest(ctx); err != nil {
		return 0, 0, err
	}
	after, processesAfter, err := s.pss()
	if err != nil {
		return 0, 0, err
	}
	return float64(after-before) / 1e6 / idleSandboxes, float64(processesAfter-processesBefore) / idleSandboxes, nil
}

// pss adds up the proportional set sizes, in bytes, of the server's processes and its sandboxes'.
func (s *server) pss() (total int64, processes int, err error) {
	for _, p := range s.Owned() {
		rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.PID))
		if err != nil {
			return 0, 0, fmt.Errorf("read the memory of %v: %w", p, err)
		}
		n, err := parsePSS(string(rollup))
		if err != nil {
			return 0, 0, fmt.Errorf("read the memory of %v: %w", p, err)
		}
		total += n
		processes++
	}
	return total, processes, nil
}

func parsePSS(rollup string) (int64, error) {
	for line := range strings.Lines(rollup) {
		if value, ok := strings.CutPrefix(line, "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no Pss in %q", rollup)
}
