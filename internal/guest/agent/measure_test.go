//go:build measure

package agent_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

// Figures, not promises: they are logged for comparison: go test -tags measure -v -run Measure.
func TestMeasureExecAndThroughput(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		for _, s := range []func() *guestv1.Start{
			func() *guestv1.Start { return &guestv1.Start{Argv: []string{"/bin/true"}} },
			func() *guestv1.Start { return &guestv1.Start{Shell: "true"} },
		} {
			var starts, ends []time.Duration
			for range 60 {
				began := time.Now()
				p := n.start(s())
				starts = append(starts, time.Since(began))
				<-p.done
				ends = append(ends, time.Since(began))
				p.wait()
			}
			slices.Sort(starts)
			slices.Sort(ends)
			t.Logf("%v: started p50 %v, ended min %v p50 %v p90 %v", s(), starts[len(starts)/2], ends[0], ends[len(ends)/2], ends[len(ends)*9/10])
		}
		var pings []time.Duration
		for range 100 {
			began := time.Now()
			n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Ping{Ping: &guestv1.Ping{}}})
			pings = append(pings, time.Since(began))
		}
		slices.Sort(pings)
		t.Logf("ping p50 %v", pings[50])
		t.Logf("a pipe inside: %s", n.sh("bash -c 'time (head -c 500M /dev/zero | cat >/dev/null)' 2>&1 | grep real"))
		began := time.Now()
		p := n.shell("sleep .2; head -c 500M /dev/zero")
		p.mu.Lock()
		p.unkept = true
		p.mu.Unlock()
		p.wait()
		t.Logf("500 MiB of output in %v: %.0f MB/s, %d runs", time.Since(began), 524.288/time.Since(began).Seconds(), p.runs)

		dir := n.sh("pwd")
		began = time.Now()
		n.upload(&guestv1.WriteFile{Path: dir + "/big"}, &zeros{left: 200 << 20})
		t.Logf("200 MiB up: %.0f MB/s", 209.7/time.Since(began).Seconds())
		began = time.Now()
		n.download(&guestv1.ReadFile{Path: dir + "/big", Length: -1}, &discard{})
		t.Logf("200 MiB down: %.0f MB/s", 209.7/time.Since(began).Seconds())
	})
}
