package testkit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Event is one server-sent event.
type Event struct {
	Name, ID string
	Data     []byte
}

// EventStream reads server-sent events as https://html.spec.whatwg.org/multipage/server-sent-events.html asks.
type EventStream struct {
	resp *http.Response
	r    *bufio.Reader
}

var errNoStream = errors.New("the answer was no stream of events")

// OpenEvents sends a request for a stream of events. An answer other than 200 is returned as it is, without a stream: nil, whose Next fails.
func (c *Client) OpenEvents(ctx context.Context, method, path string, body any, headers ...string) (*EventStream, Response, error) {
	req, err := c.Request(ctx, method, path, body, append([]string{"Accept", "text/event-stream"}, headers...)...)
	if err != nil {
		return nil, Response{}, err
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return nil, Response{}, err
	}
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return nil, Response{resp.StatusCode, resp.Header, b}, err
	}
	return &EventStream{resp, bufio.NewReader(resp.Body)}, Response{Status: 200, Header: resp.Header}, nil
}

// Close drops the connection.
func (s *EventStream) Close() error {
	if s == nil {
		return nil
	}
	return s.resp.Body.Close()
}

// Next returns the next event; comments are passed over. io.EOF: the server ended the stream.
func (s *EventStream) Next() (Event, error) {
	if s == nil {
		return Event{}, errNoStream
	}
	var ev Event
	var data [][]byte
	for {
		line, err := s.r.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, io.EOF) && (len(line) > 0 || len(data) > 0) {
				err = io.ErrUnexpectedEOF
			}
			return Event{}, err
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		if len(line) == 0 {
			if data == nil && ev.Name == "" {
				continue
			}
			ev.Data = bytes.Join(data, []byte("\n"))
			return ev, nil
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			ev.Name = string(value)
		case "data":
			data = append(data, bytes.Clone(value))
		case "id":
			ev.ID = string(value)
		}
	}
}

// Transcript is what an exec stream said, put together.
type Transcript struct {
	ProcessID      string
	StartOffset    int64
	Stdout, Stderr []byte
	Gaps           []Gap
	Exit           *ExecResult // nil: the stream broke
	Error          *Problem    // the error event
	LastID         string      // the offset after the last event
	Events         int
}

// Add takes in one event.
func (tr *Transcript) Add(ev Event) error {
	tr.Events++
	if ev.ID != "" {
		tr.LastID = ev.ID
	}
	switch ev.Name {
	case "start":
		var start struct {
			ProcessID string `json:"process_id"`
			Offset    int64  `json:"offset"`
		}
		if err := json.Unmarshal(ev.Data, &start); err != nil {
			return fmt.Errorf("start event %q: %w", ev.Data, err)
		}
		tr.ProcessID, tr.StartOffset = start.ProcessID, start.Offset
	case "stdout", "stderr":
		var run struct {
			Data       *string `json:"data"`
			DataBase64 *string `json:"data_base64"`
		}
		if err := json.Unmarshal(ev.Data, &run); err != nil {
			return fmt.Errorf("%s event %q: %w", ev.Name, ev.Data, err)
		}
		var b []byte
		switch {
		case run.DataBase64 != nil:
			var err error
			if b, err = base64.StdEncoding.DecodeString(*run.DataBase64); err != nil {
				return fmt.Errorf("%s event: %w", ev.Name, err)
			}
		case run.Data != nil:
			b = []byte(*run.Data)
		default:
			return fmt.Errorf("%s event without data: %q", ev.Name, ev.Data)
		}
		if ev.Name == "stdout" {
			tr.Stdout = append(tr.Stdout, b...)
		} else {
			tr.Stderr = append(tr.Stderr, b...)
		}
	case "gap":
		var g Gap
		if err := json.Unmarshal(ev.Data, &g); err != nil {
			return fmt.Errorf("gap event %q: %w", ev.Data, err)
		}
		tr.Gaps = append(tr.Gaps, g)
	case "exit":
		tr.Exit = new(ExecResult)
		if err := json.Unmarshal(ev.Data, tr.Exit); err != nil {
			return fmt.Errorf("exit event %q: %w", ev.Data, err)
		}
	case "error":
		tr.Error = new(Problem)
		if err := json.Unmarshal(ev.Data, tr.Error); err != nil {
			return fmt.Errorf("error event %q: %w", ev.Data, err)
		}
	}
	return nil
}

// ReadAll reads events until the stream ends; the error is nil only after an exit or error event.
func (s *EventStream) ReadAll() (Transcript, error) {
	var tr Transcript
	for {
		ev, err := s.Next()
		if errors.Is(err, io.EOF) && (tr.Exit != nil || tr.Error != nil) {
			return tr, nil
		}
		if err != nil {
			return tr, fmt.Errorf("the stream ended without an exit: %w", err)
		}
		if tr.Exit != nil {
			return tr, fmt.Errorf("a %s event after the exit", ev.Name)
		}
		if err := tr.Add(ev); err != nil {
			return tr, err
		}
	}
}

// StreamExec runs a command as a stream of events and reads it to its end.
func (c *Client) StreamExec(ctx context.Context, id string, command any, more ...Fields) (Transcript, error) {
	s, resp, err := c.OpenEvents(ctx, "POST", "/v1/sandboxes/"+id+"/exec", Fields{"command": command}.With(more...))
	if err != nil {
		return Transcript{}, err
	}
	if s == nil {
		return Transcript{}, fmt.Errorf("exec as a stream: %v", resp)
	}
	defer s.Close()
	return s.ReadAll()
}

// Stream runs a command as a stream of events, which has to end with an exit.
func (s *Sandbox) Stream(command any, more ...Fields) Transcript {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), requestTimeout)
	defer cancel()
	tr, err := s.StreamExec(ctx, s.ID, command, more...)
	if err != nil {
		s.t.Fatalf("%v: %v", command, err)
	}
	if tr.Exit == nil {
		s.t.Fatalf("%v: the stream ended with %+v", command, tr.Error)
	}
	return tr
}

// Open starts a command as a stream of events and returns once its start event has come. The stream is closed with the test.
func (s *Sandbox) Open(ctx context.Context, command any, more ...Fields) (*EventStream, Transcript) {
	s.t.Helper()
	stream, resp, err := s.OpenEvents(ctx, "POST", s.Path("/exec"), Fields{"command": command}.With(more...))
	if err != nil || stream == nil {
		s.t.Fatalf("%v: %v %v", command, err, resp)
	}
	s.t.Cleanup(func() { stream.Close() })
	var tr Transcript
	for tr.ProcessID == "" {
		ev, err := stream.Next()
		if err != nil {
			s.t.Fatalf("%v: no start event: %v", command, err)
		}
		if err := tr.Add(ev); err != nil {
			s.t.Fatal(err)
		}
	}
	return stream, tr
}

// AttachStream attaches to a process at an offset by SSE.
func (s *Sandbox) AttachStream(ctx context.Context, process string, offset int64) *EventStream {
	s.t.Helper()
	stream, resp, err := s.OpenEvents(ctx, "GET", s.Path(fmt.Sprintf("/processes/%s/stream?offset=%d", process, offset)), nil)
	if err != nil || stream == nil {
		s.t.Fatalf("attach to %s at %d: %v %v", process, offset, err, resp)
	}
	s.t.Cleanup(func() { stream.Close() })
	return stream
}
