package nodes

import (
	"context"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

const (
	frameSize    = 1 << 20 // bytes of an HTTP/2 frame that is accepted
	streamWindow = 1 << 20 // bytes that a node may send on one stream before they are read
	// connWindow is that many stalled streams' worth: a reader that stands still must not hold back the others of its connection.
	connWindow     = 1000 * streamWindow
	maxMessage     = 17 << 20 // bytes of one message: a program's report has up to 16 MiB
	pingAfter      = 15 * time.Second
	pingTimeout    = 15 * time.Second
	dialTimeout    = 5 * time.Second
	bulkTransports = 4
)

// newClient speaks to the node service on a unix socket: Connect over HTTP/2 without TLS, on a connection of its own. Messages are not
// compressed: they do not leave the machine.
func newClient(socket string) (nodev1connect.NodeServiceClient, *http.Transport) {
	transport := newTransport(socket)
	return over(transport, maxMessage), transport
}

func newTransport(socket string) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		Protocols: protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize: frameSize, MaxReceiveBufferPerStream: streamWindow, MaxReceiveBufferPerConnection: connWindow,
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout,
		},
	}
}

// over is a client on a transport that accepts messages of at most so many bytes.
func over(transport *http.Transport, most int) nodev1connect.NodeServiceClient {
	return nodev1connect.NewNodeServiceClient(&http.Client{Transport: transport}, "http://node",
		connect.WithAcceptCompression("gzip", nil, nil), connect.WithReadMaxBytes(most), noderpc.Traced())
}
