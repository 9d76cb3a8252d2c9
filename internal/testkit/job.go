package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// JobObject is the part of the API's job object that tests look at.
type JobObject struct {
	ID           string     `json:"id"`
	Status       string     `json:"status"`
	Language     string     `json:"language"`
	Stdout       string     `json:"stdout"`
	Stderr       string     `json:"stderr"`
	StdoutSize   int64      `json:"stdout_size"`
	StderrSize   int64      `json:"stderr_size"`
	StdoutGap    *Gap       `json:"stdout_gap"`
	StderrGap    *Gap       `json:"stderr_gap"`
	Lossy        PerStream  `json:"lossy"`
	Truncated    PerStream  `json:"truncated"`
	ExitCode     *int       `json:"exit_code"`
	Signal       *string    `json:"signal"`
	TimedOut     bool       `json:"timed_out"`
	DurationMS   *int64     `json:"duration_ms"`
	QueuedAt     time.Time  `json:"queued_at"`
	StartedAt    *time.Time `json:"started_at"`
	FinishedAt   *time.Time `json:"finished_at"`
	FilesChanged []struct {
		Path, Op string
		Size     int64
	} `json:"files_changed"`
	Outputs []struct {
		Path, MIME, URL string
		Size            int64
		Data            *[]byte `json:"data_base64"`
	} `json:"outputs"`
	Metrics struct {
		CPUMS        *int64 `json:"cpu_ms"`
		PeakMemoryMB *int64 `json:"peak_memory_mb"`
		QueueMS      *int64 `json:"queue_ms"`
		BootMS       *int64 `json:"boot_ms"`
	} `json:"metrics"`
	Error         *struct{ Reason, Detail string } `json:"error"`
	SessionID     string                           `json:"session_id"`
	SessionShared bool                             `json:"session_shared"`
	SandboxID     string                           `json:"sandbox_id"`
	Attempt       int64                            `json:"attempt"`
	Priority      int                              `json:"priority"`
	Timeout       float64                          `json:"timeout_seconds"`
	Metadata      map[string]string                `json:"metadata"`
}

// Finished reports whether nothing more happens to the job.
func (j JobObject) Finished() bool { return j.Status != "queued" && j.Status != "running" }

// String is what a failed test shows of a job.
func (j JobObject) String() string {
	code, signal := "none", ""
	if j.ExitCode != nil {
		code = fmt.Sprint(*j.ExitCode)
	}
	if j.Signal != nil {
		signal = " signal " + *j.Signal
	}
	return fmt.Sprintf("%s %s, exit code %s%s, attempt %d, error %+v, stdout %q, stderr %q", j.ID, j.Status, code, signal, j.Attempt, j.Error, tail(j.Stdout), tail(j.Stderr))
}

// Said reports whether the job succeeded and printed exactly that.
func (j JobObject) Said(stdout string) bool {
	return j.Status == "success" && j.ExitCode != nil && *j.ExitCode == 0 && j.Stdout == stdout
}

// SubmitJob submits a python program, or another one by fields.
func (c *Client) SubmitJob(ctx context.Context, code string, more ...Fields) (JobObject, error) {
	var j JobObject
	resp, err := c.Do(ctx, "POST", "/v1/jobs", Fields{"code": code}.With(more...))
	if err != nil {
		return j, fmt.Errorf("submit a job: %w", err)
	}
	if err := resp.Decode(202, &j); err != nil {
		return j, fmt.Errorf("submit a job: %w", err)
	}
	if want := "/v1/jobs/" + j.ID; resp.Header.Get("Location") != want {
		return j, fmt.Errorf("submit a job: Location %q, want %q", resp.Header.Get("Location"), want)
	}
	return j, nil
}

// GetJob reads a job; query is what follows the question mark.
func (c *Client) GetJob(ctx context.Context, id, query string) (JobObject, error) {
	var j JobObject
	resp, err := c.Do(ctx, "GET", "/v1/jobs/"+id+"?"+query, nil)
	if err != nil {
		return j, err
	}
	return j, resp.Decode(200, &j)
}

// WaitJob waits for the end of a job until ctx ends.
func (c *Client) WaitJob(ctx context.Context, id string) (JobObject, error) {
	for {
		j, err := c.GetJob(ctx, id, "wait_seconds=30")
		if err != nil || j.Finished() {
			return j, err
		}
	}
}

// RunJob submits a program and waits for its end.
func (c *Client) RunJob(ctx context.Context, code string, more ...Fields) (JobObject, error) {
	j, err := c.SubmitJob(ctx, code, more...)
	if err != nil {
		return j, err
	}
	return c.WaitJob(ctx, j.ID)
}

// CancelJob asks for the end of a job and waits for it.
func (c *Client) CancelJob(ctx context.Context, id string) (JobObject, error) {
	var j JobObject
	resp, err := c.Do(ctx, "DELETE", "/v1/jobs/"+id, nil)
	if err != nil {
		return j, fmt.Errorf("cancel %s: %w", id, err)
	}
	if resp.Status == 202 {
		return c.WaitJob(ctx, id)
	}
	return j, resp.Decode(200, &j)
}

// ListJobs reads every page of a list of jobs; query is what follows the question mark.
func (c *Client) ListJobs(ctx context.Context, query string) ([]JobObject, error) {
	return list[JobObject](ctx, c, "/v1/jobs", query)
}

// Job is a job of a test. Its methods fail the test, and so belong to the test's own goroutine.
type Job struct {
	*Client
	JobObject
	t testing.TB
}

// Submit submits a python program, or another one by fields. It is canceled at the end of the test.
func (c *Client) Submit(t testing.TB, code string, more ...Fields) *Job {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	obj, err := c.SubmitJob(ctx, code, more...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		defer cancel()
		_, _ = c.CancelJob(ctx, obj.ID) // most have finished; the server may be gone
	})
	return &Job{c, obj, t}
}

// Job submits a program and waits for its end.
func (c *Client) Job(t testing.TB, code string, more ...Fields) JobObject {
	t.Helper()
	return c.Submit(t, code, more...).Wait()
}

// Path is the job's path in the API, and what follows.
func (j *Job) Path(rest string) string { return "/v1/jobs/" + j.ID + rest }

// Wait waits for the end.
func (j *Job) Wait() JobObject {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), requestTimeout)
	defer cancel()
	obj, err := j.WaitJob(ctx, j.ID)
	if err != nil {
		j.t.Fatalf("wait for %s: %v", j.ID, err)
	}
	return obj
}

// Until polls the job until ok says so, or it has finished, which fails the test unless that is what ok wants.
func (j *Job) Until(what string, ok func(JobObject) bool) JobObject {
	j.t.Helper()
	var now JobObject
	Eventually(j.t, requestTimeout, what, func() (err error) {
		if now, err = j.GetJob(j.t.Context(), j.ID, ""); err == nil && !ok(now) {
			if now.Finished() {
				j.t.Fatalf("%s: the job ended first: %v", what, now)
			}
			err = fmt.Errorf("it is %v", now)
		}
		return err
	})
	return now
}

// Running waits until the program runs.
func (j *Job) Running() JobObject {
	j.t.Helper()
	return j.Until("the job runs", func(now JobObject) bool { return now.Status == "running" })
}

// Cancel asks for the end and waits for it.
func (j *Job) Cancel() JobObject {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), requestTimeout)
	defer cancel()
	obj, err := j.CancelJob(ctx, j.ID)
	if err != nil {
		j.t.Fatal(err)
	}
	return obj
}

// JobFrame is one frame of a job's stream.
type JobFrame struct {
	Type       string  `json:"type"`
	Seq        int64   `json:"seq"`
	TS         string  `json:"ts"`
	Data       *string `json:"data"`
	DataBase64 *[]byte `json:"data_base64"`
	Attempt    int64   `json:"attempt"`
	Stream     string  `json:"stream"`
	Bytes      int64   `json:"bytes"`
	ExitCode   *int    `json:"exit_code"`
	Signal     *string `json:"signal"`
	TimedOut   bool    `json:"timed_out"`
	DurationMS *int64  `json:"duration_ms"`
	Reason     string  `json:"reason"`
	Detail     string  `json:"detail"`
}

// attemptSpan is how far apart the positions of two attempts are.
const attemptSpan = 1 << 40

// JobTranscript is what a job's stream said, put together.
type JobTranscript struct {
	Seq            int64 // of the last frame
	Stdout, Stderr []byte
	Both           []byte // in the order in which it came
	Statuses       []string
	Gaps           []Gap
	Missing        int64     // bytes of all gaps
	Last           *JobFrame // exit or error; nil: the stream broke
	Frames         int
}

// Add takes in one frame, whose seq must go on exactly where the one before ended. In a transcript without frames Seq is what the
// stream was asked for.
func (tr *JobTranscript) Add(f JobFrame) error {
	if tr.Last != nil {
		return fmt.Errorf("a %s frame after the last", f.Type)
	}
	tr.Frames++
	if _, err := time.Parse("2006-01-02T15:04:05.000Z07:00", f.TS); err != nil {
		return fmt.Errorf("a %s frame: %w", f.Type, err)
	}
	size := int64(1)
	switch f.Type {
	case "status":
		if f.Data == nil || f.Attempt < 1 && *f.Data != "queued" {
			return fmt.Errorf("a status frame without status or attempt: %+v", f)
		}
		tr.Statuses = append(tr.Statuses, *f.Data)
	case "stdout", "stderr":
		var b []byte
		switch {
		case f.DataBase64 != nil && f.Data == nil:
			b = *f.DataBase64
		case f.Data != nil && f.DataBase64 == nil:
			b = []byte(*f.Data)
		default:
			return fmt.Errorf("a %s frame with neither or both of data and data_base64", f.Type)
		}
		size = int64(len(b))
		tr.Both = append(tr.Both, b...)
		if f.Type == "stdout" {
			tr.Stdout = append(tr.Stdout, b...)
		} else {
			tr.Stderr = append(tr.Stderr, b...)
		}
	case "gap":
		size = f.Bytes
		tr.Missing += f.Bytes
		tr.Gaps = append(tr.Gaps, Gap{Stream: f.Stream, Bytes: f.Bytes})
	case "exit", "error":
		if f.Data == nil {
			return fmt.Errorf("a last frame without status: %+v", f)
		}
		last := f
		tr.Last = &last
	default:
		return fmt.Errorf("a frame of type %q", f.Type)
	}
	if again := f.Seq/attemptSpan != tr.Seq/attemptSpan; again && f.Seq%attemptSpan != size || !again && f.Seq != tr.Seq+size {
		return fmt.Errorf("a %s frame of size %d has seq %d after %d", f.Type, size, f.Seq, tr.Seq)
	}
	tr.Seq = f.Seq
	return nil
}

// Status is the job's status as the last frame says it; "" when there was none.
func (tr *JobTranscript) Status() string {
	if tr.Last == nil {
		return ""
	}
	return *tr.Last.Data
}

// JobEvents is a job's stream by server-sent events.
type JobEvents struct {
	*EventStream
	Transcript JobTranscript
}

// OpenJobEvents opens the stream of a job after a position; path is its URL without seq. An answer other than 200 is returned as it
// is, without a stream.
func (c *Client) OpenJobEvents(ctx context.Context, path string, after int64, headers ...string) (*JobEvents, Response, error) {
	if after > 0 {
		path += fmt.Sprintf("%sseq=%d", queryMark(path), after)
	}
	s, resp, err := c.OpenEvents(ctx, "GET", path, nil, headers...)
	if s == nil {
		return nil, resp, err
	}
	return &JobEvents{s, JobTranscript{Seq: after}}, resp, nil
}

func queryMark(path string) string {
	if strings.Contains(path, "?") {
		return "&"
	}
	return "?"
}

// Step reads one frame into the transcript.
func (s *JobEvents) Step() (JobFrame, error) {
	var f JobFrame
	ev, err := s.Next()
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(ev.Data, &f); err != nil {
		return f, fmt.Errorf("%s event %q: %w", ev.Name, ev.Data, err)
	}
	if ev.Name != f.Type || ev.ID != fmt.Sprint(f.Seq) {
		return f, fmt.Errorf("event %q with id %q carries a frame of type %q with seq %d", ev.Name, ev.ID, f.Type, f.Seq)
	}
	return f, s.Transcript.Add(f)
}

// Rest reads until the server ends the stream; the error is nil only after a last frame.
func (s *JobEvents) Rest() (JobTranscript, error) {
	for {
		_, err := s.Step()
		if errors.Is(err, io.EOF) && s.Transcript.Last != nil {
			return s.Transcript, nil
		}
		if err != nil {
			return s.Transcript, fmt.Errorf("the stream ended at %d: %w", s.Transcript.Seq, err)
		}
	}
}

// FollowJob reads a job's stream after a position to its end. Where the connection breaks it goes on where it was, as long as ctx lasts.
func (c *Client) FollowJob(ctx context.Context, id string, tr *JobTranscript) error {
	err := errors.New("ctx had ended before")
	for ctx.Err() == nil {
		s, resp, openErr := c.OpenJobEvents(ctx, "/v1/jobs/"+id+"/stream", tr.Seq)
		if s == nil {
			if err = openErr; err == nil {
				err = fmt.Errorf("%v", resp)
			}
			if resp.Status/100 == 4 && resp.Status != http.StatusTooManyRequests {
				return err
			}
			select {
			case <-ctx.Done():
			case <-time.After(pollInterval): // the server is away
			}
			continue
		}
		s.Transcript = *tr
		*tr, err = s.Rest()
		s.Close()
		if err == nil || ctx.Err() == nil && !broken(err) {
			return err
		}
	}
	return fmt.Errorf("follow %s: %w", id, err)
}

// broken tells a lost connection from a stream that says something wrong.
func broken(err error) bool {
	var op interface{ Timeout() bool } // errors of the network
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op)
}

// Stream reads the whole stream of the job by server-sent events.
func (j *Job) Stream() JobTranscript {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), requestTimeout)
	defer cancel()
	tr, err := j.Attach(ctx, 0).Rest()
	if err != nil {
		j.t.Fatalf("stream of %s: %v", j.ID, err)
	}
	return tr
}

// Attach opens the job's stream after a position. It is closed with the test.
func (j *Job) Attach(ctx context.Context, after int64, headers ...string) *JobEvents {
	j.t.Helper()
	s, resp, err := j.OpenJobEvents(ctx, j.Path("/stream"), after, headers...)
	if err != nil || s == nil {
		j.t.Fatalf("attach to %s after %d: %v %v", j.ID, after, err, resp)
	}
	j.t.Cleanup(func() { s.Close() })
	return s
}

// DialJob opens a job's stream as a WebSocket. A refusal is returned as the answer, without a socket.
func (c *Client) DialJob(ctx context.Context, path string) (*websocket.Conn, Response, error) {
	header := http.Header{}
	if c.Key != "" {
		header.Set("Authorization", "Bearer "+c.Key)
	}
	conn, resp, err := websocket.Dial(ctx, strings.Replace(c.URL, "http", "ws", 1)+path, &websocket.DialOptions{HTTPHeader: header, HTTPClient: c.HTTP})
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, Response{Status: resp.StatusCode, Header: resp.Header}, nil
		}
		return nil, Response{}, err
	}
	conn.SetReadLimit(1 << 20)
	return conn, Response{Status: http.StatusSwitchingProtocols}, nil
}

// ReadJob reads frames of a socket into tr until it closes, and returns the code; the error is nil only after a last frame.
func ReadJob(ctx context.Context, conn *websocket.Conn, tr *JobTranscript) (websocket.StatusCode, error) {
	for {
		kind, data, err := conn.Read(ctx)
		if err != nil {
			if tr.Last != nil {
				return websocket.CloseStatus(err), nil
			}
			return websocket.CloseStatus(err), fmt.Errorf("the socket ended at %d: %w", tr.Seq, err)
		}
		var f JobFrame
		if kind != websocket.MessageText {
			return -1, errors.New("a binary frame")
		}
		if err := json.NewDecoder(bytes.NewReader(data)).Decode(&f); err != nil {
			return -1, fmt.Errorf("frame %q: %w", data, err)
		}
		if err := tr.Add(f); err != nil {
			return -1, err
		}
	}
}
