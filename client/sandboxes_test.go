package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
)

func TestACreateSendsOnlyWhatWasSet(t *testing.T) {
	for name, tt := range map[string]struct {
		request client.CreateRequest
		want    string
	}{
		"nothing":  {client.CreateRequest{}, `{}`},
		"clocks":   {client.CreateRequest{TTL: 90 * time.Second, IdleTimeout: 1500 * time.Millisecond}, `{"ttl_seconds":90,"idle_timeout_seconds":1.5}`},
		"limits":   {client.CreateRequest{Image: "host", CPU: 0.5, MemoryMB: 256}, `{"image":"host","cpu":0.5,"memory_mb":256}`},
		"metadata": {client.CreateRequest{Metadata: map[string]string{"name": "a"}, Wait: time.Minute}, `{"metadata":{"name":"a"}}`},
	} {
		got, err := json.Marshal(tt.request)
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: got %s, %v; want %s", name, got, err, tt.want)
		}
	}
}

func TestASandboxKeepsMembersTheSDKDoesNotKnow(t *testing.T) {
	var sb client.Sandbox
	in := `{"id":"sbx_1","status":"DREAMING","ttl_seconds":1.5,"ended_at":null,"future":{"a":1}}`
	if err := json.Unmarshal([]byte(in), &sb); err != nil {
		t.Fatal(err)
	}
	if sb.Status != "DREAMING" || sb.TTL != 1500*time.Millisecond || !sb.EndedAt.IsZero() {
		t.Errorf("got %+v", sb)
	}
	if out, _ := json.Marshal(sb); string(out) != in {
		t.Errorf("written as %s", out)
	}
}

func TestALifeFromCreateToDelete(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	sb, err := c.Create(ctx, client.CreateRequest{Metadata: map[string]string{"name": "planner"}, Wait: -1})
	if err != nil || sb.Status != client.Creating {
		t.Fatalf("created %+v, %v", sb, err)
	}
	if sb, err = c.Wait(ctx, sb.ID, client.Ready); err != nil || sb.Status != client.Ready || sb.Name() != "planner" {
		t.Fatalf("waited for %+v, %v", sb, err)
	}
	if sb, err = c.Pause(ctx, sb.ID); err != nil || sb.Status != client.Paused {
		t.Fatalf("paused %+v, %v", sb, err)
	}
	if sb, err = c.Resume(ctx, sb.ID, time.Hour); err != nil || sb.Status != client.Ready {
		t.Fatalf("resumed %+v, %v", sb, err)
	}
	if err := c.Keepalive(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	if sb, err = c.SetTimeout(ctx, sb.ID, 2*time.Hour); err != nil || sb.ExpiresAt.Before(before.Add(time.Hour)) {
		t.Fatalf("timeout set: %+v, %v", sb, err)
	}
	if sb, err = c.Update(ctx, sb.ID, client.UpdateRequest{Metadata: map[string]string{"name": "other"}}); err != nil || sb.Name() != "other" {
		t.Fatalf("updated %+v, %v", sb, err)
	}
	for range 2 {
		if gone, err := c.Delete(ctx, sb.ID); err != nil || !gone {
			t.Fatalf("deleted: %v, %v", gone, err)
		}
	}
	if _, err = c.Exec(ctx, sb.ID, client.Command("true")); client.ReasonOf(err) != client.ReasonGone {
		t.Fatalf("exec after delete: %v", err)
	}
	if _, err = c.Wait(ctx, sb.ID, client.Ready); client.ReasonOf(err) != client.ReasonGone {
		t.Fatalf("wait after delete: %v", err)
	}
}

func TestListWalksEveryPage(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	want := map[string]bool{}
	for range 7 {
		want[sandbox(t, c)] = true
	}
	for sb, err := range c.List(ctx, client.ListOptions{PageSize: 3, Statuses: []client.Status{client.Active}}) {
		if err != nil {
			t.Fatal(err)
		}
		if !want[sb.ID] {
			t.Fatalf("%s came twice or uninvited", sb.ID)
		}
		delete(want, sb.ID)
	}
	if len(want) > 0 {
		t.Fatalf("never came: %v", want)
	}
}

func TestOnlySafeRequestsAreRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		method, path string
		status       int
		reason       string
		do           func(context.Context, *client.Client, string) error
		repeated     bool
	}{
		"a GET after 503": {"GET", "/info", 503, "unavailable", func(ctx context.Context, c *client.Client, _ string) error { _, err := c.Info(ctx); return err }, true},
		"a create after 429": {"POST", "/sandboxes", 429, "rate_limited", func(ctx context.Context, c *client.Client, _ string) error {
			_, err := c.Create(ctx, client.CreateRequest{})
			return err
		}, true},
		"an exec after 503": {"POST", "/exec", 503, "worker_lost", func(ctx context.Context, c *client.Client, id string) error {
			_, err := c.Exec(ctx, id, client.Command("true"))
			return err
		}, true},
		"a DELETE after 503": {"DELETE", "", 503, "unavailable", func(ctx context.Context, c *client.Client, id string) error { _, err := c.Delete(ctx, id); return err }, true},
		"a PATCH, never": {"PATCH", "", 503, "unavailable", func(ctx context.Context, c *client.Client, id string) error {
			_, err := c.Update(ctx, id, client.UpdateRequest{})
			return err
		}, false},
		"a 500, never": {"GET", "/info", 500, "internal", func(ctx context.Context, c *client.Client, _ string) error { _, err := c.Info(ctx); return err }, false},
		"a 4xx, never": {"GET", "/info", 403, "forbidden", func(ctx context.Context, c *client.Client, _ string) error { _, err := c.Info(ctx); return err }, false},
		"a quota, never": {"POST", "/sandboxes", 429, "quota_exceeded", func(ctx context.Context, c *client.Client, _ string) error {
			_, err := c.Create(ctx, client.CreateRequest{})
			return err
		}, false},
		"a file that streams, never": {"PUT", "/files", 503, "unavailable", func(ctx context.Context, c *client.Client, id string) error {
			_, err := c.Files(id).Write(ctx, "/tmp/a", onlyReader{strings.NewReader("x")}, client.WriteOptions{})
			return err
		}, false},
		"a file that can be reread": {"PUT", "/files", 503, "unavailable", func(ctx context.Context, c *client.Client, id string) error {
			_, err := c.Files(id).Write(ctx, "/tmp/a", strings.NewReader("x"), client.WriteOptions{})
			return err
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			server, c := connect(t)
			ctx := within(t)
			id := sandbox(t, c)
			server.Refuse(tt.method, tt.path, tt.status, tt.reason, 0)
			err := tt.do(ctx, c, id)
			if tt.repeated && err != nil {
				t.Fatalf("not repeated: %v", err)
			}
			var e *client.Error
			if !tt.repeated && (!errors.As(err, &e) || e.Reason != tt.reason || e.Status != tt.status || e.RequestID == "") {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestARepeatedCreateCarriesTheSameIdempotencyKey(t *testing.T) {
	server, c := connect(t)
	server.Refuse("POST", "/sandboxes", 503, "unavailable", 0)
	sandbox(t, c)
	keys := map[string]bool{}
	for _, r := range server.Requests() {
		keys[r.Header.Get("Idempotency-Key")] = true
	}
	if len(server.Requests()) != 2 || len(keys) != 1 || keys[""] {
		t.Fatalf("%d requests with keys %v", len(server.Requests()), keys)
	}
}

func TestRetryAfterIsHonouredAndBounded(t *testing.T) {
	server, c := connect(t)
	ctx := within(t)
	server.Refuse("GET", "/info", 503, "unavailable", 1)
	began := time.Now()
	if _, err := c.Info(ctx); err != nil || time.Since(began) < time.Second {
		t.Fatalf("answered after %s: %v", time.Since(began), err)
	}
	server.Refuse("GET", "/info", 503, "unavailable", 3600)
	var e *client.Error
	if _, err := c.Info(ctx); !errors.As(err, &e) || e.RetryAfter != time.Hour {
		t.Fatalf("got %v", err)
	}
	server.Refuse("GET", "/info", 503, "unavailable", 20)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := c.Info(short); !errors.Is(err, context.DeadlineExceeded) || client.ReasonOf(err) != "unavailable" {
		t.Fatalf("got %v", err)
	}
}

func TestAnAnswerThatIsNotTheAPIsIsStillAnError(t *testing.T) {
	for body, want := range map[string]string{
		"<html>nginx</html>": "418",
		"":                   "418",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(418); w.Write([]byte(body)) }))
		c, _ := client.New(client.Options{URL: s.URL})
		var e *client.Error
		if _, err := c.Info(t.Context()); !errors.As(err, &e) || !strings.Contains(err.Error(), want) || string(e.Body) != body {
			t.Errorf("%q: got %v", body, err)
		}
		c.Close()
		s.Close()
	}
}

func TestAnIDCannotLeadToAnotherRoute(t *testing.T) {
	server, c := connect(t)
	for _, id := range []string{"", ".", "..", "../../healthz", "a/b", "a?x=1", "a#b", "%2e%2e"} {
		if _, err := c.Get(t.Context(), id); err == nil {
			t.Errorf("%q was found", id)
		}
	}
	for _, r := range server.Requests() {
		if !strings.HasPrefix(r.Path, "/v1/sandboxes/") || r.Query != "" {
			t.Errorf("asked for %s?%s", r.Path, r.Query)
		}
	}
}

func TestTheKeyIsKeptOutOfErrors(t *testing.T) {
	c, _ := client.New(client.Options{URL: "http://127.0.0.1:1", Key: clienttest.Key, MaxRetries: -1})
	defer c.Close()
	_, err := c.Info(t.Context())
	if err == nil || strings.Contains(err.Error(), clienttest.Key) {
		t.Fatalf("got %v", err)
	}
}
