package inprocess_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay/internal/app/inprocess"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// serve makes a client whose requests are served by h, on behalf of a request of 192.0.2.1.
func serve(t *testing.T, h http.HandlerFunc) (*http.Client, *inprocess.Transport) {
	t.Helper()
	transport := inprocess.New("/mcp", slog.New(slog.DiscardHandler))
	transport.Serve(h)
	t.Cleanup(func() {
		if err := transport.Close(within(t)); err != nil {
			t.Error(err)
		}
	})
	outer, _ := http.NewRequest(http.MethodPost, "http://cay.test/mcp", nil)
	outer.RemoteAddr = "192.0.2.1:7"
	outer.Header.Set("Authorization", "Bearer key")
	outer.Header.Set("Cookie", "secret")
	return &http.Client{Transport: transport.On(outer, "Authorization", "X-API-Key")}, transport
}

func request(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestARequestComesAsItWouldOverANetwork(t *testing.T) {
	c, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for name, pair := range map[string][2]string{
			"method": {r.Method, "PUT"}, "uri": {r.RequestURI, "/v1/x%2Fy?q=1"}, "host": {r.Host, "cay.test"}, "body": {string(body), "content"},
			"remote": {r.RemoteAddr, "192.0.2.1:7"}, "key": {r.Header.Get("Authorization"), "Bearer key"}, "cookie": {r.Header.Get("Cookie"), ""},
			"own": {r.Header.Get("X-Own"), "yes"},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s is %q, want %q", name, pair[0], pair[1])
			}
		}
		w.Header().Set("Content-Length", "4")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("Late", "x")
		io.WriteString(w, "done")
	})
	r := request(t, http.MethodPut, "http://cay.test/v1/x%2Fy?q=1", "content")
	r.Header.Set("X-Own", "yes")
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || string(body) != "done" || res.StatusCode != 201 || res.ContentLength != 4 || res.Header.Get("Late") != "" {
		t.Errorf("%d %q %v, length %d, header %v", res.StatusCode, body, err, res.ContentLength, res.Header)
	}
	if r.Header.Get("Authorization") != "" {
		t.Error("the caller's request was changed")
	}
}

func TestAnAnswerStreamsAndAReaderThatLeavesEndsIt(t *testing.T) {
	more, ended := make(chan struct{}), make(chan error, 1)
	c, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		<-more
		io.WriteString(w, "one")
		<-r.Context().Done()
		_, err := io.WriteString(w, "two")
		ended <- err
	})
	res, err := c.Do(request(t, http.MethodGet, "http://cay.test/v1/stream", "")) // comes with the header, before any body
	if err != nil {
		t.Fatal(err)
	}
	close(more)
	piece := make([]byte, 3)
	if _, err := io.ReadFull(res.Body, piece); err != nil || string(piece) != "one" {
		t.Fatalf("%q, %v", piece, err)
	}
	res.Body.Close()
	if err := <-ended; err == nil {
		t.Error("the handler could write to a reader who had left")
	}
}

func TestTheEndOfTheClientsContextEndsTheHandlers(t *testing.T) {
	began, left := make(chan struct{}), make(chan struct{})
	c, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done()
		<-left // until then there is no answer that could come before the end is seen
	})
	ctx, cancel := context.WithCancel(within(t))
	go func() {
		<-began
		cancel()
	}()
	_, err := c.Do(request(t, http.MethodGet, "http://cay.test/", "").WithContext(ctx))
	close(left)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestAHandlerThatPanicsBreaksItsAnswerAlone(t *testing.T) {
	c, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" {
			io.WriteString(w, "part")
			panic(http.ErrAbortHandler)
		}
		panic("fault")
	})
	if _, err := c.Do(request(t, http.MethodGet, "http://cay.test/early", "")); err == nil || strings.Contains(err.Error(), "fault") {
		t.Errorf("a panic before the answer: %v", err)
	}
	res, err := c.Do(request(t, http.MethodGet, "http://cay.test/late", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) || string(body) != "part" {
		t.Errorf("%q, %v", body, err)
	}
}

func TestARequestCannotGoRoundInCircles(t *testing.T) {
	c, _ := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("it was served") })
	for _, url := range []string{"http://cay.test/mcp", "http://cay.test/mcp/x", "http://cay.test/mcp?conversation=a"} {
		if _, err := c.Do(request(t, http.MethodPost, url, "{}")); err == nil {
			t.Errorf("%s was served", url)
		}
	}
	r := request(t, http.MethodGet, "http://cay.test/v1/x", "")
	r.Header.Set("Upgrade", "websocket")
	if _, err := c.Do(r); err == nil {
		t.Error("an upgrade was served")
	}
}

func TestCloseWaitsForWhatRunsAndRefusesTheRest(t *testing.T) {
	began, finish := make(chan struct{}), make(chan struct{})
	c, transport := serve(t, func(http.ResponseWriter, *http.Request) {
		close(began)
		<-finish
	})
	answered := make(chan error, 1)
	go func() {
		res, err := c.Do(request(t, http.MethodGet, "http://cay.test/", ""))
		if err == nil {
			err = res.Body.Close()
		}
		answered <- err
	}()
	<-began
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := transport.Close(over); err == nil {
		t.Error("Close did not wait for a request that runs")
	}
	if _, err := c.Do(request(t, http.MethodGet, "http://cay.test/", "")); err == nil {
		t.Error("a request was served after Close")
	}
	close(finish)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
