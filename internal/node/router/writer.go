package router

import (
	"context"

	"github.com/cayhq/cay"
)

// Writer gives a process stdin for a while, beside whoever has it: the bytes of one Writer come in one run, and the owner of stdin, if
// there is one, waits until it is closed. It must be closed. It is for one goroutine.
type Writer struct {
	p    *Process
	room chan struct{}
}

// WriteTo makes the Writer of a process, once any other is closed. A process that has ended, or whose stdin is not open, is
// cay.Conflict.
func (s *Session) WriteTo(ctx context.Context, ref string) (*Writer, error) {
	p, err := s.find(ref)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.started:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p.startErr != nil {
		return nil, p.startErr
	}
	s.Touch()
	w := &Writer{p: p, room: make(chan struct{}, 1)}
	if err := w.check(); err != nil { // also before the wait: an ended process has no turns
		return nil, err
	}
	select {
	case p.in.turn <- struct{}{}:
	case <-p.done:
		return nil, cay.Errorf(cay.Conflict, "process %s has ended", p.id)
	case <-s.closed:
		return nil, errClosed()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := w.check(); err != nil {
		<-p.in.turn
		return nil, err
	}
	p.mu.Lock()
	p.in.writer = w
	p.mu.Unlock()
	return w, nil
}

func (w *Writer) check() error {
	m := w.p.log.Process()
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if _, err := w.p.takesStdin(); err != nil {
		return err
	}
	if !m.StdinOpen {
		return cay.Errorf(cay.Conflict, "process %s was started without an open stdin; start it with stdin_open", w.p.id)
	}
	return nil
}

// Process is what is written to.
func (w *Writer) Process() *Process { return w.p }

// Offset is how many bytes of stdin the process has been given so far, by all.
func (w *Writer) Offset() int64 {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.p.in.end()
}

// Write gives data to the process, as Attachment.WriteStdin does.
func (w *Writer) Write(ctx context.Context, data []byte) error {
	return w.p.writeStdin(ctx, data, w.room, w.p.takesStdin)
}

// CloseStdin ends stdin after what was written; on a terminal it sends Ctrl-D.
func (w *Writer) CloseStdin() error { return w.p.closeStdin(w.p.takesStdin) }

// Close gives stdin back.
func (w *Writer) Close() {
	w.p.mu.Lock()
	w.p.in.writer = nil
	w.p.in.wakeWriter()
	w.p.mu.Unlock()
	<-w.p.in.turn
	w.p.s.Touch()
}
