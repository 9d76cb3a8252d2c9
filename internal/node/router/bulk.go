package router

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

const sigTerm = unix.SIGTERM

// MaxData is the most data that a FileReader returns at once and a FileWriter takes.
const MaxData = wire.MaxFrame

// transfer is a connection that carries one file.
type transfer struct {
	s      *Session
	slots  chan struct{} // of which it holds one
	nc     net.Conn
	in     *bufio.Reader
	reader *wire.Reader // of in
	stop   func() bool
	cancel context.CancelFunc // of the request that asked for it
	asking sync.WaitGroup
	once   sync.Once
}

// dialBulk asks the agent for a connection of its own, named by a token that is good once.
func (s *Session) dialBulk(ctx context.Context, b *guestv1.Bulk) (*transfer, error) {
	s.Touch()
	slots := s.bulk
	if b.GetWatch() != nil {
		slots = s.watches
	}
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.openTransfer(ctx, b, slots)
}

// openTransfer is dialBulk for a caller that holds one of slots; it is given back when the transfer is closed, or was not opened.
func (s *Session) openTransfer(ctx context.Context, b *guestv1.Bulk, slots chan struct{}) (*transfer, error) {
	purpose := driver.Purpose{Kind: wire.ConnBulk}
	rand.Read(purpose.Token[:])
	b.Token = purpose.Token[:]
	dialing, cancel := context.WithTimeout(ctx, s.timing.Answer)
	t := &transfer{s: s, slots: slots, cancel: cancel}
	var asked error
	answered := make(chan struct{})
	t.asking.Go(func() {
		defer close(answered)
		if asked = s.done(dialing, &guestv1.ToAgent{Message: &guestv1.ToAgent_Bulk{Bulk: b}}, false); asked != nil {
			cancel()
		}
	})
	nc, err := s.cfg.Dial(dialing, purpose)
	if err != nil {
		refusal := error(nil)
		select {
		case <-answered: // before cancel: then it is why the dial ended
			refusal = asked
		default:
		}
		cancel()
		t.asking.Wait()
		<-slots
		var e *cay.Error
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(refusal, &e):
			return nil, refusal
		default:
			return nil, cay.Errorf(cay.Unavailable, "the sandbox opened no connection for the transfer").After(time.Second).Because(errors.Join(err, refusal))
		}
	}
	t.nc, t.in = nc, bufio.NewReaderSize(nc, 16<<10)
	t.reader = wire.NewReader(t.in)
	t.stop = context.AfterFunc(ctx, func() { nc.Close() })
	return t, nil
}

func (t *transfer) close() {
	t.once.Do(func() {
		t.stop()
		t.nc.Close()
		t.cancel()
		t.asking.Wait()
		<-t.slots
		if t.slots != t.s.watches { // the end of a watch is nobody's activity
			t.s.Touch()
		}
	})
}

// header reads the BulkHeader of a file.
func (t *transfer) header() (*guestv1.FileInfo, error) {
	h, err := t.answer()
	if err != nil {
		return nil, err
	}
	if h.File == nil {
		return nil, t.broken(violation("empty header"))
	}
	return h.File, nil
}

// answer reads a BulkHeader; a problem is an error.
func (t *transfer) answer() (*guestv1.BulkHeader, error) {
	h, err := t.bulkHeader()
	if err != nil {
		return nil, err
	}
	if h.Problem != nil {
		return nil, guestError(h.Problem)
	}
	return h, nil
}

func (t *transfer) bulkHeader() (*guestv1.BulkHeader, error) {
	f, err := t.reader.Read()
	if err != nil {
		return nil, t.broken(err)
	}
	var h guestv1.BulkHeader
	if f.Type != wire.FrameHeader || proto.Unmarshal(f.Payload, &h) != nil {
		return nil, t.broken(violation("no header"))
	}
	return &h, nil
}

func (t *transfer) broken(err error) error {
	if errors.Is(err, errViolation) || errors.Is(err, wire.ErrFrame) {
		t.s.strike(err)
	}
	return cay.Errorf(cay.Unavailable, "the transfer was cut off").After(time.Second).Because(err)
}

// FileReader reads a file of the sandbox. It must be closed.
type FileReader struct {
	t    *transfer
	Info *guestv1.FileInfo
	left int64 // bytes that may still come; negative: any
	done bool
}

// ReadFile opens a file; length negative means to the end.
func (s *Session) ReadFile(ctx context.Context, r *guestv1.ReadFile) (*FileReader, error) {
	t, err := s.dialBulk(ctx, &guestv1.Bulk{Transfer: &guestv1.Bulk_ReadFile{ReadFile: r}})
	if err != nil {
		return nil, err
	}
	t.nc.SetReadDeadline(time.Now().Add(s.timing.BulkIdle))
	info, err := t.header()
	if err != nil {
		t.close()
		return nil, err
	}
	return &FileReader{t: t, Info: info, left: r.Length}, nil
}

// Next returns a run, valid until the next call; io.EOF after the last. A transfer that is cut off is never io.EOF.
func (r *FileReader) Next() ([]byte, error) {
	if r.done {
		return nil, io.EOF
	}
	r.t.nc.SetReadDeadline(time.Now().Add(r.t.s.timing.BulkIdle))
	data, err := r.t.next()
	if err != nil {
		r.done = err == io.EOF
		return nil, err
	}
	if r.left >= 0 {
		if int64(len(data)) > r.left {
			return nil, r.t.broken(violation("more data than was asked for"))
		}
		r.left -= int64(len(data))
	}
	return data, nil
}

// next reads the data frame that follows; io.EOF at the end that was announced.
func (t *transfer) next() ([]byte, error) {
	f, err := t.reader.Read()
	switch {
	case err != nil:
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, t.broken(err)
	case f.Type == wire.FrameEnd:
		return nil, io.EOF
	case f.Type == wire.FrameHeader: // a fault in the middle
		var h guestv1.BulkHeader
		if proto.Unmarshal(f.Payload, &h) == nil && h.Problem != nil {
			return nil, guestError(h.Problem)
		}
		return nil, t.broken(violation("second header"))
	case f.Type != wire.FrameData:
		return nil, t.broken(violation("frame of type %d in a transfer", f.Type))
	}
	return f.Payload, nil
}

// Close ends the transfer.
func (r *FileReader) Close() { r.t.close() }

// FileWriter writes a file of the sandbox. Nothing is visible before Commit; Close without it leaves everything as it was.
type FileWriter = upload[*guestv1.FileInfo]

// WriteFile begins to write a file.
func (s *Session) WriteFile(ctx context.Context, w *guestv1.WriteFile) (*FileWriter, error) {
	return startUpload(ctx, s, &guestv1.Bulk{Transfer: &guestv1.Bulk_WriteFile{WriteFile: w}}, (*transfer).header)
}

// upload sends data that the agent answers once, with a T or a problem, after the commit or before it.
type upload[T any] struct {
	t      *transfer
	buf    []byte
	answer chan uploadAnswer[T]
	early  *uploadAnswer[T]
}

type uploadAnswer[T any] struct {
	info T
	err  error
}

func startUpload[T any](ctx context.Context, s *Session, b *guestv1.Bulk, header func(*transfer) (T, error)) (*upload[T], error) {
	t, err := s.dialBulk(ctx, b)
	if err != nil {
		return nil, err
	}
	w := &upload[T]{t: t, answer: make(chan uploadAnswer[T], 1)}
	go func() { // ends with the connection; Close waits for it
		info, err := header(t)
		w.answer <- uploadAnswer[T]{info, err}
	}()
	return w, nil
}

// Write sends at most MaxData bytes. A refusal of the guest, such as a full disk, may come with any Write.
func (w *upload[T]) Write(data []byte) error {
	select {
	case a := <-w.answer:
		w.early = &a
	default:
	}
	if w.early == nil {
		w.buf = wire.AppendFrame(w.buf[:0], wire.Frame{Type: wire.FrameData, Payload: data})
		w.t.nc.SetWriteDeadline(time.Now().Add(w.t.s.timing.BulkIdle))
		_, err := w.t.nc.Write(w.buf)
		if err == nil {
			return nil
		}
		w.await(w.t.s.timing.BulkIdle)
	}
	return w.failure()
}

// await takes the agent's answer, which follows soon when it no longer reads.
func (w *upload[T]) await(patience time.Duration) {
	if w.early == nil {
		w.t.nc.SetReadDeadline(time.Now().Add(patience))
		a := <-w.answer
		w.early = &a
	}
}

func (w *upload[T]) failure() error {
	if w.early.err == nil {
		return w.t.broken(violation("written before it was complete"))
	}
	return w.early.err
}

// Commit makes what was sent visible and describes it.
func (w *upload[T]) Commit() (T, error) {
	select {
	case a := <-w.answer:
		w.early = &a
	default:
	}
	if w.early != nil {
		var none T
		return none, w.failure()
	}
	w.t.nc.SetWriteDeadline(time.Now().Add(w.t.s.timing.BulkIdle))
	_, _ = w.t.nc.Write(wire.AppendFrame(w.buf[:0], wire.Frame{Type: wire.FrameCommit})) // a failure shows in the answer
	w.await(w.t.s.timing.Commit)
	return w.early.info, w.early.err
}

// Close ends the transfer.
func (w *upload[T]) Close() {
	w.t.close()
	w.await(0)
}
