package client_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
)

func request(argv []string, out io.Writer) client.SessionRequest {
	return client.SessionRequest{ExecRequest: client.ExecRequest{Argv: argv}, SessionIO: client.SessionIO{Stdout: out, Stderr: out}}
}

func TestASessionCarriesInputOutputAndExit(t *testing.T) {
	_, c := connect(t)
	out := newSyncBuffer()
	s, err := c.Session(within(t), sandbox(t, c), request([]string{"cat"}, out))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(s.Stdin(), "hello"); err != nil {
		t.Fatal(err)
	}
	if err := s.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	exit, err := s.Wait()
	if err != nil || !exit.OK || out.String() != "hello" || exit.ProcessID != s.ProcessID() {
		t.Fatalf("%q, %+v, %v", out.String(), exit, err)
	}
	if _, err := s.Stdin().Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a write after the end: %v", err)
	}
}

func TestASessionSurvivesBrokenConnectionsInBothDirections(t *testing.T) {
	server, c := connect(t)
	var lost, restored atomic.Int32
	sum := sha256.New()
	var n atomic.Int64
	r := request([]string{"cat"}, writerFunc(func(p []byte) (int, error) { n.Add(int64(len(p))); return sum.Write(p) }))
	r.Lost, r.Restored = func(error) { lost.Add(1) }, func() { restored.Add(1) }
	s, err := c.Session(within(t), sandbox(t, c), r)
	if err != nil {
		t.Fatal(err)
	}
	input := bytes.Repeat([]byte("0123456789abcdef\n"), 60_000)
	for i := range 10 {
		part := input[i*len(input)/10 : (i+1)*len(input)/10]
		if _, err := s.Stdin().Write(part); err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			eventually(t, "a stream to break", func() bool { return server.Break() > 0 })
		}
	}
	if err := s.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	exit, err := s.Wait()
	if err != nil || !exit.OK {
		t.Fatalf("%+v, %v", exit, err)
	}
	if want := sha256.Sum256(input); n.Load() != int64(len(input)) || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Fatalf("%d of %d bytes, or others, came back", n.Load(), len(input))
	}
	if lost.Load() == 0 || lost.Load() != restored.Load() {
		t.Fatalf("lost %d times, restored %d times", lost.Load(), restored.Load())
	}
}

func TestASilentSessionDroppedTenTimesStillSeesItsExit(t *testing.T) {
	server, c := connect(t)
	out := newSyncBuffer()
	s, err := c.Session(within(t), sandbox(t, c), request([]string{"trap"}, out))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		eventually(t, "a stream to break", func() bool { return server.Break() > 0 })
	}
	if err := s.Signal(within(t), "TERM", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the signal's report", func() bool { return strings.Contains(out.String(), "got TERM") })
	if err := s.Signal(within(t), "KILL", true); err != nil {
		t.Fatal(err)
	}
	exit, err := s.Wait()
	if err != nil || exit.ExitCode != 137 || exit.Signal != "KILL" || out.String() != "trapping\ngot TERM\n" {
		t.Fatalf("%q, %+v, %v", out.String(), exit, err)
	}
}

func TestOutputIsNeitherLostNorDoubledHoweverASessionIsCut(t *testing.T) {
	server, c := connect(t)
	for cut := range 12 {
		server.CutAfter(cut+1, cut+2, 1)
		out := newSyncBuffer()
		s, err := c.Session(within(t), sandbox(t, c), request([]string{"seq", "50"}, out))
		if err != nil {
			t.Fatal(err)
		}
		if exit, err := s.Wait(); err != nil || !exit.OK || out.String() != numbers(50) {
			t.Fatalf("cut after %d: %q, %v", cut, out.String(), err)
		}
	}
}

func TestATerminalTellsItsSizeAndHangsUpWhenClosed(t *testing.T) {
	server, c := connect(t)
	out := newSyncBuffer()
	s, err := c.Terminal(within(t), sandbox(t, c), client.TerminalRequest{SessionIO: client.SessionIO{Stdout: out}, Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first size", func() bool { return strings.Contains(out.String(), "size 80x24") })
	if err := s.Resize(132, 50); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new size", func() bool { return strings.Contains(out.String(), "size 132x50") })
	eventually(t, "a stream to break", func() bool { return server.Break() > 0 })
	io.WriteString(s.Stdin(), "hi\r")
	eventually(t, "a line after the loss", func() bool { return strings.Contains(out.String(), `line "hi"`) })
	if err := s.Resize(0, 5); err == nil {
		t.Error("a size of nothing was accepted")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(); !errors.Is(err, client.ErrDetached) {
		t.Fatalf("got %v", err)
	}
}

func TestADetachedProcessRunsOnAndCanBeAttachedToAgain(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	s, err := c.Session(ctx, id, request([]string{"cat"}, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(s.Stdin(), "before ")
	s.Detach()
	out := newSyncBuffer()
	again, err := c.Processes(id).Attach(ctx, s.ProcessID(), 0, client.SessionIO{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(again.Stdin(), "after")
	again.CloseStdin()
	if exit, err := again.Wait(); err != nil || !exit.OK || out.String() != "before after" {
		t.Fatalf("%q, %v", out.String(), err)
	}
}

func TestASessionThatCannotStartSaysWhy(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	r := request([]string{"true"}, io.Discard)
	r.Cwd = "/nope"
	if _, err := c.Session(ctx, id, r); client.ReasonOf(err) != client.ReasonUnprocessable {
		t.Errorf("cwd: %v", err)
	}
	if _, err := c.Session(ctx, "sbx_none", request([]string{"true"}, io.Discard)); client.ReasonOf(err) != client.ReasonNotFound {
		t.Errorf("sandbox: %v", err)
	}
	server.Refuse("GET", "/exec", 503, "unavailable", 0)
	s, err := c.Session(ctx, id, request([]string{"true"}, io.Discard))
	if err != nil {
		t.Fatalf("a handshake refused for a moment was not repeated: %v", err)
	}
	s.Wait()
}

func TestAWriterThatFailsEndsTheSession(t *testing.T) {
	_, c := connect(t)
	broken := errors.New("disk full")
	s, err := c.Session(within(t), sandbox(t, c), request([]string{"block"}, writerFunc(func([]byte) (int, error) { return 0, broken })))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
}

func TestASessionWhoseServerIsGoneGivesUpInTime(t *testing.T) {
	server := clienttest.New()
	c, err := client.New(client.Options{URL: server.URL, Key: clienttest.Key, ReconnectFor: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := c.Session(within(t), sandbox(t, c), request([]string{"block"}, io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	if exit, err := s.Wait(); err == nil {
		t.Fatalf("exit %+v without an error", exit)
	}
	if _, err := fmt.Fprint(s.Stdin(), "x"); err == nil {
		t.Error("a write was accepted after the end")
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
