package api

import (
	"context"
	"net/http"
	"reflect"
	"strings"

	"connectrpc.com/connect"

	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

type watchFilesInput struct {
	FilePath
	Recursive bool `query:"recursive" doc:"All that is below as well"`
}

// watchReady, fileChange and watchOverflow are the events of a watch.
type (
	watchReady struct {
		Path string `json:"path"`
	}
	fileChange struct {
		Type        string `json:"type" enum:"create,write,remove,rename,chmod"`
		Path        string `json:"path"`
		PathPercent string `json:"path_percent,omitzero" doc:"Only where the path is not UTF-8, as of a file"`
		To          string `json:"to,omitzero" doc:"Of a rename: what it is called now"`
		ToPercent   string `json:"to_percent,omitzero"`
	}
	watchOverflow struct{}
)

// watchEvents are those of a watch.
var watchEvents = []eventDoc{
	{"ready", reflect.TypeFor[watchReady](), ""},
	{"change", reflect.TypeFor[fileChange](), ""},
	{"overflow", reflect.TypeFor[watchOverflow](), ""},
	{"error", reflect.TypeFor[streams.Failure](), ""},
}

// watchFiles tells what changes below a path as server-sent events, until the path is gone or the client is. It counts as activity
// when it begins, and not after that.
func (a *API) watchFiles(w http.ResponseWriter, r *http.Request, in *watchFilesInput) error {
	if err := noHead(r); err != nil {
		return err
	}
	p, err := a.place(r.Context(), in.FilePath)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	defer context.AfterFunc(r.Context(), cancel)()
	stream, err := p.node.WatchFiles(ctx, connect.NewRequest(&nodev1.WatchFilesRequest{
		SandboxId: string(p.sandbox), Path: p.path, User: p.user, Recursive: in.Recursive,
	}))
	if err != nil {
		return decode(err)
	}
	defer func() {
		cancel()
		_ = stream.Close()
	}()
	if !stream.Receive() { // the first message says that changes are seen
		if err := decode(stream.Err()); err != nil {
			return err
		}
		return errBroken()
	}
	first := feedBatch{events: []feedEvent{{"ready", "", watchReady{strings.ToValidUTF8(in.Path, "\uFFFD")}}}}
	return a.sendFeed(w, r, first, func(reading context.Context) feedBatch {
		defer context.AfterFunc(reading, cancel)()
		if !stream.Receive() {
			if err := decode(stream.Err()); err != nil {
				return feedBatch{err: err}
			}
			return feedBatch{end: true}
		}
		return feedBatch{events: []feedEvent{changeOf(stream.Msg())}}
	})
}

func changeOf(e *nodev1.WatchEvent) feedEvent {
	if e.GetType() == "overflow" {
		return feedEvent{"overflow", "", watchOverflow{}}
	}
	c := fileChange{Type: e.GetType()}
	c.Path, c.PathPercent = shownPath(e.GetPath())
	if e.GetTo() != "" {
		c.To, c.ToPercent = shownPath(e.GetTo())
	}
	return feedEvent{"change", "", c}
}
