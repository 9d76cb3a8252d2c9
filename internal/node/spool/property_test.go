package spool

import (
	"bytes"
	"os"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay"
)

// Whatever is appended, repeated and restarted, readers see every byte once or as a gap, with the time when it came, and collecting keeps
// head and tail.
func TestOutputIsSeenOnceOrAsAGap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "spool")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		limit := rapid.Int64Range(1, 400_000).Draw(rt, "limit")
		now := time.UnixMilli(1_772_366_400_123)
		opts := Options{Now: func() time.Time { return now }}
		s, err := Open(dir, opts)
		if err != nil {
			rt.Fatal(err)
		}
		l, err := s.Create(Process{ID: cay.NewID(cay.PrefixProcess), MaxOutput: limit})
		if err != nil {
			rt.Fatal(err)
		}
		id := l.Process().ID
		var combined []byte    // every byte
		var streams [2][]byte  // by stream
		var owner []cay.Stream // whose each byte is
		var came []time.Time   // when each byte came
		var fill byte
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				stream := rapid.SampledFrom([]cay.Stream{cay.Stdout, cay.Stderr}).Draw(rt, "stream")
				n := rapid.OneOf(rapid.IntRange(1, 3), rapid.IntRange(1, 70_000)).Draw(rt, "n")
				run := make([]byte, n)
				for i := range run {
					fill++
					run[i] = fill
				}
				if err := l.Append(stream, int64(len(combined)), run); err != nil {
					rt.Fatal(err)
				}
				combined = append(combined, run...)
				streams[stream-1] = append(streams[stream-1], run...)
				for range run {
					owner = append(owner, stream)
					came = append(came, now)
				}
			},
			"wait": func(rt *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, 400 * time.Millisecond, time.Minute}).Draw(rt, "time"))
			},
			"repeat": func(rt *rapid.T) {
				at := rapid.IntRange(0, len(combined)).Draw(rt, "at")
				if err := l.Append(cay.Stdout, int64(at), combined[at:min(len(combined), at+60_000)]); err != nil {
					rt.Fatal(err)
				}
			},
			"restart": func(rt *rapid.T) {
				if err := l.Save(); err != nil {
					rt.Fatal(err)
				}
				s.Close()
				if s, err = Open(dir, opts); err != nil {
					rt.Fatal(err)
				}
				l, _ = s.Get(id)
			},
			"read": func(rt *rapid.T) {
				from := rapid.IntRange(0, len(combined)).Draw(rt, "from")
				r := l.NewReader(int64(from))
				defer r.Close()
				at := int64(from)
				for {
					c, ok, err := r.Next()
					if err != nil {
						rt.Fatal(err)
					}
					if !ok {
						break
					}
					if c.Offset != at || !bytes.Equal(c.Data, combined[at:at+int64(len(c.Data))]) {
						rt.Fatalf("wrong bytes at %d", at)
					}
					if len(c.Data) > 0 && owner[at] != c.Stream {
						rt.Fatalf("bytes at %d are of %s", at, owner[at])
					}
					switch last := at + int64(len(c.Data)) - 1; {
					case c.Gap > 0 && !c.At.IsZero():
						rt.Fatalf("the gap at %d has a time", at)
					case c.Gap == 0 && !c.At.Equal(came[at]):
						rt.Fatalf("the byte at %d came at %v, not %v", at, came[at], c.At)
					case c.Gap == 0 && came[last].Sub(came[at]) > MaxSpan:
						rt.Fatalf("the run at %d took %v", at, came[last].Sub(came[at]))
					}
					at += int64(len(c.Data)) + c.Gap
				}
				if at != int64(len(combined)) {
					rt.Fatalf("read up to %d of %d", at, len(combined))
				}
			},
			"": func(rt *rapid.T) {
				head, tail := halves(limit)
				for i, all := range streams {
					want := all
					if int64(len(all)) > limit {
						want = append(bytes.Clone(all[:head]), all[int64(len(all))-tail:]...)
					}
					var got []byte
					size, err := l.Collect(cay.Stream(i+1), func(c Chunk) error { got = append(got, c.Data...); return nil })
					if err != nil || size != int64(len(all)) || !bytes.Equal(got, want) {
						rt.Fatalf("stream %d: kept %d of %d, want %d of %d: %v", i+1, len(got), size, len(want), len(all), err)
					}
				}
			},
		})
		s.Close()
	})
}

func FuzzScan(f *testing.F) {
	f.Add([]byte(segmentMagic + "\x01"))
	f.Add(append([]byte(segmentMagic+"\x01"), append(make([]byte, 24), 0, 3, 'a', 'b', 'c', 3, 1, 5, 'd')...))
	f.Add(append([]byte(untimedMagic+"\x01"), append(make([]byte, 16), 0, 3, 'a', 'b', 'c', 1, 1, 'd')...))
	f.Fuzz(func(t *testing.T, b []byte) {
		seg, err := scan(bytes.NewReader(b), cay.Stdout)
		if err != nil {
			return
		}
		if seg.fileSize > int64(len(b)) || seg.data > seg.fileSize || seg.end < seg.start+seg.data {
			t.Fatalf("%+v of %d bytes", seg, len(b))
		}
	})
}

// A directory with anything in it can be opened, read, collected and appended to.
func FuzzRecovery(f *testing.F) {
	good := append([]byte(segmentMagic+"\x01"), append(make([]byte, 24), 0, 3, 'a', 'b', 'c', 3, 1, 5, 'd')...)
	f.Add(good, good, []byte(`{"max_output_bytes":100,"stdout_size":9}`))
	f.Add([]byte{}, good[:20], []byte(`{`))
	f.Add(append([]byte(untimedMagic+"\x01"), append(make([]byte, 16), 0, 3, 'a', 'b', 'c', 1, 1, 'd')...), good, []byte(`{}`))
	f.Fuzz(func(t *testing.T, stdout, stderr, record []byte) {
		dir := t.TempDir()
		id := cay.NewID(cay.PrefixProcess)
		s := &Spool{dir: dir}
		p := s.processDir(id)
		must(t, os.Mkdir(p, 0o700))
		must(t, os.WriteFile(segmentPath(p, cay.Stdout, 0), stdout, 0o600))
		must(t, os.WriteFile(segmentPath(p, cay.Stdout, 1), stderr, 0o600))
		must(t, os.WriteFile(segmentPath(p, cay.Stderr, 7), stderr, 0o600))
		must(t, os.WriteFile(p+"/"+processFile, record, 0o600))
		s = open(t, dir, Options{})
		l, ok := s.Get(id)
		if !ok {
			t.Fatal("not found")
		}
		r := l.NewReader(0)
		defer r.Close()
		for range 1000 {
			if _, more, err := r.Next(); err != nil || !more {
				break
			}
		}
		for _, stream := range []cay.Stream{cay.Stdout, cay.Stderr} {
			l.Collect(stream, func(Chunk) error { return nil })
		}
		if l.Process().Exit == nil && l.Produced() < maxOffset/2 {
			must(t, l.Append(cay.Stdout, l.Produced(), []byte("more")))
		}
	})
}
