package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/testkit"
)

func TestStreamsAreLive(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stream, tr := sb.Open(ctx, `echo first; until [ -e go ]; do sleep .1; done; echo second`)
	for len(tr.Stdout) == 0 { // the program waits for it to be seen
		ev, err := stream.Next()
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.Add(ev); err != nil {
			t.Fatal(err)
		}
	}
	sb.Put("/workspace/go", nil)
	rest, err := stream.ReadAll()
	if got := string(tr.Stdout) + string(rest.Stdout); err != nil || got != "first\nsecond\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOffsetsCountBothStreamsInTheOrderRead(t *testing.T) {
	t.Parallel()
	sb := box(t)
	stream, tr := sb.Open(t.Context(), `for i in 1 2 3 4 5; do printf out$i; sleep .1; printf err$i >&2; sleep .1; done`)
	order := ""
	for tr.Exit == nil {
		ev, err := stream.Next()
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.Add(ev); err != nil {
			t.Fatal(err)
		}
		order = string(tr.Stdout) + string(tr.Stderr)
		if (ev.Name == "stdout" || ev.Name == "stderr") && ev.ID != fmt.Sprint(len(order)) {
			t.Errorf("id %s after %d bytes", ev.ID, len(order))
		}
	}
	// From every offset the rest is the same, whichever stream it falls into.
	whole := "out1err1out2err2out3err3out4err4out5err5"
	for _, offset := range []int64{0, 2, 4, 5, 17, 39, 40} {
		again, tr2 := sb.AttachStream(t.Context(), tr.ProcessID, offset), testkit.Transcript{}
		rest := ""
		for tr2.Exit == nil {
			ev, err := again.Next()
			if err != nil {
				t.Fatalf("from %d: %v", offset, err)
			}
			before := len(tr2.Stdout) + len(tr2.Stderr)
			if err := tr2.Add(ev); err != nil {
				t.Fatal(err)
			}
			if all := len(tr2.Stdout) + len(tr2.Stderr); all > before {
				if ev.Name == "stdout" {
					rest += string(tr2.Stdout[len(tr2.Stdout)-(all-before):])
				} else {
					rest += string(tr2.Stderr[len(tr2.Stderr)-(all-before):])
				}
			}
		}
		if rest != whole[offset:] {
			t.Errorf("from %d: %q, want %q", offset, rest, whole[offset:])
		}
	}
}

func TestLastEventIDResumesAStream(t *testing.T) {
	t.Parallel()
	sb := box(t)
	stream, tr := sb.Open(t.Context(), `for i in $(seq 20); do echo $i; sleep .05; done`)
	for len(tr.Stdout) < 8 {
		ev, err := stream.Next()
		if err != nil {
			t.Fatal(err)
		}
		if err := tr.Add(ev); err != nil {
			t.Fatal(err)
		}
	}
	stream.Close()
	again, resp, err := sb.OpenEvents(t.Context(), "GET", sb.Path("/processes/"+tr.ProcessID+"/stream"), nil, "Last-Event-ID", tr.LastID)
	if err != nil || again == nil {
		t.Fatalf("%v %v", resp, err)
	}
	defer again.Close()
	rest, err := again.ReadAll()
	if got := string(tr.Stdout) + string(rest.Stdout); err != nil || got != sequence(20) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestAttachingToWhatIsNotThereIsTyped(t *testing.T) {
	t.Parallel()
	sb := box(t)
	out := sb.X("echo hi")
	for rest, status := range map[string]int{
		"/processes/prc_00000000000000000000000000/stream":     404,
		"/processes/nonsense/stream":                           404,
		"/processes/" + out.ProcessID + "/stream?offset=-5":    400,
		"/processes/" + out.ProcessID + "/stream?offset=x":     400,
		"/processes/" + out.ProcessID + "/stream?offset=99999": 416,
	} {
		stream, resp, err := sb.OpenEvents(t.Context(), "GET", sb.Path(rest), nil)
		if err != nil {
			t.Errorf("%s: %v", rest, err)
			continue
		}
		if stream != nil {
			tr, err := stream.ReadAll()
			stream.Close()
			if status == 416 && err == nil && len(tr.Stdout) == 0 {
				continue // nothing there yet, or any more, is as right
			}
			t.Errorf("%s: a stream, %+v %v", rest, tr, err)
			continue
		}
		if resp.Status != status && !(status == 416 && resp.Status == 400) {
			t.Errorf("%s: %v, want %d", rest, resp, status)
		}
	}
}

func TestTwoReadersOfOneProcessSeeTheSame(t *testing.T) {
	t.Parallel()
	sb := box(t)
	first, tr := sb.Open(t.Context(), `sleep .5; seq 1 20000`)
	second := sb.AttachStream(t.Context(), tr.ProcessID, 0)
	b, err := second.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	a, err := first.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if want := sequence(20000); string(a.Stdout) != want || string(b.Stdout) != want {
		t.Errorf("%d and %d bytes, want %d; gaps %v %v", len(a.Stdout), len(b.Stdout), len(want), a.Gaps, b.Gaps)
	}
}

func TestAReaderThatPausesHoldsTheProgramBackAndLosesNothing(t *testing.T) {
	t.Parallel()
	sb := box(t)
	const size = 48 << 20
	stream, tr := sb.Open(t.Context(), fmt.Sprintf(`yes 0123456789abcde | head -c %d`, size), fields{"max_output_bytes": 1 << 20})
	<-time.After(2 * time.Second) // an unread stream, far beyond what is kept
	rest, err := stream.ReadAll()
	if err != nil || rest.Exit == nil {
		t.Fatalf("%v, %+v", err, rest.Error)
	}
	if got := len(tr.Stdout) + len(rest.Stdout); got != size || len(rest.Gaps) > 0 {
		t.Errorf("%d bytes of %d came, gaps %v", got, size, rest.Gaps)
	}
}

func TestInputContinuesWhereItWasAfterAttachingAgain(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := sb.Dial(ctx, "/exec")
	if err := w.Start(ctx, "cat"); err != nil {
		t.Fatal(err)
	}
	if err := w.Stdin(ctx, []byte("one\n")); err != nil {
		t.Fatal(err)
	}
	var tr testkit.Transcript
	if _, err := w.Collect(ctx, &tr, func(tr *testkit.Transcript) bool { return string(tr.Stdout) == "one\n" }); err != nil {
		t.Fatal(err)
	}
	w.Drop()
	w = sb.Dial(ctx, fmt.Sprintf("/exec?process_id=%s&offset=4", tr.ProcessID))
	msg, _, _, err := w.Next(ctx)
	if err != nil || msg.Type != "started" || msg.StdinOffset != 4 {
		t.Fatalf("%+v, %v; want stdin_offset 4", msg, err)
	}
	if err := w.Stdin(ctx, []byte("two\n")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // closing twice is closing once
		if err := w.Send(ctx, fields{"type": "close_stdin"}); err != nil {
			t.Fatal(err)
		}
	}
	if code, err := w.Collect(ctx, &tr, nil); err != nil || string(tr.Stdout) != "one\ntwo\n" || tr.Exit == nil || !tr.Exit.OK || code != 1000 {
		t.Errorf("%q, closed with %d, %v, %+v", tr.Stdout, code, err, tr.Exit)
	}
}

func TestMalformedMessagesOfASocketCloseItWith4400(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, text := range map[string]string{
		"no JSON":                   `{{{`,
		"an unknown type":           `{"type":"explode"}`,
		"no type":                   `{}`,
		"an array":                  `[]`,
		"a start without a command": `{"type":"start"}`,
		"resize before a start":     `{"type":"resize","cols":1,"rows":1}`,
		"an unknown signal":         "start\x00" + `{"type":"signal","signal":"NOPE"}`,
		"a second start":            "start\x00" + `{"type":"start","command":"true"}`,
		"a size that is none":       "start\x00" + `{"type":"resize","cols":-1,"rows":99999999}`,
	} {
		w := sb.Dial(ctx, "/exec")
		if rest, ok := strings.CutPrefix(text, "start\x00"); ok {
			text = rest
			if err := w.Start(ctx, "sleep 20", fields{"tty": true}); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Conn.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		var tr testkit.Transcript
		code, err := w.Collect(ctx, &tr, nil)
		if tr.Exit != nil || code/100 != 44 {
			t.Errorf("%s: closed with %d, %v, error %+v", name, code, err, tr.Error)
		}
	}
	w := sb.Dial(ctx, "/exec")
	if err := w.Start(ctx, "cat"); err != nil {
		t.Fatal(err)
	}
	if err := w.Conn.Write(ctx, websocket.MessageBinary, make([]byte, 3<<20)); err != nil {
		t.Fatal(err)
	}
	var tr testkit.Transcript
	if code, _ := w.Collect(ctx, &tr, nil); code != websocket.StatusMessageTooBig {
		t.Errorf("a message of 3 MiB: closed with %d", code)
	}
	sb.MustSay("alive\n", "echo alive")
}

func TestAPingIsAnsweredAndASignalReachesItsProcess(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := sb.Dial(ctx, "/exec")
	if err := w.Start(ctx, `trap 'echo got it; exit 4' USR1; echo up; while :; do sleep .05; done`); err != nil {
		t.Fatal(err)
	}
	var tr testkit.Transcript
	if _, err := w.Collect(ctx, &tr, func(tr *testkit.Transcript) bool { return len(tr.Stdout) > 0 }); err != nil {
		t.Fatal(err)
	}
	if err := w.Send(ctx, fields{"type": "ping"}); err != nil {
		t.Fatal(err)
	}
	if msg, _, _, err := w.Next(ctx); err != nil || msg.Type != "pong" {
		t.Errorf("%+v %v", msg, err)
	}
	if err := w.Send(ctx, fields{"type": "signal", "signal": "USR1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Collect(ctx, &tr, nil); err != nil || string(tr.Stdout) != "up\ngot it\n" || tr.Exit.ExitCode != 4 || tr.Exit.Signal != "" {
		t.Errorf("%q %v %+v", tr.Stdout, err, tr.Exit)
	}
}

func TestATicketOpensOneStreamOnce(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	path := sb.Path("/terminal?cols=80&rows=24")
	mint := func() string {
		t.Helper()
		var ticket struct{ Ticket string }
		resp, err := sb.Do(ctx, "POST", "/v1/tickets", fields{"method": "GET", "url": path})
		if err == nil {
			err = resp.Decode(201, &ticket)
			if err != nil {
				err = resp.Decode(200, &ticket)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return ticket.Ticket
	}
	anonymous := testkit.NewClient(sb.URL, "")
	ticket := mint()
	w, resp, err := anonymous.DialSocket(ctx, path+"&ticket="+ticket)
	if err != nil || w == nil {
		t.Fatalf("first use: %v %v", resp, err)
	}
	w.Drop()
	for what, at := range map[string]string{
		"a second use":   path + "&ticket=" + ticket,
		"another URL":    sb.Path("/exec") + "?ticket=" + mint(),
		"another query":  sb.Path("/terminal?cols=81&rows=24") + "&ticket=" + mint(),
		"no such ticket": path + "&ticket=" + testkit.NewKey(),
	} {
		if w, resp, err := anonymous.DialSocket(ctx, at); err != nil || w != nil || resp.Status != 401 {
			t.Errorf("%s: %v %v", what, resp, err)
		}
	}
	if strings.Contains(testkit.Server(t).Logs(), ticket) {
		t.Error("the ticket is in the log")
	}
}

func TestAnExecIsNotRunTwiceForOneIdempotencyKey(t *testing.T) {
	t.Parallel()
	sb := box(t)
	key := testkit.NewKey()
	var ids [3]string
	for i := range ids {
		var out testkit.ExecResult
		if err := sb.Call("POST", "/exec", fields{"command": "echo ran >> /tmp/runs; cat /tmp/runs"}, "Idempotency-Key", key).Decode(200, &out); err != nil {
			t.Fatal(err)
		}
		if out.Stdout != "ran\n" {
			t.Errorf("answer %d: %q", i, out.Stdout)
		}
		ids[i] = out.ProcessID
	}
	if ids[0] != ids[1] || ids[1] != ids[2] {
		t.Errorf("processes %v", ids)
	}
	sb.MustSay("ran\n", "cat /tmp/runs")
}
