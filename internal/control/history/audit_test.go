package history_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/history"
)

func TestTheAuditLogIsWrittenBehindAndInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for n := range 1200 {
			w.NoteAudit(cay.AuditEntry{Status: 201, RequestID: string(rune(n))})
		}
		if len(w.noted()) != 0 {
			t.Fatal("it was written at once")
		}
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		if len(w.noted()) != 1200 || w.stored(&w.store.writes) != 3 {
			t.Fatalf("%d entries in %d writes", len(w.noted()), w.stored(&w.store.writes))
		}
		for n, e := range w.noted() {
			if e.RequestID != string(rune(n)) {
				t.Fatalf("entry %d is %q", n, e.RequestID)
			}
		}
	})
}

func TestTheQueueOfTheAuditLogIsBoundedAndLossesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(c *history.Config) { c.MaxAudit = 100 })
		w.store.set(func() { w.store.down = true })
		for range 150 {
			w.NoteAudit(cay.AuditEntry{Status: 204})
		}
		time.Sleep(time.Minute)
		if n := w.count("cay_audit_lost_total"); n != 50 {
			t.Errorf("%v counted as lost, want 50", n)
		}
		w.store.set(func() { w.store.down = false })
		time.Sleep(time.Minute)
		if n := len(w.noted()); n != 100 {
			t.Errorf("%d entries once the store is there again", n)
		}
	})
}

func TestOfRefusalsAFewOfEachSecondAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for range 3 {
			for range 100 {
				w.NoteAudit(cay.AuditEntry{Status: 401})
				w.NoteAudit(cay.AuditEntry{Status: 422})
			}
			w.NoteAudit(cay.AuditEntry{Status: 403})
			time.Sleep(time.Second)
		}
		byStatus := map[int]int{}
		w.store.set(func() {
			for _, e := range w.store.audit {
				byStatus[e.Status]++
			}
		})
		if byStatus[401] != 30 || byStatus[403] != 3 || byStatus[422] != 300 {
			t.Errorf("kept by status: %v", byStatus)
		}
		if n := w.count("cay_audit_lost_total"); n != 270 {
			t.Errorf("%v counted as lost", n)
		}
	})
}

func TestStopWritesWhatWaitsForTheAuditLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.NoteAudit(cay.AuditEntry{Status: 201})
		w.Stop()
		if len(w.noted()) != 1 {
			t.Error("the entry is lost")
		}
	})
}

func TestStopCountsWhatItCouldNotWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.store.set(func() { w.store.down = true })
		for range 7 {
			w.NoteAudit(cay.AuditEntry{Status: 201})
		}
		w.Stop()
		if n := w.count("cay_audit_lost_total"); n != 7 {
			t.Errorf("%v counted as lost", n)
		}
	})
}
