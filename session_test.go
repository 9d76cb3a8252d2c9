package cay_test

import (
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestTheDiagramOfSessionsAndTheirTransitionsAgreeOnEveryPair(t *testing.T) {
	agree(t, "States of a session", cay.SessionStatuses, cay.SessionStatus.CanBecome)
}

func TestASessionMovesWhereItMayAndNamesTheStateFoundElsewhere(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, from := range cay.SessionStatuses {
		for _, to := range cay.SessionStatuses {
			s := cay.Session{ID: "ses_1", Status: from}
			err := s.Transition(to, cay.ReasonTTLExpired, at)
			if from.CanBecome(to) {
				if err != nil || s.Status != to || !s.EndedAt.IsZero() != (to == cay.SessionDeleted) {
					t.Errorf("%s → %s: %s, ended at %v, %v", from, to, s.Status, s.EndedAt, err)
				}
				continue
			}
			e, ok := err.(*cay.Error)
			if !ok || e.Reason != cay.Conflict || e.Extra["status"] != string(from) || s.Status != from {
				t.Errorf("%s → %s: %s, %v", from, to, s.Status, err)
			}
		}
	}
}

func TestTheFirstReasonOfASessionsEndStays(t *testing.T) {
	s := cay.Session{Status: cay.SessionActive}
	if err := s.Transition(cay.SessionDeleting, cay.ReasonTTLExpired, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := s.Transition(cay.SessionDeleted, cay.ReasonDeleted, time.Now()); err != nil {
		t.Fatal(err)
	}
	if s.StatusReason != cay.ReasonTTLExpired {
		t.Errorf("the reason is %s", s.StatusReason)
	}
}

func TestASessionIsUsableUntilItEnds(t *testing.T) {
	for _, status := range cay.SessionStatuses {
		s := cay.Session{ID: "ses_1", Status: status, StatusReason: cay.ReasonDeleted}
		want := cay.ErrorReason("")
		if status == cay.SessionDeleting || status == cay.SessionDeleted {
			want = cay.Gone
		}
		if got := cay.ReasonOf(s.Usable()); got != want {
			t.Errorf("%s: %q, want %q", status, got, want)
		}
	}
}
