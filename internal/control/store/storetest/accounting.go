package storetest

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

var accountingTests = suite{
	"the end of a sandbox, a job and a session is recorded with it":    endsAreRecorded,
	"a change that fails records, accounts and tells nothing":          failedChangeAccountsNothing,
	"jobs and sessions tell of each change of status":                  jobAndSessionEvents,
	"events of a project are found by type, a sandbox has its own":     eventTypes,
	"who made a row and its trace come back":                           originsRoundTrip,
	"a touch accounts what is left of a row's time, and none twice":    touchAccounts,
	"usage is summed up by day, project and sandbox, and pages":        usageGroups,
	"what is written in any steps is all in the days that it is of":    usageModel,
	"sandboxes that wait and what was ever sent out are counted":       counts,
	"usage that was measured before a sandbox was READY is not lost":   usageOfAFailedBoot,
	"a sandbox of a session that is touched without use leaves it be":  touchWithoutUse,
	"usage of what is gone is kept, and egress outlives what was kept": usageOutlives,
}

// traceparent is a W3C Trace Context.
const (
	trace       = "4bf92f3577b34da6a3ce929d0e0e4736"
	traceparent = "00-" + trace + "-00f067aa0ba902b7-01"
)

// days reads all usage of a project, or of all, by day and sandbox.
func days(t tester, s store.Store, q cay.UsageQuery) (rows []cay.UsageRow, total cay.UsageRow) {
	t.Helper()
	if len(q.GroupBy) == 0 {
		q.GroupBy = []cay.UsageGroup{cay.UsageByDay, cay.UsageBySandbox}
	}
	if q.Limit == 0 {
		q.Limit = 50
	}
	for {
		page, sum, next, err := s.Usage(context.Background(), project, q)
		must(t, err)
		if len(page) > q.Limit {
			t.Fatalf("a page of %d has %d rows", q.Limit, len(page))
		}
		rows, total = append(rows, page...), sum
		if next == "" {
			return rows, total
		}
		q.Cursor = next
	}
}

func endsAreRecorded(t *testing.T, s store.Store) {
	ses := Session(epoch)
	ses.Name, ses.CreatedBy = "notes", "key_3"
	insertSession(t, s, ses)
	sb := sessionSandbox(ses, true)
	sb.CreatedBy, sb.Traceparent = "key_1", traceparent
	insert(t, s, sb)
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) {
		must(t, sb.Transition(cay.Ready, "", epoch.Add(time.Second)))
		sb.Usage = cay.Usage{CPUSeconds: 1.5, PeakMemoryMB: 77}
	})
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) {
		must(t, sb.Transition(cay.Terminating, cay.ReasonIdleTimeout, epoch.Add(time.Minute)))
	})
	if ids, _ := recordIDs(t, s, cay.RecordQuery{}); len(ids) != 0 {
		t.Fatalf("before its end %v is recorded", ids)
	}
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Terminated, "", epoch.Add(2*time.Minute))) })
	got, err := s.Record(t.Context(), project, sb.ID)
	must(t, err)
	same(t, "the sandbox", got, cay.Record{
		ID: sb.ID, Kind: cay.RecordSandbox, ProjectID: project, KeyID: "key_1", SandboxID: sb.ID, SessionID: ses.ID, Outcome: "idle_timeout", OK: true,
		StartedAt: epoch, EndedAt: epoch.Add(2 * time.Minute), Duration: 2 * time.Minute, CPUSeconds: 1.5, PeakMemoryMB: 77, TraceID: trace,
	})

	failed := insert(t, s, Sandbox(epoch))
	mutate(t, s, failed.ID, func(sb *cay.Sandbox) {
		must(t, sb.Transition(cay.Failed, cay.ReasonBootFailed, epoch.Add(time.Second)))
	})
	mutate(t, s, failed.ID, func(sb *cay.Sandbox) { sb.Op = cay.OpNone })
	got, err = s.Record(t.Context(), project, failed.ID)
	must(t, err)
	if got.OK || got.Outcome != "boot_failed" {
		t.Errorf("a failed boot is recorded as %+v", got)
	}

	j := Job(project, epoch)
	j.CreatedBy, j.Traceparent, j.SessionID = "key_2", traceparent, ses.ID
	insertJob(t, s, j)
	code := 3
	mutateJob(t, s, j.ID, func(j *cay.Job) {
		j.SandboxID = "sbx_9"
		must(t, j.Transition(cay.JobRunning, epoch.Add(time.Second)))
	})
	mutateJob(t, s, j.ID, func(j *cay.Job) {
		j.ExitCode, j.Duration, j.StdoutBytes, j.StderrBytes = &code, 4*time.Second, 5, 6
		j.Usage = cay.Usage{CPUSeconds: 2, PeakMemoryMB: 9}
		must(t, j.Transition(cay.JobFailed, epoch.Add(time.Minute)))
	})
	got, err = s.Record(t.Context(), project, j.ID)
	must(t, err)
	if got.ExitCode == nil || *got.ExitCode != code {
		t.Fatalf("the exit code of the job is recorded as %v", got.ExitCode)
	}
	got.ExitCode = nil
	same(t, "the job", got, cay.Record{
		ID: j.ID, Kind: cay.RecordJob, ProjectID: project, KeyID: "key_2", SandboxID: "sbx_9", SessionID: ses.ID, Language: "python", Outcome: "failed",
		StartedAt: epoch.Add(time.Second), EndedAt: epoch.Add(time.Minute), Duration: 4 * time.Second, StdoutBytes: 5, StderrBytes: 6, CPUSeconds: 2,
		PeakMemoryMB: 9, TraceID: trace,
	})
	never := insertJob(t, s, Job(project, epoch))
	mutateJob(t, s, never.ID, func(j *cay.Job) { must(t, j.Transition(cay.JobCanceled, epoch.Add(time.Hour))) })
	got, err = s.Record(t.Context(), project, never.ID)
	must(t, err)
	if !got.StartedAt.Equal(epoch) || got.OK || got.Outcome != "canceled" {
		t.Errorf("a job that never ran is recorded as %+v", got)
	}

	mutateSession(t, s, ses.ID, func(ses *cay.Session) {
		must(t, ses.Transition(cay.SessionDeleting, cay.ReasonDeleted, epoch.Add(time.Hour)))
	})
	mutateSession(t, s, ses.ID, func(ses *cay.Session) { must(t, ses.Transition(cay.SessionDeleted, "", epoch.Add(2*time.Hour))) })
	got, err = s.Record(t.Context(), project, ses.ID)
	must(t, err)
	same(t, "the session", got, cay.Record{
		ID: ses.ID, Kind: cay.RecordSession, ProjectID: project, KeyID: "key_3", SessionID: ses.ID, Name: "notes", Outcome: "deleted", OK: true,
		StartedAt: epoch, EndedAt: epoch.Add(2 * time.Hour), Duration: 2 * time.Hour,
	})
	if ids, _ := recordIDs(t, s, cay.RecordQuery{SessionID: ses.ID}); len(ids) != 3 {
		t.Errorf("the session's history is %v, want the sandbox, the job and the session", ids)
	}
}

func failedChangeAccountsNothing(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Ready, "", epoch)) })
	refusal := cay.Errorf(cay.Conflict, "no")
	_, err := s.MutateSandbox(t.Context(), sb.ID, func(sb *cay.Sandbox) ([]cay.Event, error) {
		must(t, sb.Transition(cay.Terminating, cay.ReasonDeleted, epoch.Add(time.Hour)))
		must(t, sb.Transition(cay.Terminated, "", epoch.Add(time.Hour)))
		return nil, refusal
	})
	wantReason(t, err, cay.Conflict)
	j := insertJob(t, s, Job(project, epoch))
	_, err = s.MutateJob(t.Context(), j.ID, func(j *cay.Job) error {
		must(t, j.Transition(cay.JobCanceled, epoch))
		return refusal
	})
	wantReason(t, err, cay.Conflict)
	if ids, _ := recordIDs(t, s, cay.RecordQuery{}); len(ids) != 0 {
		t.Errorf("%v is recorded", ids)
	}
	if rows, _ := days(t, s, cay.UsageQuery{}); len(rows) != 0 {
		t.Errorf("%+v is accounted", rows)
	}
	if list, _, err := s.Events(t.Context(), project, cay.EventQuery{Limit: 10}); err != nil || len(list) != 1 {
		t.Errorf("told are %+v, %v; want the job's beginning alone", list, err)
	}
}

func jobAndSessionEvents(t *testing.T, s store.Store) {
	j := insertJob(t, s, Job(project, epoch))
	mutateJob(t, s, j.ID, func(j *cay.Job) {
		j.SandboxID, j.Attempt = "sbx_1", 1
		must(t, j.Transition(cay.JobRunning, epoch.Add(time.Second)))
	})
	mutateJob(t, s, j.ID, func(j *cay.Job) { j.CancelAsked = true })
	mutateJob(t, s, j.ID, func(j *cay.Job) { must(t, j.Transition(cay.JobSuccess, epoch.Add(time.Minute))) })
	ses := insertSession(t, s, Session(epoch.Add(time.Hour)))
	mutateSession(t, s, ses.ID, func(ses *cay.Session) { must(t, ses.Transition(cay.SessionDeleting, cay.ReasonTTLExpired, epoch)) })
	list, _, err := s.Events(t.Context(), project, cay.EventQuery{Limit: 10})
	must(t, err)
	if len(list) != 5 {
		t.Fatalf("told are %+v", list)
	}
	for i, want := range []struct {
		job, session, sandbox cay.ID
		from, to              string
		at                    time.Time
	}{
		{job: j.ID, to: "queued", at: epoch}, {job: j.ID, sandbox: "sbx_1", from: "queued", to: "running", at: epoch.Add(time.Second)},
		{job: j.ID, sandbox: "sbx_1", from: "running", to: "success", at: epoch.Add(time.Minute)},
		{session: ses.ID, to: "active", at: epoch.Add(time.Hour)}, {session: ses.ID, from: "active", to: "deleting"},
	} {
		e := list[i]
		if e.JobID != want.job || e.SessionID != want.session || e.SandboxID != want.sandbox || e.Data["from"] != want.from || e.Data["to"] != want.to || !want.at.IsZero() && !e.At.Equal(want.at) {
			t.Errorf("event %d is %+v, want %+v", i, e, want)
		}
	}
	if list[4].Data["reason"] != "ttl_expired" {
		t.Errorf("the end of the session gives the reason %v", list[4].Data["reason"])
	}
}

func eventTypes(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	must(t, s.AddEvent(t.Context(), cay.Event{SandboxID: sb.ID, ProjectID: project, Type: cay.EventOOM, At: epoch}))
	j := Job(project, epoch)
	j.SandboxID = sb.ID
	insertJob(t, s, j)
	insertSession(t, s, Session(epoch))
	for name, test := range map[string]struct {
		q    cay.EventQuery
		want []cay.EventType
	}{
		"all":           {cay.EventQuery{}, []cay.EventType{cay.EventOOM, cay.EventJobStatus, cay.EventSessionStatus}},
		"two types":     {cay.EventQuery{Types: []cay.EventType{cay.EventOOM, cay.EventSessionStatus}}, []cay.EventType{cay.EventOOM, cay.EventSessionStatus}},
		"none of these": {cay.EventQuery{Types: []cay.EventType{cay.EventDiskFull}}, nil},
		"the sandbox's": {cay.EventQuery{SandboxID: sb.ID}, []cay.EventType{cay.EventOOM}},
	} {
		test.q.Limit = 10
		list, _, err := s.Events(t.Context(), project, test.q)
		must(t, err)
		var got []cay.EventType
		for _, e := range list {
			got = append(got, e.Type)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	if ids, _, err := s.EventsSince(t.Context(), 0, 10); err != nil || !slices.Equal(ids, []cay.ID{sb.ID}) {
		t.Errorf("new events name %v, %v; want the sandbox alone", ids, err)
	}
}

func originsRoundTrip(t *testing.T, s store.Store) {
	sb := Sandbox(epoch)
	sb.CreatedBy, sb.Traceparent = "key_1", traceparent
	insert(t, s, sb)
	got, err := s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, got, sb)
	changed := mutate(t, s, sb.ID, func(sb *cay.Sandbox) { sb.Traceparent, sb.AccountedAt = "", epoch })
	got, err = s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, got, changed)
	j := Job(project, epoch)
	j.CreatedBy, j.Traceparent, j.StdoutBytes, j.StderrBytes = "key_2", traceparent, 1, 2
	insertJob(t, s, j)
	job, err := s.Job(t.Context(), j.ID)
	must(t, err)
	if job.CreatedBy != "key_2" || job.Traceparent != traceparent || job.StdoutBytes != 1 || job.StderrBytes != 2 {
		t.Errorf("the job came back as %+v", job)
	}
	ses := Session(epoch)
	ses.CreatedBy = "key_3"
	insertSession(t, s, ses)
	session, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	if session.CreatedBy != "key_3" {
		t.Errorf("the session came back as %+v", session)
	}
}

func touchAccounts(t *testing.T, s store.Store) {
	noon := epoch.Truncate(24 * time.Hour).Add(12 * time.Hour)
	sb := insert(t, s, Sandbox(noon))
	ready := mutate(t, s, sb.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Ready, "", noon)) })
	at := func(d time.Duration, cpu float64) {
		row := *ready
		row.AccountedAt, row.Usage.CPUSeconds = noon.Add(d), cpu
		must(t, s.TouchSandboxes(t.Context(), []*cay.Sandbox{&row}))
	}
	want := func(running, cpu float64) {
		t.Helper()
		_, total := days(t, s, cay.UsageQuery{})
		if math.Abs(total.RunningSeconds-running) > 1e-6 || math.Abs(total.CPUSeconds-cpu) > 1e-9 {
			t.Fatalf("accounted are %v s with %v s of CPU, want %v and %v", total.RunningSeconds, total.CPUSeconds, running, cpu)
		}
	}
	at(30*time.Second, 1)
	at(30*time.Second, 1)
	want(30, 1)
	at(10*time.Second, 0.5) // an older word
	want(30, 1)
	at(time.Minute, 3)
	want(60, 3)
	got := mutate(t, s, sb.ID, func(sb *cay.Sandbox) {
		if sb.AccountedAt != noon.Add(time.Minute) || sb.Version != ready.Version {
			t.Errorf("accounted until %v at version %d", sb.AccountedAt, sb.Version)
		}
		must(t, sb.Transition(cay.Paused, "", noon.Add(90*time.Second)))
	})
	at(80*time.Second, 3) // a word from before the pause
	at(2*time.Minute, 3)
	mutate(t, s, got.ID, func(sb *cay.Sandbox) {
		must(t, sb.Transition(cay.Terminating, cay.ReasonDeleted, noon.Add(3*time.Minute)))
	})
	at(4*time.Minute, 4)
	want(90, 4)
	mutate(t, s, got.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Terminated, "", noon.Add(5*time.Minute))) })
	at(6*time.Minute, 9)
	want(90, 4)
	if _, total := days(t, s, cay.UsageQuery{}); math.Abs(total.PausedSeconds-90) > 1e-6 || math.Abs(total.AllocatedMemoryMBSeconds-180*1024) > 1e-3 {
		t.Errorf("in all %+v", total)
	}
	must(t, s.TouchSandboxes(t.Context(), []*cay.Sandbox{Sandbox(epoch)})) // of nobody known
}

func usageOfAFailedBoot(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) {
		sb.Usage.CPUSeconds = 1
		must(t, sb.Transition(cay.Failed, cay.ReasonBootFailed, epoch.Add(time.Minute)))
	})
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) { sb.Usage.CPUSeconds = 2.5 })
	rows, _ := days(t, s, cay.UsageQuery{})
	if len(rows) != 1 || rows[0].CPUSeconds != 2.5 || rows[0].RunningSeconds != 0 || !rows[0].Day.Equal(epoch.Truncate(24*time.Hour)) {
		t.Errorf("accounted are %+v", rows)
	}
}

func touchWithoutUse(t *testing.T, s store.Store) {
	ses := insertSession(t, s, Session(epoch))
	sb := insert(t, s, sessionSandbox(ses, true))
	ready := mutate(t, s, sb.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Ready, "", epoch.Add(time.Second))) })
	before, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	row := *ready
	row.AccountedAt = epoch.Add(time.Hour)
	must(t, s.TouchSandboxes(t.Context(), []*cay.Sandbox{&row}))
	after, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	row.LastActiveAt = epoch.Add(2 * time.Hour)
	must(t, s.TouchSandboxes(t.Context(), []*cay.Sandbox{&row}))
	used, err := s.Session(t.Context(), ses.ID)
	must(t, err)
	if after.LastUsedAt.Before(before.LastUsedAt) || after.LastUsedAt.After(epoch.Add(time.Second)) || !used.LastUsedAt.Equal(row.LastActiveAt) {
		t.Errorf("the session was used last at %v, after a touch at %v, after a use at %v", before.LastUsedAt, after.LastUsedAt, used.LastUsedAt)
	}
}

func usageGroups(t *testing.T, s store.Store) {
	midnight := epoch.Truncate(24 * time.Hour)
	other := cay.NewID(cay.PrefixProject)
	var ids []cay.ID
	for i, of := range []cay.ID{project, project, other} {
		sb := Sandbox(midnight)
		sb.ProjectID = of
		insert(t, s, sb)
		ids = append(ids, sb.ID)
		mutate(t, s, sb.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Ready, "", midnight.Add(22*time.Hour))) })
		mutate(t, s, sb.ID, func(sb *cay.Sandbox) {
			sb.Usage = cay.Usage{CPUSeconds: 60, EgressBytes: 10 * int64(i+1)}
			must(t, sb.Transition(cay.Terminating, cay.ReasonDeleted, midnight.Add(50*time.Hour))) // 2, 24 and 2 hours on three days
		})
	}
	group := func(by ...cay.UsageGroup) cay.UsageQuery { return cay.UsageQuery{GroupBy: by, Limit: 2} }
	for name, test := range map[string]struct {
		q    cay.UsageQuery
		rows int
		of   int64 // sandboxes in all
	}{
		"by day":                {group(cay.UsageByDay), 3, 2},
		"by sandbox":            {group(cay.UsageBySandbox), 2, 2},
		"by project":            {group(cay.UsageByProject), 1, 2},
		"by sandbox and day":    {group(cay.UsageBySandbox, cay.UsageByDay), 6, 2},
		"of all, by all":        {cay.UsageQuery{AllProjects: true, GroupBy: []cay.UsageGroup{cay.UsageByDay, cay.UsageByProject, cay.UsageBySandbox}, Limit: 2}, 9, 3},
		"of all, by project":    {cay.UsageQuery{AllProjects: true, GroupBy: []cay.UsageGroup{cay.UsageByProject}, Limit: 1}, 2, 3},
		"of one sandbox":        {cay.UsageQuery{SandboxID: ids[0], Limit: 1}, 3, 1},
		"of another's sandbox":  {cay.UsageQuery{SandboxID: ids[2], Limit: 1}, 0, 0},
		"of the second day":     {cay.UsageQuery{From: midnight.Add(24 * time.Hour), To: midnight.Add(48 * time.Hour), Limit: 1}, 2, 2},
		"of a day before":       {cay.UsageQuery{To: midnight, Limit: 1}, 0, 0},
		"of all from the third": {cay.UsageQuery{AllProjects: true, From: midnight.Add(48 * time.Hour), Limit: 1}, 3, 3},
	} {
		rows, total := days(t, s, test.q)
		if len(rows) != test.rows || total.Sandboxes != test.of {
			t.Errorf("%s: %d rows of %d sandboxes, want %d of %d: %+v", name, len(rows), total.Sandboxes, test.rows, test.of, rows)
			continue
		}
		var sum cay.UsageAmounts
		for i, r := range rows {
			sum.Add(r.UsageAmounts)
			if i > 0 && slices.Compare([]string{rows[i-1].Day.String(), string(rows[i-1].ProjectID), string(rows[i-1].SandboxID)},
				[]string{r.Day.String(), string(r.ProjectID), string(r.SandboxID)}) >= 0 {
				t.Errorf("%s: row %d is out of order", name, i)
			}
		}
		if math.Abs(sum.RunningSeconds-total.RunningSeconds) > 1e-6 || math.Abs(sum.CPUSeconds-total.CPUSeconds) > 1e-6 || sum.EgressBytes != total.EgressBytes {
			t.Errorf("%s: the rows sum up to %+v, the total is %+v", name, sum, total)
		}
	}
	rows, _ := days(t, s, group(cay.UsageByDay))
	for i, hours := range []float64{2, 24, 2} {
		if r := rows[i]; math.Abs(r.RunningSeconds-2*hours*3600) > 1e-6 || r.Sandboxes != 2 || math.Abs(r.CPUSeconds-120*hours/28) > 1e-6 || r.SandboxID != "" || r.ProjectID != "" {
			t.Errorf("day %d: %+v", i+1, r)
		}
	}
	for _, cursor := range []string{"x", "MTIz", store.KeyCursor("a", "b", "c")} {
		_, _, _, err := s.Usage(t.Context(), project, cay.UsageQuery{GroupBy: []cay.UsageGroup{cay.UsageByDay}, Limit: 1, Cursor: cursor})
		wantReason(t, err, cay.InvalidRequest)
	}
}

func counts(t *testing.T, s store.Store) {
	byStatus, queued, oldest, err := s.CountSandboxes(t.Context())
	must(t, err)
	if len(byStatus) != 0 || queued != 0 || !oldest.IsZero() {
		t.Errorf("an empty store counts %v, %d queued since %v", byStatus, queued, oldest)
	}
	insert(t, s, Sandbox(epoch.Add(time.Minute)))
	insert(t, s, Sandbox(epoch))
	leased := Sandbox(epoch.Add(-time.Hour))
	leased.LeaseOwner, leased.LeaseUntil = "me", epoch.Add(time.Hour)
	insert(t, s, leased)
	idle := insert(t, s, Sandbox(epoch))
	mutate(t, s, idle.ID, func(sb *cay.Sandbox) {
		sb.Op = cay.OpNone
		must(t, sb.Transition(cay.Ready, "", epoch))
	})
	gone := Sandbox(epoch)
	gone.Op = cay.OpNone
	insert(t, s, gone)
	mutate(t, s, gone.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Failed, cay.ReasonBootFailed, epoch)) })
	ending := Sandbox(epoch.Add(-2 * time.Hour))
	insert(t, s, ending)
	mutate(t, s, ending.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Ready, "", epoch.Add(-time.Hour))) })
	mutate(t, s, ending.ID, func(sb *cay.Sandbox) {
		sb.Op = cay.OpDestroy
		must(t, sb.Transition(cay.Terminating, cay.ReasonDeleted, epoch.Add(time.Second)))
	})
	byStatus, queued, oldest, err = s.CountSandboxes(t.Context())
	must(t, err)
	if byStatus[cay.Creating] != 3 || byStatus[cay.Ready] != 1 || byStatus[cay.Terminating] != 1 || len(byStatus) != 3 || queued != 3 || !oldest.Equal(epoch) {
		t.Errorf("counted are %v, %d queued since %v", byStatus, queued, oldest)
	}
}

func usageOutlives(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Ready, "", epoch)) })
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) {
		sb.Usage.EgressBytes, sb.Op = 1000, cay.OpNone
		must(t, sb.Transition(cay.Terminating, cay.ReasonDeleted, epoch.Add(time.Hour)))
		must(t, sb.Transition(cay.Terminated, "", epoch.Add(time.Hour)))
	})
	row := *sb
	row.Usage.EgressBytes = 5000
	must(t, s.TouchSandboxes(t.Context(), []*cay.Sandbox{&row}))
	keep := cay.Retention{Records: 1e6 * time.Hour, MaxRecords: 10, Usage: 1e6 * time.Hour, Audit: 1e6 * time.Hour, MaxAudit: 10}
	must(t, s.Purge(t.Context(), epoch.Add(100*time.Hour), keep)) // the row goes
	if _, total := days(t, s, cay.UsageQuery{}); total.EgressBytes != 1000 || total.RunningSeconds != 3600 {
		t.Errorf("after its row has gone %+v is left", total)
	}
	keep.Usage = time.Hour
	must(t, s.Purge(t.Context(), epoch.Add(100*time.Hour), keep))
	if rows, _ := days(t, s, cay.UsageQuery{}); len(rows) != 0 {
		t.Errorf("usage that is too old is kept: %+v", rows)
	}
	if n, err := s.EgressBytes(t.Context()); err != nil || n != 1000 {
		t.Errorf("ever sent out are %d, %v", n, err)
	}
}

// usageModel writes a life in random steps, by changes and by touches, some of them with older figures, over several midnights.
func usageModel(t *testing.T, s store.Store) {
	rapid.Check(t, func(rt *rapid.T) {
		sb := Sandbox(epoch)
		sb.Spec.CPU, sb.Spec.MemoryMB = float64(rapid.IntRange(1, 8).Draw(rt, "cores")), int64(rapid.IntRange(16, 4096).Draw(rt, "memory"))
		must(rt, s.InsertSandbox(context.Background(), sb, 0, 0))
		at := epoch
		change := func(to cay.Status, used cay.Usage) {
			_, err := s.MutateSandbox(context.Background(), sb.ID, func(sb *cay.Sandbox) ([]cay.Event, error) {
				sb.Usage = used
				return nil, sb.Transition(to, cay.ReasonDeleted, at)
			})
			must(rt, err)
		}
		var running, paused float64
		var used cay.Usage
		status := cay.Ready
		change(cay.Ready, used)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			step := time.Duration(rapid.Int64Range(0, int64(30*time.Hour/time.Microsecond)).Draw(rt, "step")) * time.Microsecond
			at = at.Add(step)
			if status == cay.Ready {
				running += step.Seconds()
			} else {
				paused += step.Seconds()
			}
			used.CPUSeconds += float64(rapid.IntRange(0, 1000).Draw(rt, "cpu"))
			used.MemoryMBSeconds += float64(rapid.IntRange(0, 1000).Draw(rt, "memory")) / 4
			used.EgressBytes += int64(rapid.IntRange(0, 1000).Draw(rt, "egress"))
			switch rapid.IntRange(0, 2).Draw(rt, "how") {
			case 0:
				row := *sb
				row.AccountedAt, row.Usage = at, used
				older := row
				older.AccountedAt, older.Usage = at.Add(-step/2), cay.Usage{CPUSeconds: used.CPUSeconds / 2}
				must(rt, s.TouchSandboxes(context.Background(), []*cay.Sandbox{&row, &older}))
			case 1:
				_, err := s.MutateSandbox(context.Background(), sb.ID, func(sb *cay.Sandbox) ([]cay.Event, error) {
					sb.Usage, sb.AccountedAt = used, at
					return nil, nil
				})
				must(rt, err)
			default:
				status = map[cay.Status]cay.Status{cay.Ready: cay.Paused, cay.Paused: cay.Ready}[status]
				change(status, used)
			}
		}
		change(cay.Terminating, used)
		rows, total := days(rt, s, cay.UsageQuery{SandboxID: sb.ID})
		near := func(what string, got, want float64) {
			if math.Abs(got-want) > 1e-3 {
				rt.Fatalf("%s: %v, want %v", what, got, want)
			}
		}
		var sum cay.UsageAmounts
		for _, r := range rows {
			sum.Add(r.UsageAmounts)
			if s := r.RunningSeconds + r.PausedSeconds; s > 24*3600+1e-6 || r.Day.Before(epoch.Truncate(24*time.Hour)) || r.Day.After(at) {
				rt.Fatalf("on %v it was there for %v s", r.Day, s)
			}
		}
		for what, got := range map[string]cay.UsageAmounts{"of the days": sum, "in all": total.UsageAmounts} {
			near("running "+what, got.RunningSeconds, running)
			near("paused "+what, got.PausedSeconds, paused)
			near("CPU "+what, got.CPUSeconds, used.CPUSeconds)
			near("memory "+what, got.MemoryMBSeconds, used.MemoryMBSeconds)
			near("promised cores "+what, got.AllocatedCPUSeconds/sb.Spec.CPU, running)
			near("promised memory "+what, got.AllocatedMemoryMBSeconds/float64(sb.Spec.MemoryMB), running+paused)
			near("promised disk "+what, got.AllocatedDiskGBSeconds/sb.Spec.DiskGB, running+paused)
			if got.EgressBytes != used.EgressBytes {
				rt.Fatalf("egress %s: %d, want %d", what, got.EgressBytes, used.EgressBytes)
			}
		}
	})
}
