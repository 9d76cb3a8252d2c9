package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/coder/websocket"
)

// errStdinLost is input that the process has not had and that is no longer kept here.
var errStdinLost = errors.New("input that was on its way when the connection broke is lost")

// replayBuffer keeps the last stdinReplay bytes of input, so that what a broken connection swallowed can be sent again.
type replayBuffer struct {
	base int64 // offset of data[0]
	data []byte
}

func (b *replayBuffer) append(p []byte) {
	b.data = append(b.data, p...)
	if len(b.data) > 2*stdinReplay { // moved rarely, so that a byte is copied once on average
		b.trim(b.end() - stdinReplay)
	}
}

func (b *replayBuffer) end() int64 { return b.base + int64(len(b.data)) }

// trim drops what is before offset.
func (b *replayBuffer) trim(offset int64) {
	n := min(max(offset-b.base, 0), int64(len(b.data)))
	b.data = append(b.data[:0], b.data[n:]...)
	b.base += n
}

// from answers what follows offset; false when it is no longer kept.
func (b *replayBuffer) from(offset int64) ([]byte, bool) {
	if offset < b.base || offset > b.end() {
		return nil, false
	}
	return b.data[offset-b.base:], true
}

// Stdin writes to the process's standard input. A write waits while the connection is being attached again, and fails once the
// session has ended. Closing it is [Session.CloseStdin].
func (s *Session) Stdin() io.WriteCloser { return (*stdinWriter)(s) }

type stdinWriter Session

func (w *stdinWriter) Close() error { return (*Session)(w).CloseStdin() }

func (w *stdinWriter) Write(p []byte) (int, error) {
	s := (*Session)(w)
	s.inputMu.Lock()
	defer s.inputMu.Unlock()
	if s.stdinClosed() {
		return 0, io.ErrClosedPipe
	}
	written := 0
	for written < len(p) {
		piece := p[written:min(len(p), written+stdinPiece)]
		err := s.input(websocket.MessageBinary, piece, func() { s.stdin.append(piece) })
		if err != nil {
			return written, err
		}
		written += len(piece)
	}
	return written, nil
}

// input sends one message of stdin over the connection of the moment, waiting for one where there is none. kept is called before
// it is sent: a message that the connection swallows is sent again after the next attach, by [Session.publish].
func (s *Session) input(kind websocket.MessageType, data []byte, kept func()) error {
	for {
		conn, err := s.live()
		if err != nil {
			return err
		}
		s.stdinMu.Lock()
		if !s.current(conn) {
			s.stdinMu.Unlock()
			continue
		}
		kept()
		err = conn.Write(context.Background(), kind, data) // ends when the connection does
		if err != nil {
			s.unpublishIf(conn)
		}
		s.stdinMu.Unlock()
		return nil
	}
}

func (s *Session) current(conn *websocket.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn == conn
}

func (s *Session) stdinClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stdinEnded
}

// CloseStdin ends the process's standard input; on a terminal it sends Ctrl-D.
func (s *Session) CloseStdin() error {
	s.inputMu.Lock()
	defer s.inputMu.Unlock()
	if s.stdinClosed() {
		return nil
	}
	return s.input(websocket.MessageText, []byte(`{"type":"close_stdin"}`), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.stdinEnded = true
	})
}

// Resize tells the terminal's new size. While disconnected it is remembered and sent after the next attach.
func (s *Session) Resize(cols, rows int) error {
	if cols < 1 || rows < 1 || cols > 65535 || rows > 65535 {
		return fmt.Errorf("resize to %d×%d: not a terminal's size", cols, rows)
	}
	s.mu.Lock()
	s.cols, s.rows = cols, rows
	conn := s.conn
	s.mu.Unlock()
	if conn == nil {
		return nil
	}
	if err := writeJSON(context.Background(), conn, resizeMessage(cols, rows)); err != nil {
		s.unpublishIf(conn)
	}
	return nil
}

func resizeMessage(cols, rows int) map[string]any {
	return map[string]any{"type": "resize", "cols": cols, "rows": rows}
}

// Signal sends a signal, named without SIG, to the process or to its whole tree. It goes by a request of its own, which is
// answered: the session's connection may be held up by input that nobody reads, or broken without having been noticed.
func (s *Session) Signal(ctx context.Context, signal string, tree bool) error {
	return s.c.Processes(s.sandbox).Signal(ctx, s.ProcessID(), signal, tree)
}

// live waits for a connection that takes input.
func (s *Session) live() (*websocket.Conn, error) {
	for {
		s.mu.Lock()
		conn, connected := s.conn, s.connected
		s.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		select {
		case <-connected:
		case <-s.done:
			return nil, fmt.Errorf("the session has ended: %w", io.ErrClosedPipe)
		}
	}
}

// publish sends the new connection what the last one may have swallowed, then lets others write to it.
func (s *Session) publish(ctx context.Context, l *link) {
	s.stdinMu.Lock()
	defer s.stdinMu.Unlock()
	missing, ok := s.stdin.from(l.started.StdinOffset)
	if !ok && !s.stdin.empty() {
		l.conn.Close(websocket.StatusGoingAway, errStdinLost.Error())
		s.cancel(errStdinLost)
		return
	}
	for len(missing) > 0 {
		n := min(len(missing), stdinPiece)
		if l.conn.Write(ctx, websocket.MessageBinary, missing[:n]) != nil {
			return // the reader notices as well
		}
		missing = missing[n:]
	}
	s.mu.Lock()
	ended, cols, rows := s.stdinEnded, s.cols, s.rows
	s.mu.Unlock()
	if ended && writeJSON(ctx, l.conn, map[string]any{"type": "close_stdin"}) != nil {
		return
	}
	if s.tty && cols > 0 && rows > 0 && writeJSON(ctx, l.conn, resizeMessage(cols, rows)) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn = l.conn
	close(s.connected)
}

func (b *replayBuffer) empty() bool { return len(b.data) == 0 }

func (s *Session) unpublish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked()
}

// unpublishIf lets writers wait for the next connection if conn is still the current one.
func (s *Session) unpublishIf(conn *websocket.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == conn {
		s.dropLocked()
	}
}

func (s *Session) dropLocked() {
	if s.conn != nil {
		s.conn = nil
		s.connected = make(chan struct{})
	}
}
