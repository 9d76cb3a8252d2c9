package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// processObject is what the API says of a process.
type processObject struct {
	ID       string   `json:"id"`
	PID      int      `json:"pid"`
	Name     string   `json:"name"`
	Command  []string `json:"command"`
	Status   string   `json:"status"`
	ExitCode *int     `json:"exit_code"`
	Reason   string   `json:"reason"`
}

func listProcesses(t *testing.T, sb *testkit.Sandbox, query string) []processObject {
	t.Helper()
	var page struct {
		Items []processObject `json:"items"`
	}
	if err := sb.Call("GET", "/processes"+query, nil).Decode(200, &page); err != nil {
		t.Fatal(err)
	}
	return page.Items
}

// listed is how many running processes the API lists whose command line begins with prefix.
func listed(t *testing.T, sb *testkit.Sandbox, prefix string) int {
	t.Helper()
	n := 0
	for _, p := range listProcesses(t, sb, "?all=true") {
		if p.Status == "running" && strings.HasPrefix(strings.Join(p.Command, " "), prefix) {
			n++
		}
	}
	return n
}

func TestP1ABackgroundChildDoesNotHoldTheExecAndLivesOn(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for n, command := range []string{`sleep 3001 & echo started`, `nohup sleep 3001 >/dev/null 2>&1 & echo started`, `setsid sleep 3001 & echo started`} {
		out := sb.X(command)
		if out.Stdout != "started\n" || out.DurationMS > 1000 {
			t.Errorf("%s: %q after %d ms", command, out.Stdout, out.DurationMS)
		}
		if inside := sb.Count("sleep 3001"); inside != n+1 {
			t.Errorf("%s: %d of %d children live inside", command, inside, n+1)
		}
		if got := listed(t, sb, "sleep 3001"); got != n+1 {
			t.Errorf("%s: %d of %d children are listed", command, got, n+1)
		}
	}
}

func TestP2AndP3ATimeoutKillsTheWholeTree(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for name, command := range map[string]string{
		"P2 a background child":             `sleep 3002 & wait`,
		"P3 a session of its own":           `setsid sh -c 'sleep 3002' & wait`,
		"a child that ignores TERM":         `sh -c 'trap "" TERM HUP INT; sleep 3002; sleep 3002' & wait`,
		"nohup":                             `nohup sleep 3002 >/dev/null 2>&1 & wait`,
		"a double fork":                     `(setsid sh -c 'setsid sleep 3002 & exit' &) ; sleep 3002`,
		"a pipeline":                        `sleep 3002 | sleep 3002 | sleep 3002`,
		"a child that forks all the time":   `while :; do setsid sleep 3002 & sleep .02; done`,
		"a stopped child":                   `sleep 3002 & kill -STOP $!; wait`,
		"a child with another working tree": `cd / && exec setsid -w sh -c 'sleep 3002; :'`,
	} {
		for _, seconds := range []float64{0.05, 0.5} {
			t.Run(fmt.Sprintf("%s, %v s", name, seconds), func(t *testing.T) {
				sb := sb.In(t)
				out := sb.X(command, fields{"timeout_seconds": seconds})
				if !out.TimedOut || out.ExitCode != 137 || out.Reason != "timeout" {
					t.Errorf("%+v", out)
				}
				if left := sb.Others(); len(left) != 0 {
					t.Errorf("survivors: %q", left)
				}
			})
		}
	}
}

func TestP5ACanceledPipelineIsGone(t *testing.T) {
	t.Parallel()
	sb := box(t)
	gone := func(t *testing.T, pattern string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, "both ends of the pipe are gone", func() error {
			if n := sb.In(t).Count(pattern); n != 0 {
				return fmt.Errorf("%d left", n)
			}
			return nil
		})
	}
	runs := func(t *testing.T, pattern string, want int) {
		t.Helper()
		testkit.Eventually(t, time.Minute, "it runs", func() error {
			if n := sb.In(t).Count(pattern); n < want {
				return fmt.Errorf("%d processes", n)
			}
			return nil
		})
	}
	t.Run("the request is dropped", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := sb.Client.Exec(ctx, sb.ID, `sh -c 'sleep 3003 | sleep 3003'`, fields{"kill_on_disconnect": true})
			done <- err
		}()
		runs(t, "sleep 3003", 2)
		cancel()
		if err := <-done; err == nil {
			t.Error("a dropped request succeeded")
		}
		gone(t, "sleep 3003")
	})
	t.Run("the stream is dropped", func(t *testing.T) {
		stream, _ := sb.In(t).Open(t.Context(), `sh -c 'sleep 3004 | cat'`, fields{"kill_on_disconnect": true})
		runs(t, "sleep 3004", 1)
		stream.Close()
		gone(t, "sleep 3004")
	})
	t.Run("a signal to the tree", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w := sb.In(t).Dial(ctx, "/exec")
		if err := w.Start(ctx, `echo up; sh -c 'sleep 3005 | cat'`); err != nil {
			t.Fatal(err)
		}
		var tr testkit.Transcript
		if _, err := w.Collect(ctx, &tr, func(tr *testkit.Transcript) bool { return len(tr.Stdout) > 0 }); err != nil {
			t.Fatal(err)
		}
		if err := w.Send(ctx, fields{"type": "signal", "signal": "KILL", "tree": true}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Collect(ctx, &tr, nil); err != nil {
			t.Fatal(err)
		}
		if tr.Exit.Signal != "KILL" || tr.Exit.ExitCode != 137 || !tr.Exit.Killed || tr.Exit.TimedOut {
			t.Errorf("exit %+v", tr.Exit)
		}
		gone(t, "sleep 3005")
	})
	t.Run("without kill_on_disconnect it runs on", func(t *testing.T) {
		stream, _ := sb.In(t).Open(t.Context(), `sleep 3006 | cat`)
		runs(t, "sleep 3006", 1)
		stream.Close()
		sb.In(t).Must("sleep 1") // the time in which it would be killed
		if n := sb.In(t).Count("sleep 3006"); n != 1 {
			t.Errorf("%d processes, want 1", n)
		}
	})
}

func TestP6OrphansAreReaped(t *testing.T) {
	t.Parallel()
	sb := box(t)
	runs := testkit.Scaled(100, 500)
	work := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range work {
				if out, err := sb.Client.Exec(t.Context(), sb.ID, []string{"sh", "-c", "sleep .05 &"}); err != nil || !out.OK {
					t.Errorf("%+v %v", out, err)
				}
			}
		})
	}
	for range runs {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
	testkit.Eventually(t, time.Minute, "no zombie", func() error {
		out := sb.Must(`cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | cut -c1 | grep -c Z; true`)
		if out != "0\n" {
			return fmt.Errorf("%s zombies", strings.TrimSpace(out))
		}
		return nil
	})
}

func TestP7WhatCannotRunSaysSoAsAShellDoes(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Put("/workspace/plain", []byte("#!/bin/sh\necho ran\n"), "mode", "0644")
	sb.Put("/workspace/nointerp", []byte("#!/no/such/interpreter\n"), "mode", "0755")
	for name, c := range map[string]struct {
		command any
		code    int
	}{
		"unknown command":           {"nosuchcmd", 127},
		"unknown command, argv":     {[]string{"nosuchcmd", "x"}, 127},
		"unknown path":              {"/no/such/path", 127},
		"unknown path, argv":        {[]string{"/no/such/path"}, 127},
		"no x bit":                  {"/workspace/plain", 126},
		"no x bit, argv":            {[]string{"/workspace/plain"}, 126},
		"a directory":               {"/tmp", 126},
		"a directory, argv":         {[]string{"/tmp"}, 126},
		"no such interpreter, argv": {[]string{"/workspace/nointerp"}, 127},
	} {
		t.Run(name, func(t *testing.T) {
			out := sb.In(t).Run(c.command)
			if out.ExitCode != c.code || out.OK || out.Stderr == "" || out.Signal != "" {
				t.Errorf("%+v, want code %d and a text on stderr", out, c.code)
			}
		})
	}
}

func TestP8SignalsAreTold(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for signal, code := range map[string]int{"SEGV": 139, "TERM": 143, "ABRT": 134, "KILL": 137, "HUP": 129, "INT": 130, "USR1": 138, "PIPE": 141} {
		out := sb.X("kill -" + signal + " $$; sleep 5")
		if out.Signal != signal || out.ExitCode != code || out.Reason != "signaled" || out.TimedOut || out.OOM || out.Killed {
			t.Errorf("%s: %+v", signal, out)
		}
	}
	// A command whose own child died of a signal has exited by itself.
	if out := sb.X(`sh -c 'kill -SEGV $$'; exit $?`); out.Signal != "" || out.ExitCode != 139 || out.Reason != "exited" {
		t.Errorf("child's signal: %+v", out)
	}
}

func TestP9AttachingLateReplaysFromTheOffset(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const lines = 30
	stream, tr := sb.Open(ctx, fmt.Sprintf(`for i in $(seq %d); do echo $i; sleep .1; done`, lines))
	stream.Close() // in the background from here
	testkit.Eventually(t, time.Minute, "it is listed as running", func() error {
		for _, p := range listProcesses(t, sb, "") {
			if p.ID == tr.ProcessID && p.Status == "running" {
				return nil
			}
		}
		return fmt.Errorf("%s is not listed as running", tr.ProcessID)
	})
	whole, err := sb.AttachStream(ctx, tr.ProcessID, 0).ReadAll()
	if err != nil || string(whole.Stdout) != sequence(lines) {
		t.Fatalf("from the start: %q, %v", whole.Stdout, err)
	}
	// Ended by now: attaching still works, from anywhere, by both kinds of stream.
	for _, offset := range []int64{0, 1, 2, 17, int64(len(sequence(lines)))} {
		want := sequence(lines)[offset:]
		part, err := sb.AttachStream(ctx, tr.ProcessID, offset).ReadAll()
		if err != nil || string(part.Stdout) != want || part.Exit == nil {
			t.Errorf("SSE from %d: %q, want %q, %v", offset, part.Stdout, want, err)
		}
		var ws testkit.Transcript
		w := sb.Dial(ctx, fmt.Sprintf("/exec?process_id=%s&offset=%d", tr.ProcessID, offset))
		if _, err := w.Collect(ctx, &ws, nil); err != nil || string(ws.Stdout) != want || ws.StartOffset != offset {
			t.Errorf("WebSocket from %d: %q at %d, want %q, %v", offset, ws.Stdout, ws.StartOffset, want, err)
		}
	}
}

func TestP10ASocketThatDropsTenTimesStillGetsTheEnd(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	w := sb.Dial(ctx, "/exec")
	if err := w.Start(ctx, `echo begun; sleep 3; echo ok`); err != nil {
		t.Fatal(err)
	}
	var tr testkit.Transcript
	if _, err := w.Collect(ctx, &tr, func(tr *testkit.Transcript) bool { return tr.ProcessID != "" }); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		w.Drop()
		w = sb.Dial(ctx, fmt.Sprintf("/exec?process_id=%s&offset=%d", tr.ProcessID, len(tr.Stdout)))
		again := testkit.Transcript{}
		if _, err := w.Collect(ctx, &again, func(again *testkit.Transcript) bool { return again.ProcessID != "" }); err != nil {
			t.Fatal(err)
		}
		if again.ProcessID != tr.ProcessID || again.StartOffset != int64(len(tr.Stdout)) {
			t.Fatalf("attached to %s at %d, want %s at %d", again.ProcessID, again.StartOffset, tr.ProcessID, len(tr.Stdout))
		}
	}
	if _, err := w.Collect(ctx, &tr, nil); err != nil || string(tr.Stdout) != "begun\nok\n" || !tr.Exit.OK {
		t.Fatalf("%q, %v, %+v", tr.Stdout, err, tr.Exit)
	}
}

func TestP12ABackgroundServerOutlivesTheTimeoutOfItsExec(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.RequireProgram("python3")
	sb.Must("python3 -m http.server 8099 >/dev/null 2>&1 & echo", fields{"timeout_seconds": 1})
	sb.Must("sleep 2")
	testkit.Eventually(t, time.Minute, "the server answers", func() error {
		out, err := sb.Client.Exec(t.Context(), sb.ID, `python3 -c "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8099/').status)"`)
		if err == nil && out.Stdout != "200\n" {
			err = fmt.Errorf("%q %q", out.Stdout, out.Stderr)
		}
		return err
	})
}

func TestP14AWrongDirectoryOrUserRunsNothing(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Put("/workspace/file", nil)
	for field, values := range map[string][]string{"cwd": {"/nope", "/workspace/file", "relative/../nope"}, "user": {"nobody-here", "-1", "99999999999", "root:nogroup-here"}} {
		for _, value := range values {
			resp := sb.Call("POST", "/exec", fields{"command": "touch /tmp/ran", field: value})
			if p := resp.Problem(); resp.Status/100 != 4 || p.Field != field && !strings.Contains(p.Detail, field) {
				t.Errorf("%s %q: %v, want a 4xx that names %s", field, value, resp, field)
			}
		}
	}
	if out := sb.X("ls /tmp/ran"); out.ExitCode == 0 {
		t.Error("it ran")
	}
}

func TestP15AStartThatFailsIsAStateThatSaysSo(t *testing.T) {
	t.Parallel()
	sb := box(t)
	out := sb.Run([]string{"/nope"})
	if out.Reason != "start_failed" || out.ExitCode != 127 {
		t.Errorf("exec: %+v", out)
	}
	tr := sb.Stream([]string{"/nope"})
	if tr.Exit.Reason != "start_failed" || tr.Exit.ExitCode != 127 {
		t.Errorf("stream: %+v", tr.Exit)
	}
	for _, p := range listProcesses(t, sb, "") {
		if p.ID == out.ProcessID && p.Status == "running" {
			t.Errorf("listed as %+v", p)
		}
	}
}

func TestP17ParallelTrivialRunsNeverFail(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for range testkit.Scaled(5, 20) {
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				out, err := sb.Client.Exec(t.Context(), sb.ID, fmt.Sprintf("echo %d", i))
				if err != nil || out.Stdout != fmt.Sprintf("%d\n", i) {
					t.Errorf("run %d: %+v, %v", i, out, err)
				}
			})
		}
		wg.Wait()
	}
}

func TestATerminalIsALoginShellThatCanBeResized(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := sb.Dial(ctx, "/terminal?cols=91&rows=33")
	var tr testkit.Transcript
	// say types a line and waits until want shows, which the echo of the line does not hold.
	say := func(line, want string) {
		t.Helper()
		if err := w.Stdin(ctx, []byte(line+"\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Collect(ctx, &tr, func(tr *testkit.Transcript) bool { return strings.Contains(string(tr.Stdout), want) }); err != nil || tr.Exit != nil || tr.Error != nil {
			t.Fatalf("%s: %v; the terminal showed %q, exit %+v, error %+v", line, err, tr.Stdout, tr.Exit, tr.Error)
		}
		tr.Stdout = tr.Stdout[strings.Index(string(tr.Stdout), want)+len(want):]
	}
	// prompt waits for the next prompt: until then the shell reads the terminal's size and sets it to what it read, and a Ctrl-C may
	// meet the shell instead of its command.
	prompt := func() {
		t.Helper()
		if _, err := w.Collect(ctx, &tr, func(tr *testkit.Transcript) bool { return strings.Contains(string(tr.Stdout), "$ ") }); err != nil || tr.Exit != nil {
			t.Fatalf("no prompt: %v; the terminal showed %q, exit %+v", err, tr.Stdout, tr.Exit)
		}
	}
	say("stty size", "33 91")
	prompt()
	if err := w.Send(ctx, fields{"type": "resize", "cols": 71, "rows": 23}); err != nil {
		t.Fatal(err)
	}
	say("stty size", "23 71")
	say("test -t 0 && test -t 1 && echo a'-'tty", "a-tty")
	say("id -un", "sandbox\r\n")
	say("sh -c 'echo run-\"\"ning; exec sleep 300'", "run-ning")
	if err := w.Stdin(ctx, []byte{3}); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	prompt()
	say("echo back'-'again", "back-again")
	if err := w.Stdin(ctx, []byte("exit 5\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Collect(ctx, &tr, nil); err != nil || tr.Exit.ExitCode != 5 || len(tr.Stderr) != 0 {
		t.Fatalf("%v, exit %+v, channel 2 %q", err, tr.Exit, tr.Stderr)
	}
}
