package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

type processStream = connect.BidiStream[nodev1.ProcessInput, nodev1.ProcessOutput]

// fakeNode is a node service whose processes are a function, and whose files are a map.
type fakeNode struct {
	nodev1connect.UnimplementedNodeServiceHandler
	process func(ctx context.Context, first *nodev1.ProcessInput, s *processStream) error

	mu       sync.Mutex
	observed observedNode
	signals  []*nodev1.SignalRequest
	procs    []*nodev1.ProcessInfo
	files    map[string][]byte
	modes    map[string]uint32

	contexts []*nodev1.Context
	cutFiles bool // a read breaks off after its first piece
	output   func(*nodev1.ReadOutputRequest) (*nodev1.ReadOutputResponse, error)
}

func (n *fakeNode) Process(ctx context.Context, s *processStream) error {
	first, err := s.Receive()
	if err != nil {
		return err
	}
	return noderpc.Encode(n.process(ctx, first, s))
}

func (n *fakeNode) Signal(_ context.Context, r *connect.Request[nodev1.SignalRequest]) (*connect.Response[nodev1.SignalResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.signals = append(n.signals, r.Msg)
	return connect.NewResponse(&nodev1.SignalResponse{}), nil
}

func (n *fakeNode) sentSignals() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var names []string
	for _, s := range n.signals {
		names = append(names, s.GetSignal())
	}
	return names
}

func (n *fakeNode) ListProcesses(context.Context, *connect.Request[nodev1.ListProcessesRequest]) (*connect.Response[nodev1.ListProcessesResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return connect.NewResponse(&nodev1.ListProcessesResponse{Processes: n.procs}), nil
}

func (n *fakeNode) info(path string) (*nodev1.FileInfo, error) {
	data, ok := n.files[path]
	if path == "/dir" {
		return &nodev1.FileInfo{Path: path, Name: []byte("dir"), Type: "directory", Mode: 0o755}, nil
	}
	if !ok {
		return nil, noderpc.Encode(cay.Errorf(cay.NotFound, "there is no file %s", path).On("path"))
	}
	raw, _ := cay.ParseWirePath(path)
	sum := sha256.Sum256(data)
	return &nodev1.FileInfo{Path: path, Name: []byte(filepath.Base(raw)), Type: "file", Size: int64(len(data)), Mode: n.modes[path], ModifiedUnixNs: 1, Etag: fmt.Sprintf("%x", sum[:8])}, nil
}

func (n *fakeNode) Stat(_ context.Context, r *connect.Request[nodev1.StatRequest]) (*connect.Response[nodev1.FileInfo], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	info, err := n.info(r.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(info), nil
}

func (n *fakeNode) ListFiles(_ context.Context, r *connect.Request[nodev1.ListFilesRequest]) (*connect.Response[nodev1.ListFilesResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	res := &nodev1.ListFilesResponse{}
	for path := range n.files {
		info, _ := n.info(path)
		res.Items = append(res.Items, info)
	}
	return connect.NewResponse(res), nil
}

func (n *fakeNode) Mkdir(_ context.Context, r *connect.Request[nodev1.MkdirRequest]) (*connect.Response[nodev1.FileInfo], error) {
	return connect.NewResponse(&nodev1.FileInfo{Path: r.Msg.GetPath(), Name: []byte(filepath.Base(r.Msg.GetPath())), Type: "directory", Mode: r.Msg.GetMode()}), nil
}

func (n *fakeNode) Move(_ context.Context, r *connect.Request[nodev1.MoveRequest]) (*connect.Response[nodev1.FileInfo], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := n.info(r.Msg.GetFrom()); err != nil {
		return nil, err
	}
	n.files[r.Msg.GetTo()] = n.files[r.Msg.GetFrom()]
	delete(n.files, r.Msg.GetFrom())
	info, err := n.info(r.Msg.GetTo())
	return connect.NewResponse(info), err
}

func (n *fakeNode) Remove(_ context.Context, r *connect.Request[nodev1.RemoveRequest]) (*connect.Response[nodev1.RemoveResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := n.info(r.Msg.GetPath()); err != nil {
		return nil, err
	}
	delete(n.files, r.Msg.GetPath())
	return connect.NewResponse(&nodev1.RemoveResponse{}), nil
}

func (n *fakeNode) ReadFile(_ context.Context, r *connect.Request[nodev1.ReadFileRequest], s *connect.ServerStream[nodev1.ReadFileResponse]) error {
	n.mu.Lock()
	info, err := n.info(r.Msg.GetPath())
	data := n.files[r.Msg.GetPath()]
	n.mu.Unlock()
	if err != nil {
		return err
	}
	if info.GetType() != "file" {
		return noderpc.Encode(cay.Errorf(cay.Unprocessable, "it is a %s", info.GetType()).On("path"))
	}
	if err := s.Send(&nodev1.ReadFileResponse{Part: &nodev1.ReadFileResponse_Info{Info: info}}); err != nil {
		return err
	}
	data = data[min(r.Msg.GetOffset(), int64(len(data))):]
	if r.Msg.GetLength() >= 0 {
		data = data[:min(r.Msg.GetLength(), int64(len(data)))]
	}
	for len(data) > 0 {
		k := min(len(data), 64<<10)
		if err := s.Send(&nodev1.ReadFileResponse{Part: &nodev1.ReadFileResponse_Data{Data: data[:k]}}); err != nil {
			return err
		}
		if data = data[k:]; n.cutFiles {
			return noderpc.Encode(cay.Errorf(cay.Unavailable, "the transfer was cut off"))
		}
	}
	return nil
}

func (n *fakeNode) WriteFile(_ context.Context, s *connect.ClientStream[nodev1.WriteFileRequest]) (*connect.Response[nodev1.FileInfo], error) {
	var header *nodev1.WriteFileHeader
	var data bytes.Buffer
	for s.Receive() {
		switch p := s.Msg().GetPart().(type) {
		case *nodev1.WriteFileRequest_Header:
			header = p.Header
			n.mu.Lock()
			_, exists := n.files[header.GetPath()]
			n.mu.Unlock()
			if exists && header.GetIfNoneMatch() {
				return nil, noderpc.Encode(cay.Errorf(cay.PreconditionFailed, "it is there"))
			}
		case *nodev1.WriteFileRequest_Data:
			data.Write(p.Data)
		case *nodev1.WriteFileRequest_Commit:
			n.mu.Lock()
			defer n.mu.Unlock()
			n.files[header.GetPath()], n.modes[header.GetPath()] = data.Bytes(), header.GetMode()
			info, err := n.info(header.GetPath())
			return connect.NewResponse(info), err
		}
	}
	return nil, connect.NewError(connect.CodeAborted, errors.New("no commit"))
}

// fakeNodes has one node, reached as nodes are: Connect over HTTP/2 on a unix socket.
type fakeNodes struct {
	client nodev1connect.NodeServiceClient
	ready  error
}

func (f *fakeNodes) For(context.Context, cay.ID) (nodev1connect.NodeServiceClient, error) {
	return f.client, nil
}
func (f *fakeNodes) Ready(context.Context) error { return f.ready }

func serveNode(t *testing.T, svc nodev1connect.NodeServiceHandler) nodev1connect.NodeServiceClient {
	t.Helper()
	path, handler := nodev1connect.NewNodeServiceHandler(svc, connect.WithCompression("gzip", nil, nil))
	mux := http.NewServeMux()
	mux.Handle(path, handler)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: mux, Protocols: protocols}
	socket := filepath.Join(t.TempDir(), "n")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	transport := &http.Transport{Protocols: protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = srv.Close()
		<-done
	})
	return nodev1connect.NewNodeServiceClient(&http.Client{Transport: transport}, "http://node", connect.WithAcceptCompression("gzip", nil, nil))
}
