package agent

import (
	"io"

	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"google.golang.org/protobuf/proto"
)

// sendReport carries a report to the node: header, data, end. One that is forgotten meanwhile ends without an end.
func (a *Agent) sendReport(conn io.Writer, id string) error {
	report, err := a.processes.Report(id)
	if err != nil {
		return sendHeader(conn, nil, err)
	}
	header, err := proto.Marshal(&guestv1.BulkHeader{Done: &guestv1.Done{}})
	if err != nil {
		return err
	}
	if _, err := conn.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameHeader, Payload: header})); err != nil {
		return err
	}
	buf := make([]byte, wire.MaxFrame)
	for {
		n, err := io.ReadFull(report, buf)
		if n > 0 {
			if _, err := conn.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameData, Payload: buf[:n]})); err != nil {
				return err
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			_, err := conn.Write(wire.AppendFrame(nil, wire.Frame{Type: wire.FrameEnd}))
			return err
		default:
			return err
		}
	}
}
