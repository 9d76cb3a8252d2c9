package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// PortConn is a connection to a server on the sandbox's loopback: its bytes, raw. Bytes count as use of the sandbox; that it is open
// does not. It has no idle limit, and stands still while the sandbox is frozen. It must be closed.
type PortConn struct {
	t    *transfer
	once sync.Once
}

// DialPort connects to a port. Where nothing listens it is cay.Unavailable, also when too many connections are open and none ends in
// time. ctx bounds the dialling alone.
func (s *Session) DialPort(ctx context.Context, port int) (*PortConn, error) {
	wait := time.NewTimer(s.timing.Connected)
	defer wait.Stop()
	select {
	case s.ports <- struct{}{}:
	case <-wait.C:
		return nil, cay.Errorf(cay.Unavailable, "the sandbox has %d connections to its ports already", maxPorts).After(time.Second)
	case <-s.closed:
		return nil, errClosed()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	t, err := s.openTransfer(ctx, &guestv1.Bulk{Transfer: &guestv1.Bulk_DialPort{DialPort: &guestv1.DialPort{Port: uint32(port)}}}, s.ports)
	if err != nil {
		return nil, err
	}
	c := &PortConn{t: t}
	t.nc.SetReadDeadline(time.Now().Add(s.timing.Answer))
	if err := t.connected(port); err != nil {
		c.Close()
		return nil, err
	}
	if !t.stop() { // ctx has closed it
		c.Close()
		return nil, ctx.Err()
	}
	t.nc.SetReadDeadline(time.Time{})
	return c, nil
}

// connected reads the header that says that the agent's connection to the port is there.
func (t *transfer) connected(port int) error {
	h, err := t.bulkHeader()
	if err != nil {
		return err
	}
	switch {
	case h.Problem != nil && h.Problem.Reason == string(cay.Unavailable):
		return cay.Errorf(cay.Unavailable, "nothing listens on port %d of the sandbox", port).After(time.Second)
	case h.Problem != nil:
		return guestError(h.Problem)
	case h.Done == nil:
		return t.broken(violation("empty header"))
	}
	return nil
}

// Read implements io.Reader.
func (c *PortConn) Read(p []byte) (int, error) {
	n, err := c.t.in.Read(p)
	if n > 0 {
		c.t.s.Touch()
	}
	return n, err
}

// Write implements io.Writer.
func (c *PortConn) Write(p []byte) (int, error) {
	n, err := c.t.nc.Write(p)
	if n > 0 {
		c.t.s.Touch()
	}
	return n, err
}

// CloseWrite ends the direction to the sandbox; the other goes on.
func (c *PortConn) CloseWrite() error {
	half, ok := c.t.nc.(interface{ CloseWrite() error })
	if !ok {
		return errors.New("the connection cannot be closed in one direction")
	}
	return half.CloseWrite()
}

// Close ends the connection. It is idempotent, and ends a Read or Write that waits.
func (c *PortConn) Close() error {
	c.once.Do(func() {
		c.t.stop()
		c.t.nc.Close()
		c.t.cancel()
		c.t.asking.Wait()
		<-c.t.slots
	})
	return nil
}
