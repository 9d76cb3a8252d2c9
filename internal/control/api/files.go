package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// file is an entry of a sandbox's file system. A name that is not UTF-8 has U+FFFD in name and path, and path_percent, which goes
// behind ?path= as it is.
type file struct {
	Path        string  `json:"path"`
	PathPercent string  `json:"path_percent,omitzero" doc:"Only where the path is not UTF-8: its percent-encoding, to be put behind ?path= as it is"`
	Name        string  `json:"name"`
	Type        string  `json:"type" enum:"file,directory,symlink,fifo,socket,device"`
	Size        int64   `json:"size"`
	Mode        string  `json:"mode" doc:"Octal" example:"0755"`
	UID         uint32  `json:"uid"`
	GID         uint32  `json:"gid"`
	User        string  `json:"user"`
	ModifiedAt  moment  `json:"modified_at"`
	Target      *string `json:"target" doc:"Of a symlink"`
	ETag        string  `json:"etag,omitzero"`
}

func fileOf(f *nodev1.FileInfo) file {
	name := string(f.GetName())
	full, ok := cay.ParseWirePath(f.GetPath())
	if !ok {
		full = f.GetPath()
	}
	if !utf8.ValidString(name) && utf8.ValidString(full) {
		full = path.Join(path.Dir(full), name) // a node that knows the bytes of the name only
	}
	out := file{
		Name: strings.ToValidUTF8(name, "\uFFFD"), Type: f.GetType(), Size: f.GetSize(),
		Mode: modeText(f.GetMode()), UID: f.GetUid(), GID: f.GetGid(), User: f.GetUser(), ETag: quoted(f.GetEtag()),
	}
	out.Path, out.PathPercent = shown(full)
	if ns := f.GetModifiedUnixNs(); ns != 0 {
		out.ModifiedAt = moment(time.Unix(0, ns))
	}
	if f.GetType() == "symlink" {
		target, _ := cay.ParseWirePath(f.GetTarget())
		target = strings.ToValidUTF8(target, "\uFFFD")
		out.Target = &target
	}
	return out
}

// shown is a path for an answer, and its percent-encoding where it is not UTF-8.
func shown(full string) (text, percent string) {
	if !utf8.ValidString(full) {
		percent = url.QueryEscape(full)
	}
	return strings.ToValidUTF8(full, "\uFFFD"), percent
}

// shownPath is shown of a path as nodes say it.
func shownPath(wire string) (text, percent string) {
	full, ok := cay.ParseWirePath(wire)
	if !ok {
		full = wire
	}
	return shown(full)
}

func modeText(mode uint32) string {
	s := strconv.FormatUint(uint64(mode), 8)
	return strings.Repeat("0", max(0, 4-len(s))) + s
}

// parseMode reads an octal mode of three or four digits.
func parseMode(field, s string) (uint32, error) {
	mode, err := strconv.ParseUint(s, 8, 32)
	if err != nil || len(s) < 3 || len(s) > 4 || mode > 0o7777 {
		return 0, cay.Errorf(cay.InvalidRequest, "`%s` must be an octal mode such as 0755", field).On(field)
	}
	return uint32(mode), nil
}

func quoted(etag string) string {
	if etag == "" || strings.HasSuffix(etag, `"`) {
		return etag
	}
	return `"` + etag + `"`
}

// maxPath is PATH_MAX of Linux.
const maxPath = 4096

// guestPath checks a path and writes it as nodes take it.
func guestPath(field, p string) (string, error) {
	switch {
	case !strings.HasPrefix(p, "/"):
		return "", cay.Errorf(cay.InvalidRequest, "`%s` must be an absolute path", field).On(field)
	case strings.IndexByte(p, 0) >= 0:
		return "", cay.Errorf(cay.InvalidRequest, "`%s` holds a NUL byte", field).On(field)
	case len(p) >= maxPath:
		return "", cay.Errorf(cay.InvalidRequest, "`%s` may have at most %d bytes", field, maxPath-1).On(field)
	}
	return cay.WirePath(p), nil
}

// FileUser is whose access and ownership count.
type FileUser struct {
	User string `query:"user" doc:"Whose access and ownership count; default the sandbox's user"`
}

func (u FileUser) user() (string, error) {
	if !utf8.ValidString(u.User) || strings.IndexByte(u.User, 0) >= 0 {
		return "", cay.Errorf(cay.InvalidRequest, "`user` must be a name or uid[:gid]").On("user")
	}
	return u.User, nil
}

// FilePath is the file of a request.
type FilePath struct {
	SandboxPath
	FileUser
	Path string `query:"path" required:"true" doc:"Absolute; bytes that are not UTF-8 are percent-encoded like any other"`
}

// place is a file that a call may use.
type place struct {
	sandbox cay.ID
	node    nodev1connect.NodeServiceClient
	path    string // as nodes take it
	user    string
}

func (a *API) place(ctx context.Context, in FilePath) (place, error) {
	p, err := guestPath("path", in.Path)
	if err != nil {
		return place{}, err
	}
	user, err := in.user()
	if err != nil {
		return place{}, err
	}
	sb, node, err := a.enter(ctx, in.SandboxPath)
	if err != nil {
		return place{}, err
	}
	return place{sandbox: sb.ID, node: node, path: p, user: user}, nil
}

func (p place) stat(ctx context.Context, follow bool) (*nodev1.FileInfo, error) {
	res, err := p.node.Stat(ctx, connect.NewRequest(&nodev1.StatRequest{SandboxId: string(p.sandbox), Path: p.path, User: p.user, Follow: follow}))
	if err != nil {
		return nil, decode(err)
	}
	return res.Msg, nil
}

type writeFileInput struct {
	FilePath
	FileWrite
}

// FileWrite says how a file is written.
type FileWrite struct {
	Mode        string `query:"mode" doc:"Octal; default: that of the file it replaces, else 0644" example:"0755"`
	IfMatch     string `header:"If-Match" doc:"Only over this version of the file"`
	IfNoneMatch string `header:"If-None-Match" enum:"*" doc:"Only if nothing is there"`
}

// filePiece is how much of a file travels in one message.
const filePiece = 64 << 10

// writeFile streams the body to the node, which makes it visible as a whole once it is there as a whole.
func (a *API) writeFile(w http.ResponseWriter, r *http.Request, in *writeFileInput) error {
	header, err := in.header()
	if err != nil {
		return err
	}
	p, err := a.place(r.Context(), in.FilePath)
	if err != nil {
		return err
	}
	return a.receiveFile(w, r, p, header, plainly)
}

func (in FileWrite) header() (*nodev1.WriteFileHeader, error) {
	header := &nodev1.WriteFileHeader{IfMatch: in.IfMatch, IfNoneMatch: in.IfNoneMatch == "*"}
	if in.Mode != "" {
		mode, err := parseMode("mode", in.Mode)
		if err != nil {
			return nil, err
		}
		header.Mode, header.SetMode = mode, true
	}
	if !utf8.ValidString(in.IfMatch) {
		return nil, cay.Errorf(cay.InvalidRequest, "`If-Match` must be an ETag").On("If-Match")
	}
	return header, nil
}

// receiveFile writes the body to its place, and answers the file in the names that spell gives it.
func (a *API) receiveFile(w http.ResponseWriter, r *http.Request, p place, header *nodev1.WriteFileHeader, spell func(file) any) error {
	header.SandboxId, header.Path, header.User = string(p.sandbox), p.path, p.user
	ctx, cancel := a.served(r.Context())
	defer cancel()
	stream := p.node.WriteFile(ctx)
	info, err := upload(stream, fileHeaderPart(header), fileData, &nodev1.WriteFileRequest{Part: &nodev1.WriteFileRequest_Commit{Commit: true}}, r.Body)
	if err != nil {
		cancel() // before the stream is closed: what has no commit is not written
		_, _ = stream.CloseAndReceive()
		return err
	}
	out := fileOf(info)
	if out.ETag != "" {
		w.Header().Set("ETag", out.ETag)
	}
	return writeJSON(w, spell(out))
}

func fileHeaderPart(h *nodev1.WriteFileHeader) *nodev1.WriteFileRequest {
	return &nodev1.WriteFileRequest{Part: &nodev1.WriteFileRequest_Header{Header: h}}
}

func fileData(b []byte) *nodev1.WriteFileRequest {
	return &nodev1.WriteFileRequest{Part: &nodev1.WriteFileRequest_Data{Data: b}}
}

// upload sends header, body and commit. The node's answer may come before all of it is sent.
func upload[Req, Res any](stream *connect.ClientStreamForClient[Req, Res], header *Req, data func([]byte) *Req, commit *Req, body io.Reader) (*Res, error) {
	// Send answers io.EOF once the node has made up its mind; what it decided is the stream's answer.
	sent := stream.Send(header)
	buf := make([]byte, filePiece)
	for sent == nil {
		n, err := fill(body, buf)
		if n > 0 {
			sent = stream.Send(data(buf[:n]))
		}
		if err != nil && !errors.Is(err, io.EOF) {
			if tooMuch := new(http.MaxBytesError); errors.As(err, &tooMuch) {
				return nil, tooLarge(tooMuch.Limit)
			}
			return nil, cay.Errorf(cay.InvalidRequest, "the body ended early; nothing was written").Because(err)
		}
		if err != nil && sent == nil {
			sent = stream.Send(commit)
			break
		}
	}
	if sent != nil && !errors.Is(sent, io.EOF) {
		return nil, decode(sent)
	}
	res, err := stream.CloseAndReceive()
	if err != nil {
		return nil, decode(err)
	}
	return res.Msg, nil
}

// fill reads until buf is full or r has an error, which it returns as it is: only io.EOF means that a body is whole. (io.ReadFull
// would make the same error of a short last piece and of a body that was cut.)
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	return n, err
}

type deleteFileInput struct {
	FilePath
	Recursive bool `query:"recursive" doc:"A directory with all that is in it"`
}

func (a *API) deleteFile(ctx context.Context, in *deleteFileInput) (*noContent, error) {
	p, err := a.place(ctx, in.FilePath)
	if err != nil {
		return nil, err
	}
	return p.remove(ctx, in.Recursive)
}

func (p place) remove(ctx context.Context, recursive bool) (*noContent, error) {
	_, err := p.node.Remove(ctx, connect.NewRequest(&nodev1.RemoveRequest{
		SandboxId: string(p.sandbox), Path: p.path, User: p.user, Recursive: recursive,
	}))
	if err != nil {
		return nil, decode(err)
	}
	return &noContent{Status: http.StatusNoContent}, nil
}

type listFilesInput struct {
	FilePath
	DirectoryQuery
}

// DirectoryQuery is how a directory is listed.
type DirectoryQuery struct {
	Depth  uint32 `query:"depth" default:"1" minimum:"1" maximum:"64" doc:"1: the directory's own entries"`
	Limit  uint32 `query:"limit" default:"200" minimum:"1" maximum:"200"`
	Cursor string `query:"cursor" doc:"next_cursor of the page before"`
}

type listFilesOutput struct {
	Body page[file]
}

func (a *API) listFiles(ctx context.Context, in *listFilesInput) (*listFilesOutput, error) {
	if err := checkCursor(in.Cursor); err != nil {
		return nil, err
	}
	p, err := a.place(ctx, in.FilePath)
	if err != nil {
		return nil, err
	}
	return p.list(ctx, in.DirectoryQuery)
}

func (p place) list(ctx context.Context, q DirectoryQuery) (*listFilesOutput, error) {
	res, err := p.node.ListFiles(ctx, connect.NewRequest(&nodev1.ListFilesRequest{
		SandboxId: string(p.sandbox), Path: p.path, User: p.user, Depth: q.Depth, Limit: q.Limit, Cursor: q.Cursor,
	}))
	if err != nil {
		return nil, decode(err)
	}
	items := make([]file, len(res.Msg.GetItems()))
	for i, f := range res.Msg.GetItems() {
		items[i] = fileOf(f)
	}
	return &listFilesOutput{Body: pageOf(items, res.Msg.GetNextCursor())}, nil
}

type fileOutput struct {
	Status int
	Body   file
}

type statFileInput struct {
	FilePath
	Follow bool `query:"follow" doc:"What a symlink points to, rather than the symlink"`
}

func (a *API) statFile(ctx context.Context, in *statFileInput) (*fileOutput, error) {
	p, err := a.place(ctx, in.FilePath)
	if err != nil {
		return nil, err
	}
	info, err := p.stat(ctx, in.Follow)
	if err != nil {
		return nil, err
	}
	return &fileOutput{Status: http.StatusOK, Body: fileOf(info)}, nil
}

type mkdirRequest struct {
	Path    string  `json:"path"`
	Mode    *string `json:"mode,omitzero" doc:"Octal; default 0755" example:"0755"`
	Parents bool    `json:"parents,omitzero" doc:"Make what is missing above it; one that exists is no error then"`
	User    string  `json:"user,omitzero"`
}

const defaultDirMode = 0o755

type mkdirInput struct {
	Idempotent
	SandboxPath
	FileUser
	Payload payload[mkdirRequest]
}

func (a *API) makeDirectory(ctx context.Context, in *mkdirInput) (*fileOutput, error) {
	body := in.Payload.value
	mode := uint32(defaultDirMode)
	if body.Mode != nil {
		var err error
		if mode, err = parseMode("mode", *body.Mode); err != nil {
			return nil, err
		}
	}
	p, err := a.bodyPlace(ctx, in.SandboxPath, in.FileUser, "path", body.Path, body.User)
	if err != nil {
		return nil, err
	}
	return a.changeOnce(ctx, p, "mkdir", in.IdempotencyKey, in.Payload.sum, http.StatusCreated, func() (*connect.Response[nodev1.FileInfo], error) {
		return p.node.Mkdir(ctx, connect.NewRequest(&nodev1.MkdirRequest{
			SandboxId: string(p.sandbox), Path: p.path, User: p.user, Mode: mode, Parents: body.Parents,
		}))
	})
}

type moveRequest struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Overwrite bool   `json:"overwrite,omitzero" doc:"Replace what is there; otherwise that is 409 already_exists"`
	User      string `json:"user,omitzero"`
}

type moveInput struct {
	Idempotent
	SandboxPath
	FileUser
	Payload payload[moveRequest]
}

func (a *API) moveFile(ctx context.Context, in *moveInput) (*fileOutput, error) {
	body := in.Payload.value
	from, err := guestPath("from", body.From)
	if err != nil {
		return nil, err
	}
	p, err := a.bodyPlace(ctx, in.SandboxPath, in.FileUser, "to", body.To, body.User)
	if err != nil {
		return nil, err
	}
	return a.changeOnce(ctx, p, "move", in.IdempotencyKey, in.Payload.sum, http.StatusOK, func() (*connect.Response[nodev1.FileInfo], error) {
		return p.node.Move(ctx, connect.NewRequest(&nodev1.MoveRequest{
			SandboxId: string(p.sandbox), From: from, To: p.path, Overwrite: body.Overwrite, User: p.user,
		}))
	})
}

// bodyPlace is the place of a request that names its path, and may name its user, in the body.
func (a *API) bodyPlace(ctx context.Context, box SandboxPath, query FileUser, field, name, user string) (place, error) {
	if _, err := guestPath(field, name); err != nil {
		return place{}, err
	}
	if user != "" && query.User != "" {
		return place{}, cay.Errorf(cay.InvalidRequest, "give `user` in the query or in the body").On("user")
	}
	if user != "" {
		query.User = user
	}
	return a.place(ctx, FilePath{SandboxPath: box, FileUser: query, Path: name})
}

// changeOnce makes one change to a file, once for each idempotency key; a repeated request is answered by the file as it is now.
func (a *API) changeOnce(ctx context.Context, p place, verb, key string, sum [32]byte, status int, do func() (*connect.Response[nodev1.FileInfo], error)) (*fileOutput, error) {
	once := a.once(exchangeOf(ctx).identity.ProjectID, "POST /v1/sandboxes/"+string(p.sandbox)+"/files/"+verb, key, sum)
	rec, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	if !fresh {
		info, err := p.stat(ctx, false)
		if err != nil {
			return nil, err
		}
		return &fileOutput{Status: rec.Status, Body: fileOf(info)}, nil
	}
	res, err := do()
	if err != nil {
		err = decode(err)
		once.failed(ctx, err)
		return nil, err
	}
	return &fileOutput{Status: status, Body: fileOf(res.Msg)}, once.finish(ctx, status, p.path)
}
