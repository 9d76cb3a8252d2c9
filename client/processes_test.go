package client_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
)

func TestAProcessIsStartedFedAndWaitedFor(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	ps := c.Processes(id)
	p, err := ps.Start(ctx, client.ProcessRequest{ExecRequest: client.Command("cat"), Name: "echo", StdinOpen: true})
	if err != nil || !p.Running() || p.Name != "echo" {
		t.Fatalf("started %+v, %v", p, err)
	}
	if _, err := ps.Start(ctx, client.ProcessRequest{ExecRequest: client.Command("cat"), Name: "echo"}); client.ReasonOf(err) != client.ReasonAlreadyExists {
		t.Errorf("a second of the name: %v", err)
	}
	if at, err := ps.WriteStdin(ctx, "echo", strings.NewReader("hello "), client.StdinOptions{}); err != nil || at != 6 {
		t.Fatalf("written up to %d, %v", at, err)
	}
	begin := int64(3)
	if at, err := ps.WriteStdin(ctx, "echo", strings.NewReader("lo world"), client.StdinOptions{Offset: &begin, Close: true}); err != nil || at != 11 {
		t.Fatalf("what it had was not passed over: %d, %v", at, err)
	}
	if p, err = ps.Wait(ctx, "echo"); err != nil || p.Running() || p.ExitCode != 0 {
		t.Fatalf("waited for %+v, %v", p, err)
	}
	var text strings.Builder
	pages := 0
	for page, err := range ps.LogPages(ctx, p.ID, client.LogsOptions{Limit: 4}) {
		if err != nil {
			t.Fatal(err)
		}
		text.Write(page.Stdout)
		pages++
		if page.Complete() != (text.Len() == 11) {
			t.Errorf("after %q: complete %v", &text, page.Complete())
		}
	}
	if text.String() != "hello world" || pages != 3 {
		t.Errorf("%d pages of logs: %q", pages, &text)
	}
	if _, err := ps.WriteStdin(ctx, p.ID, strings.NewReader("x"), client.StdinOptions{}); client.ReasonOf(err) != client.ReasonConflict {
		t.Errorf("input after the end: %v", err)
	}
}

func TestInputIsRepeatedOnlyWhereItSaysWhereItBelongs(t *testing.T) {
	for name, offset := range map[string]*int64{"appended": nil, "at an offset": new(int64)} {
		server, c := connect(t)
		ctx, id := within(t), sandbox(t, c)
		p, err := c.Processes(id).Start(ctx, client.ProcessRequest{ExecRequest: client.Command("cat"), StdinOpen: true})
		if err != nil {
			t.Fatal(err)
		}
		server.Refuse("POST", "/stdin", 503, "unavailable", 0)
		_, err = c.Processes(id).WriteStdin(ctx, p.ID, strings.NewReader("x"), client.StdinOptions{Offset: offset})
		if (err == nil) != (offset != nil) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAProcessIsResizedSignaledAndListed(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	ps := c.Processes(id)
	p, err := ps.Start(ctx, client.ProcessRequest{ExecRequest: client.Command("tty"), TTY: true, Cols: 80, Rows: 24, StdinOpen: true})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for ev, err := range ps.Stream(ctx, p.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if o, ok := ev.(client.OutputEvent); ok {
			out.Write(o.Data)
		}
		switch {
		case strings.Contains(out.String(), "100x50"):
			err = ps.Signal(ctx, p.ID, "TERM", true)
		case strings.Contains(out.String(), "80x24"):
			err = ps.Resize(ctx, p.ID, 100, 50)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if p, err = ps.Get(ctx, p.ID); err != nil || p.ExitCode != 143 || p.Signal != "TERM" {
		t.Errorf("ended as %+v, %v", p, err)
	}
	if err := ps.Resize(ctx, p.ID, 1, 1); client.ReasonOf(err) != client.ReasonConflict {
		t.Errorf("resized after its end: %v", err)
	}
	mine, err := ps.List(ctx, false)
	all, errAll := ps.List(ctx, true)
	if err != nil || errAll != nil || len(mine) != 1 || len(all) != 2 {
		t.Errorf("listed %d and %d, %v %v", len(mine), len(all), err, errAll)
	}
}

func TestAWaitIsBoundedAndTellsThatTheProcessRuns(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	p, err := c.Processes(id).Start(ctx, client.ProcessRequest{ExecRequest: client.Command("block")})
	if err != nil {
		t.Fatal(err)
	}
	if p, err = c.Processes(id).WaitFor(ctx, p.ID, 10*time.Millisecond); err != nil || !p.Running() {
		t.Fatalf("got %+v, %v", p, err)
	}
	failed, err := c.Processes(id).Start(ctx, client.ProcessRequest{ExecRequest: client.Command("nosuch")})
	if err != nil {
		t.Fatal(err)
	}
	if failed, err = c.Processes(id).Wait(ctx, failed.ID); err != nil || failed.Status != "failed" || failed.Detail == "" {
		t.Errorf("what is not there ended as %+v, %v", failed, err)
	}
}
