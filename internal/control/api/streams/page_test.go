package streams

import (
	"testing"

	"github.com/cayhq/cay"
)

// textOf is what the runs are without pages.
func textOf(owner []cay.Stream, data []byte) (text [2]string) {
	for i := range text {
		var t Text
		var out []byte
		for k, b := range data {
			if owner[k] == cay.Stream(i+1) {
				out = t.Append(out, []byte{b})
			}
		}
		text[i] = string(t.End(out))
	}
	return text
}

// FuzzPage: pages of whatever length make the same text as the whole, as long as a page can hold the character that its end would cut.
func FuzzPage(f *testing.F) {
	f.Add([]byte("caf\xc3\xa9 \xe6\x97\xa5\xff"), []byte{0, 1, 0, 0, 1}, byte(8))
	f.Add([]byte("\xc3\xc3\xa9\xa9"), []byte{0, 1, 0, 1}, byte(20))
	f.Fuzz(func(t *testing.T, data, owners []byte, limit byte) {
		if len(data) > 4096 {
			return
		}
		owner := make([]cay.Stream, len(data))
		for i := range owner {
			owner[i] = cay.Stdout
			if len(owners) > 0 && owners[i%len(owners)]&1 == 1 {
				owner[i] = cay.Stderr
			}
		}
		var got [2]string
		held := false
		for at := 0; at < len(data); {
			end := min(at+max(int(limit), 8), len(data))
			p := NewPage(int64(at))
			for i := at; i < end; i++ {
				p.Data(owner[i], data[i:i+1])
			}
			next := int(p.End(end == len(data), end < len(data)))
			if next <= at || next > end {
				t.Fatalf("a page from %d to %d leads to %d", at, end, next)
			}
			held = held || next == end && end < len(data) && (p.decoder[0].Lossy || p.decoder[1].Lossy)
			for i := range got {
				got[i] += string(p.Text[i])
			}
			at = next
		}
		if want := textOf(owner, data); got != want && !held {
			t.Fatalf("%q became %q", want, got)
		}
	})
}

func TestAPageThatWaitsForACharacterSaysSoUntilItCanWaitNoMore(t *testing.T) {
	p := NewPage(5)
	p.Data(cay.Stdout, []byte("\xc3"))
	p.Data(cay.Stderr, []byte("err"))
	if next := p.End(false, false); next != 5 || len(p.Text[0])+len(p.Text[1]) != 0 {
		t.Errorf("next is %d, text %q", next, p.Text)
	}
	p = NewPage(5)
	p.Data(cay.Stdout, []byte("\xc3"))
	p.Data(cay.Stderr, make([]byte, maxHeld))
	if next := p.End(false, false); next != 6+maxHeld || !p.Lossy.Stdout || p.Lossy.Stderr {
		t.Errorf("next is %d, lossy %v", next, p.Lossy)
	}
}
