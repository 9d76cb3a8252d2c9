package router

import (
	"bufio"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// connection is one control connection.
type connection struct {
	nc     net.Conn
	reader *wire.Reader
	out    outbox
	heard  atomic.Int64 // Unix ns of the last frame
}

func newConnection(nc net.Conn) *connection {
	c := &connection{nc: nc, reader: wire.NewReader(bufio.NewReaderSize(nc, 32<<10))}
	c.out.wake = make(chan struct{}, 1)
	c.heard.Store(time.Now().UnixNano())
	return c
}

func (c *connection) readHello() (*guestv1.Hello, error) {
	f, err := c.reader.Read()
	if err != nil {
		return nil, err
	}
	var m guestv1.ToNode
	if f.Type != wire.FrameMessage || f.Stream != 0 || proto.Unmarshal(f.Payload, &m) != nil || m.ReplyTo != 0 || m.GetHello() == nil {
		return nil, violation("no hello")
	}
	return m.GetHello(), nil
}

// outbox holds what is to be written: requests in order, and for each process at most one acknowledgement and its stdin.
type outbox struct {
	wake chan struct{}

	mu     sync.Mutex
	frames []byte
	acks   map[*Process]int64
	stdin  map[*Process]struct{}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// add queues encoded frames; false: the agent does not read, and no more is queued for it.
func (o *outbox) add(b []byte) bool {
	o.mu.Lock()
	if len(o.frames) > 0 && len(o.frames)+len(b) > maxQueued {
		o.mu.Unlock()
		return false
	}
	o.frames = append(o.frames, b...)
	o.mu.Unlock()
	o.signal()
	return true
}

func (o *outbox) ack(p *Process, offset int64) {
	o.mu.Lock()
	if o.acks == nil {
		o.acks = map[*Process]int64{}
	}
	o.acks[p] = offset
	o.mu.Unlock()
	o.signal()
}

// stdinReady notes that p has stdin to send.
func (o *outbox) stdinReady(p *Process) {
	o.mu.Lock()
	if o.stdin == nil {
		o.stdin = map[*Process]struct{}{}
	}
	o.stdin[p] = struct{}{}
	o.mu.Unlock()
	o.signal()
}

// take moves what is queued to b.
func (o *outbox) take(b []byte) []byte {
	o.mu.Lock()
	b = append(b, o.frames...)
	if cap(o.frames) > 256<<10 {
		o.frames = nil
	} else {
		o.frames = o.frames[:0]
	}
	acks, ready := o.acks, o.stdin
	o.acks, o.stdin = nil, nil
	o.mu.Unlock()
	for p, offset := range acks {
		b = appendMessage(b, &guestv1.ToAgent{Message: &guestv1.ToAgent_Ack{Ack: &guestv1.Ack{ProcessId: string(p.id), Offset: offset}}})
	}
	for p := range ready {
		if len(b) > 1<<20 {
			o.stdinReady(p)
			continue
		}
		b = p.appendStdin(b)
	}
	return b
}

func appendMessage(b []byte, m *guestv1.ToAgent) []byte {
	encoded, err := proto.Marshal(m)
	if err != nil { // a string that is not UTF-8; callers check
		panic("router: " + err.Error())
	}
	return wire.AppendMessage(b, encoded)
}

// write sends what the outbox holds until ctx ends or the agent stops reading, which closes the connection.
func (s *Session) write(ctx context.Context, c *connection) {
	var b []byte
	for {
		select {
		case <-c.out.wake:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		thawed := s.thawed
		s.mu.Unlock()
		select {
		case <-thawed:
		case <-ctx.Done():
			return
		}
		if b = c.out.take(b[:0]); len(b) == 0 {
			continue
		}
		c.nc.SetWriteDeadline(time.Now().Add(s.timing.Write))
		if _, err := c.nc.Write(b); err != nil {
			c.nc.Close()
			return
		}
		if cap(b) > 1<<20 {
			b = nil
		}
	}
}

// tell sends a message that needs no answer. Without a connection it is dropped: hello tells the agent what still counts.
func (s *Session) tell(m *guestv1.ToAgent) {
	s.mu.Lock()
	c := s.conn
	s.mu.Unlock()
	if c != nil && !c.out.add(appendMessage(nil, m)) {
		c.nc.Close()
	}
}

func errBusy() error {
	return cay.Errorf(cay.Unavailable, "the sandbox does not keep up; try again").After(time.Second)
}
