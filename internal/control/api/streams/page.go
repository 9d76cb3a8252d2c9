package streams

import "github.com/cayhq/cay"

// maxHeld is how many bytes of output a page of text may keep back for the sake of a character that waits for its rest.
const maxHeld = 64 << 10

// Page makes text of a page of output, run by run, so that pages in a row make the same text as the whole: a page ends before a
// character whose rest is not in it, and the next one begins there.
type Page struct {
	Text  [2][]byte // of stdout and stderr
	Lossy PerStream
	Gaps  []LogGap

	start, next int64
	decoder     [2]Text
	clean       struct { // the page as it was when last no character was cut
		next  int64
		len   [2]int
		lossy PerStream
		gaps  int
	}
}

// LogGap is a run of a stream that was not kept.
type LogGap struct {
	Stream string `json:"stream" enum:"stdout,stderr"`
	Offset int64  `json:"offset" doc:"Counting stdout and stderr together"`
	Bytes  int64  `json:"bytes"`
}

// NewPage begins a page at an offset, which counts both streams together.
func NewPage(offset int64) *Page {
	p := &Page{start: offset, next: offset}
	p.clean.next = offset
	return p
}

// Data adds a run that begins where the page ends.
func (p *Page) Data(s cay.Stream, data []byte) {
	d := &p.decoder[s-1]
	p.Text[s-1] = d.Append(p.Text[s-1], data)
	p.next += int64(len(data))
	if d.Pending() <= len(data) { // else an earlier run holds the beginning of the character
		p.settle(s, int64(d.Pending()))
	}
}

// Gap adds that bytes of a stream are missing where the page ends.
func (p *Page) Gap(s cay.Stream, bytes int64) {
	p.Text[s-1] = p.decoder[s-1].End(p.Text[s-1])
	p.Gaps = append(p.Gaps, LogGap{s.String(), p.next, bytes})
	p.next += bytes
	p.settle(s, 0)
}

// settle notes that the page could end here but for the last pending bytes, which are of s. Not while the other stream's character waits.
func (p *Page) settle(s cay.Stream, pending int64) {
	p.Lossy = PerStream{Stdout: p.decoder[0].Lossy, Stderr: p.decoder[1].Lossy}
	if p.decoder[other(s)-1].Pending() > 0 {
		return
	}
	p.clean.next = p.next - pending
	p.clean.len = [2]int{len(p.Text[0]), len(p.Text[1])}
	p.clean.lossy, p.clean.gaps = p.Lossy, len(p.Gaps)
}

// End finishes the page and says at which offset the next one begins. whole: nothing follows, ever. more: something follows already,
// so that holding everything back would never end.
func (p *Page) End(whole, more bool) (next int64) {
	held := p.next - p.clean.next
	if held > 0 && !whole && (p.clean.next > p.start || !more && held <= maxHeld) {
		for i := range p.Text {
			p.Text[i] = p.Text[i][:p.clean.len[i]]
		}
		p.Lossy, p.Gaps = p.clean.lossy, p.Gaps[:p.clean.gaps]
		return p.clean.next
	}
	for i := range p.Text {
		p.Text[i] = p.decoder[i].End(p.Text[i])
	}
	p.Lossy = PerStream{Stdout: p.decoder[0].Lossy, Stderr: p.decoder[1].Lossy}
	return p.next
}
