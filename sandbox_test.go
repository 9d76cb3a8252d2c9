package cay_test

import (
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestTheDiagramAndTheTransitionsAgreeOnEveryPair(t *testing.T) {
	agree(t, "States of a sandbox", cay.Statuses, cay.CanTransition)
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
