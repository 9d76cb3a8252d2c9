package worker

import (
	"context"
	"io"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func (s service) ReadArchive(ctx context.Context, r *connect.Request[nodev1.ReadArchiveRequest], stream *connect.ServerStream[nodev1.ReadArchiveResponse]) error {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return noderpc.Encode(err)
	}
	f, err := session.ReadArchive(ctx, &guestv1.ReadArchive{Path: r.Msg.Path, User: r.Msg.User, Format: r.Msg.Format})
	if err != nil {
		return noderpc.Encode(err)
	}
	defer f.Close()
	if err := stream.Send(&nodev1.ReadArchiveResponse{}); err != nil {
		return err
	}
	for {
		data, err := f.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return noderpc.Encode(err)
		}
		if err := stream.Send(&nodev1.ReadArchiveResponse{Data: data}); err != nil {
			return err
		}
		session.Touch()
	}
}

func (s service) WriteArchive(ctx context.Context, stream *connect.ClientStream[nodev1.WriteArchiveRequest]) (*connect.Response[nodev1.WriteArchiveResponse], error) {
	if !stream.Receive() || stream.Msg().GetHeader() == nil {
		return nil, noderpc.Encode(cay.Errorf(cay.InvalidRequest, "the first message is the header").Because(stream.Err()))
	}
	h := stream.Msg().GetHeader()
	session, err := s.w.use(h.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	f, err := session.WriteArchive(ctx, &guestv1.WriteArchive{Path: h.Path, User: h.User, Format: h.Format})
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	defer f.Close()
	for stream.Receive() {
		switch part := stream.Msg().Part.(type) {
		case *nodev1.WriteArchiveRequest_Commit:
			info, err := f.Commit()
			if err != nil {
				return nil, noderpc.Encode(err)
			}
			session.Touch()
			return connect.NewResponse(&nodev1.WriteArchiveResponse{
				Files: info.Files, Directories: info.Directories, Bytes: info.Bytes, Skipped: info.Skipped,
			}), nil
		case *nodev1.WriteArchiveRequest_Data:
			for data := part.Data; len(data) > 0; {
				n := min(len(data), router.MaxData)
				if err := f.Write(data[:n]); err != nil {
					return nil, noderpc.Encode(err)
				}
				data = data[n:]
			}
			session.Touch()
		default:
			return nil, noderpc.Encode(cay.Errorf(cay.InvalidRequest, "a second header"))
		}
	}
	return nil, noderpc.Encode(cay.Errorf(cay.InvalidRequest, "the transfer ended early; nothing was written").Because(stream.Err()))
}
