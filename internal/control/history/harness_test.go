package history_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/history"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("the database is down")

// store keeps everything in memory.
type store struct {
	mu      sync.Mutex
	down    bool
	boxes   map[cay.ID]*cay.Sandbox
	records map[cay.ID]cay.Record
	batches int // of records
	audit   []cay.AuditEntry
	writes  int // of the audit log
	events  []cay.Event
	oldest  int64
	looks   int
	reads   int // of events
}

func (s *store) Sandbox(_ context.Context, id cay.ID) (*cay.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errDown
	}
	if sb := s.boxes[id]; sb != nil {
		return sb, nil
	}
	return nil, cay.Errorf(cay.NotFound, "there is no sandbox %s", id)
}

func (s *store) AddRecords(_ context.Context, records []cay.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	s.batches++
	for _, r := range records {
		if _, there := s.records[r.ID]; !there {
			s.records[r.ID] = r
		}
	}
	return nil
}

func (s *store) Record(_ context.Context, project, id cay.ID) (cay.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, there := s.records[id]; there && r.ProjectID == project {
		return r, nil
	}
	return cay.Record{}, cay.Errorf(cay.NotFound, "there is no record of %s", id)
}

func (s *store) ListRecords(context.Context, cay.ID, cay.RecordQuery) ([]cay.Record, string, error) {
	return nil, "", nil
}

func (s *store) Usage(context.Context, cay.ID, cay.UsageQuery) ([]cay.UsageRow, cay.UsageRow, string, error) {
	return nil, cay.UsageRow{}, "", nil
}

func (s *store) AddAudit(_ context.Context, entries []cay.AuditEntry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	s.writes++
	s.audit = append(s.audit, entries...)
	return nil
}

func (s *store) ListAudit(context.Context, cay.ID, cay.AuditQuery) ([]cay.AuditEntry, string, error) {
	return nil, "", nil
}

func (s *store) Events(_ context.Context, project cay.ID, q cay.EventQuery) ([]cay.Event, cay.EventSpan, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	var found []cay.Event
	for _, e := range s.events {
		if e.ProjectID == project && e.Seq > q.After && e.Seq >= s.oldest && len(found) < q.Limit && (len(q.Types) == 0 || slices.Contains(q.Types, e.Type)) {
			found = append(found, e)
		}
	}
	return found, cay.EventSpan{Oldest: s.oldest, Newest: int64(len(s.events))}, nil
}

func (s *store) EventsSince(context.Context, int64, int) ([]cay.ID, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	if s.down {
		return nil, 0, errDown
	}
	return nil, int64(len(s.events)), nil
}

func (s *store) happen(project cay.ID, kind cay.EventType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, cay.Event{Seq: int64(len(s.events) + 1), ProjectID: project, Type: kind})
}

func (s *store) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// node answers Records as the contract says, without a wire.
type node struct {
	nodev1connect.NodeServiceClient // nil: nothing else is asked

	mu      sync.Mutex
	boot    string
	kept    []*nodev1.ProcessRecord
	base    int64 // position before kept
	lost    int64
	away    bool
	asked   []*nodev1.RecordsRequest
	changed chan struct{}
}

func newNode() *node { return &node{boot: "one", changed: make(chan struct{})} }

func (n *node) Records(ctx context.Context, r *connect.Request[nodev1.RecordsRequest]) (*connect.Response[nodev1.RecordsResponse], error) {
	waiting, cancel := context.WithTimeout(ctx, msec(r.Msg.WaitMs))
	defer cancel()
	n.mu.Lock()
	n.asked = append(n.asked, r.Msg)
	n.mu.Unlock()
	for {
		n.mu.Lock()
		if n.away {
			n.mu.Unlock()
			return nil, noderpc.Encode(cay.Errorf(cay.Unavailable, "away"))
		}
		if r.Msg.Boot == n.boot && r.Msg.After > n.base {
			n.kept, n.base = n.kept[r.Msg.After-n.base:], r.Msg.After
		}
		some := n.kept[:min(len(n.kept), int(r.Msg.Limit))]
		answer := &nodev1.RecordsResponse{Boot: n.boot, Next: n.base + int64(len(some)), Lost: n.lost, Records: some}
		changed := n.changed
		n.mu.Unlock()
		if len(some) > 0 || waiting.Err() != nil {
			if ctx.Err() != nil {
				return nil, connect.NewError(connect.CodeCanceled, ctx.Err())
			}
			return connect.NewResponse(answer), nil
		}
		select {
		case <-changed:
		case <-waiting.Done():
		}
	}
}

func (n *node) change(do func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	do()
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *node) ends(records ...*nodev1.ProcessRecord) {
	n.change(func() { n.kept = append(n.kept, records...) })
}

func (n *node) unacknowledged() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.kept)
}

// cluster is the workers that there are.
type cluster struct {
	mu      sync.Mutex
	live    map[cay.ID]*node
	changed chan struct{}
}

func (c *cluster) Live() ([]cay.ID, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ids []cay.ID
	for id := range c.live {
		ids = append(ids, id)
	}
	return ids, c.changed
}

func (c *cluster) For(_ context.Context, worker cay.ID) (nodev1connect.NodeServiceClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.live[worker]; n != nil {
		return n, nil
	}
	return nil, cay.Errorf(cay.Unavailable, "the worker is away")
}

func (c *cluster) set(worker cay.ID, n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n == nil {
		delete(c.live, worker)
	} else {
		c.live[worker] = n
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// world is a history with one worker, one sandbox of a project, and everything behind it faked.
type world struct {
	*testing.T
	*history.History
	store   *store
	nodes   *cluster
	node    *node
	worker  cay.ID
	project cay.ID
	box     cay.ID
}

// start makes a world and starts it, which ends with the test. It is made for the clock of synctest.
func start(t *testing.T, configure ...func(*history.Config)) *world {
	t.Helper()
	w := &world{
		T: t, node: newNode(), worker: cay.NewID(cay.PrefixWorker), project: cay.NewID(cay.PrefixProject), box: cay.NewID(cay.PrefixSandbox),
		nodes: &cluster{live: map[cay.ID]*node{}, changed: make(chan struct{})},
	}
	w.store = &store{records: map[cay.ID]cay.Record{}, boxes: map[cay.ID]*cay.Sandbox{
		w.box: {ID: w.box, ProjectID: w.project, WorkerID: w.worker, Spec: cay.SandboxSpec{SessionID: "ses_1"}},
	}}
	w.nodes.live[w.worker] = w.node
	cfg := history.DefaultConfig()
	for _, f := range configure {
		f(&cfg)
	}
	w.History = history.New(cfg, w.store, w.nodes, slog.New(slog.DiscardHandler))
	w.Start()
	t.Cleanup(w.Stop)
	return w
}

// ended is the record of a process of the world's sandbox.
func (w *world) ended(change ...func(*nodev1.ProcessRecord)) *nodev1.ProcessRecord {
	r := &nodev1.ProcessRecord{
		ProcessId: string(cay.NewID(cay.PrefixProcess)), SandboxId: string(w.box), ProjectId: string(w.project), Kind: "exec", Command: "secret --token=1",
		StartedUnixMs: 1_000_000, EndedUnixMs: 1_002_000, Exit: &nodev1.Exit{Reason: "exited", DurationMs: 2000, StdoutSize: 3, CpuMs: 1500, PeakMemoryMb: 7},
	}
	for _, f := range change {
		f(r)
	}
	return r
}

// written are the records that are kept.
func (w *world) written() map[cay.ID]cay.Record {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	all := map[cay.ID]cay.Record{}
	for id, r := range w.store.records {
		all[id] = r
	}
	return all
}

// count is the value of a counter, summed over its labels.
func (w *world) count(name string) float64 {
	w.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.History)
	families, err := registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name })
	if i < 0 {
		w.Fatalf("there is no metric %s", name)
	}
	sum := 0.0
	for _, m := range families[i].Metric {
		sum += m.GetCounter().GetValue()
	}
	return sum
}

// asked are the questions that the worker got.
func (w *world) asked() []*nodev1.RecordsRequest {
	w.node.mu.Lock()
	defer w.node.mu.Unlock()
	return slices.Clone(w.node.asked)
}

// stored is a figure of the store.
func (w *world) stored(n *int) int {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	return *n
}

// noted are the entries of the audit log that are kept.
func (w *world) noted() []cay.AuditEntry {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	return slices.Clone(w.store.audit)
}
