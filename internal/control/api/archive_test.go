package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// cutPath is an archive that breaks after its first data; failPath one that breaks before.
const (
	cutPath  = "/cut"
	failPath = "/fail"
)

func (n *fakeNode) ReadArchive(_ context.Context, r *connect.Request[nodev1.ReadArchiveRequest], s *connect.ServerStream[nodev1.ReadArchiveResponse]) error {
	if r.Msg.GetPath() == "/missing" {
		return noderpc.Encode(cay.Errorf(cay.NotFound, "there is nothing"))
	}
	if err := s.Send(&nodev1.ReadArchiveResponse{}); err != nil {
		return err
	}
	if r.Msg.GetPath() == failPath {
		return noderpc.Encode(cay.Errorf(cay.Conflict, "it changed"))
	}
	if err := s.Send(&nodev1.ReadArchiveResponse{Data: []byte("archive of " + r.Msg.GetPath() + " as " + r.Msg.GetFormat())}); err != nil {
		return err
	}
	if r.Msg.GetPath() == cutPath {
		return noderpc.Encode(cay.Errorf(cay.Conflict, "it changed"))
	}
	return nil
}

func (n *fakeNode) WriteArchive(_ context.Context, s *connect.ClientStream[nodev1.WriteArchiveRequest]) (*connect.Response[nodev1.WriteArchiveResponse], error) {
	var data bytes.Buffer
	for s.Receive() {
		switch p := s.Msg().GetPart().(type) {
		case *nodev1.WriteArchiveRequest_Data:
			data.Write(p.Data)
			if bytes.HasPrefix(data.Bytes(), []byte("evil")) {
				return nil, noderpc.Encode(cay.Errorf(cay.Unprocessable, "the entry leaves").On("body"))
			}
		case *nodev1.WriteArchiveRequest_Commit:
			return connect.NewResponse(&nodev1.WriteArchiveResponse{Files: 1, Bytes: int64(data.Len())}), nil
		}
	}
	return nil, errors.Join(s.Err(), errors.New("no commit"))
}

func TestAnArchiveIsDownloadedInTheFormatThatWasAskedFor(t *testing.T) {
	r := newRig(t)
	box := r.box()
	for query, want := range map[string][3]string{
		"":                {"application/gzip", "dir.tar.gz", "archive of /w/dir as tar.gz"},
		"&format=tar":     {"application/x-tar", "dir.tar", "archive of /w/dir as tar"},
		"&format=tar.zst": {"application/zstd", "dir.tar.zst", "archive of /w/dir as tar.zst"},
	} {
		a := r.status(r.do("GET", box+"/archive?path=/w/dir"+query, ""), 200)
		if a.Header.Get("Content-Type") != want[0] || a.Header.Get("Content-Disposition") != "attachment; filename="+want[1] || string(a.body) != want[2] {
			t.Errorf("%q: %v %q", query, a.Header, a.body)
		}
	}
}

func TestAnArchiveThatBreaksIsAProblemOrACutConnectionNeverASuccess(t *testing.T) {
	r := newRig(t)
	box := r.box()
	r.refused(r.do("GET", box+"/archive?path=/missing", ""), cay.NotFound)
	r.refused(r.do("GET", box+"/archive?path="+failPath, ""), cay.Conflict)
	req, err := http.NewRequestWithContext(t.Context(), "GET", r.srv.URL+box+"/archive?path="+cutPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminKey)
	res, err := r.srv.Client().Do(req)
	if err != nil {
		return // cut before the status could leave
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("a cut archive ended like a whole one: %d %q", res.StatusCode, body)
	}
}

func TestAnArchiveIsUploadedOrRefused(t *testing.T) {
	r := newRig(t)
	box := r.box()
	if a := r.status(r.do("PUT", box+"/archive?path=/w", "data"), 200); a.member(t, "bytes") != 4.0 || a.member(t, "files") != 1.0 {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("PUT", box+"/archive?path=/w", "evil"+strings.Repeat("x", 1<<20)), cay.Unprocessable)
	r.refused(r.do("PUT", box+"/archive?path=/w&format=zip", "data"), cay.InvalidRequest)
	r.refused(r.do("PUT", box+"/archive?path=w", "data"), cay.InvalidRequest)
}
