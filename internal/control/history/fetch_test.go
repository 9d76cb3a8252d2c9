package history_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/history"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func msec(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func TestWhatEndedIsWrittenAndThenAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		ended := w.ended(func(r *nodev1.ProcessRecord) {
			r.Actor, r.TraceId, r.Name = "key_"+strings.Repeat("a", 26), strings.Repeat("0a", 16), "server"
		})
		w.node.ends(ended)
		synctest.Wait()
		r := w.written()[cay.ID(ended.ProcessId)]
		if r.ExitCode == nil || *r.ExitCode != 0 {
			t.Fatalf("the exit code is %v", r.ExitCode)
		}
		r.ExitCode = nil
		if want := (cay.Record{
			ID: cay.ID(ended.ProcessId), Kind: cay.RecordExec, ProjectID: w.project, KeyID: cay.ID(ended.Actor), SandboxID: w.box, SessionID: "ses_1",
			Name: "server", Command: "secret --token=1", Outcome: "exited", OK: true, StartedAt: time.UnixMilli(1_000_000).UTC(), EndedAt: time.UnixMilli(1_002_000).UTC(),
			Duration: 2 * time.Second, StdoutBytes: 3, CPUSeconds: 1.5, PeakMemoryMB: 7, TraceID: ended.TraceId,
		}); r != want {
			t.Errorf("got  %+v\nwant %+v", r, want)
		}
		if n := w.node.unacknowledged(); n != 0 {
			t.Errorf("%d records were not acknowledged", n)
		}
		if n := w.count("cay_history_records_total"); n != 1 {
			t.Errorf("%v records were counted", n)
		}
	})
}

func TestRecordsAreWrittenInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		var many []*nodev1.ProcessRecord
		for range 1200 {
			many = append(many, w.ended())
		}
		w.node.ends(many...)
		synctest.Wait()
		if n := len(w.written()); n != 1200 || w.stored(&w.store.batches) != 3 {
			t.Errorf("%d records in %d batches", n, w.stored(&w.store.batches))
		}
	})
}

func TestNothingIsAcknowledgedBeforeItIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.store.set(func() { w.store.down = true })
		w.node.ends(w.ended())
		time.Sleep(time.Hour)
		if w.node.unacknowledged() != 1 || len(w.asked()) != 1 {
			t.Fatalf("%d records are not acknowledged after %d questions", w.node.unacknowledged(), len(w.asked()))
		}
		w.store.set(func() { w.store.down = false })
		time.Sleep(time.Minute)
		if len(w.written()) != 1 || w.node.unacknowledged() != 0 || w.count("cay_history_lost_total") != 0 {
			t.Errorf("%d written, %d not acknowledged", len(w.written()), w.node.unacknowledged())
		}
	})
}

func TestAWorkerThatGoesAwayAndComesBackIsGoneOnWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.node.ends(w.ended())
		synctest.Wait()
		w.nodes.set(w.worker, nil)
		synctest.Wait()
		w.node.ends(w.ended())
		w.nodes.set(w.worker, w.node)
		synctest.Wait()
		if n := len(w.written()); n != 2 || w.node.unacknowledged() != 0 {
			t.Errorf("%d records after it came back", n)
		}
		for _, q := range w.asked()[1:] {
			if q.Boot != "one" || q.After == 0 {
				t.Errorf("asked from the beginning once more: %v", q)
			}
		}
	})
}

func TestANewStartOfAWorkerBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.node.change(func() { w.node.lost = 2 }) // before there is an answer that could tell of it
		w.node.ends(w.ended(), w.ended(), w.ended())
		synctest.Wait()
		fresh := newNode()
		fresh.boot, fresh.lost = "two", 1
		fresh.ends(w.ended())
		w.nodes.set(w.worker, nil)
		w.nodes.set(w.worker, fresh)
		time.Sleep(time.Minute)
		if len(w.written()) != 4 || fresh.unacknowledged() != 0 {
			t.Errorf("%d written, %d of the new start not acknowledged", len(w.written()), fresh.unacknowledged())
		}
		if n := w.count("cay_history_lost_total"); n != 3 {
			t.Errorf("%v lost, want 2 of the first start and 1 of the second", n)
		}
	})
}

func TestAWorkerThatFailsIsAskedAgainButNotAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		synctest.Wait()
		w.node.change(func() { w.node.away, w.node.asked = true, nil })
		time.Sleep(10 * time.Minute)
		if n := len(w.asked()); n < 50 || n > 150 {
			t.Errorf("asked %d times in ten minutes", n)
		}
		w.node.change(func() { w.node.away = false })
		w.node.ends(w.ended())
		time.Sleep(time.Minute)
		if n := len(w.written()); n != 1 {
			t.Errorf("%d records once it answers", n)
		}
	})
}

func TestStopFetchesWhatNodesStillHave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.store.set(func() { w.store.down = true })
		for range 3 {
			w.node.ends(w.ended())
		}
		synctest.Wait()
		w.store.set(func() { w.store.down = false })
		w.Stop()
		if n := len(w.written()); n != 3 {
			t.Errorf("%d records", n)
		}
	})
}

func TestStopDoesNotWaitForAStoreThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.store.set(func() { w.store.down = true })
		w.node.ends(w.ended())
		synctest.Wait()
		began := time.Now()
		w.Stop()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestCommandsAreDroppedWhereTheyAreNotToBeKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(c *history.Config) { c.Commands = false })
		w.node.ends(w.ended())
		synctest.Wait()
		for _, r := range w.written() {
			if r.Command != "" {
				t.Errorf("the command %q is kept", r.Command)
			}
		}
		if len(w.written()) != 1 {
			t.Error("the record is not there")
		}
	})
}

func TestWhatANodeSaysIsNotBelieved(t *testing.T) {
	for name, change := range map[string]func(*nodev1.ProcessRecord){
		"an id of something else":        func(r *nodev1.ProcessRecord) { r.ProcessId = string(cay.NewID(cay.PrefixJob)) },
		"no sandbox":                     func(r *nodev1.ProcessRecord) { r.SandboxId = "" },
		"a path as the project":          func(r *nodev1.ProcessRecord) { r.ProjectId = "../../etc" },
		"another project":                func(r *nodev1.ProcessRecord) { r.ProjectId = string(cay.NewID(cay.PrefixProject)) },
		"a key that is none":             func(r *nodev1.ProcessRecord) { r.Actor = "root" },
		"the kind of a sandbox":          func(r *nodev1.ProcessRecord) { r.Kind = "sandbox" },
		"no kind":                        func(r *nodev1.ProcessRecord) { r.Kind = "" },
		"no exit":                        func(r *nodev1.ProcessRecord) { r.Exit = nil },
		"an exit by a reason of its own": func(r *nodev1.ProcessRecord) { r.Exit.Reason = "success" },
		"no time":                        func(r *nodev1.ProcessRecord) { r.EndedUnixMs = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				good := w.ended()
				w.node.ends(w.ended(change), good)
				synctest.Wait()
				all := w.written()
				if _, there := all[cay.ID(good.ProcessId)]; len(all) != 1 || !there {
					t.Errorf("written: %v", all)
				}
				if n := w.count("cay_history_lost_total"); n != 1 || w.node.unacknowledged() != 0 {
					t.Errorf("%v counted as lost, %d not acknowledged", n, w.node.unacknowledged())
				}
			})
		})
	}
}

func TestASandboxOfAnotherWorkerIsNotTheWorkersToTellOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.store.set(func() { w.store.boxes[w.box].WorkerID = cay.NewID(cay.PrefixWorker) })
		w.node.ends(w.ended())
		synctest.Wait()
		if n := len(w.written()); n != 0 || w.count("cay_history_lost_total") != 1 {
			t.Errorf("%d records were written", n)
		}
	})
}

func TestFiguresAndTextAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		ended := w.ended(func(r *nodev1.ProcessRecord) {
			r.Command = strings.Repeat("é", 5000)
			r.Name, r.Language, r.TraceId = "a\x00"+strings.Repeat("n", 1<<20), strings.Repeat("l", 1000), "../x"
			r.StartedUnixMs, r.EndedUnixMs = 1<<62, time.Now().Add(1000*time.Hour).UnixMilli()
			r.Exit = &nodev1.Exit{
				Reason: "signaled", Code: 137, Signal: strings.Repeat("K", 100), DurationMs: -1, StdoutSize: -5, CpuMs: 1 << 62, PeakMemoryMb: 1 << 62,
			}
		})
		w.node.ends(ended)
		synctest.Wait()
		r, there := w.written()[cay.ID(ended.ProcessId)]
		if !there {
			t.Fatal("it was not written")
		}
		if len(r.Command) > cay.MaxRecordCommand || strings.ContainsAny(r.Name, "\x00") || len(r.Name) > 256 || len(r.Language) > 64 || len(r.Signal) > 16 || r.TraceID != "" {
			t.Errorf("text of %d, %d, %d, %d bytes; trace %q", len(r.Command), len(r.Name), len(r.Language), len(r.Signal), r.TraceID)
		}
		if strings.ContainsRune(r.Command, '\uFFFD') {
			t.Error("a character was split")
		}
		if r.Duration != 0 || r.StdoutBytes != 0 || r.CPUSeconds > 1e10 || r.PeakMemoryMB > 1<<30 || r.EndedAt.After(time.Now()) || r.StartedAt.After(r.EndedAt) || r.OK {
			t.Errorf("figures: %+v", r)
		}
	})
}

func TestASandboxWhoseRowIsGoneKeepsItsRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.store.set(func() { delete(w.store.boxes, w.box) })
		w.node.ends(w.ended())
		synctest.Wait()
		if n := len(w.written()); n != 1 {
			t.Errorf("%d records", n)
		}
	})
}
