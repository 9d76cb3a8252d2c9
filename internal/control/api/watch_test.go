package api

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func (n *fakeNode) SearchFiles(_ context.Context, r *connect.Request[nodev1.SearchFilesRequest]) (*connect.Response[nodev1.SearchFilesResponse], error) {
	if r.Msg.GetPattern() == "[" {
		return nil, noderpc.Encode(cay.Errorf(cay.Unprocessable, "a bracket is not closed").On("pattern"))
	}
	return connect.NewResponse(&nodev1.SearchFilesResponse{
		Items: []*nodev1.SearchFilesResponse_Match{{
			File:  &nodev1.FileInfo{Path: r.Msg.GetPath() + "/a", Name: []byte("a"), Type: "file", Size: int64(r.Msg.GetLimit())},
			Lines: []*nodev1.SearchFilesResponse_Line{{Number: 3, Text: r.Msg.GetContains()}},
		}},
		NextCursor: "next", Truncated: true,
	}), nil
}

func (n *fakeNode) Chmod(_ context.Context, r *connect.Request[nodev1.ChmodRequest]) (*connect.Response[nodev1.FileInfo], error) {
	return connect.NewResponse(&nodev1.FileInfo{Path: r.Msg.GetPath(), Name: []byte("a"), Type: "file", Mode: r.Msg.GetMode(), User: r.Msg.GetOwner()}), nil
}

func (n *fakeNode) Compose(_ context.Context, r *connect.Request[nodev1.ComposeRequest]) (*connect.Response[nodev1.FileInfo], error) {
	return connect.NewResponse(&nodev1.FileInfo{Path: r.Msg.GetPath(), Name: []byte("a"), Type: "file", Size: int64(len(r.Msg.GetSources()))}), nil
}

// WatchFiles tells three changes; of /gone it ends then, of /fails with an error, else it waits.
func (n *fakeNode) WatchFiles(ctx context.Context, r *connect.Request[nodev1.WatchFilesRequest], s *connect.ServerStream[nodev1.WatchEvent]) error {
	if r.Msg.GetPath() == "/missing" {
		return noderpc.Encode(cay.Errorf(cay.NotFound, "there is nothing"))
	}
	for _, e := range []*nodev1.WatchEvent{
		{Type: "ready"}, {Type: "create", Path: cay.WirePath("/w/caf\xe9")}, {Type: "rename", Path: "/w/a", To: "/w/b"}, {Type: "overflow"},
	} {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	switch r.Msg.GetPath() {
	case "/gone":
		return nil
	case "/fails":
		return noderpc.Encode(cay.Errorf(cay.Gone, "the sandbox has ended"))
	}
	<-ctx.Done()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.files["/watch-released"] = nil
	return ctx.Err()
}

func TestASearchAnswersWhatTheNodeFound(t *testing.T) {
	r := newRig(t)
	box := r.box()
	a := r.status(r.do("GET", box+"/files/search?path=/w&contains=x%2By&limit=7", ""), 200)
	item := a.member(t, "items").([]any)[0].(map[string]any)
	line := item["lines"].([]any)[0].(map[string]any)
	if item["path"] != "/w/a" || item["size"] != 7.0 || line["number"] != 3.0 || line["text"] != "x+y" || a.member(t, "truncated") != true || a.member(t, "next_cursor") != "next" {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("GET", box+"/files/search?path=/w&pattern=%5B", ""), cay.Unprocessable)
	for _, query := range []string{"path=w", "path=/w&limit=0", "path=/w&limit=1001", "path=/w&pattern=%ff", "path=/w&cursor=%20", "path=/w&other=1"} {
		r.refused(r.do("GET", box+"/files/search?"+query, ""), cay.InvalidRequest)
	}
}

func TestModesAndPartsAreCheckedBeforeTheNodeIsAsked(t *testing.T) {
	r := newRig(t)
	box := r.box()
	a := r.status(r.do("POST", box+"/files/chmod", `{"path":"/a","mode":"0640","user":"root"}`), 200)
	if a.member(t, "mode") != "0640" || a.member(t, "user") != "root" {
		t.Errorf("got %s", a.body)
	}
	if a := r.status(r.do("POST", box+"/files/compose", `{"sources":["/a","/b"],"path":"/c"}`), 200); a.member(t, "size") != 2.0 {
		t.Errorf("got %s", a.body)
	}
	many := `["/a"` + strings.Repeat(`,"/a"`, 1000) + `]`
	for route, bodies := range map[string][]string{
		"chmod":   {`{"path":"/a"}`, `{"path":"a","mode":"0644"}`, `{"path":"/a","mode":"rwx"}`, `{"path":"/a","user":""}`, `{"mode":"0644"}`, `{"path":"/a","mode":"0644","x":1}`},
		"compose": {`{"path":"/c"}`, `{"sources":[],"path":"/c"}`, `{"sources":["a"],"path":"/c"}`, `{"sources":["/a"],"path":"c"}`, `{"sources":["/a"]}`, `{"sources":["/a"],"path":"/c","mode":"8"}`, `{"sources":` + many + `,"path":"/c"}`},
	} {
		for _, body := range bodies {
			r.refused(r.do("POST", box+"/files/"+route, body), cay.InvalidRequest)
		}
	}
}

func TestAWatchTellsChangesUntilThePathIsGone(t *testing.T) {
	r := newRig(t)
	box := r.box()
	const told = "event: ready\ndata: {\"path\":\"%s\"}\n\n" +
		"event: change\ndata: {\"type\":\"create\",\"path\":\"/w/caf\uFFFD\",\"path_percent\":\"%2Fw%2Fcaf%E9\"}\n\n" +
		"event: change\ndata: {\"type\":\"rename\",\"path\":\"/w/a\",\"to\":\"/w/b\"}\n\n" +
		"event: overflow\ndata: {}\n\n"
	a := r.status(r.do("GET", box+"/files/watch?path=/gone", ""), 200)
	if want := strings.Replace(told, "%s", "/gone", 1); string(a.body) != want {
		t.Errorf("got %s\nwant %s", a.body, want)
	}
	if a := r.status(r.do("GET", box+"/files/watch?path=/fails", ""), 200); !strings.HasSuffix(string(a.body), "event: error\ndata: {\"reason\":\"gone\",\"detail\":\"the sandbox has ended\"}\n\n") {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("GET", box+"/files/watch?path=/missing", ""), cay.NotFound)
}

func TestAClientThatLeavesEndsItsWatch(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", r.srv.URL+r.box()+"/files/watch?path=/w", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminKey)
	res, err := r.srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan() && lines.Text() != "event: overflow"; {
	}
	cancel()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		r.node.mu.Lock()
		_, released := r.node.files["/watch-released"]
		r.node.mu.Unlock()
		if released {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the node's watch goes on")
		}
	}
}
