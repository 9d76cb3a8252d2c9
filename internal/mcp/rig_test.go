package mcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
	"github.com/cayhq/cay/internal/mcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a fake of the API, and a client of the tools on it.
type rig struct {
	t        *testing.T
	api      *clienttest.Server
	client   *client.Client
	session  *sdk.ClientSession
	progress chan *sdk.ProgressNotificationParams

	mu       sync.Mutex
	observed []string // guarded by mu
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, api: clienttest.New(), progress: make(chan *sdk.ProgressNotificationParams, 64)}
	c, err := client.New(client.Options{URL: r.api.URL, Key: clienttest.Key})
	if err != nil {
		t.Fatal(err)
	}
	r.client = c
	server := mcp.New(mcp.Config{
		Version: "v0", Observe: r.observe,
		Caller: func(context.Context) (mcp.Caller, error) {
			return mcp.Caller{Client: c, Scope: mcp.ScopeOf(clienttest.Key), Conversation: "here"}, nil
		},
	})
	ours, theirs := sdk.NewInMemoryTransports()
	ctx := within(t)
	if _, err := server.Connect(ctx, ours, nil); err != nil {
		t.Fatal(err)
	}
	r.session, err = r.newClient().Connect(ctx, theirs, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.session.Close(); r.api.Close(); c.Close() })
	return r
}

func (r *rig) newClient() *sdk.Client {
	return sdk.NewClient(&sdk.Implementation{Name: "test", Version: "v0"}, &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, p *sdk.ProgressNotificationClientRequest) {
			select {
			case r.progress <- p.Params:
			default:
			}
		},
	})
}

func (r *rig) observe(tool, result string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observed = append(r.observed, tool+" "+result)
}

func (r *rig) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.observed...)
}

type args = map[string]any

// call calls a tool, which must not fail.
func (r *rig) call(tool string, a args) *sdk.CallToolResult {
	r.t.Helper()
	res := r.try(tool, a)
	if res.IsError {
		r.t.Fatalf("%s failed: %s", tool, textOf(res))
	}
	return res
}

func (r *rig) try(tool string, a args) *sdk.CallToolResult {
	r.t.Helper()
	res, err := r.session.CallTool(within(r.t), &sdk.CallToolParams{Name: tool, Arguments: a})
	if err != nil {
		r.t.Fatalf("%s: %v", tool, err)
	}
	return res
}

// refused calls a tool, which must fail for that reason, and answers what it said.
func (r *rig) refused(tool string, a args, reason string) string {
	r.t.Helper()
	res := r.try(tool, a)
	if !res.IsError || res.Meta["cay/reason"] != reason {
		r.t.Errorf("%s %v: is error %v, reason %v, want %s: %s", tool, a, res.IsError, res.Meta["cay/reason"], reason, textOf(res))
	}
	return textOf(res)
}

func textOf(res *sdk.CallToolResult) string {
	var out []string
	for _, c := range res.Content {
		if text, ok := c.(*sdk.TextContent); ok {
			out = append(out, text.Text)
		}
	}
	return strings.Join(out, "\n")
}

// structured is the structured content of a result.
func structured[T any](t *testing.T, res *sdk.CallToolResult) T {
	t.Helper()
	data, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var out T
	if err := json.Unmarshal(data, &out); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return out
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen", what)
		}
	}
}

// web serves the tools over HTTP.
func (r *rig) web() (url string, h *mcp.Handler) {
	r.t.Helper()
	h = mcp.NewHandler(mcp.HTTPConfig{
		Config: mcp.Config{Observe: r.observe},
		Caller: func(*http.Request) (mcp.Caller, error) {
			return mcp.Caller{Client: r.client, Scope: mcp.ScopeOf(clienttest.Key)}, nil
		},
		Refuse: func(w http.ResponseWriter, _ *http.Request, status int, detail string) { http.Error(w, detail, status) },
	})
	server := httptest.NewServer(h)
	r.t.Cleanup(server.Close)
	return server.URL, h
}
