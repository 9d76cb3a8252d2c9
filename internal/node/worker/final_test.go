package worker_test

import (
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

	"github.com/cayhq/cay/internal/node/worker"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestWhatASandboxThatIsGoneHadUsedIsToldAgainAlsoByTheNextNode(t *testing.T) {
	d, dir := newFakeDriver(), t.TempDir()
	n := startNode(t, d, dir)
	id := n.create()
	first, err := n.destroy(id, 2)
	if err != nil || first.CpuSeconds != 2 {
		t.Fatal(first, err)
	}
	second, err := n.destroy(id, 2)
	if err != nil || second.CpuSeconds != first.CpuSeconds || second.MemoryMbSeconds != first.MemoryMbSeconds {
		t.Fatalf("asked again it says %v, %v, having said %v", second, err, first)
	}
	n.stop()
	if err := os.WriteFile(filepath.Join(dir, "ended", "half.json.new"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n = startNode(t, d, dir)
	if again, err := n.destroy(id, 3); err != nil || again.CpuSeconds != first.CpuSeconds || again.MemoryMbSeconds != first.MemoryMbSeconds {
		t.Fatalf("the next node says %v, %v, having said %v", again, err, first)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "ended")); len(left) != 1 {
		t.Errorf("%v is kept, want what one sandbox had used", left)
	}
}

func TestMemoryOverTimeGoesOnWhereItWasWhenANodeStartsAnew(t *testing.T) {
	d, dir := newFakeDriver(), t.TempDir()
	n := startNode(t, d, dir)
	id := n.create()
	d.change(d.of(id).status.Handle, func(b *fakeBox) { b.memory = 100 << 20 })
	usage := func() *nodev1.Usage {
		t.Helper()
		var last *nodev1.Usage
		w := n.watch()
		nextEvent(t, w, func(e *nodev1.Event) *nodev1.Activity {
			if a := e.GetActivity(); a != nil && e.SandboxId == id && a.Usage.MemoryMbSeconds > 0 {
				last = a.Usage
				return a
			}
			return nil
		})
		return last
	}
	s := n.process(t.Context(), startInput(id, nil, "sleep"))
	s.next()
	before := usage()
	n.stop()
	n = startNode(t, d, dir)
	if _, err := n.Adopt(t.Context(), connect.NewRequest(&nodev1.AdoptRequest{Sandboxes: []*nodev1.AdoptRequest_Known{{SandboxId: id}}})); err != nil {
		t.Fatal(err)
	}
	s = n.process(t.Context(), startInput(id, nil, "sleep"))
	s.next()
	if after := usage(); after.MemoryMbSeconds < before.MemoryMbSeconds || after.CpuSeconds < before.CpuSeconds {
		t.Errorf("after the restart %v MB s are used, before it %v", after.MemoryMbSeconds, before.MemoryMbSeconds)
	}
}

func TestWhatASandboxUsesIsToldAlsoWhenNobodyUsesIt(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir(), func(c *worker.Config) { c.Timing.Usage = 1 })
	id := n.create()
	w := n.watch()
	for range 3 {
		nextEvent(t, w, func(e *nodev1.Event) *nodev1.Activity {
			if a := e.GetActivity(); a != nil && e.SandboxId == id && !a.Foreground && a.Usage.CpuSeconds == 2 {
				return a
			}
			return nil
		})
	}
}
