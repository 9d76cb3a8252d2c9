package streams

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
)

// flushAt is how much encoded output is gathered before it is written.
const flushAt = 32 << 10

// buffers hold encoded output on its way out. A chunk of 64 KiB that is all control characters grows sixfold.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 2*flushAt); return &b }}

const maxPooled = 1 << 20

func getBuffer() *[]byte {
	b := buffers.Get().(*[]byte)
	*b = (*b)[:0]
	return b
}

func putBuffer(b *[]byte) {
	if cap(*b) <= maxPooled {
		buffers.Put(b)
	}
}

// ErrOrder is output that came back to a stream after the next one had begun.
var ErrOrder = errors.New("output of two streams is mixed")

// Result writes the JSON answer of an exec while its output is still arriving, so that an answer of any size costs one chunk of
// memory: how it ended, then the kept bytes of one stream, then of the other. An answer that cannot be finished is left without its
// end; the caller must cut the connection then, so that nobody takes it for whole.
type Result struct {
	w   io.Writer
	enc Encoding
	out *[]byte

	open     cay.Stream // whose string is open; 0: none
	done     PerStream  // whose string has been closed
	text     Text
	b64      base64Run
	scratch  *[]byte
	delivery Delivery

	cut *cay.Gap // text: the gap that the next bytes stand behind
}

// NewResult begins the answer. Nothing is written before a first buffer has filled or End is called.
func NewResult(w io.Writer, enc Encoding, o Outcome) (*Result, error) {
	head, err := json.Marshal(o, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode the outcome: %w", err)
	}
	r := &Result{w: w, enc: enc, out: getBuffer(), scratch: getBuffer()}
	*r.out = append(*r.out, head[:len(head)-1]...) // the object stays open
	return r, nil
}

// Data adds bytes of a stream. Once the other stream has begun, a stream cannot come back: ErrOrder.
func (r *Result) Data(s cay.Stream, p []byte) error {
	if err := r.turnTo(s); err != nil {
		return err
	}
	if r.cut != nil && len(p) > 0 {
		n := continuation(p)
		r.cut.Bytes += int64(n)
		r.cut, p = nil, p[n:]
	}
	for len(p) > 0 { // in pieces, so that the buffer stays small whatever a chunk's size
		piece := p[:min(len(p), flushAt)]
		p = p[len(piece):]
		if r.enc == Base64 {
			*r.out = r.b64.append(*r.out, piece)
		} else {
			*r.scratch = r.text.Append((*r.scratch)[:0], piece)
			*r.out = appendQuoted(*r.out, *r.scratch)
		}
		if err := r.flush(flushAt); err != nil {
			return err
		}
	}
	return nil
}

// Gap says that bytes of a stream are missing here; offset counts that stream alone. In text, what is left of a character that the
// gap cut is missing as well: nothing is shown that the process did not write.
func (r *Result) Gap(s cay.Stream, g cay.Gap) error {
	if err := r.turnTo(s); err != nil {
		return err
	}
	if r.enc == UTF8 {
		n := int64(r.text.Drop())
		g.Offset, g.Bytes, r.cut = g.Offset-n, g.Bytes+n, &g
	}
	r.delivery.AddGap(s, &g)
	return nil
}

// End finishes the answer. more, if it is not nil, writes further members behind a comma.
func (r *Result) End(more func(io.Writer) error) error {
	for _, s := range []cay.Stream{cay.Stdout, cay.Stderr} {
		if r.open != s && !r.isDone(s) {
			if err := r.turnTo(s); err != nil {
				return err
			}
		}
	}
	r.close()
	tail, err := json.Marshal(r.delivery, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode the end: %w", err)
	}
	*r.out = append(*r.out, ',')
	*r.out = append(*r.out, tail[1:len(tail)-1]...)
	if more != nil {
		*r.out = append(*r.out, ',')
		if err := r.flush(1); err != nil {
			return err
		}
		if err := more(r.w); err != nil {
			return err
		}
	}
	*r.out = append(*r.out, "}\n"...)
	return r.flush(1)
}

// Release gives the buffers back. The Result is of no use afterwards.
func (r *Result) Release() {
	putBuffer(r.out)
	putBuffer(r.scratch)
	r.out, r.scratch = nil, nil
}

func (r *Result) isDone(s cay.Stream) bool {
	return s == cay.Stdout && r.done.Stdout || s == cay.Stderr && r.done.Stderr
}

func (r *Result) turnTo(s cay.Stream) error {
	if r.open == s {
		return nil
	}
	if r.isDone(s) {
		return ErrOrder
	}
	r.close()
	r.open = s
	*r.out = append(append(*r.out, `,"`...), s.String()...)
	if r.enc == Base64 {
		*r.out = append(*r.out, "_base64"...)
	}
	*r.out = append(*r.out, `":"`...)
	return nil
}

func (r *Result) close() {
	if r.open == 0 {
		return
	}
	r.cut = nil
	if r.enc == Base64 {
		*r.out = r.b64.end(*r.out)
	} else {
		*r.out = appendQuoted(*r.out, r.text.End(nil))
		if r.text.Lossy {
			r.delivery.Lossy.set(r.open)
		}
	}
	*r.out = append(*r.out, '"')
	r.done.set(r.open)
	r.open, r.text, r.b64 = 0, Text{}, base64Run{}
}

func (r *Result) flush(from int) error {
	if len(*r.out) < from {
		return nil
	}
	_, err := r.w.Write(*r.out)
	*r.out = (*r.out)[:0]
	return err
}
