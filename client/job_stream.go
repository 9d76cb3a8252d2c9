package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// JobFrameType says what a [JobFrame] tells.
type JobFrameType string

// What a job's stream tells. The last frame is an exit or an error.
const (
	FrameStatus  JobFrameType = "status"
	FrameInstall JobFrameType = "install" // output of installing packages
	FrameStdout  JobFrameType = "stdout"
	FrameStderr  JobFrameType = "stderr"
	FrameGap     JobFrameType = "gap"   // output that was not kept
	FrameExit    JobFrameType = "exit"  // the program has ended
	FrameError   JobFrameType = "error" // the job has ended without an exit of its program
)

// JobFrame is a piece of a job's stream.
type JobFrame struct {
	Type JobFrameType
	Seq  int64 // a position: [Jobs.Stream] goes on after it
	At   time.Time

	Data    []byte    // of output, exactly as it was written
	Status  JobStatus // of status, exit and error
	Attempt int64     // of status: which sandbox runs it, from 1; 0: none yet. A new one begins the output anew
	Stream  string    // of gap: stdout or stderr
	Bytes   int64     // of gap: how much is missing

	ExitCode *int // of exit
	Signal   string
	TimedOut bool
	Duration time.Duration

	Reason, Detail string // of error

	Raw json.RawMessage // the frame as it came
}

// Final reports whether nothing follows the frame.
func (f *JobFrame) Final() bool { return f.Type == FrameExit || f.Type == FrameError }

// UnmarshalJSON takes data as text or in base64, or as the status that it is in other frames.
func (f *JobFrame) UnmarshalJSON(data []byte) error {
	var doc struct {
		Type       JobFrameType `json:"type"`
		Seq        int64        `json:"seq"`
		TS         time.Time    `json:"ts"`
		Data       string       `json:"data"`
		DataBase64 []byte       `json:"data_base64"`
		Attempt    int64        `json:"attempt"`
		Stream     string       `json:"stream"`
		Bytes      int64        `json:"bytes"`
		ExitCode   *int         `json:"exit_code"`
		Signal     string       `json:"signal"`
		TimedOut   bool         `json:"timed_out"`
		DurationMS float64      `json:"duration_ms"`
		Reason     string       `json:"reason"`
		Detail     string       `json:"detail"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	*f = JobFrame{Type: doc.Type, Seq: doc.Seq, At: doc.TS, Attempt: doc.Attempt, Stream: doc.Stream, Bytes: doc.Bytes, ExitCode: doc.ExitCode,
		Signal: doc.Signal, TimedOut: doc.TimedOut, Duration: milliseconds(doc.DurationMS), Reason: doc.Reason, Detail: doc.Detail,
		Raw: append(json.RawMessage(nil), data...)}
	switch doc.Type {
	case FrameStatus, FrameExit, FrameError:
		f.Status = JobStatus(doc.Data)
	default:
		f.Data = append([]byte(doc.Data), doc.DataBase64...)
	}
	return nil
}

// MarshalJSON writes the frame as it came.
func (f JobFrame) MarshalJSON() ([]byte, error) {
	type plain JobFrame
	return orRaw(f.Raw, plain(f))
}

// Stream yields what happens to a job from its beginning, or after the position that a frame's Seq named, whenever it is called: what
// has happened at once, then the rest live. The last frame is an exit or an error; a stream that yields an error value instead says
// nothing of how the job ended. Connections that break, and restarts of the server, lose and double nothing. Leaving the loop, or
// ctx's end, leaves the job running.
func (j *Jobs) Stream(ctx context.Context, id string, after int64) iter.Seq2[*JobFrame, error] {
	return func(yield func(*JobFrame, error) bool) {
		seen := after
		f := &feed{c: j.c, attempted: "stream of job " + id, unending: true,
			open: func(lastID string) *call {
				r := &call{method: http.MethodGet, path: jobPath(id, "stream")}
				if lastID == "" && after > 0 {
					r.query = url.Values{"seq": {strconv.FormatInt(after, 10)}}
				}
				return r
			},
			event: func(ev sseEvent) (bool, error) {
				frame, err := decodeFrame(ev)
				if err != nil || frame == nil || frame.Seq <= seen {
					return false, err
				}
				seen = frame.Seq
				return !yield(frame, nil) || frame.Final(), nil
			},
		}
		if err := f.run(ctx); err != nil {
			yield(nil, err)
		}
	}
}

// decodeFrame answers nil for an event that is to be passed over.
func decodeFrame(ev sseEvent) (*JobFrame, error) {
	frame := new(JobFrame)
	if err := json.Unmarshal(ev.data, frame); err != nil {
		return nil, fmt.Errorf("%w: event %q: %w", errProtocol, ev.name, err)
	}
	switch {
	case frame.Seq > 0:
		return frame, nil
	case ev.name == "error": // of the stream, not of the job: it has no position
		return nil, &Error{Reason: frame.Reason, Detail: frame.Detail, Body: ev.data}
	}
	return nil, nil
}
