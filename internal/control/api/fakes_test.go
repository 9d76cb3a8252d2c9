package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	adminKey = "cay_admin"
	readKey  = "cay_read"
	otherKey = "cay_other"
)

var (
	projectA = cay.ID("prj_" + strings.Repeat("a", 26))
	projectB = cay.ID("prj_" + strings.Repeat("b", 26))
)

// fakeSandboxes keeps sandboxes in memory. A change of a row wakes who waits.
type fakeSandboxes struct {
	mu      sync.Mutex
	rows    map[cay.ID]*cay.Sandbox
	changed chan struct{}
	status  cay.Status // of what is created
	reason  cay.StatusReason
	created int
	query   cay.SandboxQuery // of the last List
	events  []cay.Event
	oldest  int64 // event that is kept
	panics  bool
}

func newFakeSandboxes() *fakeSandboxes {
	return &fakeSandboxes{rows: map[cay.ID]*cay.Sandbox{}, changed: make(chan struct{}), status: cay.Ready}
}

func (f *fakeSandboxes) change(id cay.ID, do func(*cay.Sandbox)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f.rows[id])
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeSandboxes) add(project cay.ID, status cay.Status) cay.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addLocked(project, status, cay.CreateSandbox{}).ID
}

func (f *fakeSandboxes) addLocked(project cay.ID, status cay.Status, req cay.CreateSandbox) *cay.Sandbox {
	now := time.Now()
	sb := &cay.Sandbox{ID: cay.NewID(cay.PrefixSandbox), ProjectID: project, Status: status, WorkerID: "wrk_1", CreatedAt: now,
		Spec: cay.SandboxSpec{Image: "host", CPU: 1, MemoryMB: 512, DiskGB: 1, Pids: 100, TTL: time.Hour, Network: []string{}, Env: req.Env, Metadata: req.Metadata, User: "sandbox", Workdir: "/workspace", OnTimeout: cay.OnTimeoutTerminate}}
	if req.TTL != nil {
		sb.Spec.TTL = *req.TTL
	}
	if status == cay.Ready {
		sb.ReadyAt, sb.ExpiresAt = now, now.Add(sb.Spec.TTL)
	}
	f.rows[sb.ID] = sb
	return sb
}

func (f *fakeSandboxes) Create(_ context.Context, project cay.ID, req cay.CreateSandbox) (*cay.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.panics {
		panic("the secret inside")
	}
	if req.CPU != nil && *req.CPU > 1000 {
		return nil, cay.Errorf(cay.Unprocessable, "no worker has %v cores", *req.CPU).On("cpu")
	}
	f.created++
	sb := f.addLocked(project, f.status, req)
	sb.StatusReason = f.reason
	c := *sb
	return &c, nil
}

func (f *fakeSandboxes) Get(_ context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, ok := f.rows[id]
	if !ok || sb.ProjectID != project {
		return nil, cay.Errorf(cay.NotFound, "there is no sandbox %s", id)
	}
	c := *sb
	return &c, nil
}

func (f *fakeSandboxes) Wait(ctx context.Context, project, id cay.ID, want ...cay.Status) (*cay.Sandbox, error) {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		sb, err := f.Get(ctx, project, id)
		if err != nil || sb.Status.Ended() || slices.Contains(want, sb.Status) || ctx.Err() != nil {
			return sb, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (f *fakeSandboxes) List(_ context.Context, project cay.ID, q cay.SandboxQuery) ([]*cay.Sandbox, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.query = q
	var all []*cay.Sandbox
	for _, sb := range f.rows {
		if sb.ProjectID == project {
			all = append(all, sb)
		}
	}
	return all[:min(len(all), q.Limit)], map[bool]string{true: "next"}[len(all) > q.Limit], nil
}

func (f *fakeSandboxes) end(ctx context.Context, project, id cay.ID, to cay.Status) (*cay.Sandbox, error) {
	sb, err := f.Get(ctx, project, id)
	if err != nil || sb.Status.Ended() {
		return sb, err
	}
	f.change(id, func(sb *cay.Sandbox) { sb.Status, sb.StatusReason, sb.EndedAt = to, cay.ReasonDeleted, time.Now() })
	return f.Get(ctx, project, id)
}

func (f *fakeSandboxes) Delete(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	return f.end(ctx, project, id, cay.Terminated)
}

func (f *fakeSandboxes) usable(ctx context.Context, project, id cay.ID, do func(*cay.Sandbox)) (*cay.Sandbox, error) {
	sb, err := f.Get(ctx, project, id)
	if err != nil {
		return nil, err
	}
	if !sb.Status.Active() {
		return nil, sb.Usable()
	}
	f.change(id, do)
	return f.Get(ctx, project, id)
}

func (f *fakeSandboxes) Pause(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	return f.usable(ctx, project, id, func(sb *cay.Sandbox) { sb.Status = cay.Paused })
}

func (f *fakeSandboxes) Resume(ctx context.Context, project, id cay.ID, _ *time.Duration) (*cay.Sandbox, error) {
	return f.usable(ctx, project, id, func(sb *cay.Sandbox) { sb.Status = cay.Ready })
}

func (f *fakeSandboxes) SetTimeout(ctx context.Context, project, id cay.ID, ttl time.Duration, _ bool) (*cay.Sandbox, error) {
	return f.usable(ctx, project, id, func(sb *cay.Sandbox) { sb.ExpiresAt = time.Now().Add(min(ttl, 24*time.Hour)) })
}

func (f *fakeSandboxes) Update(ctx context.Context, project, id cay.ID, u cay.UpdateSandbox) (*cay.Sandbox, error) {
	return f.usable(ctx, project, id, func(sb *cay.Sandbox) {
		if u.Metadata != nil {
			sb.Spec.Metadata = u.Metadata
		}
		if u.IdleTimeout != nil {
			sb.Spec.IdleTimeout = *u.IdleTimeout
		}
	})
}

func (f *fakeSandboxes) Enter(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	sb, err := f.Get(ctx, project, id)
	if err != nil {
		return nil, err
	}
	return sb, sb.Usable()
}

func (f *fakeSandboxes) Enforced() []string { return []string{"cpu", "pids"} }

func (f *fakeSandboxes) Limits() cay.Limits { return cay.Limits{MaxCPU: 8} }

func (f *fakeSandboxes) Runtimes(context.Context) ([]cay.Runtime, error) {
	return []cay.Runtime{{Name: "python", Version: "3.12", Image: "host", Exec: []string{"python3"}}}, nil
}

// fakeAuth knows three keys, and tickets.
type fakeAuth struct {
	mu      sync.Mutex
	tickets map[string]string // ticket to URL
}

func (f *fakeAuth) Key(_ context.Context, secret string) (cay.Identity, error) {
	switch secret {
	case adminKey:
		return cay.Identity{ProjectID: projectA, KeyID: "key_" + cay.ID(strings.Repeat("a", 26)), Scopes: []cay.Scope{cay.ScopeAdmin}}, nil
	case readKey:
		return cay.Identity{ProjectID: projectA, KeyID: "key_r", Scopes: []cay.Scope{cay.ScopeSandboxesRead}}, nil
	case otherKey:
		return cay.Identity{ProjectID: projectB, KeyID: "key_b", Scopes: []cay.Scope{cay.ScopeAdmin}}, nil
	}
	return cay.Identity{}, cay.Errorf(cay.Unauthorized, "this key is not valid")
}

func (f *fakeAuth) MintTicket(_ context.Context, _ cay.Identity, method, url string) (string, time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := fmt.Sprintf("tkt_%d", len(f.tickets))
	f.tickets[t] = method + " " + url
	return t, time.Now().Add(time.Minute), nil
}

func (f *fakeAuth) RedeemTicket(ctx context.Context, ticket, method, url string) (cay.Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tickets[ticket] != method+" "+url {
		return cay.Identity{}, cay.Errorf(cay.Unauthorized, "this ticket is not valid")
	}
	delete(f.tickets, ticket)
	return f.Key(ctx, adminKey)
}

// SignURL binds a signature to every field, as the real one does.
func (f *fakeAuth) SignURL(_ context.Context, u cay.SignedURL) (string, error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []any{u.Method, u.Of, u.Path, u.User, fmt.Sprint(u.MaxBytes), u.KeyID, u.ExpiresAt.UTC().String()}))
	return fmt.Sprintf("%x", sum), nil
}

func (f *fakeAuth) VerifyURL(ctx context.Context, u cay.SignedURL, signature string) (cay.Identity, error) {
	if u.Method == http.MethodHead {
		u.Method = http.MethodGet
	}
	if want, _ := f.SignURL(ctx, u); signature != want || u.ExpiresAt.Before(time.Now()) {
		return cay.Identity{}, cay.Errorf(cay.Unauthorized, "this URL is not valid")
	}
	return cay.Identity{ProjectID: projectA, KeyID: u.KeyID, Scopes: []cay.Scope{u.Scope()}}, nil
}

// fakePorts keeps ports in memory and answers requests to them with what it was asked.
type fakePorts struct {
	mu      sync.Mutex
	exposed map[int]cay.ExposedPort
}

func (f *fakePorts) Expose(_ context.Context, _, sandbox cay.ID, number int, public bool) (cay.ExposedPort, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, there := f.exposed[number]
	p.Port = cay.Port{SandboxID: sandbox, Number: number, Public: public, CreatedAt: time.Now()}
	p.URL, p.Token = "http://port.localhost/", "token"
	if public {
		p.Token = ""
	}
	f.exposed[number] = p
	return p, !there, nil
}

func (f *fakePorts) List(context.Context, cay.ID, cay.ID) ([]cay.ExposedPort, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.exposed)), nil
}

func (f *fakePorts) Remove(_ context.Context, _, _ cay.ID, number int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, there := f.exposed[number]; !there {
		return cay.Errorf(cay.NotFound, "there is no exposed port %d", number)
	}
	delete(f.exposed, number)
	return nil
}

func (f *fakePorts) Owns(host string) bool { return strings.HasPrefix(host, "port.localhost") }

func (f *fakePorts) ServeHost(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path == "/refused" {
		return cay.Errorf(cay.Unauthorized, "a token is needed")
	}
	_, err := fmt.Fprintf(w, "host %s %s", r.Method, r.URL)
	return err
}

func (f *fakePorts) ServePath(w http.ResponseWriter, r *http.Request, project, sandbox cay.ID, number int, rest string) error {
	_, err := fmt.Fprintf(w, "path %s %s %d %s %s", r.Method, project, number, rest, r.URL.RawQuery)
	return err
}

// fakeIdempotency keeps answers in memory.
type fakeIdempotency struct {
	mu   sync.Mutex
	recs map[string]fakeRecord
}

type fakeRecord struct {
	cay.IdempotencyRecord
	sum [32]byte
}

func (f *fakeIdempotency) Begin(_ context.Context, project cay.ID, route, key string, sum [32]byte) (cay.IdempotencyRecord, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := string(project) + route + key
	rec, ok := f.recs[k]
	if !ok {
		f.recs[k] = fakeRecord{sum: sum}
		return cay.IdempotencyRecord{}, true, nil
	}
	if rec.sum != sum {
		return cay.IdempotencyRecord{}, false, cay.Errorf(cay.IdempotencyMismatch, "this key was used with another body")
	}
	return rec.IdempotencyRecord, false, nil
}

func (f *fakeIdempotency) Finish(_ context.Context, project cay.ID, route, key string, status int, object string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := string(project) + route + key
	f.recs[k] = fakeRecord{cay.IdempotencyRecord{Done: true, Status: status, ObjectID: object}, f.recs[k].sum}
	return nil
}

func (f *fakeIdempotency) Abandon(_ context.Context, project cay.ID, route, key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.recs, string(project)+route+key)
	return nil
}

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

// rig is a server with everything behind it faked.
type rig struct {
	*testing.T
	boxes *fakeSandboxes
	node  *fakeNode
	nodes *fakeNodes
	idem  *fakeIdempotency
	api   *API
	log   *syncBuffer
	srv   *httptest.Server
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func newRig(t *testing.T, configure ...func(*Config)) *rig {
	t.Helper()
	r := &rig{
		T: t, boxes: newFakeSandboxes(), idem: &fakeIdempotency{recs: map[string]fakeRecord{}}, log: &syncBuffer{},
		node: &fakeNode{files: map[string][]byte{}, modes: map[string]uint32{}, process: func(context.Context, *nodev1.ProcessInput, *processStream) error {
			return cay.Errorf(cay.NotFound, "there is no such process")
		}},
	}
	r.nodes = &fakeNodes{client: serveNode(t, r.node)}
	c := Config{
		Sandboxes: r.boxes, Nodes: r.nodes, Auth: &fakeAuth{tickets: map[string]string{}}, Ports: &fakePorts{exposed: map[int]cay.ExposedPort{}}, Idempotency: r.idem, Version: "test",
		Logger: slog.New(slog.NewTextHandler(r.log, nil)), AllowedOrigins: []string{"https://console.example.com"},
	}
	for _, f := range configure {
		f(&c)
	}
	var err error
	if r.api, err = New(c); err != nil {
		t.Fatal(err)
	}
	r.srv = httptest.NewServer(r.api)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.api.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		r.srv.CloseClientConnections()
		r.srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return r
}

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

// answer is a response that has been read.
type answer struct {
	*http.Response
	body []byte
}

func (a answer) member(t *testing.T, name string) any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(a.body, &m); err != nil {
		t.Fatalf("not JSON: %v: %.300s", err, a.body)
	}
	return m[name]
}

type with func(*http.Request)

func header(k, v string) with { return func(r *http.Request) { r.Header.Set(k, v) } }
func noKey(r *http.Request)   { r.Header.Del("Authorization") }
func chunked(r *http.Request) { r.ContentLength = -1 }

func (r *rig) request(method, path, body string, opts ...with) *http.Request {
	r.Helper()
	var rd io.Reader
	if body != "" {
		rd = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, r.srv.URL+path, rd)
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminKey)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, o := range opts {
		o(req)
	}
	return req
}

func (r *rig) do(method, path, body string, opts ...with) answer {
	r.Helper()
	res, err := http.DefaultClient.Do(r.request(method, path, body, opts...))
	if err != nil {
		r.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.Fatal(err)
	}
	return answer{res, b}
}

// refused checks that an answer is a whole problem document of the reason.
func (r *rig) refused(a answer, reason cay.ErrorReason) answer {
	r.Helper()
	if a.StatusCode != reason.HTTPStatus() || a.Header.Get("Content-Type") != "application/problem+json" {
		r.Fatalf("got %d %s, want a problem with %d: %s", a.StatusCode, a.Header.Get("Content-Type"), reason.HTTPStatus(), a.body)
	}
	for name, want := range map[string]any{"reason": string(reason), "status": float64(a.StatusCode), "request_id": a.Header.Get("X-Request-Id")} {
		if got := a.member(r.T, name); got != want {
			r.Fatalf("%s is %v, want %v: %s", name, got, want, a.body)
		}
	}
	for _, name := range []string{"type", "title", "detail"} {
		if s, _ := a.member(r.T, name).(string); s == "" {
			r.Fatalf("%s is missing: %s", name, a.body)
		}
	}
	return a
}

func (r *rig) status(a answer, want int) answer {
	r.Helper()
	if a.StatusCode != want {
		r.Fatalf("got %d, want %d: %s", a.StatusCode, want, a.body)
	}
	return a
}
