package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// fakeDriver keeps sandboxes in memory; each has an agent that runs the scripts.
type fakeDriver struct {
	scripts map[string]agenttest.Script
	agent   func(*agenttest.Agent) // changes a new agent
	dir     string                 // in which each sandbox has its directory

	mu        sync.Mutex
	boxes     map[driver.Handle]*fakeBox
	events    chan driver.Event
	prepared  int
	destroyed int
	failing   int   // Destroys that still fail
	refuse    error // of Prepare
	canMount  bool
	// halfFrozen is the error of a Freeze that stops the processes nevertheless.
	halfFrozen error
	measuring  chan struct{} // Stats waits until it is closed; nil: not at all
	measured   atomic.Int64  // calls of Stats that have begun to wait
}

type fakeBox struct {
	status driver.Status
	agent  *agenttest.Agent
	memory int64
	disk   int64
	thawed chan struct{}
}

func newFakeDriver() *fakeDriver {
	return &fakeDriver{boxes: map[driver.Handle]*fakeBox{}, events: make(chan driver.Event, 16), scripts: map[string]agenttest.Script{
		"sleep": func(p *agenttest.Process) *guestv1.Exited { p.Killed(); return nil },
	}}
}

func (d *fakeDriver) Info() driver.Info {
	return driver.Info{Isolation: "fake", Enforced: []string{"cpu", "memory_mb", "pids"}, CanFreeze: true, CanMount: d.canMount}
}

func (d *fakeDriver) Prepare(_ context.Context, h driver.Handle, shape driver.Shape) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return d.refuse
	}
	if d.boxes[h] != nil {
		return nil
	}
	d.prepared++
	if err := os.MkdirAll(filepath.Join(d.dir, string(h)), 0o700); err != nil {
		return err
	}
	a := &agenttest.Agent{Scripts: d.scripts}
	if d.agent != nil {
		d.agent(a)
	}
	d.boxes[h] = &fakeBox{agent: a, thawed: open(), status: driver.Status{Handle: h, Shape: shape, Complete: true, Alive: true, CreatedAt: time.Now()}}
	return nil
}

func open() chan struct{} { c := make(chan struct{}); close(c); return c }

func (d *fakeDriver) Claim(_ context.Context, h driver.Handle, spec driver.Spec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.boxes[h]
	if b == nil {
		return driver.ErrGone
	}
	if b.status.SandboxID != "" && b.status.SandboxID != spec.SandboxID {
		return cay.Errorf(cay.Conflict, "claimed")
	}
	b.status.SandboxID, b.status.Spec = spec.SandboxID, spec
	return nil
}

func (d *fakeDriver) Destroy(_ context.Context, h driver.Handle) error {
	d.mu.Lock()
	if d.failing > 0 {
		d.failing--
		d.mu.Unlock()
		return fmt.Errorf("still busy")
	}
	b := d.boxes[h]
	delete(d.boxes, h)
	d.destroyed++
	dir := filepath.Join(d.dir, string(h))
	d.mu.Unlock()
	if b != nil {
		b.agent.Kill()
	}
	return os.RemoveAll(dir)
}

func (d *fakeDriver) List(context.Context) ([]driver.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []driver.Status
	for _, b := range d.boxes {
		all = append(all, b.status)
	}
	return all, nil
}

func (d *fakeDriver) Watch(ctx context.Context) (<-chan driver.Event, error) {
	out := make(chan driver.Event)
	go func() {
		defer close(out)
		for {
			select {
			case e := <-d.events:
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

func (d *fakeDriver) Dial(ctx context.Context, h driver.Handle, p driver.Purpose) (net.Conn, error) {
	d.mu.Lock()
	b := d.boxes[h]
	var thawed chan struct{}
	if b != nil {
		thawed = b.thawed
	}
	d.mu.Unlock()
	if b == nil {
		return nil, driver.ErrGone
	}
	select {
	case <-thawed:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return b.agent.Dial(ctx, p)
}

func (d *fakeDriver) Close() error { return nil }

func (d *fakeDriver) Freeze(_ context.Context, h driver.Handle) error {
	err := d.change(h, func(b *fakeBox) {
		if !b.status.Frozen {
			b.status.Frozen, b.thawed = true, make(chan struct{})
		}
	})
	return errors.Join(err, d.halfFrozen)
}

func (d *fakeDriver) Thaw(_ context.Context, h driver.Handle) error {
	return d.change(h, func(b *fakeBox) {
		if b.status.Frozen {
			b.status.Frozen = false
			close(b.thawed)
		}
	})
}

func (d *fakeDriver) change(h driver.Handle, f func(*fakeBox)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.boxes[h]
	if b == nil {
		return driver.ErrGone
	}
	f(b)
	return nil
}

func (d *fakeDriver) Stats(_ context.Context, h driver.Handle) (driver.Stats, error) {
	d.mu.Lock()
	measuring := d.measuring
	d.mu.Unlock()
	if measuring != nil {
		d.measured.Add(1)
		<-measuring
	}
	var st driver.Stats
	err := d.change(h, func(b *fakeBox) {
		st = driver.Stats{CPU: 2 * time.Second, MemoryBytes: b.memory, PeakBytes: b.memory, DiskBytes: max(b.disk, 3<<20), HostPids: 4}
	})
	return st, err
}

// of finds the sandbox that was claimed for id.
func (d *fakeDriver) of(id string) *fakeBox {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.boxes {
		if string(b.status.SandboxID) == id {
			return b
		}
	}
	return nil
}

// die ends a sandbox as its kernel would.
func (d *fakeDriver) die(id string, oom bool) {
	b := d.of(id)
	b.agent.Kill()
	d.events <- driver.Event{Handle: b.status.Handle, Type: driver.EventExited, OOM: oom}
}

func (d *fakeDriver) count() (boxes, prepared, destroyed int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.boxes), d.prepared, d.destroyed
}
