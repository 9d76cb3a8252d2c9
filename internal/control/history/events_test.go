package history_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
)

// follow asks for what comes next, again and again, until the test ends.
func (w *world) follow(project cay.ID, q cay.EventQuery) <-chan cay.EventPage {
	pages := make(chan cay.EventPage, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			p, err := w.NextEvents(ctx, project, q)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				w.Errorf("next events: %v", err)
				return
			}
			pages <- p
			if p.Reset {
				q.After = 0
			}
			for _, e := range p.Events {
				q.After = e.Seq
			}
			q.After = max(q.After, p.Next)
		}
	}()
	w.Cleanup(func() {
		cancel()
		<-done
	})
	return pages
}

func TestWhoFollowsAProjectIsToldOfItAndOfNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		other := cay.NewID(cay.PrefixProject)
		pages := w.follow(w.project, cay.EventQuery{Limit: 100})
		synctest.Wait()
		w.store.happen(other, cay.EventStatus)
		w.store.happen(w.project, cay.EventJobStatus)
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		if p := <-pages; len(p.Events) != 1 || p.Events[0].Seq != 2 || p.Next != 2 {
			t.Errorf("got %+v", p)
		}
		time.Sleep(time.Minute)
		if len(pages) != 0 {
			t.Errorf("then got %+v", <-pages)
		}
	})
}

func TestOneLookServesAllWhoFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		time.Sleep(time.Hour)
		if w.stored(&w.store.looks) != 0 {
			t.Errorf("%d looks while nobody followed", w.stored(&w.store.looks))
		}
		for range 50 {
			w.follow(w.project, cay.EventQuery{Limit: 100})
		}
		time.Sleep(10 * time.Second)
		if n := w.stored(&w.store.looks); n < 30 || n > 42 {
			t.Errorf("%d looks in ten seconds", n)
		}
		if n := w.stored(&w.store.reads); n > 100 {
			t.Errorf("%d reads of events while nothing happened", n)
		}
	})
}

func TestAQuietProjectIsNotToldOfAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.store.happen(w.project, cay.EventStatus)
		pages := w.follow(w.project, cay.EventQuery{Limit: 100, Types: []cay.EventType{cay.EventStatus}})
		synctest.Wait()
		<-pages
		for range 10 {
			w.store.happen(w.project, cay.EventOOM)
			w.store.happen(cay.NewID(cay.PrefixProject), cay.EventStatus)
			time.Sleep(time.Second)
		}
		w.store.set(func() { w.store.oldest = int64(len(w.store.events)) })
		w.store.happen(w.project, cay.EventStatus)
		time.Sleep(time.Second)
		synctest.Wait()
		if p := <-pages; p.Reset || len(p.Events) != 1 {
			t.Errorf("got %+v", p)
		}
	})
}

func TestWhoComesBackTooLateIsToldOfAReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for range 5 {
			w.store.happen(w.project, cay.EventStatus)
		}
		w.store.set(func() { w.store.oldest = 4 })
		for _, after := range []int64{1, 99} { // 99: of events that are numbered anew
			p, err := w.Events(t.Context(), w.project, cay.EventQuery{After: after, Limit: 10})
			if err != nil || !p.Reset || len(p.Events) != 2 {
				t.Errorf("after %d: %+v, %v", after, p, err)
			}
		}
		if p, err := w.Events(t.Context(), w.project, cay.EventQuery{After: 3, Limit: 10}); err != nil || p.Reset {
			t.Errorf("after the last that is gone: %+v, %v", p, err)
		}
	})
}

func TestALookThatFailsIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		pages := w.follow(w.project, cay.EventQuery{Limit: 100})
		synctest.Wait()
		w.store.set(func() { w.store.down = true })
		w.store.happen(w.project, cay.EventStatus)
		time.Sleep(time.Minute)
		w.store.set(func() { w.store.down = false })
		time.Sleep(time.Second)
		synctest.Wait()
		if p := <-pages; len(p.Events) != 1 {
			t.Errorf("got %+v", p)
		}
	})
}

func TestWhoLeavesGetsAnEmptyPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if p, err := w.NextEvents(ctx, w.project, cay.EventQuery{Limit: 1}); err != nil || len(p.Events) != 0 {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

func TestPagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for _, limit := range []int{-1, 0, 201} {
			_, errEvents := w.Events(t.Context(), w.project, cay.EventQuery{Limit: limit})
			_, _, errRecords := w.Records(t.Context(), w.project, cay.RecordQuery{Limit: limit})
			_, _, _, errUsage := w.Usage(t.Context(), w.project, cay.UsageQuery{Limit: limit})
			_, _, errAudit := w.Audit(t.Context(), w.project, cay.AuditQuery{Limit: limit})
			for _, err := range []error{errEvents, errRecords, errUsage, errAudit} {
				if cay.ReasonOf(err) != cay.InvalidRequest {
					t.Errorf("limit %d: %v", limit, err)
				}
			}
		}
		if _, err := w.Events(t.Context(), w.project, cay.EventQuery{After: -1, Limit: 1}); cay.ReasonOf(err) != cay.InvalidRequest {
			t.Errorf("after -1: %v", err)
		}
	})
}
