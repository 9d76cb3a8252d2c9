package lifecycle_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/lifecycle"
	"github.com/cayhq/cay/internal/control/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	project = cay.NewID(cay.PrefixProject)
	worker  = cay.Worker{
		ID: cay.NewID(cay.PrefixWorker), CPU: 4, MemoryMB: 8192, DiskGB: 100, CanFreeze: true,
		Enforced: []string{"cpu", "memory_mb", "disk_gb", "pids"},
		Runtimes: []cay.Runtime{{Name: "python", Image: "host"}, {Name: "bash", Image: "host"}},
	}
)

type fixedWorkers []cay.Worker

func (w fixedWorkers) Workers() []cay.Worker { return w }

// world is a life cycle over a real store, with the test in the scheduler's place.
type world struct {
	*lifecycle.Sandboxes
	t     *testing.T
	store *sqlite.Store
	woken chan struct{}
}

func start(t *testing.T, cfg lifecycle.Config, workers ...cay.Worker) *world {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"))
	if err != nil {
		t.Fatal(err)
	}
	w := over(t, s, cfg, workers...)
	t.Cleanup(func() {
		if err := w.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func over(t *testing.T, s *sqlite.Store, cfg lifecycle.Config, workers ...cay.Worker) *world {
	t.Helper()
	w := &world{t: t, store: s, woken: make(chan struct{}, 1)}
	w.Sandboxes = lifecycle.New(cfg, s, fixedWorkers(workers), slog.New(slog.DiscardHandler))
	if err := w.Start(t.Context(), func() {
		select {
		case w.woken <- struct{}{}:
		default:
		}
	}); err != nil {
		t.Fatal(err)
	}
	return w
}

// lease takes the one row that is due, as the scheduler would.
func (w *world) lease(want cay.Operation) *cay.Sandbox {
	w.t.Helper()
	now := time.Now()
	rows, err := w.store.Lease(w.t.Context(), now, cay.Lease{Owner: "test", Until: now.Add(30 * time.Second)},
		[]cay.Operation{cay.OpCreate, cay.OpDestroy, cay.OpPause, cay.OpResume}, 1,
		func(*cay.Sandbox, []cay.WorkerLoad) (cay.ID, bool) { return worker.ID, true })
	if err != nil {
		w.t.Fatal(err)
	}
	if len(rows) != 1 || rows[0].Op != want {
		w.t.Fatalf("due: %+v, want one %s", rows, want)
	}
	return rows[0]
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) create(req cay.CreateSandbox) *cay.Sandbox {
	w.t.Helper()
	sb, err := w.Create(w.t.Context(), project, req)
	w.ok(err)
	return sb
}

// ready creates a sandbox and boots it.
func (w *world) ready(req cay.CreateSandbox) *cay.Sandbox {
	w.t.Helper()
	w.create(req)
	leased := w.lease(cay.OpCreate)
	w.ok(w.Booted(w.t.Context(), leased.ID, leased.Attempt, cay.CreateMS{Queue: 1, Schedule: 2, Boot: 3}))
	return w.get(leased.ID)
}

func (w *world) get(id cay.ID) *cay.Sandbox {
	w.t.Helper()
	sb, err := w.Get(w.t.Context(), project, id)
	w.ok(err)
	return sb
}

func (w *world) status(id cay.ID, want cay.Status, reason cay.StatusReason) {
	w.t.Helper()
	if sb := w.get(id); sb.Status != want || sb.StatusReason != reason {
		w.t.Fatalf("sandbox is %s %q, want %s %q", sb.Status, sb.StatusReason, want, reason)
	}
}

func (w *world) frozen() {
	w.t.Helper()
	sb := w.lease(cay.OpPause)
	w.ok(w.Frozen(w.t.Context(), sb.ID, sb.Attempt))
}

func (w *world) thawed() {
	w.t.Helper()
	sb := w.lease(cay.OpResume)
	w.ok(w.Thawed(w.t.Context(), sb.ID, sb.Attempt))
}

func ptr[T any](v T) *T { return &v }

func asError(t *testing.T, err error) *cay.Error {
	t.Helper()
	var e *cay.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a domain error", err)
	}
	return e
}

func TestWhatIsNotSaidGetsItsDefault(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	sb := w.ready(cay.CreateSandbox{})
	s := sb.Spec
	if s.Image != "host" || s.CPU != 1 || s.MemoryMB != 1024 || s.DiskGB != 4 || s.Pids != 512 || s.TTL != time.Hour || s.IdleTimeout != 0 ||
		s.PausedTTL != 24*time.Hour || s.OnTimeout != cay.OnTimeoutTerminate || !s.AutoResume || s.User != "sandbox" || s.Workdir != "/workspace" ||
		s.Network == nil || len(s.ExplicitLimits) != 0 {
		t.Errorf("spec %+v", s)
	}
	if sb.Status != cay.Ready || sb.WorkerID != worker.ID || sb.ExpiresAt.Sub(sb.ReadyAt) != time.Hour || sb.CreateMS.Boot != 3 || sb.Op != cay.OpNone {
		t.Errorf("sandbox %+v", sb)
	}
}

func TestARequestThatCannotBeIsRefusedByFieldAndReason(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	many := map[string]string{}
	for i := range 65 {
		many[strings.Repeat("k", i+1)] = "v"
	}
	for name, c := range map[string]struct {
		req    cay.CreateSandbox
		field  string
		reason cay.ErrorReason
	}{
		"ttl 0":              {cay.CreateSandbox{TTL: ptr(time.Duration(0))}, "ttl_seconds", cay.InvalidRequest},
		"ttl -1":             {cay.CreateSandbox{TTL: ptr(-time.Second)}, "ttl_seconds", cay.InvalidRequest},
		"ttl 2^31+1":         {cay.CreateSandbox{TTL: ptr((1<<31 + 1) * time.Second)}, "ttl_seconds", cay.InvalidRequest},
		"idle -1":            {cay.CreateSandbox{IdleTimeout: ptr(-time.Second)}, "idle_timeout_seconds", cay.InvalidRequest},
		"paused ttl 0":       {cay.CreateSandbox{PausedTTL: ptr(time.Duration(0))}, "paused_ttl_seconds", cay.InvalidRequest},
		"queue -1":           {cay.CreateSandbox{QueueTimeout: ptr(-time.Second)}, "queue_timeout_seconds", cay.InvalidRequest},
		"on_timeout":         {cay.CreateSandbox{OnTimeout: "explode"}, "on_timeout", cay.InvalidRequest},
		"cpu 0":              {cay.CreateSandbox{CPU: ptr(0.0)}, "cpu", cay.InvalidRequest},
		"cpu NaN":            {cay.CreateSandbox{CPU: ptr(math.NaN())}, "cpu", cay.InvalidRequest},
		"cpu -1":             {cay.CreateSandbox{CPU: ptr(-1.0)}, "cpu", cay.InvalidRequest},
		"cpu 10000":          {cay.CreateSandbox{CPU: ptr(10000.0)}, "cpu", cay.Unprocessable},
		"cpu Inf":            {cay.CreateSandbox{CPU: ptr(math.Inf(1))}, "cpu", cay.Unprocessable},
		"memory -1":          {cay.CreateSandbox{MemoryMB: ptr(int64(-1))}, "memory_mb", cay.InvalidRequest},
		"memory 2^40":        {cay.CreateSandbox{MemoryMB: ptr(int64(1 << 40))}, "memory_mb", cay.Unprocessable},
		"disk 0":             {cay.CreateSandbox{DiskGB: ptr(0.0)}, "disk_gb", cay.InvalidRequest},
		"disk 1e9":           {cay.CreateSandbox{DiskGB: ptr(1e9)}, "disk_gb", cay.Unprocessable},
		"pids 0":             {cay.CreateSandbox{Pids: ptr(int64(0))}, "pids", cay.InvalidRequest},
		"pids 10^9":          {cay.CreateSandbox{Pids: ptr(int64(1e9))}, "pids", cay.Unprocessable},
		"image":              {cay.CreateSandbox{Image: "python:3.12"}, "image", cay.InvalidImage},
		"image and runtime":  {cay.CreateSandbox{Image: "host", Runtime: "python"}, "runtime", cay.InvalidRequest},
		"runtime":            {cay.CreateSandbox{Runtime: "cobol"}, "runtime", cay.Unprocessable},
		"network":            {cay.CreateSandbox{Network: []string{"*"}}, "network", cay.NotImplemented},
		"user":               {cay.CreateSandbox{User: "a:b:c"}, "user", cay.InvalidRequest},
		"workdir":            {cay.CreateSandbox{Workdir: "workspace"}, "workdir", cay.InvalidRequest},
		"env name":           {cay.CreateSandbox{Env: map[string]string{"A=B": ""}}, "env", cay.InvalidRequest},
		"env empty name":     {cay.CreateSandbox{Env: map[string]string{"": "x"}}, "env", cay.InvalidRequest},
		"env NUL":            {cay.CreateSandbox{Env: map[string]string{"A": "a\x00b"}}, "env", cay.InvalidRequest},
		"env size":           {cay.CreateSandbox{Env: map[string]string{"A": strings.Repeat("x", 1<<20)}}, "env", cay.InvalidRequest},
		"metadata keys":      {cay.CreateSandbox{Metadata: many}, "metadata", cay.InvalidRequest},
		"metadata size":      {cay.CreateSandbox{Metadata: map[string]string{"k": strings.Repeat("x", 1<<10)}}, "metadata", cay.InvalidRequest},
		"metadata empty key": {cay.CreateSandbox{Metadata: map[string]string{"": "x"}}, "metadata", cay.InvalidRequest},
	} {
		_, err := w.Create(t.Context(), project, c.req)
		if e := asError(t, err); e.Field != c.field || e.Reason != c.reason {
			t.Errorf("%s: %s on %q (%s), want %s on %q", name, e.Reason, e.Field, e.Detail, c.reason, c.field)
		}
	}
	_, err := w.Create(t.Context(), project, cay.CreateSandbox{Runtime: "cobol"})
	if e := asError(t, err); !strings.Contains(e.Detail, "bash, python") {
		t.Errorf("the refusal does not name the runtimes there are: %s", e.Detail)
	}
}

func TestALongTTLIsCappedAndARuntimeBringsItsImage(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	sb := w.create(cay.CreateSandbox{TTL: ptr(100 * 24 * time.Hour), Runtime: "python", CPU: ptr(2.0), Env: map[string]string{"A": "x=\n", "B": ""}})
	if sb.Spec.TTL != 30*24*time.Hour || sb.Spec.Image != "host" || sb.Spec.Runtime != "python" || sb.Spec.Env["A"] != "x=\n" ||
		len(sb.Spec.ExplicitLimits) != 1 || sb.Spec.ExplicitLimits[0] != "cpu" {
		t.Errorf("spec %+v", sb.Spec)
	}
}

func TestALimitThatNoWorkerKeepsIsRefusedUnlessTheOperatorAllowsIt(t *testing.T) {
	rootless := worker
	rootless.Enforced, rootless.CanFreeze = []string{"disk_gb"}, false
	w := start(t, lifecycle.DefaultConfig(), rootless)
	_, err := w.Create(t.Context(), project, cay.CreateSandbox{MemoryMB: ptr(int64(512))})
	if e := asError(t, err); e.Reason != cay.Unprocessable || e.Field != "memory_mb" {
		t.Errorf("got %v", e)
	}
	_, err = w.Create(t.Context(), project, cay.CreateSandbox{OnTimeout: cay.OnTimeoutPause})
	if e := asError(t, err); e.Reason != cay.Unprocessable || e.Field != "on_timeout" {
		t.Errorf("got %v", e)
	}
	w.create(cay.CreateSandbox{DiskGB: ptr(1.0)})

	cfg := lifecycle.DefaultConfig()
	cfg.AllowUnenforcedLimits = true
	sb := start(t, cfg, rootless).create(cay.CreateSandbox{MemoryMB: ptr(int64(512))})
	if len(sb.Spec.ExplicitLimits) != 0 {
		t.Errorf("the node is told to keep %v", sb.Spec.ExplicitLimits)
	}
}

func TestAnotherProjectsSandboxIsNotFound(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	id := w.ready(cay.CreateSandbox{}).ID
	other, ctx := cay.NewID(cay.PrefixProject), t.Context()
	for name, call := range map[string]func() error{
		"get":     func() error { _, err := w.Get(ctx, other, id); return err },
		"wait":    func() error { _, err := w.Wait(ctx, other, id, cay.Paused); return err },
		"delete":  func() error { _, err := w.Delete(ctx, other, id); return err },
		"pause":   func() error { _, err := w.Pause(ctx, other, id); return err },
		"resume":  func() error { _, err := w.Resume(ctx, other, id, nil); return err },
		"timeout": func() error { _, err := w.SetTimeout(ctx, other, id, time.Hour, false); return err },
		"update":  func() error { _, err := w.Update(ctx, other, id, cay.UpdateSandbox{}); return err },
		"enter":   func() error { _, err := w.Enter(ctx, other, id); return err },
	} {
		if err := call(); cay.ReasonOf(err) != cay.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.status(id, cay.Ready, "")
}

func TestADeleteWhileCreatingEndsTheWaitAndFencesTheBoot(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	id := w.create(cay.CreateSandbox{}).ID
	boot := w.lease(cay.OpCreate)
	waited := make(chan *cay.Sandbox)
	go func() {
		sb, _ := w.Wait(context.Background(), project, id, cay.Ready)
		waited <- sb
	}()
	sb, err := w.Delete(t.Context(), project, id)
	w.ok(err)
	if sb.Status != cay.Terminating || sb.StatusReason != cay.ReasonDeleted {
		t.Errorf("deleted: %s %s", sb.Status, sb.StatusReason)
	}
	if got := <-waited; got.Status != cay.Terminating {
		t.Errorf("the waiter got %s", got.Status)
	}
	destroy := w.lease(cay.OpDestroy)
	if destroy.Attempt <= boot.Attempt {
		t.Errorf("destroy has attempt %d, the boot had %d", destroy.Attempt, boot.Attempt)
	}
	if err := w.Booted(t.Context(), id, boot.Attempt, cay.CreateMS{}); cay.ReasonOf(err) != cay.Conflict {
		t.Errorf("the boot of an older attempt counted: %v", err)
	}
	w.ok(w.Destroyed(t.Context(), id, destroy.Attempt, cay.Usage{CPUSeconds: 2}))
	w.status(id, cay.Terminated, cay.ReasonDeleted)
	if got := w.get(id); got.Usage.CPUSeconds != 2 || got.EndedAt.IsZero() || got.Op != cay.OpNone {
		t.Errorf("in the end: %+v", got)
	}
	again, err := w.Delete(t.Context(), project, id)
	w.ok(err)
	if again.Status != cay.Terminated {
		t.Errorf("deleted again: %s", again.Status)
	}
	_, err = w.Enter(t.Context(), project, id)
	if e := asError(t, err); e.Reason != cay.Gone || e.Extra["status_reason"] != "deleted" {
		t.Errorf("enter afterwards: %v", e)
	}
}

func TestEveryOutcomeOfAnOlderAttemptIsRefused(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	id := w.create(cay.CreateSandbox{}).ID
	old := w.lease(cay.OpCreate).Attempt
	w.ok(w.Retry(t.Context(), id, old, 0, false, true, ""))
	w.lease(cay.OpCreate)
	ctx := t.Context()
	for name, err := range map[string]error{
		"booted":    w.Booted(ctx, id, old, cay.CreateMS{}),
		"failed":    w.BootFailed(ctx, id, old, cay.ReasonBootFailed, "x"),
		"destroyed": w.Destroyed(ctx, id, old, cay.Usage{}),
		"frozen":    w.Frozen(ctx, id, old),
		"thawed":    w.Thawed(ctx, id, old),
		"refused":   w.Refused(ctx, id, old, errors.New("x")),
		"retry":     w.Retry(ctx, id, old, 0, true, true, ""),
	} {
		if cay.ReasonOf(err) != cay.Conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.status(id, cay.Creating, "")
}

func TestAFailedBootKeepsItsDetailAndIsDestroyed(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	id := w.create(cay.CreateSandbox{}).ID
	w.ok(w.BootFailed(t.Context(), id, w.lease(cay.OpCreate).Attempt, cay.ReasonBootFailed, "no such thing"))
	w.status(id, cay.Failed, cay.ReasonBootFailed)
	sb := w.lease(cay.OpDestroy)
	w.ok(w.Destroyed(t.Context(), id, sb.Attempt, cay.Usage{}))
	w.status(id, cay.Failed, cay.ReasonBootFailed)
	if got := w.get(id); got.Detail != "no such thing" || got.Op != cay.OpNone {
		t.Errorf("in the end: %+v", got)
	}
}

func TestQuotaCountsActiveSandboxesOnly(t *testing.T) {
	cfg := lifecycle.DefaultConfig()
	cfg.MaxSandboxes = 1
	w := start(t, cfg, worker)
	id := w.ready(cay.CreateSandbox{}).ID
	if _, err := w.Create(t.Context(), project, cay.CreateSandbox{}); cay.ReasonOf(err) != cay.QuotaExceeded {
		t.Errorf("past the quota: %v", err)
	}
	_, err := w.Delete(t.Context(), project, id)
	w.ok(err)
	w.create(cay.CreateSandbox{})
}

func TestPauseAndResumeAreIdempotentAndJoinEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{TTL: ptr(time.Hour)}).ID
		time.Sleep(20 * time.Minute)
		paused := make(chan error, 3)
		for range 3 {
			go func() {
				sb, err := w.Pause(context.Background(), project, id)
				if err == nil && sb.Status != cay.Paused {
					err = errors.New("it is " + string(sb.Status))
				}
				paused <- err
			}()
		}
		synctest.Wait()
		w.frozen()
		for range 3 {
			w.ok(<-paused)
		}
		sb, err := w.Pause(t.Context(), project, id)
		w.ok(err)
		if sb.TTLLeft != 40*time.Minute {
			t.Errorf("%v left of the TTL, want 40 minutes", sb.TTLLeft)
		}
		time.Sleep(10 * time.Hour) // longer than the TTL, shorter than the paused TTL
		w.status(id, cay.Paused, "")
		resumed := make(chan *cay.Sandbox, 1)
		go func() { sb, _ := w.Resume(context.Background(), project, id, nil); resumed <- sb }()
		synctest.Wait()
		w.thawed()
		if sb := <-resumed; sb.Status != cay.Ready || time.Until(sb.ExpiresAt) != 40*time.Minute {
			t.Errorf("resumed: %s, %v left", sb.Status, time.Until(sb.ExpiresAt))
		}
		sb, err = w.Resume(t.Context(), project, id, ptr(5*time.Minute))
		w.ok(err)
		if time.Until(sb.ExpiresAt) != 5*time.Minute {
			t.Errorf("a ttl on a READY one: %v left", time.Until(sb.ExpiresAt))
		}
	})
}

func TestANodeThatRefusesToPauseIsHeardByWhoWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{}).ID
		done := make(chan error, 1)
		go func() { _, err := w.Pause(context.Background(), project, id); done <- err }()
		synctest.Wait()
		sb := w.lease(cay.OpPause)
		w.ok(w.Refused(t.Context(), id, sb.Attempt, cay.Errorf(cay.NotImplemented, "this host cannot freeze")))
		if err := <-done; cay.ReasonOf(err) != cay.NotImplemented {
			t.Errorf("the caller got %v", err)
		}
		w.status(id, cay.Ready, "")
	})
}

func TestAPausedSandboxIsEnteredByResumingItOrNotAtAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		for _, auto := range []bool{true, false} {
			id := w.ready(cay.CreateSandbox{AutoResume: &auto}).ID
			go func() { _, _ = w.Pause(context.Background(), project, id) }()
			synctest.Wait()
			if _, err := w.Enter(expired(t), project, id); err == nil {
				t.Error("a sandbox that is being paused was entered")
			}
			w.frozen()
			synctest.Wait()
			if !auto {
				if _, err := w.Enter(t.Context(), project, id); cay.ReasonOf(err) != cay.SandboxPaused {
					t.Errorf("entered a paused one: %v", err)
				}
				continue
			}
			entered := make(chan *cay.Sandbox, 1)
			go func() { sb, _ := w.Enter(context.Background(), project, id); entered <- sb }()
			synctest.Wait()
			w.thawed()
			if sb := <-entered; sb == nil || sb.Status != cay.Ready {
				t.Errorf("entered %+v", sb)
			}
		}
	})
}

// expired is a context whose deadline is one second ahead in the bubble's time.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestAResumeThatJoinsAnotherStillGetsItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{}).ID
		go func() { _, _ = w.Pause(context.Background(), project, id) }()
		synctest.Wait()
		w.frozen()
		done := make(chan *cay.Sandbox, 2)
		for _, ttl := range []*time.Duration{nil, ptr(5 * time.Minute)} {
			go func() { sb, _ := w.Resume(context.Background(), project, id, ttl); done <- sb }()
			synctest.Wait()
		}
		w.thawed()
		for range 2 {
			if sb := <-done; sb == nil || sb.Status != cay.Ready || time.Until(sb.ExpiresAt) != 5*time.Minute {
				t.Errorf("resumed: %+v", sb)
			}
		}
	})
}
