package streams

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cayhq/cay"
)

// inChunks runs data through a Text in chunks whose sizes cuts gives, in turn.
func inChunks(data, cuts []byte) (string, bool) {
	var t Text
	var out []byte
	for i := 0; len(data) > 0; i++ {
		n := 1
		if len(cuts) > 0 {
			n = 1 + int(cuts[i%len(cuts)])
		}
		n = min(n, len(data))
		out = t.Append(out, data[:n])
		data = data[n:]
	}
	return string(t.End(out)), t.Lossy
}

func TestACharacterIsNeitherSplitNorInvented(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "",
		"café\n":                   "café\n",
		"日本語😀":                     "日本語😀",
		"\xff\xfe\x00ok":           "\uFFFD\uFFFD\x00ok",
		"a\xe6\x97":                "a\uFFFD",
		"\xe6\x97a":                "\uFFFDa",
		"\xf0\x9f\x98":             "\uFFFD",
		"\xf0\x9f\x98\xe6":         "\uFFFD\uFFFD",
		"\xe0\x80\x80":             "\uFFFD\uFFFD\uFFFD",
		"\xed\xa0\x80":             "\uFFFD\uFFFD\uFFFD",
		"\xf4\x90\x80\x80":         "\uFFFD\uFFFD\uFFFD\uFFFD",
		"\uFFFD":                   "\uFFFD",
		"\xc3\xc3\xa9":             "\uFFFDé",
		"\xf0\x9f\xf0\x9f\x98\x80": "\uFFFD😀",
	} {
		for _, cuts := range [][]byte{{0}, {1}, {2}, {0, 2, 1}, {255}} {
			got, lossy := inChunks([]byte(in), cuts)
			if got != want || lossy != !utf8.ValidString(in) {
				t.Errorf("%q in chunks %v: %q, lossy %v; want %q", in, cuts, got, lossy, want)
			}
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("caf\xc3\xa9"), []byte{0})
	f.Add([]byte("\xf0\x9f\x98\xff\xe6\x97\xa5"), []byte{1, 0, 2})
	f.Fuzz(func(t *testing.T, data, cuts []byte) {
		got, lossy := inChunks(data, cuts)
		if !utf8.ValidString(got) || lossy == utf8.Valid(data) {
			t.Fatalf("%q: %q, lossy %v", data, got, lossy)
		}
		if utf8.Valid(data) && got != string(data) {
			t.Fatalf("%q became %q", data, got)
		}
		if whole, _ := inChunks(data, bytes.Repeat([]byte{255}, 1)); len(data) <= 256 && whole != got {
			t.Fatalf("%q: in chunks %q, whole %q", data, got, whole)
		}
	})
}

func FuzzResult(f *testing.F) {
	f.Add([]byte("out\xc3\xa9\x00\"\\"), []byte("err\xff"), []byte{2})
	f.Fuzz(func(t *testing.T, stdout, stderr, cuts []byte) {
		for _, enc := range []Encoding{UTF8, Base64} {
			var buf bytes.Buffer
			r, err := NewResult(&buf, enc, Outcome{ProcessID: "prc_x"})
			if err != nil {
				t.Fatal(err)
			}
			for s, data := range map[cay.Stream][]byte{cay.Stdout: stdout, cay.Stderr: stderr} {
				for i := 0; len(data) > 0; i++ {
					n := len(data)
					if len(cuts) > 0 {
						n = min(n, 1+int(cuts[i%len(cuts)]))
					}
					if err := r.Data(s, data[:n]); err != nil {
						t.Fatal(err)
					}
					data = data[n:]
				}
			}
			if err := r.End(nil); err != nil {
				t.Fatal(err)
			}
			r.Release()
			var got map[string]any
			if err := json.Unmarshal(buf.Bytes(), &got); err != nil {
				t.Fatalf("%v: %q", err, buf.Bytes())
			}
			if enc == Base64 {
				if b, err := base64.StdEncoding.DecodeString(got["stdout_base64"].(string)); err != nil || !bytes.Equal(b, stdout) {
					t.Fatalf("%q became %q, %v", stdout, b, err)
				}
				continue
			}
			if utf8.Valid(stderr) && got["stderr"] != string(stderr) {
				t.Fatalf("%q became %q", stderr, got["stderr"])
			}
		}
	})
}

func TestAStreamCannotComeBackInAResult(t *testing.T) {
	var buf bytes.Buffer
	r, err := NewResult(&buf, UTF8, Outcome{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if err := r.Data(cay.Stdout, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := r.Data(cay.Stderr, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := r.Data(cay.Stdout, []byte("x")); err != ErrOrder {
		t.Errorf("got %v", err)
	}
}

func FuzzClientMessage(f *testing.F) {
	for _, s := range []string{`{"type":"ping"}`, `{"type":"resize","cols":1,"rows":2}`, `{"type":"signal","signal":"SIGINT","tree":true}`, `{"type":"close_stdin"}`, `{`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := MessageType(data); err != nil && cay.ReasonOf(err) != cay.InvalidRequest {
			t.Fatal(err)
		}
		m, err := DecodeMessage(data)
		if err != nil {
			if cay.ReasonOf(err) != cay.InvalidRequest {
				t.Fatal(err)
			}
			return
		}
		if m.Type == TypeResize && (m.Cols == 0 || m.Rows == 0) || m.Type == TypeSignal && (m.Signal == "" || strings.HasPrefix(m.Signal, "SIG") && len(m.Signal) < 4) {
			t.Fatalf("accepted %+v", m)
		}
	})
}

func BenchmarkSSE(b *testing.B) {
	run := bytes.Repeat([]byte("0123456789abcde\n"), 2048)
	for _, enc := range []Encoding{UTF8, Base64} {
		b.Run(string(enc), func(b *testing.B) {
			e := NewSSE(discard{}, enc)
			defer e.Release()
			b.SetBytes(int64(len(run)))
			for i := 0; b.Loop(); i++ {
				e.Data(cay.Stdout, int64(i*len(run)), run)
				if err := e.Flush(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
