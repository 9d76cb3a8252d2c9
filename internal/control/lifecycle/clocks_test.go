package lifecycle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/lifecycle"
)

// after lets that much time pass and every clock strike.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestTheTTLEndsASandboxWhateverRunsInIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{TTL: ptr(time.Minute)}).ID
		w.Active(id, time.Now(), true, cay.Usage{})
		after(59 * time.Second)
		w.status(id, cay.Ready, "")
		after(time.Second)
		w.status(id, cay.Terminating, cay.ReasonTTLExpired)
	})
}

func TestAnIdleSandboxEndsAndEachKindOfActivityPutsItOff(t *testing.T) {
	for name, use := range map[string]func(w *world, id cay.ID){
		"entering":       func(w *world, id cay.ID) { _, err := w.Enter(w.t.Context(), project, id); w.ok(err) },
		"word of a node": func(w *world, id cay.ID) { w.Active(id, time.Now(), false, cay.Usage{}) },
		"an update": func(w *world, id cay.ID) {
			_, err := w.Update(w.t.Context(), project, id, cay.UpdateSandbox{})
			w.ok(err)
		},
		"a timeout": func(w *world, id cay.ID) {
			_, err := w.SetTimeout(w.t.Context(), project, id, time.Hour, true)
			w.ok(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, lifecycle.DefaultConfig(), worker)
				id := w.ready(cay.CreateSandbox{IdleTimeout: ptr(10 * time.Second)}).ID
				for range 5 {
					after(9 * time.Second)
					use(w, id)
				}
				after(9 * time.Second)
				w.status(id, cay.Ready, "")
				after(3 * time.Second)
				w.status(id, cay.Terminating, cay.ReasonIdleTimeout)
			})
		})
	}
}

func TestLookingIsNoActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{IdleTimeout: ptr(10 * time.Second)}).ID
		for range 12 {
			after(time.Second)
			w.get(id)
			if _, _, err := w.List(t.Context(), project, cay.SandboxQuery{}); err != nil {
				t.Fatal(err)
			}
		}
		w.status(id, cay.Terminating, cay.ReasonIdleTimeout)
	})
}

func TestAForegroundExecIsNeverIdleAndItsEndStartsTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{IdleTimeout: ptr(10 * time.Second)}).ID
		w.Active(id, time.Now(), true, cay.Usage{})
		after(10 * time.Minute)
		w.status(id, cay.Ready, "")
		w.Active(id, time.Now(), false, cay.Usage{})
		after(9 * time.Second)
		w.status(id, cay.Ready, "")
		after(3 * time.Second)
		w.status(id, cay.Terminating, cay.ReasonIdleTimeout)
	})
}

func TestAWorkerThatStartsAnewHoldsNothingInTheForeground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{IdleTimeout: ptr(10 * time.Second)}).ID
		w.Active(id, time.Now(), true, cay.Usage{})
		after(time.Minute)
		w.Released(worker.ID)
		after(12 * time.Second)
		w.status(id, cay.Terminating, cay.ReasonIdleTimeout)
	})
}

func TestAWorkersClockDoesNotKeepASandboxAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{IdleTimeout: ptr(10 * time.Second)}).ID
		w.Active(id, time.Now().Add(time.Hour), false, cay.Usage{})
		after(12 * time.Second)
		w.status(id, cay.Terminating, cay.ReasonIdleTimeout)
	})
}

func TestOnTimeoutPausePausesAndTheWholeTTLRunsAnewAfterIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{TTL: ptr(time.Minute), OnTimeout: cay.OnTimeoutPause, PausedTTL: ptr(time.Hour)}).ID
		after(time.Minute)
		w.frozen()
		w.status(id, cay.Paused, "")
		done := make(chan error, 1)
		go func() { _, err := w.Resume(context.Background(), project, id, nil); done <- err }()
		synctest.Wait()
		w.thawed()
		w.ok(<-done)
		if left := time.Until(w.get(id).ExpiresAt); left != time.Minute {
			t.Errorf("%v left after the resume, want a minute", left)
		}
		after(time.Minute)
		w.frozen()
		after(time.Hour)
		w.status(id, cay.Terminating, cay.ReasonPausedTTLExpired)
	})
}

func TestASandboxWhoseTimeIsUpAndThatCannotBePausedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{TTL: ptr(time.Minute), OnTimeout: cay.OnTimeoutPause}).ID
		after(time.Minute)
		sb := w.lease(cay.OpPause)
		w.ok(w.Refused(t.Context(), id, sb.Attempt, errors.New("no freezer")))
		after(2 * time.Second)
		w.status(id, cay.Terminating, cay.ReasonTTLExpired)
	})
}

func TestSetTimeoutMovesTheEndAndExtendOnlyNeverBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{TTL: ptr(time.Minute)}).ID
		set := func(ttl time.Duration, extendOnly bool, want time.Duration) {
			t.Helper()
			sb, err := w.SetTimeout(t.Context(), project, id, ttl, extendOnly)
			w.ok(err)
			if got := time.Until(sb.ExpiresAt); got != want {
				t.Errorf("%v left, want %v", got, want)
			}
		}
		set(time.Hour, false, time.Hour)
		set(time.Minute, true, time.Hour)
		set(10*time.Minute, false, 10*time.Minute)
		set(1000*24*time.Hour, false, 30*24*time.Hour)
		set(time.Second, false, time.Second)
		after(time.Second)
		w.status(id, cay.Terminating, cay.ReasonTTLExpired)
		if _, err := w.SetTimeout(t.Context(), project, id, time.Hour, false); cay.ReasonOf(err) != cay.Gone {
			t.Errorf("after the end: %v", err)
		}
		for _, ttl := range []time.Duration{0, -1, (1<<31 + 1) * time.Second} {
			if _, err := w.SetTimeout(t.Context(), project, id, ttl, false); cay.ReasonOf(err) != cay.InvalidRequest {
				t.Errorf("ttl %v: %v", ttl, err)
			}
		}
	})
}

func TestACreateThatFindsNoRoomInTimeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.create(cay.CreateSandbox{QueueTimeout: ptr(time.Minute)}).ID
		waited := make(chan *cay.Sandbox, 1)
		go func() { sb, _ := w.Wait(context.Background(), project, id, cay.Ready); waited <- sb }()
		after(time.Minute)
		if sb := <-waited; sb.Status != cay.Failed || sb.StatusReason != cay.ReasonNoCapacity || sb.Detail == "" {
			t.Errorf("the waiter got %s %s %q", sb.Status, sb.StatusReason, sb.Detail)
		}
	})
}

func TestABootUnderWayMayOutlastTheQueueTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.create(cay.CreateSandbox{QueueTimeout: ptr(10 * time.Second)}).ID
		sb := w.lease(cay.OpCreate)
		after(20 * time.Second)
		w.status(id, cay.Creating, "")
		w.ok(w.Booted(t.Context(), id, sb.Attempt, cay.CreateMS{}))
		w.status(id, cay.Ready, "")
	})
}

func TestClocksGoOnAfterARestartOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{TTL: ptr(time.Minute)}).ID
		idle := w.ready(cay.CreateSandbox{IdleTimeout: ptr(40 * time.Second)}).ID
		after(20 * time.Second)
		_, err := w.Enter(t.Context(), project, idle)
		w.ok(err)
		w.ok(w.Stop(t.Context())) // writes the activity that only memory knew
		later := over(t, w.store, lifecycle.DefaultConfig(), worker)
		defer later.Stop(context.Background())
		after(39 * time.Second)
		later.status(id, cay.Ready, "")
		later.status(idle, cay.Ready, "")
		after(time.Second)
		later.status(id, cay.Terminating, cay.ReasonTTLExpired)
		after(2 * time.Second)
		later.status(idle, cay.Terminating, cay.ReasonIdleTimeout)
	})
}

func TestActivityAndUsageAreWrittenBehindInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{}).ID
		before, err := w.store.Sandbox(t.Context(), id)
		w.ok(err)
		after(10 * time.Second)
		w.Active(id, time.Now(), false, cay.Usage{CPUSeconds: 3, DiskMB: 5})
		at := time.Now()
		row, err := w.store.Sandbox(t.Context(), id)
		w.ok(err)
		if !row.LastActiveAt.Equal(before.LastActiveAt) {
			t.Error("activity went to the store by itself")
		}
		if sb := w.get(id); !sb.LastActiveAt.Equal(at) || sb.Usage.CPUSeconds != 3 {
			t.Errorf("memory knows %v and %+v", sb.LastActiveAt, sb.Usage)
		}
		after(30 * time.Second)
		row, err = w.store.Sandbox(t.Context(), id)
		w.ok(err)
		if !row.LastActiveAt.Equal(at) || row.Usage.DiskMB != 5 || row.Version != before.Version {
			t.Errorf("the store has %v, %+v at version %d", row.LastActiveAt, row.Usage, row.Version)
		}
	})
}

func TestWhatAWorkerReportsEndsTheSandboxOnceWithItsReason(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	ctx := t.Context()
	id := w.ready(cay.CreateSandbox{}).ID
	w.ok(w.ProcessKilled(ctx, id, time.Now(), "prc_1", 7, 900))
	w.ok(w.Ended(ctx, "wrk_other", id, cay.ReasonOOM, "", cay.Usage{}))
	w.status(id, cay.Ready, "")
	w.ok(w.Ended(ctx, worker.ID, id, cay.ReasonOOM, "out of memory", cay.Usage{PeakMemoryMB: 1024}))
	w.ok(w.Ended(ctx, worker.ID, id, cay.ReasonWorkerLost, "", cay.Usage{}))
	w.ok(w.Ended(ctx, worker.ID, cay.NewID(cay.PrefixSandbox), cay.ReasonOOM, "", cay.Usage{}))
	w.status(id, cay.Terminating, cay.ReasonOOM)
	if sb := w.get(id); sb.Usage.PeakMemoryMB != 1024 || sb.Detail != "out of memory" {
		t.Errorf("in the end: %+v", sb)
	}
	events, _, err := w.store.Events(ctx, project, cay.EventQuery{SandboxID: id, Limit: 10})
	w.ok(err)
	if len(events) != 3 || events[0].Data["to"] != "READY" || events[1].Type != "oom" || events[2].Data["reason"] != "oom" {
		t.Errorf("events %+v", events)
	}
}
