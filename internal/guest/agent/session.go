package agent

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

const (
	// batch is about how much one system call sends.
	batch = 4 * wire.MaxFrame
	// maxRequests bounds the requests being worked on; the next one waits unread.
	maxRequests = 256
)

// session is one control connection. Whoever has something to send flushes it without waiting; only what the socket does not take
// at once is left to the writer, so that neither the poller nor the reader ever waits for the node.
type session struct {
	agent    *Agent
	conn     *net.UnixConn
	raw      syscall.RawConn
	rest     chan []byte   // what the writer is to send; its owner is the one that set writing
	slots    chan struct{} // of requests
	requests sync.WaitGroup
	parts    parts // received so far of a long message

	buf []byte // of whoever set writing

	mu      sync.Mutex
	replies []byte // encoded frames
	writing bool
	again   bool // something became pending while writing
	closed  bool
	idle    sync.Cond // writing became false
}

func newSession(a *Agent, conn *net.UnixConn) (*session, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("prepare the connection: %w", err)
	}
	s := &session{agent: a, conn: conn, raw: raw, rest: make(chan []byte, 1), slots: make(chan struct{}, maxRequests)}
	s.idle.L = &s.mu
	return s, nil
}

// serve runs the connection to its end and waits for the requests that it brought.
func (s *session) serve(ctx context.Context) error {
	var writer sync.WaitGroup
	writer.Go(func() {
		for rest := range s.rest {
			if _, err := s.conn.Write(rest); err != nil {
				s.close()
			}
			s.pump()
		}
	})
	s.reply(0, &guestv1.ToNode{Message: &guestv1.ToNode_Hello{Hello: s.agent.hello()}})
	s.agent.session.Store(s)
	s.flush()

	err := s.read(ctx)
	s.close()
	s.requests.Wait()
	s.settle()
	close(s.rest)
	writer.Wait()
	return err
}

func (s *session) read(ctx context.Context) error {
	frames := wire.NewReader(bufio.NewReaderSize(s.conn, wire.MaxFrame))
	for {
		f, err := frames.Read()
		if err != nil {
			return err
		}
		if err := s.take(ctx, f); err != nil {
			return err
		}
	}
}

// take handles one frame. An error is a breach of the protocol and ends the connection.
func (s *session) take(ctx context.Context, f wire.Frame) error {
	if s.parts != nil && f.Type != wire.FramePart && f.Type != wire.FrameMessage {
		return fmt.Errorf("%w: type %d within a message", wire.ErrFrame, f.Type)
	}
	switch f.Type {
	case wire.FrameStdin:
		offset, data, err := wire.SplitData(f.Payload)
		if err == nil {
			err = s.agent.processes.Stdin(f.Stream, offset, data)
		}
		s.flush()
		return err
	case wire.FramePart, wire.FrameMessage:
		m, err := s.parts.add(f)
		if m == nil || err != nil {
			return err
		}
		return s.dispatch(ctx, m)
	}
	return fmt.Errorf("%w: type %d on a control connection", wire.ErrFrame, f.Type)
}

// parts is the beginning of a message that one frame cannot hold; nil between messages.
type parts []byte

// add returns the message that f completes, nil when more is to come.
func (p *parts) add(f wire.Frame) (*guestv1.ToAgent, error) {
	if len(*p)+len(f.Payload) > wire.MaxMessage {
		return nil, fmt.Errorf("%w: a message above %d bytes", wire.ErrFrame, wire.MaxMessage)
	}
	payload := f.Payload
	if f.Type == wire.FramePart || *p != nil {
		*p = append(*p, payload...)
		payload = *p
	}
	if f.Type == wire.FramePart {
		return nil, nil
	}
	*p = nil
	m := &guestv1.ToAgent{}
	if err := proto.Unmarshal(payload, m); err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrFrame, err)
	}
	return m, nil
}

// reply queues an answer. Nothing is sent for a request without an id.
func (s *session) reply(id uint64, m *guestv1.ToNode) {
	if _, unasked := m.Message.(*guestv1.ToNode_Hello); id == 0 && !unasked {
		return
	}
	m.ReplyTo = id
	payload, err := proto.Marshal(m)
	if err != nil || len(payload) > wire.MaxFrame {
		payload, _ = proto.Marshal(&guestv1.ToNode{ReplyTo: id, Message: &guestv1.ToNode_Problem{
			Problem: &guestv1.Problem{Reason: "internal", Detail: "the answer does not fit into a frame"}}})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.replies = wire.AppendFrame(s.replies, wire.Frame{Type: wire.FrameMessage, Payload: payload})
	}
}

// flush sends what is pending as far as the socket takes it. It does not block.
func (s *session) flush() {
	s.mu.Lock()
	if s.closed || s.writing {
		s.again = true
		s.mu.Unlock()
		return
	}
	s.writing = true
	s.mu.Unlock()
	s.pump()
}

// pump is flush for the one that set writing.
func (s *session) pump() {
	for {
		s.mu.Lock()
		s.again = false
		closed := s.closed
		s.buf = append(s.buf[:0], s.replies...)
		s.replies = s.replies[:0]
		s.mu.Unlock()

		if !closed {
			s.buf = s.agent.config.Log.said.appendPending(s.buf)
			s.buf = s.agent.processes.AppendPending(s.buf, batch)
		}
		if closed || len(s.buf) == 0 {
			s.mu.Lock()
			if s.again && !s.closed {
				s.mu.Unlock()
				continue
			}
			s.writing = false
			s.idle.Broadcast()
			s.mu.Unlock()
			return
		}
		n, err := s.tryWrite(s.buf)
		if err != nil {
			s.close()
			continue
		}
		if n < len(s.buf) {
			s.rest <- s.buf[n:] // never blocks: the one that may write is the only one that puts something there
			return
		}
		if cap(s.buf) > 2*batch {
			s.buf = nil
		}
	}
}

func (s *session) tryWrite(b []byte) (n int, err error) {
	control := s.raw.Write(func(fd uintptr) bool {
		n, err = unix.Write(int(fd), b)
		return true
	})
	if control != nil {
		return 0, control
	}
	if err == unix.EAGAIN || err == unix.EINTR {
		return 0, nil
	}
	return max(n, 0), err
}

func (s *session) close() {
	s.mu.Lock()
	s.closed = true
	s.replies = nil
	s.mu.Unlock()
	s.conn.Close()
}

// settle waits, after close, until nobody writes any more: what a writer of this session took would be lost to the next one.
func (s *session) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writing {
		s.idle.Wait()
	}
}

func text(v string) string { return strings.ToValidUTF8(v, "\uFFFD") }
