//go:build measure

package agent_test

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/wire/guestv1"
)

// Figures, not promises: a program in a warm context and one of its own, beside a start of the interpreter by the machine itself and an
// exec of it.
func TestMeasureCode(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		c := n.open("python")
		c.run("1")
		for what, f := range map[string]func(){
			"warm context":         func() { c.run("print(1)") },
			"program":              func() { n.program("python", "print(1)") },
			"exec of python":       func() { n.run(&guestv1.Start{Argv: []string{"/usr/bin/python3", "-c", "print(1)"}}) },
			"exec of true":         func() { n.run(&guestv1.Start{Argv: []string{"/bin/true"}}) },
			"natively on the host": func() { exec.Command("/usr/bin/python3", "-c", "print(1)").Run() },
		} {
			var took []time.Duration
			for range 40 {
				began := time.Now()
				f()
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			t.Logf("%s: min %v p50 %v p90 %v", what, took[0], took[20], took[36])
		}
	})
}
