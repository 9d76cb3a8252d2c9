package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"google.golang.org/protobuf/proto"
)

const (
	// maxTransfers bounds the transfers at a time; the next one waits for its turn.
	maxTransfers = 32
	// maxWatches bounds the watches at a time, which last and so do not count as transfers.
	maxWatches = 64
	// transferIdle ends a transfer whose other end neither sends nor takes anything.
	transferIdle = 60 * time.Second
	// runs is how many frames one system call reads or writes.
	runs = 4
)

// transferBuffers recycles buffers of runs frames.
var transferBuffers = sync.Pool{New: func() any { return new([runs * (wire.HeaderLen + wire.MaxFrame)]byte) }}

// bulk accepts a transfer; it runs on a connection of its own, on which its outcome is told, until ctx ends.
func (a *Agent) bulk(ctx context.Context, req *guestv1.Bulk) error {
	p := wire.Preamble{Kind: wire.ConnBulk}
	if len(req.GetToken()) != len(p.Token) {
		return cay.Errorf(cay.InvalidRequest, "a token has %d bytes", len(p.Token))
	}
	copy(p.Token[:], req.Token)
	if t, ok := req.Transfer.(*guestv1.Bulk_DialPort); ok {
		a.running.Go(func() { a.dialPort(ctx, p, t.DialPort) })
		return nil
	}
	slots := a.transfers
	if req.GetWatch() != nil {
		slots = a.watches
	}
	a.running.Go(func() {
		slots <- struct{}{}
		defer func() { <-slots }()
		dialing, cancel := context.WithTimeout(ctx, transferIdle)
		defer cancel()
		conn, err := a.dial(dialing, p)
		if err != nil {
			a.log.Warn("no connection for a transfer", "error", err)
			return
		}
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		patient := &idleConn{conn}
		switch t := req.Transfer.(type) {
		case *guestv1.Bulk_ReadFile:
			err = a.send(patient, t.ReadFile)
		case *guestv1.Bulk_WriteFile:
			err = a.receive(patient, t.WriteFile)
		case *guestv1.Bulk_ReadArchive:
			err = a.sendArchive(patient, t.ReadArchive)
		case *guestv1.Bulk_Watch:
			err = a.watch(ctx, conn, t.Watch)
		case *guestv1.Bulk_WriteArchive:
			err = a.receiveArchive(patient, t.WriteArchive)
		case *guestv1.Bulk_ReadReport:
			err = a.sendReport(patient, t.ReadReport.GetProcessId())
		default:
			err = sendHeader(patient, nil, cay.Errorf(cay.NotImplemented, "this agent does not know the transfer"))
		}
		if err != nil {
			a.log.Debug("a transfer ended early", "error", err)
		}
	})
	return nil
}

// idleConn ends reads and writes that make no progress for transferIdle.
type idleConn struct{ *net.UnixConn }

func (c *idleConn) Read(b []byte) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(transferIdle))
	return c.UnixConn.Read(b)
}

func (c *idleConn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(transferIdle))
	return c.UnixConn.Write(b)
}

func sendHeader(w io.Writer, info *guestv1.FileInfo, err error) error {
	return sendAnswer(w, &guestv1.BulkHeader{File: info}, err)
}

// sendAnswer sends the problem where there is one, else the header.
func sendAnswer(w io.Writer, h *guestv1.BulkHeader, err error) error {
	if err != nil {
		h = &guestv1.BulkHeader{Problem: problem(err)}
	}
	payload, err := proto.Marshal(h)
	if err != nil {
		return err
	}
	_, err = w.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameHeader, Payload: payload}))
	return err
}

// send carries a file to the node: header, data, end. A file that cannot be read to the end ends without one.
func (a *Agent) send(conn io.Writer, req *guestv1.ReadFile) error {
	file, err := a.files.Open(req)
	if err != nil {
		return sendHeader(conn, nil, err)
	}
	defer file.Close()
	if err := sendHeader(conn, file.Info, nil); err != nil {
		return err
	}
	buf := transferBuffers.Get().(*[runs * (wire.HeaderLen + wire.MaxFrame)]byte)
	defer transferBuffers.Put(buf)
	for {
		var payloads [runs][]byte
		for i := range payloads {
			at := i * (wire.HeaderLen + wire.MaxFrame)
			payloads[i] = buf[at+wire.HeaderLen : at+wire.HeaderLen+wire.MaxFrame]
		}
		n, err := file.ReadInto(payloads[:])
		if err == io.EOF {
			_, err := conn.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameEnd}))
			return err
		}
		if err != nil {
			return err
		}
		// The data is in place: only headers are written before it, over nothing.
		end := 0
		for i := 0; n > 0; i++ {
			at := i * (wire.HeaderLen + wire.MaxFrame)
			run := min(n, wire.MaxFrame)
			wire.PutHeader(buf[at:], wire.FrameData, 0, run)
			end = at + wire.HeaderLen + run
			n -= run
		}
		if _, err := conn.Write(buf[:end]); err != nil {
			return err
		}
	}
}

// receive takes a file from the node: data, commit. Whatever else comes, or nothing more, leaves nothing behind.
func (a *Agent) receive(conn io.ReadWriter, req *guestv1.WriteFile) error {
	in := bufio.NewReaderSize(conn, runs*wire.MaxFrame)
	file, err := a.files.Create(req)
	if err != nil {
		return refuse(conn, in, err)
	}
	frames := wire.NewReader(in)
	out := bufio.NewWriterSize(file, runs*wire.MaxFrame)
	for {
		f, err := frames.Read()
		if err == nil && f.Type != wire.FrameData && f.Type != wire.FrameCommit {
			err = fmt.Errorf("%w: type %d in a transfer", wire.ErrFrame, f.Type)
		}
		if err != nil {
			file.Abort()
			return err
		}
		if f.Type == wire.FrameData {
			_, err = out.Write(f.Payload)
		} else {
			err = out.Flush()
		}
		if err != nil {
			file.Abort()
			return refuse(conn, in, err)
		}
		if f.Type == wire.FrameCommit {
			info, err := file.Commit()
			return sendHeader(conn, info, err)
		}
	}
}

// refuse tells the problem and takes what is still on the way: closing with unread data would look like a broken connection.
func refuse(conn io.Writer, in io.Reader, problem error) error {
	if err := sendHeader(conn, nil, problem); err != nil {
		return err
	}
	frames := wire.NewReader(in)
	for {
		f, err := frames.Read()
		if errors.Is(err, io.EOF) || err == nil && f.Type == wire.FrameCommit {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
