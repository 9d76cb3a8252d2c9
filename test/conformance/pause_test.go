package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// realTime lets time pass that a case is about: clocks that ought to stand still, or not to.
func realTime(d time.Duration) { <-time.After(d) }

func TestL4BothClocksAreRightAfterPausesOfAnyLength(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.RequireProgram("python3")
	read := func() (wall, monotonic float64) {
		t.Helper()
		if _, err := fmt.Sscan(sb.Must(`python3 -c "import time; print(time.time(), time.monotonic())"`), &wall, &monotonic); err != nil {
			t.Fatal(err)
		}
		return wall, monotonic
	}
	wall, monotonic := read()
	for _, length := range []time.Duration{0, 10 * time.Millisecond, 300 * time.Millisecond, 2500 * time.Millisecond} {
		pause(t, sb)
		realTime(length)
		resume(t, sb)
		asked := float64(time.Now().UnixNano()) / 1e9
		w, m := read()
		answered := float64(time.Now().UnixNano()) / 1e9
		if w < asked-1 || w > answered+1 {
			t.Errorf("after %v the clock shows %v, the host's went from %v to %v", length, w, asked, answered)
		}
		if m < monotonic {
			t.Errorf("after %v the monotonic clock went back by %v s", length, monotonic-m)
		}
		if off := (w - wall) - (m - monotonic); off > 1 || off < -1 {
			t.Errorf("after %v the two clocks differ by %v s more than before", length, off)
		}
		wall, monotonic = w, m
	}
}

func TestATimeoutStandsStillWhilePausedAndGoesOnAfterwards(t *testing.T) {
	t.Parallel()
	t.Run("what would have timed out while paused does not", func(t *testing.T) {
		t.Parallel()
		sb := box(t)
		stream, tr := sb.Open(t.Context(), "sleep 3; echo over", fields{"timeout_seconds": 10})
		realTime(time.Second)
		pause(t, sb)
		realTime(11 * time.Second)
		resume(t, sb)
		rest, err := stream.ReadAll()
		if rest.Exit == nil && err == nil { // told that it ended: the process itself counts
			rest, err = sb.AttachStream(t.Context(), tr.ProcessID, 0).ReadAll()
		}
		if err != nil || rest.Exit == nil || !rest.Exit.OK || string(rest.Stdout) != "over\n" {
			t.Errorf("%q, %+v, %v", rest.Stdout, rest.Exit, err)
		}
	})
	t.Run("what is left of it counts after the resume", func(t *testing.T) {
		t.Parallel()
		sb := box(t)
		stream, tr := sb.Open(t.Context(), "while :; do sleep .1; done", fields{"timeout_seconds": 8})
		begun := time.Now()
		realTime(time.Second)
		pause(t, sb)
		realTime(2 * time.Second)
		resume(t, sb)
		rest, err := stream.ReadAll()
		if rest.Exit == nil && err == nil {
			rest, err = sb.AttachStream(t.Context(), tr.ProcessID, 0).ReadAll()
		}
		if err != nil || rest.Exit == nil || !rest.Exit.TimedOut || rest.Exit.Reason != "timeout" {
			t.Errorf("%+v, %v", rest.Exit, err)
		}
		if took := time.Since(begun); took < 9*time.Second {
			t.Errorf("8 s of timeout and 2 s of pause were over after %v", took)
		}
	})
}

func TestAutoResumeIsUpToTheSandbox(t *testing.T) {
	t.Parallel()
	uses := map[string]func(sb *testkit.Sandbox) testkit.Response{
		"an exec": func(sb *testkit.Sandbox) testkit.Response { return sb.Call("POST", "/exec", fields{"command": "true"}) },
		"a process": func(sb *testkit.Sandbox) testkit.Response {
			return sb.Call("POST", "/processes", fields{"command": "true"})
		},
		"a download": func(sb *testkit.Sandbox) testkit.Response {
			return sb.Call("GET", testkit.FilePath("/workspace/f"), nil)
		},
		"a list": func(sb *testkit.Sandbox) testkit.Response { return sb.Call("GET", "/files/list?path=/workspace", nil) },
		"an upload": func(sb *testkit.Sandbox) testkit.Response {
			return sb.Call("PUT", testkit.FilePath("/workspace/g"), []byte("x"))
		},
		"its processes": func(sb *testkit.Sandbox) testkit.Response { return sb.Call("GET", "/processes", nil) },
	}
	for name, use := range uses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, auto := range []bool{true, false} {
				sb := box(t, fields{"auto_resume": auto})
				sb.Put("/workspace/f", []byte("x"))
				pause(t, sb)
				resp := use(sb)
				if auto && resp.Status/100 != 2 || !auto && (resp.Status != 409 || resp.Problem().Reason != "paused") {
					t.Errorf("auto_resume %v: %v", auto, resp)
				}
				if now, want := sb.Refresh(), map[bool]string{true: "READY", false: "PAUSED"}[auto]; now.Status != want {
					t.Errorf("auto_resume %v: it is %s", auto, now.Status)
				}
			}
		})
	}
	t.Run("a keepalive resumes nothing", func(t *testing.T) {
		t.Parallel()
		sb := box(t, fields{"auto_resume": true})
		pause(t, sb)
		if resp := sb.Call("POST", "/keepalive", nil); resp.Status != 409 || resp.Problem().Reason != "paused" {
			t.Errorf("got %v", resp)
		}
	})
}

func TestWhatIsLeftOfTheTTLCanBeSetAtTheResumeAndWhilePaused(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"ttl_seconds": 100})
	left := func() time.Duration { t.Helper(); return time.Until(*sb.Refresh().ExpiresAt) }
	pause(t, sb)
	if at := sb.Refresh().ExpiresAt; at != nil {
		t.Errorf("it is paused and would end at %v", at)
	}
	resume(t, sb)
	if d := left(); d < 60*time.Second || d > 101*time.Second {
		t.Errorf("of 100 s %v are left", d)
	}
	pause(t, sb)
	if resp := sb.Call("POST", "/resume", fields{"ttl_seconds": 1000}); resp.Status != 200 {
		t.Fatal(resp)
	}
	if d := left(); d < 900*time.Second || d > 1001*time.Second {
		t.Errorf("resumed with 1000 s, %v are left", d)
	}
	pause(t, sb)
	if resp := sb.Call("POST", "/timeout", fields{"ttl_seconds": 500}); resp.Status != 200 {
		t.Fatal(resp)
	}
	resume(t, sb)
	if d := left(); d < 400*time.Second || d > 501*time.Second {
		t.Errorf("set to 500 s while paused, %v are left", d)
	}
	for _, ttl := range []any{0, -1, 1e18, "x"} {
		if resp := sb.Call("POST", "/resume", fields{"ttl_seconds": ttl}); resp.Status != 400 || !strings.Contains(resp.Problem().Field+resp.Problem().Detail, "ttl_seconds") {
			t.Errorf("a resume with ttl_seconds %v: %v", ttl, resp)
		}
	}
}

func TestL5ASocketThatIsOpenAcrossAPauseGoesOn(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := sb.Dial(ctx, "/exec")
	if err := w.Start(ctx, "cat"); err != nil {
		t.Fatal(err)
	}
	var tr testkit.Transcript
	echo := func(text string) {
		t.Helper()
		if err := w.Stdin(ctx, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Collect(ctx, &tr, func(tr *testkit.Transcript) bool { return strings.HasSuffix(string(tr.Stdout), text) }); err != nil {
			t.Fatalf("%q after %q: %v", tr.Stdout, text, err)
		}
	}
	echo("before\n")
	for range 3 {
		pause(t, sb)
		realTime(200 * time.Millisecond)
		resume(t, sb)
		echo("after\n")
	}
	if err := w.Send(ctx, fields{"type": "close_stdin"}); err != nil {
		t.Fatal(err)
	}
	if code, err := w.Collect(ctx, &tr, nil); tr.Exit == nil || !tr.Exit.OK {
		t.Errorf("it ended with %v, %v, %+v", code, err, tr.Exit)
	}
}
