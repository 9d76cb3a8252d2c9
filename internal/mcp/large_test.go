package mcp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answering is a server whose answer is text, of a type.
func answering(kind, text string) http.RoundTripper {
	return roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(text))}, nil
	})
}

func open(t *testing.T, ctx context.Context, by http.RoundTripper) io.ReadCloser {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", "http://cay/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := by.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Body
}

func TestOfLargeEventsAFewAreInMemoryAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := "event: result\ndata: " + strings.Repeat("x", 3<<20) + "\n\n"
		bound := NewLargeEvents(2)
		stream := bound.Over(answering("text/event-stream; charset=utf-8", large))
		ctx, cancel := context.WithCancelCause(t.Context())
		var bodies []io.ReadCloser
		read := make(chan error, 5)
		for range 5 {
			body := open(t, ctx, stream)
			bodies = append(bodies, body)
			go func() {
				n, err := io.Copy(io.Discard, body)
				if err == nil && n != int64(len(large)) {
					err = io.ErrUnexpectedEOF
				}
				if err == nil {
					defer body.Close()
				}
				read <- err
				if err == nil {
					<-ctx.Done() // what was read is still in use
				}
			}()
		}
		synctest.Wait()
		if n := len(read); n != 2 {
			t.Fatalf("%d of 5 streams got past their large event, want 2", n)
		}
		for range 2 {
			if err := <-read; err != nil {
				t.Error(err)
			}
		}
		if _, err := io.Copy(io.Discard, open(t, t.Context(), bound.Over(answering("application/json", large)))); err != nil {
			t.Errorf("an answer that is no stream: %v", err)
		}
		small := strings.Repeat("event: stdout\ndata: "+strings.Repeat("y", 64<<10)+"\n\n", 100)
		if _, err := io.Copy(io.Discard, open(t, t.Context(), bound.Over(answering("text/event-stream", small)))); err != nil {
			t.Errorf("a stream of small events: %v", err)
		}
		why := errors.New("the call is over")
		cancel(why)
		for range 3 {
			if err := <-read; !errors.Is(err, why) {
				t.Errorf("one that waited ended with %v", err)
			}
		}
		synctest.Wait()
		for _, body := range bodies {
			body.Close() // a second time is harmless
		}
		if n := len(bound.slots); n != 0 {
			t.Errorf("%d places are still taken", n)
		}
	})
}
