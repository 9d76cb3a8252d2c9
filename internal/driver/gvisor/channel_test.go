package gvisor

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/wire"
)

func openChannel(t *testing.T) (c *channel, connect func(p wire.Preamble) net.Conn) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cay") // short: a socket's path must be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if c, err = listen(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.end(net.ErrClosed) })
	return c, func(p wire.Preamble) net.Conn {
		t.Helper()
		conn, err := net.Dial("unix", filepath.Join(dir, socketName))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := wire.WritePreamble(conn, p); err != nil {
			t.Fatal(err)
		}
		return conn
	}
}

func TestABulkConnectionThatComesBeforeItIsAwaitedIsNotLost(t *testing.T) {
	c, connect := openChannel(t)
	token := [wire.TokenLen]byte{7}
	early := connect(wire.Preamble{Kind: wire.ConnBulk, Token: token})
	// A control connection that came later has been read: the earlier one then has been, too, or will be soon.
	connect(wire.Preamble{Kind: wire.ConnControl})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.dial(ctx, driver.Purpose{Kind: wire.ConnControl}); err != nil {
		t.Fatal(err)
	}
	got, err := c.dial(ctx, driver.Purpose{Kind: wire.ConnBulk, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if _, err := got.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(io.LimitReader(early, 1)); err != nil || string(b) != "x" {
		t.Errorf("the agent's end read %q, %v", b, err)
	}
}

func TestABulkConnectionThatNobodyAwaitsIsClosed(t *testing.T) {
	_, connect := openChannel(t)
	conn := connect(wire.Preamble{Kind: wire.ConnBulk, Token: [wire.TokenLen]byte{9}})
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read: %v, want the end", err)
	}
}
