package agent_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

// spin uses CPU time, in seconds.
func spin(seconds string) string {
	return "import time\nend = time.process_time() + " + seconds + "\nwhile time.process_time() < end: pass\n"
}

func TestAnExitSaysWhatTheProcessAndItsChildrenUsed(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		program := spin("0.3") + "b = b'x' * (100 << 20)"
		for _, start := range []*guestv1.Start{
			{Argv: []string{"python3", "-c", program}},
			{Shell: "python3 -c \"" + program + "\"; exit 0"}, // in a child, which the shell waits for
		} {
			began := time.Now()
			_, errs, exit := n.run(start)
			most := 2*time.Since(began) + time.Second // the clocks tick, and a shell is one process more
			if used := time.Duration(exit.CpuUs) * time.Microsecond; used < 290*time.Millisecond || used > most {
				t.Errorf("%v: %v of CPU, want 0.3 s; %s", start, used, errs)
			}
			if exit.PeakRssKb < 100<<10 || exit.PeakRssKb > 160<<10 {
				t.Errorf("%v: %d KiB at most, want about 100 MiB", start, exit.PeakRssKb)
			}
		}
		if _, _, exit := n.run(&guestv1.Start{Argv: []string{"nosuchcmd"}}); exit.CpuUs != 0 || exit.PeakRssKb != 0 {
			t.Errorf("what was never run used %v", exit)
		}
	})
}

func TestAStartSaysHowLongItTook(t *testing.T) {
	n := native(t)
	began := time.Now()
	p, r := n.try(&guestv1.Start{Argv: []string{"true"}})
	took := time.Duration(r.GetStarted().GetTookUs()) * time.Microsecond
	if took <= 0 || took > time.Since(began) {
		t.Errorf("the start took %v of %v", took, time.Since(began))
	}
	p.wait()
}

func TestARunInAContextUsedWhatItsInterpreterUsedMeanwhile(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		c := n.open("python")
		first, second := c.run(spin("1")), c.run(spin("0.1")+"print(time.process_time())")
		total, err := strconv.ParseFloat(strings.TrimSpace(second.out), 64)
		if err != nil {
			t.Fatalf("%q %q", second.out, second.err)
		}
		a, b := time.Duration(first.exit.CpuUs)*time.Microsecond, time.Duration(second.exit.CpuUs)*time.Microsecond
		if a < 950*time.Millisecond || b < 50*time.Millisecond {
			t.Errorf("runs of 1 s and 0.1 s used %v and %v", a, b)
		}
		if all := time.Duration(total * float64(time.Second)); a+b > all+900*time.Millisecond {
			t.Errorf("the runs used %v and %v, all that the interpreter used is %v", a, b, all)
		}
	})
}
