// Package storetest is the suite that every store passes: what the control plane relies on, one sentence for each test. It does not
// know how rows are laid out.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

// Run runs the suite. open makes an empty store and closes it when the test ends.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, tests := range []suite{rowTests, jobTests, jobQueueTests, sessionTests, historyTests, accountingTests} {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) { test(t, open(t)) })
		}
	}
}

// suite is tests by the sentence that each one proves.
type suite map[string]func(t *testing.T, s store.Store)

var rowTests = suite{
	"a sandbox comes back as it was written":                            roundTrip,
	"a change that fails leaves the row as it was":                      failedChange,
	"changes at the same time are all there in the end":                 concurrentChanges,
	"an event is written with its change or not at all":                 eventsWithChanges,
	"quota and queue bound hold against creates at the same time":       bounds,
	"last activity never moves back and adds no version":                touch,
	"lists page through everything once, in both orders":                paging,
	"lists filter by status and by metadata with awkward keys":          filters,
	"a foreign cursor is refused by name":                               badCursor,
	"a row is leased by one of many":                                    leaseOnce,
	"a lease that ran out is taken again with a higher attempt":         leaseExpiry,
	"a lease is renewed only at its attempt":                            renewal,
	"a row before its time and a row without operation are not leased":  notDue,
	"what is picked counts at once for the next pick":                   reservations,
	"an ended sandbox holds its place until it is destroyed":            placeUntilDestroyed,
	"another scheduler's leases are released, one's own are not":        takeOver,
	"a worker that reports again keeps its registration":                workers,
	"keys and projects come back, and revocation stays as it first was": access,
	"a ticket is taken by one of many":                                  tickets,
	"an idempotency key is claimed once and answers afterwards":         idempotency,
	"an abandoned idempotency key can be claimed again":                 abandoned,
	"events are ordered and paged":                                      events,
	"a server secret is made once for all servers":                      serverSecrets,
	"new events name their sandboxes":                                   eventsSince,
	"ports keep what their token is made of":                            ports,
	"a purge removes what is old and nothing else":                      purge,
	"what was called off before it began is not written":                calledOff,
}

// tester is the part of testing.TB that a property test has as well.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func must(t tester, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantReason(t tester, err error, reason cay.ErrorReason) {
	t.Helper()
	if cay.ReasonOf(err) != reason {
		t.Fatalf("got error %v, want reason %s", err, reason)
	}
}

var (
	project = cay.NewID(cay.PrefixProject)
	epoch   = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
)

// Sandbox is a row CREATING, made at the time, for tests.
func Sandbox(at time.Time) *cay.Sandbox {
	return &cay.Sandbox{
		ID: cay.NewID(cay.PrefixSandbox), ProjectID: project, Status: cay.Creating, CreatedAt: at, LastActiveAt: at,
		QueueDeadline: at.Add(5 * time.Minute), Op: cay.OpCreate, Version: 1,
		Spec: cay.SandboxSpec{
			Image: "host", CPU: 1, MemoryMB: 1024, DiskGB: 4, Pids: 512, TTL: time.Hour, PausedTTL: time.Hour,
			OnTimeout: cay.OnTimeoutTerminate, AutoResume: true, Network: []string{}, Env: map[string]string{"A": "1\n=2"},
			Metadata: map[string]string{}, User: "sandbox", Workdir: "/workspace",
		},
	}
}

func insert(t *testing.T, s store.Store, sb *cay.Sandbox) *cay.Sandbox {
	t.Helper()
	must(t, s.InsertSandbox(t.Context(), sb, 0, 0))
	return sb
}

func mutate(t *testing.T, s store.Store, id cay.ID, change func(*cay.Sandbox)) *cay.Sandbox {
	t.Helper()
	sb, err := s.MutateSandbox(t.Context(), id, func(sb *cay.Sandbox) ([]cay.Event, error) { change(sb); return nil, nil })
	must(t, err)
	return sb
}

// together runs f n times at once and waits.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() { <-start; f(i) })
	}
	close(start)
	wg.Wait()
}

func equal(t *testing.T, got, want *cay.Sandbox) {
	t.Helper()
	if g, w := fmt.Sprintf("%+v", *got), fmt.Sprintf("%+v", *want); g != w {
		t.Fatalf("got  %s\nwant %s", g, w)
	}
}

func roundTrip(t *testing.T, s store.Store) {
	sb := Sandbox(epoch)
	sb.Spec.Metadata = map[string]string{`a."b'`: "ü日本"}
	insert(t, s, sb)
	got, err := s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, got, sb)

	changed := mutate(t, s, sb.ID, func(sb *cay.Sandbox) {
		must(t, sb.Transition(cay.Ready, "", epoch.Add(time.Second)))
		sb.WorkerID, sb.Op, sb.Detail, sb.TTLLeft = "wrk_1", cay.OpPause, "why", 3*time.Nanosecond
		sb.PausedAt, sb.NotBefore, sb.LeaseOwner, sb.LeaseUntil = epoch, epoch, "me", epoch
		sb.CreateMS = cay.CreateMS{Queue: 1, Schedule: 2, Boot: 3, Total: 6}
		sb.Usage = cay.Usage{CPUSeconds: 1.5, MemoryMBSeconds: 2.5, PeakMemoryMB: 3, DiskMB: 4, EgressBytes: 5}
		sb.Attempt, sb.FailureCount = 7, 8
		sb.Spec.Metadata = map[string]string{"k": "v"}
		sb.Spec.IdleTimeout, sb.Spec.OnTimeout = time.Minute, cay.OnTimeoutPause
	})
	if changed.Version != 2 {
		t.Errorf("version is %d after one change, want 2", changed.Version)
	}
	got, err = s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, got, changed)

	_, err = s.Sandbox(t.Context(), cay.NewID(cay.PrefixSandbox))
	wantReason(t, err, cay.NotFound)
	_, err = s.MutateSandbox(t.Context(), cay.NewID(cay.PrefixSandbox), func(*cay.Sandbox) ([]cay.Event, error) { return nil, nil })
	wantReason(t, err, cay.NotFound)
}

func failedChange(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	refusal := errors.New("no")
	got, err := s.MutateSandbox(t.Context(), sb.ID, func(sb *cay.Sandbox) ([]cay.Event, error) {
		sb.Detail = "half done"
		return []cay.Event{{SandboxID: sb.ID, ProjectID: project, Type: "status", At: epoch}}, refusal
	})
	if !errors.Is(err, refusal) {
		t.Fatalf("got %v, want the change's own error", err)
	}
	equal(t, got, sb)
	read, err := s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	equal(t, read, sb)
	list, _, err := s.Events(t.Context(), project, cay.EventQuery{Limit: 10})
	must(t, err)
	if len(list) != 0 {
		t.Errorf("the failed change left %d events", len(list))
	}
}

func concurrentChanges(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	const n = 100
	together(n, func(int) {
		if _, err := s.MutateSandbox(context.Background(), sb.ID, func(sb *cay.Sandbox) ([]cay.Event, error) {
			sb.FailureCount++
			return nil, nil
		}); err != nil {
			t.Error(err)
		}
	})
	got, err := s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	if got.FailureCount != n || got.Version != n+1 {
		t.Errorf("%d changes gave count %d at version %d", n, got.FailureCount, got.Version)
	}
}

func eventsWithChanges(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	_, err := s.MutateSandbox(t.Context(), sb.ID, func(sb *cay.Sandbox) ([]cay.Event, error) {
		return []cay.Event{{SandboxID: sb.ID, ProjectID: project, Type: "status", At: epoch, Data: map[string]any{"status": "READY"}}}, nil
	})
	must(t, err)
	list, kept, err := s.Events(t.Context(), project, cay.EventQuery{SandboxID: sb.ID, Limit: 10})
	must(t, err)
	if len(list) != 1 || list[0].Type != "status" || list[0].Data["status"] != "READY" || !list[0].At.Equal(epoch) || kept != (cay.EventSpan{Oldest: list[0].Seq, Newest: list[0].Seq}) {
		t.Errorf("got events %+v, kept %+v", list, kept)
	}
}

func bounds(t *testing.T, s store.Store) {
	var ok, quota atomic.Int64
	together(20, func(int) {
		switch err := s.InsertSandbox(context.Background(), Sandbox(epoch), 5, 0); cay.ReasonOf(err) {
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
	err := s.InsertSandbox(t.Context(), Sandbox(epoch), 0, 5)
	wantReason(t, err, cay.NoCapacity)
	var e *cay.Error
	if errors.As(err, &e); e.RetryAfter <= 0 {
		t.Error("a full queue does not say when to come again")
	}
	other := Sandbox(epoch)
	other.ProjectID = cay.NewID(cay.PrefixProject)
	must(t, s.InsertSandbox(t.Context(), other, 5, 0))
}

func touch(t *testing.T, s store.Store) {
	a, b := insert(t, s, Sandbox(epoch)), insert(t, s, Sandbox(epoch))
	later := *a
	later.LastActiveAt, later.Usage = epoch.Add(time.Minute), cay.Usage{CPUSeconds: 2, DiskMB: 9}
	earlier := *b
	earlier.LastActiveAt = epoch.Add(-time.Minute)
	must(t, s.TouchSandboxes(t.Context(), []*cay.Sandbox{&later, &earlier}))
	got, err := s.Sandbox(t.Context(), a.ID)
	must(t, err)
	equal(t, got, &later)
	got, err = s.Sandbox(t.Context(), b.ID)
	must(t, err)
	equal(t, got, b)
}

func paging(t *testing.T, s store.Store) {
	var want []cay.ID
	for i := range 25 {
		at := epoch.Add(time.Duration(i/5) * time.Second) // five share each time
		want = append(want, insert(t, s, Sandbox(at)).ID)
	}
	foreign := Sandbox(epoch)
	foreign.ProjectID = cay.NewID(cay.PrefixProject)
	insert(t, s, foreign)
	for _, ascending := range []bool{true, false} {
		var got []cay.ID
		q := cay.SandboxQuery{Limit: 4, Ascending: ascending}
		for pages := 0; ; pages++ {
			items, next, err := s.ListSandboxes(t.Context(), project, q)
			must(t, err)
			for _, sb := range items {
				got = append(got, sb.ID)
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
		if len(got) != len(want) || len(slices.Compact(slices.Clone(got))) != len(want) {
			t.Errorf("ascending %v: got %d items, want %d", ascending, len(got), len(want))
		}
		for i, id := range got {
			if !slices.Contains(want[i/5*5:i/5*5+5], id) {
				t.Errorf("ascending %v: item %d is out of order", ascending, i)
			}
		}
	}
	items, _, err := s.ListSandboxes(t.Context(), project, cay.SandboxQuery{Limit: 100, CreatedAfter: epoch.Add(2 * time.Second)})
	must(t, err)
	if len(items) != 10 {
		t.Errorf("%d sandboxes were made after the third second, want 10", len(items))
	}
}

func filters(t *testing.T, s store.Store) {
	keys := []string{"plain", "a.b", `qu"ote`, "ap'os", "$.x", "[0]", `back\slash`, "ü日本", "new\nline", "%", "a b"}
	ids := map[string]cay.ID{}
	for i, key := range keys {
		sb := Sandbox(epoch.Add(time.Duration(i) * time.Second))
		sb.Spec.Metadata = map[string]string{key: "v=" + key, "all": "yes"}
		ids[key] = insert(t, s, sb).ID
	}
	list := func(q cay.SandboxQuery) []cay.ID {
		t.Helper()
		q.Limit = 100
		items, _, err := s.ListSandboxes(t.Context(), project, q)
		must(t, err)
		var got []cay.ID
		for _, sb := range items {
			got = append(got, sb.ID)
		}
		return got
	}
	for _, key := range keys {
		for _, ascending := range []bool{true, false} {
			got := list(cay.SandboxQuery{Metadata: map[string]string{key: "v=" + key, "all": "yes"}, Ascending: ascending})
			if len(got) != 1 || got[0] != ids[key] {
				t.Errorf("key %q finds %v", key, got)
			}
		}
		if got := list(cay.SandboxQuery{Metadata: map[string]string{key: "v"}}); len(got) != 0 {
			t.Errorf("key %q with another value finds %v", key, got)
		}
	}
	if got := list(cay.SandboxQuery{Metadata: map[string]string{"plain": "v=plain", "a.b": "v=a.b"}}); len(got) != 0 {
		t.Errorf("pairs of two sandboxes find %v", got)
	}
	mutate(t, s, ids["a.b"], func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Ready, "", epoch)) })
	mutate(t, s, ids["%"], func(sb *cay.Sandbox) { must(t, sb.Transition(cay.Failed, cay.ReasonBootFailed, epoch)) })
	if got := list(cay.SandboxQuery{Statuses: []cay.Status{cay.Ready, cay.Failed}}); len(got) != 2 {
		t.Errorf("READY and FAILED find %d, want 2", len(got))
	}
	if got := list(cay.SandboxQuery{Statuses: []cay.Status{cay.Ready}, Metadata: map[string]string{"all": "yes"}}); len(got) != 1 || got[0] != ids["a.b"] {
		t.Errorf("READY with metadata finds %v", got)
	}
}

func badCursor(t *testing.T, s store.Store) {
	for _, cursor := range []string{"x", "!!", "MTIz", store.Cursor{At: epoch, ID: "prj_x"}.String(), string(make([]byte, 200))} {
		_, _, err := s.ListSandboxes(t.Context(), project, cay.SandboxQuery{Limit: 1, Cursor: cursor})
		wantReason(t, err, cay.InvalidRequest)
		var e *cay.Error
		if errors.As(err, &e); e.Field != "cursor" {
			t.Errorf("cursor %q: the error names the field %q", cursor, e.Field)
		}
	}
}
