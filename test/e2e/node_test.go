package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/testkit"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// node is `cay node` alone, spoken with as the server does. Its sandboxes survive kill and start.
type node struct {
	nodev1connect.NodeServiceClient
	*testkit.Instance
	t    testing.TB
	log  *os.File
	cmd  *exec.Cmd
	rows map[string]bool // sandboxes that ought to exist
}

const nodePatience = time.Minute

func startNode(t testing.TB, env ...string) *node {
	t.Helper()
	testkit.RequireRoot(t)
	inst, err := testkit.NewInstance(testkit.Options{Env: append([]string{"CAY_POOL_SIZE=0"}, env...)})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Instance: inst, t: t, log: log, rows: map[string]bool{}}
	t.Cleanup(func() {
		for id := range n.rows {
			n.destroy(id)
		}
		n.stop(syscall.SIGTERM)
		if err := inst.Close(); err != nil {
			t.Error(err)
		}
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the node's log:\n%s", text)
		}
	})
	n.start()
	return n
}

func (n *node) start() {
	n.t.Helper()
	n.cmd = n.Command("node")
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.RunDir(), "node.sock"))
	}}
	n.t.Cleanup(transport.CloseIdleConnections)
	n.NodeServiceClient = nodev1connect.NewNodeServiceClient(&http.Client{Transport: transport}, "http://node")
	adopt := &nodev1.AdoptRequest{}
	for id := range n.rows {
		adopt.Sandboxes = append(adopt.Sandboxes, &nodev1.AdoptRequest_Known{SandboxId: id, ProjectId: "prj_00000000000000000000000001"})
	}
	err := testkit.Until(nodePatience, func() error {
		_, err := n.Adopt(n.ctx(), connect.NewRequest(adopt))
		return err
	})
	if err != nil {
		n.t.Fatalf("the node does not answer: %v", err)
	}
}

func (n *node) stop(with syscall.Signal) {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(with)
	_ = n.cmd.Wait()
	n.cmd = nil
}

func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), nodePatience)
	n.t.Cleanup(cancel)
	return ctx
}

// create brings up a sandbox with volumes, each "name:path", read-only with ":ro".
func (n *node) create(mounts ...*nodev1.VolumeMount) string {
	n.t.Helper()
	id, err := n.tryCreate(mounts...)
	if err != nil {
		n.t.Fatal(err)
	}
	return id
}

func (n *node) tryCreate(mounts ...*nodev1.VolumeMount) (string, error) {
	id := string(cay.NewID(cay.PrefixSandbox))
	_, err := n.NodeServiceClient.Create(n.ctx(), connect.NewRequest(&nodev1.CreateRequest{SandboxId: id, Attempt: 1, Spec: &nodev1.Spec{
		Image: "host", Cpu: 1, MemoryMb: 512, DiskGb: 1, Pids: 256, User: "sandbox", Workdir: "/workspace", Volumes: mounts,
	}}))
	if err != nil {
		return "", noderpc.Decode(err)
	}
	n.rows[id] = true
	return id, nil
}

func (n *node) destroy(id string) {
	n.t.Helper()
	if _, err := n.Destroy(n.ctx(), connect.NewRequest(&nodev1.DestroyRequest{SandboxId: id, Attempt: 2})); err != nil {
		n.t.Errorf("destroy %s: %v", id, err)
	}
	delete(n.rows, id)
}

// sh runs a command and returns its output, stdout and stderr together; it must succeed unless its text begins with "!".
func (n *node) sh(id, user, command string) string {
	n.t.Helper()
	out, code, err := n.run(id, user, command)
	if err != nil || code != 0 {
		n.t.Fatalf("%s: exit %d, %v: %s", command, code, err, out)
	}
	return out
}

func (n *node) run(id, user, command string) (output string, code int, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), 5*time.Minute)
	defer cancel()
	s := n.Process(ctx)
	defer s.CloseResponse()
	start := &nodev1.StartProcess{SandboxId: id, ProcessId: string(cay.NewID(cay.PrefixProcess)), Collect: true, Foreground: true,
		Spec: &nodev1.ProcessSpec{Shell: command, User: user}}
	if err := s.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return "", 0, err
	}
	var text bytes.Buffer
	code = -1
	for {
		out, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return text.String(), code, nil
		} else if err != nil {
			return text.String(), code, noderpc.Decode(err)
		}
		switch o := out.Output.(type) {
		case *nodev1.ProcessOutput_Data:
			text.Write(o.Data.Data)
		case *nodev1.ProcessOutput_Exit:
			code = int(o.Exit.Code)
		case *nodev1.ProcessOutput_Error:
			return text.String(), code, fmt.Errorf("%v", o.Error)
		}
	}
}

func (n *node) createVolume(name string, bytes int64) {
	n.t.Helper()
	if _, err := n.CreateVolume(n.ctx(), connect.NewRequest(&nodev1.CreateVolumeRequest{Volume: name, Bytes: bytes})); err != nil {
		n.t.Fatal(noderpc.Decode(err))
	}
}

func (n *node) deleteVolume(name string) error {
	_, err := n.DeleteVolume(n.ctx(), connect.NewRequest(&nodev1.DeleteVolumeRequest{Volume: name}))
	if err != nil {
		return noderpc.Decode(err)
	}
	return nil
}

func (n *node) volumes() map[string]*nodev1.Volume {
	n.t.Helper()
	list, err := n.ListVolumes(n.ctx(), connect.NewRequest(&nodev1.ListVolumesRequest{}))
	if err != nil {
		n.t.Fatal(noderpc.Decode(err))
	}
	out := map[string]*nodev1.Volume{}
	for _, v := range list.Msg.Volumes {
		out[v.Volume] = v
	}
	return out
}
