package client_test

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cayhq/cay/client"
)

func TestAPortIsExposedListedAndClosed(t *testing.T) {
	_, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	ports := c.Ports(id)
	p, err := ports.Expose(ctx, 8000, client.ExposeOptions{})
	if err != nil || p.Port != 8000 || p.Public || p.Token == "" || !strings.HasPrefix(p.URL, "http://8000-") {
		t.Fatalf("exposed %+v, %v", p, err)
	}
	if u, err := url.Parse(p.TokenURL()); err != nil || u.Query().Get("cay_port_token") != p.Token {
		t.Errorf("for a browser: %s, %v", p.TokenURL(), err)
	}
	r, err := p.Request(ctx, "GET", "/a?b=1")
	if err != nil || r.Header.Get(client.TokenHeader) != p.Token || r.URL.String() != p.URL+"a?b=1" {
		t.Errorf("request %+v, %v", r, err)
	}
	again, err := ports.Expose(ctx, 8000, client.ExposeOptions{Public: true})
	if err != nil || !again.Public || again.TokenURL() != again.URL {
		t.Errorf("made public: %+v, %v", again, err)
	}
	if all, err := ports.List(ctx); err != nil || len(all) != 1 || all[0].Port != 8000 {
		t.Errorf("listed %+v, %v", all, err)
	}
	if err := ports.Close(ctx, 8000); err != nil {
		t.Fatal(err)
	}
	if err := ports.Close(ctx, 8000); client.ReasonOf(err) != client.ReasonNotFound {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := ports.Expose(ctx, 0, client.ExposeOptions{}); client.ReasonOf(err) != client.ReasonInvalidRequest {
		t.Errorf("port 0: %v", err)
	}
}

func TestARequestReachesAServerInsideWithoutTheKey(t *testing.T) {
	server, c := connect(t)
	server.Serve(3000, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s %s %q %q", r.Method, r.URL.RequestURI(), body, r.Header.Get("Authorization"))
	}))
	ctx, id := within(t), sandbox(t, c)
	r, err := http.NewRequestWithContext(ctx, "POST", "http://sandbox/a/b?c=d", strings.NewReader("hi"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Ports(id).Do(r, 3000)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusTeapot || string(body) != `POST /a/b?c=d "hi" ""` {
		t.Errorf("answered %d %s, %v", res.StatusCode, body, err)
	}
	if _, leaked := r.Header["Authorization"]; leaked {
		t.Error("the caller's request was given the key")
	}
	if r, err = http.NewRequestWithContext(ctx, "POST", "/", nil); err != nil {
		t.Fatal(err)
	}
	none, err := c.Ports(id).Do(r, 3001)
	if err != nil {
		t.Fatal(err)
	}
	defer none.Body.Close()
	if none.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("where nothing listens: %d", none.StatusCode)
	}
}

func TestARequestWaitsForAServerThatStarts(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	server.Serve(3000, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Refuse("GET", "/ports/3000/", 503, "unavailable", 0)
	server.Refuse("GET", "/ports/3000/", 503, "unavailable", 0)
	r, err := http.NewRequestWithContext(ctx, "GET", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Ports(id).Do(r, 3000)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("answered %v, %v", res, err)
	}
	res.Body.Close()
}
