package agent

import (
	"bufio"
	"fmt"
	"io"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// sendArchive carries an archive to the node: header, data, end. A fault before the first full buffer is the header's problem, a
// later one a second header.
func (a *Agent) sendArchive(conn io.Writer, req *guestv1.ReadArchive) error {
	out := &frameWriter{conn: conn}
	data := bufio.NewWriterSize(out, runs*wire.MaxFrame)
	err := a.files.ReadArchive(req, data)
	if err == nil {
		err = data.Flush()
	}
	if out.failed != nil {
		return out.failed
	}
	if err != nil {
		return sendHeader(conn, nil, err)
	}
	if err := out.begin(); err != nil {
		return err
	}
	_, err = conn.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameEnd}))
	return err
}

// frameWriter sends what is written as data frames, after a header that says that there is no problem.
type frameWriter struct {
	conn   io.Writer
	begun  bool
	failed error // of the connection
	buf    []byte
}

func (w *frameWriter) begin() error {
	if !w.begun && w.failed == nil {
		w.begun = true
		w.failed = sendAnswer(w.conn, &guestv1.BulkHeader{Done: &guestv1.Done{}}, nil)
	}
	return w.failed
}

// Write implements io.Writer.
func (w *frameWriter) Write(b []byte) (int, error) {
	if err := w.begin(); err != nil {
		return 0, err
	}
	w.buf = w.buf[:0]
	for rest := b; len(rest) > 0; {
		n := min(len(rest), wire.MaxFrame)
		w.buf = wire.AppendFrame(w.buf, wire.Frame{Type: wire.FrameData, Payload: rest[:n]})
		rest = rest[n:]
	}
	if _, w.failed = w.conn.Write(w.buf); w.failed != nil {
		return 0, w.failed
	}
	return len(b), nil
}

// receiveArchive takes an archive from the node: data, commit.
func (a *Agent) receiveArchive(conn io.ReadWriter, req *guestv1.WriteArchive) error {
	in := bufio.NewReaderSize(conn, runs*wire.MaxFrame)
	data := &frameReader{frames: wire.NewReader(in)}
	info, err := a.files.WriteArchive(req, data)
	switch {
	case err == nil:
		return sendAnswer(conn, &guestv1.BulkHeader{Archive: info}, nil)
	case data.err == io.EOF: // all of it came
		return sendHeader(conn, nil, err)
	case data.err != nil: // the connection is of no further use
		return data.err
	}
	return refuse(conn, in, err)
}

// frameReader reads the payload of data frames up to the commit, which is its io.EOF.
type frameReader struct {
	frames *wire.Reader
	rest   []byte
	err    error
}

// Read implements io.Reader.
func (r *frameReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 && r.err == nil {
		f, err := r.frames.Read()
		switch {
		case err == io.EOF:
			r.err = io.ErrUnexpectedEOF
		case err != nil:
			r.err = err
		case f.Type == wire.FrameCommit:
			r.err = io.EOF
		case f.Type != wire.FrameData:
			r.err = fmt.Errorf("%w: type %d in a transfer", wire.ErrFrame, f.Type)
		}
		if r.err == nil {
			r.rest = f.Payload
		}
	}
	if r.err != nil {
		return 0, r.err
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
