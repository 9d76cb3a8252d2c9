package storetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

var creates = []cay.Operation{cay.OpCreate}

func anywhere(*cay.Sandbox, []cay.WorkerLoad) (cay.ID, bool) { return "", true }

func lease(t *testing.T, s store.Store, now time.Time, owner string, limit int) []*cay.Sandbox {
	t.Helper()
	rows, err := s.Lease(t.Context(), now, cay.Lease{Owner: owner, Until: now.Add(30 * time.Second)}, creates, limit, anywhere)
	must(t, err)
	return rows
}

func leaseOnce(t *testing.T, s store.Store) {
	const n = 30
	for range n {
		insert(t, s, Sandbox(epoch))
	}
	var mu sync.Mutex
	taken := map[cay.ID]int{}
	together(8, func(int) {
		for {
			rows, err := s.Lease(context.Background(), epoch, cay.Lease{Owner: "me", Until: epoch.Add(time.Minute)}, creates, 3, anywhere)
			if err != nil {
				t.Error(err)
				return
			}
			if len(rows) == 0 {
				return
			}
			mu.Lock()
			for _, sb := range rows {
				taken[sb.ID]++
			}
			mu.Unlock()
		}
	})
	if len(taken) != n {
		t.Errorf("%d rows were leased, want %d", len(taken), n)
	}
	for id, times := range taken {
		if times != 1 {
			t.Errorf("%s was leased %d times", id, times)
		}
	}
}

func leaseExpiry(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	first := lease(t, s, epoch, "a", 1)
	if len(first) != 1 || first[0].Attempt != 1 || first[0].Version != sb.Version+1 || first[0].LeaseOwner != "a" {
		t.Fatalf("first lease: %+v", first)
	}
	if again := lease(t, s, epoch.Add(29*time.Second), "b", 1); len(again) != 0 {
		t.Fatal("a row was leased while the lease ran")
	}
	second := lease(t, s, epoch.Add(31*time.Second), "b", 1)
	if len(second) != 1 || second[0].Attempt != 2 {
		t.Fatalf("after the lease ran out: %+v", second)
	}
}

func renewal(t *testing.T, s store.Store) {
	sb := insert(t, s, Sandbox(epoch))
	lease(t, s, epoch, "a", 1)
	later := cay.Lease{Owner: "a", Until: epoch.Add(time.Hour)}
	lost, err := s.RenewLeases(t.Context(), later, map[cay.ID]int64{sb.ID: 1})
	must(t, err)
	if len(lost) != 0 {
		t.Errorf("a lease that is held was called lost")
	}
	if again := lease(t, s, epoch.Add(time.Minute), "b", 1); len(again) != 0 {
		t.Error("the renewed lease did not hold")
	}
	got, err := s.Sandbox(t.Context(), sb.ID)
	must(t, err)
	if got.Version != 2 {
		t.Errorf("a renewal changed the version to %d", got.Version)
	}
	for owner, attempt := range map[string]int64{"a": 2, "b": 1} {
		lost, err := s.RenewLeases(t.Context(), cay.Lease{Owner: owner, Until: epoch.Add(2 * time.Hour)}, map[cay.ID]int64{sb.ID: attempt})
		must(t, err)
		if !slices.Equal(lost, []cay.ID{sb.ID}) {
			t.Errorf("owner %s at attempt %d could renew", owner, attempt)
		}
	}
}

func notDue(t *testing.T, s store.Store) {
	early := Sandbox(epoch)
	early.NotBefore = epoch.Add(time.Second)
	insert(t, s, early)
	idle := Sandbox(epoch)
	idle.Op = cay.OpNone
	insert(t, s, idle)
	other := Sandbox(epoch)
	other.Op = cay.OpDestroy
	insert(t, s, other)
	if rows := lease(t, s, epoch, "a", 10); len(rows) != 0 {
		t.Fatalf("leased %d rows, none was due", len(rows))
	}
	if rows := lease(t, s, epoch.Add(time.Second), "a", 10); len(rows) != 1 || rows[0].ID != early.ID {
		t.Fatalf("a row whose time has come was not leased: %v", rows)
	}
}

func reservations(t *testing.T, s store.Store) {
	w := cay.Worker{ID: cay.NewID(cay.PrefixWorker), CPU: 3, MemoryMB: 8192, DiskGB: 100, HeartbeatAt: epoch}
	must(t, s.PutWorker(t.Context(), w))
	for range 5 {
		insert(t, s, Sandbox(epoch))
	}
	fit := func(sb *cay.Sandbox, loads []cay.WorkerLoad) (cay.ID, bool) {
		return loads[0].ID, loads[0].UsedCPU+sb.Spec.CPU <= loads[0].CPU
	}
	rows, err := s.Lease(t.Context(), epoch, cay.Lease{Owner: "a", Until: epoch.Add(time.Minute)}, creates, 10, fit)
	must(t, err)
	if len(rows) != 3 {
		t.Fatalf("%d of five fit on three cores", len(rows))
	}
	loads, err := s.Workers(t.Context())
	must(t, err)
	if l := loads[0]; l.UsedCPU != 3 || l.UsedMemoryMB != 3072 || l.UsedDiskGB != 12 || l.Sandboxes != 3 {
		t.Errorf("reserved: %+v", l)
	}
	rows, err = s.Lease(t.Context(), epoch, cay.Lease{Owner: "a", Until: epoch.Add(time.Minute)}, creates, 10, fit)
	must(t, err)
	if len(rows) != 0 {
		t.Error("a full worker was given more")
	}
}

func placeUntilDestroyed(t *testing.T, s store.Store) {
	w := cay.Worker{ID: cay.NewID(cay.PrefixWorker), HeartbeatAt: epoch}
	must(t, s.PutWorker(t.Context(), w))
	sb := insert(t, s, Sandbox(epoch))
	used := func() int64 {
		loads, err := s.Workers(t.Context())
		must(t, err)
		return loads[0].Sandboxes
	}
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) {
		sb.WorkerID, sb.Op = w.ID, cay.OpDestroy
		must(t, sb.Transition(cay.Failed, cay.ReasonBootFailed, epoch))
	})
	if used() != 1 {
		t.Error("a failed sandbox gave up its place before it was destroyed")
	}
	mutate(t, s, sb.ID, func(sb *cay.Sandbox) { sb.Op = cay.OpNone })
	if used() != 0 {
		t.Error("a destroyed sandbox holds a place")
	}
	live, err := s.LiveSandboxes(t.Context())
	must(t, err)
	if len(live) != 0 {
		t.Error("a failed sandbox counts as live")
	}
}

func takeOver(t *testing.T, s store.Store) {
	insert(t, s, Sandbox(epoch))
	insert(t, s, Sandbox(epoch.Add(time.Second)))
	lease(t, s, epoch, "dead", 1)
	lease(t, s, epoch, "me", 1)
	n, err := s.ReleaseOtherLeases(t.Context(), "me")
	must(t, err)
	if n != 1 {
		t.Errorf("released %d leases, want 1", n)
	}
	if rows := lease(t, s, epoch, "me", 10); len(rows) != 1 || rows[0].Attempt != 2 {
		t.Errorf("the dead one's row was not free: %v", rows)
	}
}

func workers(t *testing.T, s store.Store) {
	w := cay.Worker{
		ID: cay.NewID(cay.PrefixWorker), Version: "1", Isolation: "gvisor", CPU: 2, MemoryMB: 1, DiskGB: 1.5, MaxSandboxes: 9,
		Enforced: []string{"cpu"}, CanFreeze: true, Boot: "a", HeartbeatAt: epoch,
		Runtimes: []cay.Runtime{{Name: "python", Version: "3", Image: "host", Exec: []string{"python3"}}},
	}
	must(t, s.PutWorker(t.Context(), w))
	w.Boot, w.HeartbeatAt, w.CPU = "b", epoch.Add(time.Minute), 4
	must(t, s.PutWorker(t.Context(), w))
	loads, err := s.Workers(t.Context())
	must(t, err)
	if len(loads) != 1 {
		t.Fatalf("%d workers", len(loads))
	}
	got := loads[0].Worker
	if got.Boot != "b" || got.CPU != 4 || !got.RegisteredAt.Equal(epoch) || !got.HeartbeatAt.Equal(w.HeartbeatAt) || !got.CanFreeze ||
		got.Runtimes[0].Exec[0] != "python3" || !got.Enforces([]string{"cpu"}) || got.Enforces([]string{"cpu", "pids"}) {
		t.Errorf("got %+v", got)
	}
}
