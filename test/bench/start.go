package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/cayhq/cay/test/bench/peer"
)

// cgroups is the parent of the cgroups of peers. A run of its own name lets two runs stand beside each other.
func cgroups(name string) string { return fmt.Sprintf("cay-bench-%d-%s", os.Getpid(), name) }

// start brings up Cay twice, with a pool and without, and every peer that the machine has. What it has started by the time of an
// error is taken down by stop.
func (b *bench) start(ctx context.Context) (err error) {
	progress("starting Cay without a pool, and with one of %d", poolSize)
	if b.cold, err = startServer(ctx, 0); err != nil {
		return fmt.Errorf("start Cay: %w", err)
	}
	if b.warm, err = startServer(ctx, poolSize); err != nil {
		return fmt.Errorf("start Cay: %w", err)
	}
	box, err := b.cold.create(ctx)
	if err != nil {
		return err
	}
	b.box = box.ID
	like, err := b.cold.bundle(b.box)
	if err != nil {
		return err
	}
	runsc, err := b.cold.runsc()
	if err != nil {
		return err
	}
	docker := &peer.Docker{Runsc: runsc, Cgroup: cgroups("docker")}
	b.peers = []entry{}
	for _, p := range []peer.Peer{
		&peer.Agent{Like: *like, Runsc: runsc},
		&peer.Box{OCI: peer.OCI{Program: runsc, Label: "runsc", Like: like}},
		docker, docker.With(""), docker.With("runsc"),
		&peer.Podman{Cgroup: cgroups("podman")},
		&peer.OCI{Program: "runc", Label: "runc", Cgroup: cgroups("runc")},
		&peer.OCI{Program: "crun", Label: "crun", Flags: []string{"--cgroup-manager=disabled"}, Hide: peer.MixedCgroups()},
		&peer.Bwrap{},
		peer.Native{},
	} {
		err := p.Start(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, new(peer.Absent)):
			progress("%s: skipped, %v", p.Name(), err)
		case err != nil:
			progress("%s: skipped, it did not start: %v", p.Name(), err)
		}
		e := entry{Peer: p}
		if err != nil {
			e.absent = err.Error()
		}
		b.peers = append(b.peers, e)
	}
	return nil
}

const poolSize = 2

// stop takes down all that start brought up, in reverse.
func (b *bench) stop() error {
	var faults []error
	for i := len(b.peers) - 1; i >= 0; i-- {
		if p := b.peers[i]; p.absent == "" {
			if err := p.Stop(); err != nil {
				faults = append(faults, fmt.Errorf("stop %s: %w", p.Name(), err))
			}
		}
	}
	for _, s := range []*server{b.warm, b.cold} {
		if s != nil {
			faults = append(faults, s.Close())
		}
	}
	return errors.Join(faults...)
}
