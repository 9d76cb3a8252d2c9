package api

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// outputWindow is how many messages, of at most 64 KiB each, are read ahead of a client. It is what lets small ones be written
// together; the node counts them as passed on.
const outputWindow = 8

// stdinPiece is how much of stdin travels in one message.
const stdinPiece = 64 << 10

// nodeStream is one Process stream to a node. Its goroutine reads ahead; end stops it and waits for it.
type nodeStream struct {
	stream  *connect.BidiStreamForClient[nodev1.ProcessInput, nodev1.ProcessOutput]
	cancel  context.CancelFunc
	outputs chan *nodev1.ProcessOutput // closed when the stream has ended; err says why
	err     error                      // set before outputs is closed
	mu      sync.Mutex                 // serializes sends
	pumps   sync.WaitGroup             // what else uses the stream
}

// open sends the first message, start or attach, and begins to read. ctx bounds the whole stream.
func open(ctx context.Context, node nodev1connect.NodeServiceClient, first *nodev1.ProcessInput) (*nodeStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &nodeStream{stream: node.Process(ctx), cancel: cancel, outputs: make(chan *nodev1.ProcessOutput, outputWindow)}
	s.pumps.Go(func() { s.read(ctx) })
	if err := s.send(first); err != nil && !errors.Is(err, io.EOF) { // EOF: the answer says why
		s.end()
		return nil, err
	}
	return s, nil
}

func (s *nodeStream) read(ctx context.Context) {
	defer close(s.outputs)
	for {
		m, err := s.stream.Receive()
		if err != nil {
			s.err = noderpc.Decode(err)
			if errors.Is(err, io.EOF) {
				s.err = io.EOF
			}
			return
		}
		select {
		case s.outputs <- m:
		case <-ctx.Done():
			s.err = ctx.Err()
			return
		}
	}
}

// send is safe for concurrent use. It blocks while the process takes no stdin.
func (s *nodeStream) send(m *nodev1.ProcessInput) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m)
}

// feed sends data as stdin, from an offset on, then closes it.
func (s *nodeStream) feed(data []byte, from int64) error {
	if err := s.feedOpen(data, from); err != nil {
		return err
	}
	return s.closeStdin()
}

// feedOpen is feed without the close.
func (s *nodeStream) feedOpen(data []byte, from int64) error {
	data = data[min(max(from, 0), int64(len(data))):]
	for len(data) > 0 {
		n := min(len(data), stdinPiece)
		if err := s.send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Stdin{Stdin: data[:n]}}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func (s *nodeStream) closeStdin() error {
	return s.send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_CloseStdin{CloseStdin: true}})
}

// detachPatience is how long detach waits for the node's answer.
const detachPatience = 5 * time.Second

// detach lets the process run on, also one that would be killed on disconnect, and returns when the node has heard it: the end of a
// stream may overtake what was sent before it. It does not wait behind a stdin that is stuck.
func (s *nodeStream) detach() {
	if !s.mu.TryLock() {
		return
	}
	_ = s.stream.Send(&nodev1.ProcessInput{Input: &nodev1.ProcessInput_Detach{Detach: true}})
	_ = s.stream.CloseRequest()
	s.mu.Unlock()
	enough := time.NewTimer(detachPatience)
	defer enough.Stop()
	for {
		select {
		case _, more := <-s.outputs:
			if !more {
				return
			}
		case <-enough.C:
			return
		}
	}
}

// giveUp ends a send that waits for the process. (The end of its context alone is not noticed by a transport that waits for room.)
func (s *nodeStream) giveUp() {
	s.cancel()
	_ = s.stream.CloseRequest()
}

// end gives the stream up and waits for all that used it.
func (s *nodeStream) end() {
	s.cancel()
	_ = s.stream.CloseRequest()
	_ = s.stream.CloseResponse()
	s.pumps.Wait()
}

// errBroken is a stream that ended before its process did.
func errBroken() error {
	return cay.Errorf(cay.Unavailable, "the worker ended the stream before the process ended; attach again").After(time.Second)
}

// next is the next message, or why there is none: io.EOF after the last.
func (s *nodeStream) next(ctx context.Context) (*nodev1.ProcessOutput, error) {
	select {
	case m, ok := <-s.outputs:
		if !ok {
			return nil, s.err
		}
		if e := m.GetError(); e != nil {
			return nil, streamError(e)
		}
		return m, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func streamError(e *nodev1.StreamError) error {
	return cay.Errorf(cay.ErrorReason(e.GetReason()), "%s", e.GetDetail())
}

// started waits for the node's word that the process runs.
func (s *nodeStream) started(ctx context.Context) (*nodev1.Started, error) {
	m, err := s.next(ctx)
	if errors.Is(err, io.EOF) {
		err = errBroken()
	}
	if err != nil {
		return nil, err
	}
	if st := m.GetStarted(); st != nil {
		return st, nil
	}
	return nil, cay.Errorf(cay.Internal, "the worker's first word was not started")
}

func outcome(process cay.ID, e *nodev1.Exit) streams.Outcome {
	return streams.Outcome{
		ProcessID: process, ExitCode: int(e.GetCode()), Signal: nullable(e.GetSignal()), OK: e.GetCode() == 0 && !e.GetTimedOut() && e.GetReason() == string(cay.ExitExited),
		Reason: cay.ExitReason(e.GetReason()), TimedOut: e.GetTimedOut(), Killed: e.GetKilled(), OOM: e.GetOom(), DurationMS: e.GetDurationMs(),
		StdoutSize: e.GetStdoutSize(), StderrSize: e.GetStderrSize(), Detail: e.GetDetail(),
	}
}

func streamOf(n uint32) cay.Stream {
	if n == uint32(cay.Stderr) {
		return cay.Stderr
	}
	return cay.Stdout
}
