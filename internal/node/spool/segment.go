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
// offset its first gap counts from, the stream offset of its first byte; big endian) and goes on with records: uvarint gap, uvarint
// length, bytes. gap is the distance in combined offset from the end of the record before, so a record costs two bytes even when
// two streams alternate byte by byte. A record that was cut short by the death of the node ends the segment.
const (
	segmentMagic  = "cayspl\x01"
	segmentHeader = len(segmentMagic) + 1 + 8 + 8
	maxRecord     = 1 << 20
	minSegment    = 64 << 10
	maxSegment    = 4 << 20
)

var errCorrupt = errors.New("corrupt segment")

// segment is one file of one stream. Its fields are guarded by the Log's lock; seq, path and the starts never change.
type segment struct {
	seq         int
	path        string
	start       int64 // combined offset that the first record's gap counts from
	streamStart int64 // bytes of the stream before this segment
	end         int64 // combined offset behind the last record
	data        int64 // bytes of output in it
	fileSize    int64 // what readers may read of the file
}

func segmentPath(dir string, s cay.Stream, seq int) string {
	return filepath.Join(dir, fmt.Sprintf("%d.%06d", s, seq))
}

func createSegment(dir string, s cay.Stream, seq int, start, streamStart int64) (*segment, *os.File, error) {
	seg := &segment{seq: seq, path: segmentPath(dir, s, seq), start: start, streamStart: streamStart, end: start}
	f, err := os.OpenFile(seg.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	h := make([]byte, 0, segmentHeader)
	h = append(h, segmentMagic...)
	h = append(h, byte(s))
	h = binary.BigEndian.AppendUint64(h, uint64(start))
	h = binary.BigEndian.AppendUint64(h, uint64(streamStart))
	if _, err := f.Write(h); err != nil {
		f.Close()
		os.Remove(seg.path)
		return nil, nil, err
	}
	seg.fileSize = int64(segmentHeader)
	return seg, f, nil
}

// parseHeader reads a segment's header.
func parseHeader(h []byte, s cay.Stream) (start, streamStart int64, err error) {
	if len(h) < segmentHeader || string(h[:len(segmentMagic)]) != segmentMagic || h[len(segmentMagic)] != byte(s) {
		return 0, 0, errCorrupt
	}
	a := binary.BigEndian.Uint64(h[len(segmentMagic)+1:])
	b := binary.BigEndian.Uint64(h[len(segmentMagic)+9:])
	if a > maxOffset || b > a {
		return 0, 0, errCorrupt
	}
	return int64(a), int64(b), nil
}

// scan reads a segment from r up to its last whole record. It never fails for a cut or damaged record: what is before counts.
func scan(r io.Reader, s cay.Stream) (*segment, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head := make([]byte, segmentHeader)
	if _, err := io.ReadFull(br, head); err != nil {
		return nil, errCorrupt
	}
	start, streamStart, err := parseHeader(head, s)
	if err != nil {
		return nil, err
	}
	seg := &segment{start: start, streamStart: streamStart, end: start, fileSize: int64(segmentHeader)}
	for {
		gap, err := binary.ReadUvarint(br)
		if err != nil {
			return seg, nil
		}
		n, err := binary.ReadUvarint(br)
		if err != nil || n == 0 || n > maxRecord || gap > maxOffset || seg.end+int64(gap)+int64(n) > maxOffset {
			return seg, nil
		}
		if got, err := br.Discard(int(n)); err != nil || got != int(n) {
			return seg, nil
		}
		seg.end += int64(gap) + int64(n)
		seg.data += int64(n)
		seg.fileSize += int64(uvarintLen(gap) + uvarintLen(n) + int(n))
	}
}

func uvarintLen(v uint64) int {
	var b [binary.MaxVarintLen64]byte
	return binary.PutUvarint(b[:], v)
}
