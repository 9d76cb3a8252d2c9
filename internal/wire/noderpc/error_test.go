package noderpc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
)

func TestADomainErrorKeepsReasonDetailAndFieldOverTheWire(t *testing.T) {
	in := cay.Errorf(cay.Unprocessable, "cwd /nope does not exist").On("cwd").After(1500 * time.Millisecond).Because(errors.New("secret inside"))
	var out *cay.Error
	if !errors.As(Decode(Encode(in)), &out) {
		t.Fatal("no domain error comes back")
	}
	if out.Reason != in.Reason || out.Detail != in.Detail || out.Field != "cwd" || out.RetryAfter != in.RetryAfter {
		t.Errorf("got %+v", out)
	}
	if strings.Contains(out.Error(), "secret inside") {
		t.Error("the private cause crosses the wire")
	}
}

func TestAnUnknownErrorSaysNothingOfTheInside(t *testing.T) {
	err := Encode(errors.New("open /var/lib/cay/x: permission denied"))
	if strings.Contains(err.Error(), "/var/lib") {
		t.Errorf("got %v", err)
	}
	if r := cay.ReasonOf(Decode(err)); r != cay.Internal {
		t.Errorf("reason %s", r)
	}
}

func TestANodeThatCannotBeReachedIsUnavailable(t *testing.T) {
	err := Decode(connect.NewError(connect.CodeUnavailable, errors.New("dial unix: connection refused")))
	var e *cay.Error
	if !errors.As(err, &e) || e.Reason != cay.Unavailable || e.RetryAfter == 0 {
		t.Errorf("got %v", err)
	}
	if !errors.Is(Decode(connect.NewError(connect.CodeCanceled, context.Canceled)), context.Canceled) {
		t.Error("a cancelation is not one afterwards")
	}
}
