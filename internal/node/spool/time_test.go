package spool

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// clock is a time that a test sets.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.UnixMilli(1_772_366_400_123)} }

func (c *clock) options() Options     { return Options{Now: func() time.Time { return c.now }} }
func (c *clock) wait(d time.Duration) { c.now = c.now.Add(d) }

// timed writes what a reader sees as "bytes@seconds since the epoch of the clock".
func timed(t *testing.T, l *Log, epoch time.Time) (got []string) {
	t.Helper()
	r := l.NewReader(0)
	defer r.Close()
	for {
		c, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return got
		}
		got = append(got, fmt.Sprintf("%s@%v", c.Data, c.At.Sub(epoch)))
	}
}

func TestARunHasTheTimeOfItsFirstByteAndEndsAfterASecond(t *testing.T) {
	c := newClock()
	dir, epoch := t.TempDir(), c.now
	s := open(t, dir, c.options())
	l := newLog(t, s, 1<<20)
	var at int64
	say := func(stream cay.Stream, text string) {
		t.Helper()
		must(t, l.Append(stream, at, []byte(text)))
		at += int64(len(text))
	}
	say(cay.Stdout, "a")
	c.wait(600 * time.Millisecond)
	say(cay.Stdout, "b")
	c.wait(600 * time.Millisecond)
	say(cay.Stdout, "c")
	c.wait(time.Hour)
	say(cay.Stderr, "e")
	say(cay.Stdout, "d")
	c.wait(-2 * time.Hour) // a clock that is put back does not put output back
	say(cay.Stdout, "!")
	want := []string{"ab@0s", "c@1.2s", "e@1h0m1.2s", "d!@1h0m1.2s"}
	if got := timed(t, l, epoch); !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	must(t, l.Save())
	s.Close()
	again, ok := open(t, dir, c.options()).Get(l.Process().ID)
	if !ok {
		t.Fatal("not found after a restart")
	}
	if got := timed(t, again, epoch); !slices.Equal(got, want) {
		t.Errorf("after a restart: read %q, want %q", got, want)
	}
	var got []string
	_, err := again.Collect(cay.Stdout, func(c Chunk) error {
		got = append(got, fmt.Sprintf("%s@%v", c.Data, c.At.Sub(epoch)))
		return nil
	})
	must(t, err)
	if want := []string{"ab@0s", "c@1.2s", "d!@1h0m1.2s"}; !slices.Equal(got, want) {
		t.Errorf("collected %q, want %q", got, want)
	}
}

func TestOutputThatIsRepeatedKeepsItsTime(t *testing.T) {
	c := newClock()
	epoch := c.now
	l := newLog(t, open(t, t.TempDir(), c.options()), 1<<20)
	must(t, l.Append(cay.Stdout, 0, []byte("hello")))
	c.wait(time.Minute)
	must(t, l.Append(cay.Stdout, 0, []byte("hello world")))
	if got, want := timed(t, l, epoch), []string{"hello@0s", " world@1m0s"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
}

func TestSegmentsWithoutTimesAreReadAndNotAddedTo(t *testing.T) {
	c := newClock()
	dir, id := t.TempDir(), cay.NewID(cay.PrefixProcess)
	old := append([]byte(untimedMagic+"\x01"), make([]byte, 16)...)
	old = append(old, 0, 2, 'a', 'b', 1, 1, 'c') // between them a byte of stderr
	p := (&Spool{dir: dir}).processDir(id)
	must(t, os.Mkdir(p, 0o700))
	must(t, os.WriteFile(segmentPath(p, cay.Stdout, 0), old, 0o600))
	must(t, os.WriteFile(segmentPath(p, cay.Stderr, 0), append(append([]byte(untimedMagic+"\x02"), make([]byte, 16)...), 2, 1, 'x'), 0o600))
	l, ok := open(t, dir, c.options()).Get(id)
	if !ok || l.Produced() != 4 {
		t.Fatalf("found %v, with %d bytes", ok, l.Produced())
	}
	must(t, l.Append(cay.Stdout, 4, []byte("new")))
	var got []string
	r := l.NewReader(0)
	defer r.Close()
	for {
		c, ok, err := r.Next()
		must(t, err)
		if !ok {
			break
		}
		got = append(got, fmt.Sprintf("%s %v", c.Data, !c.At.IsZero()))
	}
	if want := []string{"ab false", "x false", "c false", "new true"}; !slices.Equal(got, want) {
		t.Errorf("read %q, want %q", got, want)
	}
	if kept, err := os.ReadFile(segmentPath(p, cay.Stdout, 0)); err != nil || string(kept) != string(old) {
		t.Errorf("the old segment is now %q, %v", kept, err)
	}
}
