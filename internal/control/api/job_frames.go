package api

import (
	"context"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/camel"
	"github.com/cayhq/cay/internal/control/api/streams"
)

// FrameHead is what every frame of a job's stream has. It is exported since huma looks into embedded types only then.
type FrameHead struct {
	Type string `json:"type" enum:"status,stdout,stderr,gap,exit,error"`
	Seq  int64  `json:"seq" doc:"Where to go on after this frame"`
	TS   moment `json:"ts"`
}

// statusFrame, outputFrame, gapFrame, exitFrame and errorFrame are the frames of a job's stream.
type (
	statusFrame struct {
		FrameHead
		Data    cay.JobStatus `json:"data" enum:"queued,running"`
		Attempt int64         `json:"attempt"`
	}
	outputFrame struct {
		FrameHead
		Data       *string `json:"data,omitzero" doc:"The output, where it is UTF-8"`
		DataBase64 []byte  `json:"data_base64,omitzero" camel:"data_base64" doc:"The output, where it is not"`
	}
	gapFrame struct {
		FrameHead
		Stream string `json:"stream" enum:"stdout,stderr"`
		Bytes  int64  `json:"bytes" doc:"Bytes of output that were not kept"`
	}
	exitFrame struct {
		FrameHead
		Data       cay.JobStatus `json:"data" enum:"success,failed,timeout,canceled,error"`
		ExitCode   *int          `json:"exit_code"`
		Signal     *string       `json:"signal"`
		TimedOut   bool          `json:"timed_out"`
		DurationMS *int64        `json:"duration_ms"`
	}
	errorFrame struct {
		FrameHead
		Data   cay.JobStatus `json:"data" enum:"canceled,error"`
		Reason string        `json:"reason"`
		Detail string        `json:"detail"`
	}
)

const seqID = "The seq of the frame: where to go on with Last-Event-ID"

// jobEvents are those of a job's stream.
var jobEvents = []eventDoc{
	{"status", reflect.TypeFor[statusFrame](), seqID},
	{"stdout", reflect.TypeFor[outputFrame](), seqID},
	{"stderr", reflect.TypeFor[outputFrame](), seqID},
	{"gap", reflect.TypeFor[gapFrame](), seqID},
	{"exit", reflect.TypeFor[exitFrame](), seqID},
	{"error", reflect.TypeFor[errorFrame](), seqID},
}

// frame is one to be sent.
type frame struct {
	kind string
	seq  int64
	body any
}

func (f frame) id() string { return strconv.FormatInt(f.seq, 10) }

// spelling makes a frame's body of what it says, in the names of the door that the client came through.
type spelling struct {
	status func(statusFrame) any
	output func(outputFrame) any
	gap    func(gapFrame) any
	exit   func(exitFrame) any
	fault  func(errorFrame) any
}

func plainly[T any](v T) any { return v }
func camelly[T any](v T) any { return camel.Of[T]{Value: v} }

var (
	inSnake = spelling{plainly[statusFrame], plainly[outputFrame], plainly[gapFrame], plainly[exitFrame], plainly[errorFrame]}
	inCamel = spelling{camelly[statusFrame], camelly[outputFrame], camelly[gapFrame], camelly[exitFrame], camelly[errorFrame]}
)

// frameWindow is how many frames, of at most 64 KiB of output each, are read ahead of a client.
const frameWindow = 8

// follower reads a job's stream ahead of one client. Its goroutine ends with the context of follow at the latest; wait waits for it.
type follower struct {
	frames   chan frame // closed when the stream has ended; err says why, nil: its last frame was among them
	err      error      // set before frames is closed
	patience time.Duration
	names    spelling
	runs     streams.Runs
	pump     sync.WaitGroup
}

// follow begins to read what comes after a position. A client that takes nothing for a while is cay.SlowConsumer.
func (a *API) follow(ctx context.Context, project, id cay.ID, after int64, names spelling) *follower {
	f := &follower{frames: make(chan frame, frameWindow), patience: a.WriteTimeout * 4 / 5, names: names}
	f.runs.Emit = func(r streams.Run) error { return f.output(ctx, r) }
	f.pump.Go(func() {
		defer close(f.frames)
		f.err = a.Jobs.Stream(ctx, project, id, after, func(j cay.JobFrame) error { return f.take(ctx, j) })
	})
	return f
}

func (f *follower) wait() { f.pump.Wait() }

// take makes frames of one of the job's.
func (f *follower) take(ctx context.Context, j cay.JobFrame) error {
	if j.Type == "stdout" || j.Type == "stderr" {
		return f.runs.Add(streams.Run{Stream: j.Type, Seq: j.Seq, At: j.At, Data: j.Data})
	}
	if err := f.runs.Flush(); err != nil {
		return err
	}
	head := FrameHead{Type: j.Type, Seq: j.Seq, TS: moment(j.At)}
	switch j.Type {
	case "status":
		return f.pass(ctx, head, f.names.status(statusFrame{head, j.Status, j.Attempt}))
	case "gap":
		return f.pass(ctx, head, f.names.gap(gapFrame{head, j.Stream, j.Bytes}))
	case "exit":
		s := summaryOf(j.Job)
		return f.pass(ctx, head, f.names.exit(exitFrame{head, s.Status, s.ExitCode, s.Signal, s.TimedOut, s.DurationMS}))
	case "error":
		e := errorFrame{FrameHead: head, Data: j.Job.Status, Reason: string(j.Job.Status)}
		if fault := j.Job.Fault; fault != nil {
			e.Reason, e.Detail = fault.Reason, fault.Detail
		}
		return f.pass(ctx, head, f.names.fault(e))
	}
	return nil // a newer queue may say more
}

func (f *follower) output(ctx context.Context, r streams.Run) error {
	out := outputFrame{FrameHead: FrameHead{Type: r.Stream, Seq: r.Seq, TS: moment(r.At)}}
	if r.Text {
		text := string(r.Data)
		out.Data = &text
	} else {
		out.DataBase64 = slices.Clone(r.Data)
	}
	return f.pass(ctx, out.FrameHead, f.names.output(out))
}

// pass hands a frame to the client's side, which may be a window behind.
func (f *follower) pass(ctx context.Context, head FrameHead, body any) error {
	ready := frame{head.Type, head.Seq, body}
	select {
	case f.frames <- ready:
		return nil
	default:
	}
	enough := time.NewTimer(f.patience)
	defer enough.Stop()
	select {
	case f.frames <- ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-enough.C:
		return cay.Errorf(cay.SlowConsumer, "the client took nothing for %s; go on with the seq of the last frame", f.patience)
	}
}
