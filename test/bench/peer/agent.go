package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// AgentName is the name of [Agent].
const AgentName = "Cay's agent alone"

// Agent is Cay's agent under runsc without anything of Cay around it: this process is its node. It speaks the frames of the guest
// hop one command at a time, and so shows what the sandbox itself needs for a command.
type Agent struct {
	Like  Like
	Runsc string

	oci      OCI
	listener *net.UnixListener
	conn     net.Conn
	frames   *wire.Reader
	version  string
	last     uint64 // request, stream and process number
}

func (a *Agent) Name() string    { return AgentName }
func (a *Agent) Version() string { return a.version }

// helloTimeout bounds the boot.
const helloTimeout = 15 * time.Second

func (a *Agent) Start(ctx context.Context) (err error) {
	a.oci = OCI{Program: a.Runsc, Label: "runsc", Like: &a.Like}
	if err := a.oci.prepare(); err != nil {
		return err
	}
	if err := a.boot(ctx); err != nil {
		return errors.Join(err, a.Stop())
	}
	return nil
}

func (a *Agent) boot(ctx context.Context) error {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(a.oci.sockets(), "a.sock"), Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen for the agent: %w", err)
	}
	a.listener = listener
	bundle, err := a.oci.bundle("agent")
	if err != nil {
		return err
	}
	if err := a.oci.detach(ctx, bundle); err != nil {
		return err
	}
	deadline := time.Now().Add(helloTimeout)
	if err := listener.SetDeadline(deadline); err != nil {
		return err
	}
	if a.conn, err = listener.Accept(); err != nil {
		return fmt.Errorf("await the agent: %w: %s", err, a.oci.said())
	}
	if err := a.conn.SetDeadline(deadline); err != nil {
		return err
	}
	if p, err := wire.ReadPreamble(a.conn); err != nil || p.Kind != wire.ConnControl {
		return fmt.Errorf("await the agent: a preamble of kind %d: %w", p.Kind, err)
	}
	a.frames = wire.NewReader(bufio.NewReaderSize(a.conn, wire.MaxFrame))
	hello, err := a.message()
	if err != nil {
		return fmt.Errorf("await the agent's hello: %w", err)
	}
	a.version = "protocol " + fmt.Sprint(hello.GetHello().GetProtocol())
	a.last++
	if err := a.send(&guestv1.ToAgent{Id: a.last, Message: &guestv1.ToAgent_Claim{Claim: &guestv1.Claim{
		SandboxId: "bench", Hostname: "bench", User: "sandbox", Workdir: "/workspace", Pids: 512,
	}}}); err != nil {
		return err
	}
	for {
		m, err := a.message()
		if err != nil {
			return fmt.Errorf("claim the agent: %w", err)
		}
		if p := m.GetProblem(); p != nil {
			return fmt.Errorf("claim the agent: %s: %s", p.Reason, p.Detail)
		}
		if m.ReplyTo == a.last {
			return nil
		}
	}
}

func (a *Agent) Stop() error {
	if a.conn != nil {
		a.conn.Close()
	}
	if a.listener != nil {
		a.listener.Close()
	}
	return errors.Join(a.oci.deleteBox(), a.oci.Stop())
}

func (a *Agent) send(messages ...*guestv1.ToAgent) error {
	var b []byte
	for _, m := range messages {
		payload, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		b = wire.AppendFrame(b, wire.Frame{Type: wire.FrameMessage, Payload: payload})
	}
	_, err := a.conn.Write(b)
	return err
}

// message reads the next message; frames of output are an error.
func (a *Agent) message() (*guestv1.ToNode, error) {
	f, err := a.frames.Read()
	if err != nil {
		return nil, err
	}
	if f.Type != wire.FrameMessage {
		return nil, fmt.Errorf("a frame of type %d", f.Type)
	}
	return parseMessage(f)
}

func parseMessage(f wire.Frame) (*guestv1.ToNode, error) {
	var m guestv1.ToNode
	if err := proto.Unmarshal(f.Payload, &m); err != nil {
		return nil, fmt.Errorf("a message of the agent: %w", err)
	}
	return &m, nil
}

// Exec runs argv and acknowledges its output as it comes.
func (a *Agent) Exec(ctx context.Context, stdout io.Writer, argv ...string) error {
	deadline, _ := ctx.Deadline() // none: the zero time, which is none as well
	if err := a.conn.SetDeadline(deadline); err != nil {
		return err
	}
	a.last++
	process := fmt.Sprintf("prc_bench%d", a.last)
	if err := a.send(&guestv1.ToAgent{Id: a.last, Message: &guestv1.ToAgent_Start{Start: &guestv1.Start{ProcessId: process, Argv: argv, Stream: a.last}}}); err != nil {
		return fmt.Errorf("start %v: %w", argv, err)
	}
	var acknowledged int64
	for {
		f, err := a.frames.Read()
		if err != nil {
			return fmt.Errorf("%v: %w", argv, err)
		}
		switch f.Type {
		case wire.FrameStdout, wire.FrameStderr:
			offset, data, err := wire.SplitData(f.Payload)
			if err != nil {
				return err
			}
			if f.Type == wire.FrameStdout {
				if _, err := stdout.Write(data); err != nil {
					return err
				}
			}
			if end := offset + int64(len(data)); end-acknowledged >= ackEvery {
				acknowledged = end
				if err := a.send(ack(process, end)); err != nil {
					return err
				}
			}
		case wire.FrameMessage:
			m, err := parseMessage(f)
			if err != nil {
				return err
			}
			if p := m.GetProblem(); p != nil && m.ReplyTo == a.last {
				return fmt.Errorf("start %v: %s: %s", argv, p.Reason, p.Detail)
			}
			exited := m.GetExited()
			if exited.GetProcessId() != process {
				continue
			}
			if exited.Code != 0 || exited.Signal != 0 {
				err = fmt.Errorf("%v: exit code %d, signal %d", argv, exited.Code, exited.Signal)
			}
			return errors.Join(err, a.send(ack(process, exited.Produced),
				&guestv1.ToAgent{Message: &guestv1.ToAgent_Forget{Forget: &guestv1.Forget{ProcessId: process}}}))
		}
	}
}

// ackEvery is how much output is read before it is acknowledged: a quarter of what the agent holds at most.
const ackEvery = 64 << 10

func ack(process string, offset int64) *guestv1.ToAgent {
	return &guestv1.ToAgent{Message: &guestv1.ToAgent_Ack{Ack: &guestv1.Ack{ProcessId: process, Offset: offset}}}
}
