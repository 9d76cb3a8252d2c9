package interpreter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// converse reads as listen does, until the end, and returns what the report holds.
func converse(input []byte) (*guestv1.CodeReport, error) {
	var held atomic.Int64
	results, rest := newReport(&held), &guestv1.CodeReport{}
	in := newControlReader(bytes.NewReader(input))
	var failure error
	for failure == nil {
		var m message
		if m, failure = readMessage(in); failure != nil {
			break
		}
		switch m.kind {
		case "main", "display":
			var parts []part
			if parts, failure = readParts(in, m.size); failure == nil {
				failure = results.result(m.kind == "main", parts, in)
			}
		case "error":
			rest.Error, failure = readError(in, m.size)
		case "done":
			_, failure = readCode(in, m.size)
		}
	}
	results.finish(rest)
	b := make([]byte, results.Size())
	if _, err := results.ReadAt(b, 0); err != nil && err != io.EOF {
		return nil, err
	}
	results.Close()
	if held.Load() != 0 {
		return nil, fmt.Errorf("%d bytes are still held", held.Load())
	}
	told := &guestv1.CodeReport{}
	if err := proto.Unmarshal(b, told); err != nil {
		return nil, fmt.Errorf("the report is broken: %w", err)
	}
	return told, failure
}

func TestResultsComeThroughTheControlSocketUnchanged(t *testing.T) {
	body := "text/plain 2 data\nimage/png 3 data\napplication/json 2 json\n\nhi\x00\xff\x01{}"
	told, err := converse(fmt.Appendf(nil, "begin 1 0\nmain 1 %d\n%sdisplay 1 17\na/b 5 data\n\nhelloerror 1 5\nN\x00v\x00tdone 1 1\n1", len(body), body))
	if err != io.EOF {
		t.Fatal(err)
	}
	want := &guestv1.CodeReport{
		Results: []*guestv1.CodeReport_Result{
			{IsMain: true, Data: []*guestv1.CodeReport_Data{
				{Mime: "text/plain", Data: []byte("hi")}, {Mime: "image/png", Data: []byte("\x00\xff\x01")}, {Mime: "application/json", Data: []byte("{}"), Json: true}}},
			{Data: []*guestv1.CodeReport_Data{{Mime: "a/b", Data: []byte("hello")}}},
		},
		Error: &guestv1.CodeReport_Error{Name: "N", Value: "v", Traceback: "t"},
	}
	if !proto.Equal(told, want) {
		t.Errorf("told %v", told)
	}
}

func TestWhatBreaksTheControlProtocolIsRecognized(t *testing.T) {
	for _, input := range []string{
		"garbage\n", strings.Repeat("x", 300), "done 1 4\n", "done 1 1\nx", "done 1 3\n256", "done -1 1\n0", "done +1 1\n0", "done 01 1\n0", "done 1 01\n0", "begin 1 1\n", "main 1 16777217\n",
		"main 1 1\n\n", "main 1 8\na/b 5 x\n", "main 1 11\na/b 5 data\n\n", "main 1 13\n../x 0 data\n\n", "main 1 12\na 0 data y\n\n", "unknown 1 0\n", " 1 0\n", "main 1\n", "error 1 3\nabc", "error 1 999999\n",
		"main 1 528\n" + strings.Repeat("a/b 0 data\n", 48) + "\n", "main 1 29\na/b 16777217 data\n\n",
	} {
		if _, err := converse([]byte(input)); !errors.Is(err, errControl) {
			t.Errorf("%.60q: %v", input, err)
		}
	}
	for _, input := range []string{"done 1 1\n", "main 1 100\na/b 87 data\n\nshort", "mai"} {
		if _, err := converse([]byte(input)); err == nil || errors.Is(err, errControl) {
			t.Errorf("%q, cut: %v", input, err)
		}
	}
}

func FuzzControl(f *testing.F) {
	f.Add([]byte("begin 1 0\nmain 1 13\na/b 1 data\n\nxdone 1 1\n0"))
	f.Add([]byte("error 1 5\nN\x00v\x00tdrop 1 0\n"))
	f.Add([]byte("main 1 16777216\ntext/plain 16777000 json\n\n"))
	f.Fuzz(func(t *testing.T, input []byte) {
		if told, _ := converse(input); told == nil {
			t.Fatal("no report")
		}
	})
}

func TestResultsBeyondTheBoundAreLeftOutAndNothingElseIs(t *testing.T) {
	var input bytes.Buffer
	for range 3 {
		fmt.Fprintf(&input, "display 1 %d\na/b %d data\n\n%s", 6_000_000+18, 6_000_000, make([]byte, 6_000_000))
	}
	input.WriteString("error 1 5\nN\x00v\x00t")
	told, err := converse(input.Bytes())
	if err != io.EOF || len(told.Results) != 2 || !told.ResultsTruncated || told.Error.GetName() != "N" || proto.Size(told) > 16<<20 {
		t.Errorf("%v: %d results, truncated %v, error %v", err, len(told.GetResults()), told.GetResultsTruncated(), told.GetError())
	}
}

func TestChangesAreWhatDiffersBetweenTwoScans(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		root := t.TempDir()
		want := map[string]string{}
		name := func() string { // of a few directories, some of which sort between a name and what lies below it
			dirs := []string{"", "a", "a/b", "a.b", "a-b", "z", "a/b/c", "__pycache__", "z/.cache", ".config/go/telemetry/local"}
			return filepath.Join(root, dirs[r.IntN(len(dirs))], fmt.Sprint("f", r.IntN(8)))
		}
		write := func(file, content string) {
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		for range r.IntN(60) {
			write(name(), "before")
		}
		before := look([]string{root})
		existed := map[string]bool{}
		for _, e := range before.entries {
			existed[e.path] = true
		}
		for range r.IntN(40) {
			file := name()
			cache := strings.Contains(file, "__pycache__") || strings.Contains(file, ".cache") || strings.Contains(file, "telemetry")
			switch r.IntN(3) {
			case 0, 1:
				write(file, "changed"+fmt.Sprint(r.Uint64()))
				want[file] = "create"
				if existed[file] {
					want[file] = "write"
				}
			default:
				_ = os.Remove(file)
				delete(want, file)
				if existed[file] {
					want[file] = "remove"
				}
			}
			if cache {
				delete(want, file)
			}
		}
		list, truncated := changes(before, look([]string{root}))
		got := map[string]string{}
		for _, c := range list {
			got[c.Path] = c.Op
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || truncated || len(got) != len(list) {
			t.Fatalf("seed %d:\n%v, wanted\n%v", seed, got, want)
		}
	}
}

func TestAScanKeepsToItsRootsAndItsBounds(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	if err := errors.Join(os.MkdirAll(root+"/sub", 0o755), os.WriteFile(dir+"/outside", nil, 0o644), os.Symlink(dir, root+"/up"), os.Symlink("..", root+"/sub/up"),
		unix.Mkfifo(root+"/fifo", 0o644)); err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, e := range look([]string{root + "/sub", root, "/no/such", root + "/up"}).entries {
		paths = append(paths, strings.TrimPrefix(e.path, root))
	}
	if !slices.Equal(paths, []string{"/sub/up", "/up"}) {
		t.Errorf("%v", paths)
	}
	before := look([]string{root})
	deep := root + "/deep"
	for range maxDepth + 2 {
		deep += "/d"
	}
	if err := errors.Join(os.MkdirAll(deep, 0o755), os.WriteFile(deep+"/file", nil, 0o644), os.WriteFile(root+"/a", nil, 0o644), os.WriteFile(root+"/z", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	list, truncated := changes(before, look([]string{root}))
	if !truncated || len(list) != 1 || list[0].Path != root+"/a" { // what lies behind the bound is not compared
		t.Errorf("%v %v", list, truncated)
	}
	many := filepath.Join(dir, "many")
	if err := os.MkdirAll(many, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		if err := os.WriteFile(fmt.Sprintf("%s/%d", many, i), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if s := lookAtMost([]string{many}, 11); len(s.entries) != 0 || s.stoppedAt != many {
		t.Errorf("%d entries, stopped at %q", len(s.entries), s.stoppedAt)
	}
	if s := lookAtMost([]string{many}, 12); len(s.entries) != 12 || s.stoppedAt != "" {
		t.Errorf("%d entries, stopped at %q", len(s.entries), s.stoppedAt)
	}
}

func TestProgramsGetTheFileThatTheirInterpreterExpects(t *testing.T) {
	for _, c := range []struct{ language, source, extension, complete string }{
		{"python", "x", ".py", "x"},
		{"javascript", "const fs = require('fs')", ".js", "const fs = require('fs')"},
		{"javascript", "import fs from 'fs'", ".mjs", "import fs from 'fs'"},
		{"javascript", "import 'fs'", ".mjs", "import 'fs'"},
		{"javascript", "  export default 1", ".mjs", "  export default 1"},
		{"javascript", "const x = await f()", ".mjs", "const x = await f()"},
		{"javascript", "important = 1; exported = 2", ".js", "important = 1; exported = 2"},
		{"javascript", "async function f() {\nreturn await g() }", ".js", "async function f() {\nreturn await g() }"},
		{"typescript", "x", ".ts", "x"},
		{"php", "echo 1;", ".php", "<?php echo 1;"},
		{"php", "a <?= 1 ?>", ".php", "a <?= 1 ?>"},
		{"go", "package main", ".go", "package main"},
		{"cobol", "x", "", "x"},
	} {
		if got := extension(c.language, []byte(c.source)); got != c.extension {
			t.Errorf("%s %q: %q", c.language, c.source, got)
		}
		if got := complete(c.language, []byte(c.source)); string(got) != c.complete {
			t.Errorf("%s %q: %q", c.language, c.source, got)
		}
	}
}

func TestAPathReachesAShellAsOneWord(t *testing.T) {
	if got := shellWord("/a b/c'd$(e)-1_.sh"); got != `/a\ b/c\'d\$\(e\)-1_.sh` {
		t.Errorf("%s", got)
	}
}
