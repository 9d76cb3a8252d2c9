package router

import (
	"context"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// stdin is what a process has been sent and not yet taken, kept until the agent says that the process has it. Guarded by the
// process's mu.
type stdin struct {
	buf     []byte // [base, base+len)
	base    int64  // acknowledged
	sent    int64  // on this connection
	eof     bool   // close once everything is sent
	eofSent bool   // on this connection
	dropped bool   // nobody takes any more
	owner   *Attachment
	room    chan struct{} // capacity 1: there may be room now
	turn    chan struct{} // capacity 1: full while there is a Writer
	writer  *Writer       // while it is there, the owner waits; nil: none
}

func (in *stdin) end() int64 { return in.base + int64(len(in.buf)) }

func (in *stdin) drop() {
	in.buf, in.dropped = nil, true
	in.wakeWriter()
}

func (in *stdin) wakeWriter() {
	select {
	case in.room <- struct{}{}:
	default:
	}
	if in.writer != nil {
		select {
		case in.writer.room <- struct{}{}:
		default:
		}
	}
}

// ack notes that the process has everything before offset.
func (in *stdin) ack(offset int64) error {
	if in.dropped {
		return nil
	}
	if offset > in.sent || offset < 0 {
		return violation("stdin acknowledged up to %d of %d", offset, in.sent)
	}
	if n := offset - in.base; n > 0 {
		in.buf = append(in.buf[:0], in.buf[n:]...)
		in.base = offset
		in.wakeWriter()
	}
	return nil
}

// reconnected learns from a hello how much the agent has received.
func (in *stdin) reconnected(received int64, first bool) error {
	switch {
	case in.dropped:
		return nil
	case first && in.base == 0 && len(in.buf) == 0 && received >= 0 && received < 1<<60:
		in.base, in.sent = received, received // after a restart of the node
	case received < in.base || received > in.end():
		return violation("stdin received up to %d of [%d, %d]", received, in.base, in.end())
	default: // what acknowledged it may be lost with the connection that it was on
		in.buf = append(in.buf[:0], in.buf[received-in.base:]...)
		in.base, in.sent = received, received
		in.wakeWriter()
	}
	in.eofSent = false
	return nil
}

// appendStdin appends frames of what may be sent now.
func (p *Process) appendStdin(b []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	in := &p.in
	for in.sent < in.end() && in.sent < in.base+stdinWindow {
		from := in.sent - in.base
		n := min(in.end()-in.sent, in.base+stdinWindow-in.sent, wire.MaxDataRun)
		b = wire.AppendData(b, wire.FrameStdin, p.stream, in.sent, in.buf[from:from+n])
		in.sent += n
	}
	if in.eof && !in.eofSent && in.sent == in.end() && !in.dropped {
		b = appendMessage(b, &guestv1.ToAgent{Message: &guestv1.ToAgent_CloseStdin{
			CloseStdin: &guestv1.CloseStdin{ProcessId: string(p.id)},
		}})
		in.eofSent = true
		if p.tty { // Ctrl-D ends nothing for good, and must not come twice
			in.eof = false
			in.wakeWriter()
		}
	}
	return b
}

// feed queues the stdin of p's present connection to be written.
func (p *Process) feed() {
	p.s.mu.Lock()
	c := p.s.conn
	p.s.mu.Unlock()
	if c != nil {
		c.out.stdinReady(p)
	}
}

// WriteStdin gives data to the process. It waits while the process does not take what it was given before. After the process's
// end, or once another reader took over stdin, it is cay.Conflict.
func (a *Attachment) WriteStdin(ctx context.Context, data []byte) error {
	return a.p.writeStdin(ctx, data, a.p.in.room, a.ownsStdin)
}

// writeStdin queues data as there is room for it. may, called with p.mu, says whether the caller may write, and whether now.
func (p *Process) writeStdin(ctx context.Context, data []byte, room <-chan struct{}, may func() (now bool, err error)) error {
	if p.tty {
		p.s.Touch()
	}
	for {
		p.mu.Lock()
		in := &p.in
		now, err := may()
		if err != nil {
			in.wakeWriter() // what woke this one may be meant for the owner
			p.mu.Unlock()
			return err
		}
		n := 0
		if now {
			n = max(min(stdinWindow-len(in.buf), len(data)), 0)
		}
		in.buf = append(in.buf, data[:n]...)
		if n > 0 {
			data = data[n:]
		}
		p.mu.Unlock()
		if n > 0 {
			p.feed()
		}
		if len(data) == 0 {
			return nil
		}
		select {
		case <-room:
		case <-p.s.closed:
			return errClosed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// ownsStdin needs p.mu.
func (a *Attachment) ownsStdin() (now bool, err error) {
	if a.p.in.owner != a && !a.p.in.dropped {
		return false, cay.Errorf(cay.Conflict, "another client took over the stdin of process %s", a.p.id)
	}
	now, err = a.p.takesStdin()
	return now && a.p.in.writer == nil, err
}

// takesStdin says whether anybody can write; now is false while a terminal's Ctrl-D is on its way. With p.mu.
func (p *Process) takesStdin() (now bool, err error) {
	switch {
	case p.in.dropped:
		return false, cay.Errorf(cay.Conflict, "process %s has ended", p.id)
	case p.in.eof && !p.tty:
		return false, cay.Errorf(cay.Conflict, "the stdin of process %s is closed", p.id)
	}
	return !p.in.eof, nil
}

// CloseStdin ends stdin after what was written; on a terminal it sends Ctrl-D.
func (a *Attachment) CloseStdin() error {
	return a.p.closeStdin(a.ownsStdin)
}

func (p *Process) closeStdin(may func() (now bool, err error)) error {
	p.mu.Lock()
	_, err := may()
	if err == nil {
		p.in.eof, p.in.eofSent = true, false
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	if !p.tty {
		p.log.Update(func(m *spool.Process) { m.StdinClosed = true })
		p.s.changed(p)
	}
	p.feed()
	return nil
}

// Resize sets the size of the process's terminal.
func (a *Attachment) Resize(ctx context.Context, cols, rows uint16) error {
	p := a.p
	switch {
	case !p.log.Process().TTY:
		return cay.Errorf(cay.Conflict, "process %s has no terminal", p.id)
	case p.isDone():
		return cay.Errorf(cay.Conflict, "process %s has ended", p.id)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := p.s.done(ctx, &guestv1.ToAgent{Message: &guestv1.ToAgent_Resize{Resize: &guestv1.Resize{
		ProcessId: string(p.id), Cols: uint32(cols), Rows: uint32(rows),
	}}}, true)
	if err == nil {
		p.log.Update(func(m *spool.Process) { m.Cols, m.Rows = cols, rows })
		p.s.changed(p)
	}
	return err
}
