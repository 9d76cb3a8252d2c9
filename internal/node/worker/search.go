package worker

import (
	"context"

	"connectrpc.com/connect"

	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func (s service) SearchFiles(ctx context.Context, r *connect.Request[nodev1.SearchFilesRequest]) (*connect.Response[nodev1.SearchFilesResponse], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	found, err := session.SearchFiles(ctx, &guestv1.Search{
		Path: r.Msg.Path, User: r.Msg.User, Pattern: r.Msg.Pattern, Contains: r.Msg.Contains, Limit: r.Msg.Limit, Cursor: r.Msg.Cursor,
	})
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	out := &nodev1.SearchFilesResponse{NextCursor: found.NextCursor, Truncated: found.Truncated}
	for _, m := range found.Items {
		match := &nodev1.SearchFilesResponse_Match{File: fileInfo(m.File)}
		for _, l := range m.Lines {
			match.Lines = append(match.Lines, &nodev1.SearchFilesResponse_Line{Number: l.Number, Text: l.Text})
		}
		out.Items = append(out.Items, match)
	}
	return connect.NewResponse(out), nil
}
