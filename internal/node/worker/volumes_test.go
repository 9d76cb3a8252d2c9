package worker_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/node/volume"
	"github.com/cayhq/cay/internal/node/worker"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const volumeBytes = 16 << 20

// withVolumes gives a node a store of its own, which must be unmounted at the end.
func withVolumes(t *testing.T, dir string) (*volume.Store, func(*worker.Config)) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CAY_TEST_REQUIRE_ALL") != "" {
			t.Fatal("volumes are tested as root")
		}
		t.Skip("not root")
	}
	store, err := volume.Open(filepath.Join(dir, "volumes"), nil)
	if err != nil || store.Unusable() != "" {
		t.Fatalf("%v %s", err, store.Unusable())
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store, func(c *worker.Config) { c.Volumes = store }
}

func (n *node) createVolume(name string) {
	n.t.Helper()
	v, err := n.CreateVolume(n.t.Context(), connect.NewRequest(&nodev1.CreateVolumeRequest{Volume: name, Bytes: volumeBytes}))
	if err != nil || v.Msg.Bytes != volumeBytes {
		n.t.Fatalf("%v, %v", v, err)
	}
}

func (n *node) deleteVolume(name string) error {
	_, err := n.DeleteVolume(n.t.Context(), connect.NewRequest(&nodev1.DeleteVolumeRequest{Volume: name}))
	if err != nil {
		return noderpc.Decode(err)
	}
	return nil
}

func (n *node) mounting(mounts ...*nodev1.VolumeMount) (string, error) {
	id := cay.NewID(cay.PrefixSandbox)
	req := createRequest(id, 1)
	req.Msg.Spec.Volumes = mounts
	if _, err := n.Create(n.t.Context(), req); err != nil {
		return string(id), noderpc.Decode(err)
	}
	return string(id), nil
}

func mounted(store *volume.Store, name string) bool {
	var above, here unix.Stat_t
	dir := filepath.Join(store.Dir(), name)
	return unix.Stat(dir, &above) == nil && unix.Stat(filepath.Join(dir, "mount"), &here) == nil && above.Dev != here.Dev
}

func TestAVolumeIsHeldUntilItsSandboxIsProvenGone(t *testing.T) {
	d, dir := newFakeDriver(), t.TempDir()
	d.canMount = true
	claims := make(chan *guestv1.Claim, 1)
	d.agent = func(a *agenttest.Agent) {
		a.Answer = func(m *guestv1.ToAgent) *guestv1.ToNode {
			if c := m.GetClaim(); c != nil {
				claims <- c
			}
			return nil
		}
	}
	store, with := withVolumes(t, dir)
	n := startNode(t, d, dir, with)
	n.createVolume("one")
	id, err := n.mounting(&nodev1.VolumeMount{Volume: "one", Path: "/session"}, &nodev1.VolumeMount{Volume: "one", Path: "/again"})
	if cay.ReasonOf(err) != cay.Unprocessable {
		t.Errorf("twice the same: %v", err)
	}
	id, err = n.mounting(&nodev1.VolumeMount{Volume: "one", Path: "/session", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	b := d.of(id)
	if v := b.status.Spec.Volumes; len(v) != 1 || v[0].Name != "one" || !v[0].ReadOnly || !strings.HasSuffix(v[0].Source, "/one/mount/data") {
		t.Errorf("the driver was told %+v", v)
	}
	if m := (<-claims).Mounts; len(m) != 1 || m[0].Name != "one" || m[0].Path != "/session" || !m[0].ReadOnly {
		t.Errorf("the agent was told %v", m)
	}
	d.mu.Lock()
	d.failing = 1
	d.mu.Unlock()
	if _, err := n.destroy(id, 1); err == nil {
		t.Fatal("the driver was to fail")
	}
	if err := n.deleteVolume("one"); cay.ReasonOf(err) != cay.Conflict || !mounted(store, "one") {
		t.Errorf("while it may still run: %v", err)
	}
	if _, err := n.destroy(id, 1); err != nil {
		t.Fatal(err)
	}
	if mounted(store, "one") {
		t.Error("it is still mounted")
	}
	if err := n.deleteVolume("one"); err != nil {
		t.Error(err)
	}
}

func TestASandboxThatDoesNotBootGivesItsVolumesBack(t *testing.T) {
	d, dir := newFakeDriver(), t.TempDir()
	d.canMount = true
	store, with := withVolumes(t, dir)
	n := startNode(t, d, dir, with)
	n.createVolume("one")
	n.createVolume("two")
	one, two := &nodev1.VolumeMount{Volume: "one", Path: "/one"}, &nodev1.VolumeMount{Volume: "two", Path: "/two"}
	if _, err := n.mounting(one, two, &nodev1.VolumeMount{Volume: "missing", Path: "/three"}); cay.ReasonOf(err) != cay.Unprocessable || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a volume that is not there: %v", err)
	}
	d.mu.Lock()
	d.refuse = errors.New("no")
	d.mu.Unlock()
	if _, err := n.mounting(one, two); cay.ReasonOf(err) != cay.BootFailed {
		t.Errorf("a boot that fails: %v", err)
	}
	d.mu.Lock()
	d.refuse = nil
	d.agent = func(a *agenttest.Agent) {
		a.Answer = func(m *guestv1.ToAgent) *guestv1.ToNode {
			if m.GetClaim() == nil {
				return nil
			}
			return &guestv1.ToNode{Message: &guestv1.ToNode_Problem{Problem: &guestv1.Problem{Reason: "unprocessable", Detail: "no"}}}
		}
	}
	d.mu.Unlock()
	if _, err := n.mounting(one, two); err == nil {
		t.Error("a claim that fails came through")
	}
	for _, name := range []string{"one", "two"} {
		if mounted(store, name) {
			t.Errorf("%s is still mounted", name)
		}
		if err := n.deleteVolume(name); err != nil {
			t.Error(err)
		}
	}
}

func TestARestartedNodeKnowsWhoUsesAVolume(t *testing.T) {
	d, dir := newFakeDriver(), t.TempDir()
	d.canMount = true
	_, with := withVolumes(t, dir)
	n := startNode(t, d, dir, with)
	n.createVolume("one")
	n.createVolume("two")
	id, err := n.mounting(&nodev1.VolumeMount{Volume: "one", Path: "/session"})
	if err != nil {
		t.Fatal(err)
	}
	n.stop()
	store, with := withVolumes(t, dir)
	n = startNode(t, d, dir, with)
	list, err := n.ListVolumes(t.Context(), connect.NewRequest(&nodev1.ListVolumesRequest{}))
	if err != nil || len(list.Msg.Volumes) != 2 || len(list.Msg.Volumes[0].Sandboxes) != 1 || list.Msg.Volumes[0].Sandboxes[0] != id || len(list.Msg.Volumes[1].Sandboxes) != 0 {
		t.Errorf("listed: %v, %v", list, err)
	}
	if err := n.deleteVolume("one"); cay.ReasonOf(err) != cay.Conflict {
		t.Errorf("delete: %v", err)
	}
	if _, err := n.destroy(id, 1); err != nil {
		t.Fatal(err)
	}
	if mounted(store, "one") {
		t.Error("it is still mounted")
	}
}

func TestAnImportThatIsCutOffMakesNothing(t *testing.T) {
	d, dir := newFakeDriver(), t.TempDir()
	d.canMount = true
	store, with := withVolumes(t, dir)
	n := startNode(t, d, dir, with)
	header := &nodev1.ImportVolumeRequest{Part: &nodev1.ImportVolumeRequest_Header{Header: &nodev1.ImportVolumeHeader{Volume: "one", Bytes: volumeBytes}}}
	data := &nodev1.ImportVolumeRequest{Part: &nodev1.ImportVolumeRequest_Data{Data: []byte("\x28\xb5\x2f\xfd")}}
	for what, parts := range map[string][]*nodev1.ImportVolumeRequest{
		"nothing": nil, "no header": {data}, "no commit": {header, data}, "two headers": {header, header}, "a header alone": {header},
	} {
		s := n.ImportVolume(t.Context())
		for _, p := range parts {
			if err := s.Send(p); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		if _, err := s.CloseAndReceive(); cay.ReasonOf(noderpc.Decode(err)) != cay.InvalidRequest {
			t.Errorf("%s: %v", what, err)
		}
	}
	if len(store.List()) != 0 {
		t.Errorf("there is %v", store.List())
	}
}

func TestANodeThatCannotMountSaysSoAndWhy(t *testing.T) {
	n := startNode(t, newFakeDriver(), t.TempDir())
	info, err := n.GetInfo(t.Context(), connect.NewRequest(&nodev1.GetInfoRequest{}))
	if err != nil || info.Msg.CanMount {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := n.CreateVolume(t.Context(), connect.NewRequest(&nodev1.CreateVolumeRequest{Volume: "one", Bytes: volumeBytes})); cay.ReasonOf(noderpc.Decode(err)) != cay.NotImplemented {
		t.Errorf("create a volume: %v", err)
	}
	if list, err := n.ListVolumes(t.Context(), connect.NewRequest(&nodev1.ListVolumesRequest{})); err != nil || len(list.Msg.Volumes) != 0 {
		t.Errorf("list: %v", err)
	}
	if _, err := n.mounting(&nodev1.VolumeMount{Volume: "one", Path: "/session"}); cay.ReasonOf(err) != cay.Unprocessable {
		t.Errorf("a sandbox with a volume: %v", err)
	}
}
