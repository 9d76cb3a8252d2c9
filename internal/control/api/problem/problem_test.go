package problem

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func write(t *testing.T, err error) (*httptest.ResponseRecorder, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	w.Header().Set("Content-Length", "99")
	if err := From(err, "req_1").Write(w); err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
		t.Fatal(err)
	}
	return w, m
}

func TestADocumentHasItsMembersAndTheErrors(t *testing.T) {
	w, m := write(t, cay.Errorf(cay.Gone, "it is gone").On("id").With("status", "TERMINATED").With("status_reason", "oom"))
	for k, want := range map[string]any{"type": "urn:cay:problem:gone", "status": 410.0, "reason": "gone", "detail": "it is gone", "request_id": "req_1", "field": "id", "state": "TERMINATED", "status_reason": "oom"} {
		if m[k] != want {
			t.Errorf("%s is %v, want %v", k, m[k], want)
		}
	}
	if w.Code != 410 || w.Header().Get("Content-Type") != ContentType || w.Header().Get("Content-Length") != "" {
		t.Errorf("got %d %v", w.Code, w.Header())
	}
}

func TestRetryAfterIsInWholeSecondsAndNeverTooEarly(t *testing.T) {
	for err, want := range map[*cay.Error]string{
		cay.Errorf(cay.Unavailable, "x").After(1200 * time.Millisecond): "2", cay.Errorf(cay.NotReady, "x"): "1",
		cay.Errorf(cay.RateLimited, "x").After(time.Minute): "60", cay.Errorf(cay.NotFound, "x"): "",
	} {
		if w, _ := write(t, err); w.Header().Get("Retry-After") != want {
			t.Errorf("%v: got %q, want %q", err, w.Header().Get("Retry-After"), want)
		}
	}
}

func TestTheInsideStaysInside(t *testing.T) {
	for _, err := range []error{errors.New("dial /run/secret"), cay.Errorf(cay.Internal, "secret"), cay.Errorf(cay.Unavailable, "busy").Because(errors.New("secret")), cay.Errorf("no_such_reason", "x")} {
		if w, _ := write(t, err); strings.Contains(w.Body.String(), "secret") || w.Code < 500 {
			t.Errorf("%v: got %d %s", err, w.Code, w.Body)
		}
	}
}
