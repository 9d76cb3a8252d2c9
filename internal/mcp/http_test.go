package mcp_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/internal/mcp"
)

// post sends one message of an earlier revision and answers the status and the body once it is complete.
func post(t *testing.T, url, message string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), http.MethodPost, url, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body) // a stream may be cut
	return res.StatusCode, string(body)
}

func toolCall(id, tool, arguments string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + `}}`
}

func TestOverHTTPEachConversationHasASandboxOfItsOwn(t *testing.T) {
	r := newRig(t)
	url, _ := r.web()
	used := map[string]bool{}
	for _, c := range []struct{ query, header string }{{"", ""}, {"?conversation=a", ""}, {"", "b"}, {"?conversation=b", "b"}} {
		session, err := r.newClient().Connect(within(t), &sdk.StreamableClientTransport{Endpoint: url + c.query, HTTPClient: withHeader("Cay-Conversation", c.header)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := session.CallTool(within(t), &sdk.CallToolParams{Name: "run_command", Arguments: args{"command": "true"}})
		if err != nil {
			t.Fatal(err)
		}
		used[structured[ended](t, res).SandboxID] = true
		session.Close()
	}
	if len(used) != 3 {
		t.Errorf("three conversations used %d sandboxes", len(used))
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

type headerTransport struct{ name, value string }

func (h headerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if h.value != "" {
		r = r.Clone(r.Context())
		r.Header.Set(h.name, h.value)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func withHeader(name, value string) *http.Client {
	return &http.Client{Transport: headerTransport{name, value}}
}

func TestABadConversationIsRefused(t *testing.T) {
	r := newRig(t)
	url, _ := r.web()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for _, c := range []struct{ query, header string }{
		{"?conversation=", ""}, {"?conversation=a%20b", ""}, {"?conversation=a&conversation=b", ""}, {"?conversation=a", "b"}, {"", strings.Repeat("x", 65)},
	} {
		headers := []string{}
		if c.header != "" {
			headers = []string{"Cay-Conversation", c.header}
		}
		if status, body := post(t, url+c.query, toolCall("1", "list_sandboxes", "{}"), headers...); status != 400 || !strings.Contains(body, "onversation") {
			t.Errorf("%+v: %d %s", c, status, body)
		}
	}
	if status, _ := post(t, url, `{"x":"`+strings.Repeat("x", 4<<20)+`"}`); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a body of more than 4 MiB: %d", status)
	}
}

func TestARequestThatSaysNoAddressOfTheServerIsItsOwnFault(t *testing.T) {
	h := mcp.NewHandler(mcp.HTTPConfig{
		Caller: func(r *http.Request) (mcp.Caller, error) {
			_, err := client.New(client.Options{URL: "http://" + r.Host})
			return mcp.Caller{}, err
		},
		Refuse: func(w http.ResponseWriter, _ *http.Request, status int, detail string) { http.Error(w, detail, status) },
	})
	for _, host := range []string{"", "%zz"} {
		r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader("{}"))
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest {
			t.Errorf("the host %q: %d %s", host, w.Code, w.Body)
		}
	}
}

func TestAnOldClientsCancellationFindsItsCall(t *testing.T) {
	r := newRig(t)
	url, _ := r.web()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	answered := make(chan string, 2)
	for _, session := range []string{"one", "two"} {
		go func() {
			_, body := post(t, url, toolCall("7", "run_command", `{"command":"block"}`), "Mcp-Session-Id", session)
			answered <- session + " " + body
		}()
	}
	eventually(t, "both commands", func() bool { return r.count("block", "running") == 2 })
	cancel := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`
	if status, body := post(t, url, cancel, "Mcp-Session-Id", "three"); status != 202 {
		t.Errorf("%d %s", status, body)
	}
	post(t, url, cancel, "Mcp-Session-Id", "two")
	if got := <-answered; !strings.HasPrefix(got, "two ") || !strings.Contains(got, "canceled") {
		t.Errorf("first to end: %s", got)
	}
	if r.count("block", "running") != 1 || r.count("block", "exited") != 1 {
		t.Errorf("processes: %v", r.processes())
	}
	post(t, url, cancel, "Mcp-Session-Id", "one")
	<-answered
}

// count is how many processes there are of a command in a status.
func (r *rig) count(command, status string) (n int) {
	for _, id := range r.api.Sandboxes() {
		list, err := r.client.Processes(id).List(within(r.t), false)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, p := range list {
			if strings.Join(p.Command, " ") == command && p.Status == status {
				n++
			}
		}
	}
	return n
}

func TestAClientThatGoesAwayCancelsItsCall(t *testing.T) {
	r := newRig(t)
	url, _ := r.web()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	ctx, leave := context.WithCancel(within(t))
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		q, _ := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(toolCall("1", "run_command", `{"command":"block"}`)))
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Accept", "application/json, text/event-stream")
		if res, err := http.DefaultClient.Do(q); err == nil {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	eventually(t, "the command", func() bool { return r.count("block", "running") == 1 })
	leave()
	<-gone
	eventually(t, "the kill", func() bool { return r.count("block", "exited") == 1 })
}

func TestAServerThatStopsLeavesProgramsRunningAndSaysWhere(t *testing.T) {
	r := newRig(t)
	url, h := r.web()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	ctx := within(t)
	session, err := r.newClient().Connect(ctx, &sdk.StreamableClientTransport{Endpoint: url}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	var res *sdk.CallToolResult
	answered := make(chan error, 1)
	go func() {
		var err error
		res, err = session.CallTool(ctx, &sdk.CallToolParams{Name: "run_command", Arguments: args{"command": "block"}, Meta: sdk.Meta{"progressToken": "t"}})
		answered <- err
	}()
	for message := ""; !strings.Contains(message, "blocking"); { // by then the server has been told which process it is
		select {
		case p := <-r.progress:
			message = p.Message
		case err := <-answered:
			t.Fatalf("the call ended: %v", err)
		}
	}
	if err := h.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if text := textOf(res); !strings.Contains(text, "restarting") || !strings.Contains(text, "prc_") || !res.IsError {
		t.Error(text)
	}
	if r.count("block", "running") != 1 {
		t.Error("the command was killed")
	}
	if status, _ := post(t, url, toolCall("1", "list_sandboxes", "{}")); status != http.StatusServiceUnavailable {
		t.Errorf("after Close: %d", status)
	}
	if got := r.seen(); !slices.Contains(got, "run_command error") {
		t.Errorf("observed %v", got)
	}
}
