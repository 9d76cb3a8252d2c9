package client_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
)

func TestASignedURLNeedsNoKey(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	f := c.Files(sandbox(t, c))
	put, err := f.Sign(ctx, "/tmp/up", client.SignOptions{Method: http.MethodPut, TTL: time.Minute, MaxBytes: 3})
	if err != nil || put.MaxBytes != 3 || time.Until(put.ExpiresAt) > time.Minute {
		t.Fatalf("signed %+v, %v", put, err)
	}
	send := func(content string) int {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, put.URL, strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if status := send("four"); status != http.StatusRequestEntityTooLarge {
		t.Errorf("more than was signed for: %d", status)
	}
	if status := send("abc"); status != http.StatusCreated {
		t.Errorf("put: %d", status)
	}
	get, err := f.Sign(ctx, "/tmp/up", client.SignOptions{})
	if err != nil || get.Method != http.MethodGet {
		t.Fatalf("signed %+v, %v", get, err)
	}
	res, err := http.Get(get.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if content, err := io.ReadAll(res.Body); err != nil || string(content) != "abc" {
		t.Errorf("got %q, %v", content, err)
	}
	http.DefaultClient.CloseIdleConnections()
}
