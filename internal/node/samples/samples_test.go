package samples_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/node/samples"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at is the nth of samples that are 5 s apart, each of which used half a core since the one before.
func at(n int) samples.Sample {
	return samples.Sample{
		At: epoch.Add(time.Duration(n) * 5 * time.Second), CPU: time.Duration(n) * 2500 * time.Millisecond, Memory: int64(n), Peak: 1000,
		Disk: 7, PIDs: 3, Rx: 1, Tx: 2,
	}
}

func fill(t *testing.T, r *samples.Ring, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if err := r.Append(at(n)); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, r *samples.Ring, from, to, limit int) []samples.Sample {
	t.Helper()
	got, err := r.Read(at(from).At, at(to).At, limit)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestSamplesComeBackAsTheyWere(t *testing.T) {
	r := samples.Open(filepath.Join(t.TempDir(), "samples"), 100)
	if got := read(t, r, 0, 1000, 10); got != nil {
		t.Errorf("an empty ring holds %v", got)
	}
	fill(t, r, 0, 10)
	got := read(t, r, 0, 1000, 100)
	if len(got) != 10 {
		t.Fatalf("ten samples became %d", len(got))
	}
	for n, s := range got {
		want := at(n)
		if n > 0 {
			want.Cores = 0.5
		}
		if s != want {
			t.Errorf("sample %d is %+v, want %+v", n, s, want)
		}
	}
	if got := read(t, r, 3, 5, 100); len(got) != 3 || got[0].Memory != 3 || got[0].Cores != 0.5 || got[2].Memory != 5 {
		t.Errorf("from 3 to 5 there are %+v", got)
	}
	if got := read(t, r, 5, 3, 100); len(got) != 0 {
		t.Errorf("a span that ends before it begins holds %+v", got)
	}
}

func TestAFullRingDropsTheOldestAndGrowsNoFurther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	r := samples.Open(path, 100)
	fill(t, r, 0, 100)
	full := size(t, path)
	fill(t, r, 100, 257)
	if got := size(t, path); got != full {
		t.Errorf("the file grew from %d to %d bytes", full, got)
	}
	got := read(t, r, 0, 1000, 1000)
	if len(got) != 100 || got[0].Memory != 157 || got[99].Memory != 256 {
		t.Errorf("%d samples from %v to %v", len(got), got[0].Memory, got[len(got)-1].Memory)
	}
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestALaterProcessGoesOnWhereTheFormerStopped(t *testing.T) {
	for _, already := range []int{1, 60, 100, 130} {
		path := filepath.Join(t.TempDir(), "samples")
		fill(t, samples.Open(path, 100), 0, already)
		r := samples.Open(path, 100)
		if got := read(t, r, 0, 1000, 1000); len(got) != min(already, 100) || got[len(got)-1].Memory != int64(already-1) {
			t.Errorf("of %d samples a later process finds %d", already, len(got))
		}
		r = samples.Open(path, 100)
		fill(t, r, already, already+50)
		got := read(t, r, 0, 1000, 1000)
		if len(got) != min(already+50, 100) {
			t.Errorf("%d and 50 samples became %d", already, len(got))
		}
		for i := 1; i < len(got); i++ {
			if got[i].Memory != got[i-1].Memory+1 {
				t.Errorf("after %d comes %d", got[i-1].Memory, got[i].Memory)
			}
		}
	}
}

func TestADamagedRecordIsLeftOutAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	fill(t, samples.Open(path, 100), 0, 50)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	record := len(b) / 51 // the first record has number 1 and lies in slot 1
	b[10*record+20] ^= 1
	if err := os.WriteFile(path, b[:len(b)-record/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(t, samples.Open(path, 100), 0, 1000, 1000); len(got) != 48 {
		t.Errorf("with one damaged and one cut off, %d of 50 are left", len(got))
	}
}

func TestThinningKeepsTheSpanAndTheUse(t *testing.T) {
	r := samples.Open(filepath.Join(t.TempDir(), "samples"), 2000)
	fill(t, r, 0, 1000)
	for _, limit := range []int{1, 2, 3, 7, 100, 334, 999, 1000, 5000} {
		got := read(t, r, 100, 899, limit)
		if len(got) == 0 || len(got) > limit || len(got) < min(limit, 800)/2 || got[len(got)-1].Memory != 899 {
			t.Errorf("of 800 samples a limit of %d leaves %d", limit, len(got))
			continue
		}
		for _, s := range got {
			if math.Abs(s.Cores-0.5) > 1e-9 {
				t.Errorf("limit %d: %v cores", limit, s.Cores)
			}
		}
	}
	if got := read(t, r, 100, 899, 0); len(got) != 0 {
		t.Errorf("a limit of 0 leaves %d", len(got))
	}
}

func TestAClockThatGoesBackLosesNothing(t *testing.T) {
	r := samples.Open(filepath.Join(t.TempDir(), "samples"), 100)
	fill(t, r, 50, 60)
	fill(t, r, 40, 45)
	got := read(t, r, 0, 1000, 100)
	if len(got) != 15 {
		t.Fatalf("15 samples became %d", len(got))
	}
	for _, s := range got {
		if s.Cores < 0 || math.IsInf(s.Cores, 0) || math.IsNaN(s.Cores) {
			t.Errorf("%v cores", s.Cores)
		}
	}
}

func TestAClosedRingWritesNoMore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "samples")
	r := samples.Open(path, 100)
	r.Close()
	fill(t, r, 0, 1)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file is there: %v", err)
	}
	if got := read(t, r, 0, 10, 10); len(got) != 0 {
		t.Errorf("it holds %v", got)
	}
}

func FuzzWhateverTheFileHoldsCanBeRead(f *testing.F) {
	path := filepath.Join(f.TempDir(), "seed")
	r := samples.Open(path, 8)
	for n := range 3 {
		if err := r.Append(at(n)); err != nil {
			f.Fatal(err)
		}
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "samples")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		r := samples.Open(path, 8)
		if got := read(t, r, 0, 1<<20, 100); len(got) > 8 {
			t.Errorf("eight slots hold %d samples", len(got))
		}
		fill(t, r, 0, 9)
	})
}

func BenchmarkAppend(b *testing.B) {
	r := samples.Open(filepath.Join(b.TempDir(), "samples"), 17280)
	for n := 0; b.Loop(); n++ {
		if err := r.Append(at(n)); err != nil {
			b.Fatal(err)
		}
	}
}
