package process

import (
	"sync"

	"github.com/cayhq/cay/internal/wire"
)

const (
	// heldPerProcess bounds the output kept of one process until it is acknowledged, in bytes of memory.
	heldPerProcess = 256 << 10
	// heldInAll bounds it for all processes together; one that holds nothing may always read minRead, so that none starves.
	heldInAll = 16 << 20
	minRead   = 4 << 10
	// segmentCost is charged for a segment beyond its data, so that tiny writes cannot take much more memory than large ones.
	segmentCost = 64
	// keepBlock is from which size on a read keeps its block instead of being copied out of it.
	keepBlock = wire.MaxDataRun / 2
)

// blocks recycles read buffers of wire.MaxDataRun bytes.
var blocks = sync.Pool{New: func() any { return new([wire.MaxDataRun]byte) }}

// segment is a run of one stream.
type segment struct {
	stream wire.FrameType // FrameStdout or FrameStderr
	offset int64
	data   []byte
	block  *[wire.MaxDataRun]byte // what data lies in when it came from the pool
}

func (s *segment) cost() int {
	if s.block != nil {
		return len(s.block) + segmentCost
	}
	return cap(s.data) + segmentCost
}

// backlog is output that was read and is not acknowledged. Offsets count both streams together.
type backlog struct {
	segments []segment
	unsent   int   // index of the first segment that is not sent entirely
	sent     int64 // offset
	acked    int64
	produced int64
	held     int // sum of the segments' cost
}

// take appends n bytes of block to the backlog and reports whether the block was kept.
func (b *backlog) take(stream wire.FrameType, block *[wire.MaxDataRun]byte, n int) (kept bool) {
	data, offset := block[:n], b.produced
	b.produced += int64(n)
	if last := len(b.segments) - 1; last >= 0 && n < keepBlock {
		s := &b.segments[last]
		if s.stream == stream && s.block == nil && len(s.data)+n < keepBlock {
			b.held -= s.cost()
			s.data = append(s.data, data...)
			b.held += s.cost()
			b.unsent = min(b.unsent, last) // it may have been sent entirely before it grew
			return false
		}
	}
	s := segment{stream: stream, offset: offset}
	if n >= keepBlock {
		s.data, s.block = data, block
	} else {
		s.data = append([]byte(nil), data...)
	}
	b.segments = append(b.segments, s)
	b.held += s.cost()
	return s.block != nil
}

// next is a run that was not sent yet, at most max bytes of it; nil when all is sent. The caller sends it before it calls again.
func (b *backlog) next(max int) (stream wire.FrameType, offset int64, data []byte) {
	if b.unsent >= len(b.segments) {
		return 0, 0, nil
	}
	s := &b.segments[b.unsent]
	data = s.data[b.sent-s.offset:]
	offset = b.sent
	if len(data) > max {
		data = data[:max]
	} else {
		b.unsent++
	}
	b.sent += int64(len(data))
	return s.stream, offset, data
}

// ack drops what lies before offset. An offset beyond what was produced is one that nothing was sent for: it is cut.
func (b *backlog) ack(offset int64) {
	offset = min(offset, b.produced)
	if offset <= b.acked {
		return
	}
	b.acked = offset
	dropped := 0
	for dropped < len(b.segments) {
		s := &b.segments[dropped]
		if s.offset+int64(len(s.data)) > offset {
			break
		}
		b.held -= s.cost()
		if s.block != nil {
			blocks.Put(s.block)
		}
		dropped++
	}
	kept := copy(b.segments, b.segments[dropped:])
	clear(b.segments[kept:])
	b.segments = b.segments[:kept]
	if kept == 0 {
		b.segments = nil
	}
	b.unsent = max(b.unsent-dropped, 0)
	if b.sent < offset {
		b.sent = offset
	}
	if kept > 0 && offset > b.segments[0].offset {
		s := &b.segments[0]
		b.held -= s.cost()
		s.data = s.data[offset-s.offset:]
		s.offset = offset
		b.held += s.cost()
	}
}

// rewind makes everything that is held unsent.
func (b *backlog) rewind() { b.unsent, b.sent = 0, b.acked }

// drop forgets everything.
func (b *backlog) drop() { b.ack(b.produced) }
