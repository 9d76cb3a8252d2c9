package lifecycle_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/lifecycle"
)

func TestARepeatedCreateOfAChosenIDFindsTheFirst(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	req := cay.CreateSandbox{ID: cay.NewID(cay.PrefixSandbox), ManagedBy: cay.NewID(cay.PrefixJob)}
	first, again := w.create(req), w.create(req)
	if first.ID != req.ID || again.ID != req.ID || first.Spec.ManagedBy != req.ManagedBy || !again.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("first %+v, again %+v, want one sandbox %s", first, again, req.ID)
	}
	if _, err := w.Delete(t.Context(), project, req.ID); err != nil {
		t.Fatal(err)
	}
	if late := w.create(req); late.Status != cay.Terminating {
		t.Errorf("a repeated create after the delete found a sandbox that is %s, want TERMINATING", late.Status)
	}
	other := req
	other.ManagedBy = cay.NewID(cay.PrefixJob)
	if _, err := w.Create(t.Context(), project, other); cay.ReasonOf(err) != cay.AlreadyExists {
		t.Errorf("the same id for another job: %v, want already_exists", err)
	}
	if _, err := w.Create(t.Context(), cay.NewID(cay.PrefixProject), req); cay.ReasonOf(err) != cay.AlreadyExists {
		t.Errorf("the same id for another project: %v, want already_exists", err)
	}
}

func TestWhatServesAJobIsNotCountedAsTheProjects(t *testing.T) {
	cfg := lifecycle.DefaultConfig()
	cfg.MaxSandboxes = 1
	w := start(t, cfg, worker)
	for range 2 {
		w.create(cay.CreateSandbox{ID: cay.NewID(cay.PrefixSandbox), ManagedBy: cay.NewID(cay.PrefixJob)})
	}
	w.create(cay.CreateSandbox{})
	if _, err := w.Create(t.Context(), project, cay.CreateSandbox{}); cay.ReasonOf(err) != cay.QuotaExceeded {
		t.Errorf("beyond the quota: %v, want quota_exceeded", err)
	}
}

func TestASessionNeedsAWellFormedIDAndAWorkerThatCanMount(t *testing.T) {
	mounting := worker
	mounting.CanMount = true
	for name, c := range map[string]struct {
		worker cay.Worker
		req    cay.CreateSandbox
		reason cay.ErrorReason
		field  string
	}{
		"no id":           {mounting, cay.CreateSandbox{SessionID: "x"}, cay.Unprocessable, "session_id"},
		"another kind":    {mounting, cay.CreateSandbox{SessionID: cay.NewID(cay.PrefixSandbox)}, cay.Unprocessable, "session_id"},
		"shared nothing":  {mounting, cay.CreateSandbox{SessionShared: true}, cay.InvalidRequest, "session_shared"},
		"rootless worker": {worker, cay.CreateSandbox{SessionID: cay.NewID(cay.PrefixSession)}, cay.NotImplemented, "session_id"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, lifecycle.DefaultConfig(), c.worker)
			_, err := w.Create(t.Context(), project, c.req)
			if e := asError(t, err); e.Field != c.field || e.Reason != c.reason {
				t.Errorf("%s on %q (%s), want %s on %q", e.Reason, e.Field, e.Detail, c.reason, c.field)
			}
		})
	}
}

func TestWhatKeptASandboxFromBootingInTimeIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		sb := w.create(cay.CreateSandbox{QueueTimeout: ptr(time.Minute)})
		leased := w.lease(cay.OpCreate)
		w.ok(w.Retry(t.Context(), leased.ID, leased.Attempt, 0, false, false, "its files cannot be read now"))
		after(time.Minute)
		if got := w.get(sb.ID); got.Status != cay.Failed || !strings.Contains(got.Detail, "its files cannot be read now") {
			t.Errorf("%s (%s, %q), want FAILED and why", got.Status, got.StatusReason, got.Detail)
		}
	})
}

func (w *world) session() cay.ID {
	w.t.Helper()
	at := time.Now().UTC().Truncate(time.Microsecond)
	s := &cay.Session{
		ID: cay.NewID(cay.PrefixSession), ProjectID: project, Status: cay.SessionActive, DiskGB: 1, TTL: time.Hour,
		CreatedAt: at, LastUsedAt: at, ExpiresAt: at.Add(time.Hour), Version: 1,
	}
	w.ok(w.store.InsertSession(w.t.Context(), s, 0))
	return s.ID
}

func TestASandboxWaitsForItsSessionWhileAnotherIsLeavingIt(t *testing.T) {
	mounting := worker
	mounting.CanMount = true
	for name, held := range map[string]cay.CreateSandbox{
		"a client's own": {},
		"a job's":        {ID: cay.NewID(cay.PrefixSandbox), ManagedBy: cay.NewID(cay.PrefixJob)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, lifecycle.DefaultConfig(), mounting)
				session := w.session()
				held.SessionID = session
				holder := w.ready(held)
				if _, err := w.Create(t.Context(), project, cay.CreateSandbox{SessionID: session}); asError(t, err).Extra["sandbox_id"] != string(holder.ID) {
					t.Fatalf("while it is held: %v", err)
				}
				_, err := w.Delete(t.Context(), project, holder.ID)
				w.ok(err)
				made := make(chan error, 1)
				go func() {
					_, err := w.Create(t.Context(), project, cay.CreateSandbox{SessionID: session})
					made <- err
				}()
				after(time.Second)
				select {
				case err := <-made:
					t.Fatalf("the other still has its files: %v", err)
				default:
				}
				leased := w.lease(cay.OpDestroy)
				w.ok(w.Destroyed(t.Context(), leased.ID, leased.Attempt, cay.Usage{}))
				w.ok(<-made)
			})
		})
	}
}
