package cay_test

import (
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestTheDiagramOfJobsAndTheirTransitionsAgreeOnEveryPair(t *testing.T) {
	agree(t, "States of a job", cay.JobStatuses, cay.JobStatus.CanBecome)
}

func TestAJobMovesWhereItMayAndNamesTheStateFoundElsewhere(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, from := range cay.JobStatuses {
		for _, to := range cay.JobStatuses {
			j := cay.Job{ID: "job_1", Status: from, LeaseOwner: "me", LeaseUntil: at}
			err := j.Transition(to, at)
			if from.CanBecome(to) {
				if err != nil || j.Status != to {
					t.Errorf("%s → %s: %s, %v", from, to, j.Status, err)
				}
				if held := j.LeaseOwner != "" || !j.LeaseUntil.IsZero(); held == to.Finished() {
					t.Errorf("%s → %s: leased %v", from, to, held)
				}
				continue
			}
			e, ok := err.(*cay.Error)
			if !ok || e.Reason != cay.Conflict || e.Extra["status"] != string(from) || j.Status != from {
				t.Errorf("%s → %s: %s, %v", from, to, j.Status, err)
			}
		}
	}
}

func TestAJobThatIsTriedAgainHasNotStarted(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	j := cay.Job{Status: cay.JobQueued}
	for i, step := range []struct {
		to              cay.JobStatus
		started, finish bool
	}{{cay.JobRunning, true, false}, {cay.JobQueued, false, false}, {cay.JobRunning, true, false}, {cay.JobSuccess, true, true}} {
		if err := j.Transition(step.to, at.Add(time.Duration(i)*time.Second)); err != nil {
			t.Fatal(err)
		}
		if !j.StartedAt.IsZero() != step.started || !j.FinishedAt.IsZero() != step.finish {
			t.Errorf("step %d: %s, started at %v, finished at %v", i, j.Status, j.StartedAt, j.FinishedAt)
		}
	}
	if ran := j.FinishedAt.Sub(j.StartedAt); ran != time.Second {
		t.Errorf("it ran for %v, want the second attempt's second", ran)
	}
}
