package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/filetype"
	"github.com/cayhq/cay/internal/control/jobs/kept"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	outputFolder    = "/output/"
	maxOutputs      = 1000    // files that are kept of one job
	maxOutputsBytes = 1 << 30 // and their bytes
	storageTries    = 3       // until blob storage that fails is a fault
	storageStall    = time.Minute
	usageTimeout    = 2 * time.Second // for figures without which a job ends as well
)

// keep keeps what the program left behind and writes the job's end. Meanwhile another program may run in its place.
func (w *work) keep(ctx context.Context, sb *cay.Sandbox, end *ending) error {
	if cay.ExitReason(end.exit.Reason) == cay.ExitSandboxEnded {
		return w.over(ctx, sb)
	}
	select {
	case w.j.saves <- struct{}{}:
		w.release()
		defer func() { <-w.j.saves }()
	default: // it keeps its place: as many as may are keeping something already
	}
	if cay.ExitReason(end.exit.Reason) == cay.ExitStartFailed {
		return failed(cay.JobError, string(cay.Unprocessable), "the program could not be started: "+end.exit.Detail)
	}
	var all saved
	err := w.insist(ctx, sb, func(ctx context.Context) error { return w.save(ctx, sb, end, &all) })
	var storage storageError
	var lost *cay.JobFault
	switch {
	case ctx.Err() != nil: // whatever it was that failed then
		return ctx.Err()
	case errors.As(err, &storage):
		fault, detail := storageFault(err)
		w.j.log.Error("what a job left behind could not be kept", "job", w.id, "error", err)
		lost = &cay.JobFault{Reason: fault.Reason, Detail: "what the program left behind could not be kept: " + detail}
		all = lostOutput(end.exit)
	case err != nil:
		return err
	}
	return w.finish(ctx, sb, end, all, lost)
}

// saved is what of a job is kept so far.
type saved struct {
	result result
	whole  bool // its output is
	key    string
	files  int // of the report, that were looked at
	bytes  int64
}

// finish writes the end that the program came to. The row it was read from decides whether the end was asked for.
func (w *work) finish(ctx context.Context, sb *cay.Sandbox, end *ending, all saved, lost *cay.JobFault) error {
	packed, err := all.result.encode()
	if err != nil {
		return err
	}
	usage := w.usage(ctx, sb)
	err = w.write(ctx, func(row *cay.Job) error {
		status, fault := outcome(end.exit, row.CancelAsked)
		if lost != nil {
			status, fault = cay.JobError, lost
		}
		code := int(end.exit.Code)
		row.ExitCode, row.Signal, row.Duration = &code, end.exit.Signal, time.Duration(end.exit.DurationMs)*time.Millisecond
		row.StdoutBytes, row.StderrBytes = end.exit.StdoutSize, end.exit.StderrSize
		row.Usage, row.Fault, row.Result, row.ResultKey = usage, fault, packed, all.key
		return conclude(row, status, now())
	})
	if err != nil {
		return err
	}
	w.release()
	w.j.discard(w.row)
	return nil
}

// outcome is what a program's end makes of its job. One that ended by itself although it was to be canceled has ended so.
func outcome(e *nodev1.Exit, asked bool) (cay.JobStatus, *cay.JobFault) {
	switch {
	case e.Oom:
		return cay.JobFailed, &cay.JobFault{Reason: string(cay.ReasonOOM), Detail: "the program used more memory than its sandbox has"}
	case e.TimedOut:
		return cay.JobTimeout, nil
	case asked && e.Signal == "KILL":
		return cay.JobCanceled, nil
	case e.Code == 0 && e.Signal == "":
		return cay.JobSuccess, nil
	}
	return cay.JobFailed, nil
}

// usage is what the sandbox has used, as its node measures it now, or else as it was last told.
func (w *work) usage(ctx context.Context, sb *cay.Sandbox) cay.Usage {
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	used := sb.Usage
	if last, err := w.j.sandboxes.Get(ctx, sb.ProjectID, sb.ID); err == nil {
		used = last.Usage
	}
	node, err := w.j.nodes.For(ctx, sb.WorkerID)
	if err != nil {
		return used
	}
	answer, err := node.GetMetrics(ctx, request(&nodev1.GetMetricsRequest{SandboxId: string(sb.ID), Limit: 1}))
	if err == nil && answer.Msg.Usage != nil {
		m := answer.Msg.Usage
		return cay.Usage{CPUSeconds: m.CpuSeconds, MemoryMBSeconds: m.MemoryMbSeconds, PeakMemoryMB: m.PeakMemoryMb, DiskMB: m.DiskMb, EgressBytes: used.EgressBytes}
	}
	return used
}

// save keeps what is not kept yet.
func (w *work) save(ctx context.Context, sb *cay.Sandbox, end *ending, all *saved) error {
	if !all.whole {
		if err := w.saveOutput(ctx, sb, all); err != nil {
			return err
		}
		all.whole = true
	}
	report := end.report
	if report == nil {
		all.result.FilesTruncated, all.result.OutputsTruncated = true, true
		return nil
	}
	all.result.FilesTruncated, all.result.FilesChanged = report.FilesTruncated, nil
	for _, f := range report.FilesChanged {
		all.result.FilesChanged = append(all.result.FilesChanged, cay.FileChange{Path: f.Path, Size: f.Size, Op: f.Op})
	}
	for ; all.files < len(report.FilesChanged); all.files++ {
		f := report.FilesChanged[all.files]
		name, ok := cay.ParseWirePath(f.Path)
		if !ok || !strings.HasPrefix(name, outputFolder) || path.Clean(name) != name || f.Op == "remove" {
			continue
		}
		if err := w.saveFile(ctx, sb, f.Path, report.User, all); err != nil {
			return err
		}
	}
	all.result.OutputsTruncated = all.result.OutputsTruncated || report.FilesTruncated
	return nil
}

// blobKey is where this holder of the job keeps something. A holder whose lease was lost, and who does not know it yet, writes elsewhere.
func (w *work) blobKey(name string) string {
	return blobsOf(w.id) + strconv.FormatInt(w.fence, 10) + "/" + name
}

func (w *work) saveOutput(ctx context.Context, sb *cay.Sandbox, all *saved) error {
	key := w.blobKey("output")
	for try := 1; ; try++ {
		sink := w.j.newSink(ctx, key)
		writer := kept.NewWriter(sink)
		page, err := w.j.readOutput(ctx, sb, w.row.ProcessID, func(m *nodev1.ReadOutputResponse_Run) error { return writer.Add(kept.RunOf(m)) })
		if err == nil && page.GetProcess().GetExit() == nil {
			err = cay.Errorf(cay.Unavailable, "the worker does not know yet that the program has ended")
		}
		var index kept.Index
		if err == nil {
			index, err = writer.Close()
		}
		if err = sink.close(err); err == nil {
			all.result.Output, all.key = index, ""
			if len(index.Chunks) > 0 {
				all.key = key
			}
			return nil
		}
		if !errors.As(err, new(storageError)) || try == storageTries || ctx.Err() != nil {
			return err
		}
		w.j.log.Warn("a job's output is kept once more", "job", w.id, "error", err)
	}
}

// readOutput reads all that a program has written when it is called.
func (j *Jobs) readOutput(ctx context.Context, sb *cay.Sandbox, process cay.ID, each func(*nodev1.ReadOutputResponse_Run) error) (*nodev1.ReadOutputResponse, error) {
	node, err := j.nodes.For(ctx, sb.WorkerID)
	if err != nil {
		return nil, err
	}
	end := int64(-1)
	for offset := int64(0); ; {
		answer, err := node.ReadOutput(ctx, request(&nodev1.ReadOutputRequest{SandboxId: string(sb.ID), ProcessId: string(process), Offset: offset, Limit: scanPage}))
		if err != nil {
			return nil, noderpc.Decode(err)
		}
		page := answer.Msg
		if end < 0 {
			end = page.Produced
		}
		for _, run := range page.Runs {
			if err := each(run); err != nil {
				return nil, err
			}
		}
		if page.NextOffset >= end || page.NextOffset <= offset {
			return page, nil
		}
		offset = page.NextOffset
	}
}

// saveFile keeps a file that the program left in /output. One that is gone, that is no file, or that the program's user cannot read, is
// left out.
func (w *work) saveFile(ctx context.Context, sb *cay.Sandbox, wirePath, user string, all *saved) error {
	left := maxOutputsBytes - all.bytes
	if len(all.result.Outputs) == maxOutputs || left <= 0 {
		all.result.OutputsTruncated = true
		return nil
	}
	name, _ := cay.ParseWirePath(wirePath)
	key := w.blobKey("outputs/" + strconv.Itoa(len(all.result.Outputs)))
	for try := 1; ; try++ {
		size, beginning, err := w.copyFile(ctx, sb, wirePath, user, left, key)
		switch {
		case err == nil && size >= 0:
			all.bytes += size
			all.result.Outputs = append(all.result.Outputs, cay.JobOutput{Path: wirePath, MIME: filetype.Of(name, beginning), Size: size, Key: key})
			return nil
		case err == nil:
			all.result.OutputsTruncated = true // it is too large
			return nil
		case errors.As(err, new(storageError)) && try < storageTries && ctx.Err() == nil:
			continue
		case ctx.Err() != nil || errors.As(err, new(storageError)):
			return err
		}
		switch cay.ReasonOf(err) {
		case cay.NotFound, cay.Forbidden, cay.Unprocessable, cay.Conflict:
			return nil
		}
		return err
	}
}

// copyFile copies a file of at most limit bytes to a blob, as it is when it is opened. size is -1 for a longer one.
func (w *work) copyFile(ctx context.Context, sb *cay.Sandbox, wirePath, user string, limit int64, key string) (size int64, beginning []byte, err error) {
	node, err := w.j.nodes.For(ctx, sb.WorkerID)
	if err != nil {
		return 0, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := node.ReadFile(ctx, request(&nodev1.ReadFileRequest{SandboxId: string(sb.ID), Path: wirePath, User: user, Length: -1}))
	if err != nil {
		return 0, nil, noderpc.Decode(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		return 0, nil, receiveError(stream.Err())
	}
	info := stream.Msg().GetInfo()
	if info.GetType() != "file" {
		return 0, nil, cay.Errorf(cay.Unprocessable, "it is no file")
	}
	if info.Size > limit {
		return -1, nil, nil
	}
	sink := w.j.newSink(ctx, key)
	_, err = sink.Write(nil)
	for size < info.Size && err == nil {
		if !stream.Receive() {
			err = receiveError(stream.Err())
			if err == nil { // it has become shorter
				break
			}
			break
		}
		piece := stream.Msg().GetData()
		piece = piece[:min(int64(len(piece)), info.Size-size)] // one that grows meanwhile is kept as it was
		if beginning == nil {
			beginning = append([]byte{}, piece[:min(len(piece), 512)]...)
		}
		_, err = sink.Write(piece)
		size += int64(len(piece))
	}
	return size, beginning, sink.close(err)
}

// receiveError is why a stream of the node has ended; nil at its end.
func receiveError(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return noderpc.Decode(err)
}

// lostOutput stands for output that could not be kept: it says how much there was.
func lostOutput(e *nodev1.Exit) saved {
	all := saved{result: result{FilesTruncated: true, OutputsTruncated: true}}
	w := kept.NewWriter(io.Discard)
	_ = w.Add(kept.Run{Stream: cay.Stdout, Gap: e.StdoutSize}) // two runs fit into the index
	_ = w.Add(kept.Run{Stream: cay.Stderr, Offset: e.StdoutSize, Gap: e.StderrSize})
	all.result.Output, _ = w.Close()
	return all
}

// storageError is a fault of blob storage.
type storageError struct{ error }

func (e storageError) Unwrap() error { return e.error }

var errStalled = errors.New("blob storage took nothing for too long")

// storageFault is a fault of blob storage as a job's owner may read it.
func storageFault(err error) (cay.JobFault, string) {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		detail := "the blob storage is full; whoever runs this platform has to make room there"
		return cay.JobFault{Reason: string(cay.DiskFull), Detail: detail}, detail
	}
	detail := "the blob storage failed; whoever runs this platform finds the cause in the server's log"
	return cay.JobFault{Reason: string(cay.Unavailable), Detail: detail}, detail
}

// sink writes a blob while its content is made. It begins with the first Write; close must be called, and waits for the blob.
type sink struct {
	j      *Jobs
	ctx    context.Context // of the blob's write; its cause says when it stalls
	cancel context.CancelCauseFunc
	key    string
	pipe   *io.PipeWriter // nil: nothing was written
	stall  *time.Timer
	done   chan error
}

func (j *Jobs) newSink(ctx context.Context, key string) *sink {
	ctx, cancel := context.WithCancelCause(ctx)
	return &sink{j: j, ctx: ctx, cancel: cancel, key: key, done: make(chan error, 1)}
}

// Write implements io.Writer at the pace of the storage. Its errors are the storage's.
func (s *sink) Write(b []byte) (int, error) {
	if s.pipe == nil {
		r, w := io.Pipe()
		s.pipe = w
		s.stall = time.AfterFunc(storageStall, func() {
			s.cancel(errStalled)
			_ = r.CloseWithError(errStalled)
		})
		go func() {
			_, err := s.j.blobs.Write(s.ctx, s.key, r)
			_ = r.CloseWithError(err)
			s.done <- err
		}()
	}
	s.stall.Reset(storageStall)
	n, err := s.pipe.Write(b)
	if err != nil {
		return n, storageError{fmt.Errorf("write blob %s: %w", s.key, err)}
	}
	return n, nil
}

// close completes the blob, or drops what there is of it because of err, which it returns. A blob that was not begun is none.
func (s *sink) close(err error) error {
	defer s.cancel(nil)
	if s.pipe == nil {
		return err
	}
	defer s.stall.Stop()
	_ = s.pipe.CloseWithError(err) // nil: the end
	written := <-s.done
	if err == nil && written != nil {
		if context.Cause(s.ctx) == errStalled {
			written = errStalled
		}
		return storageError{written}
	}
	if errors.As(err, new(storageError)) && written != nil && !errors.Is(written, io.ErrClosedPipe) {
		return storageError{written} // says more than that the pipe is closed
	}
	return err
}
