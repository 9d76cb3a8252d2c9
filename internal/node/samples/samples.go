// Package samples keeps what a sandbox used over time: a ring of records of one size in a file of the sandbox's directory, which a
// restarted node finds again. It neither measures nor knows who asks; what a process wrote is package spool's.
package samples

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"sync"
	"time"
)

// Sample is one measurement. All but Memory, Disk and PIDs only ever grow.
type Sample struct {
	At     time.Time     // to the millisecond
	CPU    time.Duration // used since the start
	Memory int64         // bytes, now
	Peak   int64         // bytes, at most so far
	Disk   int64         // bytes
	PIDs   int64
	Rx, Tx int64 // bytes through the network

	// Cores is how many were used, on average since the sample before. Read fills it in; it is not kept.
	Cores float64
}

// A record is its number (from 1 on), the fields of a Sample, and a CRC over both: one that was cut off by a crash does not count.
const recordSize = 9*8 + 4

// readSize is how much of the file is read at once.
const readSize = 512 * recordSize

// Ring is the file. It is opened anew for every use, so that a sandbox costs no descriptor, and is not synced: figures lost with
// the machine are no loss, as the sandbox is lost with it.
type Ring struct {
	path  string
	slots int64

	mu     sync.Mutex
	placed bool  // guarded by mu; next is known
	next   int64 // guarded by mu; the number of the next record
	closed bool  // guarded by mu
}

// Open makes a ring of so many records over a file, which need not be there. It touches nothing yet.
func Open(path string, slots int) *Ring { return &Ring{path: path, slots: int64(max(1, slots))} }

// Append adds a sample in the place of the oldest, once the ring is full. After Close it does nothing.
func (r *Ring) Append(s Sample) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("keep a sample: %w", err)
	}
	defer f.Close()
	if !r.placed {
		if err := r.place(f); err != nil {
			return fmt.Errorf("keep a sample: %w", err)
		}
	}
	if _, err := f.WriteAt(encode(r.next, s), r.next%r.slots*recordSize); err != nil {
		return fmt.Errorf("keep a sample: %w", err)
	}
	r.next++
	return nil
}

// place finds the end of what an earlier process wrote.
func (r *Ring) place(f io.ReaderAt) error {
	newest := int64(0)
	err := r.scan(f, 0, r.slots, func(n int64, _ Sample) { newest = max(newest, n) })
	r.placed, r.next = err == nil, newest+1
	return err
}

// scan calls each with the records that are whole in the slots from first to end.
func (r *Ring) scan(f io.ReaderAt, first, end int64, each func(n int64, s Sample)) error {
	buf := make([]byte, readSize)
	for at := first * recordSize; at < end*recordSize; {
		n, err := f.ReadAt(buf[:min(readSize, end*recordSize-at)], at)
		for b := buf[:n]; len(b) >= recordSize; b = b[recordSize:] {
			if number, s, ok := decode(b[:recordSize]); ok && number%r.slots == at/recordSize {
				each(number, s)
			}
			at += recordSize
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Read answers the samples from one time to another, oldest first. Of more than limit, neighbours are thinned out: the last sample
// stands for them, with the cores used since the one that stands for those before.
func (r *Ring) Read(from, to time.Time, limit int) ([]Sample, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := os.Open(r.path)
	if errors.Is(err, os.ErrNotExist) || r.closed {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	defer f.Close()
	if !r.placed {
		if err := r.place(f); err != nil {
			return nil, fmt.Errorf("read samples: %w", err)
		}
	}
	var found []Sample
	var before Sample
	take := func(n int64, s Sample) {
		switch {
		case n < r.next-r.slots || n >= r.next || s.At.After(to):
		case s.At.Before(from):
			before = s
		default:
			found = append(found, s)
		}
	}
	oldest := r.next % r.slots // its slot, when the ring is full
	if err := r.scan(f, oldest, r.slots, take); err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	if err := r.scan(f, 0, oldest, take); err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	return thin(before, found, limit), nil
}

// thin keeps at most limit samples, in place. before is the one before the first, if there is one.
func thin(before Sample, all []Sample, limit int) []Sample {
	if limit < 1 || len(all) == 0 {
		return nil
	}
	group := (len(all) + limit - 1) / limit
	kept := all[:0]
	for end := len(all) % group; end <= len(all); end += group {
		if end == 0 {
			continue
		}
		s := all[end-1]
		if span := s.At.Sub(before.At); !before.At.IsZero() && span > 0 && s.CPU > before.CPU {
			s.Cores = (s.CPU - before.CPU).Seconds() / span.Seconds()
		}
		before = s
		kept = append(kept, s)
	}
	return kept
}

// Close makes further samples be dropped: nothing writes to the file any more once it returns.
func (r *Ring) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

func encode(n int64, s Sample) []byte {
	b := make([]byte, 0, recordSize)
	for _, v := range []int64{n, s.At.UnixMilli(), int64(s.CPU), s.Memory, s.Peak, s.Disk, s.PIDs, s.Rx, s.Tx} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func decode(b []byte) (n int64, s Sample, ok bool) {
	var v [9]int64
	for i := range v {
		v[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	if crc32.ChecksumIEEE(b[:72]) != binary.LittleEndian.Uint32(b[72:]) || v[0] < 1 || v[0] == math.MaxInt64 {
		return 0, Sample{}, false
	}
	return v[0], Sample{
		At: time.UnixMilli(v[1]).UTC(), CPU: time.Duration(v[2]), Memory: v[3], Peak: v[4], Disk: v[5], PIDs: v[6], Rx: v[7], Tx: v[8],
	}, true
}
