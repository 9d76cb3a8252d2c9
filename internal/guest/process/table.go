// Package process starts a sandbox's processes, keeps their output until the node has it, feeds their stdin, signals them with all
// that descends from them, and says how they ended. It speaks in the messages of the guest hop but owns no connection: whoever has
// one asks for what is pending.
package process

import (
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/cgroup"
	"github.com/cayhq/cay/internal/guest/reaper"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"google.golang.org/protobuf/proto"
)

// maxProcesses bounds the processes that the node has not forgotten. Their hello fits into one frame.
const maxProcesses = 512

// Defaults is what the sandbox's owner set for every process.
type Defaults struct {
	Env     map[string]string
	User    string
	Workdir string
}

// Config is what a Table works with.
type Config struct {
	Users  *user.Database
	Groups *cgroup.Tree // nil: trees are found by session, parent and environment instead
	Notify func()       // something became pending; must not block
}

// Table is all started processes.
type Table struct {
	users   *user.Database
	groups  *cgroup.Tree
	notify  func()
	poller  *poller
	reaper  *reaper.Reaper
	null    *os.File
	held    atomic.Int64 // memory of all backlogs, in bytes
	swept   chan struct{}
	running sync.WaitGroup

	mu        sync.Mutex
	defaults  Defaults
	byID      map[string]*process
	byStream  map[uint64]*process
	dirty     []*process // have something pending
	kernels   uint64     // started so far
	lingering []lingerer // groups whose process has ended and that are not empty
}

type lingerer struct {
	id    string
	group *cgroup.Group
}

// NewTable makes a Table and begins reaping: from now on nobody else in this process may wait for children.
func NewTable(c Config) (*Table, error) {
	poll, err := newPoller()
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		poll.close()
		return nil, err
	}
	t := &Table{
		users: c.Users, groups: c.Groups, notify: c.Notify, poller: poll, null: null,
		swept: make(chan struct{}, 1), byID: map[string]*process{}, byStream: map[uint64]*process{},
		defaults: Defaults{User: user.Sandbox, Workdir: "/workspace"},
	}
	t.reaper = reaper.New(t.sweepSoon)
	t.running.Go(func() { poll.run(t.notify) })
	t.running.Go(func() { _ = t.reaper.Run() })
	t.running.Go(t.sweep)
	return t, nil
}

// Close kills every started process with its tree and waits until they are gone.
func (t *Table) Close() {
	t.mu.Lock()
	all := make([]string, 0, len(t.byID))
	for id := range t.byID {
		all = append(all, id)
	}
	t.mu.Unlock()
	for _, id := range all {
		_ = t.Signal(&guestv1.Signal{ProcessId: id, Signal: int32(syscall.SIGKILL), Tree: true})
	}
	t.reaper.Stop()
	t.poller.stop()
	close(t.swept)
	t.running.Wait()
	t.poller.close()
	t.null.Close()
}

// SetDefaults replaces what processes get that are started from now on.
func (t *Table) SetDefaults(d Defaults) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.defaults = d
}

// Ack drops output that the node has.
func (t *Table) Ack(id string, offset int64) {
	if p := t.find(id); p != nil {
		p.acknowledge(offset)
	}
}

// Stdin feeds the process of that stream. The error is a breach of the protocol. Bytes for a process that is unknown are dropped.
func (t *Table) Stdin(stream uint64, offset int64, data []byte) error {
	t.mu.Lock()
	p := t.byStream[stream]
	t.mu.Unlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stdin.feed(p, offset, data)
}

// CloseStdin ends stdin after what was sent before.
func (t *Table) CloseStdin(id string) error {
	p := t.find(id)
	if p == nil {
		return errUnknown(id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stdin.end(p)
	return nil
}

// Forget drops an ended process. One that runs is left alone.
func (t *Table) Forget(id string) {
	p := t.find(id)
	if p == nil {
		return
	}
	p.mu.Lock()
	ended := p.exit != nil
	p.mu.Unlock()
	if !ended {
		return
	}
	t.remove(p)
	p.forget()
}

// Running describes every process that the node has not forgotten, for a hello.
func (t *Table) Running() []*guestv1.Running {
	var list []*guestv1.Running
	for _, p := range t.all() {
		p.mu.Lock()
		if p.failure == nil {
			list = append(list, &guestv1.Running{
				ProcessId: p.id, Pid: int64(p.pid), Stream: p.stream,
				Produced: p.out.produced, Acknowledged: p.out.acked, StdinOffset: p.stdin.given,
			})
		}
		p.mu.Unlock()
	}
	return list
}

// Rewind makes everything pending again that the node has not acknowledged, for a new connection.
func (t *Table) Rewind() {
	for _, p := range t.all() {
		p.mu.Lock()
		p.out.rewind()
		p.exitSent = false
		p.stdin.rewind()
		t.touch(p)
		p.mu.Unlock()
	}
}

// AppendPending appends frames of what is pending, at most about limit bytes.
func (t *Table) AppendPending(b []byte, limit int) []byte {
	for len(b) < limit {
		t.mu.Lock()
		if len(t.dirty) == 0 {
			t.mu.Unlock()
			break
		}
		p := t.dirty[0]
		t.dirty[0] = nil
		t.dirty = t.dirty[1:]
		p.queued = false
		t.mu.Unlock()

		share := min(limit, len(b)+wire.MaxFrame) // a frame each in turn, so that none waits for a louder one
		var more bool
		if b, more = p.append(b, share); more {
			t.touch(p)
		}
	}
	return b
}

// touch says that p has something pending.
func (t *Table) touch(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !p.queued {
		p.queued = true
		t.dirty = append(t.dirty, p)
	}
}

func (t *Table) find(id string) *process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

func (t *Table) all() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]*process, 0, len(t.byID))
	for _, p := range t.byID {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *process) int { return int(min(max(int64(a.stream-b.stream), -1), 1)) })
	return all
}

func (t *Table) remove(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, p.id)
	delete(t.byStream, p.stream)
}

// linger keeps the group of an ended process until its descendants have ended too.
func (t *Table) linger(id string, group *cgroup.Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lingering = append(t.lingering, lingerer{id, group})
}

func (t *Table) sweepSoon() {
	select {
	case t.swept <- struct{}{}:
	default:
	}
}

// sweep removes groups that have become empty, after orphans were reaped, at most five times a second.
func (t *Table) sweep() {
	pause := time.NewTicker(200 * time.Millisecond)
	defer pause.Stop()
	for range t.swept {
		t.mu.Lock()
		t.lingering = slices.DeleteFunc(t.lingering, func(l lingerer) bool { return l.group.Remove() })
		t.mu.Unlock()
		<-pause.C
	}
}

// group is the control group of a started process, also of one that was forgotten; nil when there is none any more.
func (t *Table) group(id string) *cgroup.Group {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.byID[id]; p != nil {
		return p.group
	}
	for _, l := range t.lingering {
		if l.id == id {
			return l.group
		}
	}
	return nil
}

func errUnknown(id string) error {
	return cay.Errorf(cay.NotFound, "there is no process %s in the sandbox", id)
}

func appendMessage(b []byte, m *guestv1.ToNode) []byte {
	payload, err := proto.Marshal(m)
	if err != nil || len(payload) > wire.MaxFrame {
		panic("process: a message of its own that cannot be sent") // all of it is bounded and UTF-8
	}
	return wire.AppendFrame(b, wire.Frame{Type: wire.FrameMessage, Payload: payload})
}
