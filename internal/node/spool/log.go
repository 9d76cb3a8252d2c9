package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/cayhq/cay"
)

// maxOffset bounds every offset, so that sums cannot overflow.
const maxOffset = 1 << 61

var (
	// ErrOrder is output that does not follow what came before: its sender breaks the protocol.
	ErrOrder = errors.New("output out of order")
	// ErrEnded is output for a process whose exit is known.
	ErrEnded = errors.New("process has ended")
)

// StoreError says that output could not be written; it counts as produced and readers are told of the gap.
type StoreError struct{ Err error }

func (e *StoreError) Error() string { return fmt.Sprintf("store output: %v", e.Err) }
func (e *StoreError) Unwrap() error { return e.Err }

// Log is the output of one process. Append is called by one goroutine at a time; everything else by any.
type Log struct {
	spool *Spool
	dir   string

	metaMu sync.Mutex // orders writes of process.json; taken before mu

	mu       sync.Mutex
	meta     Process
	produced int64 // combined offset of the next byte
	streams  [2]streamLog
	madeDir  bool
	removed  bool          // its files are gone for good
	changed  chan struct{} // closed by the next change; nil while nobody waits
	scratch  []byte
	report   report
}

type streamLog struct {
	size    int64 // bytes the process has written to it
	nextSeq int
	segs    []*segment // kept, oldest first
	file    *os.File   // of the last segment; nil: the next append begins a new one
	disk    int64      // bytes of all kept segment files
}

// halves splits a stream's budget: the head is never dropped, the tail is what came last.
func halves(maxOutput int64) (head, tail int64) { return maxOutput - maxOutput/2, maxOutput / 2 }

func segmentSize(maxOutput int64) int64 { return min(max(maxOutput/8, minSegment), maxSegment) }

// Append adds data, which begins at the combined offset given. What is already there is skipped; data that would leave a hole is
// ErrOrder, new data after the end ErrEnded. A *StoreError means that the data is lost but counted.
func (l *Log) Append(s cay.Stream, offset int64, data []byte) error {
	if s != cay.Stdout && s != cay.Stderr {
		return fmt.Errorf("%w: stream %d", ErrOrder, s)
	}
	l.mu.Lock()
	if offset < 0 || offset > l.produced {
		at := l.produced
		l.mu.Unlock()
		return fmt.Errorf("%w: offset %d where %d is next", ErrOrder, offset, at)
	}
	if known := l.produced - offset; known >= int64(len(data)) {
		l.mu.Unlock()
		return nil
	} else if l.meta.Exit != nil {
		l.mu.Unlock()
		return ErrEnded
	} else {
		data = data[known:]
	}
	if l.produced+int64(len(data)) > maxOffset {
		l.mu.Unlock()
		return fmt.Errorf("%w: too much", ErrOrder)
	}
	before := l.disk()
	ms := min(max(0, l.spool.now().UnixMilli()), maxMS)
	var storeErr error
	for len(data) > 0 {
		n, err := l.write(s, data, ms)
		if err != nil {
			storeErr = &StoreError{err}
			n = len(data)
		}
		data = data[n:]
		l.produced += int64(n)
		l.streams[s-1].size += int64(n)
	}
	l.trim(s)
	grown := l.disk() - before
	l.wake()
	l.mu.Unlock()
	l.spool.grow(grown, l)
	return storeErr
}

func (l *Log) disk() int64 { return l.streams[0].disk + l.streams[1].disk + l.report.size }

// write stores a prefix of data, which came at ms, as one record and reports its length. With l.mu.
func (l *Log) write(s cay.Stream, data []byte, ms int64) (int, error) {
	st := &l.streams[s-1]
	room, err := l.open(s, ms)
	if err != nil {
		return 0, err
	}
	n := int(min(int64(len(data)), room, maxRecord))
	seg := st.segs[len(st.segs)-1]
	ms = max(ms, seg.last) // within a segment no clock goes back
	b := appendRecord(l.scratch[:0], record{gap: uint64(l.produced - seg.end), n: uint64(n), elapsed: uint64(ms - seg.last)})
	b = append(b, data[:n]...)
	if cap(b) <= 256<<10 {
		l.scratch = b
	}
	if _, err := st.file.Write(b); err != nil {
		// A part may have been written. Readers stop at fileSize; the next append begins a new segment.
		st.file.Truncate(seg.fileSize)
		st.file.Close()
		st.file = nil
		return 0, err
	}
	seg.fileSize += int64(len(b))
	st.disk += int64(len(b))
	seg.data += int64(n)
	seg.end, seg.last = l.produced+int64(n), ms
	return n, nil
}

// open makes sure that the stream's last segment can take data, which came at ms, and says how many bytes. With l.mu.
func (l *Log) open(s cay.Stream, ms int64) (int64, error) {
	st := &l.streams[s-1]
	head, _ := halves(l.meta.MaxOutput)
	size := segmentSize(l.meta.MaxOutput)
	if st.file != nil {
		seg := st.segs[len(st.segs)-1]
		room := size - seg.data
		if seg.streamStart < head {
			room = min(room, head-seg.streamStart-seg.data)
		}
		if room > 0 {
			return room, nil
		}
		st.file.Close()
		st.file = nil
	}
	if l.removed {
		return 0, os.ErrNotExist
	}
	if err := l.makeDir(); err != nil {
		return 0, err
	}
	seg, f, err := createSegment(l.dir, s, st.nextSeq, l.produced, st.size, ms)
	if err != nil {
		return 0, err
	}
	st.nextSeq++
	st.segs = append(st.segs, seg)
	st.file = f
	st.disk += seg.fileSize
	if seg.streamStart < head {
		return min(size, head-seg.streamStart), nil
	}
	return size, nil
}

func (l *Log) makeDir() error {
	if l.madeDir {
		return nil
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	l.madeDir = true
	return nil
}

// trim drops the tail segments that the budget does not need. With l.mu.
func (l *Log) trim(s cay.Stream) {
	st := &l.streams[s-1]
	head, tail := halves(l.meta.MaxOutput)
	tail = max(tail, l.spool.opts.MinTail)
	for {
		i := st.firstTail(head)
		if i >= len(st.segs)-1 || st.segs[i+1].streamStart > st.size-tail {
			return
		}
		st.drop(i)
	}
}

// firstTail is the index of the oldest segment behind the head; len(segs) if there is none.
func (st *streamLog) firstTail(head int64) int {
	for i, seg := range st.segs {
		if seg.streamStart >= head {
			return i
		}
	}
	return len(st.segs)
}

// drop removes segment i. Readers that have it open keep reading it.
func (st *streamLog) drop(i int) {
	seg := st.segs[i]
	if i == len(st.segs)-1 && st.file != nil {
		st.file.Close()
		st.file = nil
	}
	os.Remove(seg.path)
	st.disk -= seg.fileSize
	st.segs = append(st.segs[:i], st.segs[i+1:]...)
}

// shed drops the oldest output behind the heads, or all of it, and reports the bytes freed. The true sizes stay known.
func (l *Log) shed(all bool) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.disk()
	head, _ := halves(l.meta.MaxOutput)
	for i := range l.streams {
		st := &l.streams[i]
		if all {
			for len(st.segs) > 0 {
				st.drop(0)
			}
			l.dropReport()
			continue
		}
		if t := st.firstTail(head); t < len(st.segs) {
			st.drop(t)
		} else if len(st.segs) > 0 { // no tail yet: the head's own end has to go
			st.drop(len(st.segs) - 1)
		}
	}
	return before - l.disk()
}

// Skip notes that output up to offset was lost before it came here. Earlier offsets are ignored.
func (l *Log) Skip(offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset <= l.produced || offset > maxOffset || l.meta.Exit != nil {
		return
	}
	for i := range l.streams { // a new segment carries the new stream offset
		if st := &l.streams[i]; st.file != nil {
			st.file.Close()
			st.file = nil
		}
	}
	l.streams[0].size += offset - l.produced
	l.produced = offset
	l.wake()
}

// Produced is the combined offset behind the last byte.
func (l *Log) Produced() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.produced
}

// Sizes are the true sizes of both streams in bytes.
func (l *Log) Sizes() (stdout, stderr int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.streams[0].size, l.streams[1].size
}

// Process is what is known of the process.
func (l *Log) Process() Process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.meta
}

// After is closed once there is output behind offset, or the process has ended.
func (l *Log) After(offset int64) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.produced > offset || l.meta.Exit != nil {
		return closed
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// wake tells whoever waits that something changed. With l.mu.
func (l *Log) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// Update changes what is known of the process, in memory; Save makes it durable.
func (l *Log) Update(change func(*Process)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.meta)
}

// DropOrigin frees the origin of a process whose record was made. A Save after it would drop it from the file too.
func (l *Log) DropOrigin() { l.Update(func(m *Process) { m.Origin = nil }) }

// Save writes process.json.
func (l *Log) Save() error {
	l.metaMu.Lock()
	defer l.metaMu.Unlock()
	l.mu.Lock()
	p := l.meta
	p.StdoutSize, p.StderrSize = l.streams[0].size, l.streams[1].size
	if l.removed {
		l.mu.Unlock()
		return nil
	}
	err := l.makeDir()
	l.mu.Unlock()
	if err != nil {
		return fmt.Errorf("save process %s: %w", p.ID, err)
	}
	if err := l.saveReport(); err != nil { // first: a process with an exit has its report
		return fmt.Errorf("save the report of process %s: %w", p.ID, err)
	}
	if err := writeProcess(filepath.Join(l.dir, processFile), p); err != nil {
		return fmt.Errorf("save process %s: %w", p.ID, err)
	}
	return nil
}

// End settles how the process ended; the true sizes are filled in. The first call counts and reports true. Readers learn of it at
// once; Save makes it durable.
func (l *Log) End(exit cay.ProcessExit) bool {
	l.mu.Lock()
	if l.meta.Exit != nil {
		l.mu.Unlock()
		return false
	}
	exit.StdoutLen, exit.StderrLen = l.streams[0].size, l.streams[1].size
	l.meta.Exit = &exit
	l.meta.EndedAt = l.spool.now()
	l.closeFiles()
	l.scratch = nil
	l.wake()
	l.mu.Unlock()
	l.spool.ended(l)
	return true
}

// closeFiles closes the files being written. With l.mu.
func (l *Log) closeFiles() {
	for i := range l.streams {
		if st := &l.streams[i]; st.file != nil {
			st.file.Close()
			st.file = nil
		}
	}
}

// remove deletes everything of the process from disk.
func (l *Log) remove() int64 {
	l.metaMu.Lock()
	defer l.metaMu.Unlock()
	freed := l.shed(true)
	l.mu.Lock()
	l.removed = true
	made := l.madeDir
	l.mu.Unlock()
	if made {
		os.RemoveAll(l.dir)
	}
	return freed
}
