package journal_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cayhq/cay/internal/node/journal"
)

func add(t *testing.T, j *journal.Journal, from, to int) {
	t.Helper()
	for n := from; n < to; n++ {
		if err := j.Add(journal.Boot, journal.Info, fmt.Sprintf("message %d", n)); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, j *journal.Journal, after int64) []journal.Entry {
	t.Helper()
	entries, _, _, err := j.Read(journal.Position{Seq: after}, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func bytesIn(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		n += info.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEntriesComeBackInOrderAlsoToALaterProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	j := journal.Open(dir, 1<<20)
	if got := read(t, j, 0); len(got) != 0 {
		t.Errorf("an empty journal holds %v", got)
	}
	add(t, j, 1, 11)
	later := journal.Open(dir, 1<<20)
	add(t, later, 11, 21)
	for _, got := range [][]journal.Entry{read(t, later, 0), read(t, journal.Open(dir, 1<<20), 0)} {
		if len(got) != 20 {
			t.Fatalf("twenty entries became %d", len(got))
		}
		for i, e := range got {
			if e.Seq != int64(i+1) || e.Message != fmt.Sprintf("message %d", i+1) || e.Source != "boot" || e.Level != "info" || e.At.IsZero() {
				t.Errorf("entry %d is %+v", i+1, e)
			}
		}
	}
	if got := read(t, later, 15); len(got) != 5 || got[0].Seq != 16 {
		t.Errorf("after 15 there are %+v", got)
	}
}

func TestHeadAndTailAreKeptWithinTheBound(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	const limit = 16 << 10
	j := journal.Open(dir, limit)
	for n := 1; n <= 2000; n++ {
		add(t, j, n, n+1)
		if n%97 == 0 {
			j = journal.Open(dir, limit)
		}
	}
	if size := bytesIn(t, dir); size > limit || size < limit*3/4 {
		t.Errorf("%d bytes are kept of %d", size, limit)
	}
	got := read(t, j, 0)
	if got[0].Seq != 1 || got[len(got)-1].Seq != 2000 {
		t.Errorf("kept are %d to %d", got[0].Seq, got[len(got)-1].Seq)
	}
	gaps := 0
	for i := 1; i < len(got); i++ {
		if got[i].Seq != got[i-1].Seq+1 {
			gaps++
		}
	}
	if gaps != 1 {
		t.Errorf("there are %d gaps, want one between head and tail", gaps)
	}
}

func TestAReaderInPiecesSeesEachEntryOnce(t *testing.T) {
	j := journal.Open(filepath.Join(t.TempDir(), "logs"), 1<<20)
	at := journal.Position{}
	want := int64(1)
	for n := 1; n <= 500; n += 7 {
		add(t, j, n, n+7)
		for {
			entries, next, _, err := j.Read(at, 3)
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) == 0 {
				break
			}
			for _, e := range entries {
				if e.Seq != want {
					t.Fatalf("got entry %d, want %d", e.Seq, want)
				}
				want++
			}
			at = next
		}
	}
	if want < 500 {
		t.Errorf("only %d entries were read", want-1)
	}
}

func TestAReaderThatLagsGoesOnWithWhatIsKept(t *testing.T) {
	j := journal.Open(filepath.Join(t.TempDir(), "logs"), 8<<10)
	add(t, j, 1, 60)
	_, at, _, err := j.Read(journal.Position{}, 55)
	if err != nil {
		t.Fatal(err)
	}
	add(t, j, 60, 1000)
	last := at.Seq
	for {
		entries, next, _, err := j.Read(at, 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if e.Seq <= last {
				t.Fatalf("after %d came %d", last, e.Seq)
			}
			last = e.Seq
		}
		at = next
	}
	if last != 999 {
		t.Errorf("the last entry read is %d", last)
	}
}

func TestAWaiterIsWokenByAnEntryAndByTheEnd(t *testing.T) {
	j := journal.Open(filepath.Join(t.TempDir(), "logs"), 1<<20)
	_, at, grown, err := j.Read(journal.Position{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	add(t, j, 1, 2)
	<-grown
	entries, at, grown, err := j.Read(at, 10)
	if err != nil || len(entries) != 1 {
		t.Fatalf("got %v, %v", entries, err)
	}
	j.Close()
	j.Close()
	<-grown
	if entries, _, _, err := j.Read(at, 10); err != nil || len(entries) != 0 || !j.Closed() {
		t.Errorf("after the end there are %v, %v", entries, err)
	}
}

func TestAClosedJournalWritesNoMoreAndBringsNothingBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sandbox", "logs")
	if err := journal.Open(dir, 1<<20).Add(journal.Boot, journal.Info, "x"); err == nil {
		t.Error("it made the directory of a sandbox that is gone")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	j := journal.Open(dir, 1<<20)
	add(t, j, 1, 2)
	j.Close()
	before := bytesIn(t, dir)
	add(t, j, 2, 3)
	if bytesIn(t, dir) != before {
		t.Error("it went on writing")
	}
}

func TestWhatWasWrittenInPartIsCutOff(t *testing.T) {
	for name, rest := range map[string]string{"half a line": `{"seq":4,"at":"20`, "no JSON": "garbage\n", "an old number": `{"seq":1}` + "\n", "a long line": strings.Repeat("x", 100<<10)} {
		dir := filepath.Join(t.TempDir(), "logs")
		add(t, journal.Open(dir, 1<<20), 1, 4)
		f, err := os.OpenFile(filepath.Join(dir, "head"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(rest); err != nil {
			t.Fatal(err)
		}
		f.Close()
		j := journal.Open(dir, 1<<20)
		add(t, j, 4, 6)
		if got := read(t, journal.Open(dir, 1<<20), 0); len(got) != 5 || got[4].Message != "message 5" {
			t.Errorf("%s: left are %+v", name, got)
		}
	}
}

func TestMessagesAreMadeSafe(t *testing.T) {
	for given, want := range map[string]string{
		"plain ü 日本":                   "plain ü 日本",
		"a\x1b[31mred\x00\r\nb\tc\x7f": "a [31mred   b c ",
		"bad \xff\xfe utf8":            "bad \uFFFD utf8",
		"c1 \u0085 \u2028 \u202Eevil":  "c1      evil",
		"":                             "",
	} {
		if got := journal.Clean(given); got != want {
			t.Errorf("%q became %q, want %q", given, got, want)
		}
	}
	for _, long := range []string{strings.Repeat("a", 5000), strings.Repeat("日", 4000), strings.Repeat("\xff", 4096), strings.Repeat("\xffa", 3000), "a" + strings.Repeat("日", 2000)} {
		got := journal.Clean(long)
		if len(got) > journal.MaxMessage || len(got) < journal.MaxMessage-8 && strings.Trim(long, "\xff") != "" || !utf8.ValidString(got) || len(long) > journal.MaxMessage && !strings.HasSuffix(got, "…") {
			t.Errorf("%d bytes became %d: %q", len(long), len(got), got[max(0, len(got)-20):])
		}
	}
}

func FuzzMessagesAreMadeSafe(f *testing.F) {
	f.Add("a\x1b\xff\u202E")
	f.Add(strings.Repeat("日", 2000))
	f.Add(strings.Repeat("\xffa", 4000))
	dir := filepath.Join(f.TempDir(), "logs")
	f.Fuzz(func(t *testing.T, message string) {
		got := journal.Clean(message)
		if len(got) > journal.MaxMessage || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\x1b\u2028") || journal.Clean(got) != got {
			t.Errorf("%q became %q", message, got)
		}
		j := journal.Open(dir, 64<<10)
		if err := j.Add(journal.Agent, journal.Warn, message); err != nil {
			t.Fatal(err)
		}
		all := read(t, journal.Open(dir, 64<<10), 0)
		if all[len(all)-1].Message != got {
			t.Errorf("%q came back as %q", got, all[len(all)-1].Message)
		}
	})
}
