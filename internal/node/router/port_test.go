package router_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/router/agenttest"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// told answers everything once it has been told all of it.
func told(c net.Conn) {
	all, _ := io.ReadAll(c)
	_, _ = c.Write(all)
}

func TestAPortsBytesGoBothWaysAndEachDirectionEndsByItself(t *testing.T) {
	r := start(t, &agenttest.Agent{Ports: map[int]func(net.Conn){80: told}})
	c, err := r.Session.DialPort(t.Context(), 80)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	sent := bytes.Repeat([]byte("0123456789"), 100_000)
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
}

func TestWhereNothingListensADialIsUnavailable(t *testing.T) {
	r := start(t, &agenttest.Agent{})
	_, err := r.Session.DialPort(t.Context(), 80)
	var e *cay.Error
	if !errors.As(err, &e) || e.Reason != cay.Unavailable || e.Detail != "nothing listens on port 80 of the sandbox" || e.RetryAfter != time.Second {
		t.Errorf("got %v", err)
	}
}

func TestConnectionsToPortsAreBoundedApartFromTransfers(t *testing.T) {
	const most = 256
	r := start(t, &agenttest.Agent{Files: map[string][]byte{"/a": []byte("x")}, Ports: map[int]func(net.Conn){80: told}},
		func(c *router.Config) { c.Timing.Connected = 50 * time.Millisecond })
	var open []*router.PortConn
	for range most {
		c, err := r.Session.DialPort(t.Context(), 80)
		if err != nil {
			t.Fatalf("connection %d: %v", len(open), err)
		}
		open = append(open, c)
	}
	if _, err := r.Session.DialPort(t.Context(), 80); cay.ReasonOf(err) != cay.Unavailable {
		t.Errorf("one more: %v", err)
	}
	if _, err := r.Session.Stat(t.Context(), &guestv1.Stat{Path: "/a"}); err != nil {
		t.Errorf("files besides: %v", err)
	}
	var closing sync.WaitGroup
	for _, c := range open {
		closing.Go(func() {
			c.Close()
			c.Close()
		})
	}
	closing.Wait()
	c, err := r.Session.DialPort(t.Context(), 80)
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	c.Close()
}

func TestBytesOfAPortAreUseAndItsEndIsNot(t *testing.T) {
	r := start(t, &agenttest.Agent{Ports: map[int]func(net.Conn){80: func(c net.Conn) { io.Copy(c, c) }}})
	c, err := r.Session.DialPort(t.Context(), 80)
	if err != nil {
		t.Fatal(err)
	}
	last := func() time.Time { _, at := r.Session.Activity(); return at }
	begun := last()
	eventually(t, "bytes count as use", func() bool {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return last().After(begun)
	})
	used := last()
	eventually(t, "the clock has moved on", func() bool { return time.Since(used) > 5*time.Millisecond })
	c.Close()
	if last() != used {
		t.Error("the end of an idle connection counts as use")
	}
}

func TestCloseEndsAReadThatWaits(t *testing.T) {
	r := start(t, &agenttest.Agent{Ports: map[int]func(net.Conn){80: told}})
	c, err := r.Session.DialPort(t.Context(), 80)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	}()
	c.Close()
	if err := <-ended; err == nil {
		t.Error("it read something")
	}
}

func TestADialThatNobodyWaitsForLeavesNothing(t *testing.T) {
	r := start(t, &agenttest.Agent{Ports: map[int]func(net.Conn){80: told}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if c, err := r.Session.DialPort(ctx, 80); err == nil {
		c.Close()
		t.Error("it was dialled")
	}
}
