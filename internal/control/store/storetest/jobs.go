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

var jobTests = suite{
	"a job comes back as it was written":                                jobRoundTrip,
	"a change of a job that fails leaves the row as it was":             jobFailedChange,
	"changes of a job at the same time are all there in the end":        jobConcurrentChanges,
	"the bound on unfinished jobs holds against submits at once":        jobBound,
	"a job of a session that cannot be had is refused by name":          jobSessions,
	"lists of jobs page through everything once, in both orders":        jobPaging,
	"lists of jobs filter by status, session and metadata":              jobFilters,
	"lists of jobs leave out what is long":                              jobListsAreShort,
	"a cursor of another kind of list is refused by name":               jobBadCursor,
	"jobs past their deadline are found unless somebody has them":       jobExpiry,
	"old jobs are found oldest first, with what names their blobs":      jobAge,
	"a deleted job is gone with its payload, a purge leaves jobs":       jobDelete,
	"counts say what waits, what runs, and since when the oldest waits": jobCounts,
}

// Job is a queued job of a project, made at the time, for tests.
func Job(of cay.ID, at time.Time) *cay.Job {
	return &cay.Job{
		ID: cay.NewID(cay.PrefixJob), ProjectID: of, Status: cay.JobQueued, Priority: cay.DefaultPriority,
		Spec:     cay.JobSpec{Language: "python", Env: map[string]string{"A": "1\n=2"}, Timeout: time.Minute},
		Metadata: map[string]string{}, Input: []byte("print(1)"), QueuedAt: at, QueueDeadline: at.Add(time.Hour), Version: 1,
	}
}

func insertJob(t tester, s store.Store, j *cay.Job) *cay.Job {
	t.Helper()
	must(t, s.InsertJob(context.Background(), j, 0))
	return j
}

func mutateJob(t tester, s store.Store, id cay.ID, change func(*cay.Job)) *cay.Job {
	t.Helper()
	j, err := s.MutateJob(context.Background(), id, func(j *cay.Job) error { change(j); return nil })
	must(t, err)
	return j
}

// finish brings a job, which must be queued or running, to an end.
func finish(t tester, s store.Store, id cay.ID, at time.Time) *cay.Job {
	t.Helper()
	return mutateJob(t, s, id, func(j *cay.Job) {
		if j.Status == cay.JobQueued {
			must(t, j.Transition(cay.JobRunning, at))
		}
		must(t, j.Transition(cay.JobSuccess, at))
	})
}

func equalJobs(t tester, got, want *cay.Job) {
	t.Helper()
	show := func(j *cay.Job) string {
		flat := *j
		flat.ExitCode, flat.Fault = nil, nil
		s := fmt.Sprintf("%+v", flat)
		if j.ExitCode != nil {
			s += fmt.Sprintf(" code %d", *j.ExitCode)
		}
		if j.Fault != nil {
			s += fmt.Sprintf(" fault %+v", *j.Fault)
		}
		return s
	}
	if g, w := show(got), show(want); g != w {
		t.Fatalf("got  %s\nwant %s", g, w)
	}
}

func jobRoundTrip(t *testing.T, s store.Store) {
	j := Job(project, epoch)
	j.Metadata = map[string]string{`a."b'`: "ü日本"}
	j.Input, j.InputKey = []byte{0, 0xff, 'x'}, "a/key"
	insertJob(t, s, j)
	got, err := s.Job(t.Context(), j.ID)
	must(t, err)
	equalJobs(t, got, j)
	if got.Result != nil || got.ExitCode != nil || got.Fault != nil {
		t.Errorf("a job that has not finished has result %v, code %v, fault %v", got.Result, got.ExitCode, got.Fault)
	}

	code := 0
	changed := mutateJob(t, s, j.ID, func(j *cay.Job) {
		must(t, j.Transition(cay.JobRunning, epoch.Add(time.Second)))
		j.Attempt, j.SandboxID, j.ProcessID, j.Fence, j.NotBefore = 2, "sbx_1", "prc_1", 3, epoch
		j.LeaseOwner, j.LeaseUntil, j.CancelAsked = "me", epoch, true
	})
	if changed.Version != 2 {
		t.Errorf("version is %d after one change, want 2", changed.Version)
	}
	got, err = s.Job(t.Context(), j.ID)
	must(t, err)
	equalJobs(t, got, changed)

	changed = mutateJob(t, s, j.ID, func(j *cay.Job) {
		must(t, j.Transition(cay.JobFailed, epoch.Add(time.Minute)))
		j.ExitCode, j.Signal, j.Duration = &code, "SIGKILL", 3*time.Nanosecond
		j.Usage = cay.Usage{CPUSeconds: 1.5, MemoryMBSeconds: 2.5, PeakMemoryMB: 3, DiskMB: 4, EgressBytes: 5}
		j.Fault = &cay.JobFault{Reason: "oom", Detail: "more memory than it may"}
		j.Result, j.ResultKey = []byte{0, 0xfe}, "b/key"
	})
	got, err = s.Job(t.Context(), j.ID)
	must(t, err)
	equalJobs(t, got, changed)
	if got.ExitCode == nil || *got.ExitCode != 0 || got.Fault == nil || len(got.Result) != 2 {
		t.Errorf("got code %v, fault %v, result %v", got.ExitCode, got.Fault, got.Result)
	}

	_, err = s.Job(t.Context(), cay.NewID(cay.PrefixJob))
	wantReason(t, err, cay.NotFound)
	_, err = s.MutateJob(t.Context(), cay.NewID(cay.PrefixJob), func(*cay.Job) error { return nil })
	wantReason(t, err, cay.NotFound)
}

func jobFailedChange(t *testing.T, s store.Store) {
	j := insertJob(t, s, Job(project, epoch))
	refusal := errors.New("no")
	got, err := s.MutateJob(t.Context(), j.ID, func(j *cay.Job) error {
		j.Signal, j.Result = "half done", []byte("half")
		return refusal
	})
	if !errors.Is(err, refusal) {
		t.Fatalf("got %v, want the change's own error", err)
	}
	equalJobs(t, got, j)
	read, err := s.Job(t.Context(), j.ID)
	must(t, err)
	equalJobs(t, read, j)
}

func jobConcurrentChanges(t *testing.T, s store.Store) {
	j := insertJob(t, s, Job(project, epoch))
	const n = 100
	together(n, func(int) {
		if _, err := s.MutateJob(context.Background(), j.ID, func(j *cay.Job) error { j.Attempt++; return nil }); err != nil {
			t.Error(err)
		}
	})
	got, err := s.Job(t.Context(), j.ID)
	must(t, err)
	if got.Attempt != n || got.Version != n+1 {
		t.Errorf("%d changes gave attempt %d at version %d", n, got.Attempt, got.Version)
	}
}

func jobBound(t *testing.T, s store.Store) {
	var ok, quota atomic.Int64
	together(20, func(int) {
		switch err := s.InsertJob(context.Background(), Job(project, epoch), 5); cay.ReasonOf(err) {
		case "":
			ok.Add(1)
		case cay.QuotaExceeded:
			quota.Add(1)
		default:
			t.Error(err)
		}
	})
	if ok.Load() != 5 || quota.Load() != 15 {
		t.Errorf("%d submits went in and %d met the quota, want 5 and 15", ok.Load(), quota.Load())
	}
	must(t, s.InsertJob(t.Context(), Job(cay.NewID(cay.PrefixProject), epoch), 5))
	jobs := leaseJobs(t, s, epoch, "me", 2)
	mutateJob(t, s, jobs[0].ID, func(j *cay.Job) { must(t, j.Transition(cay.JobRunning, epoch)) })
	wantReason(t, s.InsertJob(t.Context(), Job(jobs[0].ProjectID, epoch), 1), cay.QuotaExceeded)
	for _, j := range jobs {
		finish(t, s, j.ID, epoch)
	}
	must(t, s.InsertJob(t.Context(), Job(project, epoch), 5))
}

func jobSessions(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	foreign := Session(epoch)
	foreign.ProjectID = cay.NewID(cay.PrefixProject)
	insertSession(t, s, foreign)
	ended := insertSession(t, s, Session(epoch))
	mutateSession(t, s, ended.ID, func(ses *cay.Session) { must(t, ses.Transition(cay.SessionDeleting, cay.ReasonDeleted, epoch)) })
	submit := func(session cay.ID) error {
		j := Job(project, epoch)
		j.SessionID = session
		return s.InsertJob(t.Context(), j, 0)
	}
	must(t, submit(ses.ID))
	for _, id := range []cay.ID{foreign.ID, cay.NewID(cay.PrefixSession)} {
		err := submit(id)
		wantReason(t, err, cay.Unprocessable)
		var e *cay.Error
		if errors.As(err, &e); e.Field != "session_id" {
			t.Errorf("the error names the field %q", e.Field)
		}
	}
	wantReason(t, submit(ended.ID), cay.Gone)
}

func listJobs(t tester, s store.Store, q cay.JobQuery) []cay.ID {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 100
	}
	items, _, err := s.ListJobs(context.Background(), project, q)
	must(t, err)
	var ids []cay.ID
	for _, j := range items {
		ids = append(ids, j.ID)
	}
	return ids
}

func jobPaging(t *testing.T, s store.Store) {
	var want []cay.ID
	for i := range 25 {
		want = append(want, insertJob(t, s, Job(project, epoch.Add(time.Duration(i/5)*time.Second))).ID) // five share each time
	}
	insertJob(t, s, Job(cay.NewID(cay.PrefixProject), epoch))
	for _, ascending := range []bool{true, false} {
		var got []cay.ID
		q := cay.JobQuery{Limit: 4, Ascending: ascending}
		for pages := 0; ; pages++ {
			items, next, err := s.ListJobs(t.Context(), project, q)
			must(t, err)
			for _, j := range items {
				got = append(got, j.ID)
			}
			if next == "" {
				break
			}
			if len(items) != 4 || pages > 10 {
				t.Fatalf("page %d has %d items and promises more", pages, len(items))
			}
			q.Cursor = next
		}
		if !ascending {
			slices.Reverse(got)
		}
		if len(got) != len(want) {
			t.Fatalf("ascending %v: got %d items, want %d", ascending, len(got), len(want))
		}
		for i := 0; i < len(want); i += 5 { // within one time the order is that of the ids
			slices.Sort(want[i : i+5])
		}
		if !slices.Equal(got, want) {
			t.Errorf("ascending %v: got %v, want %v", ascending, got, want)
		}
	}
	if got := listJobs(t, s, cay.JobQuery{CreatedAfter: epoch.Add(2 * time.Second)}); len(got) != 10 {
		t.Errorf("%d jobs were made after the third second, want 10", len(got))
	}
}

func jobFilters(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	make := func(i int, edit func(*cay.Job)) cay.ID {
		j := Job(project, epoch.Add(time.Duration(i)*time.Second))
		edit(j)
		return insertJob(t, s, j).ID
	}
	plain := make(0, func(j *cay.Job) { j.Metadata = map[string]string{"a.b": "1"} })
	inSession := make(1, func(j *cay.Job) { j.SessionID = ses.ID })
	both := make(2, func(j *cay.Job) { j.SessionID, j.Metadata = ses.ID, map[string]string{"a.b": "1", `"`: "'"} })
	finish(t, s, both, epoch)
	for _, c := range []struct {
		name  string
		query cay.JobQuery
		want  []cay.ID
	}{
		{"nothing", cay.JobQuery{}, []cay.ID{both, inSession, plain}},
		{"a session", cay.JobQuery{SessionID: ses.ID}, []cay.ID{both, inSession}},
		{"a session, oldest first", cay.JobQuery{SessionID: ses.ID, Ascending: true}, []cay.ID{inSession, both}},
		{"another session", cay.JobQuery{SessionID: cay.NewID(cay.PrefixSession)}, nil},
		{"a status", cay.JobQuery{Statuses: []cay.JobStatus{cay.JobQueued}}, []cay.ID{inSession, plain}},
		{"two statuses", cay.JobQuery{Statuses: []cay.JobStatus{cay.JobQueued, cay.JobSuccess}}, []cay.ID{both, inSession, plain}},
		{"metadata", cay.JobQuery{Metadata: map[string]string{"a.b": "1"}}, []cay.ID{both, plain}},
		{"metadata with quotes", cay.JobQuery{Metadata: map[string]string{`"`: "'", "a.b": "1"}}, []cay.ID{both}},
		{"another value", cay.JobQuery{Metadata: map[string]string{"a.b": "2"}}, nil},
		{"all of it", cay.JobQuery{Metadata: map[string]string{"a.b": "1"}, SessionID: ses.ID, Statuses: []cay.JobStatus{cay.JobSuccess}}, []cay.ID{both}},
	} {
		if got := listJobs(t, s, c.query); !slices.Equal(got, c.want) {
			t.Errorf("%s finds %v, want %v", c.name, got, c.want)
		}
	}
}

func jobListsAreShort(t *testing.T, s store.Store) {
	j := insertJob(t, s, Job(project, epoch))
	mutateJob(t, s, j.ID, func(j *cay.Job) { j.Result = []byte("long") })
	items, _, err := s.ListJobs(t.Context(), project, cay.JobQuery{Limit: 1})
	must(t, err)
	if items[0].Input != nil || items[0].Result != nil {
		t.Errorf("a list has input %q and result %q", items[0].Input, items[0].Result)
	}
}

func jobBadCursor(t *testing.T, s store.Store) {
	for _, cursor := range []string{"x", store.Cursor{At: epoch, ID: cay.NewID(cay.PrefixSandbox)}.String()} {
		_, _, err := s.ListJobs(t.Context(), project, cay.JobQuery{Limit: 1, Cursor: cursor})
		wantReason(t, err, cay.InvalidRequest)
		_, _, err = s.ListSessions(t.Context(), project, cay.SessionQuery{Limit: 1, Cursor: cursor})
		wantReason(t, err, cay.InvalidRequest)
		var e *cay.Error
		if errors.As(err, &e); e.Field != "cursor" {
			t.Errorf("the error names the field %q", e.Field)
		}
	}
}

func jobExpiry(t *testing.T, s store.Store) {
	waits := insertJob(t, s, Job(project, epoch))
	leased := insertJob(t, s, Job(cay.NewID(cay.PrefixProject), epoch.Add(-time.Second)))
	later := Job(project, epoch)
	later.QueueDeadline = epoch.Add(2 * time.Hour)
	insertJob(t, s, later)
	mutateJob(t, s, leased.ID, func(j *cay.Job) { j.LeaseOwner, j.LeaseUntil = "me", epoch.Add(3*time.Hour) })
	expired := func(now time.Time) (ids []cay.ID) {
		t.Helper()
		jobs, err := s.ExpiredJobs(t.Context(), now, 10)
		must(t, err)
		for _, j := range jobs {
			ids = append(ids, j.ID)
		}
		return ids
	}
	if got := expired(epoch.Add(59 * time.Minute)); len(got) != 0 {
		t.Errorf("before the deadline: %v", got)
	}
	if got := expired(epoch.Add(61 * time.Minute)); !slices.Equal(got, []cay.ID{waits.ID}) {
		t.Errorf("past the deadline: %v, want %s", got, waits.ID)
	}
	if got := expired(epoch.Add(4 * time.Hour)); !slices.Equal(got, []cay.ID{leased.ID, waits.ID, later.ID}) {
		t.Errorf("once the lease has run out: %v", got)
	}
	mutateJob(t, s, waits.ID, func(j *cay.Job) { must(t, j.Transition(cay.JobRunning, epoch)) })
	if got := expired(epoch.Add(61 * time.Minute)); len(got) != 0 {
		t.Errorf("once it runs: %v", got)
	}
}

func jobAge(t *testing.T, s store.Store) {
	var ids []cay.ID
	for i := range 3 {
		j := insertJob(t, s, Job(project, epoch))
		finish(t, s, j.ID, epoch.Add(time.Duration(2-i)*time.Hour))
		mutateJob(t, s, j.ID, func(j *cay.Job) { j.Result = []byte("names blobs") })
		ids = append(ids, j.ID)
	}
	insertJob(t, s, Job(project, epoch.Add(-time.Hour)))
	jobs, err := s.OldJobs(t.Context(), epoch.Add(2*time.Hour), 10)
	must(t, err)
	if len(jobs) != 2 || jobs[0].ID != ids[2] || jobs[1].ID != ids[1] || string(jobs[0].Result) != "names blobs" {
		t.Errorf("got %v", jobs)
	}
	if jobs, err = s.OldJobs(t.Context(), epoch.Add(24*time.Hour), 1); err != nil || len(jobs) != 1 {
		t.Errorf("a limit of one: %v, %v", jobs, err)
	}
}

func jobDelete(t *testing.T, s store.Store) {
	j := insertJob(t, s, Job(project, epoch))
	finish(t, s, j.ID, epoch)
	must(t, s.Purge(t.Context(), epoch.Add(1000*time.Hour), cay.Retention{}))
	_, err := s.Job(t.Context(), j.ID)
	must(t, err)
	must(t, s.DeleteJob(t.Context(), j.ID))
	_, err = s.Job(t.Context(), j.ID)
	wantReason(t, err, cay.NotFound)
	wantReason(t, s.DeleteJob(t.Context(), j.ID), cay.NotFound)
	insertJob(t, s, j) // nothing of the first is in its way
}

func jobCounts(t *testing.T, s store.Store) {
	queued, running, oldest, err := s.CountJobs(t.Context())
	if err != nil || queued != 0 || running != 0 || !oldest.IsZero() {
		t.Errorf("without jobs: %d, %d, %v, %v", queued, running, oldest, err)
	}
	for i := range 4 {
		insertJob(t, s, Job(cay.NewID(cay.PrefixProject), epoch.Add(time.Duration(i)*time.Second)))
	}
	for _, j := range leaseJobs(t, s, epoch.Add(time.Minute), "me", 4) {
		switch j.QueuedAt.Sub(epoch) {
		case 0:
			mutateJob(t, s, j.ID, func(j *cay.Job) { must(t, j.Transition(cay.JobRunning, epoch)) })
		case time.Second:
			finish(t, s, j.ID, epoch)
		}
	}
	queued, running, oldest, err = s.CountJobs(t.Context())
	if err != nil || queued != 2 || running != 1 || !oldest.Equal(epoch.Add(2*time.Second)) {
		t.Errorf("got %d queued, %d running, oldest %v, %v", queued, running, oldest, err)
	}
}
