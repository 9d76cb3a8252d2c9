package agent_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

func (n *node) stat(path string) *guestv1.ToNode {
	return n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Stat{Stat: &guestv1.Stat{Path: path}}})
}

func (n *node) list(l *guestv1.List) *guestv1.ToNode {
	return n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_List{List: l}})
}

func (n *node) write1(t *testing.T, path, content string) *guestv1.FileInfo {
	t.Helper()
	h := n.upload(&guestv1.WriteFile{Path: path}, strings.NewReader(content))
	if h.Problem != nil {
		t.Fatalf("write %s: %v", path, h.Problem)
	}
	return h.File
}

func (n *node) read1(path string) (string, *guestv1.Problem) {
	var b bytes.Buffer
	h, complete := n.download(&guestv1.ReadFile{Path: path, Length: -1}, &b)
	if h.Problem == nil && !complete {
		return "", &guestv1.Problem{Reason: "cut"}
	}
	return b.String(), h.Problem
}

func TestFilesOfAllSizesComeBackAsTheyWere(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		dir := n.sh("pwd")
		for _, size := range []int{0, 1, 17_000, 65536, 1 << 20, 30 << 20} {
			content := make([]byte, size)
			for i := 0; i < size; i += 61 {
				content[i] = byte(rand.Uint32())
			}
			path := fmt.Sprintf("%s/a/b/f%d", dir, size)
			info := n.upload(&guestv1.WriteFile{Path: path}, bytes.NewReader(content))
			if info.Problem != nil || info.File.Size != int64(size) || info.File.Uid != 2000 || info.File.Mode != 0o644 {
				t.Fatalf("%d bytes: %v", size, info)
			}
			digest := sha256.New()
			if h, complete := n.download(&guestv1.ReadFile{Path: path, Length: -1}, digest); !complete || h.File.Size != int64(size) {
				t.Fatalf("%d bytes: %v", size, h)
			}
			if want := sha256.Sum256(content); !bytes.Equal(digest.Sum(nil), want[:]) {
				t.Errorf("%d bytes came back as others", size)
			}
		}
		var part bytes.Buffer
		n.write1(t, dir+"/digits", "0123456789")
		if _, complete := n.download(&guestv1.ReadFile{Path: dir + "/digits", Offset: 3, Length: 4}, &part); !complete || part.String() != "3456" {
			t.Errorf("a range: %q", part.String())
		}
		if h, _ := n.download(&guestv1.ReadFile{Path: dir + "/digits", Offset: 11, Length: 1}, io.Discard); h.GetProblem().GetReason() != "range_not_satisfiable" {
			t.Errorf("behind the end: %v", h)
		}
	})
}

func TestAWriteIsAllOrNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		dir := n.sh("pwd")
		n.write1(t, dir+"/f", "old")
		conn := n.transfer(&guestv1.Bulk{Transfer: &guestv1.Bulk_WriteFile{WriteFile: &guestv1.WriteFile{Path: dir + "/f"}}})
		conn.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameData, Payload: []byte("new")}))
		eventually(t, "the write has begun", func() bool { return n.sh("ls -A | wc -l") == "2" })
		if content, _ := n.read1(dir + "/f"); content != "old" {
			t.Errorf("before the commit: %q", content)
		}
		conn.Close()
		eventually(t, "nothing is left of it", func() bool { return n.sh("ls -A") == "f" })
		if content, _ := n.read1(dir + "/f"); content != "old" {
			t.Errorf("after the cut: %q", content)
		}
	})
}

func TestAWriteKeepsModeAndOwnerAndFollowsLinks(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		dir := n.sh("pwd")
		n.sh("echo x > tool; chmod 750 tool; ln -s tool link; ln -s new/target dangling; ln -s loop loop; echo secret > closed; chmod 0 closed; mkfifo pipe; mkdir d")
		n.write1(t, dir+"/link", "#!/bin/sh\necho ran\n")
		if got := n.sh("stat -c '%a %U' tool; test -L link && ./tool"); got != "750 sandbox\nran" && got != "750 UNKNOWN\nran" {
			t.Errorf("through a link: %q", got)
		}
		n.write1(t, dir+"/dangling", "made")
		if got := n.sh("cat new/target"); got != "made" {
			t.Errorf("through a dangling link: %q", got)
		}
		if h := n.upload(&guestv1.WriteFile{Path: dir + "/tool", Mode: 0o755, SetMode: true}, strings.NewReader("")); h.GetFile().GetMode() != 0o755 {
			t.Errorf("a mode that was asked for: %v", h)
		}
		for path, reason := range map[string]string{
			"/loop": "unprocessable", "/closed": "forbidden", "/pipe": "unprocessable", "/d": "unprocessable", "/tool/x": "unprocessable", "/" + strings.Repeat("n", 256): "unprocessable",
		} {
			if h := n.upload(&guestv1.WriteFile{Path: dir + path}, strings.NewReader(strings.Repeat("x", 1<<20))); h.GetProblem().GetReason() != reason {
				t.Errorf("write %.20s: %v", path, h)
			}
		}
		for path, reason := range map[string]string{
			"/loop": "unprocessable", "/closed": "forbidden", "/pipe": "unprocessable", "/d": "unprocessable", "/nothing": "not_found", "/tool/x": "unprocessable",
		} {
			if _, p := n.read1(dir + path); p.GetReason() != reason {
				t.Errorf("read %s: %v", path, p)
			}
		}
		for _, path := range []string{"/dev/null", "/dev/zero", "/dev/ptmx", "/"} {
			if _, p := n.read1(path); p.GetReason() != "unprocessable" {
				t.Errorf("read %s: %v", path, p)
			}
		}
		if _, p := n.read1("/proc/self/status"); p.GetReason() != "" {
			t.Errorf("read a file of /proc: %v", p)
		}
	})
}

func TestConditionsOfAWriteAreKept(t *testing.T) {
	n := native(t)
	path := n.sh("pwd") + "/f"
	if h := n.upload(&guestv1.WriteFile{Path: path, IfMatch: `"1-2-3"`}, strings.NewReader("x")); h.GetProblem().GetReason() != "precondition_failed" {
		t.Errorf("a tag of nothing: %v", h)
	}
	info := n.upload(&guestv1.WriteFile{Path: path, IfNoneMatch: true}, strings.NewReader("one")).GetFile()
	tag := fmt.Sprintf("\"%x-%x-%x\"", info.GetInode(), info.GetSize(), info.GetModifiedUnixNs())
	if h := n.upload(&guestv1.WriteFile{Path: path, IfNoneMatch: true}, strings.NewReader("two")); h.GetProblem().GetReason() != "precondition_failed" {
		t.Errorf("something is there: %v", h)
	}
	if h := n.upload(&guestv1.WriteFile{Path: path, IfMatch: tag}, strings.NewReader("two")); h.Problem != nil {
		t.Errorf("its own tag: %v", h)
	}
	if h := n.upload(&guestv1.WriteFile{Path: path, IfMatch: tag}, strings.NewReader("three")); h.GetProblem().GetReason() != "precondition_failed" {
		t.Errorf("an old tag: %v", h)
	}
	if n.sh("cat f; ls -A") != "twof" {
		t.Errorf("%q", n.sh("cat f; ls -A"))
	}
}

func TestParallelWritesMakeTheirParents(t *testing.T) {
	n := native(t)
	dir := n.sh("pwd")
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			if h := n.upload(&guestv1.WriteFile{Path: fmt.Sprintf("%s/a/b/c/%d", dir, i)}, strings.NewReader("x")); h.Problem != nil {
				t.Error(h)
			}
		})
	}
	all.Wait()
	if got := n.sh("ls a/b/c | wc -l; ls -A a/b/c | grep -c cay || true"); got != "50\n0" {
		t.Errorf("%s", got)
	}
}

func TestMkdirMoveAndRemoveSayWhatIsWrong(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		dir := n.sh("pwd")
		mkdir := func(path string, parents bool) *guestv1.ToNode {
			return n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Mkdir{Mkdir: &guestv1.Mkdir{Path: dir + path, Parents: parents, Mode: 0o750}}})
		}
		move := func(from, to string, overwrite bool) *guestv1.ToNode {
			return n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Move{Move: &guestv1.Move{From: dir + from, To: dir + to, Overwrite: overwrite}}})
		}
		remove := func(path string, recursive bool) *guestv1.ToNode {
			return n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Remove{Remove: &guestv1.Remove{Path: path, Recursive: recursive}}})
		}
		n.sh("echo one > f; echo two > g")
		for i, c := range []struct {
			answer *guestv1.ToNode
			reason string
		}{
			{mkdir("/x/y/z", false), "not_found"},
			{mkdir("/x/y/z", true), ""},
			{mkdir("/x/y/z", true), "already_exists"},
			{mkdir("/f/y", false), "unprocessable"},
			{move("/nothing", "/h", false), "not_found"},
			{move("/f", "/g", false), "already_exists"},
			{move("/f", "/g", true), ""},
			{move("/g", "/x/y/z/g", false), ""},
			{move("/x", "/f", false), ""},
			{remove(dir+"/nothing", false), "not_found"},
			{remove(dir+"/f", false), "conflict"},
			{remove(dir+"/f/y/z/g", false), ""},
			{remove(dir+"/f", true), ""},
			{remove("/usr/bin/env", false), "forbidden"},
			{remove("/", true), "unprocessable"},
			{n.stat(dir + "/nothing"), "not_found"},
			{n.stat("relative"), "unprocessable"},
			{n.stat("/a\x00b"), "unprocessable"},
		} {
			if got := c.answer.GetProblem().GetReason(); got != c.reason {
				t.Errorf("case %d: %v", i, c.answer)
			}
		}
		if left := n.sh("ls -A"); left != "" {
			t.Errorf("left %q", left)
		}
	})
}

func TestNamesOfEveryKindRoundTrip(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		dir := n.sh("pwd")
		for _, name := range []string{"a b", "ü日本", "new\nline", "-rf", ".env", "%2e%2e", "a?b#c", strings.Repeat("n", 255), "é", "e\u0301"} {
			path := dir + "/" + name
			if info := n.write1(t, path, name); string(info.Name) != name {
				t.Errorf("%q became %q", name, info.Name)
			}
			if content, p := n.read1(path); content != name {
				t.Errorf("read %q: %q, %v", name, content, p)
			}
			items := n.must(n.list(&guestv1.List{Path: dir})).GetFiles().GetItems()
			if len(items) != 1 || string(items[0].Name) != name || items[0].Type != "file" {
				t.Errorf("list %q: %v", name, items)
			}
			n.must(n.call(&guestv1.ToAgent{Message: &guestv1.ToAgent_Remove{Remove: &guestv1.Remove{Path: path}}}))
		}
		n.sh(`touch "$(printf '\377\376')"`)
		items := n.must(n.list(&guestv1.List{Path: dir})).GetFiles().GetItems()
		if len(items) != 1 || string(items[0].Name) != "\xff\xfe" {
			t.Errorf("bytes that are no text: %v", items)
		}
	})
}

func TestAListOfATreeComesInPagesInAStableOrder(t *testing.T) {
	n := native(t)
	dir := n.sh("pwd")
	n.sh("mkdir -p b/deep/er c; touch a b/1 b/2 b/deep/er/x 'b!' c/z; ln -s b link; for i in $(seq 500); do touch many-$i-$(printf '%0200d' $i); done")
	want := n.sh("find . -mindepth 1 -maxdepth 3 | wc -l")
	for _, limit := range []uint32{1, 3, 1000} {
		var got []string
		cursor := ""
		for page := 0; page < 2000; page++ {
			list := n.must(n.list(&guestv1.List{Path: dir, Depth: 3, Limit: limit, Cursor: cursor})).GetFiles()
			for _, item := range list.Items {
				got = append(got, strings.TrimPrefix(item.Path, dir+"/"))
			}
			if cursor = list.NextCursor; cursor == "" {
				break
			}
			if len(list.Items) == 0 {
				t.Fatal("an empty page with a cursor")
			}
		}
		if fmt.Sprint(len(got)) != want {
			t.Errorf("limit %d: %d items of %s", limit, len(got), want)
		}
		if head := strings.Join(got[:9], " "); head != "a b b/1 b/2 b/deep b/deep/er b! c c/z" {
			t.Errorf("limit %d: %s", limit, head)
		}
	}
	if p := n.list(&guestv1.List{Path: dir, Cursor: "Li4vLi4"}).GetProblem(); p.GetField() != "cursor" {
		t.Errorf("a made-up cursor: %v", p)
	}
	if p := n.list(&guestv1.List{Path: dir + "/a"}).GetProblem(); p.GetReason() != "unprocessable" {
		t.Errorf("a file: %v", p)
	}
	if items := n.must(n.list(&guestv1.List{Path: dir + "/link"})).GetFiles().GetItems(); len(items) != 3 {
		t.Errorf("through a link: %v", items)
	}
}

func TestUsersReachTheirOwnFilesOnly(t *testing.T) {
	everywhere(t, func(t *testing.T, n *node) {
		dir := n.sh("pwd")
		if h := n.upload(&guestv1.WriteFile{Path: dir + "/root-file", User: "root"}, strings.NewReader("x")); h.GetFile().GetUid() != 0 {
			t.Errorf("written by root: %v", h)
		}
		n.run(&guestv1.Start{Shell: "chmod 600 " + dir + "/root-file", User: "root"})
		if _, p := n.read1(dir + "/root-file"); p.GetReason() != "forbidden" {
			t.Errorf("read by the user: %v", p)
		}
		if h := n.upload(&guestv1.WriteFile{Path: dir + "/root-file"}, strings.NewReader("y")); h.GetProblem().GetReason() != "forbidden" {
			t.Errorf("replaced by the user: %v", h)
		}
		if h := n.upload(&guestv1.WriteFile{Path: dir + "/mine", User: "12345"}, strings.NewReader("y")); h.GetProblem().GetReason() != "forbidden" {
			t.Errorf("a stranger in the user's directory: %v", h)
		}
		if h := n.upload(&guestv1.WriteFile{Path: dir + "/mine", User: "who"}, strings.NewReader("y")); h.GetProblem().GetField() != "user" {
			t.Errorf("nobody: %v", h)
		}
	})
}
