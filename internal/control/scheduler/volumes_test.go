package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/nodes/nodetest"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// session makes a session that sandboxes can name.
func (p *plane) session() cay.ID {
	p.t.Helper()
	at := time.Now().UTC().Truncate(time.Microsecond)
	ses := &cay.Session{
		ID: cay.NewID(cay.PrefixSession), ProjectID: project, Status: cay.SessionActive, DiskGB: 1, TTL: time.Hour,
		CreatedAt: at, LastUsedAt: at, ExpiresAt: at.Add(time.Hour), Version: 1,
	}
	p.ok(p.store.InsertSession(p.t.Context(), ses, 0))
	return ses.ID
}

// known waits until the life cycle has heard of a worker that can mount.
func (p *plane) known() {
	nodetest.Eventually(p.t, "the node is there", func() bool { return p.nodes.Available(p.node.Worker) })
}

func TestASandboxOfASessionMountsWhatIsReady(t *testing.T) {
	p := start(t, quick())
	mount := &nodev1.VolumeMount{Volume: "ses-1", Path: cay.SessionPath}
	p.node.PutVolume(mount.Volume, nil)
	p.prepare = func(context.Context, *cay.Sandbox) ([]*nodev1.VolumeMount, error) {
		return []*nodev1.VolumeMount{mount}, nil
	}
	var asked atomic.Pointer[nodev1.CreateRequest]
	p.node.OnCreate = func(_ context.Context, r *nodev1.CreateRequest) error { asked.Store(r); return nil }
	p.known()
	p.wait(p.create(cay.CreateSandbox{SessionID: p.session()}), cay.Ready)
	if got := asked.Load().Spec.Volumes; len(got) != 1 || got[0].Volume != mount.Volume || got[0].Path != mount.Path {
		t.Errorf("the node was asked to mount %v, want %v", got, mount)
	}
}

func TestAVolumeThatIsGoneFromItsWorkerFailsTheSandboxForGood(t *testing.T) {
	p := start(t, quick())
	p.prepare = func(context.Context, *cay.Sandbox) ([]*nodev1.VolumeMount, error) {
		return []*nodev1.VolumeMount{{Volume: "ses-gone", Path: cay.SessionPath}}, nil
	}
	p.known()
	sb := p.wait(p.create(cay.CreateSandbox{SessionID: p.session()}), cay.Failed)
	if _, there := p.node.Image("ses-gone"); sb.StatusReason != cay.ReasonUnprocessable || sb.Detail == "" || there {
		t.Errorf("failed with %s (%q), the volume is there anew: %v", sb.StatusReason, sb.Detail, there)
	}
}

func TestASessionThatHasEndedFailsTheSandboxForGood(t *testing.T) {
	p := start(t, quick())
	p.prepare = func(_ context.Context, sb *cay.Sandbox) ([]*nodev1.VolumeMount, error) {
		return nil, cay.Errorf(cay.Gone, "session %s is deleted", sb.Spec.SessionID)
	}
	p.known()
	if sb := p.wait(p.create(cay.CreateSandbox{SessionID: p.session()}), cay.Failed); sb.StatusReason != cay.ReasonUnprocessable {
		t.Errorf("failed with %s (%q), want unprocessable", sb.StatusReason, sb.Detail)
	}
}

func TestASandboxGoesWhereTheFilesOfItsSessionAre(t *testing.T) {
	p := start(t, quick())
	p.node.PutVolume("ses-1", nil)
	other := cay.NewID(cay.PrefixWorker)
	p.prepare = func(_ context.Context, sb *cay.Sandbox) ([]*nodev1.VolumeMount, error) {
		return nil, cay.Errorf(cay.Conflict, "the files are on another worker").With("worker_id", string(other))
	}
	p.known()
	id := p.create(cay.CreateSandbox{SessionID: p.session()})
	nodetest.Eventually(t, "the sandbox waits for the other worker", func() bool {
		sb, err := p.store.Sandbox(t.Context(), id)
		return err == nil && sb.NearWorker == other && sb.WorkerID == "" && sb.LeaseOwner == ""
	})
	p.remove(id)
}

func TestWhatWaitsForItsFilesHoldsUpNoOtherBoot(t *testing.T) {
	cfg := quick()
	cfg.Boots, cfg.Lease = 1, 6*time.Second
	p := start(t, cfg)
	p.node.PutVolume("ses-1", nil)
	ready := make(chan struct{})
	var prepared atomic.Int64
	p.prepare = func(ctx context.Context, _ *cay.Sandbox) ([]*nodev1.VolumeMount, error) {
		prepared.Add(1)
		select {
		case <-ready:
			return []*nodev1.VolumeMount{{Volume: "ses-1", Path: cay.SessionPath}}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.known()
	waiting := []cay.ID{p.create(cay.CreateSandbox{SessionID: p.session()}), p.create(cay.CreateSandbox{SessionID: p.session()})}
	nodetest.Eventually(t, "both wait for their files", func() bool { return prepared.Load() == 2 })
	for range 5 {
		p.wait(p.create(cay.CreateSandbox{}), cay.Ready)
	}
	until := func(id cay.ID) time.Time {
		sb, err := p.store.Sandbox(t.Context(), id)
		p.ok(err)
		return sb.LeaseUntil
	}
	first := until(waiting[0])
	nodetest.Eventually(t, "their leases are renewed", func() bool { return until(waiting[0]).After(first) })
	called := p.create(cay.CreateSandbox{SessionID: p.session()})
	nodetest.Eventually(t, "a third waits", func() bool { return prepared.Load() == 3 })
	p.remove(called) // while it waits
	close(ready)
	for _, id := range waiting {
		if sb := p.wait(id, cay.Ready); sb.Attempt != 1 {
			t.Errorf("a sandbox whose files took long was leased %d times, want once", sb.Attempt)
		}
	}
	p.wait(p.create(cay.CreateSandbox{}), cay.Ready)
}
