package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/testkit"
)

// numbered is what the program below prints.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%07d\n", i)
	}
	return b.String()
}

// numbering prints n lines of eight bytes, and begins once the session's file `go` is there.
func numbering(n int) string {
	return fmt.Sprintf("import os, time\nprint('ready')\nwhile not os.path.exists('/session/go'): time.sleep(.02)\nfor i in range(%d): print('%%07d' %% i)", n)
}

func TestAStreamHasEveryByteWheneverItIsAttached(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	s := inst.Session(t)
	const lines = 3000
	want := "ready\n" + numbered(lines)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	j := inst.Submit(t, numbering(lines), fields{"session_id": s.ID, "timeout_seconds": 170})

	before := []*testkit.JobEvents{j.Attach(ctx, 0), j.Attach(ctx, 0)} // twice, while it is queued or boots
	socket, resp, err := inst.DialJob(ctx, j.Path("/stream"))
	if err != nil || socket == nil {
		t.Fatalf("WebSocket: %v %v", resp, err)
	}
	defer socket.CloseNow()
	for len(before[0].Transcript.Stdout) == 0 {
		if _, err := before[0].Step(); err != nil {
			t.Fatal(err)
		}
	}
	during := j.Attach(ctx, 0)
	s.Put("go", nil)

	var bySocket testkit.JobTranscript
	if code, err := testkit.ReadJob(ctx, socket, &bySocket); err != nil || code != websocket.StatusNormalClosure {
		t.Errorf("WebSocket: closed with %v, %v", code, err)
	}
	all := map[string]testkit.JobTranscript{"by WebSocket": bySocket}
	for name, events := range map[string]*testkit.JobEvents{"before": before[0], "before, the second": before[1], "during": during, "after": j.Attach(ctx, 0)} {
		if all[name], err = events.Rest(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, tr := range all {
		if string(tr.Stdout) != want || len(tr.Stderr)+len(tr.Gaps) != 0 || fmt.Sprint(tr.Statuses) != "[queued running]" {
			t.Errorf("%s: %d bytes, want %d; statuses %v, gaps %v", name, len(tr.Stdout), len(want), tr.Statuses, tr.Gaps)
		}
		if l := tr.Last; l == nil || l.Type != "exit" || tr.Status() != "success" || l.ExitCode == nil || *l.ExitCode != 0 || l.DurationMS == nil {
			t.Errorf("%s: the last frame is %+v", name, l)
		}
		if tr.Seq != all["after"].Seq {
			t.Errorf("%s: the last seq is %d, and %d after", name, tr.Seq, all["after"].Seq)
		}
	}
}

func TestAReaderThatStallsHoldsNobodyBackAndGetsItsBytes(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	const size = 50 << 20
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	j := inst.Submit(t, fmt.Sprintf("import sys\nblock = b'0123456789abcde\\n' * 4096\nfor _ in range(%d): sys.stdout.buffer.write(block)", size>>16), fields{"timeout_seconds": 170})
	stalled := j.Attach(ctx, 0)
	for len(stalled.Transcript.Stdout) == 0 {
		if _, err := stalled.Step(); err != nil {
			t.Fatal(err)
		}
	}
	// From here it reads nothing until another has seen the end.
	quick, err := j.Attach(ctx, 0).Rest()
	if err != nil || quick.Status() != "success" {
		t.Fatalf("beside one that stalls: %v, %+v", err, quick.Last)
	}
	slow, err := stalled.Rest()
	if err != nil || slow.Status() != "success" {
		t.Fatalf("the one that stalls: %v, %+v", err, slow.Last)
	}
	for name, tr := range map[string]testkit.JobTranscript{"the quick": quick, "the slow": slow} {
		if got := int64(len(tr.Stdout)) + tr.Missing; got != size {
			t.Errorf("%s got %d bytes and %d in gaps, want %d", name, len(tr.Stdout), tr.Missing, size)
		}
		if len(tr.Gaps) == 0 && testkit.Digest(tr.Stdout) != testkit.Digest(bytes.Repeat([]byte("0123456789abcde\n"), size/16)) {
			t.Errorf("%s got other bytes than were written", name)
		}
	}
	late := j.Stream()
	if len(late.Gaps) > 0 || !bytes.Equal(late.Stdout, bytes.Repeat([]byte("0123456789abcde\n"), size/16)) {
		t.Errorf("afterwards: %d bytes, gaps %v", len(late.Stdout), late.Gaps)
	}
}

func TestOutputBeyondWhatIsKeptIsAGapThatAddsUp(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	const size = 80 << 20 // 64 MiB are kept
	j := inst.Submit(t, fmt.Sprintf("import sys\nblock = b'0123456789abcde\\n' * 4096\nfor _ in range(%d): sys.stdout.buffer.write(block)\nprint('end')", size>>16), fields{"timeout_seconds": 170})
	if now := j.Wait(); now.Status != "success" || now.StdoutSize != size+4 || !strings.HasSuffix(now.Stdout, "end\n") {
		t.Fatalf("%s, %d bytes", now.Status, now.StdoutSize)
	}
	tr := j.Stream()
	if got := int64(len(tr.Stdout)) + tr.Missing; got != size+4 || tr.Missing < 10<<20 || !bytes.HasSuffix(tr.Stdout, []byte("\nend\n")) || !bytes.HasPrefix(tr.Stdout, []byte("0123456789abcde\n0123")) {
		t.Errorf("%d bytes and %d in gaps, want %d", len(tr.Stdout), tr.Missing, size+4)
	}
}

func TestAStreamGoesOnAfterAnyPosition(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	const text = "aü日😀\nb" // characters of one to four bytes
	j := inst.Submit(t, fmt.Sprintf("import sys\nsys.stdout.buffer.write(%q.encode())", text))
	whole := j.Stream()
	if string(whole.Stdout) != text {
		t.Fatalf("%q", whole.Stdout)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const first = 2 // the positions of queued and running
	for at := range len(text) + 1 {
		after := int64(first + at)
		ways := map[string]func() (testkit.JobTranscript, error){
			"seq": func() (testkit.JobTranscript, error) { return j.Attach(ctx, after).Rest() },
			"Last-Event-ID": func() (testkit.JobTranscript, error) {
				s := j.Attach(ctx, 0, "Last-Event-ID", fmt.Sprint(after))
				s.Transcript.Seq = after
				return s.Rest()
			},
			"WebSocket": func() (tr testkit.JobTranscript, err error) {
				conn, resp, err := inst.DialJob(ctx, j.Path(fmt.Sprintf("/stream?seq=%d", after)))
				if err != nil || conn == nil {
					return tr, fmt.Errorf("%v %w", resp, err)
				}
				defer conn.CloseNow()
				tr.Seq = after
				_, err = testkit.ReadJob(ctx, conn, &tr)
				return tr, err
			},
		}
		for name, way := range ways {
			if tr, err := way(); err != nil || string(tr.Stdout) != text[at:] || tr.Status() != "success" || len(tr.Statuses) != 0 {
				t.Errorf("%s after %d: %q %v, want %q, %v", name, after, tr.Stdout, tr.Statuses, text[at:], err)
			}
		}
	}
	for _, seq := range []string{"-1", "x", "1.5", "99999999999999999999"} {
		if resp, err := inst.Do(ctx, "GET", j.Path("/stream?seq="+seq), nil); err != nil || resp.Status != 400 {
			t.Errorf("seq %s: %v %v", seq, resp, err)
		}
	}
}

func TestABinaryStreamIsExact(t *testing.T) {
	t.Parallel()
	j := testkit.Server(t).Submit(t, "import sys\nfor i in range(1024): sys.stdout.buffer.write(bytes([i % 256, 0xc3]))\nsys.stderr.buffer.write(b'\\xe2\\x82')")
	var want []byte
	for i := range 1024 {
		want = append(want, byte(i), 0xc3)
	}
	if tr := j.Stream(); !bytes.Equal(tr.Stdout, want) || string(tr.Stderr) != "\xe2\x82" {
		t.Errorf("%d bytes, want %d; stderr %q", len(tr.Stdout), len(want), tr.Stderr)
	}
}

func TestAStreamIsHadByTheSimpleDoorAndByTickets(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	j := inst.Submit(t, "print('hi')\nraise SystemExit(3)")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, path := range []string{"/stream?jobId=" + j.ID, "/job/" + j.ID + "/stream"} {
		ticket := func() string {
			t.Helper()
			resp, err := inst.Do(ctx, "POST", "/v1/tickets", fields{"method": "GET", "url": path})
			var made struct{ Ticket string }
			if err != nil || resp.Status/100 != 2 {
				t.Fatalf("a ticket for %s: %v %v", path, resp, err)
			}
			if err := json.Unmarshal(resp.Body, &made); err != nil {
				t.Fatal(err)
			}
			mark := "?"
			if strings.Contains(path, "?") {
				mark = "&"
			}
			return path + mark + "ticket=" + url.QueryEscape(made.Ticket)
		}
		browser := testkit.NewClient(inst.URL, "")
		one := ticket()
		s, resp, err := browser.OpenEvents(ctx, "GET", one, nil)
		if err != nil || s == nil {
			t.Fatalf("%s: %v %v", path, resp, err)
		}
		defer s.Close()
		var last map[string]any
		for {
			ev, err := s.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			last = nil
			if err := json.Unmarshal(ev.Data, &last); err != nil {
				t.Fatal(err)
			}
		}
		if last["type"] != "exit" || last["exitCode"] != 3.0 || last["data"] != "failed" || last["timedOut"] != false || last["durationMs"] == nil {
			t.Errorf("%s: the last frame is %v", path, last)
		}
		if s, resp, err := browser.OpenEvents(ctx, "GET", one, nil); err != nil || s != nil || resp.Status != http.StatusUnauthorized {
			t.Errorf("a ticket taken twice: %v %v", resp, err)
		}
		conn, resp, err := browser.DialJob(ctx, ticket())
		if err != nil || conn == nil {
			t.Fatalf("%s by WebSocket: %v %v", path, resp, err)
		}
		defer conn.CloseNow()
		text := ""
		for {
			_, data, err := conn.Read(ctx)
			if err != nil {
				if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure {
					t.Errorf("%s: closed with %v: %v", path, code, err)
				}
				break
			}
			text += string(data) + "\n"
		}
		if !strings.Contains(text, `"hi\n"`) || !strings.Contains(text, `"exitCode":3`) {
			t.Errorf("%s by WebSocket: %s", path, text)
		}
	}
	for _, path := range []string{"/stream", "/stream?jobId=job_00000000000000000000000000", "/job/job_00000000000000000000000000/stream", "/v1/jobs/job_00000000000000000000000000/stream"} {
		if conn, resp, err := inst.DialJob(ctx, path); err != nil || conn != nil || resp.Status/100 != 4 {
			t.Errorf("WebSocket of %s: %v %v", path, resp, err)
		}
	}
}

func TestWatchersThatLeaveAtAnyTimeCostNothing(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	const lines = 20000
	s := inst.Session(t)
	j := inst.Submit(t, numbering(lines), fields{"session_id": s.ID, "timeout_seconds": 170})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var watchers sync.WaitGroup
	for n := range 24 {
		watchers.Go(func() {
			events, resp, err := inst.OpenJobEvents(ctx, j.Path("/stream"), 0)
			if err != nil || events == nil {
				t.Errorf("watcher %d: %v %v", n, resp, err)
				return
			}
			defer events.Close()
			for range n { // and leaves in the middle
				if _, err := events.Step(); err != nil {
					return
				}
			}
		})
	}
	j.Running()
	s.Put("go", nil)
	if tr := j.Stream(); string(tr.Stdout) != "ready\n"+numbered(lines) || tr.Status() != "success" {
		t.Errorf("%d bytes, %+v", len(tr.Stdout), tr.Last)
	}
	watchers.Wait()
}
