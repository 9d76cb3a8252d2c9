package wire

import (
	"fmt"
	"io"
)

// Every connection of an agent begins with a preamble of PreambleLen bytes: "cay", a version, its kind, and a token (zero for a
// control connection).

// PreambleLen is the length of a preamble in bytes.
const PreambleLen = 3 + 1 + 1 + TokenLen

// TokenLen is the length of the one-time token of a bulk connection, in bytes.
const TokenLen = 16

// ConnKind is what a connection of an agent is for.
type ConnKind uint8

const (
	ConnControl ConnKind = 1
	ConnBulk    ConnKind = 2
)

// Preamble is what an agent says first on a connection.
type Preamble struct {
	Kind  ConnKind
	Token [TokenLen]byte
}

// WritePreamble sends p.
func WritePreamble(w io.Writer, p Preamble) error {
	b := append([]byte{'c', 'a', 'y', 1, byte(p.Kind)}, p.Token[:]...)
	_, err := w.Write(b)
	return err
}

// ReadPreamble reads and checks a preamble. The caller sets a deadline.
func ReadPreamble(r io.Reader) (Preamble, error) {
	var b [PreambleLen]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Preamble{}, err
	}
	p := Preamble{Kind: ConnKind(b[4])}
	copy(p.Token[:], b[5:])
	if string(b[:4]) != "cay\x01" || p.Kind != ConnControl && p.Kind != ConnBulk {
		return Preamble{}, fmt.Errorf("%w: preamble", ErrFrame)
	}
	return p, nil
}
