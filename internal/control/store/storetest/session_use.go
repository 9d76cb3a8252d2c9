package storetest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

func sessionRace(t *testing.T, s store.Store) {
	for range 20 {
		ses := insertSession(t, s, Session(epoch))
		var ok, refused atomic.Int64
		together(2, func(int) {
			switch err := s.InsertSandbox(context.Background(), sessionSandbox(ses, false), 0, 0); cay.ReasonOf(err) {
			case "":
				ok.Add(1)
			case cay.Conflict:
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
		if ok.Load() != 1 || refused.Load() != 1 {
			t.Fatalf("%d went in and %d were refused", ok.Load(), refused.Load())
		}
	}
}

func sessionSharing(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	put := func(shared bool) (*cay.Sandbox, error) {
		sb := sessionSandbox(ses, shared)
		return sb, s.InsertSandbox(t.Context(), sb, 0, 0)
	}
	refused := func(shared bool, by ...cay.ID) {
		t.Helper()
		_, err := put(shared)
		wantReason(t, err, cay.Conflict)
		var e *cay.Error
		if errors.As(err, &e); !slices.Contains(by, cay.ID(e.Extra["sandbox_id"].(string))) || e.Field != "session_id" {
			t.Errorf("the error names sandbox %v and field %q, want one of %v", e.Extra["sandbox_id"], e.Field, by)
		}
	}
	a, err := put(true)
	must(t, err)
	b, err := put(true)
	must(t, err)
	refused(false, a.ID, b.ID)
	end(t, s, a.ID, epoch)
	refused(false, b.ID)
	end(t, s, b.ID, epoch)
	alone, err := put(false)
	must(t, err)
	refused(true, alone.ID)
	refused(false, alone.ID)
	mutate(t, s, alone.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Terminating, cay.ReasonDeleted, epoch)) })
	refused(false, alone.ID) // until it has ended
	mutate(t, s, alone.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Terminated, "", epoch)) })
	_, err = put(false)
	must(t, err)
}

func sessionHelpers(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	helper := func() *cay.Sandbox {
		sb := sessionSandbox(ses, false)
		sb.Spec.ManagedBy = ses.ID
		return sb
	}
	insert(t, s, helper())
	insert(t, s, sessionSandbox(ses, false))
	insert(t, s, helper())
	wantReason(t, s.InsertSandbox(t.Context(), sessionSandbox(ses, true), 0, 0), cay.Conflict)
}

func sessionRefusals(t *testing.T, s store.Store) {
	foreign := Session(epoch)
	foreign.ProjectID = "prj_b"
	insertSession(t, s, foreign)
	for _, id := range []cay.ID{foreign.ID, cay.NewID(cay.PrefixSession)} {
		sb := Sandbox(epoch)
		sb.Spec.SessionID = id
		err := s.InsertSandbox(t.Context(), sb, 0, 0)
		wantReason(t, err, cay.Unprocessable)
		var e *cay.Error
		if errors.As(err, &e); e.Field != "session_id" {
			t.Errorf("the error names the field %q", e.Field)
		}
		_, err = s.Sandbox(t.Context(), sb.ID)
		wantReason(t, err, cay.NotFound)
	}
	for status, want := range map[cay.SessionStatus]cay.ErrorReason{
		cay.SessionActive: "", cay.SessionArchiving: cay.NotReady, cay.SessionArchived: "", cay.SessionRestoring: "",
		cay.SessionDeleting: cay.Gone, cay.SessionDeleted: cay.Gone,
	} {
		ses := Session(epoch)
		ses.Status = status
		insertSession(t, s, ses)
		if got := cay.ReasonOf(s.InsertSandbox(t.Context(), sessionSandbox(ses, false), 0, 0)); got != want {
			t.Errorf("%s: %q, want %q", status, got, want)
		}
	}
}

func sessionUse(t *testing.T, s store.Store) {
	ses := Session(epoch)
	ses.WorkerID = "wrk_1"
	insertSession(t, s, ses)
	sb := sessionSandbox(ses, false)
	sb.CreatedAt = epoch.Add(30 * time.Minute)
	insert(t, s, sb)
	if sb.NearWorker != "wrk_1" {
		t.Errorf("the sandbox is near %q, want the volume's worker", sb.NearWorker)
	}
	kept, err := s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, kept, sb)
	got, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	if !got.LastUsedAt.Equal(sb.CreatedAt) || !got.ExpiresAt.Equal(sb.CreatedAt.Add(ses.TTL)) {
		t.Errorf("last used at %v, expires at %v", got.LastUsedAt, got.ExpiresAt)
	}
	wantReason(t, s.InsertSandbox(t.Context(), func() *cay.Sandbox {
		sb := sessionSandbox(ses, false)
		sb.CreatedAt = epoch.Add(time.Hour)
		return sb
	}(), 0, 0), cay.Conflict)
	again, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	equalSessions(t, again, got) // what was refused is no use
}

func sessionLastUse(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	sb := insert(t, s, sessionSandbox(ses, false))
	end(t, s, sb.ID, epoch.Add(2*time.Hour))
	got, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	if !got.LastUsedAt.Equal(epoch.Add(2*time.Hour)) || !got.ExpiresAt.Equal(epoch.Add(3*time.Hour)) {
		t.Errorf("last used at %v, expires at %v", got.LastUsedAt, got.ExpiresAt)
	}
	sb = insert(t, s, sessionSandbox(ses, false))
	deleting := mutateSession(t, s, ses.ID, func(ses *cay.Session) { must(t, ses.Transition(cay.SessionDeleting, cay.ReasonDeleted, epoch)) })
	end(t, s, sb.ID, epoch.Add(5*time.Hour))
	got, err = s.Session(t.Context(), ses.ID)
	must(t, err)
	equalSessions(t, got, deleting)
}

func sessionActivity(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	sb := sessionSandbox(ses, false)
	must(t, s.InsertSandbox(t.Context(), sb, 0, 0))
	for _, at := range []time.Time{epoch.Add(5 * time.Minute), epoch.Add(3 * time.Minute)} { // what is told late moves nothing back
		sb.LastActiveAt = at
		must(t, s.TouchSandboxes(t.Context(), []*cay.Sandbox{sb}))
	}
	got, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	if want := epoch.Add(5 * time.Minute); !got.LastUsedAt.Equal(want) || !got.ExpiresAt.Equal(want.Add(ses.TTL)) {
		t.Errorf("last used at %v, expires at %v", got.LastUsedAt, got.ExpiresAt)
	}
}

func sessionsDue(t *testing.T, s store.Store) {
	now := epoch.Add(24 * time.Hour)
	names := map[cay.ID]string{}
	make := func(name string, edit func(*cay.Session)) *cay.Session {
		ses := Session(now)
		edit(ses)
		names[insertSession(t, s, ses).ID] = name
		return ses
	}
	expired := func(ses *cay.Session) { ses.ExpiresAt = now.Add(-time.Minute) }
	idle := func(ses *cay.Session) { ses.WorkerID, ses.LastUsedAt = "wrk_1", now.Add(-2*time.Hour) }
	status := func(status cay.SessionStatus) func(*cay.Session) {
		return func(ses *cay.Session) { ses.Status = status }
	}
	make("fresh", func(*cay.Session) {})
	make("archived", status(cay.SessionArchived))
	make("deleted", func(ses *cay.Session) { expired(ses); ses.Status, ses.EndedAt = cay.SessionDeleted, now })
	make("idle without a volume", func(ses *cay.Session) { ses.LastUsedAt = now.Add(-2 * time.Hour) })
	make("expired", expired)
	make("expired and archived", func(ses *cay.Session) { expired(ses); ses.Status = cay.SessionArchived })
	make("idle", idle)
	make("archiving", status(cay.SessionArchiving))
	make("restoring", status(cay.SessionRestoring))
	make("deleting", status(cay.SessionDeleting))

	// Whoever uses one keeps it; the sandbox is inserted first, since that is a use.
	used := make("expired and in use", func(*cay.Session) {})
	insert(t, s, sessionSandbox(used, false))
	mutateSession(t, s, used.ID, func(ses *cay.Session) { expired(ses); idle(ses) })
	awaited := make("expired and awaited by a job", func(*cay.Session) {})
	sessionJob(t, s, awaited, 0, false)
	mutateSession(t, s, awaited.ID, func(ses *cay.Session) { expired(ses); idle(ses) })
	served := make("expired but for what serves it", func(*cay.Session) {})
	helper := sessionSandbox(served, false)
	helper.Spec.ManagedBy = served.ID
	insert(t, s, helper)
	mutateSession(t, s, served.ID, expired)

	due := func(idleBefore time.Time, limit int) (got []string) {
		t.Helper()
		items, err := s.DueSessions(t.Context(), now, idleBefore, limit)
		must(t, err)
		for _, ses := range items {
			got = append(got, names[ses.ID])
		}
		return got
	}
	always := []string{"archiving", "deleting", "expired", "expired and archived", "expired but for what serves it", "restoring"}
	if got := slices.Sorted(slices.Values(due(time.Time{}, 100))); !slices.Equal(got, always) {
		t.Errorf("due are %q, want %q", got, always)
	}
	if got := slices.Sorted(slices.Values(due(now.Add(-time.Hour), 100))); !slices.Equal(got, slices.Sorted(slices.Values(append(always, "idle")))) {
		t.Errorf("with idle ones due are %q", got)
	}
	for _, name := range due(now.Add(-time.Hour), 4) {
		if name == "archiving" || name == "deleting" || name == "restoring" {
			t.Errorf("%s comes before others", name)
		}
	}
}

func managedSandboxes(t *testing.T, s store.Store) {
	managed := Sandbox(epoch)
	managed.Spec.ManagedBy = cay.NewID(cay.PrefixJob)
	must(t, s.InsertSandbox(t.Context(), managed, 1, 0))
	own := Sandbox(epoch)
	must(t, s.InsertSandbox(t.Context(), own, 1, 0))
	more := Sandbox(epoch)
	more.Spec.ManagedBy = managed.Spec.ManagedBy
	must(t, s.InsertSandbox(t.Context(), more, 1, 0)) // nor is it bound as they are
	wantReason(t, s.InsertSandbox(t.Context(), Sandbox(epoch), 1, 0), cay.QuotaExceeded)
	for _, ascending := range []bool{true, false} {
		items, _, err := s.ListSandboxes(t.Context(), project, cay.SandboxQuery{Limit: 10, Ascending: ascending})
		must(t, err)
		if len(items) != 1 || items[0].ID != own.ID {
			t.Errorf("listed are %d", len(items))
		}
		items, _, err = s.ListSandboxes(t.Context(), project, cay.SandboxQuery{Limit: 10, Ascending: ascending, Managed: true})
		must(t, err)
		if len(items) != 3 {
			t.Errorf("with managed ones listed are %d, want 3", len(items))
		}
	}
}

func sandboxesOfSession(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	insert(t, s, Sandbox(epoch))
	sb := insert(t, s, sessionSandbox(ses, false))
	for _, ascending := range []bool{true, false} {
		items, _, err := s.ListSandboxes(t.Context(), project, cay.SandboxQuery{Limit: 10, Ascending: ascending, SessionID: ses.ID})
		must(t, err)
		if len(items) != 1 || items[0].ID != sb.ID || items[0].Spec.SessionID != ses.ID {
			t.Errorf("the session finds %v", items)
		}
	}
}

func sandboxOnce(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	wantReason(t, s.InsertSandbox(t.Context(), sb, 1, 1), cay.AlreadyExists) // also where a bound is met
}

func workerMounts(t *testing.T, s store.Store) {
	w := cay.Worker{ID: cay.NewID(cay.PrefixWorker), HeartbeatAt: epoch}
	for _, can := range []bool{false, true, false} {
		w.CanMount = can
		must(t, s.PutWorker(t.Context(), w))
		loads, err := s.Workers(t.Context())
		must(t, err)
		if loads[0].CanMount != can {
			t.Errorf("the worker can mount: %v, want %v", loads[0].CanMount, can)
		}
	}
}
