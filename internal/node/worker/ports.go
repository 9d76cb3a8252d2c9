package worker

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/duplex"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/noderpc"
)

// PortHandler takes connections to ports, and the pattern to mount it at. It needs HTTP/1.1, whose connections can be taken over.
func (w *Worker) PortHandler() (pattern string, h http.Handler) {
	return noderpc.PortPattern, http.HandlerFunc(w.servePort)
}

func (w *Worker) servePort(rw http.ResponseWriter, r *http.Request) {
	ctx, leave, err := w.enterPort(r.Context())
	if err != nil {
		noderpc.Refuse(rw, err)
		return
	}
	defer leave()
	guest, err := w.dialPort(ctx, r)
	if err != nil {
		noderpc.Refuse(rw, err)
		return
	}
	defer guest.Close()
	conn, buffered, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		noderpc.Refuse(rw, err)
		return
	}
	defer conn.Close()
	// From here on r's context says nothing: the server has handed the connection over.
	defer context.AfterFunc(w.ctx(), func() { conn.Close(); guest.Close() })()
	_ = conn.SetDeadline(time.Time{})
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+noderpc.PortProtocol+"\r\n\r\n"); err != nil {
		return
	}
	client := takenOver{conn, buffered.Reader}
	duplex.Join(client, conn.(syscall.Conn), guest) // a unix socket's
}

// enterPort counts a connection that Close has to wait for. ctx ends with the request and with the Worker.
func (w *Worker) enterPort(request context.Context) (ctx context.Context, leave func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return nil, nil, cay.Errorf(cay.Unavailable, "the worker is restarting; try again").After(time.Second)
	}
	w.work.Add(1)
	ctx, cancel := context.WithCancel(request)
	stop := context.AfterFunc(w.ctx(), cancel)
	return ctx, func() { stop(); cancel(); w.work.Done() }, nil
}

func (w *Worker) dialPort(ctx context.Context, r *http.Request) (*router.PortConn, error) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), noderpc.PortProtocol) || r.ProtoMajor != 1 {
		return nil, cay.Errorf(cay.InvalidRequest, "this is for connections that are upgraded to %s", noderpc.PortProtocol)
	}
	port, err := strconv.Atoi(r.PathValue("port"))
	if err != nil || port < 1 || port > 65535 {
		return nil, cay.Errorf(cay.InvalidRequest, "a port is a number from 1 to 65535").On("port")
	}
	session, err := w.use(r.PathValue("sandbox"))
	if err != nil {
		return nil, err
	}
	ctx, span := tracing.StartServer(tracing.With(ctx, r.Header.Get(noderpc.TraceHeader)), "node.DialPort", tracing.SandboxID(r.PathValue("sandbox")))
	defer span.End()
	conn, err := session.DialPort(ctx, port)
	span.Fail(string(cay.ReasonOf(err)))
	return conn, err
}

// takenOver is a connection whose first bytes may have been read already.
type takenOver struct {
	net.Conn
	in *bufio.Reader
}

func (c takenOver) Read(p []byte) (int, error) { return c.in.Read(p) }

func (c takenOver) CloseWrite() error {
	return c.Conn.(interface{ CloseWrite() error }).CloseWrite() // a unix socket's
}
