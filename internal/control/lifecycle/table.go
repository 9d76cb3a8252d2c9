package lifecycle

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
)

// table is the memory of rows that have not ended. The store is the truth: a row is put here after it was written there, and an older
// version never replaces a newer one. Rows in it are never edited, only replaced.
type table struct {
	mu   sync.RWMutex
	rows map[cay.ID]*entry // guarded by mu
}

type entry struct {
	row     *cay.Sandbox  // guarded by table.mu
	changed chan struct{} // guarded by table.mu; closed when row is replaced
	refusal error         // guarded by table.mu; why the node would not do the last pause or resume
	refused int64         // guarded by table.mu; the version that refusal came with
	usage   cay.Usage     // guarded by table.mu; newer than the row's
	dirty   bool          // guarded by table.mu; usage is to be flushed

	lastActive atomic.Int64 // Unix nanoseconds
	flushed    atomic.Int64 // lastActive as last written
	seen       atomic.Int64 // Unix nanoseconds: when its worker last had it; 0: not since this server began
	foreground atomic.Bool
	diskFull   atomic.Bool // as was last told
}

func (e *entry) touch(at time.Time) { forward(&e.lastActive, at) }

// forward moves a time on, never back.
func forward(t *atomic.Int64, at time.Time) {
	for ns := at.UnixNano(); ; {
		old := t.Load()
		if old >= ns || t.CompareAndSwap(old, ns) {
			return
		}
	}
}

func (e *entry) activeAt() time.Time { return time.Unix(0, e.lastActive.Load()).UTC() }

func newTable() *table { return &table{rows: map[cay.ID]*entry{}} }

// get returns the entry and its row, nil when the sandbox has ended or was never there.
func (t *table) get(id cay.ID) (*entry, *cay.Sandbox) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e := t.rows[id]
	if e == nil {
		return nil, nil
	}
	return e, e.row
}

// watch returns what waiting for a change of a row needs: the row as it is, the channel that its replacement closes, and the refusal
// that came after version since, if one did.
func (t *table) watch(id cay.ID, since int64) (row *cay.Sandbox, changed <-chan struct{}, refusal error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e := t.rows[id]
	if e == nil {
		return nil, nil, nil
	}
	if e.refusal != nil && e.refused > since {
		refusal = e.refusal
	}
	return e.row, e.changed, refusal
}

// put makes row the newest and wakes who waits. An ended row leaves the table. refusal is the outcome of an operation that the node
// would not do, or nil.
func (t *table) put(row *cay.Sandbox, refusal error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.rows[row.ID]
	if e == nil {
		if row.Status.Ended() {
			return
		}
		e = &entry{row: row, changed: make(chan struct{}), usage: row.Usage}
		t.rows[row.ID] = e
	} else {
		if row.Version <= e.row.Version {
			return
		}
		e.row = row
		if refusal != nil {
			e.refusal, e.refused = refusal, row.Version
		} else if row.Status == cay.Paused && row.Op == cay.OpNone {
			e.refusal = nil
		}
		close(e.changed)
		e.changed = make(chan struct{})
	}
	if !row.LastActiveAt.IsZero() {
		e.touch(row.LastActiveAt)
	}
	e.usage = newer(e.usage, row.Usage)
	if row.Status.Ended() {
		delete(t.rows, row.ID)
	}
}

// measure takes a node's word on what a sandbox uses.
func (t *table) measure(id cay.ID, u cay.Usage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.rows[id]; e != nil {
		e.usage, e.dirty = newer(e.usage, u), true
	}
}

// saw notes that the sandbox's worker had it at a time.
func (t *table) saw(id cay.ID, at time.Time) {
	if e, _ := t.get(id); e != nil {
		forward(&e.seen, at)
	}
}

// lastSeen is when the sandbox's worker last had it; zero: not since this server began.
func (t *table) lastSeen(id cay.ID) time.Time {
	e, _ := t.get(id)
	if e == nil {
		return time.Time{}
	}
	ns := e.seen.Load()
	if ns == 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC().Truncate(time.Microsecond)
}

// newer joins two measurements of the same sandbox: all but the disk only ever grow.
func newer(old, now cay.Usage) cay.Usage {
	if now == (cay.Usage{}) {
		return old
	}
	return cay.Usage{
		CPUSeconds: max(old.CPUSeconds, now.CPUSeconds), MemoryMBSeconds: max(old.MemoryMBSeconds, now.MemoryMBSeconds),
		PeakMemoryMB: max(old.PeakMemoryMB, now.PeakMemoryMB), DiskMB: now.DiskMB, EgressBytes: max(old.EgressBytes, now.EgressBytes),
	}
}

// fold brings what only memory knows (last activity, usage) into sb.
func (t *table) fold(sb *cay.Sandbox) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	e := t.rows[sb.ID]
	if e == nil {
		return
	}
	if at := e.activeAt(); !sb.LastActiveAt.IsZero() && at.After(sb.LastActiveAt) {
		sb.LastActiveAt = at
	}
	sb.Usage = newer(sb.Usage, e.usage)
}

// all returns the rows for which keep holds.
func (t *table) all(keep func(*cay.Sandbox) bool) []*cay.Sandbox {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var rows []*cay.Sandbox
	for _, e := range t.rows {
		if keep(e.row) {
			rows = append(rows, e.row)
		}
	}
	return rows
}

// unflushed returns a copy of each row whose activity or usage the store does not know yet, and counts them as written. A READY or PAUSED
// one that its worker has is always among them: its time is accounted for until the worker last had it.
func (t *table) unflushed() []*cay.Sandbox {
	t.mu.Lock()
	defer t.mu.Unlock()
	var rows []*cay.Sandbox
	for _, e := range t.rows {
		active, seen := e.lastActive.Load(), e.seen.Load()
		counts := seen > 0 && (e.row.Status == cay.Ready || e.row.Status == cay.Paused)
		if active <= e.flushed.Load() && !e.dirty && !counts {
			continue
		}
		row := *e.row
		if counts {
			row.AccountedAt = time.Unix(0, seen).UTC()
		}
		row.LastActiveAt, row.Usage = time.Unix(0, active).UTC(), e.usage
		e.flushed.Store(active)
		e.dirty = false
		rows = append(rows, &row)
	}
	return rows
}
