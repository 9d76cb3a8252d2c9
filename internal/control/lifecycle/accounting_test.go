package lifecycle_test

import (
	"context"
	"log/slog"
	"math"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/lifecycle"
	"github.com/cayhq/cay/internal/control/store/sqlite"
)

// present lets time pass while the worker says, each 10 s, that it has the sandbox.
func (w *world) present(id cay.ID, d time.Duration) {
	for ; d > 0; d -= 10 * time.Second {
		after(min(d, 10*time.Second))
		w.Present([]cay.ID{id}, time.Now())
	}
}

// used is what the store says to have been used, by day.
func (w *world) used() (days []cay.UsageRow, total cay.UsageRow) {
	w.t.Helper()
	days, total, _, err := w.store.Usage(w.t.Context(), project, cay.UsageQuery{GroupBy: []cay.UsageGroup{cay.UsageByDay}, Limit: 100})
	w.ok(err)
	return days, total
}

func (w *world) wantUsed(what string, running, paused time.Duration) {
	w.t.Helper()
	_, total := w.used()
	if math.Abs(total.RunningSeconds-running.Seconds()) > 1e-6 || math.Abs(total.PausedSeconds-paused.Seconds()) > 1e-6 {
		w.t.Fatalf("%s: %v s running and %v s paused are counted, want %v and %v", what, total.RunningSeconds, total.PausedSeconds, running, paused)
	}
}

func TestTheTimeOfASandboxThatNobodyUsesIsWrittenAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{CPU: ptr(0.5), MemoryMB: ptr(int64(256))}).ID
		w.present(id, 10*time.Minute)
		_, total := w.used()
		if behind := 600 - total.RunningSeconds; behind < 0 || behind > 40 {
			t.Errorf("after ten minutes %v s are written", total.RunningSeconds)
		}
		if total.AllocatedCPUSeconds != total.RunningSeconds/2 || total.AllocatedMemoryMBSeconds != total.RunningSeconds*256 {
			t.Errorf("promised %+v", total)
		}
		_, err := w.Delete(t.Context(), project, id)
		w.ok(err)
		w.wantUsed("at the end", 10*time.Minute, 0)
		after(time.Hour)
		gone := w.lease(cay.OpDestroy)
		w.ok(w.Destroyed(t.Context(), id, gone.Attempt, cay.Usage{CPUSeconds: 3}))
		w.wantUsed("an hour after its end was asked for", 10*time.Minute, 0)
		if _, total := w.used(); total.CPUSeconds != 3 {
			t.Errorf("what it used until it was gone is %v s of CPU, want 3", total.CPUSeconds)
		}
	})
}

func TestUsageIsTheDaysInWhichItWasUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		after(time.Until(midnight.Add(-15 * time.Minute)))
		id := w.ready(cay.CreateSandbox{TTL: ptr(2 * time.Hour)}).ID
		for cpu := range 30 {
			w.Active(id, time.Now(), false, cay.Usage{CPUSeconds: float64(cpu + 1)})
			w.present(id, time.Minute)
		}
		w.Active(id, time.Now(), false, cay.Usage{CPUSeconds: 12}) // a node whose counter was set back
		w.present(id, time.Minute)
		w.Active(id, time.Now(), false, cay.Usage{CPUSeconds: 31})
		_, err := w.Delete(t.Context(), project, id)
		w.ok(err)
		days, total := w.used()
		if len(days) != 2 || !days[1].Day.Equal(midnight) || math.Abs(days[0].RunningSeconds-15*60) > 1e-6 || math.Abs(days[1].RunningSeconds-16*60) > 1e-6 {
			t.Fatalf("%+v", days)
		}
		if math.Abs(total.CPUSeconds-31) > 1e-9 || math.Abs(days[0].CPUSeconds-15) > 1 {
			t.Errorf("CPU of the two days: %v and %v, want about 15 and 16", days[0].CPUSeconds, days[1].CPUSeconds)
		}
	})
}

func TestAPauseCountsAsPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{CPU: ptr(2.0)}).ID
		w.present(id, 5*time.Minute)
		w.operate(w.Pause, id, w.frozen)
		w.present(id, 25*time.Minute)
		if _, total := w.used(); total.PausedSeconds < 25*60-40 {
			t.Errorf("while it is paused %v s are written", total.PausedSeconds)
		}
		w.operate(func(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
			return w.Resume(ctx, project, id, nil)
		}, id, w.thawed)
		w.present(id, 3*time.Minute)
		_, err := w.Delete(t.Context(), project, id)
		w.ok(err)
		w.wantUsed("in all", 8*time.Minute, 25*time.Minute)
		if _, total := w.used(); math.Abs(total.AllocatedCPUSeconds-2*8*60) > 1e-6 || math.Abs(total.AllocatedMemoryMBSeconds-1024*33*60) > 1e-3 {
			t.Errorf("promised %+v", total)
		}
	})
}

// operate asks for a pause or resume, does it as the scheduler would, and waits for the answer.
func (w *world) operate(ask func(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error), id cay.ID, do func()) {
	w.t.Helper()
	done := make(chan error, 1)
	go func() { _, err := ask(w.t.Context(), project, id); done <- err }()
	synctest.Wait()
	do()
	w.ok(<-done)
}

func TestTimeInWhichNobodyKnowsTheSandboxToHaveRunIsNotCounted(t *testing.T) {
	for name, test := range map[string]struct {
		end  func(w *world, id cay.ID)
		want time.Duration
	}{
		"its worker finds it gone": {func(w *world, id cay.ID) {
			w.ok(w.Ended(w.t.Context(), worker.ID, id, cay.ReasonWorkerLost, "gone", cay.Usage{}))
		}, 5 * time.Minute},
		"it is deleted while its worker is out of reach": {func(w *world, id cay.ID) { _, err := w.Delete(w.t.Context(), project, id); w.ok(err) }, 5 * time.Minute},
		"its worker has it again": {func(w *world, id cay.ID) {
			w.Present([]cay.ID{id}, time.Now())
			_, err := w.Delete(w.t.Context(), project, id)
			w.ok(err)
		}, 35 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, lifecycle.DefaultConfig(), worker)
				id := w.ready(cay.CreateSandbox{}).ID
				w.present(id, 5*time.Minute)
				after(30 * time.Minute)
				w.wantUsed("while nothing is heard", 5*time.Minute, 0)
				test.end(w, id)
				w.wantUsed("at the end", test.want, 0)
			})
		})
	}
}

func TestAServerThatWasKilledCountsNothingTwiceAndNothingLess(t *testing.T) {
	for name, test := range map[string]struct {
		ttl, down time.Duration
		next      func(w *world, id cay.ID)
		want      time.Duration
		late      time.Duration // that much less may be counted
	}{
		"the sandbox ran on": {time.Hour, 10 * time.Minute, func(w *world, id cay.ID) {
			w.Present([]cay.ID{id}, time.Now())
			w.present(id, 5*time.Minute)
			_, err := w.Delete(w.t.Context(), project, id)
			w.ok(err)
		}, 20*time.Minute + 7*time.Second, 0},
		"the sandbox is deleted at once": {time.Hour, 10 * time.Minute, func(w *world, id cay.ID) {
			_, err := w.Delete(w.t.Context(), project, id)
			w.ok(err)
		}, 15*time.Minute + 7*time.Second, 0},
		"the sandbox's time was over": {10 * time.Minute, time.Hour, func(w *world, id cay.ID) {
			after(time.Second)
			w.status(id, cay.Terminating, cay.ReasonTTLExpired)
		}, 10 * time.Minute, 0},
		"the machine was off": {3 * time.Hour, time.Hour, func(w *world, id cay.ID) {
			after(time.Minute)
			w.ok(w.Ended(w.t.Context(), worker.ID, id, cay.ReasonWorkerLost, "gone", cay.Usage{}))
		}, 5*time.Minute + 7*time.Second, 47 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"))
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				// What a server that is killed does not do any more, it cannot do to a store that fails.
				mortal := &mortalStore{Store: s}
				first := &world{t: t, store: s, woken: make(chan struct{}, 1)}
				first.Sandboxes = lifecycle.New(lifecycle.DefaultConfig(), mortal, fixedWorkers{worker}, slog.New(slog.DiscardHandler))
				first.ok(first.Start(t.Context(), func() {}))
				id := first.ready(cay.CreateSandbox{TTL: &test.ttl}).ID
				first.present(id, 5*time.Minute)
				first.Active(id, time.Now(), false, cay.Usage{CPUSeconds: 7})
				after(7 * time.Second)
				mortal.dead.Store(true)
				_ = first.Stop(context.Background())
				after(test.down)

				w := over(t, s, lifecycle.DefaultConfig(), worker)
				defer func() { w.ok(w.Stop(context.Background())) }()
				test.next(w, id)
				if test.late == 0 {
					w.wantUsed("after all", test.want, 0)
				} else if _, total := w.used(); total.RunningSeconds > test.want.Seconds() || total.RunningSeconds < (test.want-test.late).Seconds() {
					t.Errorf("%v s are counted, want %v, or up to %v less", total.RunningSeconds, test.want, test.late)
				}
			})
		})
	}
}

func TestAStopWritesWhatIsCountedUntilThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		w := over(t, s, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{}).ID
		w.present(id, 50*time.Second)
		w.Active(id, time.Now(), false, cay.Usage{CPUSeconds: 7})
		w.ok(w.Stop(context.Background()))
		w.wantUsed("after the stop", 50*time.Second, 0)
		if _, total := w.used(); total.CPUSeconds != 7 {
			t.Errorf("%v s of CPU are written, want 7", total.CPUSeconds)
		}
	})
}
