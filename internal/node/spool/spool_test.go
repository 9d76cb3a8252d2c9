package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
)

func newLog(t testing.TB, s *Spool, maxOutput int64) *Log {
	t.Helper()
	l, err := s.Create(Process{ID: cay.NewID(cay.PrefixProcess), MaxOutput: maxOutput})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func open(t testing.TB, dir string, opts Options) *Spool {
	t.Helper()
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func collect(t testing.TB, l *Log, s cay.Stream) (data []byte, gaps []cay.Gap, size int64) {
	t.Helper()
	var next int64
	size, err := l.Collect(s, func(c Chunk) error {
		if c.Offset < next {
			return fmt.Errorf("chunk at %d where %d is next", c.Offset, next)
		}
		if c.Offset > next {
			gaps = append(gaps, cay.Gap{Offset: next, Bytes: c.Offset - next})
		}
		data = append(data, c.Data...)
		next = c.Offset + int64(len(c.Data))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if next < size {
		gaps = append(gaps, cay.Gap{Offset: next, Bytes: size - next})
	}
	return data, gaps, size
}

// readAll reads what is there and checks that chunks and gaps follow one another.
func readAll(t testing.TB, l *Log, from int64) (data [2][]byte, gaps [2]int64) {
	t.Helper()
	r := l.NewReader(from)
	defer r.Close()
	at := from
	for {
		c, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			if at != l.Produced() {
				t.Fatalf("reader stopped at %d of %d", at, l.Produced())
			}
			return data, gaps
		}
		if c.Offset != at {
			t.Fatalf("chunk at %d where %d is next", c.Offset, at)
		}
		data[c.Stream-1] = append(data[c.Stream-1], c.Data...)
		gaps[c.Stream-1] += c.Gap
		at += int64(len(c.Data)) + c.Gap
		if r.Offset() != at {
			t.Fatalf("reader says offset %d at %d", r.Offset(), at)
		}
	}
}

func TestBothStreamsAreReadInTheOrderProduced(t *testing.T) {
	l := newLog(t, open(t, t.TempDir(), Options{}), 1<<20)
	must(t, l.Append(cay.Stdout, 0, []byte("one ")))
	must(t, l.Append(cay.Stderr, 4, []byte("two ")))
	must(t, l.Append(cay.Stdout, 8, []byte("three")))
	data, gaps := readAll(t, l, 0)
	if string(data[0]) != "one three" || string(data[1]) != "two " || gaps != [2]int64{} {
		t.Fatalf("%q %q %v", data[0], data[1], gaps)
	}
	data, _ = readAll(t, l, 6)
	if string(data[0]) != "three" || string(data[1]) != "o " {
		t.Fatalf("from 6: %q %q", data[0], data[1])
	}
}

func TestRepeatedOutputIsSkippedAndHolesAreRefused(t *testing.T) {
	l := newLog(t, open(t, t.TempDir(), Options{}), 1<<20)
	must(t, l.Append(cay.Stdout, 0, []byte("hello")))
	must(t, l.Append(cay.Stdout, 2, []byte("llo world")))
	must(t, l.Append(cay.Stdout, 0, []byte("hello")))
	for _, offset := range []int64{12, -1, maxOffset} {
		if err := l.Append(cay.Stdout, offset, []byte("x")); !errors.Is(err, ErrOrder) {
			t.Errorf("offset %d: %v", offset, err)
		}
	}
	l.End(cay.ProcessExit{})
	if err := l.Append(cay.Stdout, 11, []byte("x")); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
	if data, _ := readAll(t, l, 0); string(data[0]) != "hello world" {
		t.Fatalf("%q", data[0])
	}
}

func TestPastTheLimitHeadAndTailAreKept(t *testing.T) {
	for _, limit := range []int64{1, 2, 1001, 128 << 10, 1 << 20} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			l := newLog(t, open(t, t.TempDir(), Options{}), limit)
			var all []byte
			for i := 0; int64(len(all)) < 3*limit+300_000; i++ {
				run := fmt.Appendf(nil, "%d,", i)
				must(t, l.Append(cay.Stdout, int64(len(all)), run))
				all = append(all, run...)
			}
			head, tail := halves(limit)
			want := append(bytes.Clone(all[:head]), all[int64(len(all))-tail:]...)
			data, gaps, size := collect(t, l, cay.Stdout)
			if !bytes.Equal(data, want) {
				t.Fatalf("kept %d bytes, want %d", len(data), len(want))
			}
			if size != int64(len(all)) || len(gaps) != 1 || gaps[0] != (cay.Gap{Offset: head, Bytes: size - limit}) {
				t.Fatalf("size %d of %d, gaps %v", size, len(all), gaps)
			}
			if used := l.disk(); used > 2*limit+3*minSegment+4096 {
				t.Fatalf("%d bytes on disk for a limit of %d", used, limit)
			}
		})
	}
}

func TestOneByteWritesInTurnStayBounded(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	l := newLog(t, s, 128<<10)
	for i := range int64(600_000) {
		must(t, l.Append(cay.Stream(i%2+1), i, []byte{byte(i)}))
	}
	if used := s.Used(); used > 4*2*(128<<10) {
		t.Fatalf("%d bytes on disk", used)
	}
	if n := len(l.streams[0].segs) + len(l.streams[1].segs); n > 20 {
		t.Fatalf("%d segments", n)
	}
	_, gaps := readAll(t, l, 0)
	if d := gaps[0] - gaps[1]; d < -minSegment || d > minSegment {
		t.Fatalf("gaps are not divided among the streams: %v", gaps)
	}
}

func TestReadersFollowWhileOutputComes(t *testing.T) {
	l := newLog(t, open(t, t.TempDir(), Options{}), 64<<20)
	const total = 8 << 20
	pattern := func(off int64) byte { return byte(off*7 + off>>9) }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			r := l.NewReader(0)
			defer r.Close()
			for {
				c, ok, err := r.Next()
				switch {
				case err != nil:
					t.Error(err)
					return
				case ok:
					for i, b := range c.Data {
						if b != pattern(c.Offset+int64(i)) {
							t.Errorf("wrong byte at %d", c.Offset+int64(i))
							return
						}
					}
					if c.Gap > 0 {
						t.Errorf("gap %+v", c)
						return
					}
				case l.Process().Exit != nil:
					if r.Offset() != total {
						t.Errorf("ended at %d", r.Offset())
					}
					return
				default:
					select {
					case <-l.After(r.Offset()):
					case <-ctx.Done():
						t.Error("no news in time")
						return
					}
				}
			}
		})
	}
	run := make([]byte, 10_007)
	for at := int64(0); at < total; {
		n := min(int64(len(run)), total-at)
		for i := range run[:n] {
			run[i] = pattern(at + int64(i))
		}
		must(t, l.Append(cay.Stream(1+at%2), at, run[:n]))
		at += n
	}
	l.End(cay.ProcessExit{})
	readers.Wait()
}

func TestARestartFindsOutputAndExits(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	l := newLog(t, s, 200_000)
	id := l.Process().ID
	var at int64
	for i := range 50 {
		run := bytes.Repeat([]byte{byte(i)}, 9_999)
		must(t, l.Append(cay.Stream(1+i%2), at, run))
		at += int64(len(run))
	}
	must(t, l.Save())
	wantData, wantGaps := readAll(t, l, 0)
	wantOut, _, _ := collect(t, l, cay.Stdout)
	s.Close()

	s = open(t, dir, Options{})
	l, ok := s.Get(id)
	if !ok || l.Produced() != at {
		t.Fatalf("found %v, produced %d of %d", ok, l.Produced(), at)
	}
	if data, gaps := readAll(t, l, 0); !bytes.Equal(data[0], wantData[0]) || !bytes.Equal(data[1], wantData[1]) || gaps != wantGaps {
		t.Fatal("reads differ after the restart")
	}
	if out, _, _ := collect(t, l, cay.Stdout); !bytes.Equal(out, wantOut) {
		t.Fatal("collected output differs after the restart")
	}
	must(t, l.Append(cay.Stdout, at, []byte("more")))
	if !l.End(cay.ProcessExit{Code: 3, Reason: cay.ExitExited}) || l.End(cay.ProcessExit{Code: 4}) {
		t.Fatal("the first end counts, and only the first")
	}
	must(t, l.Save())
	s.Close()

	s = open(t, dir, Options{})
	l, _ = s.Get(id)
	p := l.Process()
	if p.Exit == nil || p.Exit.Code != 3 || p.Exit.StdoutLen+p.Exit.StderrLen != at+4 {
		t.Fatalf("exit %+v", p.Exit)
	}
	if size, err := l.Collect(cay.Stdout, func(Chunk) error { return nil }); err != nil || size != p.Exit.StdoutLen {
		t.Fatalf("size %d, %v", size, err)
	}
}

func TestACutRecordLosesOnlyItself(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	l := newLog(t, s, 1<<20)
	must(t, l.Append(cay.Stdout, 0, []byte("whole")))
	must(t, l.Append(cay.Stdout, 5, []byte("cut")))
	path := segmentPath(l.dir, cay.Stdout, 0)
	fi, err := os.Stat(path)
	must(t, err)
	must(t, os.Truncate(path, fi.Size()-1))
	s.Close()
	l2, _ := open(t, dir, Options{}).Get(l.Process().ID)
	if l2.Produced() != 5 {
		t.Fatalf("produced %d", l2.Produced())
	}
	must(t, l2.Append(cay.Stdout, 5, []byte(" again")))
	if data, _ := readAll(t, l2, 0); string(data[0]) != "whole again" {
		t.Fatalf("%q", data[0])
	}
}

func TestTheQuotaTakesTheOutputOfTheLongestEnded(t *testing.T) {
	s := open(t, t.TempDir(), Options{Quota: 3 << 20})
	var ended []*Log
	for range 3 {
		l := newLog(t, s, 4<<20)
		must(t, l.Append(cay.Stdout, 0, make([]byte, 900_000)))
		l.End(cay.ProcessExit{})
		ended = append(ended, l)
	}
	live := newLog(t, s, 8<<20)
	for at := int64(0); at < 1_600_000; at += 64_000 {
		must(t, live.Append(cay.Stdout, at, make([]byte, 64_000)))
	}
	if _, gaps := readAll(t, ended[0], 0); gaps[0] != 900_000 {
		t.Errorf("the oldest still has output: %v", gaps)
	}
	if _, gaps := readAll(t, ended[2], 0); gaps[0] != 0 {
		t.Errorf("the newest lost output: %v", gaps)
	}
	if _, gaps := readAll(t, live, 0); gaps[0] != 0 {
		t.Errorf("the running one lost output: %v", gaps)
	}
	for at := live.Produced(); at < 20_000_000; at += 64_000 {
		must(t, live.Append(cay.Stdout, at, make([]byte, 64_000)))
	}
	if s.Used() > 3<<20 {
		t.Errorf("%d bytes used", s.Used())
	}
	if size, _ := live.Collect(cay.Stdout, func(Chunk) error { return nil }); size != live.Produced() {
		t.Errorf("size %d of %d", size, live.Produced())
	}
}

func TestEndedProcessesAreKeptForTheirTimeAndTheLastForLonger(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	s := open(t, t.TempDir(), Options{Keep: time.Minute, KeepLast: 2, MaxEnded: 4, Now: func() time.Time { return now }})
	var logs []*Log
	add := func() {
		l := newLog(t, s, 1000)
		must(t, l.Save())
		l.End(cay.ProcessExit{})
		logs = append(logs, l)
	}
	for range 3 {
		add()
	}
	if gone := s.Sweep(); len(gone) != 0 {
		t.Fatalf("gone at once: %v", gone)
	}
	now = now.Add(61 * time.Second)
	if gone := s.Sweep(); len(gone) != 1 || gone[0] != logs[0].Process().ID {
		t.Fatalf("gone: %v", gone)
	}
	if _, err := os.Stat(logs[0].dir); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
	must(t, logs[0].Save())
	if _, err := os.Stat(logs[0].dir); !os.IsNotExist(err) {
		t.Error("a save after the removal made its directory again")
	}
	for range 4 {
		add()
	}
	if n := len(s.Logs()); n != 4 {
		t.Errorf("%d kept of at most 4", n)
	}
}

func TestASkippedRunIsAGap(t *testing.T) {
	l := newLog(t, open(t, t.TempDir(), Options{}), 1<<20)
	must(t, l.Append(cay.Stderr, 0, []byte("ab")))
	l.Skip(10)
	l.Skip(3)
	must(t, l.Append(cay.Stderr, 10, []byte("cd")))
	data, gaps := readAll(t, l, 0)
	if string(data[1]) != "abcd" || gaps != [2]int64{8, 0} {
		t.Fatalf("%q %v", data[1], gaps)
	}
}

func TestOutputThatCannotBeStoredIsCountedAndSaid(t *testing.T) {
	dir := t.TempDir()
	l := newLog(t, open(t, dir, Options{}), 1<<20)
	must(t, os.WriteFile(l.dir, nil, 0o600)) // where the directory should be
	err := l.Append(cay.Stdout, 0, []byte("lost"))
	var se *StoreError
	if !errors.As(err, &se) {
		t.Fatalf("error %v", err)
	}
	must(t, os.Remove(l.dir))
	must(t, l.Append(cay.Stdout, 4, []byte("kept")))
	if data, gaps := readAll(t, l, 0); string(data[0]) != "kept" || gaps[0] != 4 {
		t.Fatalf("%q %v", data[0], gaps)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func BenchmarkAppend(b *testing.B) {
	l := newLog(b, open(b, b.TempDir(), Options{}), 0)
	run := make([]byte, 64<<10-8)
	b.SetBytes(int64(len(run)))
	b.ReportAllocs()
	for b.Loop() {
		must(b, l.Append(cay.Stdout, l.Produced(), run))
	}
}

func BenchmarkAppendAndFollow(b *testing.B) {
	l := newLog(b, open(b, b.TempDir(), Options{}), 0)
	r := l.NewReader(0)
	defer r.Close()
	run := make([]byte, 64<<10-8)
	b.SetBytes(int64(len(run)))
	b.ReportAllocs()
	for b.Loop() {
		must(b, l.Append(cay.Stdout, l.Produced(), run))
		for {
			_, ok, err := r.Next()
			must(b, err)
			if !ok {
				break
			}
		}
	}
}

func TestARecordThatWasNotCutToItsLengthIsRead(t *testing.T) {
	p, err := parseProcess([]byte(`{"id":"x","name":"new","max_output_bytes":9}"old","stdout_size":7}`))
	if err != nil || p.Name != "new" || p.StdoutSize != 0 {
		t.Fatalf("%+v %v", p, err)
	}
}

func TestOfALongCommandTheBeginningIsKept(t *testing.T) {
	s := open(t, t.TempDir(), Options{})
	kept := func(argv ...string) []string {
		l, err := s.Create(Process{ID: cay.NewID(cay.PrefixProcess), Command: argv})
		if err != nil {
			t.Fatal(err)
		}
		return l.Process().Command
	}
	if got := kept("echo", "", "short"); !slices.Equal(got, []string{"echo", "", "short"}) {
		t.Fatalf("%q", got)
	}
	got := kept("sh", "-c", strings.Repeat("é", 1<<20), "more")
	size := 0
	for _, arg := range got {
		size += len(arg)
	}
	if len(got) != 3 || got[0] != "sh" || !strings.HasSuffix(got[2], "é…") || !utf8.ValidString(got[2]) || size < maxCommand/2 || size > maxCommand+len("…") {
		t.Fatalf("%d arguments of %d bytes, the last ends in %q", len(got), size, got[len(got)-1][max(0, len(got[len(got)-1])-8):])
	}
	if got := kept(make([]string, 1<<20)...); len(got) > maxCommand+1 {
		t.Fatalf("%d empty arguments are kept", len(got))
	}
}

func TestAReaderThatLagsByLessThanTheMinimalTailMissesNothing(t *testing.T) {
	const lag = 600 << 10
	l := newLog(t, open(t, t.TempDir(), Options{MinTail: lag}), 1000) // far less than the lag
	r := l.NewReader(0)
	defer r.Close()
	var at, read int64
	for at < 4<<20 {
		must(t, l.Append(cay.Stdout, at, bytes.Repeat([]byte{byte(at >> 10)}, 1<<10)))
		at += 1 << 10
		for at-read >= lag-32<<10 {
			c, ok, err := r.Next()
			if err != nil || !ok || c.Gap > 0 {
				t.Fatalf("at %d of %d: %+v %v %v", read, at, c.Gap, ok, err)
			}
			read += int64(len(c.Data))
		}
	}
	if kept, _, _ := collect(t, l, cay.Stdout); len(kept) > 1000 {
		t.Errorf("the answer holds %d bytes of at most 1000", len(kept))
	}
}
