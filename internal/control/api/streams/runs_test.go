package streams

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// runsOf cuts pieces, each behind its stream and a colon, from a position on. What waits at the end is flushed.
func runsOf(t testing.TB, from int64, pieces []string) []Run {
	t.Helper()
	var got []Run
	r := Runs{Emit: func(run Run) error {
		run.Data = slices.Clone(run.Data)
		got = append(got, run)
		return nil
	}}
	for _, p := range pieces {
		stream, data, _ := strings.Cut(p, ":")
		from += int64(len(data))
		if err := r.Add(Run{Stream: stream, Seq: from, Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestRunsSplitNoCharacter(t *testing.T) {
	for name, c := range map[string]struct {
		pieces []string
		want   string
	}{
		"text":                                   {[]string{"out:abc"}, "out 3 abc"},
		"a cut character waits":                  {[]string{"out:a\xe2\x82", "out:\xacb"}, "out 1 a|out 5 €b"},
		"byte by byte":                           {[]string{"out:\xf0", "out:\x9f", "out:\x98", "out:\x80"}, "out 4 😀"},
		"what never gets its rest":               {[]string{"out:a\xe2\x82"}, `out 1 a|out 3 b"\xe2\x82"`},
		"what turns out to be none":              {[]string{"out:\xe2\x82", "out:a"}, `out 3 b"\xe2\x82a"`},
		"bytes":                                  {[]string{"out:a\xffb"}, `out 3 b"a\xffb"`},
		"the other stream comes in between":      {[]string{"out:\xe2", "err:x", "out:\x82\xacy"}, `out 1 b"\xe2"|err 2 x|out 4 b"\x82\xac"|out 5 y`},
		"a beginning in the middle of one":       {[]string{"out:\x82\xacy"}, `out 2 b"\x82\xac"|out 3 y`},
		"only the end of one":                    {[]string{"out:\xac", "out:y"}, `out 1 b"\xac"|out 2 y`},
		"bytes that look like the middle of one": {[]string{"out:\x80\x80\x80\x80"}, `out 3 b"\x80\x80\x80"|out 4 b"\x80"`},
		"nothing":                                {[]string{"out:"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, r := range runsOf(t, 0, c.pieces) {
				data := string(r.Data)
				if !r.Text {
					data = fmt.Sprintf("b%q", data)
				}
				got = append(got, fmt.Sprintf("%s %d %s", r.Stream, r.Seq, data))
			}
			if s := strings.Join(got, "|"); s != c.want {
				t.Errorf("got %s, want %s", s, c.want)
			}
		})
	}
}

// FuzzRuns: however output is cut into pieces, its runs are exactly what was written, one behind the other, text wherever they say so,
// and a reader who goes on behind any of them gets exactly the rest.
func FuzzRuns(f *testing.F) {
	f.Add([]byte("a€😀b\xff\xe2\x82c"), []byte{1, 130, 3, 2, 1})
	f.Add([]byte("\x82\xacé"), []byte{129, 1, 129})
	f.Fuzz(func(t *testing.T, data, sizes []byte) {
		var pieces []string
		for rest := data; len(rest) > 0; {
			n, stream := len(rest), "out"
			if len(sizes) > 0 {
				n, stream = min(len(rest), int(sizes[0]&127)), map[bool]string{true: "err", false: "out"}[sizes[0] > 127]
				sizes = sizes[1:]
			}
			pieces, rest = append(pieces, stream+":"+string(rest[:n])), rest[n:]
		}
		runs := runsOf(t, 0, pieces)
		at := int64(0)
		for _, r := range runs {
			if r.Text != utf8.Valid(r.Data) && r.Text || len(r.Data) == 0 {
				t.Fatalf("%q is called text: %v", r.Data, r.Text)
			}
			if at += int64(len(r.Data)); r.Seq != at || !bytes.Equal(r.Data, data[at-int64(len(r.Data)):at]) {
				t.Fatalf("%q at %d, want %d", r.Data, r.Seq, at)
			}
		}
		if at != int64(len(data)) {
			t.Fatalf("%d of %d bytes came", at, len(data))
		}
		for _, r := range runs {
			var rest []string // the pieces as they are behind that run
			at := int64(0)
			for _, p := range pieces {
				stream, piece, _ := strings.Cut(p, ":")
				end := at + int64(len(piece))
				if end > r.Seq {
					rest = append(rest, stream+":"+piece[max(0, r.Seq-at):])
				}
				at = end
			}
			var got []byte
			for _, again := range runsOf(t, r.Seq, rest) {
				got = append(got, again.Data...)
			}
			if !bytes.Equal(got, data[r.Seq:]) {
				t.Fatalf("behind %d came %q, want %q", r.Seq, got, data[r.Seq:])
			}
		}
	})
}
