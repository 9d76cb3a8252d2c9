package worker

import (
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func asError(err error) (*cay.Error, bool) {
	var e *cay.Error
	ok := errors.As(err, &e)
	return e, ok
}

func fileInfo(f *guestv1.FileInfo) *nodev1.FileInfo {
	if f == nil {
		return nil
	}
	return &nodev1.FileInfo{
		Path: f.Path, Name: f.Name, Type: f.Type, Size: f.Size, Mode: f.Mode, Uid: f.Uid, Gid: f.Gid, User: f.User,
		ModifiedUnixNs: f.ModifiedUnixNs, Target: f.Target, Etag: wire.ETag(f.Inode, f.Size, f.ModifiedUnixNs),
	}
}

// fileAnswer makes a handler's answer of the agent's.
func fileAnswer(f *guestv1.FileInfo, err error) (*connect.Response[nodev1.FileInfo], error) {
	return answer(fileInfo(f), err)
}

func (s service) Stat(ctx context.Context, r *connect.Request[nodev1.StatRequest]) (*connect.Response[nodev1.FileInfo], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return fileAnswer(session.Stat(ctx, &guestv1.Stat{Path: r.Msg.Path, User: r.Msg.User, Follow: r.Msg.Follow}))
}

func (s service) ListFiles(ctx context.Context, r *connect.Request[nodev1.ListFilesRequest]) (*connect.Response[nodev1.ListFilesResponse], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	files, err := session.ListFiles(ctx, &guestv1.List{
		Path: r.Msg.Path, User: r.Msg.User, Depth: r.Msg.Depth, Limit: r.Msg.Limit, Cursor: r.Msg.Cursor,
	})
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	list := &nodev1.ListFilesResponse{NextCursor: files.NextCursor}
	for _, f := range files.Items {
		list.Items = append(list.Items, fileInfo(f))
	}
	return connect.NewResponse(list), nil
}

func (s service) Mkdir(ctx context.Context, r *connect.Request[nodev1.MkdirRequest]) (*connect.Response[nodev1.FileInfo], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return fileAnswer(session.Mkdir(ctx, &guestv1.Mkdir{Path: r.Msg.Path, User: r.Msg.User, Mode: r.Msg.Mode, Parents: r.Msg.Parents}))
}

func (s service) Move(ctx context.Context, r *connect.Request[nodev1.MoveRequest]) (*connect.Response[nodev1.FileInfo], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return fileAnswer(session.Move(ctx, &guestv1.Move{From: r.Msg.From, To: r.Msg.To, Overwrite: r.Msg.Overwrite, User: r.Msg.User}))
}

func (s service) Chmod(ctx context.Context, r *connect.Request[nodev1.ChmodRequest]) (*connect.Response[nodev1.FileInfo], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return fileAnswer(session.Chmod(ctx, &guestv1.Chmod{
		Path: r.Msg.Path, User: r.Msg.User, Mode: r.Msg.Mode, SetMode: r.Msg.SetMode, Owner: r.Msg.Owner, Recursive: r.Msg.Recursive,
	}))
}

func (s service) Compose(ctx context.Context, r *connect.Request[nodev1.ComposeRequest]) (*connect.Response[nodev1.FileInfo], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return fileAnswer(session.Compose(ctx, &guestv1.Compose{
		Sources: r.Msg.Sources, Path: r.Msg.Path, User: r.Msg.User, Mode: r.Msg.Mode, SetMode: r.Msg.SetMode,
	}))
}

func (s service) Remove(ctx context.Context, r *connect.Request[nodev1.RemoveRequest]) (*connect.Response[nodev1.RemoveResponse], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err == nil {
		err = session.Remove(ctx, &guestv1.Remove{Path: r.Msg.Path, Recursive: r.Msg.Recursive, User: r.Msg.User})
	}
	return answer(&nodev1.RemoveResponse{}, err)
}

func (s service) ReadFile(ctx context.Context, r *connect.Request[nodev1.ReadFileRequest], stream *connect.ServerStream[nodev1.ReadFileResponse]) error {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return noderpc.Encode(err)
	}
	if r.Msg.Offset < 0 {
		return noderpc.Encode(cay.Errorf(cay.InvalidRequest, "the offset is negative").On("offset"))
	}
	f, err := session.ReadFile(ctx, &guestv1.ReadFile{Path: r.Msg.Path, User: r.Msg.User, Offset: r.Msg.Offset, Length: r.Msg.Length})
	if err != nil {
		return noderpc.Encode(err)
	}
	defer f.Close()
	if err := stream.Send(&nodev1.ReadFileResponse{Part: &nodev1.ReadFileResponse_Info{Info: fileInfo(f.Info)}}); err != nil {
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
		if err := stream.Send(&nodev1.ReadFileResponse{Part: &nodev1.ReadFileResponse_Data{Data: data}}); err != nil {
			return err
		}
		session.Touch()
	}
}

func (s service) WriteFile(ctx context.Context, stream *connect.ClientStream[nodev1.WriteFileRequest]) (*connect.Response[nodev1.FileInfo], error) {
	if !stream.Receive() || stream.Msg().GetHeader() == nil {
		return nil, noderpc.Encode(cay.Errorf(cay.InvalidRequest, "the first message is the header").Because(stream.Err()))
	}
	h := stream.Msg().GetHeader()
	session, err := s.w.use(h.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	f, err := session.WriteFile(ctx, &guestv1.WriteFile{
		Path: h.Path, User: h.User, Mode: h.Mode, SetMode: h.SetMode, IfMatch: h.IfMatch, IfNoneMatch: h.IfNoneMatch,
	})
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	defer f.Close()
	for stream.Receive() {
		switch part := stream.Msg().Part.(type) {
		case *nodev1.WriteFileRequest_Commit:
			return fileAnswer(f.Commit())
		case *nodev1.WriteFileRequest_Data:
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
