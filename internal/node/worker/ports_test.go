package worker_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire/noderpc"
)

// dialPort asks the node's socket as the control plane does; the answer is read, the connection is what follows.
func (n *node) dialPort(path string) (conn *net.UnixConn, in *bufio.Reader, answer *http.Response) {
	n.t.Helper()
	c, err := net.Dial("unix", n.socket)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: cay-port\r\n\r\n", path)
	in = bufio.NewReader(c)
	if answer, err = http.ReadResponse(in, nil); err != nil {
		n.t.Fatal(err)
	}
	return c.(*net.UnixConn), in, answer
}

// withServer is a driver whose sandboxes answer on port 80 once they were told everything.
func withServer() *fakeDriver {
	d := newFakeDriver()
	d.agent = func(a *agenttest.Agent) {
		a.Ports = map[int]func(net.Conn){80: func(c net.Conn) {
			all, _ := io.ReadAll(c)
			fmt.Fprintf(c, "told %s", all)
		}}
	}
	return d
}

func TestAPortIsReachedThroughTheNodesSocket(t *testing.T) {
	n := startNode(t, withServer(), t.TempDir())
	id := n.create()
	conn, in, answer := n.dialPort(noderpc.PortPath(cay.ID(id), 80))
	if answer.StatusCode != 101 {
		t.Fatalf("answered %s", answer.Status)
	}
	if _, err := io.WriteString(conn, "everything"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(in); err != nil || string(got) != "told everything" {
		t.Errorf("got %q, %v", got, err)
	}
	for path, want := range map[string]cay.ErrorReason{
		noderpc.PortPath(cay.ID(id), 81):                   cay.Unavailable,
		noderpc.PortPath(cay.ID(id), 0):                    cay.InvalidRequest,
		noderpc.PortPath(cay.ID(id), 65536):                cay.InvalidRequest,
		noderpc.PortPath(cay.NewID(cay.PrefixSandbox), 80): cay.NotFound,
		"/ports/" + id + "/x":                              cay.InvalidRequest,
	} {
		_, _, answer := n.dialPort(path)
		if got := cay.ReasonOf(noderpc.Refusal(answer)); answer.StatusCode == 101 || got != want {
			t.Errorf("%s: %s, %s", path, answer.Status, got)
		}
	}
}

func TestTheEndOfTheNodeCutsConnectionsToPorts(t *testing.T) {
	n := startNode(t, withServer(), t.TempDir())
	_, in, answer := n.dialPort(noderpc.PortPath(cay.ID(n.create()), 80))
	if answer.StatusCode != 101 {
		t.Fatalf("answered %s", answer.Status)
	}
	n.stop()
	if _, err := in.ReadByte(); err == nil {
		t.Error("the connection goes on")
	}
}

func TestAClientThatLeavesADeafServerGivesTheConnectionBack(t *testing.T) {
	d, over := newFakeDriver(), make(chan struct{})
	d.agent = func(a *agenttest.Agent) {
		a.Ports = map[int]func(net.Conn){80: func(c net.Conn) {
			_, _ = io.ReadAll(c) // ends when the client has said everything; there is never an answer
			raw, err := c.(syscall.Conn).SyscallConn()
			for hungUp := false; err == nil && !hungUp; {
				err = raw.Control(func(fd uintptr) {
					look := []unix.PollFd{{Fd: int32(fd)}}
					_, _ = unix.Poll(look, 100)
					hungUp = look[0].Revents&unix.POLLHUP != 0
				})
			}
			close(over)
		}}
	}
	n := startNode(t, d, t.TempDir())
	conn, _, answer := n.dialPort(noderpc.PortPath(cay.ID(n.create()), 80))
	if answer.StatusCode != 101 {
		t.Fatalf("answered %s", answer.Status)
	}
	conn.Close()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("the connection to the server inside is kept")
	}
}
