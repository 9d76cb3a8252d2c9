package cay_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// edges is ARCHITECTURE.md's diagram as a test reads it. The drawing has three rows: the line of life, the way to PAUSED and back, and
// what leads down from each.
func edges(t *testing.T) map[[2]cay.Status]bool {
	t.Helper()
	doc, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(doc), "## States of a sandbox")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no section on the states of a sandbox")
	}
	_, drawing, ok := strings.Cut(section, "```\n")
	if !ok {
		t.Fatal("the section has no drawing")
	}
	drawing, _, _ = strings.Cut(drawing, "```")
	lines := strings.Split(drawing, "\n")
	found := map[[2]cay.Status]bool{}
	names := regexp.MustCompile(`[A-Z]+`)
	column := map[cay.Status]int{}
	for _, line := range lines {
		at := names.FindAllStringIndex(line, -1)
		for i, span := range at {
			name := cay.Status(line[span[0]:span[1]])
			column[name] = len([]rune(line[:span[0]])) // the drawing is not ASCII
			if i == 0 {
				continue
			}
			before := cay.Status(line[at[i-1][0]:at[i-1][1]])
			arrow := line[at[i-1][1]:span[0]]
			if strings.Contains(arrow, ">") {
				found[[2]cay.Status{before, name}] = true
			}
			if strings.Contains(arrow, "<") {
				found[[2]cay.Status{name, before}] = true
			}
		}
		// A line that begins with └ and ends in an arrow: everything whose stem meets it leads to what stands at its head.
		if start := strings.IndexRune(line, '└'); start >= 0 {
			head := cay.Status(names.FindString(line))
			runes := []rune(line)
			for x, r := range runes {
				if r != '└' && r != '┴' {
					continue
				}
				if from := above(column, x); from != "" && from != head {
					found[[2]cay.Status{from, head}] = true
				}
			}
		}
	}
	return found
}

// above is the status whose name stands over column x.
func above(column map[cay.Status]int, x int) cay.Status {
	for name, start := range column {
		if x >= start && x < start+len(name) {
			return name
		}
	}
	return ""
}

func TestTheDiagramAndTheTransitionsAgreeOnEveryPair(t *testing.T) {
	drawn := edges(t)
	if len(drawn) == 0 {
		t.Fatal("nothing was read from the diagram")
	}
	for _, from := range cay.Statuses {
		for _, to := range cay.Statuses {
			if got, want := drawn[[2]cay.Status{from, to}], cay.CanTransition(from, to); got != want {
				t.Errorf("%s → %s: drawn %v, possible %v", from, to, got, want)
			}
		}
	}
}

func TestATransitionHappensWhereItMayAndNamesTheStateFoundElsewhere(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, from := range cay.Statuses {
		for _, to := range cay.Statuses {
			sb := cay.Sandbox{ID: "sbx_1", Status: from, Spec: cay.SandboxSpec{TTL: time.Hour}}
			err := sb.Transition(to, cay.ReasonDeleted, at)
			if cay.CanTransition(from, to) {
				if err != nil || sb.Status != to {
					t.Errorf("%s → %s: %s, %v", from, to, sb.Status, err)
				}
				continue
			}
			e, ok := err.(*cay.Error)
			if !ok || e.Reason != cay.Conflict || e.Extra["status"] != string(from) || sb.Status != from {
				t.Errorf("%s → %s: %s, %v", from, to, sb.Status, err)
			}
		}
	}
}

func TestTheTTLStandsStillWhilePaused(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	sb := cay.Sandbox{Status: cay.Creating, Spec: cay.SandboxSpec{TTL: time.Hour}}
	for _, step := range []struct {
		to    cay.Status
		after time.Duration
	}{{cay.Ready, 0}, {cay.Paused, 20 * time.Minute}, {cay.Ready, 10 * time.Hour}} {
		at = at.Add(step.after)
		if err := sb.Transition(step.to, "", at); err != nil {
			t.Fatal(err)
		}
	}
	if left := sb.ExpiresAt.Sub(at); left != 40*time.Minute {
		t.Errorf("%v are left, want 40 minutes", left)
	}
	if !sb.PausedAt.IsZero() || !sb.LastActiveAt.Equal(at) {
		t.Errorf("paused at %v, last active at %v", sb.PausedAt, sb.LastActiveAt)
	}
}

func TestTheFirstReasonOfAnEndStays(t *testing.T) {
	sb := cay.Sandbox{Status: cay.Ready}
	if err := sb.Transition(cay.Terminating, cay.ReasonOOM, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := sb.Transition(cay.Terminated, cay.ReasonDeleted, time.Now()); err != nil {
		t.Fatal(err)
	}
	if sb.StatusReason != cay.ReasonOOM || sb.EndedAt.IsZero() {
		t.Errorf("reason %s, ended at %v", sb.StatusReason, sb.EndedAt)
	}
}

func TestWhatIsNotReadySaysWhy(t *testing.T) {
	for status, want := range map[cay.Status]cay.ErrorReason{
		cay.Ready: "", cay.Creating: cay.NotReady, cay.Paused: cay.SandboxPaused,
		cay.Terminating: cay.Gone, cay.Terminated: cay.Gone, cay.Failed: cay.Gone,
	} {
		sb := cay.Sandbox{ID: "sbx_1", Status: status, StatusReason: cay.ReasonOOM}
		if got := cay.ReasonOf(sb.Usable()); got != want {
			t.Errorf("%s: %q, want %q", status, got, want)
		}
	}
}
