package spool

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cayhq/cay"
)

// A stream's output lies in segment files named "<stream>.<sequence>". A segment begins with a header (magic, stream, the combined
// offset its first gap counts from, the stream offset of its first byte, the time from which its first elapsed counts in Unix milliseconds;
// big endian) and goes on with records: uvarint 2·gap, or 2·gap+1 where elapsed is not zero, uvarint length, then uvarint elapsed, bytes.
// gap is the distance in combined offset from the end of the record before, elapsed the milliseconds since it came, so a record costs two
// bytes even when two streams alternate byte by byte. A record that was cut short by the death of the node ends the segment.
//
// Segments of an earlier format, which has no times and gap as it is, are read and never added to.
const (
	segmentMagic  = "cayspl\x02"
	untimedMagic  = "cayspl\x01"
	untimedHeader = len(untimedMagic) + 1 + 8 + 8
	segmentHeader = untimedHeader + 8
	maxMS         = 1 << 50 // bounds times, so that sums cannot overflow
	maxRecord     = 1 << 20
	minSegment    = 64 << 10
	maxSegment    = 4 << 20
)

var errCorrupt = errors.New("corrupt segment")

// segment is one file of one stream. Its fields are guarded by the Log's lock; seq, path and what the header says never change.
type segment struct {
	segmentStart
	seq      int
	path     string
	end      int64 // combined offset behind the last record
	last     int64 // Unix milliseconds when the last record came
	data     int64 // bytes of output in it
	fileSize int64 // what readers may read of the file
}

func segmentPath(dir string, s cay.Stream, seq int) string {
	return filepath.Join(dir, fmt.Sprintf("%d.%06d", s, seq))
}

// segmentStart is what a segment's header says.
type segmentStart struct {
	start       int64 // combined offset that the first record's gap counts from
	streamStart int64 // bytes of the stream before this segment
	ms          int64 // Unix milliseconds that the first record's elapsed counts from
	timed       bool  // false: of the earlier format
	size        int64 // of the header in bytes
}

func createSegment(dir string, s cay.Stream, seq int, start, streamStart, ms int64) (*segment, *os.File, error) {
	seg := &segment{
		seq: seq, path: segmentPath(dir, s, seq), end: start, last: ms,
		segmentStart: segmentStart{start: start, streamStart: streamStart, ms: ms, timed: true, size: int64(segmentHeader)},
	}
	f, err := os.OpenFile(seg.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	h := make([]byte, 0, segmentHeader)
	h = append(h, segmentMagic...)
	h = append(h, byte(s))
	h = binary.BigEndian.AppendUint64(h, uint64(start))
	h = binary.BigEndian.AppendUint64(h, uint64(streamStart))
	h = binary.BigEndian.AppendUint64(h, uint64(ms))
	if _, err := f.Write(h); err != nil {
		f.Close()
		os.Remove(seg.path)
		return nil, nil, err
	}
	seg.fileSize = seg.size
	return seg, f, nil
}

// readHeader reads a segment's header.
func readHeader(r io.Reader, s cay.Stream) (segmentStart, error) {
	h := make([]byte, segmentHeader)
	if _, err := io.ReadFull(r, h[:untimedHeader]); err != nil {
		return segmentStart{}, errCorrupt
	}
	magic, rest := string(h[:len(segmentMagic)]), h[len(segmentMagic)+1:]
	at := segmentStart{timed: magic == segmentMagic, size: int64(untimedHeader)}
	if !at.timed && magic != untimedMagic || h[len(segmentMagic)] != byte(s) {
		return segmentStart{}, errCorrupt
	}
	if at.timed {
		if _, err := io.ReadFull(r, h[untimedHeader:]); err != nil {
			return segmentStart{}, errCorrupt
		}
		at.size = int64(segmentHeader)
	}
	start, streamStart, ms := binary.BigEndian.Uint64(rest), binary.BigEndian.Uint64(rest[8:]), binary.BigEndian.Uint64(rest[16:])
	if start > maxOffset || streamStart > start || ms > maxMS {
		return segmentStart{}, errCorrupt
	}
	at.start, at.streamStart, at.ms = int64(start), int64(streamStart), int64(ms)
	return at, nil
}

// record is what stands before a record's bytes.
type record struct{ gap, n, elapsed uint64 }

// appendRecord writes what stands before a record's bytes.
func appendRecord(b []byte, rec record) []byte {
	timed := min(rec.elapsed, 1)
	b = binary.AppendUvarint(b, rec.gap<<1|timed)
	b = binary.AppendUvarint(b, rec.n)
	if timed == 1 {
		b = binary.AppendUvarint(b, rec.elapsed)
	}
	return b
}

// readRecord reads what stands before a record's bytes. ok is false for what no record can be.
func (h segmentStart) readRecord(r io.ByteReader) (rec record, ok bool, err error) {
	if rec.gap, err = binary.ReadUvarint(r); err != nil {
		return rec, false, err
	}
	if rec.n, err = binary.ReadUvarint(r); err != nil {
		return rec, false, err
	}
	if h.timed {
		later := rec.gap&1 == 1
		rec.gap >>= 1
		if later {
			if rec.elapsed, err = binary.ReadUvarint(r); err != nil {
				return rec, false, err
			}
		}
	}
	return rec, rec.n > 0 && rec.n <= maxRecord && rec.gap <= maxOffset && rec.elapsed <= maxMS, nil
}

// scan reads a segment from r up to its last whole record. It never fails for a cut or damaged record: what is before counts.
func scan(r io.Reader, s cay.Stream) (*segment, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	h, err := readHeader(br, s)
	if err != nil {
		return nil, err
	}
	seg := &segment{segmentStart: h, end: h.start, last: h.ms, fileSize: h.size}
	counted := &byteCounter{r: br}
	for {
		counted.n = 0
		rec, ok, err := h.readRecord(counted)
		if err != nil || !ok || seg.end+int64(rec.gap)+int64(rec.n) > maxOffset {
			return seg, nil
		}
		if got, err := br.Discard(int(rec.n)); err != nil || got != int(rec.n) {
			return seg, nil
		}
		seg.end += int64(rec.gap) + int64(rec.n)
		seg.last = min(seg.last+int64(rec.elapsed), maxMS)
		seg.data += int64(rec.n)
		seg.fileSize += counted.n + int64(rec.n)
	}
}

// byteCounter counts the bytes read one by one.
type byteCounter struct {
	r io.ByteReader
	n int64
}

func (c *byteCounter) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}
