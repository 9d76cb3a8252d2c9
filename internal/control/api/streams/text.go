// Package streams encodes a process's output for clients: text that never splits a character, JSON answers written as they come,
// server-sent events, WebSocket messages. It knows no routes and no nodes.
package streams

import (
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Text turns a run of bytes that arrives in chunks into valid UTF-8. A character that a chunk's edge cuts waits for its rest. Bytes
// that are no character become U+FFFD, one for each maximal subpart (Unicode 3.9, as browsers and Python do), and set Lossy.
type Text struct {
	Lossy bool

	pending  [utf8.UTFMax - 1]byte
	npending int
}

const replacement = "\uFFFD"

// Pending is how many bytes wait for the rest of their character: at most 3.
func (t *Text) Pending() int { return t.npending }

// Append appends to dst what p adds to the text.
func (t *Text) Append(dst, p []byte) []byte {
	if t.npending > 0 {
		if len(p) == 0 {
			return dst
		}
		// The character is complete, or proven to be none, after at most three more bytes.
		n := t.npending
		joined := append(slices.Clone(t.pending[:n]), p[:min(len(p), utf8.UTFMax-n)]...)
		t.npending = 0
		width, state := scan(joined)
		switch state {
		case whole:
			dst, p = append(dst, joined[:width]...), p[width-n:]
		case partial: // p was too short
			t.npending = copy(t.pending[:], joined)
			return dst
		case broken:
			t.Lossy = true
			dst, p = append(dst, replacement...), p[max(0, width-n):]
		}
	}
	for len(p) > 0 {
		n := validPrefix(p)
		dst, p = append(dst, p[:n]...), p[n:]
		if len(p) == 0 {
			break
		}
		width, state := scan(p)
		if state == partial {
			t.npending = copy(t.pending[:], p)
			break
		}
		t.Lossy = true
		dst, p = append(dst, replacement...), p[width:]
	}
	return dst
}

// Drop forgets the bytes that wait, and says how many they were.
func (t *Text) Drop() int {
	n := t.npending
	t.npending = 0
	return n
}

// continuation is how many bytes at the beginning of p continue a character that began before it: at most 3.
func continuation(p []byte) int {
	n := 0
	for n < min(len(p), utf8.UTFMax-1) && !utf8.RuneStart(p[n]) {
		n++
	}
	return n
}

// End appends what is left: a character that never got its rest.
func (t *Text) End(dst []byte) []byte {
	if t.npending == 0 {
		return dst
	}
	t.npending, t.Lossy = 0, true
	return append(dst, replacement...)
}

type scanState int

const (
	whole   scanState = iota // a character of width bytes
	partial                  // all of p is the beginning of a character
	broken                   // width bytes are a maximal subpart of no character
)

// validPrefix is the length of the longest prefix of p that is whole characters.
func validPrefix(p []byte) int {
	if utf8.Valid(p) {
		return len(p)
	}
	n := 0
	for n < len(p) {
		if p[n] < utf8.RuneSelf {
			n++
			continue
		}
		r, w := utf8.DecodeRune(p[n:])
		if r == utf8.RuneError && w == 1 {
			return n
		}
		n += w
	}
	return n
}

// scan looks at the first character of p, which is not empty.
func scan(p []byte) (width int, state scanState) {
	if r, w := utf8.DecodeRune(p); r != utf8.RuneError || w > 1 {
		return w, whole
	}
	// The longest beginning of a character: FullRune answers false exactly for those.
	for n := min(len(p), utf8.UTFMax-1); n > 0; n-- {
		if !utf8.FullRune(p[:n]) {
			if n == len(p) {
				return n, partial
			}
			return n, broken
		}
	}
	return 1, broken
}

// appendQuoted appends text, valid UTF-8, as the inside of a JSON string: escaped, without the quotes around it.
func appendQuoted(dst, text []byte) []byte {
	at := len(dst)
	dst, err := jsontext.AppendQuote(dst, text)
	if err != nil {
		panic("streams: text is not UTF-8") // Text makes valid UTF-8 only
	}
	copy(dst[at:], dst[at+1:len(dst)-1])
	return dst[:len(dst)-2]
}
