package storetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

func access(t *testing.T, s store.Store) {
	ctx := t.Context()
	p := cay.Project{ID: cay.NewID(cay.PrefixProject), Name: "one", CreatedAt: epoch}
	must(t, s.InsertProject(ctx, p))
	wantReason(t, s.InsertProject(ctx, cay.Project{ID: cay.NewID(cay.PrefixProject), Name: "one", CreatedAt: epoch}), cay.AlreadyExists)
	if got, err := s.ProjectByName(ctx, "one"); err != nil || got != p {
		t.Errorf("by name: %+v, %v", got, err)
	}
	if got, err := s.Project(ctx, p.ID); err != nil || got != p {
		t.Errorf("by id: %+v, %v", got, err)
	}
	_, err := s.ProjectByName(ctx, "two")
	wantReason(t, err, cay.NotFound)
	if all, err := s.Projects(ctx); err != nil || len(all) != 1 {
		t.Errorf("projects: %v, %v", all, err)
	}

	k := cay.Key{
		ID: cay.NewID(cay.PrefixKey), ProjectID: p.ID, Name: "k", Hash: sha256.Sum256([]byte("a")), Hint: "cay_0000",
		Scopes: []cay.Scope{cay.ScopeExec, cay.ScopeFiles}, CreatedAt: epoch, ExpiresAt: epoch.Add(time.Hour),
	}
	must(t, s.InsertKey(ctx, k))
	got, err := s.KeyByHash(ctx, k.Hash)
	must(t, err)
	if got.ID != k.ID || got.Hash != k.Hash || len(got.Scopes) != 2 || !got.ExpiresAt.Equal(k.ExpiresAt) || !got.RevokedAt.IsZero() {
		t.Errorf("got key %+v", got)
	}
	_, err = s.KeyByHash(ctx, sha256.Sum256([]byte("b")))
	wantReason(t, err, cay.NotFound)

	wantReason(t, s.RevokeKey(ctx, cay.NewID(cay.PrefixProject), k.ID, epoch), cay.NotFound)
	must(t, s.RevokeKey(ctx, p.ID, k.ID, epoch))
	must(t, s.RevokeKey(ctx, p.ID, k.ID, epoch.Add(time.Hour)))
	got, err = s.Key(ctx, k.ID)
	must(t, err)
	if !got.RevokedAt.Equal(epoch) {
		t.Errorf("revoked at %v, want the first time", got.RevokedAt)
	}

	next := k
	next.ID, next.Hash = cay.NewID(cay.PrefixKey), sha256.Sum256([]byte("c"))
	must(t, s.ReplaceKey(ctx, next, k.ID))
	keys, err := s.Keys(ctx, p.ID)
	must(t, err)
	if len(keys) != 1 || keys[0].ID != next.ID {
		t.Errorf("after the replacement: %+v", keys)
	}
}

func tickets(t *testing.T, s store.Store) {
	want := cay.Ticket{Hash: sha256.Sum256([]byte("t")), KeyID: "key_1", Method: "GET", URL: "/v1/x?a=b", ExpiresAt: epoch}
	must(t, s.InsertTicket(t.Context(), want))
	var taken, missed atomic.Int64
	together(20, func(int) {
		switch got, err := s.TakeTicket(context.Background(), want.Hash); cay.ReasonOf(err) {
		case "":
			if got != want {
				t.Errorf("got %+v", got)
			}
			taken.Add(1)
		case cay.NotFound:
			missed.Add(1)
		default:
			t.Error(err)
		}
	})
	if taken.Load() != 1 || missed.Load() != 19 {
		t.Errorf("taken %d times, missed %d times", taken.Load(), missed.Load())
	}
}

func idempotency(t *testing.T, s store.Store) {
	ctx, i := t.Context(), s.Idempotency()
	print, other := sha256.Sum256([]byte("body")), sha256.Sum256([]byte("other"))
	var claimed atomic.Int64
	together(20, func(int) {
		rec, fresh, err := i.Begin(context.Background(), project, "POST /v1/sandboxes", "k", print, "")
		if err != nil || rec.Done {
			t.Errorf("%+v, %v", rec, err)
		}
		if fresh {
			claimed.Add(1)
		}
	})
	if claimed.Load() != 1 {
		t.Fatalf("claimed %d times", claimed.Load())
	}
	_, _, err := i.Begin(ctx, project, "POST /v1/sandboxes", "k", other, "")
	wantReason(t, err, cay.IdempotencyMismatch)
	must(t, i.Finish(ctx, project, "POST /v1/sandboxes", "k", 201, "sbx_1"))
	rec, fresh, err := i.Begin(ctx, project, "POST /v1/sandboxes", "k", print, "")
	must(t, err)
	if fresh || !rec.Done || rec.Status != 201 || rec.ObjectID != "sbx_1" {
		t.Errorf("fresh %v, record %+v", fresh, rec)
	}
	for _, elsewhere := range []struct{ project, route, key string }{
		{"prj_2", "POST /v1/sandboxes", "k"}, {string(project), "POST /v1/x", "k"}, {string(project), "POST /v1/sandboxes", "K"},
	} {
		if _, fresh, err := i.Begin(ctx, cay.ID(elsewhere.project), elsewhere.route, elsewhere.key, other, ""); err != nil || !fresh {
			t.Errorf("%+v: fresh %v, %v", elsewhere, fresh, err)
		}
	}
	wantReason(t, i.Finish(ctx, project, "r", "never claimed", 200, ""), cay.NotFound)
	must(t, i.Abandon(ctx, project, "POST /v1/sandboxes", "k")) // what was made has failed after all: the key is free again
	if _, fresh, err = i.Begin(ctx, project, "POST /v1/sandboxes", "k", print, ""); err != nil || !fresh {
		t.Errorf("an abandoned answer is still kept: fresh %v, %v", fresh, err)
	}
}

func abandoned(t *testing.T, s store.Store) {
	i, print := s.Idempotency(), sha256.Sum256([]byte("body"))
	for range 2 {
		_, fresh, err := i.Begin(t.Context(), project, "r", "k", print, "")
		must(t, err)
		if !fresh {
			t.Fatal("the key was not free")
		}
		must(t, i.Abandon(t.Context(), project, "r", "k"))
	}
}

func events(t *testing.T, s store.Store) {
	for n := range 5 {
		must(t, s.AddEvent(t.Context(), cay.Event{SandboxID: "sbx_1", ProjectID: project, Type: "oom", At: epoch, Data: map[string]any{"n": float64(n)}}))
	}
	must(t, s.AddEvent(t.Context(), cay.Event{SandboxID: "sbx_1", ProjectID: "prj_2", Type: "oom", At: epoch}))
	must(t, s.AddEvent(t.Context(), cay.Event{SandboxID: "sbx_2", ProjectID: project, Type: "oom", At: epoch}))
	first, kept, err := s.Events(t.Context(), project, cay.EventQuery{SandboxID: "sbx_1", Limit: 3})
	must(t, err)
	rest, _, err := s.Events(t.Context(), project, cay.EventQuery{SandboxID: "sbx_1", After: first[2].Seq, Limit: 10})
	must(t, err)
	if len(first) != 3 || len(rest) != 2 || kept.Oldest != first[0].Seq || kept.Newest != first[0].Seq+6 {
		t.Fatalf("%d and %d events, kept %+v", len(first), len(rest), kept)
	}
	for n, e := range append(first, rest...) {
		if e.Data["n"] != float64(n) {
			t.Errorf("event %d has data %v", n, e.Data)
		}
	}
	all, _, err := s.Events(t.Context(), project, cay.EventQuery{Limit: 100})
	must(t, err)
	if len(all) != 6 {
		t.Errorf("the project has %d events, want 6", len(all))
	}
}

func serverSecrets(t *testing.T, s store.Store) {
	const servers = 8
	got := make([][]byte, servers)
	var wg sync.WaitGroup
	for i := range servers {
		wg.Go(func() {
			var err error
			if got[i], err = s.ServerSecret(t.Context(), "signed_urls", []byte{byte(i), 1}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range servers {
		if len(got[i]) != 2 || !bytes.Equal(got[i], got[0]) {
			t.Errorf("server %d has the secret %x, server 0 has %x", i, got[i], got[0])
		}
	}
	other, err := s.ServerSecret(t.Context(), "port_tokens", []byte("other"))
	must(t, err)
	if string(other) != "other" {
		t.Errorf("the secret of another name is %x", other)
	}
}

func purge(t *testing.T, s store.Store) {
	ctx := t.Context()
	end := func(at time.Time, op cay.Operation) cay.ID {
		sb := insert(t, s, Sandbox(epoch))
		mutate(t, s, sb.ID, func(sb *cay.Sandbox) {
			sb.Op = op
			must(t, sb.Transition(cay.Failed, cay.ReasonBootFailed, at))
		})
		return sb.ID
	}
	now := epoch.Add(31 * 24 * time.Hour)
	old, fresh, unfinished := end(epoch, cay.OpNone), end(now.Add(-time.Hour), cay.OpNone), end(epoch, cay.OpDestroy)
	live := insert(t, s, Sandbox(epoch)).ID
	for n := range 10 {
		must(t, s.AddEvent(ctx, cay.Event{SandboxID: live, ProjectID: project, Type: "oom", At: now.Add(-time.Duration(n%2) * 48 * time.Hour)}))
	}
	must(t, s.InsertTicket(ctx, cay.Ticket{Hash: [32]byte{1}, ExpiresAt: now.Add(-time.Second)}))
	must(t, s.InsertTicket(ctx, cay.Ticket{Hash: [32]byte{2}, ExpiresAt: now.Add(time.Second)}))
	must(t, s.Purge(ctx, now, cay.Retention{Sandboxes: 30 * 24 * time.Hour, Events: 24 * time.Hour, MaxEvents: 3, Idempotency: time.Hour}))

	_, err := s.Sandbox(ctx, old)
	wantReason(t, err, cay.NotFound)
	for _, id := range []cay.ID{fresh, unfinished, live} {
		_, err := s.Sandbox(ctx, id)
		must(t, err)
	}
	list, _, err := s.Events(ctx, project, cay.EventQuery{Limit: 100})
	must(t, err)
	if len(list) == 0 || len(list) > 3 {
		t.Errorf("%d events are left, want one to three", len(list))
	}
	_, err = s.TakeTicket(ctx, [32]byte{1})
	wantReason(t, err, cay.NotFound)
	_, err = s.TakeTicket(ctx, [32]byte{2})
	must(t, err)
	must(t, s.AddEvent(ctx, cay.Event{SandboxID: live, ProjectID: project, Type: "oom", At: now}))
	again, _, err := s.Events(ctx, project, cay.EventQuery{After: list[len(list)-1].Seq, Limit: 100})
	must(t, err)
	if len(again) != 1 {
		t.Error("a new event does not come after the purged ones")
	}
}

func calledOff(t *testing.T, s store.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sb := Sandbox(epoch)
	if err := s.InsertSandbox(ctx, sb, 0, 0); err == nil {
		// The store may have taken it up at once; then it must be there.
		_, err := s.Sandbox(t.Context(), sb.ID)
		must(t, err)
		return
	}
	_, err := s.Sandbox(t.Context(), sb.ID)
	wantReason(t, err, cay.NotFound)
}
