package streams

import (
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
)

// Feed encodes server-sent events whose data are JSON objects, each with an id of its own or none, and writes them out at Flush. It is
// used by one goroutine. Between a Flush and the next event it holds no buffer, so that a stream that waits costs next to nothing.
type Feed struct {
	w   io.Writer
	out *[]byte // nil: nothing waits
}

// NewFeed encodes for w.
func NewFeed(w io.Writer) *Feed { return &Feed{w: w} }

// Comment adds what keeps the connection alive.
func (f *Feed) Comment() { f.Remark("keep-alive") }

// Remark adds a comment, a word for people who look at the stream: programs do not see it.
func (f *Feed) Remark(word string) { f.add(": ", word, "\n\n") }

// Event adds an event. name and id hold no line breaks; id "" is none. What was added before goes out when it is much.
func (f *Feed) Event(name, id string, body any) error {
	data, err := json.Marshal(body, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encode event %s: %w", name, err)
	}
	if id != "" {
		f.add("id: ", id, "\n")
	}
	f.add("event: ", name, "\ndata: ")
	*f.out = append(*f.out, data...)
	f.add("\n\n")
	if len(*f.out) >= flushAt {
		return f.Flush()
	}
	return nil
}

func (f *Feed) add(text ...string) {
	if f.out == nil {
		f.out = getBuffer()
	}
	for _, t := range text {
		*f.out = append(*f.out, t...)
	}
}

// Flush writes what was added. After an error the feed is of no more use.
func (f *Feed) Flush() error {
	if f.out == nil {
		return nil
	}
	_, err := f.w.Write(*f.out)
	putBuffer(f.out)
	f.out = nil
	return err
}
