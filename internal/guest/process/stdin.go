package process

import (
	"fmt"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

// stdinWindow is what a node may send beyond what was acknowledged; the queue holds twice that before the node counts as broken,
// since acknowledgements may be on the way.
const stdinWindow = 256 << 10

// endOfFile is Ctrl-D, what a terminal in its usual mode takes for the end of input.
const endOfFile = 0x04

// stdin feeds a process. It is guarded by the process's lock.
type stdin struct {
	fd       int // -1: closed, or never open; what comes then is dropped
	terminal bool
	token    uint64
	watched  bool

	queue    []byte
	received int64 // offset of the next byte expected
	given    int64 // offset before which the process has taken all, or it was dropped
	acked    int64 // what was told last
	ending   bool  // close once the queue is empty
	last     byte  // the last byte received
}

// feed takes data that begins at offset. What was received before is dropped; a hole is an error of the node.
func (s *stdin) feed(p *process, offset int64, data []byte) error {
	switch end := offset + int64(len(data)); {
	case offset > s.received:
		return fmt.Errorf("%w: stdin at %d, expected %d", wire.ErrFrame, offset, s.received)
	case end <= s.received:
		p.table.touch(p) // says again how far it is
		s.acked = -1
		return nil
	default:
		data = data[s.received-offset:]
		s.received = end
	}
	if s.fd < 0 || s.ending {
		s.given = s.received
		p.table.touch(p)
		return nil
	}
	if len(s.queue)+len(data) > 2*stdinWindow {
		return fmt.Errorf("%w: %d bytes of stdin beyond the window", wire.ErrFrame, len(s.queue)+len(data)-stdinWindow)
	}
	s.last = data[len(data)-1]
	s.queue = append(s.queue, data...)
	s.pump(p)
	return nil
}

// end closes stdin after what is queued. A terminal stays open and gets Ctrl-D, twice when the line is not empty: the first only
// ends the line.
func (s *stdin) end(p *process) {
	if s.fd < 0 || s.ending {
		return
	}
	if s.terminal {
		s.queue = append(s.queue, endOfFile)
		if s.last != 0 && s.last != '\n' && s.last != '\r' && s.last != endOfFile {
			s.queue = append(s.queue, endOfFile)
		}
		s.last = endOfFile
	} else {
		s.ending = true
	}
	s.pump(p)
}

// pump writes what the process takes now and waits for it to take more.
func (s *stdin) pump(p *process) {
	for len(s.queue) > 0 {
		n, err := unix.Write(s.fd, s.queue)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			s.given = max(s.given, s.received-int64(len(s.queue)))
			s.wait(p)
			p.table.touch(p)
			return
		case err != nil: // EPIPE: nobody reads any more
			s.close(p)
			return
		}
		s.queue = s.queue[n:]
	}
	s.queue = nil
	s.given = s.received
	p.table.touch(p)
	if s.ending {
		s.close(p)
	}
}

func (s *stdin) wait(p *process) {
	op := unix.EPOLL_CTL_MOD
	if !s.watched {
		op = unix.EPOLL_CTL_ADD
		s.watched = true
		s.token = p.table.poller.token(func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if s.fd >= 0 {
				s.pump(p)
			}
		})
	}
	_ = p.table.poller.control(op, s.fd, unix.EPOLLOUT|unix.EPOLLONESHOT, s.token)
}

func (s *stdin) close(p *process) {
	if s.fd < 0 {
		return
	}
	if s.watched {
		p.table.poller.forget(s.token)
		_ = p.table.poller.control(unix.EPOLL_CTL_DEL, s.fd, 0, s.token)
	}
	unix.Close(s.fd)
	s.fd, s.queue, s.given = -1, nil, s.received
	p.table.touch(p)
}

// rewind says again how much was taken: what was told last may not have arrived.
func (s *stdin) rewind() {
	if s.given > 0 {
		s.acked = -1
	}
}

func (s *stdin) appendAck(b []byte, id string) []byte {
	if s.given == s.acked {
		return b
	}
	s.acked = s.given
	return appendMessage(b, &guestv1.ToNode{Message: &guestv1.ToNode_StdinAck{StdinAck: &guestv1.StdinAck{ProcessId: id, Offset: s.given}}})
}
