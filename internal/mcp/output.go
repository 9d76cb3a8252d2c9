package mcp

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxStream bounds what a result shows of one stream, in bytes: half of it head, half tail.
const maxStream = 16 << 10

// window keeps the head and the tail of a stream as it comes, in bounded memory.
type window struct {
	head  []byte
	tail  []byte // the newest bytes after head, up to twice what is shown of them
	size  int64  // of the stream
	lost  int64  // bytes that the server did not keep
	limit int    // of head and of tail, each
}

func newWindow(limit int) *window { return &window{limit: limit / 2} }

func (w *window) Write(p []byte) (int, error) {
	n := len(p)
	w.size += int64(n)
	if room := w.limit - len(w.head); room > 0 {
		take := min(room, len(p))
		w.head, p = append(w.head, p[:take]...), p[take:]
	}
	if len(p) > w.limit {
		p = p[len(p)-w.limit:]
	}
	w.tail = append(w.tail, p...)
	if len(w.tail) > 2*w.limit { // moved rarely, so that a byte is copied once on average
		w.tail = append(w.tail[:0], w.tail[len(w.tail)-w.limit:]...)
	}
	return n, nil
}

func (w *window) gap(bytes int64) { w.size, w.lost = w.size+bytes, w.lost+bytes }

// text is what is kept, with a line that says what is left out. lossy: it held bytes that are not UTF-8, which U+FFFD stands for.
func (w *window) text() (text string, truncated, lossy bool) {
	tail := w.tail
	if len(tail) > w.limit {
		tail = tail[len(tail)-w.limit:]
	}
	missing := w.size - int64(len(w.head)) - int64(len(tail))
	if missing <= 0 {
		text, lossy = valid(append(bytes.Clone(w.head), tail...))
		return text, false, lossy
	}
	head, tail := withoutPartialEnd(w.head), withoutPartialBegin(tail)
	missing = w.size - int64(len(head)) - int64(len(tail))
	first, lossyHead := valid(head)
	last, lossyTail := valid(tail)
	return fmt.Sprintf("%s\n[… %d bytes left out …]\n%s", strings.TrimSuffix(first, "\n"), missing, strings.TrimPrefix(last, "\n")), true, lossyHead || lossyTail
}

// valid is b as UTF-8. lossy: some of it was not.
func valid(b []byte) (text string, lossy bool) {
	if utf8.Valid(b) {
		return string(b), false
	}
	return string(bytes.ToValidUTF8(b, []byte("\uFFFD"))), true
}

// withoutPartialEnd drops a character that was cut off at the end.
func withoutPartialEnd(b []byte) []byte {
	for i := 1; i <= min(utf8.UTFMax-1, len(b)); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			return b
		}
	}
	return b
}

// withoutPartialBegin drops what is left of a character that was cut off at the beginning.
func withoutPartialBegin(b []byte) []byte {
	for i := 0; i < min(utf8.UTFMax-1, len(b)); i++ {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}

// lastLine keeps the last line of a stream that is not empty, for progress.
type lastLine struct {
	line []byte // the one that is being written
	done string // the last that was ended
}

const maxLine = 200 // bytes of a line in a progress message

func (l *lastLine) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\r\n")
		part := p
		if i >= 0 {
			part = p[:i]
		}
		if room := maxLine - len(l.line); room > 0 {
			l.line = append(l.line, part[:min(room, len(part))]...)
		}
		if i < 0 {
			break
		}
		if text := strings.TrimSpace(printable(l.line)); text != "" {
			l.done = text
		}
		l.line, p = l.line[:0], p[i+1:]
	}
	return n, nil
}

func (l *lastLine) text() string {
	if text := strings.TrimSpace(printable(l.line)); text != "" {
		return text
	}
	return l.done
}

// printable is b as a text of one line: clients show it as it comes, so that control characters are left out.
func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, string(b))
}
