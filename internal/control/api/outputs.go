package api

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/control/filetype"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

const (
	outputFolder = "/output/"
	// maxInline bounds the outputs that one answer carries, in bytes before base64.
	maxInline = 20 << 20
	// outputURLPeriod is how long the URL of a larger one is good.
	outputURLPeriod = time.Hour
)

// output is a file that a program left in the folder for it. It describes what is written by hand.
type output struct {
	Path        string  `json:"path"`
	PathPercent string  `json:"path_percent,omitzero" doc:"The path percent-encoded, when it is no UTF-8"`
	MIME        string  `json:"mime" doc:"By the name, else by the beginning of the file"`
	Size        int64   `json:"size"`
	DataBase64  *[]byte `json:"data_base64,omitzero" doc:"The file, until 20 MiB have been answered in all"`
	URL         *string `json:"url,omitzero" doc:"Where to download it, for an hour, when it is not here; for keys with the scope files"`
}

// outputs writes what the program created or wrote below /output, in order. A file that is gone, or that cannot be read by whom the
// program ran as, is left out.
func (p *programOutcome) outputs(ctx context.Context, m *streams.Members, r *nodev1.CodeReport) error {
	left := int64(maxInline)
	for _, f := range r.GetFilesChanged() {
		name, ok := cay.ParseWirePath(f.GetPath())
		if !ok || !strings.HasPrefix(name, outputFolder) || f.GetOp() == "remove" {
			continue
		}
		if f.GetSize() > left {
			p.link(ctx, m, name, r.GetUser(), f.GetSize())
			continue
		}
		n, err := p.inline(ctx, m, name, r.GetUser(), left)
		if err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// inline writes a file of at most limit bytes while it is read, or a link to a larger one.
func (p *programOutcome) inline(ctx context.Context, m *streams.Members, name, user string, limit int64) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.node.ReadFile(ctx, connect.NewRequest(&nodev1.ReadFileRequest{
		SandboxId: string(p.sandbox.ID), Path: cay.WirePath(name), User: user, Length: limit + 1,
	}))
	if err != nil {
		return 0, unreadable(ctx, decode(err))
	}
	defer stream.Close()
	if !stream.Receive() {
		return 0, unreadable(ctx, decode(stream.Err()))
	}
	info := stream.Msg().GetInfo()
	size := info.GetSize()
	if info == nil || info.GetType() != "file" {
		return 0, nil
	}
	if size > limit {
		p.link(ctx, m, name, user, size)
		return 0, nil
	}
	var piece []byte
	if stream.Receive() {
		piece = stream.Msg().GetData()
	}
	if err := stream.Err(); err != nil {
		return 0, unreadable(ctx, decode(err))
	}
	m.Next()
	m.Open("{")
	describeOutput(m, name, piece)
	m.Name("data_base64")
	written := int64(0)
	m.Base64(func(w io.Writer) error {
		for {
			piece = piece[:min(int64(len(piece)), size-written)] // one that grows meanwhile is answered as it was
			n, err := w.Write(piece)
			written += int64(n)
			if err != nil || written == size || !stream.Receive() {
				break
			}
			piece = stream.Msg().GetData()
		}
		if written < size && stream.Err() != nil {
			return decode(stream.Err())
		}
		return nil
	})
	m.Member("size", written)
	m.Shut("}")
	return written, nil
}

// unreadable is nil for a file that the program's user cannot read, and the fault of everything else.
func unreadable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch cay.ReasonOf(err) {
	case "", cay.NotFound, cay.Forbidden, cay.Unprocessable, cay.Conflict:
		return nil
	}
	return err
}

// link writes where a file can be had that is too large to be answered.
func (p *programOutcome) link(ctx context.Context, m *streams.Members, name, user string, size int64) {
	m.Next()
	m.Open("{")
	describeOutput(m, name, nil)
	m.Member("size", size)
	link, err := p.a.signURL(ctx, cay.SignedURL{
		Method: http.MethodGet, Of: p.sandbox.ID, Path: name, User: user, ExpiresAt: signedUntil(outputURLPeriod),
	})
	if err == nil { // else the key may not read files
		m.Member("url", link)
	}
	m.Shut("}")
}

func describeOutput(m *streams.Members, name string, beginning []byte) {
	shown, percent := shownPath(cay.WirePath(name))
	m.Member("path", shown)
	if percent != "" {
		m.Member("path_percent", percent)
	}
	m.Member("mime", filetype.Of(name, beginning))
}
