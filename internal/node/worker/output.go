package worker

import (
	"bytes"
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// write serves a caller that gives a process stdin and reads nothing. It answers where stdin begins, and in the end where it stands.
func (s service) write(ctx context.Context, stream *processStream, at *nodev1.AttachProcess) error {
	session, err := s.w.use(at.SandboxId)
	if err != nil {
		return noderpc.Encode(err)
	}
	w, err := session.WriteTo(ctx, at.ProcessId)
	if err != nil {
		return noderpc.Encode(err)
	}
	defer w.Close()
	process := w.Process()
	tell := func() error {
		return stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Started{Started: &nodev1.Started{
			ProcessId: string(process.ID()), Pid: process.Log().Process().PID, StdinOffset: w.Offset(),
		}}})
	}
	if err := tell(); err != nil {
		return err
	}
	for {
		in, err := stream.Receive()
		switch {
		case errors.Is(err, io.EOF):
			return tell()
		case err != nil:
			return err
		}
		switch in := in.Input.(type) {
		case *nodev1.ProcessInput_Stdin:
			err = w.Write(ctx, in.Stdin)
		case *nodev1.ProcessInput_CloseStdin:
			err = w.CloseStdin()
		case *nodev1.ProcessInput_Detach:
			return tell()
		default:
			err = cay.Errorf(cay.InvalidRequest, "a caller that only writes sends stdin, close or detach")
		}
		if err != nil {
			if left(ctx, err) {
				return nil
			}
			return s.broken(stream, process.ID(), err)
		}
	}
}

func (s service) ReadOutput(_ context.Context, r *connect.Request[nodev1.ReadOutputRequest]) (*connect.Response[nodev1.ReadOutputResponse], error) {
	return answer(s.w.readOutput(r.Msg))
}

// Bounds of one page of output, in bytes.
const (
	defaultPage = 1 << 20
	maxPage     = 8 << 20
	maxRuns     = 64 << 10 // runs of one page: of a process that writes a byte to each stream in turn, each is a message of its own
)

// readOutput reads a page of what is kept.
func (w *Worker) readOutput(r *nodev1.ReadOutputRequest) (*nodev1.ReadOutputResponse, error) {
	session, err := w.readable(r.SandboxId)
	if err != nil {
		return nil, err
	}
	log, err := session.Output(r.ProcessId)
	if err != nil {
		return nil, err
	}
	left := min(r.Limit, maxPage)
	switch {
	case r.Limit < 0:
		return nil, cay.Errorf(cay.InvalidRequest, "the limit is negative").On("limit")
	case r.Limit == 0:
		left = defaultPage
	}
	// The status first: what is read after an exit is all there is.
	page := &nodev1.ReadOutputResponse{Process: processInfo(log.Process()), Produced: log.Produced(), NextOffset: r.Offset}
	if r.Offset < 0 || r.Offset > page.Produced {
		return nil, cay.Errorf(cay.InvalidRequest, "offset %d is beyond the end of the output, %d", r.Offset, page.Produced).On("offset")
	}
	reader := log.NewReader(r.Offset)
	defer reader.Close()
	for left > 0 && len(page.Runs) < maxRuns {
		c, more, err := reader.Next()
		if err != nil {
			return nil, err
		}
		if !more {
			break
		}
		run := &nodev1.ReadOutputResponse_Run{Stream: uint32(c.Stream), Offset: c.Offset, Gap: c.Gap, AtUnixMs: unixMS(c.At)}
		if c.Gap == 0 {
			run.Data = bytes.Clone(c.Data[:min(int64(len(c.Data)), left)])
			left -= int64(len(run.Data))
		}
		page.Runs = append(page.Runs, run)
		page.NextOffset = run.Offset + run.Gap + int64(len(run.Data))
	}
	page.Produced = max(page.Produced, page.NextOffset)
	return page, nil
}
