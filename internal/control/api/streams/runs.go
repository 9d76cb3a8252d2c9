package streams

import (
	"slices"
	"time"
	"unicode/utf8"
)

// Run is a piece of a job's output as one frame carries it.
type Run struct {
	Stream string // stdout or stderr
	Seq    int64  // the position after it
	At     time.Time
	Data   []byte // valid until the next call
	Text   bool   // Data is UTF-8
}

// Runs cuts output that arrives in pieces, each with the position after it, into runs that split no character: the beginning of one
// waits for its rest, and its position with it. What turns out to be no text, and a character of which a reader who began in its middle
// sees the end alone, are bytes. Together the runs are exactly what arrived. It is used by one goroutine.
type Runs struct {
	Emit func(Run) error

	held Run // the beginning of a character; no data: nothing waits
}

// Add takes a piece that begins where the last one ended.
func (r *Runs) Add(p Run) error {
	if r.held.Stream != p.Stream {
		if err := r.Flush(); err != nil {
			return err
		}
	}
	data := p.Data
	if len(r.held.Data) == 0 {
		if n := continuation(data); n > 0 {
			if err := r.Emit(Run{Stream: p.Stream, Seq: p.Seq - int64(len(data)-n), At: p.At, Data: data[:n]}); err != nil {
				return err
			}
			data = data[n:]
		}
	} else {
		data = append(r.held.Data, data...)
	}
	whole := len(data) - cut(data)
	r.held = Run{Stream: p.Stream, Seq: p.Seq, At: p.At, Data: slices.Clone(data[whole:])}
	if whole == 0 {
		return nil
	}
	return r.Emit(Run{Stream: p.Stream, Seq: p.Seq - int64(len(data)-whole), At: p.At, Data: data[:whole], Text: utf8.Valid(data[:whole])})
}

// Flush emits what waits, as bytes. It must precede whatever else has a position.
func (r *Runs) Flush() error {
	held := r.held
	r.held = Run{}
	if len(held.Data) == 0 {
		return nil
	}
	return r.Emit(held)
}

// cut is how many bytes at the end of p are the beginning of a character: at most 3.
func cut(p []byte) int {
	for n := 1; n <= min(len(p), utf8.UTFMax-1); n++ {
		if tail := p[len(p)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
