// Package kept is the form in which the output of a program is kept once it has ended: runs of its two streams in the order in which they
// were written, in compressed chunks of which each can be read alone. What is short is kept in the index itself; the chunks of anything
// longer lie one behind the other in a blob. It knows neither jobs nor where a blob is.
package kept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	// MaxInline is the most that an index holds of the output itself, in bytes as compressed.
	MaxInline = 32 << 10

	chunkBytes = 256 << 10 // of output in one chunk
	chunkRuns  = 8 << 10   // in one chunk: of a program that writes a byte to each stream in turn, each byte is a run
	maxChunk   = 8 << 20   // bytes of a chunk as it is unpacked; twice what one can have
)

// Run is a piece of one stream, or what is missing of it.
type Run struct {
	Stream cay.Stream
	Offset int64 // of its first byte, counting both streams in the order written
	Data   []byte
	Gap    int64 // bytes that were not kept, instead of data
	At     time.Time
}

// Len is how many bytes of output the run stands for.
func (r Run) Len() int64 { return int64(len(r.Data)) + r.Gap }

// From is the part of the run from an offset on; no bytes when it ends before.
func (r Run) From(offset int64) Run {
	skip := min(max(offset-r.Offset, 0), r.Len())
	r.Offset += skip
	if r.Gap > 0 {
		r.Gap -= skip
	} else {
		r.Data = r.Data[skip:]
	}
	return r
}

// Index says where in the blob what is. Its zero value is that of no output.
type Index struct {
	Stdout int64   `json:"stdout"` // bytes written, with those that were not kept
	Stderr int64   `json:"stderr"`
	Inline []byte  `json:"inline,omitempty"` // the only chunk, instead of a blob
	Chunks []Chunk `json:"chunks,omitempty"` // in the blob
	Bytes  int64   `json:"bytes,omitempty"`  // of the blob
}

// Chunk is where one begins.
type Chunk struct {
	At     int64 `json:"at"`     // in the blob
	Stdout int64 `json:"stdout"` // bytes of each stream before it
	Stderr int64 `json:"stderr"`
}

// Produced is how many bytes the program wrote.
func (x *Index) Produced() int64 { return x.Stdout + x.Stderr }

// end is what chunk i reaches to.
func (x *Index) end(i int) Chunk {
	if i+1 < len(x.Chunks) {
		return x.Chunks[i+1]
	}
	return Chunk{At: x.Bytes, Stdout: x.Stdout, Stderr: x.Stderr}
}

var (
	encoder, _ = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true)) // no option of these fails
	decoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxChunk))
)

// Writer keeps output. Its blob goes to a sink as it is made; the sink gets nothing when all fits into the index.
type Writer struct {
	sink   io.Writer
	index  Index
	chunk  nodev1.ReadOutputResponse
	start  Chunk // of the chunk that is being filled
	filled int   // bytes of output in it
}

// NewWriter makes a Writer.
func NewWriter(sink io.Writer) *Writer { return &Writer{sink: sink} }

// Add keeps the next run. What lies between the one before and this one is an error.
func (w *Writer) Add(r Run) error {
	if r.Offset != w.index.Produced() {
		return fmt.Errorf("keep output: a run at %d follows %d bytes", r.Offset, w.index.Produced())
	}
	if r.Stream != cay.Stdout && r.Stream != cay.Stderr || r.Gap < 0 {
		return fmt.Errorf("keep output: a run of stream %d with a gap of %d bytes", r.Stream, r.Gap)
	}
	for r.Len() > 0 {
		part := r
		if room := chunkBytes - w.filled; r.Gap == 0 && len(r.Data) > room {
			part.Data = r.Data[:room]
		}
		w.append(part)
		r = r.From(part.Offset + part.Len())
		if w.filled >= chunkBytes || len(w.chunk.Runs) >= chunkRuns {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// append adds a run to the chunk, to the last one there where it continues that.
func (w *Writer) append(r Run) {
	if r.Stream == cay.Stdout {
		w.index.Stdout += r.Len()
	} else {
		w.index.Stderr += r.Len()
	}
	w.filled += len(r.Data)
	var at int64
	if !r.At.IsZero() {
		at = r.At.UnixMilli()
	}
	if n := len(w.chunk.Runs); n > 0 {
		last := w.chunk.Runs[n-1]
		if last.Stream == uint32(r.Stream) && last.AtUnixMs == at && (last.Gap > 0) == (r.Gap > 0) {
			last.Data, last.Gap = append(last.Data, r.Data...), last.Gap+r.Gap
			return
		}
	}
	w.chunk.Runs = append(w.chunk.Runs, &nodev1.ReadOutputResponse_Run{
		Stream: uint32(r.Stream), Offset: r.Offset, Data: append([]byte(nil), r.Data...), Gap: r.Gap, AtUnixMs: at,
	})
}

// pack is the chunk as it is kept.
func (w *Writer) pack() ([]byte, error) {
	b, err := proto.Marshal(&w.chunk)
	if err != nil {
		return nil, fmt.Errorf("keep output: %w", err)
	}
	return encoder.EncodeAll(b, nil), nil
}

func (w *Writer) flush() error {
	packed, err := w.pack()
	if err == nil {
		err = w.put(packed)
	}
	return err
}

func (w *Writer) put(packed []byte) error {
	if _, err := w.sink.Write(packed); err != nil {
		return err
	}
	w.start.At = w.index.Bytes
	w.index.Chunks = append(w.index.Chunks, w.start)
	w.index.Bytes += int64(len(packed))
	w.start = Chunk{Stdout: w.index.Stdout, Stderr: w.index.Stderr}
	w.chunk.Runs, w.filled = nil, 0
	return nil
}

// Close keeps the rest and answers the index.
func (w *Writer) Close() (Index, error) {
	if len(w.chunk.Runs) > 0 {
		packed, err := w.pack()
		if err != nil {
			return Index{}, err
		}
		if len(w.index.Chunks) == 0 && len(packed) <= MaxInline {
			w.index.Inline = packed
		} else if err := w.put(packed); err != nil {
			return Index{}, err
		}
	}
	return w.index, nil
}

// Blob opens a range of the blob: length bytes from an offset on; -1: all that follow.
type Blob func(ctx context.Context, offset, length int64) (io.ReadCloser, error)

// errDamaged is what a chunk that cannot be unpacked is.
var errDamaged = errors.New("kept output is damaged")

// Read calls each with the runs from an offset on, in their order, of which the first may begin in the middle of one. Data is valid
// until each returns. At most one chunk is in memory at a time, whatever the length.
func (x *Index) Read(ctx context.Context, blob Blob, offset int64, each func(Run) error) error {
	first := 0
	for i, c := range x.Chunks {
		if c.Stdout+c.Stderr <= offset {
			first = i
		}
	}
	return x.chunks(ctx, blob, first, len(x.Chunks), func(r Run) error {
		if r = r.From(offset); r.Len() == 0 {
			return nil
		}
		return each(r)
	})
}

// chunks reads those from first up to but not including last.
func (x *Index) chunks(ctx context.Context, blob Blob, first, last int, each func(Run) error) error {
	if len(x.Inline) > 0 {
		return unpack(x.Inline, each)
	}
	if first >= last {
		return nil
	}
	at := x.Chunks[first].At
	r, err := blob(ctx, at, x.end(last-1).At-at)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	for i := first; i < last; i++ {
		size := x.end(i).At - x.Chunks[i].At
		if size < 0 || size > maxChunk {
			return errDamaged
		}
		packed := make([]byte, size)
		if _, err := io.ReadFull(r, packed); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			// A reader that takes its time may find the connection to the storage gone.
			_ = r.Close()
			if r, err = blob(ctx, x.Chunks[i].At, x.end(last-1).At-x.Chunks[i].At); err != nil {
				return err
			}
			if _, err := io.ReadFull(r, packed); err != nil {
				return fmt.Errorf("read kept output: %w", err)
			}
		}
		if err := unpack(packed, each); err != nil {
			return err
		}
	}
	return nil
}

func unpack(packed []byte, each func(Run) error) error {
	b, err := decoder.DecodeAll(packed, nil)
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	var chunk nodev1.ReadOutputResponse
	if err := proto.Unmarshal(b, &chunk); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	for _, m := range chunk.Runs {
		if err := each(RunOf(m)); err != nil {
			return err
		}
	}
	return nil
}

// RunOf is a run as a node tells it.
func RunOf(m *nodev1.ReadOutputResponse_Run) Run {
	r := Run{Stream: cay.Stream(m.Stream), Offset: m.Offset, Data: m.Data, Gap: m.Gap}
	if r.Gap > 0 {
		r.Data = nil
	}
	if m.AtUnixMs != 0 {
		r.At = time.UnixMilli(m.AtUnixMs).UTC()
	}
	return r
}
