// Package wire is what the zones say to each other: the frames of the guest hop (this package), its messages (guestv1) and the
// service between control plane and node (nodev1). It holds encodings only, no behaviour of either end.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// GuestProtocol is the version of the guest hop that this build speaks; a node also accepts the one before it.
const GuestProtocol = 1

// MaxFrame bounds a frame's payload. A larger one ends the connection.
const MaxFrame = 64 << 10

// FrameType says what a frame's payload is.
type FrameType uint8

const (
	FrameMessage FrameType = 1 // a guestv1.ToAgent or guestv1.ToNode; stream is 0
	FrameStdout  FrameType = 2 // output of the process that was started with this stream number: 8 bytes of offset (both streams together), then data
	FrameStderr  FrameType = 3
	FrameStdin   FrameType = 4 // 8 bytes of stdin offset, then data
	FrameData    FrameType = 5 // a run of a bulk transfer
	FrameHeader  FrameType = 6 // a guestv1.BulkHeader
	FrameEnd     FrameType = 7 // a bulk transfer is complete
	FrameCommit  FrameType = 8 // a bulk write is complete and to be made visible
	FramePart    FrameType = 9 // towards the agent only: the beginning of a message longer than a frame; more parts follow, then a FrameMessage with its end
)

// HeaderLen is the length of what precedes a payload: 4 bytes payload length, 1 byte type, 3 bytes zero, 8 bytes stream; big endian.
const HeaderLen = 16

// ErrFrame is a frame that breaks the protocol. The connection it came by is of no further use.
var ErrFrame = errors.New("malformed frame")

// Frame is one unit on a guest connection.
type Frame struct {
	Type    FrameType
	Stream  uint64 // for output and stdin: the number the process was started with; else 0
	Payload []byte // valid until the next Read of the same Reader
}

// Reader reads frames. It never holds more than one frame.
type Reader struct {
	r   io.Reader
	buf []byte
}

// NewReader reads frames from r, which should be buffered when frames are small.
func NewReader(r io.Reader) *Reader { return &Reader{r: r, buf: make([]byte, HeaderLen+MaxFrame)} }

// Read returns the next frame. io.EOF means a clean end between frames; a cut frame is io.ErrUnexpectedEOF.
func (r *Reader) Read() (Frame, error) {
	head := r.buf[:HeaderLen]
	if _, err := io.ReadFull(r.r, head); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(head)
	f := Frame{Type: FrameType(head[4]), Stream: binary.BigEndian.Uint64(head[8:])}
	switch {
	case n > MaxFrame:
		return Frame{}, fmt.Errorf("%w: payload of %d bytes", ErrFrame, n)
	case f.Type < FrameMessage || f.Type > FramePart:
		return Frame{}, fmt.Errorf("%w: type %d", ErrFrame, f.Type)
	case head[5]|head[6]|head[7] != 0:
		return Frame{}, fmt.Errorf("%w: reserved bytes set", ErrFrame)
	}
	f.Payload = r.buf[HeaderLen : HeaderLen+int(n)]
	if _, err := io.ReadFull(r.r, f.Payload); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Frame{}, err
	}
	return f, nil
}

// AppendFrame appends an encoded frame to b. It panics if the payload is longer than MaxFrame: senders split.
func AppendFrame(b []byte, f Frame) []byte {
	if len(f.Payload) > MaxFrame {
		panic(fmt.Sprintf("wire: frame of %d bytes", len(f.Payload)))
	}
	var head [HeaderLen]byte
	PutHeader(head[:], f.Type, f.Stream, len(f.Payload))
	return append(append(b, head[:]...), f.Payload...)
}

// PutHeader writes the HeaderLen bytes that precede a payload of n bytes, for senders whose payload lies in its place already.
func PutHeader(b []byte, t FrameType, stream uint64, n int) {
	binary.BigEndian.PutUint32(b, uint32(n))
	binary.BigEndian.PutUint32(b[4:], uint32(t)<<24)
	binary.BigEndian.PutUint64(b[8:], stream)
}

// MaxMessage bounds a message towards the agent, parts added up: a start may carry 1 MiB of environment. Messages of the agent fit
// into one frame.
const MaxMessage = 4 << 20

// AppendMessage appends a message towards the agent, in parts where one frame cannot hold it. It panics above MaxMessage.
func AppendMessage(b, message []byte) []byte {
	if len(message) > MaxMessage {
		panic(fmt.Sprintf("wire: message of %d bytes", len(message)))
	}
	for len(message) > MaxFrame {
		b = AppendFrame(b, Frame{Type: FramePart, Payload: message[:MaxFrame]})
		message = message[MaxFrame:]
	}
	return AppendFrame(b, Frame{Type: FrameMessage, Payload: message})
}

// MaxDataRun is how much data fits into an output or stdin frame behind its offset.
const MaxDataRun = MaxFrame - 8

// AppendData appends a frame of output or stdin: data begins at offset of the process's output (or stdin).
func AppendData(b []byte, t FrameType, stream uint64, offset int64, data []byte) []byte {
	if len(data) > MaxDataRun {
		panic(fmt.Sprintf("wire: run of %d bytes", len(data)))
	}
	var head [HeaderLen + 8]byte
	binary.BigEndian.PutUint32(head[:], uint32(len(data)+8))
	head[4] = byte(t)
	binary.BigEndian.PutUint64(head[8:], stream)
	binary.BigEndian.PutUint64(head[HeaderLen:], uint64(offset))
	return append(append(b, head[:]...), data...)
}

// SplitData takes the payload of an output or stdin frame apart.
func SplitData(payload []byte) (offset int64, data []byte, err error) {
	if len(payload) < 8 {
		return 0, nil, fmt.Errorf("%w: run without an offset", ErrFrame)
	}
	o := binary.BigEndian.Uint64(payload)
	if o > 1<<62 {
		return 0, nil, fmt.Errorf("%w: offset %d", ErrFrame, o)
	}
	return int64(o), payload[8:], nil
}
