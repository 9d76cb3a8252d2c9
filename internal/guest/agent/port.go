package agent

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/duplex"
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
)

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
	duplex.Join(node, node, server)
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
