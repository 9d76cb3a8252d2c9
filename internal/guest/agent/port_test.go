package agent_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// dialPort asks for a connection to a port; what follows the header is read from in.
func (n *node) dialPort(port int) (conn *net.UnixConn, in io.Reader, h *guestv1.BulkHeader) {
	n.t.Helper()
	conn = n.transfer(&guestv1.Bulk{Transfer: &guestv1.Bulk_DialPort{DialPort: &guestv1.DialPort{Port: uint32(port)}}})
	n.t.Cleanup(func() { conn.Close() })
	buffered := bufio.NewReader(conn)
	return conn, buffered, readHeader(n.t, wire.NewReader(buffered))
}

// listenOn serves every connection to an address of the host's loopback, which is that of an agent that runs natively.
func listenOn(t *testing.T, host string, serve func(*net.TCPConn)) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serve(conn.(*net.TCPConn))
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

func TestAPortIsReachedOnEitherLoopbackAndEachDirectionEndsByItself(t *testing.T) {
	n := native(t)
	for _, host := range []string{"127.0.0.1", "::1"} {
		// Answers when it has been told everything: it needs to see the end of one direction.
		port := listenOn(t, host, func(c *net.TCPConn) {
			defer c.Close()
			all, _ := io.ReadAll(c)
			fmt.Fprintf(c, "%d:", len(all))
			c.Write(all)
		})
		conn, in, h := n.dialPort(port)
		if h.Done == nil {
			t.Fatalf("%s: %v", host, h)
		}
		sent := bytes.Repeat([]byte("0123456789"), 100_000)
		go func() {
			conn.Write(sent)
			conn.CloseWrite()
		}()
		got, err := io.ReadAll(in)
		if want := fmt.Sprintf("%d:%s", len(sent), sent); err != nil || string(got) != want {
			t.Errorf("%s: %d bytes came back, %v", host, len(got), err)
		}
	}
}

func TestAPortWhereNothingListensIsAProblem(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		if _, _, h := n.dialPort(1); h.GetProblem().GetReason() != "unavailable" || !strings.Contains(h.GetProblem().GetDetail(), "port 1 ") {
			t.Errorf("nothing there: %v", h)
		}
		for _, port := range []int{0, 65536, 1 << 30} {
			if _, _, h := n.dialPort(port); h.GetProblem().GetField() != "port" {
				t.Errorf("port %d: %v", port, h)
			}
		}
	})
}

func TestAServerThatDoesNotNoticeItsClientsGoingKeepsNoneOfTheirConnections(t *testing.T) {
	const more = 300 // than are possible at a time
	n := native(t)
	over := make(chan struct{})
	defer close(over)
	port := listenOn(t, "127.0.0.1", func(c *net.TCPConn) {
		defer c.Close()
		<-over
	})
	for i := range more {
		conn, _, h := n.dialPort(port)
		if h.Done == nil {
			t.Fatalf("connection %d: %v", i, h)
		}
		conn.Close()
	}
}
