package lifecycle_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/lifecycle"
	"github.com/cayhq/cay/internal/control/store/sqlite"
)

// countedStore counts what reading events costs.
type countedStore struct {
	*sqlite.Store
	reads, scans atomic.Int64
}

func (c *countedStore) Events(ctx context.Context, p cay.ID, q cay.EventQuery) ([]cay.Event, cay.EventSpan, error) {
	c.reads.Add(1)
	return c.Store.Events(ctx, p, q)
}

func (c *countedStore) EventsSince(ctx context.Context, after int64, limit int) ([]cay.ID, int64, error) {
	c.scans.Add(1)
	return c.Store.EventsSince(ctx, after, limit)
}

// transitions are the statuses that the events of a page tell of.
func transitions(p cay.EventPage) (list []string) {
	for _, e := range p.Events {
		if e.Type == cay.EventStatus {
			list = append(list, e.Data["from"].(string)+">"+e.Data["to"].(string))
		}
	}
	return list
}

func (w *world) events(id cay.ID, after int64) cay.EventPage {
	w.t.Helper()
	p, err := w.Events(w.t.Context(), project, id, after, 100)
	w.ok(err)
	return p
}

func (w *world) last(id cay.ID) int64 {
	w.t.Helper()
	list := w.events(id, 0).Events
	return list[len(list)-1].Seq
}

func TestEveryStatusOfALifeIsAnEvent(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	id := w.ready(cay.CreateSandbox{}).ID
	_, err := w.Delete(t.Context(), project, id)
	w.ok(err)
	sb := w.lease(cay.OpDestroy)
	w.ok(w.Destroyed(t.Context(), sb.ID, sb.Attempt, cay.Usage{}))
	page := w.events(id, 0)
	if got := transitions(page); len(got) != 3 || got[0] != "CREATING>READY" || got[1] != "READY>TERMINATING" || got[2] != "TERMINATING>TERMINATED" {
		t.Errorf("the events are %v", got)
	}
	if !page.Ended || page.Events[1].Data["reason"] != "deleted" {
		t.Errorf("the end is %+v", page)
	}
	if rest := w.events(id, page.Events[2].Seq); !rest.Ended || len(rest.Events) != 0 {
		t.Errorf("after the last event comes %+v", rest)
	}
	if first, err := w.Events(t.Context(), project, id, 0, 2); err != nil || first.Ended {
		t.Errorf("a page before the last says %+v, %v", first, err)
	}
}

func TestAFollowerHearsOfAPauseAndAResumeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{}).ID
		<-w.woken // for the create
		heard := make(chan cay.EventPage)
		var following sync.WaitGroup
		defer following.Wait()
		next := func(after int64) {
			following.Go(func() {
				p, err := w.NextEvents(t.Context(), project, id, after, 100)
				if err != nil {
					t.Error(err)
				}
				heard <- p
			})
		}
		began := time.Now()
		seq := w.last(id)
		next(seq)
		following.Go(func() { _, _ = w.Pause(t.Context(), project, id) })
		<-w.woken
		w.frozen()
		paused := <-heard
		if got := transitions(paused); len(got) != 1 || got[0] != "READY>PAUSED" {
			t.Fatalf("heard %v", got)
		}
		next(paused.Events[0].Seq)
		following.Go(func() { _, _ = w.Resume(t.Context(), project, id, nil) })
		<-w.woken
		w.thawed()
		if got := transitions(<-heard); len(got) != 1 || got[0] != "PAUSED>READY" {
			t.Errorf("heard %v", got)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v of waiting", took)
		}
	})
}

func TestAnEventWhoseWakeUpGotLostIsHeardWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, lifecycle.DefaultConfig(), worker)
		id := w.ready(cay.CreateSandbox{}).ID
		var following sync.WaitGroup
		for range 3 {
			following.Go(func() {
				p, err := w.NextEvents(t.Context(), project, id, w.last(id), 100)
				if err != nil || len(p.Events) != 1 || p.Events[0].Type != cay.EventOOM {
					t.Errorf("heard %+v, %v", p, err)
				}
			})
		}
		after(2500 * time.Millisecond)
		began := time.Now()
		w.ok(w.store.AddEvent(t.Context(), cay.Event{SandboxID: id, ProjectID: project, Type: cay.EventOOM, At: began}))
		following.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestManyFollowersOfNothingCostOneLookASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"))
		if err != nil {
			t.Fatal(err)
		}
		counted := &countedStore{Store: s}
		w := &world{t: t, store: s}
		w.Sandboxes = lifecycle.New(lifecycle.DefaultConfig(), counted, fixedWorkers{worker}, slog.New(slog.DiscardHandler))
		w.ok(w.Start(t.Context(), func() {}))
		defer func() {
			w.ok(w.Stop(context.Background()))
			w.ok(s.Close())
		}()
		after(time.Minute)
		if n := counted.scans.Load(); n != 0 {
			t.Errorf("%d looks while nobody follows", n)
		}
		first, second := w.ready(cay.CreateSandbox{}).ID, w.ready(cay.CreateSandbox{}).ID
		const followers = 200
		ctx, leave := context.WithCancel(t.Context())
		var following sync.WaitGroup
		for range followers {
			following.Go(func() {
				if p, err := w.NextEvents(ctx, project, first, w.last(first), 100); err != nil || len(p.Events) != 0 {
					t.Errorf("heard %+v, %v", p, err)
				}
			})
		}
		after(2 * time.Second)
		reads, scans := counted.reads.Load(), counted.scans.Load()
		w.ok(w.ProcessKilled(ctx, second, time.Now(), "prc_1", 7, 900)) // which none of them follows
		after(time.Minute)
		if n := counted.reads.Load() - reads; n != 0 {
			t.Errorf("followers read the store %d times", n)
		}
		if n := counted.scans.Load() - scans; n > 61 {
			t.Errorf("%d looks in a minute", n)
		}
		leave()
		following.Wait()
		scans = counted.scans.Load()
		after(time.Minute)
		if n := counted.scans.Load() - scans; n > 1 {
			t.Errorf("%d looks after all have left", n)
		}
	})
}

func TestAReaderOfWhatWasPurgedIsTold(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	id := w.ready(cay.CreateSandbox{}).ID
	for range 5 {
		w.ok(w.ProcessKilled(t.Context(), id, time.Now(), "", 7, 900))
	}
	last := w.last(id)
	w.ok(w.store.Purge(t.Context(), time.Now(), cay.Retention{Sandboxes: time.Hour, Events: time.Hour, MaxEvents: 2, Idempotency: time.Hour}))
	for after, want := range map[int64]struct {
		events int
		reset  bool
	}{0: {2, false}, last - 4: {2, true}, last - 2: {2, false}, last: {0, false}, last + 100: {2, true}} {
		if p := w.events(id, after); len(p.Events) != want.events || p.Reset != want.reset {
			t.Errorf("after %d of %d there are %d events, reset %v", after, last, len(p.Events), p.Reset)
		}
	}
	if p, err := w.NextEvents(t.Context(), project, id, last-4, 100); err != nil || !p.Reset {
		t.Errorf("a follower is told %+v, %v", p, err)
	}
}

func TestEventsOfAnotherProjectAreNotThere(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	id := w.ready(cay.CreateSandbox{}).ID
	for name, who := range map[string][2]cay.ID{"another project": {cay.NewID(cay.PrefixProject), id}, "no sandbox": {project, cay.NewID(cay.PrefixSandbox)}} {
		if _, err := w.NextEvents(t.Context(), who[0], who[1], 0, 10); cay.ReasonOf(err) != cay.NotFound {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, c := range []struct{ after, limit int64 }{{-1, 10}, {0, 0}, {0, 201}} {
		if _, err := w.Events(t.Context(), project, id, c.after, int(c.limit)); cay.ReasonOf(err) != cay.InvalidRequest {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

func TestAFullDiskIsToldOnceUntilThereWasRoomAgain(t *testing.T) {
	w := start(t, lifecycle.DefaultConfig(), worker)
	id := w.ready(cay.CreateSandbox{DiskGB: ptr(1.0)}).ID
	for _, mb := range []int64{3, 900, 1013, 1014, 1024, 1000, 1024, 922, 1024, 900, 1024} {
		w.Active(id, time.Now(), false, cay.Usage{DiskMB: mb})
	}
	w.Active(cay.NewID(cay.PrefixSandbox), time.Now(), false, cay.Usage{DiskMB: 1024})
	var told []any
	for _, e := range w.events(id, 0).Events {
		if e.Type == cay.EventDiskFull {
			told = append(told, e.Data["disk_mb"], e.Data["limit_mb"])
		}
	}
	if fmt.Sprint(told) != "[1014 1024 1024 1024]" {
		t.Errorf("told %v", told)
	}
}
