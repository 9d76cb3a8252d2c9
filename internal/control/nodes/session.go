package nodes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	infoTimeout  = 5 * time.Second
	helloTimeout = 10 * time.Second
	adoptTimeout = 2 * time.Minute // a node thaws and greets every sandbox meanwhile
	minRedial    = 50 * time.Millisecond
	maxRedial    = time.Second
	quietRedials = 20 // a node that is merely slow to start is no news
)

// keep has one session with the node after another until ctx ends.
func (n *Nodes) keep(ctx context.Context, to *node) {
	defer to.close()
	wait, failures := minRedial, 0
	for {
		began := time.Now()
		err := n.session(ctx, to)
		to.close()
		if ctx.Err() != nil {
			return
		}
		lost := time.Since(began) > maxRedial // it had been one
		if lost {
			wait, failures = minRedial, 0
		}
		if lost || failures > 0 && failures%quietRedials == 0 {
			n.log.Warn("no session with the node; dialling again", "socket", to.socket, "error", err)
		}
		failures++
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait/2 + rand.N(wait)):
		}
		wait = min(2*wait, maxRedial)
	}
}

// session connects, adopts where the node has started anew, and passes events on until the node is lost. It always returns an error.
func (n *Nodes) session(ctx context.Context, to *node) error {
	info, err := getInfo(ctx, to)
	if err != nil {
		return err
	}
	w := worker(info)
	if err := n.register(ctx, w); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := watch(ctx, cancel, to, info.Boot)
	if err != nil {
		return err
	}
	lost := make(chan error, 1)
	var reader sync.WaitGroup
	reader.Go(func() { lost <- n.pass(ctx, w.ID, events) })
	defer func() {
		cancel() // first: closing a stream that is alive would wait for its end
		reader.Wait()
		if err := events.Close(); err != nil {
			n.log.Debug("close the watch of a node", "worker", w.ID, "error", err)
		}
	}()

	if to.adopted != info.Boot || !info.Adopted {
		if err := n.adopt(ctx, to, w, info.Boot); err != nil {
			return err
		}
	} else if err := n.compare(ctx, to, w.ID); err != nil {
		return err
	}
	n.setLive(w.ID, to)
	defer n.setLive(w.ID, nil)
	n.log.Info("node is ready", "worker", w.ID, "version", w.Version, "boot", info.Boot)

	beat := time.NewTicker(n.cfg.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case err := <-lost:
			return err
		case <-beat.C:
			if err := n.beat(ctx, to, info.Boot); err != nil {
				return err
			}
		}
	}
}

// beat looks at a connected node: that it is still the same start, what it offers now, and that it has what it must have.
func (n *Nodes) beat(ctx context.Context, to *node, boot string) error {
	info, err := getInfo(ctx, to)
	if err != nil {
		return err
	}
	if info.Boot != boot {
		return fmt.Errorf("node started anew: boot %s, was %s", info.Boot, boot)
	}
	w := worker(info)
	if err := n.register(ctx, w); err != nil {
		n.log.Error("heartbeat was not recorded", "worker", w.ID, "error", err)
	}
	return n.compare(ctx, to, w.ID)
}

func getInfo(ctx context.Context, to *node) (*nodev1.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	answer, err := to.control.GetInfo(ctx, connect.NewRequest(&nodev1.GetInfoRequest{}))
	if err != nil {
		return nil, fmt.Errorf("ask the node what it is: %w", noderpc.Decode(err))
	}
	return answer.Msg, nil
}

// watch opens the stream of events. Its first message proves that it is the node that answered before. cancel ends ctx, when the hello
// does not come in time or is a wrong one.
func watch(ctx context.Context, cancel context.CancelFunc, to *node, boot string) (*connect.ServerStreamForClient[nodev1.Event], error) {
	timer := time.AfterFunc(helloTimeout, cancel)
	defer timer.Stop()
	events, err := to.control.Watch(ctx, connect.NewRequest(&nodev1.WatchRequest{}))
	if err != nil {
		return nil, fmt.Errorf("watch the node: %w", noderpc.Decode(err))
	}
	if !events.Receive() {
		return nil, errors.Join(fmt.Errorf("watch the node: no hello: %w", noderpc.Decode(events.Err())), events.Close())
	}
	if hello := events.Msg().GetHello(); hello == nil || hello.Boot != boot {
		cancel()
		return nil, errors.Join(errors.New("watch the node: the stream does not begin with the hello of this start"), events.Close())
	}
	return events, nil
}

// adopt tells the node which sandboxes there are to be. What it has lost ends.
func (n *Nodes) adopt(ctx context.Context, to *node, w cay.Worker, boot string) error {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	n.life.Released(w.ID)
	var known []*nodev1.AdoptRequest_Known
	for _, sb := range n.life.On(w.ID) {
		known = append(known, &nodev1.AdoptRequest_Known{SandboxId: string(sb.ID), ProjectId: string(sb.ProjectID), Paused: sb.Status == cay.Paused})
	}
	asked := time.Now()
	answer, err := to.control.Adopt(ctx, connect.NewRequest(&nodev1.AdoptRequest{Sandboxes: known}))
	if err != nil {
		return fmt.Errorf("have the node adopt its sandboxes: %w", noderpc.Decode(err))
	}
	for _, id := range answer.Msg.Lost {
		if err := n.lost(ctx, w.ID, cay.ID(id)); err != nil {
			return err
		}
	}
	var there []cay.ID
	for _, k := range known {
		if !slices.Contains(answer.Msg.Lost, k.SandboxId) {
			there = append(there, cay.ID(k.SandboxId))
		}
	}
	n.life.Present(there, asked)
	to.adopted = boot
	n.log.Info("node adopted its sandboxes", "worker", w.ID, "running", len(answer.Msg.Running), "lost", len(answer.Msg.Lost))
	return nil
}

// compare ends the sandboxes that the node should have and does not: the news of their end was lost, or came before the store knew
// them to be there. The rows are read first, so that one that becomes READY meanwhile is not missed in an older list; and one is lost
// only when it is missing twice in a row, so that the node's own word on why it ended comes first.
func (n *Nodes) compare(ctx context.Context, to *node, worker cay.ID) error {
	rows := n.life.On(worker)
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	asked := time.Now()
	answer, err := to.control.List(ctx, connect.NewRequest(&nodev1.ListRequest{}))
	if err != nil {
		return fmt.Errorf("ask the node what it has: %w", noderpc.Decode(err))
	}
	there := map[string]bool{}
	var alive []cay.ID
	for _, state := range answer.Msg.Sandboxes {
		there[state.SandboxId] = true
		if state.State != stateEnding {
			alive = append(alive, cay.ID(state.SandboxId))
		}
	}
	n.life.Present(alive, asked)
	missing := map[cay.ID]bool{}
	for _, sb := range rows {
		if there[string(sb.ID)] {
			continue
		}
		if !to.missing[sb.ID] {
			missing[sb.ID] = true
			continue
		}
		if err := n.lost(ctx, worker, sb.ID); err != nil {
			return err
		}
	}
	to.missing = missing
	return nil
}

func (n *Nodes) lost(ctx context.Context, worker, id cay.ID) error {
	n.log.Warn("a sandbox is gone from its worker", "sandbox", id, "worker", worker)
	if err := n.life.Ended(ctx, worker, id, cay.ReasonWorkerLost, "the sandbox was gone from its worker", cay.Usage{}); err != nil {
		return fmt.Errorf("end lost sandbox %s: %w", id, err)
	}
	return nil
}

// pass hands the node's events on until the stream ends. It always returns an error.
func (n *Nodes) pass(ctx context.Context, worker cay.ID, events *connect.ServerStreamForClient[nodev1.Event]) error {
	for events.Receive() {
		if err := n.take(ctx, worker, events.Msg()); err != nil {
			return err
		}
	}
	if err := events.Err(); err != nil {
		return fmt.Errorf("watch the node: %w", noderpc.Decode(err))
	}
	return errors.New("watch the node: the node ended the stream")
}

// stateEnding is what a node says of a sandbox that has ended there, or is being destroyed.
const stateEnding = "ending"

// endReasons are the reasons that a node may give; any other word of it is worker_lost.
var endReasons = map[string]cay.StatusReason{
	string(cay.ReasonOOM): cay.ReasonOOM, string(cay.ReasonDiskFull): cay.ReasonDiskFull,
	string(cay.ReasonEvicted): cay.ReasonEvicted, string(cay.ReasonWorkerLost): cay.ReasonWorkerLost,
}

// take hands one event on. An error means that the event was not recorded; the session then starts over, which finds it again.
func (n *Nodes) take(ctx context.Context, worker cay.ID, event *nodev1.Event) error {
	id, ok := cay.ParseID(cay.PrefixSandbox, event.SandboxId)
	if !ok {
		return nil // a hello, or an event of a kind that came after this version
	}
	at := time.UnixMilli(event.AtUnixMs).UTC()
	switch e := event.Event.(type) {
	case *nodev1.Event_Ended:
		reason, ok := endReasons[e.Ended.Reason]
		if !ok {
			reason = cay.ReasonWorkerLost
		}
		if err := n.life.Ended(ctx, worker, id, reason, e.Ended.Detail, usage(e.Ended.Usage)); err != nil {
			return fmt.Errorf("end sandbox %s: %w", id, err)
		}
	case *nodev1.Event_Oom:
		if err := n.life.ProcessKilled(ctx, id, at, e.Oom.Process, e.Oom.Pid, e.Oom.RssMb); err != nil {
			n.log.Error("a process killed for memory was not recorded", "sandbox", id, "error", err)
		}
	case *nodev1.Event_Activity:
		n.life.Active(id, time.UnixMilli(e.Activity.LastActiveUnixMs).UTC(), e.Activity.Foreground, usage(e.Activity.Usage))
	}
	return nil
}

func worker(info *nodev1.Info) cay.Worker {
	w := cay.Worker{
		Version: info.Version, Isolation: info.Isolation, CPU: info.Cpu, MemoryMB: info.MemoryMb, DiskGB: info.DiskGb,
		MaxSandboxes: info.MaxSandboxes, Enforced: info.Enforced, CanFreeze: info.CanFreeze, CanMount: info.CanMount, Boot: info.Boot, HeartbeatAt: time.Now().UTC(),
	}
	w.ID, _ = cay.ParseID(cay.PrefixWorker, info.WorkerId)
	for _, r := range info.Runtimes {
		w.Runtimes = append(w.Runtimes, cay.Runtime{Name: r.Name, Version: r.Version, Image: r.Image, Exec: r.Exec})
	}
	return w
}

func usage(u *nodev1.Usage) cay.Usage {
	if u == nil {
		return cay.Usage{}
	}
	return cay.Usage{CPUSeconds: u.CpuSeconds, MemoryMBSeconds: u.MemoryMbSeconds, PeakMemoryMB: u.PeakMemoryMb, DiskMB: u.DiskMb}
}
