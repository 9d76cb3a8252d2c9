package conformance

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

func TestASessionsFilesAreReachedWithNoSandboxRunning(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	s := inst.Session(t)
	data := bytes.Repeat([]byte("0123456789"), 300_000)
	s.Put("a/b", data, "mode", "0750")
	if now := s.Refresh(); len(now.UsedBy) != 0 {
		t.Errorf("looking at files counts as use by %v", now.UsedBy)
	}
	var etag string
	for _, path := range []string{"a/b", "/a/b", "/session/a/b", "a/./x/../b", "session/../a/b"} {
		resp := s.Call("GET", testkit.SessionFile(path), nil)
		if resp.Status != 200 || !bytes.Equal(resp.Body, data) {
			t.Errorf("%s: %v", path, resp)
		}
		etag = resp.Header.Get("ETag")
	}
	if resp := s.Call("GET", testkit.SessionFile("a/b"), nil, "Range", "bytes=5-7"); resp.Status != 206 || string(resp.Body) != "567" || etag == "" || resp.Header.Get("ETag") != etag {
		t.Errorf("a range: %v, ETag %q and %q", resp, resp.Header.Get("ETag"), etag)
	}
	if resp := s.Call("GET", testkit.SessionFile("a/b"), nil, "Range", "bytes=9999999-"); resp.Status != 416 {
		t.Errorf("a range beyond it: %v", resp)
	}
	if resp := s.Call("HEAD", testkit.SessionFile("a/b"), nil); resp.Status != 200 || resp.Header.Get("Content-Length") != fmt.Sprint(len(data)) || resp.Header.Get("ETag") != etag {
		t.Errorf("HEAD: %v %v", resp, resp.Header)
	}
	if resp := s.Call("PUT", testkit.SessionFile("a/b"), []byte("new"), "If-Match", `"other"`); resp.Status != 412 {
		t.Errorf("If-Match of another: %v", resp)
	}
	if resp := s.Call("PUT", testkit.SessionFile("a/b"), []byte("new"), "If-Match", etag); resp.Status/100 != 2 {
		t.Errorf("If-Match: %v", resp)
	}
	list := s.List("/")
	if len(list) != 1 || list[0].Path != "/session/a" || list[0].Type != "directory" {
		t.Errorf("the top: %+v", list)
	}
	if list := s.List("a"); len(list) != 1 || list[0].Path != "/session/a/b" || list[0].Size != 3 || list[0].Mode != "0750" {
		t.Errorf("below: %+v", list)
	}
	// A job finds what the explorer wrote as its own.
	s.MustSay("new", "sh", `cat a/b; echo more >> a/b; echo x > a/c`)
	if got := string(s.Get("a/b")); got != "newmore\n" {
		t.Errorf("what a job wrote: %q", got)
	}
	for path, want := range map[string]int{"a": 409, "none": 404} {
		if resp := s.Call("DELETE", testkit.SessionFile(path), nil); resp.Status != want {
			t.Errorf("delete %s: %v, want %d", path, resp, want)
		}
	}
	if resp := s.Call("DELETE", testkit.SessionFile("a", "recursive", "true"), nil); resp.Status != 204 {
		t.Errorf("delete a directory: %v", resp)
	}
	if left := s.List("/"); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
	for _, path := range []string{"", "/", "/session", ".."} {
		if resp := s.Call("DELETE", testkit.SessionFile(path, "recursive", "true"), nil); resp.Status/100 != 4 {
			t.Errorf("delete %q: %v", path, resp)
		}
	}
}

func TestF8NamesOfEveryKindMakeTheRoundTripInASession(t *testing.T) {
	t.Parallel()
	s := testkit.Server(t).Session(t)
	names := []string{
		"a b", "ü日本", "new\nline", "-rf", ".env", "%2e%2e", "a?b#c", strings.Repeat("n", 255), "caf\u00e9", "cafe\u0301",
		"tab\there", `back\slash`, `"quotes'`, "+plus", "semi;colon", "&amp", "*", "~", "...", " lead", "trail ", "\x01", "日本😀",
	}
	for i, name := range names {
		s.Put("names/"+name, fmt.Appendf(nil, "content %d", i))
		if got := string(s.Get("names/" + name)); got != fmt.Sprintf("content %d", i) {
			t.Errorf("%q holds %q", name, got)
		}
	}
	var listed []string
	for _, f := range s.List("names") {
		listed = append(listed, f.Name)
		if f.Path != "/session/names/"+f.Name {
			t.Errorf("%q is at %q", f.Name, f.Path)
		}
	}
	want := slices.Sorted(slices.Values(names))
	if slices.Sort(listed); !slices.Equal(listed, want) {
		t.Errorf("listed %q\nwant   %q", listed, want)
	}
	for _, path := range []string{"a\x00b", strings.Repeat("n", 256), strings.Repeat("d/", 3000)} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			if resp := s.Call(method, testkit.SessionFile(path), []byte("x")); resp.Status/100 != 4 {
				t.Errorf("%s %.40q: %v", method, path, resp)
			}
		}
	}
}

func TestF9SymlinksInASessionLeadNowhereElse(t *testing.T) {
	t.Parallel()
	s := testkit.Server(t).Session(t)
	canary, err := os.CreateTemp("/tmp", "cay-canary")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(canary.Name())
	if _, err := canary.WriteString("the host's own"); err != nil {
		t.Fatal(err)
	}
	if err := canary.Chmod(0o666); err != nil {
		t.Fatal(err)
	}
	canary.Close()
	s.MustSay("", "sh", `ln -s /etc/hostname l; ln -s /etc d; ln -s /root/new dangling; ln -s `+canary.Name()+` canary; ln -s ../../../../../../../.. up; ln -s loop loop; ln -s /proc/1/root/tmp proc; ln -s /proc/self/root root`)
	for _, path := range []string{"canary", "up" + canary.Name(), "root" + canary.Name(), "proc/" + strings.TrimPrefix(canary.Name(), "/tmp/"), "../../.." + canary.Name(), "/session/../.." + canary.Name(), canary.Name()} {
		for _, call := range []testkit.Response{
			s.Call("GET", testkit.SessionFile(path), nil), s.Call("PUT", testkit.SessionFile(path), []byte("overwritten")), s.Call("DELETE", testkit.SessionFile(path), nil),
		} {
			if strings.Contains(string(call.Body), "the host's own") || call.Status >= 500 {
				t.Errorf("%s: %v", path, call)
			}
		}
	}
	for _, path := range []string{"l", "d/x", "dangling", "loop"} {
		if resp := s.Call("PUT", testkit.SessionFile(path), []byte("x")); resp.Status >= 500 {
			t.Errorf("write %s: %v", path, resp)
		}
	}
	if got, err := os.ReadFile(canary.Name()); err != nil || string(got) != "the host's own" {
		t.Errorf("the host's file is now %q, %v", got, err)
	}
	if _, err := os.Lstat("/etc/x"); err == nil {
		t.Error("a file appeared in the host's /etc")
	}
}

func TestASessionIsExportedAndImportedAsItIs(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	from, to := inst.Session(t), inst.Session(t)
	from.MustSay("", "python", `
import os
os.makedirs('/session/d/empty'); os.chmod('/session/d', 0o711)
open('/session/d/ü\n', 'wb').write(bytes(range(256)) * 4000)
open('/session/run', 'w').write('#!/bin/sh\necho ran\n'); os.chmod('/session/run', 0o755)
os.symlink('run', '/session/l')
for i in range(300): open(f'/session/d/{i}', 'w').write(str(i))
`)
	for _, format := range []string{"tar", "tar.gz", "tar.zst"} {
		archive := from.Call("GET", "/archive?format="+format, nil)
		if archive.Status != 200 {
			t.Fatalf("export as %s: %v", format, archive)
		}
		if resp := to.Call("PUT", "/archive", archive.Body); resp.Status/100 != 2 {
			t.Fatalf("import of %s: %v", format, resp)
		}
		if format == "tar" {
			names := 0
			for r := tar.NewReader(bytes.NewReader(archive.Body)); ; names++ {
				if _, err := r.Next(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if names < 304 {
				t.Errorf("the archive has %d entries", names)
			}
		}
		const digest = `cd /session && ./l && find . -path ./lost+found -prune -o -printf '%p %y %m %s %l\n' | sort | sed 's/^\(.* d [0-9]*\) .*/\1/' | sha256sum && cat d/* 2>/dev/null | sha256sum`
		a, b := from.Run("bash", digest), to.Run("bash", digest)
		if a.Status != "success" || !strings.HasPrefix(a.Stdout, "ran\n") || a.Stdout != b.Stdout {
			t.Errorf("%s: %v\n%v", format, a, b)
		}
		to.MustSay("", "sh", "rm -rf /session/*")
	}
	for name, bad := range map[string]entry{"above": file("../x", "y"), "absolute": file("/etc/x", "y"), "through a link": symlink("e", "/etc")} {
		entries := []entry{bad}
		if name == "through a link" {
			entries = append(entries, file("e/x", "y"))
		}
		if resp := to.Call("PUT", "/archive", tarOf(t, append([]entry{file("good", "1")}, entries...)...)); resp.Status != 422 {
			t.Errorf("%s: %v", name, resp)
		}
	}
	if left := to.List("/"); len(left) != 0 {
		t.Errorf("a refused archive left %+v", left)
	}
}

func TestUploadsToAFullSessionFailAndLeaveNothing(t *testing.T) {
	t.Parallel()
	s := testkit.Server(t).Session(t, fields{"disk_gb": 0.125})
	s.Put("kept", []byte("kept"))
	if resp := s.Call("PUT", testkit.SessionFile("big"), make([]byte, 140<<20)); resp.Status != 507 || resp.Problem().Reason != "disk_full" {
		t.Errorf("more than fits: %v", resp)
	}
	if list := s.List("/"); len(list) != 1 || string(s.Get("kept")) != "kept" {
		t.Errorf("left: %+v", list)
	}
	s.Put("fits", make([]byte, 50<<20))
	if resp := s.Call("GET", "/files?"+url.Values{"path": {"kept"}}.Encode(), nil); resp.Status != 422 {
		t.Errorf("a list of a file: %v", resp)
	}
}
