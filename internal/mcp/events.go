package mcp

import (
	"net/http"
	"sync"
	"time"
)

// eventWriter is an answer that may be a stream of events: while a stream is silent it gets comments, so that nobody between takes it
// for dead, and a client that takes nothing is cut.
type eventWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	quit    chan struct{}
	ended   sync.WaitGroup

	mu     sync.Mutex
	stream bool      // the answer is a stream of events, whose header is complete; guarded by mu
	last   time.Time // of what was written; guarded by mu
}

func newEventWriter(w http.ResponseWriter) *eventWriter {
	e := &eventWriter{ResponseWriter: w, control: http.NewResponseController(w), quit: make(chan struct{}), last: time.Now()}
	e.ended.Go(e.comment)
	return e
}

// stop ends the comments. The answer is not written to after it.
func (e *eventWriter) stop() {
	close(e.quit)
	e.ended.Wait()
}

// Write takes whole events only, as the SDK gives them: comments go between.
func (e *eventWriter) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.writeLocked(p)
}

// begin says that a call is being served whose answer is a stream: its header is complete, since the SDK writes it before it passes
// the call on.
func (e *eventWriter) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stream = true
}

func (e *eventWriter) writeLocked(p []byte) (int, error) {
	_ = e.control.SetWriteDeadline(time.Now().Add(writePatience)) // not every writer has deadlines
	e.last = time.Now()
	return e.ResponseWriter.Write(p)
}

// FlushError implements what http.ResponseController looks for.
func (e *eventWriter) FlushError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.control.Flush()
}

func (e *eventWriter) comment() {
	tick := time.NewTicker(commentEvery / 3)
	defer tick.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-tick.C:
		}
		e.mu.Lock()
		if e.stream && time.Since(e.last) >= commentEvery*2/3 {
			if _, err := e.writeLocked([]byte(": \n\n")); err == nil {
				_ = e.control.Flush() // a client that is gone ends the request by itself
			}
		}
		e.mu.Unlock()
	}
}
