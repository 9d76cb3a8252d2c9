package streams

import (
	"encoding/base64"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
)

// SSE encodes the events of a process into a buffer that Flush writes out. It is used by one goroutine.
//
// The id of an event is the offset after it: where to attach again. An event after which a piece of a character of its own stream
// waits for its rest has the offset before that piece; while the other stream's piece waits, events have no id, so that a client that
// attaches again is told again what it may have lost rather than losing it.
type SSE struct {
	w        io.Writer
	enc      Encoding
	out      *[]byte
	scratch  *[]byte
	text     [3]Text // by cay.Stream
	delivery Delivery
	offset   int64 // after everything that was added
}

// NewSSE encodes for w.
func NewSSE(w io.Writer, enc Encoding) *SSE {
	return &SSE{w: w, enc: enc, out: getBuffer(), scratch: getBuffer()}
}

// Release gives the buffers back.
func (e *SSE) Release() {
	putBuffer(e.out)
	putBuffer(e.scratch)
	e.out, e.scratch = nil, nil
}

// Buffered is the number of bytes that wait for Flush.
func (e *SSE) Buffered() int { return len(*e.out) }

// Full reports that it is time to flush even while more is to come.
func (e *SSE) Full() bool { return len(*e.out) >= flushAt }

// Flush writes what was added.
func (e *SSE) Flush() error {
	if len(*e.out) == 0 {
		return nil
	}
	_, err := e.w.Write(*e.out)
	*e.out = (*e.out)[:0]
	return err
}

// Comment adds what keeps the connection alive.
func (e *SSE) Comment() { *e.out = append(*e.out, ": keep-alive\n\n"...) }

// Start adds the first event.
func (e *SSE) Start(process cay.ID, offset int64) error {
	e.offset = offset
	return e.event("start", offset, struct {
		ProcessID cay.ID `json:"process_id"`
		Offset    int64  `json:"offset"`
	}{process, offset})
}

// Data adds a run of one stream that begins at offset.
func (e *SSE) Data(s cay.Stream, offset int64, p []byte) {
	for len(p) > 0 {
		piece := p[:min(len(p), flushAt)]
		e.data(s, offset, piece)
		offset, p = offset+int64(len(piece)), p[len(piece):]
	}
}

func (e *SSE) data(s cay.Stream, offset int64, p []byte) {
	e.offset = offset + int64(len(p))
	if e.enc == Base64 {
		e.head(s.String(), e.offset)
		*e.out = append(*e.out, `{"data_base64":"`...)
		*e.out = base64.StdEncoding.AppendEncode(*e.out, p)
		*e.out = append(*e.out, "\"}\n\n"...)
		return
	}
	t := &e.text[s]
	*e.scratch = t.Append((*e.scratch)[:0], p)
	if len(*e.scratch) == 0 {
		return
	}
	e.textEvent(s, *e.scratch)
}

func (e *SSE) textEvent(s cay.Stream, text []byte) {
	id := e.offset - int64(e.text[s].Pending())
	if e.text[other(s)].Pending() > 0 {
		id = -1
	}
	e.head(s.String(), id)
	*e.out = append(*e.out, `{"data":"`...)
	*e.out = appendQuoted(*e.out, text)
	*e.out = append(*e.out, "\"}\n\n"...)
}

func other(s cay.Stream) cay.Stream {
	if s == cay.Stderr {
		return cay.Stdout
	}
	return cay.Stderr
}

// Gap adds that bytes of a stream are missing for this reader.
func (e *SSE) Gap(s cay.Stream, g cay.Gap) error {
	e.endText(s)
	e.delivery.AddGap(s, &g)
	e.offset = g.Offset + g.Bytes
	return e.event("gap", e.offset, struct {
		Stream string `json:"stream"`
		Offset int64  `json:"offset"`
		Bytes  int64  `json:"bytes"`
	}{s.String(), g.Offset, g.Bytes})
}

// Exit adds the last event, and before it what was left of cut characters.
func (e *SSE) Exit(o Outcome, truncated PerStream) error {
	e.endText(cay.Stdout)
	e.endText(cay.Stderr)
	d := e.delivery
	d.Truncated.Stdout = d.Truncated.Stdout || truncated.Stdout
	d.Truncated.Stderr = d.Truncated.Stderr || truncated.Stderr
	d.Lossy = PerStream{Stdout: e.text[cay.Stdout].Lossy, Stderr: e.text[cay.Stderr].Lossy}
	return e.event("exit", e.offset, Exit{o, d})
}

// Members adds an event whose data is one object that members writes, straight to the client. An event that cannot be finished is left
// without its end; the caller must cut the connection then.
func (e *SSE) Members(name string, members func(io.Writer) error) error {
	e.head(name, e.offset)
	*e.out = append(*e.out, '{')
	if err := e.Flush(); err != nil {
		return err
	}
	if err := members(e.w); err != nil {
		return err
	}
	*e.out = append(*e.out, "}\n\n"...)
	return e.Flush()
}

// Error adds the event that says why the stream ends without an exit.
func (e *SSE) Error(reason cay.ErrorReason, detail string) error {
	e.endText(cay.Stdout)
	e.endText(cay.Stderr)
	return e.event("error", -1, Failure{reason, detail})
}

// Failure is the body of an error event or message.
type Failure struct {
	Reason cay.ErrorReason `json:"reason"`
	Detail string          `json:"detail"`
}

func (e *SSE) endText(s cay.Stream) {
	if rest := e.text[s].End(nil); len(rest) > 0 {
		e.textEvent(s, rest)
	}
}

// head begins an event; id -1: none.
func (e *SSE) head(name string, id int64) {
	if id >= 0 {
		*e.out = append(*e.out, "id: "...)
		*e.out = strconv.AppendInt(*e.out, id, 10)
		*e.out = append(*e.out, '\n')
	}
	*e.out = append(*e.out, "event: "...)
	*e.out = append(*e.out, name...)
	*e.out = append(*e.out, "\ndata: "...)
}

func (e *SSE) event(name string, id int64, body any) error {
	data, err := json.Marshal(body, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode event %s: %w", name, err)
	}
	e.head(name, id)
	*e.out = append(append(*e.out, data...), "\n\n"...)
	return nil
}
