package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

func TestF1UploadsOfEverySizeArriveWhole(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sizes := []int{0, 1, 17 << 10, 19 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, 100 << 20}
	for _, size := range sizes {
		t.Run(fmt.Sprintf("%d bytes", size), func(t *testing.T) {
			sb := sb.In(t)
			data := noise(size)
			sb.Put("/workspace/f", data)
			if got := sb.Must("sha256sum < f"); !strings.HasPrefix(got, testkit.Digest(data)) {
				t.Errorf("inside: digest %q", got)
			}
			if f := sb.Stat("/workspace/f"); f.Size != int64(size) || f.Type != "file" {
				t.Errorf("stat %+v", f)
			}
			if got := sb.Get("/workspace/f"); !bytes.Equal(got, data) {
				t.Errorf("download: %d bytes with another digest", len(got))
			}
		})
	}
}

func TestF1AShortBodyWritesNothing(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Put("/workspace/f", []byte("old"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body, feed := io.Pipe()
	req, err := sb.Request(ctx, "PUT", sb.Path(testkit.FilePath("/workspace/f")), body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = 1 << 20
	done := make(chan error, 1)
	go func() {
		resp, err := sb.HTTP.Do(req)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode/100 == 2 {
				err = nil
			} else {
				err = fmt.Errorf("status %d", resp.StatusCode)
			}
		}
		done <- err
	}()
	if _, err := feed.Write(make([]byte, 256<<10)); err != nil {
		t.Fatal(err)
	}
	feed.CloseWithError(io.ErrUnexpectedEOF)
	if err := <-done; err == nil {
		t.Error("a short upload succeeded")
	}
	if got := sb.Get("/workspace/f"); string(got) != "old" {
		t.Errorf("the file holds %d bytes", len(got))
	}
	testkit.Eventually(t, time.Minute, "nothing else is left of it", func() error {
		if got := sb.Must("ls -A /workspace"); got != "f\n" {
			return fmt.Errorf("the directory holds %q", got)
		}
		return nil
	})
}

func TestF3ParallelUploadsIntoANewDeepDirectoryAllArrive(t *testing.T) {
	t.Parallel()
	sb := box(t)
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			resp, err := sb.Do(t.Context(), "PUT", sb.Path(testkit.FilePath(fmt.Sprintf("/workspace/w/a/b/c/%d", n))), fmt.Appendf(nil, "file %d", n))
			if err != nil || resp.Status/100 != 2 {
				t.Errorf("upload %d: %v %v", n, resp, err)
			}
		})
	}
	wg.Wait()
	if got := len(sb.List("/workspace/w/a/b/c")); got != 50 {
		t.Errorf("%d files are listed", got)
	}
	for n := range 50 {
		if got := sb.Get(fmt.Sprintf("/workspace/w/a/b/c/%d", n)); string(got) != fmt.Sprintf("file %d", n) {
			t.Errorf("file %d holds %q", n, got)
		}
	}
}

func TestF4EveryByteAndNoByteAreKept(t *testing.T) {
	t.Parallel()
	sb := box(t)
	table := make([]byte, 256*4096)
	for i := range table {
		table[i] = byte(i)
	}
	for name, data := range map[string][]byte{"table": table, "empty": {}} {
		sb.Put("/workspace/"+name, data)
		if got := sb.Must("sha256sum < " + name); !strings.HasPrefix(got, testkit.Digest(data)) {
			t.Errorf("%s inside: %q", name, got)
		}
		if got := sb.Get("/workspace/" + name); !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes came back", name, len(got))
		}
	}
}

func TestF7ALargeFileAndARangeCostFlatMemory(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}})
	sb := inst.Create(t)
	size := testkit.Scaled(int64(256<<20), int64(2<<30))
	sb.Put("/workspace/warm", noise(8<<20))
	sb.Get("/workspace/warm")
	var stops []func() (int64, int64)
	for _, role := range []testkit.Role{testkit.RoleServer, testkit.RoleNode} {
		pid, err := inst.PID(role)
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, testkit.WatchRSS(pid))
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	up := sha256.New()
	req, err := sb.Request(ctx, "PUT", sb.Path(testkit.FilePath("/workspace/big")), io.TeeReader(io.LimitReader(newPattern(), size), up))
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = size
	resp, err := sb.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		t.Fatalf("upload: status %d", resp.StatusCode)
	}
	digest := hex.EncodeToString(up.Sum(nil))

	req, err = sb.Request(ctx, "GET", sb.Path(testkit.FilePath("/workspace/big")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err = sb.HTTP.Do(req); err != nil {
		t.Fatal(err)
	}
	down := sha256.New()
	n, err := io.Copy(down, resp.Body)
	resp.Body.Close()
	if err != nil || n != size || hex.EncodeToString(down.Sum(nil)) != digest {
		t.Errorf("download: %d bytes of %d, another digest, %v", n, size, err)
	}
	for i, stop := range stops {
		before, peak := stop()
		t.Logf("%s: %d MiB before, at most %d MiB", []string{"server", "node"}[i], before>>20, peak>>20)
		if peak-before > 64<<20 {
			t.Errorf("%s grew by %d MiB", []string{"server", "node"}[i], (peak-before)>>20)
		}
	}
	part := sb.Call("GET", testkit.FilePath("/workspace/big"), nil, "Range", "bytes=1000000-1000015")
	want := make([]byte, 1000016)
	if _, err := io.ReadFull(newPattern(), want); err != nil {
		t.Fatal(err)
	}
	if part.Status != 206 || !bytes.Equal(part.Body, want[1000000:]) || part.Header.Get("Content-Range") != fmt.Sprintf("bytes 1000000-1000015/%d", size) {
		t.Errorf("range: %d, %x, %q", part.Status, part.Body, part.Header.Get("Content-Range"))
	}
}

// pattern is an endless text without a short period.
type pattern struct{ n uint32 }

func newPattern() io.Reader { return &pattern{} }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte((p.n * 2654435761) >> 24)
		p.n++
	}
	return len(b), nil
}

func TestF7RangesFollowRFC9110(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Put("/workspace/f", []byte("0123456789"))
	for header, want := range map[string]struct {
		status int
		body   string
	}{
		"bytes=0-0": {206, "0"}, "bytes=-3": {206, "789"}, "bytes=7-": {206, "789"}, "bytes=2-100": {206, "23456789"},
		"bytes=10-": {416, ""}, "bytes=20-30": {416, ""}, "lines=1-2": {200, "0123456789"},
	} {
		got := sb.Call("GET", testkit.FilePath("/workspace/f"), nil, "Range", header)
		if got.Status != want.status || want.status != 416 && string(got.Body) != want.body {
			t.Errorf("%s: %v, want %d %q", header, got, want.status, want.body)
		}
		if want.status == 416 && got.Problem().Reason != "range_not_satisfiable" {
			t.Errorf("%s: reason %q", header, got.Problem().Reason)
		}
	}
	head := sb.Call("HEAD", testkit.FilePath("/workspace/f"), nil)
	if head.Status != 200 || head.Header.Get("Content-Length") != "10" || head.Header.Get("ETag") == "" || len(head.Body) != 0 {
		t.Errorf("HEAD: %v %v", head, head.Header)
	}
	if disposition := head.Header.Get("Content-Disposition"); !strings.HasPrefix(disposition, "attachment") {
		t.Errorf("Content-Disposition %q", disposition)
	}
	if head.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Error("no nosniff")
	}
}

func TestF7ConditionsKeepWritersApart(t *testing.T) {
	t.Parallel()
	sb := box(t)
	path := testkit.FilePath("/workspace/f")
	if got := sb.Call("PUT", path, []byte("one"), "If-None-Match", "*"); got.Status/100 != 2 {
		t.Fatalf("first: %v", got)
	}
	if got := sb.Call("PUT", path, []byte("two"), "If-None-Match", "*"); got.Status != 412 {
		t.Errorf("a second if-none-match: %v", got)
	}
	etag := sb.Call("HEAD", path, nil).Header.Get("ETag")
	if got := sb.Call("PUT", path, []byte("three"), "If-Match", etag); got.Status/100 != 2 {
		t.Errorf("if-match with the right tag: %v", got)
	}
	if got := sb.Call("PUT", path, []byte("four"), "If-Match", etag); got.Status != 412 {
		t.Errorf("if-match with the old tag: %v", got)
	}
	if got := sb.Get("/workspace/f"); string(got) != "three" {
		t.Errorf("the file holds %q", got)
	}
}

func TestF8NamesOfEveryKindMakeTheRoundTrip(t *testing.T) {
	t.Parallel()
	sb := box(t)
	names := []string{
		"a b", "ü日本", "new\nline", "-rf", ".env", "%2e%2e", "a?b#c", strings.Repeat("n", 255), "caf\u00e9", "cafe\u0301",
		"tab\there", `back\slash`, `"quotes'`, "+plus", "semi;colon", "&amp", "*", "~", "...", " lead", "trail ", "a\rb", "\x01", "CON", "日本😀",
	}
	for i, name := range names {
		content := fmt.Sprintf("content %d", i)
		path := "/workspace/names/" + name
		sb.Put(path, []byte(content))
		if got := sb.Get(path); string(got) != content {
			t.Errorf("%q holds %q", name, got)
		}
		if f := sb.Stat(path); f.Name != name || f.Size != int64(len(content)) {
			t.Errorf("stat %q: %+v", name, f)
		}
	}
	var listed []string
	for _, f := range sb.List("/workspace/names") {
		listed = append(listed, f.Name)
	}
	want := slices.Clone(names)
	slices.Sort(want)
	slices.Sort(listed)
	if !slices.Equal(listed, want) {
		t.Errorf("listed %q\nwant   %q", listed, want)
	}
	if inside := sb.Must(`find /workspace/names -type f | wc -l; ls -1 /workspace/names/-rf`); !strings.HasSuffix(inside, "/-rf\n") {
		t.Errorf("inside: %q", inside)
	}
	for _, name := range names {
		if resp := sb.Call("DELETE", testkit.FilePath("/workspace/names/"+name), nil); resp.Status/100 != 2 {
			t.Errorf("delete %q: %v", name, resp)
		}
	}
	if left := sb.List("/workspace/names"); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

func TestF8NamesThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for _, path := range []string{"", "relative", "/workspace/a\x00b", "/workspace/" + strings.Repeat("n", 256), "/workspace/" + strings.Repeat("d/", 3000)} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			var body any
			if method == "PUT" {
				body = []byte("x")
			}
			if resp := sb.Call(method, testkit.FilePath(path), body); resp.Status/100 != 4 {
				t.Errorf("%s %.40q: %v", method, path, resp)
			}
		}
	}
}

func TestF9SymlinksNeverLeaveTheSandbox(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	sb := box(t)
	hostname, err := os.ReadFile("/etc/hostname")
	if err != nil {
		hostname = []byte("no such file on this host")
	}
	canary, err := os.CreateTemp("/tmp", "cay-canary")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(canary.Name())
	if _, err := canary.WriteString("the host's own"); err != nil {
		t.Fatal(err)
	}
	canary.Close()

	sb.Must(`ln -s /etc/hostname l; ln -s /etc d; ln -s /root/new dangling; ln -s ` + canary.Name() + ` canary; ln -s ../../../../../.. up; ln -s loop loop; ln -s /proc/1/root/tmp proc`)
	if resp := sb.Call("GET", testkit.FilePath("/workspace/l"), nil); resp.Status == 200 && bytes.Equal(resp.Body, hostname) {
		t.Errorf("l shows the host's /etc/hostname")
	}
	for _, f := range sb.List("/workspace/d") {
		if f.Name == "shadow" && f.Size > 0 {
			if info, err := os.Stat("/etc/shadow"); err == nil && info.Size() == f.Size {
				t.Errorf("d lists the host's /etc/shadow")
			}
		}
	}
	for _, path := range []string{"canary", "up" + canary.Name(), "proc/" + strings.TrimPrefix(canary.Name(), "/tmp/"), "../../../../.." + canary.Name()} {
		for _, user := range []string{"sandbox", "root"} {
			if resp := sb.Call("GET", testkit.FilePath("/workspace/"+path, "user", user), nil); strings.Contains(string(resp.Body), "the host's own") || resp.Status >= 500 {
				t.Errorf("%s as %s: %v", path, user, resp)
			}
			if resp := sb.Call("PUT", testkit.FilePath("/workspace/"+path, "user", user), []byte("overwritten")); resp.Status >= 500 {
				t.Errorf("write %s as %s: %v", path, user, resp)
			}
		}
	}
	for path, data := range map[string]string{"dangling": "x", "d/x": "x", "loop": "x"} {
		if resp := sb.Call("PUT", testkit.FilePath("/workspace/"+path), []byte(data)); resp.Status >= 500 {
			t.Errorf("write %s: %v", path, resp)
		}
	}
	if got, err := os.ReadFile(canary.Name()); err != nil || string(got) != "the host's own" {
		t.Errorf("the host's file is now %q, %v", got, err)
	}
	for _, path := range []string{"/root/new", "/etc/x"} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s appeared on the host", path)
		}
	}
}

func TestF9ADirectorySwappedWithASymlinkLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("mkdir real && echo inside > real/passwd")
	swapper, _ := sb.Open(t.Context(), `while :; do rm -f x; ln -s /etc x; rm -f x; mkdir x; echo inside > x/passwd; rm -r x; done`, fields{"kill_on_disconnect": true})
	defer swapper.Close()
	host, err := os.ReadFile("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	for range 150 {
		resp := sb.Call("GET", testkit.FilePath("/workspace/x/passwd"), nil)
		if resp.Status == 200 && bytes.Equal(resp.Body, host) {
			t.Fatal("the host's /etc/passwd came out")
		}
		if resp.Status >= 500 {
			t.Fatalf("read: %v", resp)
		}
		if resp = sb.Call("PUT", testkit.FilePath("/workspace/x/cay-canary"), []byte("x")); resp.Status >= 500 {
			t.Fatalf("write: %v", resp)
		}
	}
	if _, err := os.Lstat("/etc/cay-canary"); err == nil {
		t.Error("a file appeared in the host's /etc")
	}
}

func TestF11ModeAndOwnerAreTheAskedOnes(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Put("/workspace/run", []byte("#!/bin/sh\necho ran\n"), "mode", "0755")
	sb.MustSay("sandbox 755\n", "stat -c '%U %a' run")
	sb.MustSay("ran\n", "./run")
	sb.Put("/workspace/run", []byte("#!/bin/sh\necho again\n"))
	sb.MustSay("sandbox 755\nagain\n", "stat -c '%U %a' run; ./run")
	sb.Put("/workspace/plain", []byte("x"))
	sb.MustSay("sandbox 644\n", "stat -c '%U %a' plain")
	sb.Put("/workspace/deep/er/f", []byte("x"))
	sb.MustSay("sandbox\nsandbox\n", "stat -c %U deep deep/er")
	if f := sb.Stat("/workspace/run"); f.Mode != "0755" || f.User != "sandbox" || f.UID != 2000 || f.GID != 2000 {
		t.Errorf("stat %+v", f)
	}
	for _, mode := range []string{"rwx", "9999", "-1", "0x1ff", "99999999999999999999"} {
		if resp := sb.Call("PUT", testkit.FilePath("/workspace/m", "mode", mode), []byte("x")); resp.Status != 400 && resp.Status != 422 {
			t.Errorf("mode %q: %v", mode, resp)
		}
	}
}

func TestF11AUserMayNotWriteWhereItMayNot(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("install -d -m 700 /tmp/roots && echo secret > /tmp/roots/f", fields{"user": "root"})
	if resp := sb.Call("GET", testkit.FilePath("/tmp/roots/f"), nil); resp.Status != 403 && resp.Status != 404 {
		t.Errorf("read: %v", resp)
	}
	for _, path := range []string{"/tmp/roots/g", "/usr/bin/cay-canary", "/cay-canary", "/etc/cay-canary"} {
		if resp := sb.Call("PUT", testkit.FilePath(path), []byte("x")); resp.Status/100 != 4 {
			t.Errorf("write %s: %v", path, resp)
		}
	}
}

func TestF12WhatIsMissingOrInTheWayIsATypedError(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("mkdir dir full && touch file full/f && mkfifo fifo && ln -s nowhere link")
	q := func(path string) string { return url.Values{"path": {path}}.Encode() }
	for name, c := range map[string]struct {
		method, rest string
		body         any
		status       int
		reason       string
	}{
		"download a missing file":    {"GET", "/files?" + q("/workspace/no"), nil, 404, "not_found"},
		"stat a missing file":        {"GET", "/files/stat?" + q("/workspace/no"), nil, 404, "not_found"},
		"list a missing directory":   {"GET", "/files/list?" + q("/workspace/no"), nil, 404, "not_found"},
		"delete a missing file":      {"DELETE", "/files?" + q("/workspace/no"), nil, 404, "not_found"},
		"move a missing file":        {"POST", "/files/move", fields{"from": "/workspace/no", "to": "/workspace/x"}, 404, "not_found"},
		"make an existing directory": {"POST", "/files/mkdir", fields{"path": "/workspace/dir"}, 409, "already_exists"},
		"make one over a file":       {"POST", "/files/mkdir", fields{"path": "/workspace/file"}, 409, "already_exists"},
		"make one without parents":   {"POST", "/files/mkdir", fields{"path": "/workspace/a/b/c", "parents": false}, 404, "not_found"},
		"move over a file":           {"POST", "/files/move", fields{"from": "/workspace/full/f", "to": "/workspace/file"}, 409, "already_exists"},
		"download a directory":       {"GET", "/files?" + q("/workspace/dir"), nil, 422, "unprocessable"},
		"download a FIFO":            {"GET", "/files?" + q("/workspace/fifo"), nil, 422, "unprocessable"},
		"download a device":          {"GET", "/files?" + q("/dev/zero"), nil, 422, "unprocessable"},
		"download a dangling link":   {"GET", "/files?" + q("/workspace/link"), nil, 404, "not_found"},
		"upload over a directory":    {"PUT", "/files?" + q("/workspace/dir"), []byte("x"), 422, "unprocessable"},
		"upload below a file":        {"PUT", "/files?" + q("/workspace/file/x"), []byte("x"), 422, "unprocessable"},
		"list a file":                {"GET", "/files/list?" + q("/workspace/file"), nil, 422, "unprocessable"},
		"delete a full directory":    {"DELETE", "/files?" + q("/workspace/full"), nil, 409, "conflict"},
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			resp := sb.In(t).Call(c.method, c.rest, c.body)
			if resp.Status != c.status || resp.Problem().Reason != c.reason {
				t.Errorf("%v, want %d %s", resp, c.status, c.reason)
			}
			if took := time.Since(begun); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestF12ProceduralFilesAreReadable(t *testing.T) {
	t.Parallel()
	sb := box(t)
	// Their size says 0.
	if got := sb.Get("/proc/self/status"); !bytes.HasPrefix(got, []byte("Name:")) {
		t.Errorf("/proc/self/status: %q", got)
	}
}

func TestMovesAndDirectoriesDoWhatTheySay(t *testing.T) {
	t.Parallel()
	sb := box(t)
	ok := func(resp testkit.Response) {
		t.Helper()
		if resp.Status/100 != 2 {
			t.Fatalf("%v", resp)
		}
	}
	ok(sb.Call("POST", "/files/mkdir", fields{"path": "/workspace/p/q/r", "parents": true, "mode": "0750"}))
	sb.MustSay("sandbox 750\n", "stat -c '%U %a' p/q/r")
	sb.Put("/workspace/p/f", []byte("moved"))
	ok(sb.Call("POST", "/files/move", fields{"from": "/workspace/p/f", "to": "/workspace/g"}))
	sb.MustSay("moved", "test ! -e p/f && cat g")
	sb.Put("/workspace/h", []byte("old"))
	ok(sb.Call("POST", "/files/move", fields{"from": "/workspace/g", "to": "/workspace/h", "overwrite": true}))
	sb.MustSay("moved", "cat h")
	ok(sb.Call("POST", "/files/move", fields{"from": "/workspace/p", "to": "/tmp/p"})) // perhaps another mount
	sb.MustSay("r\n", "test ! -e p && ls /tmp/p/q")
	ok(sb.Call("DELETE", "/files?"+url.Values{"path": {"/tmp/p"}, "recursive": {"true"}}.Encode(), nil))
	sb.MustSay("gone\n", "test -e /tmp/p || echo gone")
}

func TestAnUnknownMethodIsNotAllowed(t *testing.T) {
	t.Parallel()
	sb := box(t)
	if resp := sb.Call(http.MethodPatch, testkit.FilePath("/workspace/f"), fields{}); resp.Status != 405 || resp.Problem().Reason != "method_not_allowed" {
		t.Errorf("%v", resp)
	}
}
