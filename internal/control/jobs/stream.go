package jobs

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/jobs/kept"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	frameBytes = 64 << 10 // of output in one frame
	// Positions within an attempt: what was said before the first byte of output.
	afterQueued  = 1
	afterRunning = 2
)

// stream is one who follows a job. It has no state but its position: what is to come next follows from that and the row.
type stream struct {
	j    *Jobs
	row  *cay.Job
	w    *watcher
	pos  int64 // everything up to it was sent
	send func(cay.JobFrame) error
}

// sendError is why whoever follows wants no more.
type sendError struct{ error }

func (e sendError) Unwrap() error { return e.error }

// Stream calls send with everything after a position, then with what happens, until the job's last frame or ctx ends or send fails, whose
// error it returns. Every caller reads at its own pace, and holds back neither the program nor the others.
func (j *Jobs) Stream(ctx context.Context, project, id cay.ID, after int64, send func(cay.JobFrame) error) error {
	w := j.feed.watch(id)
	defer w.leave()
	row, err := w.now(ctx)
	if err == nil {
		err = owned(row, project)
	}
	if err != nil {
		return err
	}
	s := &stream{j: j, row: row, w: w, pos: after, send: send}
	if after < 0 || after >= s.base()+cay.JobAttemptSpan {
		return invalid("seq", "seq is the position of a frame of the job's stream")
	}
	err = s.follow(ctx)
	var refused sendError
	if errors.As(err, &refused) {
		return refused.error
	}
	return err
}

// base is the position at which the newest attempt begins.
func (s *stream) base() int64 { return (max(s.row.Attempt, 1) - 1) * cay.JobAttemptSpan }

// emit sends a frame whose position is f.Seq.
func (s *stream) emit(f cay.JobFrame) error {
	f.Attempt = max(s.row.Attempt, 1)
	if err := s.send(f); err != nil {
		return sendError{err}
	}
	s.pos = f.Seq
	return nil
}

func (s *stream) follow(ctx context.Context) error {
	for {
		base := s.base()
		s.pos = max(s.pos, base)
		if s.pos < base+afterQueued {
			if err := s.emit(cay.JobFrame{Type: "status", Status: cay.JobQueued, Seq: base + afterQueued, At: s.row.QueuedAt}); err != nil {
				return err
			}
		}
		ran := !s.row.StartedAt.IsZero()
		if ran && s.pos < base+afterRunning {
			if err := s.emit(cay.JobFrame{Type: "status", Status: cay.JobRunning, Seq: base + afterRunning, At: s.row.StartedAt}); err != nil {
				return err
			}
		}
		switch {
		case s.row.Status.Finished():
			return s.end(ctx)
		case s.row.Status == cay.JobRunning && ran:
			if err := s.live(ctx); err != nil {
				return err
			}
		default:
			if err := s.wait(ctx, nil); err != nil {
				return err
			}
		}
	}
}

// wait waits for a newer row, or for another reason to go on.
func (s *stream) wait(ctx context.Context, enough <-chan time.Time) error {
	select {
	case <-s.w.changed():
		s.row = s.w.take()
		return nil
	case <-enough:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// live follows the program on its node until the row has changed.
func (s *stream) live(ctx context.Context) error {
	version := s.row.Version
	for wait := retryFirst; s.row.Version == version; {
		before := s.pos
		ended, err := s.attach(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, new(sendError)):
			return err
		case ended: // what follows is in the row
			return s.wait(ctx, nil)
		case cay.ReasonOf(err) == cay.InvalidRequest:
			return invalid("seq", "seq is beyond what the job has written")
		}
		if s.pos > before {
			wait = retryFirst
		}
		timer := time.NewTimer(wait)
		err = s.wait(ctx, timer.C)
		timer.Stop()
		if err != nil {
			return err
		}
		wait = min(2*wait, retryMost)
	}
	return nil
}

// attach reads along from the position on. ended says that the program has ended and all its output was sent; else there is an error, after
// which it may be that the node is restarted, or that the job is over and its sandbox gone.
func (s *stream) attach(ctx context.Context) (ended bool, err error) {
	sb, err := s.j.sandboxes.Get(ctx, s.row.ProjectID, s.row.SandboxID)
	if err != nil {
		return false, err
	}
	node, err := s.j.nodes.For(ctx, sb.WorkerID)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancel(ctx)
	in := node.Process(ctx)
	unblock := context.AfterFunc(ctx, func() { _ = in.CloseRequest() }) // a receive does not notice the end of its context while it is open
	defer func() {
		cancel()
		unblock()
		_ = in.CloseRequest()
		_ = in.CloseResponse()
	}()
	base := s.base() + afterRunning
	if err := in.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Attach{Attach: &nodev1.AttachProcess{
		SandboxId: string(sb.ID), ProcessId: string(s.row.ProcessID), Offset: s.pos - base,
	}}}); err != nil && !errors.Is(err, io.EOF) { // EOF: the answer says why
		return false, noderpc.Decode(err)
	}
	for {
		m, err := in.Receive()
		if err != nil {
			return false, noderpc.Decode(err)
		}
		switch out := m.Output.(type) {
		case *nodev1.ProcessOutput_Data:
			run := kept.Run{Stream: cay.Stream(out.Data.Stream), Offset: out.Data.Offset, Data: out.Data.Data}
			if run.At = time.Now().UTC(); out.Data.AtUnixMs != 0 {
				run.At = time.UnixMilli(out.Data.AtUnixMs).UTC()
			}
			err = s.output(base, run)
		case *nodev1.ProcessOutput_Gap:
			err = s.output(base, kept.Run{Stream: cay.Stream(out.Gap.Stream), Offset: out.Gap.Offset, Gap: out.Gap.Bytes, At: time.Now().UTC()})
		case *nodev1.ProcessOutput_Exit:
			return true, nil
		case *nodev1.ProcessOutput_Error:
			return false, &cay.Error{Reason: cay.ErrorReason(out.Error.Reason), Detail: out.Error.Detail}
		}
		if err != nil {
			return false, err
		}
	}
}

// output sends what of a run is after the position.
func (s *stream) output(base int64, run kept.Run) error {
	run = run.From(s.pos - base)
	if run.Gap > 0 {
		return s.emit(cay.JobFrame{Type: "gap", Stream: run.Stream.String(), Bytes: run.Gap, Seq: base + run.Offset + run.Gap, At: run.At})
	}
	for len(run.Data) > 0 {
		piece := run.Data[:min(len(run.Data), frameBytes)]
		run = run.From(run.Offset + int64(len(piece)))
		if err := s.emit(cay.JobFrame{Type: run.Stream.String(), Data: piece, Seq: base + run.Offset, At: run.At}); err != nil {
			return err
		}
	}
	return nil
}

// end sends what is kept after the position, and the last frame.
func (s *stream) end(ctx context.Context) error {
	r, err := decodeResult(s.row.Result)
	if err != nil {
		return err
	}
	base := s.base()
	if !s.row.StartedAt.IsZero() {
		base += afterRunning
		if err := r.Output.Read(ctx, s.j.outputBlob(s.row), s.pos-base, func(run kept.Run) error {
			if run.At.IsZero() {
				run.At = s.row.FinishedAt
			}
			return s.output(base, run)
		}); err != nil {
			return err
		}
	} else {
		base += afterQueued
	}
	last := cay.JobFrame{Type: "exit", Status: s.row.Status, Seq: base + r.Output.Produced() + 1, At: s.row.FinishedAt, Job: s.row}
	if s.row.ExitCode == nil {
		last.Type = "error"
		if s.pos >= last.Seq {
			last.Seq = s.base() + cay.JobAttemptSpan - 1 // what it had written was seen, and is lost
		}
	}
	if s.pos >= last.Seq {
		return nil
	}
	return s.emit(last)
}
