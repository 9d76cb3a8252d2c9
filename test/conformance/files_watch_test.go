package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// fileWatch is an open watch of a test.
type fileWatch struct {
	t      *testing.T
	stream *testkit.EventStream
	seen   map[string]int // "type path" or "rename path to"
	lost   bool
	ended  bool
}

func watch(t *testing.T, sb *testkit.Sandbox, path string, recursive bool) *fileWatch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	q := url.Values{"path": {path}, "recursive": {fmt.Sprint(recursive)}}
	stream, resp, err := sb.OpenEvents(ctx, "GET", sb.Path("/files/watch?"+q.Encode()), nil)
	if err != nil || stream == nil {
		t.Fatalf("watch %s: %v %v", path, resp, err)
	}
	t.Cleanup(func() { stream.Close() })
	w := &fileWatch{t: t, stream: stream, seen: map[string]int{}}
	if ev, err := stream.Next(); err != nil || ev.Name != "ready" {
		t.Fatalf("the first event is %+v, %v", ev, err)
	}
	return w
}

// next reads an event into seen.
func (w *fileWatch) next() {
	w.t.Helper()
	ev, err := w.stream.Next()
	if err == io.EOF {
		w.ended = true
		return
	}
	if err != nil {
		w.t.Fatalf("the watch broke: %v; seen %v", err, w.seen)
	}
	switch ev.Name {
	case "overflow":
		w.lost = true
	case "change":
		var c struct{ Type, Path, To string }
		if err := json.Unmarshal(ev.Data, &c); err != nil {
			w.t.Fatal(err)
		}
		w.seen[strings.TrimSpace(c.Type+" "+c.Path+" "+c.To)]++
	default:
		w.t.Fatalf("event %+v", ev)
	}
}

// until reads events until all of these were seen, each once.
func (w *fileWatch) until(events ...string) {
	w.t.Helper()
	for _, e := range events {
		for w.seen[e] == 0 {
			if w.next(); w.ended {
				w.t.Fatalf("the watch ended before %q; seen %v", e, w.seen)
			}
		}
	}
}

func TestF14AWatchMissesNothingOfATreeThatMovesAsItGrows(t *testing.T) {
	t.Parallel()
	sb := box(t)
	w := watch(t, sb, "/workspace", true)
	sb.Must("mkdir -p x/y; echo>x/y/f; mv x z; echo>z/y/g")
	for w.seen["create /workspace/z/y/g"] == 0 {
		w.next()
	}
	moved := w.seen["create /workspace/x"] == 1 && w.seen["rename /workspace/x /workspace/z"] == 1
	if !moved || w.seen["create /workspace/x/y"]+w.seen["create /workspace/z/y"] == 0 || w.seen["create /workspace/x/y/f"]+w.seen["create /workspace/z/y/f"] == 0 {
		t.Errorf("seen %v", w.seen)
	}
	for e, n := range w.seen {
		if strings.HasPrefix(e, "create") && n > 1 {
			t.Errorf("%q was told %d times", e, n)
		}
	}
	sb.Must("chmod 600 z/y/g; mv z/y/g /tmp/g; mv /tmp/g z/back; rm -r z/y; printf more >>z/back")
	w.until("chmod /workspace/z/y/g", "remove /workspace/z/y/g", "create /workspace/z/back", "remove /workspace/z/y/f", "remove /workspace/z/y", "write /workspace/z/back")
}

func TestF14AFloodOfFilesIsToldWholeOrAsAnOverflow(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.RequireProgram("python3")
	w := watch(t, sb, "/workspace", true)
	const files = 20000
	sb.Must(fmt.Sprintf(`mkdir many && python3 -c 'for i in range(%d): open(f"many/{i}", "w").close()' && echo>last`, files))
	for !w.lost && (w.seen["create /workspace/last"] == 0) {
		w.next()
	}
	if w.lost {
		return
	}
	for i := range files {
		if n := w.seen[fmt.Sprintf("create /workspace/many/%d", i)]; n != 1 {
			t.Fatalf("file %d was told %d times, and no overflow", i, n)
		}
	}
}

func TestF14AReaderThatSleepsGetsAnOverflowAndCostsNoMemory(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.RequireProgram("python3")
	w := watch(t, sb, "/workspace", false)
	// What the sockets and queues between hold is far less than this.
	sb.Must(`python3 -c '
import os
for i in range(60000):
    os.close(os.open("f%d-%s" % (i % 50, "n" * 200), os.O_CREAT | os.O_WRONLY)); os.unlink("f%d-%s" % (i % 50, "n" * 200))'`)
	for !w.lost {
		w.next()
	}
	sb.Must("echo>after")
	w.until("create /workspace/after")
}

func TestAWatchEndsWithItsDirectory(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("mkdir removed moved; echo>removed/f")
	for path, command := range map[string]string{"/workspace/removed": "rm -r removed", "/workspace/moved": "mv moved elsewhere"} {
		w := watch(t, sb, path, true)
		sb.Must(command)
		for !w.ended {
			w.next()
		}
		if w.seen["remove "+path] != 1 {
			t.Errorf("%s: seen %v", command, w.seen)
		}
	}
}

func TestAWatchOfOneFileSeesIt(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("echo>f; echo>other")
	w := watch(t, sb, "/workspace/f", false)
	sb.Must("echo>>other; echo>>f; chmod 600 f; mv f g; mv other f; rm f")
	w.until("write /workspace/f", "chmod /workspace/f", "rename /workspace/f /workspace/g", "create /workspace/f", "remove /workspace/f")
	if w.seen["write /workspace/other"] > 0 {
		t.Errorf("seen %v", w.seen)
	}
}

func TestAnUploadIsOneEventForAWatch(t *testing.T) {
	t.Parallel()
	sb := box(t)
	w := watch(t, sb, "/workspace", true)
	sb.Put("/workspace/f", noise(1<<20))
	putArchive(t, sb, "/workspace", tarOf(t, file("d/e/g", "x")))
	sb.Must("echo>last")
	w.until("create /workspace/last")
	for _, e := range []string{"create /workspace/f", "create /workspace/d", "create /workspace/d/e", "create /workspace/d/e/g"} {
		if w.seen[e] != 1 {
			t.Errorf("%q was told %d times", e, w.seen[e])
		}
	}
	for e := range w.seen {
		if strings.Contains(e, ".cay-") {
			t.Errorf("told %q", e)
		}
	}
}

func TestF8NamesOfEveryKindAreWatchedAndFound(t *testing.T) {
	t.Parallel()
	sb := box(t)
	w := watch(t, sb, "/workspace", true)
	names := []string{"a b", "ü日本", "new\nline", "-rf", ".env", "%2e%2e", "a?b#c", strings.Repeat("n", 255), "caf\u00e9", "cafe\u0301", "[x]", "*"}
	for _, name := range names {
		sb.Put("/workspace/"+name, []byte("needle"))
		w.until("create /workspace/" + name)
	}
	found := search(t, sb, url.Values{"path": {"/workspace"}, "contains": {"^needle$"}, "limit": {"5"}})
	if len(found) != len(names) {
		t.Errorf("found %d of %d", len(found), len(names))
	}
	for pattern, want := range map[string]string{`\[x\]`: "[x]", `\*`: "*", "a[?]b#c": "a?b#c", "caf\u00e9": "caf\u00e9", "ü*": "ü日本", "new?line": "new\nline"} {
		if got := search(t, sb, url.Values{"path": {"/workspace"}, "pattern": {pattern}}); len(got) != 1 || got[0].Name != want {
			t.Errorf("%q finds %+v", pattern, got)
		}
	}
}

func TestWatchesThatEndLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for round := range 3 {
		var streams []*testkit.EventStream
		open := func() error {
			stream, resp, err := sb.OpenEvents(t.Context(), "GET", sb.Path("/files/watch?path=/workspace"), nil)
			if err != nil || stream == nil {
				return fmt.Errorf("watch %d of round %d: %v %v", len(streams), round, resp, err)
			}
			streams = append(streams, stream)
			if ev, err := stream.Next(); err != nil || ev.Name != "ready" {
				t.Fatalf("%+v %v", ev, err)
			}
			return nil
		}
		for range 64 {
			// Those of the round before end a moment after their clients have gone.
			testkit.Eventually(t, time.Minute, "there is room for a watch", open)
		}
		if resp := sb.Call("GET", "/files/watch?path=/workspace", nil); resp.Status != 409 {
			t.Errorf("one more: %v", resp)
		}
		// Other files are within reach meanwhile.
		sb.Put("/workspace/f", []byte("x"))
		for _, s := range streams {
			s.Close()
		}
	}
	testkit.Eventually(t, time.Minute, "the agent holds no descriptor of them", func() error {
		if n := strings.TrimSpace(sb.Must("ls -l /proc/1/fd | grep -c inotify || true", fields{"user": "root"})); n != "0" {
			return fmt.Errorf("%s are left", n)
		}
		return nil
	})
}

func TestAWatchOfNothingIsAProblem(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("install -d -m 700 /tmp/closed", fields{"user": "root"})
	for path, status := range map[string]int{"/workspace/no": 404, "/tmp/closed": 403, "relative": 400} {
		if resp := sb.Call("GET", "/files/watch?"+url.Values{"path": {path}}.Encode(), nil); resp.Status != status {
			t.Errorf("%s: %v", path, resp)
		}
	}
}
