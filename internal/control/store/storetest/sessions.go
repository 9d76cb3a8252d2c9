package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

var sessionTests = suite{
	"a session comes back as it was written":                              sessionRoundTrip,
	"a change of a session that fails leaves the row as it was":           sessionFailedChange,
	"a session's name is taken once among those that have not ended":      sessionNames,
	"the bound on sessions holds against creates at the same time":        sessionBound,
	"lists of sessions page and filter, and leave out what has ended":     sessionLists,
	"of two sandboxes at once for one session exactly one goes in":        sessionRace,
	"sandboxes that share a session go in together, others do not":        sessionSharing,
	"what serves a session itself neither counts nor asks":                sessionHelpers,
	"a sandbox of a session that cannot be had is refused by name":        sessionRefusals,
	"a sandbox notes the use of its session and where the volume is":      sessionUse,
	"the end of a sandbox is the last use of its session":                 sessionLastUse,
	"an active sandbox uses its session":                                  sessionActivity,
	"a change of a session sees who uses it":                              sessionUsersSeen,
	"the sweeper is given sessions that are expired, idle, or on the way": sessionsDue,
	"managed sandboxes are not listed or counted unless asked for":        managedSandboxes,
	"lists of sandboxes filter by session":                                sandboxesOfSession,
	"a sandbox is inserted once":                                          sandboxOnce,
	"a purge removes sessions that ended long ago":                        sessionPurge,
	"a worker that can mount volumes says so":                             workerMounts,
}

// Session is an active session, made at the time, for tests.
func Session(at time.Time) *cay.Session {
	return &cay.Session{
		ID: cay.NewID(cay.PrefixSession), ProjectID: project, Status: cay.SessionActive, Metadata: map[string]string{}, DiskGB: 1, TTL: time.Hour,
		CreatedAt: at, LastUsedAt: at, ExpiresAt: at.Add(time.Hour), Version: 1,
	}
}

// sessionSandbox is a sandbox that uses a session.
func sessionSandbox(ses *cay.Session, shared bool) *cay.Sandbox {
	sb := Sandbox(epoch)
	sb.ProjectID, sb.Spec.SessionID, sb.Spec.SessionShared = ses.ProjectID, ses.ID, shared
	return sb
}

func insertSession(t tester, s store.Store, ses *cay.Session) *cay.Session {
	t.Helper()
	must(t, s.InsertSession(context.Background(), ses, 0))
	return ses
}

func mutateSession(t tester, s store.Store, id cay.ID, change func(*cay.Session)) *cay.Session {
	t.Helper()
	ses, err := s.MutateSession(context.Background(), id, func(ses *cay.Session, _ []*cay.Sandbox) error { change(ses); return nil })
	must(t, err)
	return ses
}

// end brings a sandbox, which has to be CREATING, to its end.
func end(t tester, s store.Store, id cay.ID, at time.Time) {
	t.Helper()
	_, err := s.MutateSandbox(context.Background(), id, func(sb *cay.Sandbox) ([]cay.Event, error) {
		sb.Op = cay.OpNone
		return nil, sb.Transition(cay.Failed, cay.ReasonBootFailed, at)
	})
	must(t, err)
}

func equalSessions(t tester, got, want *cay.Session) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", *got), fmt.Sprintf("%+v", *want); g != w {
		t.Fatalf("got  %s\nwant %s", g, w)
	}
}

func sessionRoundTrip(t *testing.T, s store.Store) {
	ses := Session(epoch)
	ses.Name, ses.Metadata = "work", map[string]string{`a."b'`: "ü日本"}
	insertSession(t, s, ses)
	got, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	equalSessions(t, got, ses)
	changed := mutateSession(t, s, ses.ID, func(ses *cay.Session) {
		must(t, ses.Transition(cay.SessionDeleting, cay.ReasonTTLExpired, epoch))
		must(t, ses.Transition(cay.SessionDeleted, "", epoch.Add(time.Second)))
		ses.WorkerID, ses.LastUsedAt, ses.ExpiresAt = "wrk_1", epoch.Add(time.Minute), epoch.Add(2*time.Minute)
		ses.DiskGB, ses.TTL, ses.Metadata = 2.5, 3*time.Nanosecond, map[string]string{"k": "v"}
		ses.ArchiveKey, ses.ArchiveDigest, ses.ArchiveBytes = "a/key", "abc", 7
	})
	if changed.Version != 2 {
		t.Errorf("version is %d after one change, want 2", changed.Version)
	}
	got, err = s.Session(t.Context(), ses.ID)
	must(t, err)
	equalSessions(t, got, changed)
	_, err = s.Session(t.Context(), cay.NewID(cay.PrefixSession))
	wantReason(t, err, cay.NotFound)
	_, err = s.MutateSession(t.Context(), cay.NewID(cay.PrefixSession), func(*cay.Session, []*cay.Sandbox) error { return nil })
	wantReason(t, err, cay.NotFound)
}

func sessionFailedChange(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	refusal := errors.New("no")
	got, err := s.MutateSession(t.Context(), ses.ID, func(ses *cay.Session, _ []*cay.Sandbox) error {
		ses.WorkerID = "half done"
		return refusal
	})
	if !errors.Is(err, refusal) {
		t.Fatalf("got %v, want the change's own error", err)
	}
	equalSessions(t, got, ses)
	read, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	equalSessions(t, read, ses)
}

func sessionNames(t *testing.T, s store.Store) {
	named := func(of cay.ID) *cay.Session {
		ses := Session(epoch)
		ses.Name, ses.ProjectID = "work", of
		return ses
	}
	first := insertSession(t, s, named(project))
	insertSession(t, s, named("prj_b"))
	err := s.InsertSession(t.Context(), named(project), 0)
	wantReason(t, err, cay.AlreadyExists)
	var e *cay.Error
	if errors.As(err, &e); e.Extra["session_id"] != string(first.ID) || e.Field != "name" {
		t.Errorf("the error names session %v and field %q", e.Extra["session_id"], e.Field)
	}
	mutateSession(t, s, first.ID, func(ses *cay.Session) { must(t, ses.Transition(cay.SessionDeleting, cay.ReasonDeleted, epoch)) })
	insertSession(t, s, named(project))
	insertSession(t, s, Session(epoch))
	insertSession(t, s, Session(epoch)) // no name is no name
}

func sessionBound(t *testing.T, s store.Store) {
	var ok, quota atomic.Int64
	together(20, func(int) {
		switch err := s.InsertSession(context.Background(), Session(epoch), 5); cay.ReasonOf(err) {
		case "":
			ok.Add(1)
		case cay.QuotaExceeded:
			quota.Add(1)
		default:
			t.Error(err)
		}
	})
	if ok.Load() != 5 || quota.Load() != 15 {
		t.Errorf("%d creates went in and %d met the quota, want 5 and 15", ok.Load(), quota.Load())
	}
	items, _, err := s.ListSessions(t.Context(), project, cay.SessionQuery{Limit: 1})
	must(t, err)
	mutateSession(t, s, items[0].ID, func(ses *cay.Session) { must(t, ses.Transition(cay.SessionDeleting, cay.ReasonDeleted, epoch)) })
	must(t, s.InsertSession(t.Context(), Session(epoch), 5))
	foreign := Session(epoch)
	foreign.ProjectID = "prj_b"
	must(t, s.InsertSession(t.Context(), foreign, 5))
}

func sessionLists(t *testing.T, s store.Store) {
	make := func(i int, edit func(*cay.Session)) cay.ID {
		ses := Session(epoch.Add(time.Duration(i) * time.Second))
		edit(ses)
		return insertSession(t, s, ses).ID
	}
	deleted := make(3, func(ses *cay.Session) { ses.Status, ses.Name, ses.EndedAt = cay.SessionDeleted, "work", epoch })
	plain := make(0, func(ses *cay.Session) { ses.Metadata = map[string]string{"a.b": "1"} })
	named := make(1, func(ses *cay.Session) { ses.Name = "work" })
	archived := make(2, func(ses *cay.Session) { ses.Status = cay.SessionArchived })
	make(4, func(ses *cay.Session) { ses.ProjectID = "prj_b" })
	for _, c := range []struct {
		name  string
		query cay.SessionQuery
		want  []cay.ID
	}{
		{"nothing", cay.SessionQuery{}, []cay.ID{archived, named, plain}},
		{"oldest first", cay.SessionQuery{Ascending: true}, []cay.ID{plain, named, archived}},
		{"a name", cay.SessionQuery{Name: "work"}, []cay.ID{named}},
		{"a name of any status", cay.SessionQuery{Name: "work", Statuses: cay.SessionStatuses}, []cay.ID{deleted, named}},
		{"a status", cay.SessionQuery{Statuses: []cay.SessionStatus{cay.SessionArchived, cay.SessionDeleted}}, []cay.ID{deleted, archived}},
		{"metadata", cay.SessionQuery{Metadata: map[string]string{"a.b": "1"}}, []cay.ID{plain}},
		{"a time", cay.SessionQuery{CreatedAfter: epoch.Add(time.Second)}, []cay.ID{archived}},
	} {
		var got []cay.ID
		for c.query.Limit = 2; ; {
			items, next, err := s.ListSessions(t.Context(), project, c.query)
			must(t, err)
			for _, ses := range items {
				got = append(got, ses.ID)
			}
			if c.query.Cursor = next; next == "" {
				break
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s finds %v, want %v", c.name, got, c.want)
		}
	}
}

func sessionUsersSeen(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	see := func(want ...cay.ID) {
		t.Helper()
		ids := func(users []*cay.Sandbox) (ids []cay.ID) {
			for _, sb := range users {
				ids = append(ids, sb.ID)
			}
			return ids
		}
		_, err := s.MutateSession(t.Context(), ses.ID, func(_ *cay.Session, users []*cay.Sandbox) error {
			if got := ids(users); !slices.Equal(got, want) {
				t.Errorf("the change sees %v, want %v", got, want)
			}
			return nil
		})
		must(t, err)
		users, err := s.SessionUsers(t.Context(), ses.ID)
		must(t, err)
		if got := ids(users); !slices.Equal(got, want) {
			t.Errorf("users are %v, want %v", got, want)
		}
	}
	see()
	insert(t, s, Sandbox(epoch))
	sb := insert(t, s, sessionSandbox(ses, false))
	helper := sessionSandbox(ses, true)
	helper.CreatedAt, helper.Spec.ManagedBy = epoch.Add(time.Second), ses.ID
	insert(t, s, helper)
	see(sb.ID, helper.ID)
	end(t, s, sb.ID, epoch)
	see(helper.ID)
}

func sessionPurge(t *testing.T, s store.Store) {
	make := func(status cay.SessionStatus, ended time.Time) cay.ID {
		ses := Session(epoch)
		ses.Status, ses.EndedAt = status, ended
		return insertSession(t, s, ses).ID
	}
	now := epoch.Add(31 * 24 * time.Hour)
	old, fresh, open := make(cay.SessionDeleted, epoch), make(cay.SessionDeleted, now.Add(-time.Hour)), make(cay.SessionActive, time.Time{})
	must(t, s.Purge(t.Context(), now, cay.Retention{Sessions: 30 * 24 * time.Hour}))
	_, err := s.Session(t.Context(), old)
	wantReason(t, err, cay.NotFound)
	for _, id := range []cay.ID{fresh, open} {
		_, err := s.Session(t.Context(), id)
		must(t, err)
	}
}
