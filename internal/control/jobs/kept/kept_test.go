package kept_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/jobs/kept"
)

// program is output to keep: what was written, in order.
type program []kept.Run

func (p *program) write(s cay.Stream, data []byte, gap int64) {
	at := int64(0)
	if n := len(*p); n > 0 {
		at = (*p)[n-1].Offset + (*p)[n-1].Len()
	}
	*p = append(*p, kept.Run{Stream: s, Offset: at, Data: data, Gap: gap, At: time.UnixMilli(1_700_000_000_000 + at).UTC()})
}

// bytes is the whole as letters, with a mark for what is missing and for the stream.
func (p program) bytes(from int64) (out []byte, end int64) {
	for _, r := range p {
		r = r.From(from)
		mark := byte(r.Stream) << 6
		for _, b := range r.Data {
			out = append(out, b&0x3f|mark)
		}
		out = append(out, bytes.Repeat([]byte{0xff}, int(r.Gap))...)
		end = r.Offset + r.Len()
	}
	return out, end
}

func keep(t testing.TB, p program) (kept.Index, kept.Blob, *bytes.Buffer) {
	t.Helper()
	var sink bytes.Buffer
	w := kept.NewWriter(&sink)
	for _, r := range p {
		if err := w.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	x, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return x, func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		b := sink.Bytes()[offset:]
		if length >= 0 {
			b = b[:length]
		}
		return io.NopCloser(bytes.NewReader(b)), nil
	}, &sink
}

func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func programs() map[string]program {
	r := rand.New(rand.NewPCG(1, 2))
	all := map[string]program{"nothing": nil}
	one := program{}
	one.write(cay.Stdout, []byte("hello"), 0)
	all["a line"] = one
	var turns program
	for i := range 30_000 {
		turns.write(cay.Stream(1+i%2), []byte{byte(i)}, 0)
	}
	all["a byte to each stream in turn"] = turns
	var long program
	for range 40 {
		long.write(cay.Stdout, random(r, 1+r.IntN(300_000)), 0)
		if r.IntN(3) == 0 {
			long.write(cay.Stderr, random(r, 1+r.IntN(5000)), 0)
		}
	}
	all["megabytes"] = long
	var gaps program
	gaps.write(cay.Stdout, random(r, 600_000), 0)
	gaps.write(cay.Stdout, nil, 3_000_000)
	gaps.write(cay.Stderr, []byte("oops"), 0)
	gaps.write(cay.Stdout, random(r, 600_000), 0)
	all["a gap"] = gaps
	return all
}

func TestWhatIsKeptIsReadFromAnyOffset(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for name, p := range programs() {
		x, blob, sink := keep(t, p)
		_, produced := p.bytes(0)
		if x.Produced() != produced || (sink.Len() == 0) != (len(x.Chunks) == 0) || len(x.Inline) > kept.MaxInline {
			t.Errorf("%s: %d bytes of %d, %d chunks, %d inline", name, x.Produced(), produced, len(x.Chunks), len(x.Inline))
		}
		offsets := []int64{0, produced, produced / 2}
		for range 20 {
			offsets = append(offsets, r.Int64N(produced+1))
		}
		for _, offset := range offsets {
			var got program
			if err := x.Read(t.Context(), blob, offset, func(r kept.Run) error {
				r.Data = bytes.Clone(r.Data)
				got = append(got, r)
				return nil
			}); err != nil {
				t.Fatalf("%s from %d: %v", name, offset, err)
			}
			at := offset
			for _, r := range got {
				if r.Offset != at {
					t.Fatalf("%s from %d: a run at %d, want %d", name, offset, r.Offset, at)
				}
				at += r.Len()
			}
			want, _ := p.bytes(offset)
			if have, _ := got.bytes(0); !bytes.Equal(have, want) {
				t.Errorf("%s from %d: other bytes: %d, want %d", name, offset, len(have), len(want))
			}
		}
	}
}

func TestTheTimesOfRunsAreKept(t *testing.T) {
	var p program
	p.write(cay.Stdout, []byte("a"), 0)
	p.write(cay.Stdout, []byte("b"), 0)
	x, blob, _ := keep(t, p)
	i := 0
	if err := x.Read(t.Context(), blob, 0, func(r kept.Run) error {
		if !r.At.Equal(p[i].At) {
			t.Errorf("run %d at %v, want %v", i, r.At, p[i].At)
		}
		i++
		return nil
	}); err != nil || i != 2 {
		t.Errorf("%d runs, %v", i, err)
	}
}

func TestTheEndsOfEachStreamAreReadWithoutWhatLiesBetween(t *testing.T) {
	for name, p := range programs() {
		x, blob, sink := keep(t, p)
		for _, most := range []int{1, 2, 7, 1000, 100_000, 64 << 20} {
			read := int64(0)
			got, err := x.Ends(t.Context(), func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
				read += length
				return blob(ctx, offset, length)
			}, most)
			if err != nil {
				t.Fatal(err)
			}
			whole := kept.NewEnds(most)
			for _, r := range p {
				_ = whole.Add(r)
			}
			want := whole.Result()
			if !bytes.Equal(got.Stdout, want.Stdout) || !bytes.Equal(got.Stderr, want.Stderr) || got.StdoutSize != want.StdoutSize || got.StderrSize != want.StderrSize ||
				fmt.Sprint(got.StdoutGap) != fmt.Sprint(want.StdoutGap) || fmt.Sprint(got.StderrGap) != fmt.Sprint(want.StderrGap) {
				t.Errorf("%s, %d bytes: %d of %d %v, %d of %d %v; want %d of %d %v, %d of %d %v", name, most,
					len(got.Stdout), got.StdoutSize, got.StdoutGap, len(got.Stderr), got.StderrSize, got.StderrGap,
					len(want.Stdout), want.StdoutSize, want.StdoutGap, len(want.Stderr), want.StderrSize, want.StderrGap)
			}
			if len(got.Stdout) > most || len(got.Stderr) > most {
				t.Errorf("%s: more than %d bytes", name, most)
			}
			if name == "megabytes" && most == 1000 && read > int64(sink.Len())/2 {
				t.Errorf("%d of %d bytes were read for the ends", read, sink.Len())
			}
		}
	}
}

func TestEndsOfAShortStreamAreAllOfItAndOfALongOneSayWhatIsMissing(t *testing.T) {
	e := kept.NewEnds(10)
	for _, s := range []string{"abc", "defgh", "ij"} {
		_ = e.Add(kept.Run{Stream: cay.Stdout, Data: []byte(s)})
	}
	if r := e.Result(); string(r.Stdout) != "abcdefghij" || r.StdoutGap != nil || r.StdoutSize != 10 {
		t.Errorf("%+v", r)
	}
	_ = e.Add(kept.Run{Stream: cay.Stdout, Data: []byte("klm")})
	if r := e.Result(); string(r.Stdout) != "abcdeijklm" || r.StdoutGap == nil || *r.StdoutGap != (cay.Gap{Offset: 5, Bytes: 3}) {
		t.Errorf("%+v %v", r, r.StdoutGap)
	}
	_ = e.Add(kept.Run{Stream: cay.Stdout, Gap: 100})
	_ = e.Add(kept.Run{Stream: cay.Stdout, Data: []byte("z")})
	if r := e.Result(); string(r.Stdout) != "abcdez" || *r.StdoutGap != (cay.Gap{Offset: 5, Bytes: 108}) || r.StdoutSize != 114 {
		t.Errorf("%+v %v", r, r.StdoutGap)
	}
}

func TestAConnectionThatBreaksIsOpenedAgainWhereItWas(t *testing.T) {
	p := programs()["megabytes"]
	x, blob, _ := keep(t, p)
	opened := 0
	var got program
	err := x.Read(t.Context(), func(ctx context.Context, offset, length int64) (io.ReadCloser, error) {
		opened++
		r, err := blob(ctx, offset, length)
		return io.NopCloser(io.LimitReader(r, 700_000)), err
	}, 0, func(r kept.Run) error {
		r.Data = bytes.Clone(r.Data)
		got = append(got, r)
		return nil
	})
	want, _ := p.bytes(0)
	if have, _ := got.bytes(0); err != nil || !bytes.Equal(have, want) || opened < 3 {
		t.Errorf("%v, %d bytes of %d, opened %d times", err, len(have), len(want), opened)
	}
}

func TestRunsThatDoNotFollowOneAnotherAreRefused(t *testing.T) {
	w := kept.NewWriter(io.Discard)
	for _, r := range []kept.Run{
		{Stream: cay.Stdout, Offset: 1, Data: []byte("x")}, {Stream: 0, Data: []byte("x")}, {Stream: 3, Data: []byte("x")}, {Stream: cay.Stdout, Gap: -1},
	} {
		if err := w.Add(r); err == nil {
			t.Errorf("%+v was taken", r)
		}
	}
}

func TestADamagedBlobIsAnErrorAndASinkThatFailsAsWell(t *testing.T) {
	p := programs()["megabytes"]
	x, _, sink := keep(t, p)
	damaged := bytes.Clone(sink.Bytes())
	for i := range damaged {
		damaged[i] ^= 0x55
	}
	if err := x.Read(t.Context(), func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(damaged[offset:][:length])), nil
	}, 0, func(kept.Run) error { return nil }); err == nil {
		t.Error("damage was not noticed")
	}
	full := errors.New("full")
	w := kept.NewWriter(failing{full})
	var err error
	for _, r := range p {
		if err = w.Add(r); err != nil {
			break
		}
	}
	if !errors.Is(err, full) {
		t.Errorf("a sink that fails: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func FuzzIndex(f *testing.F) {
	x, _, sink := keep(f, programs()["a gap"])
	f.Add(sink.Bytes(), x.Bytes, int64(0))
	f.Add([]byte{}, int64(-5), int64(7))
	f.Fuzz(func(t *testing.T, blob []byte, size, offset int64) {
		x := kept.Index{Chunks: []kept.Chunk{{}, {At: min(int64(len(blob)), 100), Stdout: 5}}, Bytes: size, Stdout: 10}
		_ = x.Read(t.Context(), func(_ context.Context, offset, length int64) (io.ReadCloser, error) {
			from := min(max(offset, 0), int64(len(blob)))
			return io.NopCloser(bytes.NewReader(slices.Clone(blob[from:]))), nil
		}, offset, func(kept.Run) error { return nil })
	})
}
