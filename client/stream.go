package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Event is something a stream tells: [StartEvent], [OutputEvent], [GapEvent], [ExitEvent] or [ResultEvent].
type Event interface{ event() }

// StartEvent comes first, once. Offset is where this stream of output begins.
type StartEvent struct {
	ProcessID string
	Offset    int64
}

// OutputEvent is a piece of output. Data is the caller's to keep.
type OutputEvent struct {
	Stderr bool // else stdout
	Data   []byte
	Offset int64 // after this piece, counting stdout and stderr together
}

// GapEvent says that output is missing here: it was not kept, or this reader lagged too far behind.
type GapEvent struct {
	Stderr bool
	Gap
}

// ExitEvent comes once, after all output. Only a [ResultEvent] can follow.
type ExitEvent struct{ Exit }

// ResultEvent comes last, once, where the process ran code: what the run brought besides its output.
type ResultEvent struct{ CodeOutcome }

func (StartEvent) event()  {}
func (OutputEvent) event() {}
func (GapEvent) event()    {}
func (ExitEvent) event()   {}
func (ResultEvent) event() {}

// errBroken is a stream that ended without an exit.
var errBroken = errors.New("the stream ended before the process did")

// Stream runs a command and yields what happens as it happens. The last event is an [ExitEvent]; a stream that yields an error
// instead says nothing of the command's success. A connection that breaks is attached again by offset. Leaving the loop, or ctx's
// end, leaves the process running unless r.KillOnDisconnect.
func (c *Client) Stream(ctx context.Context, sandbox string, r ExecRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		start, err := r.call(sandbox)
		if err != nil {
			yield(nil, err)
			return
		}
		f := &follower{c: c, sandbox: sandbox, start: start}
		f.run(ctx, yield)
	}
}

// follower keeps one stream going over as many connections as it takes.
type follower struct {
	c       *Client
	sandbox string
	start   *call  // starts the process; nil when attaching
	process string // "" until known
	offset  int64  // after the last event yielded
	started bool   // StartEvent was yielded
	reached bool   // the server has answered once: from then on it is worth trying again
	until   ending
	exited  bool // ExitEvent was yielded
}

// ending says what a stream's last event is.
type ending int

const (
	untilExit   ending = iota
	untilResult        // a result follows the exit
	untilEOF           // a result may follow the exit: the stream's end tells
)

func (f *follower) run(ctx context.Context, yield func(Event, error) bool) {
	var brokenSince time.Time
	for attempt := 0; ; attempt++ {
		began := time.Now()
		progressed, done, err := f.once(ctx, yield)
		if done || f.exited && f.until == untilEOF {
			return
		}
		if ctx.Err() != nil {
			yield(nil, context.Cause(ctx))
			return
		}
		if progressed || time.Since(began) >= shortLife {
			attempt, brokenSince = 0, time.Time{}
		}
		if brokenSince.IsZero() {
			brokenSince = time.Now()
		}
		after, again := mendable(err)
		if !again || !f.reached || time.Since(brokenSince) >= f.c.reconnectFor {
			yield(nil, fmt.Errorf("stream of %s: %w", f.describe(), err))
			return
		}
		if err := sleep(ctx, max(after, backoff(attempt))); err != nil {
			yield(nil, err)
			return
		}
	}
}

func (f *follower) describe() string {
	if f.process == "" {
		return "a command in " + f.sandbox
	}
	return "process " + f.process + " in " + f.sandbox
}

// mendable says whether attaching again may help after err.
func mendable(err error) (time.Duration, bool) {
	var e *Error
	if errors.As(err, &e) && e.Status == 0 { // an error event
		switch e.Reason {
		case ReasonSlowConsumer, ReasonUnavailable, ReasonRateLimited:
			return 0, true
		}
		return 0, false
	}
	if errors.Is(err, errEventTooLarge) || errors.Is(err, errProtocol) {
		return 0, false
	}
	return transient(err)
}

// errProtocol is an answer that no correct server gives; asking again would not change it.
var errProtocol = errors.New("the server broke the protocol")

// once follows one connection. done: the loop was left, or the exit was yielded. Otherwise err says what broke.
func (f *follower) once(ctx context.Context, yield func(Event, error) bool) (progressed, done bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := f.start
	if f.process != "" {
		r = &call{method: http.MethodGet, path: sandboxPath(f.sandbox, "processes", f.process, "stream"),
			query: url.Values{"offset": {strconv.FormatInt(f.offset, 10)}, "encoding": {"base64"}}}
	}
	r.set("Accept", "text/event-stream")
	res, err := f.c.do(ctx, r)
	if err != nil {
		return false, false, err
	}
	defer res.Body.Close()
	f.reached = true
	watch := newWatchdog(f.c.silence, func() { cancel(fmt.Errorf("nothing came for %s: %w", f.c.silence, errBroken)) })
	defer watch.stop()
	events := newSSEReader(watch.reader(res.Body))
	for {
		ev, err := events.next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = errBroken
			}
			if cause := context.Cause(ctx); cause != nil && errors.Is(cause, errBroken) {
				err = cause
			}
			return progressed, false, err
		}
		out, final, err := f.decode(ev)
		if err != nil {
			return progressed, false, err
		}
		if out == nil {
			continue
		}
		progressed = true
		watch.stop() // the caller's time is its own
		if !yield(out, nil) || final {
			return true, true, nil
		}
		watch.feed()
	}
}

// decode turns a server-sent event into an [Event]; nil for one that is to be passed over.
func (f *follower) decode(ev sseEvent) (out Event, final bool, err error) {
	var doc struct {
		ProcessID  string  `json:"process_id"`
		Offset     int64   `json:"offset"`
		Bytes      int64   `json:"bytes"`
		Stream     string  `json:"stream"`
		Data       *string `json:"data"`
		DataBase64 []byte  `json:"data_base64"`
		Reason     string  `json:"reason"`
		Detail     string  `json:"detail"`
	}
	switch ev.name {
	case "start", "stdout", "stderr", "gap", "error":
		if err := json.Unmarshal(ev.data, &doc); err != nil {
			return nil, false, fmt.Errorf("%w: event %q: %w", errProtocol, ev.name, err)
		}
	case "exit":
		var exit Exit
		if err := json.Unmarshal(ev.data, &exit); err != nil {
			return nil, false, fmt.Errorf("%w: event exit: %w", errProtocol, err)
		}
		if f.exited { // seen on the connection before
			return nil, false, nil
		}
		f.exited = true
		return ExitEvent{exit}, f.until == untilExit, nil
	case "result":
		var outcome CodeOutcome
		if err := json.Unmarshal(ev.data, &outcome); err != nil {
			return nil, false, fmt.Errorf("%w: event result: %w", errProtocol, err)
		}
		return ResultEvent{outcome}, true, nil
	default:
		return nil, false, nil
	}
	switch ev.name {
	case "start":
		if doc.ProcessID != "" {
			f.process = doc.ProcessID
		}
		f.offset = doc.Offset
		if f.started {
			return nil, false, nil
		}
		f.started = true
		return StartEvent{ProcessID: f.process, Offset: doc.Offset}, false, nil
	case "gap":
		f.offset = doc.Offset + doc.Bytes
		if at, ok := idOffset(ev); ok {
			f.offset = at
		}
		return GapEvent{Stderr: doc.Stream == "stderr", Gap: Gap{Offset: doc.Offset, Bytes: doc.Bytes}}, false, nil
	case "error":
		return nil, false, &Error{Reason: doc.Reason, Detail: doc.Detail, Body: ev.data}
	}
	data := doc.DataBase64
	if doc.Data != nil {
		data = []byte(*doc.Data)
	}
	f.offset += int64(len(data))
	if at, ok := idOffset(ev); ok {
		f.offset = at
	}
	return OutputEvent{Stderr: ev.name == "stderr", Data: data, Offset: f.offset}, false, nil
}

func idOffset(ev sseEvent) (int64, bool) {
	if !ev.hasID {
		return 0, false
	}
	at, err := strconv.ParseInt(ev.id, 10, 64)
	return at, err == nil && at >= 0
}
