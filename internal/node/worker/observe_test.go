package worker_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/worker"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func recordingOften(c *worker.Config) { c.Timing.Record = 20 * time.Millisecond }

func (n *node) metrics(id string, limit int64) []*nodev1.Sample {
	n.t.Helper()
	res, err := n.GetMetrics(n.t.Context(), connect.NewRequest(&nodev1.GetMetricsRequest{
		SandboxId: id, FromUnixMs: time.Now().Add(-time.Hour).UnixMilli(), ToUnixMs: time.Now().Add(time.Hour).UnixMilli(), Limit: limit,
	}))
	if err != nil {
		n.t.Fatal(err)
	}
	if res.Msg.IntervalMs != 20 {
		n.t.Errorf("the interval is %d ms", res.Msg.IntervalMs)
	}
	return res.Msg.Samples
}

func TestWhatASandboxHasUsedIsMeasuredWhenItIsAsked(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	d.change(d.of(id).status.Handle, func(b *fakeBox) { b.memory = 70 << 20 })
	answer, err := n.GetMetrics(t.Context(), connect.NewRequest(&nodev1.GetMetricsRequest{SandboxId: id, Limit: 1}))
	if err != nil || answer.Msg.Usage.GetCpuSeconds() != 2 || answer.Msg.Usage.GetPeakMemoryMb() != 70 {
		t.Errorf("%v, %v", answer, err)
	}
}

func TestSamplesGoOnWhilePausedAndOverARestart(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir(), recordingOften)
	id := n.create()
	d.change(d.of(id).status.Handle, func(b *fakeBox) { b.memory = 50 << 20 })
	more := func(what string, than int) int {
		t.Helper()
		count := 0
		eventually(t, what, func() bool { count = len(n.metrics(id, 5000)); return count > than })
		return count
	}
	more("samples are taken", 2)
	last := n.metrics(id, 1)
	if len(last) != 1 || last[0].CpuSeconds != 2 || last[0].MemoryMb != 50 || last[0].PeakMemoryMb != 50 || last[0].DiskMb != 3 || last[0].Pids != 4 || last[0].AtUnixMs == 0 {
		t.Errorf("the last sample is %v", last)
	}
	if _, err := n.Freeze(t.Context(), connect.NewRequest(&nodev1.FreezeRequest{SandboxId: id})); err != nil {
		t.Fatal(err)
	}
	before := more("samples are taken while paused", len(n.metrics(id, 5000)))
	n.stop()
	n = startNode(t, d, n.dir, recordingOften)
	if got := len(n.metrics(id, 5000)); got < before {
		t.Errorf("of %d samples %d are left", before, got)
	}
	more("samples are taken after a restart", before)
}

func TestMetricsRefuseWhatMeansNothing(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir())
	for _, r := range []*nodev1.GetMetricsRequest{{SandboxId: n.create()}, {SandboxId: n.create(), Limit: 1 << 40}} {
		if _, err := n.GetMetrics(t.Context(), connect.NewRequest(r)); reason(err) != cay.InvalidRequest {
			t.Errorf("%v: %v", r, err)
		}
	}
	if _, err := n.GetMetrics(t.Context(), connect.NewRequest(&nodev1.GetMetricsRequest{SandboxId: string(cay.NewID(cay.PrefixSandbox)), Limit: 1})); reason(err) != cay.NotFound {
		t.Errorf("no sandbox: %v", err)
	}
}

func (n *node) logs(ctx context.Context, id string, after int64, follow bool) *connect.ServerStreamForClient[nodev1.LogEntry] {
	n.t.Helper()
	s, err := n.ReadLogs(ctx, connect.NewRequest(&nodev1.ReadLogsRequest{SandboxId: id, After: after, Follow: follow}))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { s.Close() })
	return s
}

// awaitLog reads until an entry has the text.
func awaitLog(t *testing.T, s *connect.ServerStreamForClient[nodev1.LogEntry], text string) *nodev1.LogEntry {
	t.Helper()
	for s.Receive() {
		if e := s.Msg(); strings.Contains(e.Message, text) {
			return e
		}
	}
	t.Fatalf("no entry with %q came: %v", text, s.Err())
	return nil
}

func TestALogTellsOfTheLifeOfASandbox(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir())
	id := n.create()
	all := n.logs(t.Context(), id, 0, true)
	first := awaitLog(t, all, "kernel and agent were up")
	if first.Seq != 1 || first.Source != "boot" || first.Level != "info" || time.Since(time.UnixMilli(first.AtUnixMs)) > time.Minute {
		t.Errorf("the first entry is %v", first)
	}
	awaitLog(t, all, "the sandbox is ready after")
	if _, err := n.Freeze(t.Context(), connect.NewRequest(&nodev1.FreezeRequest{SandboxId: id})); err != nil {
		t.Fatal(err)
	}
	paused := awaitLog(t, all, "paused within")
	if _, err := n.Thaw(t.Context(), connect.NewRequest(&nodev1.ThawRequest{SandboxId: id})); err != nil {
		t.Fatal(err)
	}
	rest := n.logs(t.Context(), id, paused.Seq, false)
	awaitLog(t, rest, "resumed within")
	if rest.Receive() || rest.Err() != nil {
		t.Errorf("what there is ends with %v, %v", rest.Msg(), rest.Err())
	}
	awaitLog(t, all, "resumed within")
	if _, err := n.destroy(id, 2); err != nil {
		t.Fatal(err)
	}
	if all.Receive() || all.Err() != nil {
		t.Errorf("at the sandbox's end the log ends with %v, %v", all.Msg(), all.Err())
	}
	err := filepath.WalkDir(filepath.Join(n.dir, "sandboxes"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestALogSurvivesARestartWhoseFollowersAreTold(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	id := n.create()
	s := n.logs(t.Context(), id, 0, true)
	last := awaitLog(t, s, "the sandbox is ready after")
	n.stop()
	for s.Receive() {
	}
	if reason(s.Err()) != cay.Unavailable {
		t.Errorf("the follower was told %v", s.Err())
	}
	n = startNode(t, d, n.dir)
	if _, err := n.Adopt(t.Context(), connect.NewRequest(&nodev1.AdoptRequest{Sandboxes: []*nodev1.AdoptRequest_Known{{SandboxId: id}}})); err != nil {
		t.Fatal(err)
	}
	if e := awaitLog(t, n.logs(t.Context(), id, last.Seq, true), "its worker has restarted"); e.Seq != last.Seq+1 {
		t.Errorf("after entry %d comes %v", last.Seq, e)
	}
}

func TestADiskThatIsFullIsSaidThoughNothingUsesTheSandbox(t *testing.T) {
	d := newFakeDriver()
	n := startNode(t, d, t.TempDir())
	w := n.watch()
	id := n.create()
	full := func(want bool) func(*nodev1.Event) *nodev1.Activity {
		return func(e *nodev1.Event) *nodev1.Activity {
			if a := e.GetActivity(); e.SandboxId == id && a != nil && a.Usage.DiskMb > 512 == want {
				return a
			}
			return nil
		}
	}
	nextEvent(t, w, full(false)) // of the create
	d.change(d.of(id).status.Handle, func(b *fakeBox) { b.disk = int64(b.status.Shape.DiskGB * (1 << 30)) })
	nextEvent(t, w, full(true))
	d.change(d.of(id).status.Handle, func(b *fakeBox) { b.disk = 3 << 20 })
	nextEvent(t, w, full(false))
}
