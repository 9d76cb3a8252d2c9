package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/image"
)

const (
	logName = "runsc.log" // runsc writes its fatal errors there, and nothing else
	// cleanupTimeout bounds the removal of a start that failed.
	cleanupTimeout = 30 * time.Second
)

// dir is the sandbox's directory, which is also its OCI bundle.
func (d *Driver) dir(h driver.Handle) string       { return filepath.Join(d.sandboxesDir(), string(h)) }
func (d *Driver) diskDir(h driver.Handle) string   { return filepath.Join(d.dir(h), "disk") }
func (d *Driver) socketDir(h driver.Handle) string { return filepath.Join(d.socketsDir(), string(h)) }

// Prepare boots a sandbox.
func (d *Driver) Prepare(ctx context.Context, h driver.Handle, shape driver.Shape) error {
	if err := d.checkShape(h, shape); err != nil {
		return err
	}
	b, done, err := d.enter(ctx, h, true)
	if err != nil {
		return err
	}
	defer done()
	switch r := b.current(); {
	case r.complete() && b.alive() && r.Shape == shape:
		return nil
	case r.complete() && b.alive():
		return cay.Errorf(cay.Conflict, "the sandbox has another shape").Because(fmt.Errorf("prepare %s as %+v: it is %+v", h, shape, r.Shape))
	case r.Version != 0:
		return fmt.Errorf("prepare %s: its remains are not destroyed yet: %w", h, driver.ErrGone)
	}
	if err := d.boot(ctx, b, shape); err != nil {
		err = fmt.Errorf("boot %s: %w", h, err)
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		return errors.Join(err, d.destroy(cleanup, b))
	}
	return nil
}

func (d *Driver) checkShape(h driver.Handle, s driver.Shape) error {
	switch {
	case s.Image != image.HostName:
		return fmt.Errorf("image %q: %w", s.Image, driver.ErrUnsupported)
	case s.CPU <= 0 || s.MemoryMB < 16 || s.DiskGB <= 0 || s.Pids <= 0:
		return fmt.Errorf("shape %+v: %w", s, driver.ErrUnsupported)
	case len(controlSocket(d.cfg.RunDir, h)) > maxSocketPath:
		return fmt.Errorf("handle %s is too long for a socket's path in %s", h, d.cfg.RunDir)
	}
	return nil
}

func (d *Driver) boot(ctx context.Context, b *box, shape driver.Shape) error {
	h := b.handle
	img, err := d.hostImage(ctx)
	if err != nil {
		return err
	}
	group := d.tree.Open(string(h))
	r := record{
		Version: recordVersion, BootID: d.bootID, Runsc: d.cfg.Runsc, Digest: d.cfg.Digest, Image: img.Name(), Fingerprint: img.Fingerprint(),
		Group: group.Location(), Shape: shape, CreatedAt: time.Now().UTC(),
	}
	// First of all the record: it tells a later process where to look for what this start leaves if it is cut off.
	if err := os.MkdirAll(d.diskDir(h), 0o700); err != nil {
		return fmt.Errorf("make its directory: %w", err)
	}
	b.setRecord(r)
	if err := writeRecord(d.dir(h), r); err != nil {
		return err
	}
	if d.canMount {
		if err := os.Mkdir(d.boxPointsDir(h), 0o755); err != nil {
			return fmt.Errorf("make its mount points: %w", err)
		}
	}
	if err := d.writeConfig(d.dir(h), h, shape, img); err != nil {
		return err
	}
	// Until the agent runs nothing of the sandbox does: gVisor may start with all the cores there are.
	starting := limits(r)
	starting.CPU = 0
	if b.group, err = d.tree.Create(string(h), starting); err != nil {
		return err
	}
	c, err := listen(d.socketDir(h))
	if err != nil {
		return err
	}
	b.setChannel(c)
	if err := d.run(ctx, b, shape); err != nil {
		return err
	}

	if err := b.group.SetLimits(limits(r)); err != nil {
		return err
	}
	if r.Sentry, r.Gofer, err = d.readState(h); err != nil {
		return err
	}
	f, err := r.Sentry.open()
	if err != nil {
		return fmt.Errorf("the kernel ended at once: %w", err)
	}
	b.setRecord(r)
	d.attach(b, f)
	return writeRecord(d.dir(h), r)
}

// hostImage is the image of the host as it is now.
func (d *Driver) hostImage(ctx context.Context) (*image.Host, error) {
	d.imageMu.Lock()
	defer d.imageMu.Unlock()
	now, err := image.HostFingerprint()
	if err != nil {
		return nil, err
	}
	if now != d.image.Fingerprint() {
		img, err := image.BuildHost(ctx, d.imagesDir())
		if err != nil {
			return nil, err
		}
		d.image = img
	}
	return d.image, nil
}

// run starts runsc in the sandbox's control group and waits until the agent has been started.
func (d *Driver) run(ctx context.Context, b *box, shape driver.Shape) error {
	cmd := exec.Command(d.cfg.Runsc, d.arguments(b.handle, shape)...)
	cmd.Env = []string{"PATH=" + image.Path}
	cmd.Dir = d.dir(b.handle)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a Ctrl-C for the node is none for its sandboxes
	// Standard input and output are /dev/null: what the sandbox inherits must be nothing that it could fill.
	if err := b.group.Start(cmd); err != nil {
		return fmt.Errorf("start runsc: %w", err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		if err != nil {
			return fmt.Errorf("runsc: %w: %s", err, d.runscError(b.handle))
		}
		return nil
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		<-exited
		return ctx.Err()
	}
}

// runscError is the last of what runsc logged.
func (d *Driver) runscError(h driver.Handle) string {
	b, err := os.ReadFile(filepath.Join(d.dir(h), logName))
	if err != nil || len(b) == 0 {
		return "it said nothing"
	}
	const most = 2000
	text := string(b[max(0, len(b)-most):])
	var entry struct{ Msg string }
	if json.Unmarshal(b, &entry) == nil && entry.Msg != "" {
		text = entry.Msg
	}
	return strings.TrimSpace(text)
}

// readState reads the pids from runsc's state file and makes them identities at once: both processes are alive now, or were a
// moment ago, so that their pids are not used again yet.
func (d *Driver) readState(h driver.Handle) (sentry, gofer process, err error) {
	b, err := os.ReadFile(d.stateFile(h))
	if err != nil {
		return sentry, gofer, fmt.Errorf("read runsc's state: %w", err)
	}
	var state struct {
		GoferPID int `json:"goferPid"`
		Sandbox  struct {
			PID int `json:"pid"`
		} `json:"sandbox"`
	}
	if err := json.Unmarshal(b, &state); err != nil {
		return sentry, gofer, fmt.Errorf("read runsc's state: %w", err)
	}
	if sentry, err = identify(state.Sandbox.PID); err != nil {
		return sentry, gofer, err
	}
	gofer, err = identify(state.GoferPID)
	return sentry, gofer, err
}

func (d *Driver) stateFile(h driver.Handle) string {
	return filepath.Join(d.runscRoot(), fmt.Sprintf("%s_sandbox:%s.state", h, h))
}
