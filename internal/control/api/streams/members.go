package streams

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Members writes the members of a JSON object, or the values of a list, one after the other, none of which needs to be in memory as a
// whole. There is no line break in what it writes. After an error it writes nothing more; Close says what it was.
type Members struct {
	w     *bufio.Writer
	err   error
	comma bool
}

// NewMembers writes to w. It must be closed.
func NewMembers(w io.Writer) *Members { return &Members{w: bufio.NewWriterSize(w, flushAt)} }

// Close writes what is left.
func (m *Members) Close() error {
	if m.err == nil {
		m.err = m.w.Flush()
	}
	return m.err
}

// Write implements io.Writer: a part of a value as it is.
func (m *Members) Write(p []byte) (int, error) {
	if m.err != nil {
		return 0, m.err
	}
	n, err := m.w.Write(p)
	m.err = err
	return n, err
}

func (m *Members) raw(s string) { _, _ = m.Write([]byte(s)) }

// Next begins a value of a list.
func (m *Members) Next() {
	if m.comma {
		m.raw(",")
	}
	m.comma = true
}

// Name begins a member.
func (m *Members) Name(name string) {
	m.Next()
	quoted, err := jsontext.AppendQuote(nil, name)
	if err != nil && m.err == nil {
		m.err = fmt.Errorf("encode the name of a member: %w", err)
	}
	_, _ = m.Write(append(quoted, ':'))
}

// Value writes a value that is small.
func (m *Members) Value(v any) {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil && m.err == nil {
		m.err = fmt.Errorf("encode a value: %w", err)
	}
	_, _ = m.Write(b)
}

// Member writes a member that is small.
func (m *Members) Member(name string, v any) {
	m.Name(name)
	m.Value(v)
}

// Open begins an object or a list, of which bracket is the first character; Shut ends it.
func (m *Members) Open(bracket string) {
	m.raw(bracket)
	m.comma = false
}

// Shut ends what Open began.
func (m *Members) Shut(bracket string) {
	m.raw(bracket)
	m.comma = true
}

// Text writes a string. Bytes that are no text become U+FFFD.
func (m *Members) Text(data []byte) {
	m.raw(`"`)
	var t Text
	var text, quoted []byte
	for ; len(data) > 0; data = data[min(len(data), flushAt):] {
		text = t.Append(text[:0], data[:min(len(data), flushAt)])
		quoted = appendQuoted(quoted[:0], text)
		_, _ = m.Write(quoted)
	}
	_, _ = m.Write(appendQuoted(nil, t.End(nil)))
	m.raw(`"`)
}

// JSON writes a value that is JSON already.
func (m *Members) JSON(data []byte) {
	for len(data) > 0 { // a line break in JSON is never part of a string
		n := 0
		for n < len(data) && data[n] != '\n' && data[n] != '\r' {
			n++
		}
		_, _ = m.Write(data[:n])
		if n < len(data) {
			m.raw(" ")
			n++
		}
		data = data[n:]
	}
}

// Base64 writes a string of bytes that fill writes.
func (m *Members) Base64(fill func(io.Writer) error) {
	m.raw(`"`)
	enc := base64.NewEncoder(base64.StdEncoding, m)
	if err := fill(enc); err != nil && m.err == nil {
		m.err = err
	}
	_ = enc.Close() // writes to m, which keeps the error
	m.raw(`"`)
}
