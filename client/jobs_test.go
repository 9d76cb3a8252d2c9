package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
)

func submit(t *testing.T, c *client.Client, r client.JobRequest) *client.Job {
	t.Helper()
	j, err := c.Jobs().Submit(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func TestAJobRunsOnceAndAnswersWhatItLeft(t *testing.T) {
	server, c := connect(t)
	ctx := within(t)
	server.Refuse("POST", "/jobs", 503, "unavailable", 0) // a submission is repeated, and is one job
	j := submit(t, c, client.JobRequest{
		Code: "print(1 + 1)\nsave(/output/a.txt)\nread()", Stdin: []byte("in"), Metadata: map[string]string{"agent": "planner"},
		Timeout: 90 * time.Second,
	})
	if !strings.HasPrefix(j.ID, "job_") || j.Timeout != 90*time.Second || j.Priority != 5 {
		t.Errorf("submitted %+v", j)
	}
	j, err := c.Jobs().Wait(ctx, j.ID)
	if err != nil {
		t.Fatal(err)
	}
	if j.Status != client.JobSuccess || j.Stdout != "2\nread \"in\"\n" || j.ExitCode == nil || *j.ExitCode != 0 || j.Fault != nil {
		t.Errorf("ended as %+v", j)
	}
	if j.QueuedAt.IsZero() || j.StartedAt.IsZero() || j.FinishedAt.IsZero() || j.Metrics.PeakMemoryMB == 0 || j.Attempt != 1 {
		t.Errorf("times and metrics: %+v", j)
	}
	if len(j.Outputs) != 1 || string(j.Outputs[0].Data) != "saved" || len(j.FilesChanged) != 1 {
		t.Errorf("outputs %+v, files %+v", j.Outputs, j.FilesChanged)
	}
	out, err := c.Jobs().OpenOutput(ctx, j.ID, "/output/a.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if content, err := io.ReadAll(out); err != nil || string(content) != "saved" {
		t.Errorf("the output holds %q, %v", content, err)
	}
	var listed []*client.Job
	for j, err := range c.Jobs().List(ctx, client.JobListOptions{Metadata: map[string]string{"agent": "planner"}}) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, j)
	}
	if len(listed) != 1 || listed[0].ID != j.ID || listed[0].Stdout != "" {
		t.Errorf("listed %+v", listed)
	}
	if len(server.Sandboxes()) != 0 {
		t.Error("the job's sandbox passes for one of the client's")
	}
}

func TestHowAJobEndedIsAResultAndNoError(t *testing.T) {
	server, c := connect(t)
	for want, r := range map[client.JobStatus]client.JobRequest{
		client.JobFailed:  {Code: "raise oops"},
		client.JobTimeout: {Code: "loop()", Timeout: 10 * time.Millisecond},
	} {
		r.Wait = 30 * time.Second
		if j := submit(t, c, r); j.Status != want || j.ExitCode == nil || *j.ExitCode == 0 || j.TimedOut != (want == client.JobTimeout) {
			t.Errorf("%s: ended as %+v", want, j)
		}
	}
	j := submit(t, c, client.JobRequest{Code: "loop()"})
	server.FailJob(j.ID, "worker_lost", "its worker went away three times")
	if j, err := c.Jobs().Wait(within(t), j.ID); err != nil || j.Status != client.JobError || j.Fault == nil || j.Fault.Reason != client.ReasonWorkerLost {
		t.Errorf("a fault of the platform: %+v, %v", j, err)
	}
}

func TestWhatCannotBeAJobIsRefusedAndNamed(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	for name, tt := range map[string]struct {
		request client.JobRequest
		reason  string
	}{
		"a language that is not there": {client.JobRequest{Code: "1", Language: "cobol"}, client.ReasonUnprocessable},
		"a session that is not there":  {client.JobRequest{Code: "1", SessionID: "ses_none"}, client.ReasonUnprocessable},
		"no code":                      {client.JobRequest{}, ""},
		"code that is no text":         {client.JobRequest{Code: "\xff"}, ""},
	} {
		if _, err := c.Jobs().Submit(ctx, tt.request); err == nil || client.ReasonOf(err) != tt.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, err := range []error{second(c.Jobs().Get(ctx, "job_none")), second(c.Jobs().Wait(ctx, "job_none")), second(c.Jobs().Cancel(ctx, "job_none")),
		second(c.Jobs().OpenOutput(ctx, "job_none", "/output/a"))} {
		if client.ReasonOf(err) != client.ReasonNotFound {
			t.Errorf("a job that never was: %v", err)
		}
	}
	for _, err := range c.Jobs().Stream(ctx, "job_none", 0) {
		if client.ReasonOf(err) != client.ReasonNotFound {
			t.Errorf("the stream of a job that never was: %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestACanceledJobKeepsWhatItWrote(t *testing.T) {
	server, c := connect(t)
	ctx := within(t)
	running := submit(t, c, client.JobRequest{Code: "loop()"})
	for f, err := range c.Jobs().Stream(ctx, running.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if f.Type == client.FrameStdout {
			if _, err := c.Jobs().Cancel(ctx, running.ID); err != nil {
				t.Fatal(err)
			}
		}
		if f.Type == client.FrameExit && (f.Status != client.JobCanceled || f.Signal != "KILL") {
			t.Errorf("its exit is %+v", f)
		}
	}
	if j, err := c.Jobs().Get(ctx, running.ID); err != nil || j.Status != client.JobCanceled || j.Stdout != "looping\n" {
		t.Errorf("ended as %+v, %v", j, err)
	}
	server.HoldJobs()
	queued := submit(t, c, client.JobRequest{Code: "print(1)"})
	if j, err := c.Jobs().Cancel(ctx, queued.ID); err != nil || j.Status != client.JobCanceled || j.ExitCode != nil {
		t.Errorf("canceled before it ran: %+v, %v", j, err)
	}
	var last *client.JobFrame
	for f, err := range c.Jobs().Stream(ctx, queued.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		last = f
	}
	if last == nil || last.Type != client.FrameError || last.Status != client.JobCanceled || last.Reason != "canceled" {
		t.Errorf("its stream ended with %+v", last)
	}
}

// writes is a language whose programs write each of the pieces given, to stdout and stderr in turns.
func writes(pieces ...string) clienttest.Language {
	return func(_ context.Context, p *clienttest.Proc, _ string, _ map[string]string) clienttest.Outcome {
		for i, piece := range pieces {
			out := p.Stdout
			if i%2 == 1 {
				out = p.Stderr
			}
			io.WriteString(out, piece)
		}
		return clienttest.Outcome{ExitCode: 3}
	}
}

func TestAJobsStreamLosesAndDoublesNothing(t *testing.T) {
	server, c := connect(t)
	ctx := within(t)
	stdout, stderr := bytes.Repeat([]byte("abc\xff"), 500), bytes.Repeat([]byte("é\n"), 400)
	server.HandleLanguage("noise", writes(string(stdout[:1000]), string(stderr[:800]), string(stdout[1000:]), string(stderr[800:])))
	server.HoldJobs()
	j := submit(t, c, client.JobRequest{Language: "noise", Code: "go"})
	server.CutAfter(1, 7, 333, 1000, 1, 500) // ended in good order, as by a server that restarts
	server.Refuse("GET", "/stream", 503, "unavailable", 0)
	var got [2][]byte
	var types []string
	last, cut := int64(0), false
	for f, err := range c.Jobs().Stream(ctx, j.ID, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if f.Seq <= last || f.At.IsZero() {
			t.Fatalf("the frame after %d is %+v", last, f)
		}
		last = f.Seq
		switch f.Type {
		case client.FrameStdout:
			got[0] = append(got[0], f.Data...)
		case client.FrameStderr:
			got[1] = append(got[1], f.Data...)
			if !cut { // broken off, as by a network
				cut = true
				server.Break()
			}
		default:
			types = append(types, string(f.Type)+" "+string(f.Status))
			server.ReleaseJobs()
		}
		if f.Final() && (f.ExitCode == nil || *f.ExitCode != 3) {
			t.Errorf("its exit is %+v", f)
		}
	}
	if !bytes.Equal(got[0], stdout) || !bytes.Equal(got[1], stderr) {
		t.Errorf("got %d and %d bytes, not %d and %d", len(got[0]), len(got[1]), len(stdout), len(stderr))
	}
	if strings.Join(types, ", ") != "status queued, status running, exit failed" {
		t.Errorf("told %v", types)
	}
	resumed := 0
	for _, r := range server.Requests() {
		if strings.HasSuffix(r.Path, "/stream") && r.Header.Get("Last-Event-ID") != "" {
			resumed++
		}
	}
	if resumed < 6 {
		t.Errorf("taken up again %d times", resumed)
	}

	// Whoever comes later begins where they say, and within a frame too.
	for f, err := range c.Jobs().Stream(ctx, j.ID, 2+5) {
		if err != nil {
			t.Fatal(err)
		}
		if f.Type != client.FrameStdout || !bytes.Equal(f.Data, stdout[5:1000]) || string(f.Raw) == "" {
			t.Errorf("after 5 bytes comes %+v", f)
		}
		break
	}
}

func TestAWatcherThatLeavesDoesNotEndTheJob(t *testing.T) {
	_, c := connect(t)
	j := submit(t, c, client.JobRequest{Code: "loop()"})
	ctx, cancel := context.WithCancelCause(within(t))
	defer cancel(nil)
	left := errors.New("had enough")
	var err error
	for f, failed := range c.Jobs().Stream(ctx, j.ID, 0) {
		if err = failed; f != nil && f.Type == client.FrameStdout {
			cancel(left)
		}
	}
	if !errors.Is(err, left) {
		t.Errorf("the stream ended with %v", err)
	}
	if j, err := c.Jobs().Get(within(t), j.ID); err != nil || j.Status != client.JobRunning {
		t.Errorf("the job is %+v, %v", j, err)
	}
	if _, err := c.Jobs().Cancel(within(t), j.ID); err != nil {
		t.Error(err)
	}
}

func TestWaitingForAJobOutlivesLostConnections(t *testing.T) {
	server, c := connect(t)
	j := submit(t, c, client.JobRequest{Code: "loop()"})
	done := make(chan error, 1)
	go func() {
		j, err := c.Jobs().Wait(within(t), j.ID)
		if err == nil && j.Status != client.JobCanceled {
			err = errors.New("it is " + string(j.Status))
		}
		done <- err
	}()
	asked := func() (n int) {
		for _, r := range server.Requests() {
			if r.Method == "GET" && strings.HasSuffix(r.Path, j.ID) {
				n++
			}
		}
		return n
	}
	until(t, func() bool { return asked() == 1 })
	until(t, func() bool { return server.Break() > 0 })
	until(t, func() bool { return asked() == 2 })
	if _, err := c.Jobs().Cancel(within(t), j.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	if _, err := c.Jobs().Wait(ctx, j.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
}

// until polls for what another goroutine brings about.
func until(t *testing.T, there func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !there(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it never came about")
		}
	}
}
