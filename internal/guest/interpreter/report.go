package interpreter

import (
	"io"
	"os"
	"sync/atomic"

	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	// maxResults bounds the encoded results of one program. With what else a report holds it stays below 16 MiB.
	maxResults = 15 << 20
	// maxHeld bounds all reports that the node has not fetched, in bytes.
	maxHeld = 64 << 20
	// inMemory is up to which size a report lies in the agent's own memory. Longer ones are in files of no file system, which the
	// garbage collector does not see.
	inMemory = 32 << 10
)

// Bounds of what is told of an error, in bytes.
const (
	maxErrorName  = 256
	maxErrorValue = 16 << 10
	maxTraceback  = 128 << 10
)

// report is an encoded guestv1.CodeReport that grows: protobuf lets the fields of a message follow one another in any order, so that
// large results need not be in memory to become part of one. It belongs to one goroutine until it is finished.
type report struct {
	held *atomic.Int64 // bytes of all reports, this one's included
	size int64
	buf  []byte
	file *os.File // of what is no longer in buf

	results   int64 // bytes of them
	truncated bool  // results were left out
	broken    bool  // nothing more is taken
}

func newReport(held *atomic.Int64) *report { return &report{held: held} }

// Write appends encoded fields, or a part of one. It never fails: without memory the report becomes one without results.
func (r *report) Write(b []byte) (int, error) {
	if err := r.write(b); err != nil && !r.broken {
		r.cut()
		r.broken = true
	}
	return len(b), nil
}

func (r *report) write(b []byte) error {
	if r.broken {
		return nil
	}
	if r.file == nil && len(r.buf)+len(b) > inMemory {
		fd, err := unix.MemfdCreate("report", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		r.file = os.NewFile(uintptr(fd), "report")
		if _, err := r.file.Write(r.buf); err != nil {
			return err
		}
		r.buf = nil
	}
	if r.file == nil {
		r.buf = append(r.buf, b...)
	} else if _, err := r.file.Write(b); err != nil {
		return err
	}
	r.size += int64(len(b))
	r.held.Add(int64(len(b)))
	return nil
}

// result appends a result whose parts' data follows in body. One for which there is no room is read and left out.
func (r *report) result(main bool, parts []part, body io.Reader) error {
	inner := 0
	heads := make([][]byte, len(parts))
	total := int64(0)
	for i, p := range parts {
		// CodeReport.Data{mime = 1, data = 2, json = 3}, data being last here.
		head := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), p.mime)
		if p.json {
			head = protowire.AppendVarint(protowire.AppendTag(head, 3, protowire.VarintType), 1)
		}
		head = protowire.AppendVarint(protowire.AppendTag(head, 2, protowire.BytesType), uint64(p.size))
		message := len(head) + p.size
		heads[i] = append(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.BytesType), uint64(message)), head...) // Result.data
		inner += len(heads[i]) + p.size
		total += int64(p.size)
	}
	var tail []byte
	if main {
		tail = protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1) // Result.is_main
	}
	inner += len(tail)
	if r.truncated || r.results+int64(inner) > maxResults || r.held.Load()+int64(inner) > maxHeld {
		r.truncated = true
		_, err := io.CopyN(io.Discard, body, total)
		return err
	}
	r.results += int64(inner)
	r.Write(protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.BytesType), uint64(inner))) // CodeReport.results
	for i, p := range parts {
		r.Write(heads[i])
		if _, err := io.CopyN(r, body, int64(p.size)); err != nil {
			r.cut()
			return err
		}
	}
	r.Write(tail)
	return nil
}

// cut makes the report one without results: the last one will not be complete.
func (r *report) cut() {
	r.Close()
	*r = report{held: r.held, truncated: true}
}

// finish appends everything but the results.
func (r *report) finish(rest *guestv1.CodeReport) *report {
	rest.ResultsTruncated = r.truncated
	b, err := proto.Marshal(rest)
	if err != nil {
		panic("interpreter: a report of its own that cannot be encoded") // all of it is bounded and UTF-8
	}
	if r.broken {
		r.broken, r.buf = false, nil
	}
	r.Write(b)
	return r
}

// Size is the length in bytes.
func (r *report) Size() int64 { return r.size }

// ReadAt reads a finished report. It may be closed meanwhile.
func (r *report) ReadAt(b []byte, offset int64) (int, error) {
	if r.file != nil {
		return r.file.ReadAt(b, offset)
	}
	if offset >= int64(len(r.buf)) {
		return 0, io.EOF
	}
	n := copy(b, r.buf[offset:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// Close frees the report.
func (r *report) Close() {
	r.held.Add(-r.size)
	if r.file != nil {
		r.file.Close()
	}
}
