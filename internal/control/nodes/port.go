package nodes

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/noderpc"
)

// portAnswer bounds a node's answer to a request for a connection to a port; it has a shorter patience of its own.
const portAnswer = time.Minute

// DialPort connects to a server on the sandbox's loopback. cay.Unavailable: the worker cannot be reached, or nothing listens there. ctx
// bounds the dialling alone.
func (n *Nodes) DialPort(ctx context.Context, worker, sandbox cay.ID, port int) (_ net.Conn, err error) {
	to, err := n.find(ctx, worker)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, portAnswer)
	defer cancel()
	ctx, span := tracing.StartClient(ctx, "node.DialPort", tracing.SandboxID(sandbox), tracing.WorkerID(worker))
	defer func() {
		span.Fail(string(cay.ReasonOf(err)))
		span.End()
	}()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", to.socket)
	if err != nil {
		return nil, unreachable(err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	c, err := upgrade(conn, sandbox, port, tracing.Traceparent(ctx))
	if !stop() { // ctx ended, and closed the connection
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func unreachable(err error) error {
	return cay.Errorf(cay.Unavailable, "the worker cannot be reached; try again").After(time.Second).Because(err)
}

// upgrade asks the node for the connection on conn, as part of a trace; "": of none.
func upgrade(conn net.Conn, sandbox cay.ID, port int, traceparent string) (net.Conn, error) {
	trace := ""
	if traceparent != "" {
		trace = noderpc.TraceHeader + ": " + traceparent + "\r\n"
	}
	_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s\r\n",
		noderpc.PortPath(sandbox, port), noderpc.PortProtocol, trace)
	if err != nil {
		return nil, unreachable(err)
	}
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		return nil, unreachable(err)
	}
	if answer.StatusCode != http.StatusSwitchingProtocols {
		defer answer.Body.Close()
		return nil, noderpc.Refusal(answer)
	}
	return &portConn{Conn: conn, in: in}, nil
}

// portConn is an upgraded connection. What came with the answer is read first.
type portConn struct {
	net.Conn
	in io.Reader
}

func (c *portConn) Read(p []byte) (int, error) { return c.in.Read(p) }

// CloseWrite ends the direction to the sandbox; the other goes on.
func (c *portConn) CloseWrite() error {
	return c.Conn.(*net.UnixConn).CloseWrite()
}
