package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

var historyTests = suite{
	"records come back as they were written, once":                  recordRoundTrip,
	"records page through everything once, in both orders":          recordPaging,
	"records filter by each of what they can be looked for by":      recordFilters,
	"a filter that little passes looks at a bounded part of a page": recordSearchBound,
	"the audit log comes back, pages and filters":                   auditLog,
	"records, usage and the audit log go when they are old":         historyPurge,
}

// record is one of an exec of the project that ended at a time.
func record(at time.Time) cay.Record {
	return cay.Record{
		ID: cay.NewID(cay.PrefixProcess), Kind: cay.RecordExec, ProjectID: project, Outcome: "exited", OK: true,
		StartedAt: at.Add(-time.Second), EndedAt: at, Duration: time.Second,
	}
}

func addRecord(t *testing.T, s store.Store, r cay.Record) cay.Record {
	t.Helper()
	must(t, s.AddRecords(t.Context(), []cay.Record{r}))
	return r
}

// recordIDs reads all pages.
func recordIDs(t *testing.T, s store.Store, q cay.RecordQuery) (ids []cay.ID, pages int) {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 100
	}
	for pages = 1; ; pages++ {
		items, next, err := s.ListRecords(t.Context(), project, q)
		must(t, err)
		if len(items) > q.Limit {
			t.Fatalf("a page of %d has %d records", q.Limit, len(items))
		}
		for _, r := range items {
			ids = append(ids, r.ID)
		}
		if next == "" {
			return ids, pages
		}
		q.Cursor = next
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); g != w {
		t.Fatalf("%s:\ngot  %s\nwant %s", what, g, w)
	}
}

func recordRoundTrip(t *testing.T, s store.Store) {
	code := 3
	full := cay.Record{
		ID: cay.NewID(cay.PrefixProcess), Kind: cay.RecordCode, ProjectID: project, KeyID: "key_1", SandboxID: "sbx_1", SessionID: "ses_1",
		Name: "n", Command: "print('\x00ü\n%')", Language: "python", Outcome: "exited", ExitCode: &code, Signal: "TERM",
		StartedAt: epoch, EndedAt: epoch.Add(time.Second), Duration: 999 * time.Nanosecond, StdoutBytes: 1, StderrBytes: 2,
		CPUSeconds: 0.25, PeakMemoryMB: 4, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
	}
	plain := record(epoch)
	must(t, s.AddRecords(t.Context(), []cay.Record{full, plain}))
	again := full
	again.Outcome = "changed"
	must(t, s.AddRecords(t.Context(), []cay.Record{again, plain}))
	got, err := s.Record(t.Context(), project, full.ID)
	must(t, err)
	if got.ExitCode == nil || *got.ExitCode != code {
		t.Fatalf("the exit code came back as %v", got.ExitCode)
	}
	got.ExitCode = full.ExitCode
	same(t, "a full record", got, full)
	got, err = s.Record(t.Context(), project, plain.ID)
	must(t, err)
	same(t, "a plain record", got, plain)
	items, _, err := s.ListRecords(t.Context(), project, cay.RecordQuery{Limit: 10})
	must(t, err)
	if len(items) != 2 {
		t.Fatalf("two records written twice are %d", len(items))
	}
	_, err = s.Record(t.Context(), cay.NewID(cay.PrefixProject), full.ID)
	wantReason(t, err, cay.NotFound)
	_, err = s.Record(t.Context(), project, cay.NewID(cay.PrefixProcess))
	wantReason(t, err, cay.NotFound)
	must(t, s.AddRecords(t.Context(), nil))
}

func recordPaging(t *testing.T, s store.Store) {
	var all []cay.Record
	for i := range 25 {
		r := record(epoch.Add(time.Duration(i/5) * time.Second)) // five share each time
		r.SandboxID, r.SessionID = "sbx_1", "ses_1"
		all = append(all, r)
	}
	foreign := record(epoch)
	foreign.ProjectID, foreign.SandboxID, foreign.SessionID = cay.NewID(cay.PrefixProject), "sbx_1", "ses_1"
	must(t, s.AddRecords(t.Context(), append(slices.Clone(all), foreign)))
	slices.SortFunc(all, func(a, b cay.Record) int {
		if c := a.EndedAt.Compare(b.EndedAt); c != 0 {
			return c
		}
		return slices.Compare([]byte(a.ID), []byte(b.ID))
	})
	for name, q := range map[string]cay.RecordQuery{"of the project": {}, "of a sandbox": {SandboxID: "sbx_1"}, "of a session": {SessionID: "ses_1"}} {
		for _, ascending := range []bool{true, false} {
			q.Limit, q.Ascending = 4, ascending
			got, _ := recordIDs(t, s, q)
			if !ascending {
				slices.Reverse(got)
			}
			var want []cay.ID
			for _, r := range all {
				want = append(want, r.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, ascending %v: got %d records %v", name, ascending, len(got), got)
			}
		}
	}
	if got, _ := recordIDs(t, s, cay.RecordQuery{AllProjects: true, Limit: 7}); len(got) != 26 || !slices.Contains(got, foreign.ID) {
		t.Errorf("of all projects there are %d, want 26", len(got))
	}
	for _, cursor := range []string{"x", "!!", "MTIz", string(make([]byte, 300))} {
		_, _, err := s.ListRecords(t.Context(), project, cay.RecordQuery{Limit: 1, Cursor: cursor})
		wantReason(t, err, cay.InvalidRequest)
	}
}

func recordFilters(t *testing.T, s store.Store) {
	yes, no := true, false
	want := addRecord(t, s, cay.Record{
		ID: cay.NewID(cay.PrefixProcess), Kind: cay.RecordCode, ProjectID: project, KeyID: "key_1", SandboxID: "sbx_1", SessionID: "ses_1", Name: "Nightly",
		Command: "echo 100%_Done", Outcome: "timeout", OK: false, StartedAt: epoch, EndedAt: epoch,
	})
	other := record(epoch.Add(time.Hour))
	other.SandboxID, other.SessionID, other.KeyID, other.Command, other.Name = "sbx_2", "ses_2", "key_2", "echo 1000 Done", "daily"
	addRecord(t, s, other)
	for name, q := range map[string]cay.RecordQuery{
		"kind": {Kinds: []cay.RecordKind{cay.RecordCode, cay.RecordJob}}, "id": {ID: want.ID}, "sandbox": {SandboxID: "sbx_1"}, "session": {SessionID: "ses_1"},
		"sandbox and session": {SandboxID: "sbx_1", SessionID: "ses_1"}, "key": {KeyID: "key_1"}, "outcome": {Outcomes: []string{"timeout", "oom"}}, "ok": {OK: &no},
		"text of the command": {Text: "0%_d"}, "text of the name": {Text: "NIGHT"}, "to": {To: epoch.Add(time.Hour)}, "from and to": {From: epoch, To: epoch.Add(time.Microsecond)},
	} {
		for _, ascending := range []bool{true, false} {
			q.Ascending = ascending
			if got, _ := recordIDs(t, s, q); !slices.Equal(got, []cay.ID{want.ID}) {
				t.Errorf("%s, ascending %v: finds %v", name, ascending, got)
			}
		}
	}
	for name, q := range map[string]cay.RecordQuery{
		"sandbox and another's session": {SandboxID: "sbx_1", SessionID: "ses_2"}, "text": {Text: "%one"}, "outcome": {Outcomes: []string{"oom"}},
		"ok with another's key": {OK: &yes, KeyID: "key_1"}, "from": {From: epoch.Add(time.Hour + time.Microsecond)},
	} {
		if got, _ := recordIDs(t, s, q); len(got) != 0 {
			t.Errorf("%s: finds %v", name, got)
		}
	}
}

func recordSearchBound(t *testing.T, s store.Store) {
	needle := record(epoch)
	needle.Command = "the needle"
	addRecord(t, s, needle)
	const n = 10_500
	batch := make([]cay.Record, 0, n)
	for i := range n {
		r := record(epoch.Add(time.Duration(i+1) * time.Millisecond))
		r.SandboxID, r.SessionID = "sbx_1", "ses_1"
		batch = append(batch, r)
	}
	must(t, s.AddRecords(t.Context(), batch))
	got, pages := recordIDs(t, s, cay.RecordQuery{Text: "NEEDLE"})
	if !slices.Equal(got, []cay.ID{needle.ID}) || pages != 2 {
		t.Errorf("the oldest of %d records is found as %v after %d pages, want 2", n, got, pages)
	}
	if got, pages := recordIDs(t, s, cay.RecordQuery{Text: "needle", Ascending: true}); !slices.Equal(got, []cay.ID{needle.ID}) || pages != 2 {
		t.Errorf("from the oldest on %v is found after %d pages, want 2", got, pages)
	}
	for name, q := range map[string]cay.RecordQuery{"sandbox": {SandboxID: "sbx_1"}, "session": {SessionID: "ses_1", Text: "needle"}} {
		q.Limit = 10
		items, next, err := s.ListRecords(t.Context(), cay.NewID(cay.PrefixProject), q)
		must(t, err)
		if len(items) != 0 || next != "" {
			t.Errorf("of another project's %s a page has %d records and the cursor %q, which tells where one stands", name, len(items), next)
		}
	}
}

func auditLog(t *testing.T, s store.Store) {
	entry := cay.AuditEntry{
		At: epoch, ProjectID: project, KeyID: "key_1", Action: "create-sandbox", Object: "sbx_1", Status: 403, Reason: "forbidden",
		RequestID: "r", TraceID: "t", RemoteAddr: "::1", UserAgent: "u",
	}
	nobody := cay.AuditEntry{At: epoch.Add(time.Second), Action: "list-sandboxes", Status: 401}
	must(t, s.AddAudit(t.Context(), []cay.AuditEntry{entry, nobody}))
	for i := range 9 {
		e := cay.AuditEntry{At: epoch.Add(-time.Duration(i) * time.Second), ProjectID: project, KeyID: "key_2", Action: "delete-sandbox", Object: fmt.Sprintf("sbx_%d", i+2), Status: 202}
		must(t, s.AddAudit(t.Context(), []cay.AuditEntry{e}))
	}
	list := func(q cay.AuditQuery) (all []cay.AuditEntry) {
		t.Helper()
		for q.Limit = 4; ; {
			items, next, err := s.ListAudit(t.Context(), project, q)
			must(t, err)
			all = append(all, items...)
			if next == "" {
				return all
			}
			q.Cursor = next
		}
	}
	for name, q := range map[string]cay.AuditQuery{
		"key": {KeyID: "key_1"}, "action": {Action: "create-sandbox"}, "object": {Object: "sbx_1"}, "from and to": {From: epoch, To: epoch.Add(time.Second), KeyID: "key_1"},
	} {
		got := list(q)
		if len(got) != 1 || got[0].Seq == 0 {
			t.Fatalf("%s: finds %+v", name, got)
		}
		got[0].Seq = 0
		same(t, name, got[0], entry)
	}
	for _, ascending := range []bool{true, false} {
		got := list(cay.AuditQuery{Ascending: ascending})
		if !ascending {
			slices.Reverse(got)
		}
		if len(got) != 10 || !slices.IsSortedFunc(got, func(a, b cay.AuditEntry) int { return a.At.Compare(b.At) }) {
			t.Errorf("ascending %v: got %+v", ascending, got)
		}
	}
	if got := list(cay.AuditQuery{AllProjects: true}); len(got) != 11 || got[0].ProjectID != "" {
		t.Errorf("all projects have %d entries, the newest is %+v", len(got), got[0])
	}
	_, _, err := s.ListAudit(t.Context(), project, cay.AuditQuery{Limit: 1, Cursor: store.Cursor{At: epoch, ID: "sbx_1"}.String()})
	wantReason(t, err, cay.InvalidRequest)
}

func historyPurge(t *testing.T, s store.Store) {
	now := epoch.Add(100 * 24 * time.Hour)
	old, kept := addRecord(t, s, record(now.Add(-31*24*time.Hour))), addRecord(t, s, record(now.Add(-29*24*time.Hour)))
	must(t, s.AddAudit(t.Context(), []cay.AuditEntry{{At: now.Add(-91 * 24 * time.Hour), ProjectID: project, Action: "old"}, {At: now, ProjectID: project, Action: "new"}}))
	used := Sandbox(epoch)
	insert(t, s, used)
	mutate(t, s, used.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Ready, "", now.Add(-11*24*time.Hour))) })
	mutate(t, s, used.ID, func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Terminating, cay.ReasonDeleted, now)) })
	keep := cay.Retention{
		Sandboxes: 1e6 * time.Hour, Records: 30 * 24 * time.Hour, MaxRecords: 100, Usage: 10 * 24 * time.Hour, Audit: 90 * 24 * time.Hour, MaxAudit: 100,
	}
	must(t, s.Purge(t.Context(), now, keep))
	if ids, _ := recordIDs(t, s, cay.RecordQuery{}); !slices.Equal(ids, []cay.ID{kept.ID}) {
		t.Errorf("%v are left, want %s, without %s", ids, kept.ID, old.ID)
	}
	entries, _, err := s.ListAudit(t.Context(), project, cay.AuditQuery{Limit: 10})
	must(t, err)
	if len(entries) != 1 || entries[0].Action != "new" {
		t.Errorf("%+v is left of the audit log", entries)
	}
	days, _, _, err := s.Usage(t.Context(), project, cay.UsageQuery{GroupBy: []cay.UsageGroup{cay.UsageByDay}, Limit: 100})
	must(t, err)
	// The day eleven days ago is over for ten days and some hours, but for the hour of now: ten whole days and today are left.
	if len(days) != 11 || !days[0].Day.Equal(now.Add(-10*24*time.Hour).Truncate(24*time.Hour)) {
		t.Errorf("%d days are left, from %v on", len(days), days)
	}

	var many []cay.Record
	for i := range 1200 {
		many = append(many, record(now.Add(time.Duration(i)*time.Second)))
	}
	must(t, s.AddRecords(t.Context(), many))
	keep.MaxRecords = 3
	must(t, s.Purge(t.Context(), now, keep))
	items, _, err := s.ListRecords(t.Context(), project, cay.RecordQuery{Limit: 10})
	must(t, err)
	if len(items) != 3 || !items[0].EndedAt.Equal(now.Add(1199*time.Second)) {
		t.Errorf("of more than a thousand %d are left, the newest of %v", len(items), items[0].EndedAt)
	}
}
