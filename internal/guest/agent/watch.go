package agent

import (
	"context"
	"io"
	"net"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"google.golang.org/protobuf/proto"
)

// watch sends a header once changes are seen, then one data frame for each event, and the end when the directory is gone. It ends
// when the node ends the connection.
func (a *Agent) watch(ctx context.Context, conn *net.UnixConn, req *guestv1.Watch) error {
	ctx, cancel := context.WithCancel(ctx)
	listening := make(chan struct{})
	defer func() {
		conn.Close()
		<-listening
	}()
	go func() {
		defer close(listening)
		_, _ = io.Copy(io.Discard, conn) // the node says nothing: whatever comes of this is the end
		cancel()
	}()
	out := &idleConn{conn}
	begun := false
	var buf []byte
	err := a.files.Watch(ctx, req, func() error {
		begun = true
		return sendAnswer(out, &guestv1.BulkHeader{Done: &guestv1.Done{}}, nil)
	}, func(events []*guestv1.WatchEvent) error {
		buf = buf[:0]
		for _, e := range events {
			payload, err := proto.Marshal(e)
			if err != nil {
				return err
			}
			buf = wire.AppendFrame(buf, wire.Frame{Type: wire.FrameData, Payload: payload})
		}
		_, err := out.Write(buf)
		return err
	})
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		_, err = out.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameEnd}))
	case !begun:
		return sendHeader(out, nil, err)
	}
	return err
}
