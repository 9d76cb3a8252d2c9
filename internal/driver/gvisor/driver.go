// Package gvisor isolates sandboxes by gVisor: it starts runsc, keeps each sandbox in a control group, listens for its agent, and
// proves it gone. It is not a container runtime: there is one container to a sandbox, one way to start it, and what runs inside is
// the agent's business.
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/cgroup"
	"github.com/cayhq/cay/internal/node/image"
)

// Config says where a driver works. Directories are made as needed.
type Config struct {
	DataDir  string // holds image/ and sandboxes/; no comma or colon, which runsc takes apart
	RunDir   string // holds s/ and runsc/; on a file system that does not outlive the machine's boot; short, see maxSocketPath
	Runsc    string // the executable
	Agent    string // the executable, static
	Digest   string // of the folder that both came from; recorded with each sandbox, see InUse
	Instance string // names the control groups: cay-<Instance>

	Cgroups cgroup.Version // the kind to use; "": the best there is
	Logger  *slog.Logger
}

const (
	// sentryOverhead is what gVisor itself needs beside the memory it gives to the sandbox, bytes. Measured: 35 to 45 MB at rest.
	sentryOverhead = 64 << 20
	// Hard limits on host processes and threads are backstops behind the agent's count: systrap needs a process for each address space
	// and a thread for each that runs, the sentry some tens.
	pidsBase, pidsEach = 256, 4
	// minInodes and inodesPerGB bound the files of a sandbox's disk; each costs the sentry about 2.5 KB of memory and no disk.
	minInodes, inodesPerGB = 65536, 65536
	memoryPerInode         = 4096 // bytes of the sandbox's memory for which it may have a file
	// maxSocketPath is the kernel's bound on a socket's path (sun_path less its final zero).
	maxSocketPath = 107
)

// Driver is the gVisor driver. It implements driver.Driver, driver.Freezer and driver.Statser.
type Driver struct {
	cfg      Config
	rootless bool
	tree     cgroup.Tree
	log      *slog.Logger
	bootID   string
	events   *events

	canMount  bool   // volumes; set by openVolumes
	mountNote string // why not, where that can be changed

	imageMu sync.Mutex // held while the image is checked or built
	image   *image.Host

	ctx    context.Context // of everything that watches; ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex
	closed bool                   // guarded by mu
	boxes  map[driver.Handle]*box // guarded by mu
	active sync.WaitGroup         // operations in progress; Add under mu while not closed
}

var (
	_ driver.Driver  = (*Driver)(nil)
	_ driver.Freezer = (*Driver)(nil)
	_ driver.Statser = (*Driver)(nil)
)

// New opens the driver and takes over whatever an earlier process of this configuration left: it listens for the agents of
// sandboxes that run, and watches them.
func New(ctx context.Context, cfg Config) (*Driver, error) {
	if strings.ContainsAny(cfg.DataDir, ",:") {
		return nil, fmt.Errorf("the data directory %q has a comma or a colon in it, which gVisor cannot take", cfg.DataDir)
	}
	if n := len(controlSocket(cfg.RunDir, driver.Handle(strings.Repeat("x", 30)))); n > maxSocketPath {
		return nil, fmt.Errorf("the run directory %q is %d characters too long for sockets in it", cfg.RunDir, n-maxSocketPath)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	bootID, err := readBootID()
	if err != nil {
		return nil, err
	}
	tree, err := cgroup.Open(cgroup.Options{Name: "cay-" + cfg.Instance, Only: cfg.Cgroups})
	if err != nil {
		return nil, err
	}
	d := &Driver{
		cfg: cfg, rootless: os.Geteuid() != 0, tree: tree, log: cfg.Logger, bootID: bootID,
		events: newEvents(), boxes: map[driver.Handle]*box{},
	}
	for dir, mode := range map[string]os.FileMode{d.sandboxesDir(): 0o711, d.runscRoot(): 0o711, d.socketsDir(): 0o711} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return nil, fmt.Errorf("make %s: %w", dir, err)
		}
	}
	if d.image, err = image.BuildHost(ctx, d.imagesDir()); err != nil {
		return nil, err
	}
	if err := d.openVolumes(); err != nil {
		return nil, err
	}
	d.ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := d.adopt(); err != nil {
		d.cancel()
		return nil, errors.Join(err, d.Close())
	}
	if err := image.Prune(d.imagesDir(), d.imagesInUse()); err != nil {
		d.log.Warn("old images stay", "error", err)
	}
	return d, nil
}

func (d *Driver) sandboxesDir() string { return filepath.Join(d.cfg.DataDir, "sandboxes") }
func (d *Driver) imagesDir() string    { return filepath.Join(d.cfg.DataDir, "image") }
func (d *Driver) runscRoot() string    { return filepath.Join(d.cfg.RunDir, "runsc") }
func (d *Driver) socketsDir() string   { return filepath.Join(d.cfg.RunDir, "s") }

// controlSocket is where runsc puts the socket by which it controls a sandbox. Were the path too long, it would silently go elsewhere.
func controlSocket(runDir string, h driver.Handle) string {
	return filepath.Join(runDir, "runsc", "runsc-"+string(h)+".sock")
}

// Runtimes are those of the host image.
func (d *Driver) Runtimes() []cay.Runtime {
	d.imageMu.Lock()
	defer d.imageMu.Unlock()
	var out []cay.Runtime
	for _, r := range d.image.Runtimes() {
		out = append(out, cay.Runtime{Name: r.Name, Version: r.Version, Image: image.HostName, Exec: r.Exec})
	}
	return out
}

// InUse names the digests of executables that some sandbox still needs, and this driver's own.
func (d *Driver) InUse() map[string]bool {
	out := map[string]bool{d.cfg.Digest: true}
	for _, b := range d.all() {
		if r := b.current(); r.Digest != "" {
			out[r.Digest] = true
		}
	}
	return out
}

func (d *Driver) imagesInUse() map[string]bool {
	out := map[string]bool{d.image.Name(): true}
	for _, b := range d.all() {
		if r := b.current(); r.Image != "" {
			out[r.Image] = true
		}
	}
	return out
}

// Info tells what this host keeps for real.
func (d *Driver) Info() driver.Info {
	info := driver.Info{Isolation: "gvisor", Version: runscVersion, Rootless: d.rootless, CanFreeze: d.tree.CanFreeze(), CanMount: d.canMount}
	if d.tree.Enforces(cgroup.CPU) {
		info.Enforced = append(info.Enforced, "cpu")
	}
	if d.tree.Enforces(cgroup.Memory) {
		info.Enforced = append(info.Enforced, "memory_mb")
	}
	info.Enforced = append(info.Enforced, "disk_gb", "pids") // by the sandbox's own kernel and the agent
	if n := d.tree.Note(); n != "" {
		info.Notes = append(info.Notes, n)
	}
	if d.mountNote != "" {
		info.Notes = append(info.Notes, d.mountNote)
	}
	if d.rootless {
		info.Notes = append(info.Notes, "running without root: the sandbox's kernel has this user's rights on the host")
	}
	return info
}

// runscVersion is the gVisor module that cmd/cay-runsc pins.
const runscVersion = "v0.0.0-20260905035102-160fafc42237"

var handlePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)

// enter takes the box of h for an operation, making one if there is none and make is set: nil, nil means there is none. done must
// be called in the end.
func (d *Driver) enter(ctx context.Context, h driver.Handle, make bool) (b *box, done func(), err error) {
	if !handlePattern.MatchString(string(h)) {
		return nil, nil, fmt.Errorf("%q is no handle", h)
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	for {
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			return nil, nil, net.ErrClosed
		}
		b := d.boxes[h]
		if b == nil && !make {
			d.mu.Unlock()
			return nil, func() {}, nil
		}
		d.active.Add(1)
		if b == nil {
			b = newBox(h)
			b.busy <- struct{}{} // at once, so that a box without a sandbox is never left behind
			d.boxes[h] = b
			d.mu.Unlock()
			return b, func() { <-b.busy; d.active.Done() }, nil
		}
		d.mu.Unlock()
		select {
		case b.busy <- struct{}{}:
		case <-ctx.Done():
			d.active.Done()
			return nil, nil, ctx.Err()
		}
		d.mu.Lock()
		current := d.boxes[h] == b
		d.mu.Unlock()
		done := func() {
			<-b.busy
			d.active.Done()
		}
		if current {
			return b, done, nil
		}
		done() // destroyed while this waited
	}
}

func (d *Driver) forget(b *box) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.boxes[b.handle] == b {
		delete(d.boxes, b.handle)
	}
}

func (d *Driver) find(h driver.Handle) *box {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.boxes[h]
}

func (d *Driver) all() []*box {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]*box, 0, len(d.boxes))
	for _, b := range d.boxes {
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b *box) int { return strings.Compare(string(a.handle), string(b.handle)) })
	return out
}

// Claim records the owner and then sets the limits. A sandbox that was prepared before the host's programs changed is
// refused as unsupported: booting another is right.
func (d *Driver) Claim(ctx context.Context, h driver.Handle, spec driver.Spec) error {
	b, done, err := d.enter(ctx, h, false)
	if err != nil {
		return err
	}
	defer done()
	if b == nil || !b.alive() {
		return fmt.Errorf("claim %s: %w", h, driver.ErrGone)
	}
	r := b.current()
	if r.Spec == nil {
		now, err := image.HostFingerprint()
		if err != nil {
			return fmt.Errorf("claim %s: %w", h, err)
		}
		if now != r.Fingerprint {
			return fmt.Errorf("claim %s: the host's programs changed since it was prepared: %w", h, driver.ErrUnsupported)
		}
		if spec.CPU > r.Shape.CPU || spec.MemoryMB > r.Shape.MemoryMB || spec.Pids > r.Shape.Pids {
			return fmt.Errorf("claim %s: more than its shape: %w", h, driver.ErrUnsupported)
		}
		if err := d.checkVolumes(h, spec.Volumes); err != nil {
			return fmt.Errorf("claim %s: %w", h, err)
		}
		r.Spec = &spec
		if err := writeRecord(d.dir(h), r); err != nil {
			return fmt.Errorf("claim %s: %w", h, err)
		}
		b.setRecord(r)
	} else if !reflect.DeepEqual(*r.Spec, spec) {
		return cay.Errorf(cay.Conflict, "the sandbox belongs to another").Because(fmt.Errorf("claim %s for %s: it is of %s", h, spec.SandboxID, r.Spec.SandboxID))
	}
	if err := d.mountVolumes(h, spec.Volumes); err != nil {
		return fmt.Errorf("claim %s: %w", h, err)
	}
	if err := b.group.SetLimits(limits(r)); err != nil {
		return fmt.Errorf("claim %s: %w", h, err)
	}
	d.watchMemory(b)
	return nil
}

// Freeze stops every process of the sandbox, its kernel included.
func (d *Driver) Freeze(ctx context.Context, h driver.Handle) error {
	return d.freeze(ctx, h, cgroup.Group.Freeze)
}

// Thaw lets it go on.
func (d *Driver) Thaw(ctx context.Context, h driver.Handle) error {
	return d.freeze(ctx, h, cgroup.Group.Thaw)
}

func (d *Driver) freeze(ctx context.Context, h driver.Handle, do func(cgroup.Group, context.Context) error) error {
	if !d.tree.CanFreeze() {
		return driver.ErrUnsupported
	}
	b, done, err := d.enter(ctx, h, false)
	if err != nil {
		return err
	}
	defer done()
	if b == nil || !b.alive() {
		return driver.ErrGone
	}
	return do(b.group, ctx)
}

// Stats measures from outside.
func (d *Driver) Stats(_ context.Context, h driver.Handle) (driver.Stats, error) {
	b := d.find(h)
	if b == nil || !b.alive() {
		return driver.Stats{}, driver.ErrGone
	}
	return b.stats()
}

// List names what exists.
func (d *Driver) List(context.Context) ([]driver.Status, error) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	var out []driver.Status
	for _, b := range d.all() {
		r := b.current()
		s := driver.Status{Handle: b.handle, Shape: r.Shape, Complete: r.complete(), Alive: b.alive(), CreatedAt: r.CreatedAt}
		if r.Spec != nil {
			s.Spec, s.SandboxID = *r.Spec, r.Spec.SandboxID
		}
		if s.Alive {
			frozen, err := b.group.Frozen()
			if err != nil {
				return nil, fmt.Errorf("look whether %s is frozen: %w", b.handle, err)
			}
			s.Frozen = frozen
		}
		out = append(out, s)
	}
	return out, nil
}

// Dial waits for the agent.
func (d *Driver) Dial(ctx context.Context, h driver.Handle, purpose driver.Purpose) (net.Conn, error) {
	b := d.find(h)
	if b == nil {
		return nil, fmt.Errorf("dial %s: %w", h, driver.ErrGone)
	}
	c := b.channel()
	if c == nil {
		return nil, fmt.Errorf("dial %s: %w", h, driver.ErrGone)
	}
	conn, err := c.dial(ctx, purpose)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", h, err)
	}
	return conn, nil
}

// Watch delivers events, also those of before.
func (d *Driver) Watch(ctx context.Context) (<-chan driver.Event, error) {
	return d.events.watch(ctx, d.ctx)
}

// closeTimeout bounds how long Close waits for operations that a caller left running.
const closeTimeout = time.Minute

// Close waits for operations in progress, then stops listening and watching. What gVisor and the control groups keep for all
// sandboxes together is removed if there is no sandbox left.
func (d *Driver) Close() error {
	d.mu.Lock()
	already := d.closed
	d.closed = true
	d.mu.Unlock()
	if already {
		return nil
	}
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		d.active.Wait()
	}()
	d.cancel()
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		return errors.New("close the driver: operations are still in progress")
	}
	boxes := d.all()
	for _, b := range boxes {
		b.stop(net.ErrClosed)
	}
	d.events.close()
	if len(boxes) > 0 {
		return nil
	}
	return errors.Join(d.removeNullNetns(), d.closeVolumes(), removeEmpty(d.runscRoot(), d.socketsDir()), d.tree.Remove())
}
