package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/cgroup"
)

// adopt finds every sandbox, and every remnant of one, that an earlier process left: by its directory, its socket, runsc's state
// or its control group. What runs is listened to and watched again; the rest is listed until it is destroyed.
func (d *Driver) adopt() error {
	handles, err := d.traces()
	if err != nil {
		return err
	}
	for h := range handles {
		b := newBox(h)
		r, err := readRecord(d.dir(h))
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				d.log.Warn("the record of a sandbox is unreadable: it can only be destroyed", "sandbox", h, "error", err)
			}
			r = record{Version: recordVersion, Group: d.tree.Open(string(h)).Location()}
		}
		if r.BootID != d.bootID {
			r.Sentry, r.Gofer = process{}, process{} // those pids are others' now, if anybody's
			b.group = d.tree.Open(string(h))
		} else {
			b.group = cgroup.At(r.Group)
		}
		b.rec = r
		d.boxes[h] = b
		if !r.complete() {
			continue
		}
		f, err := r.Sentry.open()
		if errors.Is(err, driver.ErrGone) {
			continue
		} else if err != nil {
			return fmt.Errorf("adopt %s: %w", h, err)
		}
		c, err := listen(d.socketDir(h))
		if err != nil {
			return errors.Join(fmt.Errorf("adopt %s: %w", h, err), f.Close())
		}
		b.chn = c
		d.attach(b, f)
	}
	return nil
}

// traces names what has left anything.
func (d *Driver) traces() (map[driver.Handle]bool, error) {
	out := map[driver.Handle]bool{}
	add := func(name string) {
		if handlePattern.MatchString(name) {
			out[driver.Handle(name)] = true
		}
	}
	for _, dir := range []string{d.sandboxesDir(), d.socketsDir(), d.pointsDir(), d.runscRoot()} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for sandboxes: %w", err)
		}
		for _, e := range entries {
			name := e.Name()
			if e.IsDir() {
				add(name)
			} else if h, _, ok := strings.Cut(name, "_sandbox:"); ok {
				add(h)
			} else if h, ok := strings.CutPrefix(strings.TrimSuffix(name, ".sock"), "runsc-"); ok {
				add(h)
			}
		}
	}
	groups, err := d.tree.List()
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		add(g)
	}
	return out, nil
}
