package files

import (
	"errors"
	"io"
)

const (
	pipePiece  = 128 << 10 // bytes
	pipePieces = 4
)

// errPipe is a Write after the reader has left.
var errPipe = errors.New("the other end of the pipe has left")

// pipe carries bytes from one goroutine to another in large pieces. One of the two runs as a user and so keeps a thread for itself:
// switching to it costs more than a copy, and the two work at the same time.
type pipe struct {
	full, free chan []byte
	left       chan struct{} // closed by stop
	err        error         // why it ends; set before full is closed

	filling []byte // of the writer
	piece   []byte // of the reader: what is left of it
	taken   []byte // of the reader: all of it
}

func newPipe() *pipe {
	p := &pipe{full: make(chan []byte, pipePieces), free: make(chan []byte, pipePieces), left: make(chan struct{})}
	for range pipePieces {
		p.free <- make([]byte, 0, pipePiece)
	}
	return p
}

// Write implements io.Writer.
func (p *pipe) Write(b []byte) (int, error) {
	written := 0
	for len(b) > 0 {
		if p.filling == nil {
			select {
			case p.filling = <-p.free:
			case <-p.left:
				return written, errPipe
			}
		}
		n := min(len(b), pipePiece-len(p.filling))
		p.filling = append(p.filling, b[:n]...)
		b, written = b[n:], written+n
		if len(p.filling) == pipePiece {
			p.full <- p.filling // never blocks: there is room for all pieces
			p.filling = nil
		}
	}
	return written, nil
}

// close ends the writer's side; nil is a good end.
func (p *pipe) close(err error) {
	if p.filling != nil {
		p.full <- p.filling
	}
	if err == nil {
		err = io.EOF
	}
	p.err = err
	close(p.full)
}

// Read implements io.Reader.
func (p *pipe) Read(b []byte) (int, error) {
	for len(p.piece) == 0 {
		if p.taken != nil {
			p.free <- p.taken[:0]
			p.taken = nil
		}
		piece, more := <-p.full
		if !more {
			return 0, p.err
		}
		p.piece, p.taken = piece, piece
	}
	n := copy(b, p.piece)
	p.piece = p.piece[n:]
	return n, nil
}

// stop ends the reader's side, once.
func (p *pipe) stop() { close(p.left) }
