package worker

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	maxRecords      = 20_000   // kept until they are acknowledged
	maxRecordBytes  = 16 << 20 // of the text in them
	recordPage      = 500      // in one answer
	recordGather    = time.Second
	maxRecordWait   = time.Minute
	recallPeriod    = 15 * time.Minute // before a start of the node, in which the ends of processes are told again
	maxRecordDetail = 1 << 10          // bytes of why a process did not start
)

// records keeps what processes have ended until somebody has written that down. Positions count from 1 with each start of the node.
type records struct {
	mu      sync.Mutex
	kept    []*nodev1.ProcessRecord
	base    int64 // position of the one before kept
	bytes   int64
	lost    int64
	settled int64 // losses up to this position are in lost
	waiting map[*recordWait]struct{}
}

// recordWait is a caller who waits until so many are kept.
type recordWait struct {
	count   int
	reached chan struct{}
}

func newRecords() *records { return &records{waiting: map[*recordWait]struct{}{}} }

func textBytes(r *nodev1.ProcessRecord) int64 {
	return int64(len(r.Command) + len(r.Name) + len(r.Language) + len(r.Actor) + len(r.Exit.GetDetail()))
}

// add keeps a record. What is too much goes, the oldest first.
func (k *records) add(r *nodev1.ProcessRecord) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept = append(k.kept, r)
	k.bytes += textBytes(r)
	if excess := len(k.kept) - maxRecords; excess > 0 {
		k.drop(excess)
	}
	for k.bytes > maxRecordBytes {
		k.drop(1)
	}
	for w := range k.waiting {
		if len(k.kept) >= w.count {
			close(w.reached)
			delete(k.waiting, w)
		}
	}
}

// drop forgets the n oldest. With k.mu.
func (k *records) drop(n int) {
	for i, r := range k.kept[:n] {
		k.bytes -= textBytes(r)
		k.kept[i] = nil
	}
	k.kept = k.kept[n:]
	k.base += int64(n)
}

// len is how many are kept.
func (k *records) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.kept)
}

// acknowledge says that everything up to after was written.
func (k *records) acknowledge(after int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	after = min(after, k.base+int64(len(k.kept)))
	k.settled = max(k.settled, after)
	if after > k.base {
		k.drop(int(after - k.base))
	}
}

// page answers the oldest, at most limit. What went before anybody had it counts as lost from now on.
func (k *records) page(limit int) (list []*nodev1.ProcessRecord, next, lost int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if gap := k.base - k.settled; gap > 0 {
		k.lost += gap
		k.settled = k.base
	}
	list = slices.Clone(k.kept[:min(limit, len(k.kept))])
	return list, k.base + int64(len(list)), k.lost
}

// atLeast returns a channel that is closed once count are kept; leave ends the wait.
func (k *records) atLeast(count int) (reached <-chan struct{}, leave func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := &recordWait{count: count, reached: make(chan struct{})}
	if len(k.kept) >= count {
		close(w.reached)
	} else {
		k.waiting[w] = struct{}{}
	}
	return w.reached, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.waiting, w)
	}
}

// age is how long ago the oldest process ended, at most gather.
func (k *records) age() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.kept) == 0 {
		return 0
	}
	return min(max(time.Since(time.UnixMilli(k.kept[0].EndedUnixMs)), 0), recordGather)
}

// recordsAfter is the long poll of Records.
func (w *Worker) recordsAfter(ctx context.Context, req *nodev1.RecordsRequest) (*nodev1.RecordsResponse, error) {
	if req.Boot == w.bootID {
		w.records.acknowledge(req.After)
	}
	limit := int(req.Limit)
	if limit <= 0 || limit > recordPage {
		limit = recordPage
	}
	patience := time.NewTimer(time.Duration(min(max(req.WaitMs, 0), maxRecordWait.Milliseconds())) * time.Millisecond)
	defer patience.Stop()
	one, leave := w.records.atLeast(1)
	defer leave()
	select {
	case <-one:
		all, leave := w.records.atLeast(limit)
		defer leave()
		gathered := time.NewTimer(recordGather - w.records.age())
		defer gathered.Stop()
		select {
		case <-all:
		case <-gathered.C:
		case <-patience.C:
		case <-w.ctx().Done(): // they go out before the node does
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case <-patience.C:
	case <-w.ctx().Done():
		return nil, cay.Errorf(cay.Unavailable, "the worker is restarting; try again").After(time.Second)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	list, next, lost := w.records.page(limit)
	return &nodev1.RecordsResponse{Boot: w.bootID, Next: next, Lost: lost, Records: list}, nil
}

func (s service) Records(ctx context.Context, r *connect.Request[nodev1.RecordsRequest]) (*connect.Response[nodev1.RecordsResponse], error) {
	return answer(s.w.recordsAfter(ctx, r.Msg))
}

// origin is what a record needs of a start; nil where none is to be kept.
func origin(ctx context.Context, st *nodev1.StartProcess, code *cay.Code) *spool.Origin {
	if !cay.RecordKind(st.Kind).OfProcess() {
		return nil
	}
	o := &spool.Origin{Kind: st.Kind, Actor: st.Actor, TraceID: tracing.ID(ctx)}
	switch {
	case code != nil:
		o.Command = strings.ToValidUTF8(cay.Clip(string(code.Source[:min(len(code.Source), cay.MaxRecordCommand+1)]), cay.MaxRecordCommand), "\uFFFD")
		o.Command = cay.Clip(o.Command, cay.MaxRecordCommand) // what was replaced may be longer
	case len(st.Spec.Argv) > 0:
		o.Command = commandLine(st.Spec.Argv)
	default:
		o.Command = strings.Clone(cay.Clip(st.Spec.Shell, cay.MaxRecordCommand)) // not to hold on to the request
	}
	return o
}

// commandLine joins arguments as one would type them in a shell.
func commandLine(argv []string) string {
	var b strings.Builder
	for i, arg := range argv {
		if b.Len() > cay.MaxRecordCommand {
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		arg = cay.Clip(arg, cay.MaxRecordCommand+1)
		if arg != "" && !strings.ContainsFunc(arg, special) {
			b.WriteString(arg)
			continue
		}
		b.WriteString("'" + strings.ReplaceAll(arg, "'", `'\''`) + "'")
	}
	return strings.Clone(cay.Clip(b.String(), cay.MaxRecordCommand))
}

// special reports whether a shell would not take the character as it is.
func special(c rune) bool {
	return c <= ' ' || c == 0x7f || strings.ContainsRune("|&;<>()$`\\\"'*?[]#~{}!", c)
}

// ended keeps the record of a process of b, and counts it.
func (w *Worker) ended(b *box, m spool.Process) {
	w.measured.ended(m)
	if r := recordOf(b, m); r != nil {
		w.records.add(r)
	}
}

// recordOf is the record of a process that has ended; nil where none is to be kept.
func recordOf(b *box, m spool.Process) *nodev1.ProcessRecord {
	if m.Origin == nil || m.Exit == nil {
		return nil
	}
	exit := *m.Exit
	exit.Duration = min(exit.Duration, max(m.EndedAt.Sub(m.StartedAt), 0)) // a record is more than its agent's word
	exit.Detail = cay.Clip(exit.Detail, maxRecordDetail)
	r := &nodev1.ProcessRecord{
		ProcessId: string(m.ID), SandboxId: string(b.id), ProjectId: string(b.project), Actor: m.Origin.Actor, Kind: m.Origin.Kind, Name: m.Name,
		Command: m.Origin.Command, StartedUnixMs: m.StartedAt.UnixMilli(), EndedUnixMs: m.EndedAt.UnixMilli(), Exit: exitMessage(exit),
		TraceId: m.Origin.TraceID,
	}
	if m.Code != nil {
		r.Language = m.Code.Language
	}
	return r
}

// recall makes records of the processes that a node before this one saw end: nobody may have asked it for them. Who writes them down
// twice writes them once. A sandbox that is over has none that run.
func (w *Worker) recall(b *box, sp *spool.Spool, over bool) {
	for _, log := range sp.Logs() {
		m := log.Process()
		if m.Exit == nil && over {
			log.End(router.SandboxEnded())
			m = log.Process()
		}
		if m.Exit == nil || m.Origin == nil {
			continue
		}
		if time.Since(m.EndedAt) < recallPeriod && w.records.len() < maxRecords/2 {
			w.records.add(recordOf(b, m))
		}
		log.DropOrigin()
	}
}
