package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// rig is a server with everything behind it faked.
type rig struct {
	*testing.T
	boxes *fakeSandboxes
	jobs  *fakeJobs
	sess  *fakeSessions
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
	r.jobs, r.sess = newFakeJobs(), newFakeSessions(r.boxes)
	r.nodes = &fakeNodes{client: serveNode(t, r.node)}
	c := Config{
		Sandboxes: r.boxes, Jobs: r.jobs, Sessions: r.sess, Nodes: r.nodes, Auth: &fakeAuth{tickets: map[string]string{}}, Ports: &fakePorts{exposed: map[int]cay.ExposedPort{}}, Idempotency: r.idem, Version: "test",
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
