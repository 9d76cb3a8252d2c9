package nodes_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/nodes"
	"github.com/cayhq/cay/internal/control/nodes/nodetest"
	"github.com/cayhq/cay/internal/control/store/sqlite"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// life records what nodes pass on.
type life struct {
	mu       sync.Mutex
	rows     []*cay.Sandbox
	ended    map[cay.ID]cay.StatusReason
	active   map[cay.ID]bool
	present  map[cay.ID]time.Time
	killed   []string
	released int
}

func (l *life) On(worker cay.ID) []*cay.Sandbox {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.rows), func(sb *cay.Sandbox) bool {
		_, ended := l.ended[sb.ID]
		return ended || sb.WorkerID != worker
	})
}

func (l *life) Ended(_ context.Context, _, id cay.ID, reason cay.StatusReason, _ string, _ cay.Usage) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ended := l.ended[id]; !ended {
		l.ended[id] = reason
	}
	return nil
}

func (l *life) ProcessKilled(_ context.Context, _ cay.ID, _ time.Time, process string, _, _ int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed = append(l.killed, process)
	return nil
}

func (l *life) Active(id cay.ID, _ time.Time, foreground bool, _ cay.Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.active[id] = foreground
}

func (l *life) Released(cay.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released++
}

func (l *life) Present(ids []cay.ID, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.present[id] = at
	}
}

func (l *life) endedBy(id cay.ID) cay.StatusReason {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended[id]
}

type world struct {
	*nodes.Nodes
	t     *testing.T
	node  *nodetest.Node
	life  *life
	ready chan struct{}
}

func start(t *testing.T, prepare func(w *world)) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "cay") // short: the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(t.Context(), filepath.Join(dir, "cay.db"))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, life: &life{ended: map[cay.ID]cay.StatusReason{}, active: map[cay.ID]bool{}, present: map[cay.ID]time.Time{}}, ready: make(chan struct{}, 100)}
	w.node = nodetest.New(t, filepath.Join(dir, "n.sock"))
	cfg := nodes.DefaultConfig(filepath.Join(dir, "n.sock"))
	cfg.Heartbeat, cfg.Wait = 50*time.Millisecond, 300*time.Millisecond
	w.Nodes = nodes.New(cfg, s, slog.New(slog.DiscardHandler))
	if prepare != nil {
		prepare(w)
	}
	if err := w.Start(t.Context(), w.life, func() { w.ready <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Stop()
		_ = s.Close()
		_ = os.RemoveAll(dir)
	})
	return w
}

// row makes a sandbox that the store knows to be on the node, and the node as well unless lost.
func (w *world) row(status cay.Status, lost bool) cay.ID {
	sb := &cay.Sandbox{ID: cay.NewID(cay.PrefixSandbox), ProjectID: "prj_1", Status: status, WorkerID: w.node.Worker}
	if !lost {
		if _, err := w.node.Create(w.t.Context(), connect.NewRequest(&nodev1.CreateRequest{SandboxId: string(sb.ID), Attempt: 1})); err != nil {
			w.t.Fatal(err)
		}
	}
	w.life.mu.Lock()
	w.life.rows = append(w.life.rows, sb)
	w.life.mu.Unlock()
	return sb.ID
}

func TestANodeAdoptsBeforeAnyoneMayUseIt(t *testing.T) {
	adopting, release := make(chan struct{}), make(chan struct{})
	var running, paused, lost cay.ID
	w := start(t, func(w *world) {
		running, paused, lost = w.row(cay.Ready, false), w.row(cay.Paused, false), w.row(cay.Ready, true)
		w.node.OnAdopt = func(ctx context.Context) error {
			close(adopting)
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	<-adopting
	if w.Ready(t.Context()) == nil || w.Available(w.node.Worker) {
		t.Error("a node that adopts counts as ready")
	}
	_, err := w.For(t.Context(), w.node.Worker)
	var e *cay.Error
	if !errors.As(err, &e) || e.Reason != cay.Unavailable || e.RetryAfter <= 0 {
		t.Errorf("for a node that adopts: %v", err)
	}
	close(release)
	<-w.ready
	if err := w.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := w.For(t.Context(), w.node.Worker); err != nil {
		t.Error(err)
	}
	if w.node.State(running) != "running" || w.node.State(paused) != "frozen" || w.life.endedBy(lost) != cay.ReasonWorkerLost {
		t.Errorf("after the adoption: %q, %q, lost ended by %q", w.node.State(running), w.node.State(paused), w.life.endedBy(lost))
	}
	if list := w.Workers(); len(list) != 1 || list[0].CPU != 4 || list[0].Runtimes[0].Name != "python" {
		t.Errorf("workers %+v", list)
	}
}

func TestWhoWaitsForANodeGetsItAsSoonAsItIsThere(t *testing.T) {
	w := start(t, func(w *world) { w.node.Kill() })
	got := make(chan error, 1)
	go func() { _, err := w.For(context.Background(), w.node.Worker); got <- err }()
	w.node.Start(t)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestANodeThatStartsAnewAdoptsAgainAndOneThatWasCutOffDoesNot(t *testing.T) {
	w := start(t, nil)
	<-w.ready
	id := w.row(cay.Ready, false)
	w.node.Drop(t)
	<-w.ready
	if got := w.node.Adoptions(); len(got) != 1 {
		t.Errorf("%d adoptions after the connection was cut", len(got))
	}
	w.node.Kill()
	nodetest.Eventually(t, "the loss of the node", func() bool { return !w.Available(w.node.Worker) })
	w.node.Start(t)
	<-w.ready
	if got := w.node.Adoptions(); len(got) != 2 || !slices.Equal(got[1], []string{string(id)}) {
		t.Errorf("adoptions after a new start: %v", got)
	}
	w.life.mu.Lock()
	defer w.life.mu.Unlock()
	if w.life.released != 2 {
		t.Errorf("foreground holds were released %d times, want with each adoption", w.life.released)
	}
}

func TestASandboxThatVanishesWithoutAWordIsFoundOut(t *testing.T) {
	w := start(t, nil)
	<-w.ready
	kept, gone := w.row(cay.Ready, false), w.row(cay.Paused, false)
	w.node.Lose(gone)
	nodetest.Eventually(t, "the end of the lost sandbox", func() bool { return w.life.endedBy(gone) == cay.ReasonWorkerLost })
	if reason := w.life.endedBy(kept); reason != "" {
		t.Errorf("the other one ended by %s", reason)
	}
}

func TestEventsArePassedOnAndOddOnesChangeNothing(t *testing.T) {
	w := start(t, nil)
	<-w.ready
	a, b := cay.NewID(cay.PrefixSandbox), cay.NewID(cay.PrefixSandbox)
	for _, e := range []*nodev1.Event{
		{SandboxId: "../etc", Event: &nodev1.Event_Ended{Ended: &nodev1.Ended{Reason: "oom"}}},
		{SandboxId: string(a)},
		{SandboxId: string(a), Event: &nodev1.Event_Activity{Activity: &nodev1.Activity{Foreground: true}}},
		{SandboxId: string(a), Event: &nodev1.Event_Oom{Oom: &nodev1.Oom{Process: "prc_1"}}},
		{SandboxId: string(a), Event: &nodev1.Event_Ended{Ended: &nodev1.Ended{Reason: "oom"}}},
		{SandboxId: string(b), Event: &nodev1.Event_Ended{Ended: &nodev1.Ended{Reason: "deleted"}}},
	} {
		w.node.Emit(e)
	}
	nodetest.Eventually(t, "the last event", func() bool { return w.life.endedBy(b) != "" })
	if w.life.endedBy(a) != cay.ReasonOOM || w.life.endedBy(b) != cay.ReasonWorkerLost {
		t.Errorf("ended by %s and %s", w.life.endedBy(a), w.life.endedBy(b))
	}
	w.life.mu.Lock()
	defer w.life.mu.Unlock()
	if len(w.life.ended) != 2 || !w.life.active[a] || !slices.Equal(w.life.killed, []string{"prc_1"}) {
		t.Errorf("ended %v, active %v, killed %v", w.life.ended, w.life.active, w.life.killed)
	}
}

func TestACallToAnUnknownSandboxIsADomainError(t *testing.T) {
	w := start(t, nil)
	<-w.ready
	client, err := w.For(t.Context(), w.node.Worker)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Freeze(t.Context(), connect.NewRequest(&nodev1.FreezeRequest{SandboxId: "sbx_x"}))
	if got := noderpc.Decode(err); cay.ReasonOf(got) != cay.Gone {
		t.Errorf("got %v", got)
	}
	w.node.Kill()
	_, err = client.Freeze(t.Context(), connect.NewRequest(&nodev1.FreezeRequest{SandboxId: "sbx_x"}))
	if got := noderpc.Decode(err); cay.ReasonOf(got) != cay.Unavailable {
		t.Errorf("from a dead node: %v", got)
	}
}
