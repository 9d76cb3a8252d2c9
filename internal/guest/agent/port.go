package agent

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

const (
	// maxPorts bounds the connections to ports at a time; the node asks for no more.
	maxPorts = 256
	// portDial bounds the connect to a server that listens and does not accept.
	portDial = 5 * time.Second
	// portDialers bounds the connections to the node that are being opened for ports: its queue is short.
	portDialers = 4
	portBuffer  = 32 << 10
)

// portBuffers recycles what a direction of a connection is copied by.
var portBuffers = sync.Pool{New: func() any { return new([portBuffer]byte) }}

// dialPort connects a server on the sandbox's loopback with a connection to the node, until both directions have ended. It has no
// patience of its own: what stands still stands still.
func (a *Agent) dialPort(ctx context.Context, p wire.Preamble, req *guestv1.DialPort) {
	select {
	case a.ports <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-a.ports }()
	node, err := a.dialNode(ctx, p)
	if err != nil {
		a.log.Warn("no connection for a port", "error", err)
		return
	}
	defer node.Close()
	defer context.AfterFunc(ctx, func() { node.Close() })()
	server, err := connectLoopback(ctx, req.GetPort())
	patient := &idleConn{node}
	if err != nil {
		_ = sendAnswer(patient, nil, err) // the node has its own patience
		return
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := sendAnswer(patient, &guestv1.BulkHeader{Done: &guestv1.Done{}}, nil); err != nil {
		return
	}
	_ = node.SetDeadline(time.Time{})
	var both sync.WaitGroup
	answered := make(chan struct{})
	both.Go(func() {
		pipe(server, node)
		untilHungUp(node, answered)
		server.Close()
	})
	pipe(node, server)
	close(answered)
	both.Wait()
}

// hangUpPoll is how often a connection whose one direction has ended is looked at.
const hangUpPoll = time.Second

// untilHungUp waits until answered, or until the other end has closed the connection altogether, which a read cannot tell from the end of
// one direction: a server that does not notice must not keep the connection.
func untilHungUp(conn *net.UnixConn, answered <-chan struct{}) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	tick := time.NewTicker(hangUpPoll)
	defer tick.Stop()
	for {
		hungUp := false
		err := raw.Control(func(fd uintptr) {
			look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(look, 0)
			hungUp = err == nil && n > 0 && look[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		})
		if err != nil || hungUp {
			return
		}
		select {
		case <-tick.C:
		case <-answered:
			return
		}
	}
}

// dialNode opens a connection to the node, a few at a time; one that finds its queue full tries again.
func (a *Agent) dialNode(ctx context.Context, p wire.Preamble) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, transferIdle)
	defer cancel()
	select {
	case a.dialers <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-a.dialers }()
	for {
		conn, err := a.dial(ctx, p)
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(firstRedial):
		}
	}
}

// connectLoopback connects to the port, wherever on the loopback its server listens.
func connectLoopback(ctx context.Context, port uint32) (*net.TCPConn, error) {
	if port < 1 || port > 65535 {
		return nil, cay.Errorf(cay.InvalidRequest, "there is no port %d", port).On("port")
	}
	d := net.Dialer{Timeout: portDial}
	var refused error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		refused = err
	}
	return nil, cay.Errorf(cay.Unavailable, "nothing listens on port %d of the sandbox", port).Because(refused)
}

// duplex is a connection whose directions end one by one.
type duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// pipe copies one direction to its end and hands the end on. A connection that broke ends the other direction as well.
func pipe(to, from duplex) {
	buf := portBuffers.Get().(*[portBuffer]byte)
	defer portBuffers.Put(buf)
	// Without the methods by which io.Copy would have the kernel move the bytes: gVisor's splice costs more than it saves.
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf[:])
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		to.Close()
		from.Close()
	}
}
