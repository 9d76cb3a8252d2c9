package worker_test

import (
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestMemoryIsReclaimedAndWhatDoesNotHelpEndsTheSandbox(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	first := startInput(id, nil, "sleep")
	s := n.process(t.Context(), first)
	s.next()
	w := n.watch()
	b := d.of(id)
	d.events <- driver.Event{Handle: b.status.Handle, Type: driver.EventMemory, Promise: 512 << 20, Current: 600 << 20}
	if e := nextEvent(t, w, (*nodev1.Event).GetOom); e.Process != first.GetStart().ProcessId || e.RssMb != 900 {
		t.Fatalf("%v", e)
	}
	s.drain()
	d.change(b.status.Handle, func(b *fakeBox) { b.memory = 600 << 20 })
	eventually(t, "the sandbox is ended", func() bool {
		select {
		case d.events <- driver.Event{Handle: b.status.Handle, Type: driver.EventMemory, Promise: 512 << 20}:
		default:
		}
		boxes, _, _ := d.count()
		return boxes == 0
	})
	if e := nextEvent(t, w, (*nodev1.Event).GetEnded); e.Reason != "oom" || e.Usage.PeakMemoryMb != 600 {
		t.Fatalf("%v", e)
	}
}

func TestAnAlarmDoesNotWaitForMeasurements(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	s := n.process(t.Context(), startInput(id, nil, "sleep"))
	s.next()
	w := n.watch()
	measuring := make(chan struct{})
	defer close(measuring)
	d.mu.Lock()
	d.measuring = measuring
	d.mu.Unlock()
	eventually(t, "a measurement is under way", func() bool { return d.measured.Load() > 0 })
	d.events <- driver.Event{Handle: d.of(id).status.Handle, Type: driver.EventMemory, Promise: 512 << 20, Current: 600 << 20}
	nextEvent(t, w, (*nodev1.Event).GetOom)
}

func TestASandboxBelowItsLimitAfterAKillForMemoryLives(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	w := n.watch()
	handle := d.of(id).status.Handle
	alarm := driver.Event{Handle: handle, Type: driver.EventMemory, Promise: 512 << 20, Limit: 576 << 20, Current: 600 << 20}
	d.change(handle, func(b *fakeBox) { b.memory = alarm.Limit })
	stop := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			select {
			case d.events <- alarm:
			case <-stop:
				return
			}
		}
	})
	for range 2 { // the second kill comes only after what the first brought was judged
		s := n.process(t.Context(), startInput(id, nil, "sleep"))
		s.next()
		nextEvent(t, w, (*nodev1.Event).GetOom)
		s.drain()
	}
	close(stop)
	sending.Wait()
}

func TestMemoryIsReclaimedAlsoAfterAnAlarmThatCameWhilePaused(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	s := n.process(t.Context(), startInput(id, nil, "sleep"))
	s.next()
	w := n.watch()
	alarm := driver.Event{Handle: d.of(id).status.Handle, Type: driver.EventMemory, Promise: 512 << 20, Current: 600 << 20}
	if _, err := n.Freeze(t.Context(), connect.NewRequest(&nodev1.FreezeRequest{SandboxId: id})); err != nil {
		t.Fatal(err)
	}
	d.events <- alarm
	d.events <- driver.Event{Handle: "another", Type: driver.EventExited} // once this is taken, the alarm has been dealt with
	eventually(t, "the alarm is seen", func() bool { return len(d.events) == 0 })
	if _, err := n.Thaw(t.Context(), connect.NewRequest(&nodev1.ThawRequest{SandboxId: id})); err != nil {
		t.Fatal(err)
	}
	d.events <- alarm
	nextEvent(t, w, (*nodev1.Event).GetOom)
}

func TestUseIsSaidOnceASample(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir())
	w := n.watch()
	s := n.process(t.Context(), startInput(n.create(), nil, "sleep"))
	s.next()
	nextEvent(t, w, func(e *nodev1.Event) *nodev1.Activity {
		if a := e.GetActivity(); a.GetForeground() && a.Usage.CpuSeconds == 2 && a.LastActiveUnixMs > 0 {
			return a
		}
		return nil
	})
	s.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Detach{Detach: true}})
	nextEvent(t, w, func(e *nodev1.Event) *nodev1.Activity {
		if a := e.GetActivity(); a != nil && !a.Foreground {
			return a
		}
		return nil
	})
}
