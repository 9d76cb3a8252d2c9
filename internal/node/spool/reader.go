package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/cayhq/cay"
)

// A Chunk carries at most MaxChunk bytes, and none that came more than MaxSpan after its first.
const (
	MaxChunk = 128 << 10
	MaxSpan  = time.Second
)

// Chunk is a run of output, or of missing output.
type Chunk struct {
	Stream cay.Stream
	Offset int64  // of its first byte: combined for a Reader, of the stream for Collect
	Data   []byte // valid until the next call; nil for a gap
	Gap    int64  // bytes that were not kept

	// At is when the first of it came, to the millisecond; zero for a gap, and where it was not noted.
	At time.Time
}

func atMS(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// Reader reads a process's output in the order it was produced. It is not safe for concurrent use, never holds back the writer, and
// must be closed.
type Reader struct {
	log     *Log
	pos     int64
	cursors [2]cursor
	gaps    []Chunk // to be reported first
	buf     []byte
}

// NewReader begins at the combined offset given, or, when it is negative or beyond it, at the end.
func (l *Log) NewReader(offset int64) *Reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < 0 || offset > l.produced {
		offset = l.produced
	}
	r := &Reader{log: l, pos: offset}
	for i := range r.cursors {
		r.cursors[i] = cursor{log: l, stream: cay.Stream(i + 1), seek: offset, expected: -1}
		if offset == 0 {
			r.cursors[i].expected = 0
		}
	}
	return r
}

// Offset is that of the next byte.
func (r *Reader) Offset() int64 { return r.pos }

// Close releases its files.
func (r *Reader) Close() {
	for i := range r.cursors {
		r.cursors[i].close()
	}
}

// Next returns the next run; ok is false when there is nothing yet (wait for Log.After(r.Offset())).
func (r *Reader) Next() (c Chunk, ok bool, err error) {
	if len(r.gaps) > 0 {
		c, r.gaps = r.gaps[0], r.gaps[1:]
		r.pos += c.Gap
		return c, true, nil
	}
	// Records that begin at or behind produced may have come after one cursor was looked at and before the other.
	produced := r.log.Produced()
	if r.pos >= produced {
		return Chunk{}, false, nil
	}
	next, nextAt := (*cursor)(nil), produced
	for i := range r.cursors {
		cur := &r.cursors[i]
		found, err := cur.peek()
		if err != nil {
			return Chunk{}, false, fmt.Errorf("read output of %s: %w", cur.stream, err)
		}
		if found && cur.recAt < nextAt {
			next, nextAt = cur, cur.recAt
		}
	}
	if nextAt > r.pos {
		r.splitGap(nextAt-r.pos, next)
		return r.Next()
	}
	if r.buf == nil {
		r.buf = make([]byte, MaxChunk)
	}
	n, first := 0, next.recMS
	for n < len(r.buf) {
		found, err := next.peek()
		if err != nil {
			return Chunk{}, false, fmt.Errorf("read output of %s: %w", next.stream, err)
		}
		if !found || next.recAt != r.pos+int64(n) || next.recMS-first > MaxSpan.Milliseconds() {
			break
		}
		m, err := next.read(r.buf[n:])
		if err != nil {
			return Chunk{}, false, fmt.Errorf("read output of %s: %w", next.stream, err)
		}
		n += m
	}
	c = Chunk{Stream: next.stream, Offset: r.pos, Data: r.buf[:n], At: atMS(first)}
	r.pos += int64(n)
	return c, true, nil
}

// splitGap divides total missing bytes among the streams by what the cursors know of stream offsets. next is the cursor whose
// record ends the gap; nil: the gap reaches to the end.
func (r *Reader) splitGap(total int64, next *cursor) {
	first := next
	missing := total
	if first == nil {
		first = &r.cursors[0]
		if first.expected >= 0 {
			stdout, _ := r.log.Sizes()
			missing = stdout - first.expected
		}
	} else if first.expected >= 0 {
		missing = first.recStreamAt - first.expected
	}
	missing = min(max(missing, 0), total)
	parts := [2]int64{}
	parts[first.stream-1] = missing
	parts[2-first.stream] = total - missing
	at := r.pos
	for i, n := range parts {
		if n == 0 {
			continue
		}
		if cur := &r.cursors[i]; cur.expected >= 0 {
			cur.expected += n
		}
		r.gaps = append(r.gaps, Chunk{Stream: cay.Stream(i + 1), Offset: at, Gap: n})
		at += n
	}
}

// cursor walks the records of one stream.
type cursor struct {
	log      *Log
	stream   cay.Stream
	seek     int64 // combined offset before which records are skipped
	expected int64 // stream offset of the next byte if nothing is missing; -1: not known

	seg    *segment
	file   *os.File
	pos    int64 // in the file, of the next byte that is not in buf
	limit  int64 // bytes of the file that may be read
	buf    []byte
	unread []byte // part of buf
	at     int64  // combined offset behind the last record
	sat    int64  // stream offset behind it
	ms     int64  // when it came

	recAt, recStreamAt, recLeft, recMS int64 // the record in hand
}

func (c *cursor) close() {
	if c.file != nil {
		c.file.Close()
		c.file = nil
	}
}

// peek makes sure that a record is in hand.
func (c *cursor) peek() (bool, error) {
	for c.recLeft == 0 {
		if c.seg == nil || c.left() == 0 {
			if ok, err := c.advance(); !ok || err != nil {
				return false, err
			}
		}
		if c.left() == 0 {
			continue
		}
		rec, ok, err := c.seg.readRecord(c)
		if err != nil {
			return false, c.damaged(err)
		}
		if !ok || int64(rec.n) > c.left() {
			return false, errCorrupt
		}
		c.recAt, c.recStreamAt, c.recLeft = c.at+int64(rec.gap), c.sat, int64(rec.n)
		c.at, c.sat = c.recAt+int64(rec.n), c.sat+int64(rec.n)
		c.ms = min(c.ms+int64(rec.elapsed), maxMS)
		c.recMS = c.ms
		if skip := min(c.seek-c.recAt, c.recLeft); skip > 0 {
			c.skip(skip)
			c.recAt, c.recStreamAt, c.recLeft = c.recAt+skip, c.recStreamAt+skip, c.recLeft-skip
		}
	}
	return true, nil
}

func (c *cursor) damaged(err error) error {
	if errors.Is(err, io.EOF) {
		return errCorrupt
	}
	return err
}

// advance learns of more bytes in the segment at hand, or goes on to the next one. False: there is nothing more yet.
func (c *cursor) advance() (bool, error) {
	for {
		c.log.mu.Lock()
		if c.seg != nil && c.seg.fileSize > c.limit {
			c.limit = c.seg.fileSize
			c.log.mu.Unlock()
			return true, nil
		}
		var next *segment
		for _, seg := range c.log.streams[c.stream-1].segs {
			if (c.seg == nil && seg.end > c.seek) || (c.seg != nil && seg.seq > c.seg.seq) {
				next = seg
				break
			}
		}
		var limit int64
		if next != nil {
			limit = next.fileSize
		}
		c.log.mu.Unlock()
		if next == nil {
			return false, nil
		}
		f, err := os.Open(next.path)
		if errors.Is(err, fs.ErrNotExist) { // dropped meanwhile
			c.skipSegment(next)
			continue
		}
		if err != nil {
			return false, err
		}
		c.close()
		c.file, c.seg, c.limit = f, next, limit
		c.pos, c.unread = next.size, nil
		c.at, c.sat, c.ms = next.start, next.streamStart, next.ms
		return true, nil
	}
}

// skipSegment makes advance look behind seg.
func (c *cursor) skipSegment(seg *segment) {
	c.close()
	c.seg, c.unread = seg, nil
	c.pos, c.limit = 1<<62, 1<<62
}

func (c *cursor) left() int64 { return c.limit - c.pos + int64(len(c.unread)) }

func (c *cursor) fill() error {
	if c.buf == nil {
		c.buf = make([]byte, 32<<10)
	}
	n := min(int64(len(c.buf)), c.limit-c.pos)
	if n <= 0 {
		return io.EOF
	}
	m, err := c.file.ReadAt(c.buf[:n], c.pos)
	if m == 0 {
		return err
	}
	c.unread = c.buf[:m]
	c.pos += int64(m)
	return nil
}

// ReadByte reads a byte of the segment, for readRecord.
func (c *cursor) ReadByte() (byte, error) {
	if len(c.unread) == 0 {
		if err := c.fill(); err != nil {
			return 0, err
		}
	}
	b := c.unread[0]
	c.unread = c.unread[1:]
	return b, nil
}

func (c *cursor) skip(n int64) {
	k := min(n, int64(len(c.unread)))
	c.unread = c.unread[k:]
	c.pos += n - k
}

// read takes bytes of the record in hand.
func (c *cursor) read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), c.recLeft)]
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	if n < len(p) {
		m, err := c.file.ReadAt(p[n:], c.pos)
		c.pos += int64(m)
		if n += m; n < len(p) {
			return n, fmt.Errorf("%w: %w", errCorrupt, err)
		}
	}
	c.recAt += int64(n)
	c.recStreamAt += int64(n)
	c.recLeft -= int64(n)
	c.expected = c.recStreamAt
	return n, nil
}

// Collect passes on what is kept of one stream, by stream offset, head then tail, within the process's max_output. What is missing
// between is not passed on; the true size is the result.
func (l *Log) Collect(s cay.Stream, yield func(Chunk) error) (size int64, err error) {
	if s != cay.Stdout && s != cay.Stderr {
		return 0, fmt.Errorf("collect: stream %d", s)
	}
	l.mu.Lock()
	size = l.streams[s-1].size
	head, tail := halves(l.meta.MaxOutput)
	l.mu.Unlock()
	cur := cursor{log: l, stream: s}
	defer cur.close()
	buf := make([]byte, MaxChunk)
	chunk := Chunk{Stream: s, Data: buf[:0]}
	var first int64 // when the chunk's first byte came
	flush := func() error {
		if len(chunk.Data) == 0 {
			return nil
		}
		err := yield(chunk)
		chunk.Data = buf[:0]
		return err
	}
	for {
		found, err := cur.peek()
		if err != nil {
			return size, fmt.Errorf("collect %s: %w", s, err)
		}
		if !found || cur.recStreamAt >= size {
			return size, flush()
		}
		// Of the bytes between head and tail some may lie on disk still; they are not part of the answer.
		if from := size - tail; cur.recStreamAt >= head && cur.recStreamAt < from {
			n := min(cur.recLeft, from-cur.recStreamAt)
			cur.skip(n)
			cur.recAt, cur.recStreamAt, cur.recLeft = cur.recAt+n, cur.recStreamAt+n, cur.recLeft-n
			continue
		}
		if len(chunk.Data) == len(buf) || chunk.Offset+int64(len(chunk.Data)) != cur.recStreamAt || cur.recMS-first > MaxSpan.Milliseconds() {
			if err := flush(); err != nil {
				return size, err
			}
		}
		if len(chunk.Data) == 0 {
			first = cur.recMS
			chunk.Offset, chunk.At = cur.recStreamAt, atMS(first)
		}
		n, err := cur.read(buf[len(chunk.Data):])
		if err != nil {
			return size, fmt.Errorf("collect %s: %w", s, err)
		}
		chunk.Data = buf[:len(chunk.Data)+n]
	}
}
