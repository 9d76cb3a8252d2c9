package e2e

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const mib = 1 << 20

func at(volume, path string) *nodev1.VolumeMount {
	return &nodev1.VolumeMount{Volume: volume, Path: path}
}

func TestAVolumeIsThereForTheNextSandbox(t *testing.T) {
	n := startNode(t)
	info, err := n.GetInfo(n.ctx(), connect.NewRequest(&nodev1.GetInfoRequest{}))
	if err != nil || !info.Msg.CanMount {
		t.Fatalf("volumes cannot be mounted here: %v", err)
	}
	n.createVolume("one", 64*mib)
	a := n.create(at("one", "/session"))
	if got := n.sh(a, "sandbox", "cd /session && ls -A && stat -c '%U %a' . && echo kept > file && df -Pm . | awk 'NR==2 {print $2}'"); !strings.HasPrefix(got, "sandbox 755\n5") && !strings.HasPrefix(got, "sandbox 755\n6") {
		t.Errorf("a new session says %q", got)
	}
	if v := n.volumes()["one"]; v == nil || v.Bytes != 64*mib || len(v.Sandboxes) != 1 || v.Sandboxes[0] != a || v.UsedBytes == 0 {
		t.Errorf("listed while it is used: %+v", v)
	}
	if err := n.deleteVolume("one"); cay.ReasonOf(err) != cay.Conflict {
		t.Errorf("delete while it is used: %v", err)
	}
	n.destroy(a)
	if v := n.volumes()["one"]; v == nil || len(v.Sandboxes) != 0 || v.UsedBytes != 0 {
		t.Errorf("listed afterwards: %+v", v)
	}
	b := n.create(at("one", "/somewhere/else"))
	if got := n.sh(b, "sandbox", "cat /somewhere/else/file"); got != "kept\n" {
		t.Errorf("the next one reads %q", got)
	}
	n.destroy(b)
	if err := n.deleteVolume("one"); err != nil {
		t.Error(err)
	}
	_, err = n.tryCreate(at("one", "/session"))
	if cay.ReasonOf(err) != cay.Unprocessable {
		t.Errorf("a volume that is not there: %v", err)
	}
}

func TestWhatWasWrittenWhenTheSandboxWasKilledIsThere(t *testing.T) {
	n := startNode(t)
	n.createVolume("one", 64*mib)
	for range 3 {
		a := n.create(at("one", "/session"))
		ready := "dd if=/dev/urandom of=/session/data bs=64k count=64 2>/dev/null && sha256sum < /session/data > /session/sum && cat /session/sum"
		want := n.sh(a, "sandbox", ready)
		for _, k := range n.Kernels() {
			if err := syscall.Kill(k.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		n.destroy(a)
		b := n.create(at("one", "/session"))
		if got := n.sh(b, "sandbox", "cat /session/sum; sha256sum < /session/data"); got != want+want {
			t.Errorf("written %q, found %q", want, got)
		}
		n.destroy(b)
	}
}

func TestAVolumeGoesOutAndComesBack(t *testing.T) {
	n := startNode(t)
	n.createVolume("from", 64*mib)
	a := n.create(at("from", "/session"))
	n.sh(a, "sandbox", "echo kept > /session/file; ln -s /etc/passwd /session/link")
	if _, _, err := n.export("from"); cay.ReasonOf(err) != cay.Conflict {
		t.Errorf("export while it is used: %v", err)
	}
	n.destroy(a)
	data, digest, err := n.export("from")
	if err != nil || int64(len(data)) != digest.Bytes {
		t.Fatalf("%d bytes, %+v, %v", len(data), digest, err)
	}
	for _, wrong := range []string{"", strings.Repeat("0", 64)} {
		if err := n.imports("to", 64*mib, wrong, data); cay.ReasonOf(err) != cay.Unprocessable {
			t.Errorf("import with digest %q: %v", wrong, err)
		}
	}
	if v := n.volumes()["to"]; v != nil {
		t.Errorf("bad data made %+v", v)
	}
	if err := n.imports("to", 64*mib, digest.Sha256, data); err != nil {
		t.Fatal(err)
	}
	b := n.create(at("to", "/session"))
	if got := n.sh(b, "sandbox", "cat /session/file; readlink /session/link"); got != "kept\n/etc/passwd\n" {
		t.Errorf("it came back as %q", got)
	}
}

func TestWhereAVolumeCannotBeMountedTheSandboxIsRefused(t *testing.T) {
	n := startNode(t)
	n.createVolume("one", 64*mib)
	for _, path := range []string{"", "relative", "/", "/..", "/proc", "/proc/self/x", "/dev/shm", "/sys/x", "/.cay", "/.cay/v/one", "/a/../.cay/x", "/etc/passwd", "/a\x00b"} {
		if id, err := n.tryCreate(at("one", path)); cay.ReasonOf(err) != cay.Unprocessable {
			t.Errorf("at %q: %s, %v", path, id, err)
		}
	}
	if v := n.volumes()["one"]; len(v.GetSandboxes()) != 0 {
		t.Errorf("it is in use by %v", v.Sandboxes)
	}
}

func TestAPreparedSandboxIsGivenAVolumeAndToldWhatItsCodeChanges(t *testing.T) {
	n := startNode(t, "CAY_POOL_SIZE=1")
	n.createVolume("one", 64*mib)
	id := n.create(at("one", "/session"))
	ctx := n.ctx()
	s := n.Process(ctx)
	defer s.CloseResponse()
	err := s.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Start{Start: &nodev1.StartProcess{
		SandboxId: id, ProcessId: string(cay.NewID(cay.PrefixProcess)), Collect: true, Foreground: true,
		Spec: &nodev1.ProcessSpec{Cwd: "/session", Code: &nodev1.CodeSpec{Language: "python", Source: []byte("open('out.txt', 'w').write('hello')")}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var changed []string
	for {
		out, err := s.Receive()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(noderpc.Decode(err))
		}
		for _, f := range out.GetReport().GetFilesChanged() {
			changed = append(changed, f.Op+" "+f.Path)
		}
	}
	if len(changed) != 1 || changed[0] != "create /session/out.txt" {
		t.Errorf("changed: %v", changed)
	}
}

func (n *node) export(name string) (data []byte, digest *nodev1.VolumeDigest, err error) {
	s, err := n.ExportVolume(n.ctx(), connect.NewRequest(&nodev1.ExportVolumeRequest{Volume: name}))
	if err != nil {
		return nil, nil, noderpc.Decode(err)
	}
	defer s.Close()
	for s.Receive() {
		data = append(data, s.Msg().GetData()...)
		if d := s.Msg().GetDigest(); d != nil {
			digest = d
		}
	}
	if err := s.Err(); err != nil {
		return nil, nil, noderpc.Decode(err)
	}
	return data, digest, nil
}

func (n *node) imports(name string, size int64, sha string, data []byte) error {
	s := n.ImportVolume(n.ctx())
	parts := []*nodev1.ImportVolumeRequest{{Part: &nodev1.ImportVolumeRequest_Header{Header: &nodev1.ImportVolumeHeader{Volume: name, Bytes: size, Sha256: sha}}}}
	for len(data) > 0 {
		k := min(len(data), 100_000)
		parts = append(parts, &nodev1.ImportVolumeRequest{Part: &nodev1.ImportVolumeRequest_Data{Data: data[:k]}})
		data = data[k:]
	}
	parts = append(parts, &nodev1.ImportVolumeRequest{Part: &nodev1.ImportVolumeRequest_Commit{Commit: true}})
	for _, p := range parts {
		if err := s.Send(p); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	if _, err := s.CloseAndReceive(); err != nil {
		return noderpc.Decode(err)
	}
	return nil
}

func TestAKilledNodeFindsItsVolumesAgain(t *testing.T) {
	n := startNode(t)
	n.createVolume("used", 64*mib)
	n.createVolume("idle", 64*mib)
	a, b := n.create(at("used", "/session")), n.create(at("used", "/session"), at("idle", "/idle"))
	n.sh(a, "sandbox", "echo before > /session/file")
	n.destroy(b)
	n.stop(syscall.SIGKILL)
	n.start()
	if v := n.volumes()["used"]; v == nil || len(v.Sandboxes) != 1 || v.Sandboxes[0] != a {
		t.Errorf("after the kill: %+v", v)
	}
	if err := n.deleteVolume("used"); cay.ReasonOf(err) != cay.Conflict {
		t.Errorf("delete while it is used: %v", err)
	}
	if got := n.sh(a, "sandbox", "cat /session/file && echo after >> /session/file"); got != "before\n" {
		t.Errorf("after the kill the sandbox reads %q", got)
	}
	c := n.create(at("used", "/session"))
	if got := n.sh(c, "sandbox", "cat /session/file"); got != "before\nafter\n" {
		t.Errorf("after the kill another reads %q", got)
	}
	// With the sandbox its volume's mounts are all that is left of it: a node that comes later removes them.
	n.stop(syscall.SIGKILL)
	for _, k := range n.Kernels() {
		if err := syscall.Kill(k.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	n.start()
	n.destroy(a)
	n.destroy(c)
	for _, m := range n.Residue().Mounts {
		if strings.Contains(m, "/used") || strings.Contains(m, "/idle") {
			t.Errorf("left: %s", m)
		}
	}
	for _, name := range []string{"used", "idle"} {
		if err := n.deleteVolume(name); err != nil {
			t.Error(err)
		}
	}
}

func TestANodeKilledInTheMiddleOfAnythingLeavesAVolumeThatCanBeUsed(t *testing.T) {
	n := startNode(t)
	n.createVolume("one", 64*mib)
	for _, after := range []time.Duration{5, 40, 150, 300, 500} {
		cut := make(chan struct{})
		go func() {
			defer close(cut)
			id, err := n.tryCreate(at("one", "/session"))
			if err == nil {
				_, _ = n.Destroy(n.ctx(), connect.NewRequest(&nodev1.DestroyRequest{SandboxId: id, Attempt: 2}))
				delete(n.rows, id)
			}
		}()
		timer := time.NewTimer(after * time.Millisecond)
		<-timer.C
		n.stop(syscall.SIGKILL)
		<-cut
		n.rows = map[string]bool{} // the server knows of none: what runs is destroyed
		n.start()
		testkit.Eventually(t, time.Minute, "nobody uses the volume", func() error {
			if v := n.volumes()["one"]; v == nil || len(v.Sandboxes) > 0 {
				return fmt.Errorf("%+v", v)
			}
			return nil
		})
		id := n.create(at("one", "/session"))
		n.sh(id, "sandbox", "echo x >> /session/file")
		n.destroy(id)
	}
	id := n.create(at("one", "/session"))
	if got := n.sh(id, "sandbox", "cat /session/file"); got != strings.Repeat("x\n", 5) {
		t.Errorf("the file says %q", got)
	}
	n.destroy(id)
	if err := n.deleteVolume("one"); err != nil {
		t.Error(err)
	}
}
