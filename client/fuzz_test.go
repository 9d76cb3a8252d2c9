package client

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

func FuzzSSE(f *testing.F) {
	f.Add("event: stdout\nid: 3\ndata: {\"data_base64\":\"YWJj\"}\n\n")
	f.Add(": comment\r\n\r\ndata: a\rdata: b\r\rdata:c\n\n")
	f.Add("\xef\xbb\xbfdata:x\n\nid:\x00\ndata\n\n")
	f.Fuzz(func(t *testing.T, stream string) {
		whole, pieces := newSSEReader(strings.NewReader(stream)), newSSEReader(iotest.OneByteReader(strings.NewReader(stream)))
		for {
			a, errA := whole.next()
			b, errB := pieces.next()
			if (errA == nil) != (errB == nil) || a.name != b.name || a.id != b.id || string(a.data) != string(b.data) {
				t.Fatalf("how the bytes arrive matters: %+v %v, %+v %v", a, errA, b, errB)
			}
			if errA != nil {
				return
			}
			if strings.ContainsAny(a.id+a.name, "\r\n") || len(a.data) > len(stream) {
				t.Fatalf("an event that the stream cannot hold: %+v", a)
			}
			fl := &follower{}
			if _, _, err := fl.decode(a); err == nil && fl.offset < 0 && !strings.Contains(stream, "-") {
				t.Fatalf("a negative offset from %q", a.data)
			}
		}
	})
}

func FuzzJobFrame(f *testing.F) {
	f.Add("stdout", `{"type":"stdout","seq":7,"ts":"2026-01-02T03:04:05.000Z","data":"hello"}`)
	f.Add("stderr", `{"type":"stderr","seq":9,"data_base64":"/wA="}`)
	f.Add("exit", `{"type":"exit","seq":10,"data":"failed","exit_code":3,"signal":null,"timed_out":false,"duration_ms":12}`)
	f.Add("error", `{"reason":"unavailable","detail":"x"}`)
	f.Add("gap", `{"type":"gap","seq":99,"stream":"stdout","bytes":5}`)
	f.Fuzz(func(t *testing.T, name, data string) {
		frame, err := decodeFrame(sseEvent{name: name, data: []byte(data)})
		switch {
		case frame != nil && (err != nil || frame.Seq <= 0):
			t.Fatalf("a frame without a position: %+v, %v", frame, err)
		case frame != nil && len(frame.Data) > 3*len(data): // U+FFFD stands for one byte that is none
			t.Fatalf("%d bytes of output from %d", len(frame.Data), len(data))
		case frame != nil:
			if again, err := json.Marshal(frame); err != nil || len(again) == 0 {
				t.Fatalf("it cannot be written again: %v", err)
			}
		}
	})
}

func TestSSEParsesWhatTheStandardAllows(t *testing.T) {
	for name, tt := range map[string]struct{ stream, want string }{
		"LF":                        {"event: a\ndata: 1\n\n", "a/1/ "},
		"CR":                        {"event: a\rdata: 1\r\r", "a/1/ "},
		"CRLF":                      {"event: a\r\ndata: 1\r\n\r\n", "a/1/ "},
		"several data lines":        {"data: 1\ndata: 2\ndata\n\n", "message/1\n2\n/ "},
		"only one space is dropped": {"data:  1\n\n", "message/ 1/ "},
		"comments pass":             {": 15 s\n\ndata: 1\n\n", "message/1/ "},
		"an id holds on":            {"id: 7\ndata: 1\n\ndata: 2\n\n", "message/1/7 message/2/7 "},
		"a cut event is dropped":    {"data: 1\n\ndata: 2\n", "message/1/ "},
		"an event without data":     {"event: a\n\ndata: 1\n\n", "message/1/ "},
	} {
		var got strings.Builder
		r := newSSEReader(strings.NewReader(tt.stream))
		for ev, err := r.next(); err == nil; ev, err = r.next() {
			fmt.Fprintf(&got, "%s/%s/%s ", ev.name, ev.data, ev.id)
		}
		if got.String() != tt.want {
			t.Errorf("%s: got %q, want %q", name, got.String(), tt.want)
		}
	}
}

func TestAnEventThatNeverEndsIsRefused(t *testing.T) {
	r := newSSEReader(strings.NewReader("data: " + strings.Repeat("x", maxEventBytes+1)))
	if _, err := r.next(); err != errEventTooLarge {
		t.Fatalf("got %v", err)
	}
}

func FuzzLocalName(f *testing.F) {
	for _, s := range []string{"a", "..", "../x", "/etc", "a/b/", "", ".", "./a", "a\x00", "a/../b", "con", `a\b`, "...", "..a", "a//b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		local, err := localName(name)
		if err != nil {
			return
		}
		joined := filepath.Join("/root/dir", local)
		if joined != "/root/dir" && !strings.HasPrefix(joined, "/root/dir/") || strings.Contains("/"+local+"/", "/../") {
			t.Fatalf("%q became %q", name, joined)
		}
	})
}

func FuzzUnpack(f *testing.F) {
	archive := func(headers ...tar.Header) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			if err := w.WriteHeader(&h); err != nil {
				f.Fatal(err)
			}
			if _, err := w.Write(make([]byte, h.Size)); err != nil {
				f.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	f.Add(archive(tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o700}, tar.Header{Name: "d/f", Size: 3, Mode: 0o4755}))
	f.Add(archive(tar.Header{Name: "../x", Size: 1}, tar.Header{Name: "/etc/x", Size: 1}))
	f.Add(archive(tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../out"}, tar.Header{Name: "l/f", Size: 1}))
	f.Add(archive(tar.Header{Name: "f", Size: 1}, tar.Header{Name: "g", Typeflag: tar.TypeLink, Linkname: "f"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		parent := t.TempDir()
		if err := os.Mkdir(filepath.Join(parent, "in"), 0o700); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(filepath.Join(parent, "in"))
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		u := &unpacker{root: root, c: newCopier(CopyOptions{}), buf: make([]byte, 4<<10)}
		_ = u.run(bytes.NewReader(data)) // most are refused
		if u.c.report.Bytes > int64(len(data)) {
			t.Fatalf("%d bytes became %d", len(data), u.c.report.Bytes)
		}
		if entries, err := os.ReadDir(parent); err != nil || len(entries) != 1 {
			t.Fatalf("beside the folder: %v, %v", entries, err)
		}
		_ = filepath.WalkDir(filepath.Join(parent, "in"), func(path string, d fs.DirEntry, err error) error {
			if real, err := filepath.EvalSymlinks(path); err == nil && !strings.HasPrefix(real, filepath.Join(parent, "in")) {
				t.Fatalf("%s leads to %s", path, real)
			}
			if strings.HasPrefix(d.Name(), ".cay-") && !bytes.Contains(data, []byte(".cay-")) {
				t.Fatalf("left behind: %s", path)
			}
			return nil
		})
	})
}

func FuzzLinkTarget(f *testing.F) {
	f.Add("d/e/up", "../..")
	f.Add("out", "d/e/up/../x")
	f.Add("a", "./b//c")
	f.Fuzz(func(t *testing.T, path, target string) {
		if !filepath.IsLocal(path) || filepath.IsAbs(target) || climbsLate(target) {
			return
		}
		end := filepath.Join(filepath.Dir(path), target)
		if !filepath.IsLocal(end) {
			return
		}
		// What is let through goes up first and then only down, so that it means the same whatever the names are.
		down := strings.TrimLeft(filepath.Clean(target), "./")
		if strings.Contains("/"+down+"/", "/../") {
			t.Fatalf("%q from %q climbs after a name", target, path)
		}
	})
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"type":"started","process_id":"prc_1","offset":3,"stdin_offset":0}`))
	f.Add([]byte(`{"type":"gap","offset":-1,"bytes":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := parseMessage(data); err == nil && (m.Offset < 0 || m.Bytes < 0 || m.StdinOffset < 0) {
			t.Fatalf("%s became %+v", data, m)
		}
	})
}

func TestAnExecResultTakesTextAndBase64(t *testing.T) {
	for _, doc := range []string{
		`{"stdout":"caf\u00e9","stderr":"","exit_code":3,"duration_ms":1.5,"stdout_gap":{"offset":1,"bytes":2}}`,
		`{"stdout_base64":"` + base64.StdEncoding.EncodeToString([]byte("café")) + `","exit_code":3,"duration_ms":1.5,"stdout_gap":{"offset":1,"bytes":2}}`,
	} {
		var r ExecResult
		if err := json.Unmarshal([]byte(doc), &r); err != nil || string(r.Stdout) != "café" || r.ExitCode != 3 || r.StdoutGap.Bytes != 2 ||
			r.Duration.Microseconds() != 1500 {
			t.Errorf("%s: %+v, %v", doc, r, err)
		}
	}
}

func TestStdinThatMayBeNeededAgainIsKeptAndBounded(t *testing.T) {
	var b replayBuffer
	piece := make([]byte, stdinPiece)
	for i := range 1000 {
		for j := range piece {
			piece[j] = byte(i)
		}
		b.append(piece)
	}
	if cap(b.data) > 4*stdinReplay || len(b.data) < stdinReplay {
		t.Fatalf("%d bytes are kept, in %d", len(b.data), cap(b.data))
	}
	if tail, ok := b.from(999 * stdinPiece); !ok || len(tail) != stdinPiece || tail[0] != byte(999%256) {
		t.Fatalf("the tail is wrong: %v", ok)
	}
	if _, ok := b.from(0); ok {
		t.Fatal("what was dropped was answered")
	}
	if _, ok := b.from(1001 * stdinPiece); ok {
		t.Fatal("what never was was answered")
	}
}
