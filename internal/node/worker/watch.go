package worker

import (
	"context"
	"io"

	"connectrpc.com/connect"

	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// WatchFiles ends well when what is watched is gone. Its events are no activity of the sandbox.
func (s service) WatchFiles(ctx context.Context, r *connect.Request[nodev1.WatchFilesRequest], stream *connect.ServerStream[nodev1.WatchEvent]) error {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return noderpc.Encode(err)
	}
	watch, err := session.WatchFiles(ctx, &guestv1.Watch{Path: r.Msg.Path, User: r.Msg.User, Recursive: r.Msg.Recursive})
	if err != nil {
		return noderpc.Encode(err)
	}
	defer watch.Close()
	if err := stream.Send(&nodev1.WatchEvent{Type: "ready", Path: r.Msg.Path}); err != nil {
		return err
	}
	for {
		e, err := watch.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			if _, ended := s.w.use(r.Msg.SandboxId); ended != nil && ctx.Err() == nil {
				err = ended // the better reason
			}
			return noderpc.Encode(err)
		}
		if err := stream.Send(&nodev1.WatchEvent{Type: e.Type, Path: e.Path, To: e.To}); err != nil {
			return err
		}
	}
}
