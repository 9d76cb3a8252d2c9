package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
)

func TestExecAnswersOutputByteForByte(t *testing.T) {
	server, c := connect(t)
	want := []byte("\xff\xfe\x00ok\xc3")
	server.Handle("raw", func(_ context.Context, p *clienttest.Proc) int {
		p.Stdout.Write(want)
		p.Stderr.Write([]byte("err"))
		return 7
	})
	res, err := c.Exec(within(t), sandbox(t, c), client.Command("raw"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(res.Stdout, want) || string(res.Stderr) != "err" || res.ExitCode != 7 || res.OK || res.ProcessID == "" {
		t.Fatalf("got %+v", res)
	}
}

func TestExecPassesStdinEnvAndNotFound(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	r := client.Command("cat")
	r.Stdin = []byte("a\x00b")
	if res, err := c.Exec(ctx, id, r); err != nil || string(res.Stdout) != "a\x00b" {
		t.Errorf("cat: %+v, %v", res, err)
	}
	r = client.Shell("env")
	r.Env = map[string]string{"A": "x=y\nz"}
	if res, err := c.Exec(ctx, id, r); err != nil || string(res.Stdout) != "A=x=y\nz\n" {
		t.Errorf("env: %+v, %v", res, err)
	}
	if res, err := c.Exec(ctx, id, client.Command("nosuch")); err != nil || res.ExitCode != 127 {
		t.Errorf("nosuch: %+v, %v", res, err)
	}
	if _, err := c.Exec(ctx, id, client.ExecRequest{}); err == nil {
		t.Error("an empty command was accepted")
	}
	r = client.Command("true")
	r.Cwd = "/nope"
	if _, err := c.Exec(ctx, id, r); client.ReasonOf(err) != client.ReasonUnprocessable {
		t.Errorf("cwd: %v", err)
	}
}

// numbers is the output of seq n.
func numbers(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

func TestAStreamSurvivesBrokenConnectionsWithoutLossOrDoubling(t *testing.T) {
	server, c := connect(t)
	server.CutAfter(3, 1, 500, 2)
	var out bytes.Buffer
	starts, exits := 0, 0
	for ev, err := range c.Stream(within(t), sandbox(t, c), client.Command("seq", "2000")) {
		if err != nil {
			t.Fatal(err)
		}
		switch ev := ev.(type) {
		case client.StartEvent:
			starts++
		case client.OutputEvent:
			out.Write(ev.Data)
			if ev.Offset != int64(out.Len()) {
				t.Fatalf("offset %d after %d bytes", ev.Offset, out.Len())
			}
		case client.ExitEvent:
			exits++
			if !ev.OK {
				t.Errorf("exit %+v", ev)
			}
		}
	}
	if out.String() != numbers(2000) || starts != 1 || exits != 1 {
		t.Fatalf("%d bytes, %d starts, %d exits", out.Len(), starts, exits)
	}
}

func TestAStreamThatCannotBeMendedIsAnErrorAndNeverASuccess(t *testing.T) {
	server, _ := connect(t)
	c, err := client.New(client.Options{URL: server.URL, Key: clienttest.Key, ReconnectFor: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server.CutAfter(10)
	var last error
	for ev, err := range c.Stream(within(t), sandbox(t, c), client.Command("seq", "2000")) {
		if _, ok := ev.(client.ExitEvent); ok {
			t.Fatal("an exit was seen")
		}
		last = err
	}
	if last == nil {
		t.Fatal("the loop ended without an error")
	}
}

func TestLeavingAStreamLeavesNothingBehind(t *testing.T) {
	_, c := connect(t)
	for ev, err := range c.Stream(within(t), sandbox(t, c), client.Command("block")) {
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := ev.(client.OutputEvent); ok {
			break
		}
	}
}

func TestAStreamEndsWithItsContext(t *testing.T) {
	_, c := connect(t)
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	var last error
	for ev, err := range c.Stream(ctx, sandbox(t, c), client.Command("block")) {
		if _, ok := ev.(client.OutputEvent); ok {
			cancel()
		}
		last = err
	}
	if !errors.Is(last, context.Canceled) {
		t.Fatalf("got %v", last)
	}
}

func TestAProcessCanBeAttachedToByNameFromAnOffset(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	res, err := c.Exec(ctx, id, client.Command("echo", "hello"))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for ev, err := range c.Processes(id).Stream(ctx, res.ProcessID, 2) {
		if err != nil {
			t.Fatal(err)
		}
		if o, ok := ev.(client.OutputEvent); ok {
			got.Write(o.Data)
		}
	}
	if got.String() != "llo\n" {
		t.Fatalf("got %q", &got)
	}
	procs, err := c.Processes(id).List(ctx, false)
	if err != nil || len(procs) != 1 || procs[0].ID != res.ProcessID || strings.Join(procs[0].Command, " ") != "echo hello" {
		t.Fatalf("listed %+v, %v", procs, err)
	}
	logs, err := c.Processes(id).Logs(ctx, res.ProcessID, client.LogsOptions{})
	if err != nil || string(logs.Stdout) != "hello\n" || logs.NextOffset != 6 {
		t.Fatalf("logs %+v, %v", logs, err)
	}
}

type onlyReader struct{ io.Reader }

// syncBuffer is a buffer that a test can wait on.
type syncBuffer struct {
	ch  chan struct{}
	buf bytes.Buffer
}

func newSyncBuffer() *syncBuffer {
	b := &syncBuffer{ch: make(chan struct{}, 1)}
	b.ch <- struct{}{}
	return b
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	<-b.ch
	defer func() { b.ch <- struct{}{} }()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	<-b.ch
	defer func() { b.ch <- struct{}{} }()
	return b.buf.String()
}

// eventually polls until ok, for at most 10 s.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
