package cay_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestAnErrorIsMatchedByReasonThroughWrapping(t *testing.T) {
	err := fmt.Errorf("look: %w", cay.Errorf(cay.NotFound, "there is no sandbox %s", "x"))
	if !errors.Is(err, &cay.Error{Reason: cay.NotFound}) || errors.Is(err, &cay.Error{Reason: cay.Gone}) {
		t.Error("matched by the wrong reason")
	}
	if cay.ReasonOf(err) != cay.NotFound || cay.ReasonOf(nil) != "" || cay.ReasonOf(io.EOF) != cay.Internal {
		t.Error("the reason is wrong")
	}
}

func TestAPrivateCauseIsNoPartOfTheDetail(t *testing.T) {
	err := cay.Errorf(cay.Unavailable, "try again").Because(io.EOF).On("cpu").After(time.Second).With("limit_bytes", 3)
	if err.Detail != "try again" || !errors.Is(err, io.EOF) || err.Field != "cpu" || err.RetryAfter != time.Second || err.Extra["limit_bytes"] != 3 {
		t.Errorf("got %+v", err)
	}
}

func TestEveryReasonHasAStatusAndAnUnknownOneIs500(t *testing.T) {
	for reason, want := range map[cay.ErrorReason]int{
		cay.InvalidRequest: 400, cay.Unauthorized: 401, cay.NotFound: 404, cay.NotReady: 409, cay.Gone: 410, cay.PayloadTooLarge: 413,
		cay.Unprocessable: 422, cay.QuotaExceeded: 429, cay.NotImplemented: 501, cay.BootFailed: 502, cay.NoCapacity: 503,
		cay.Timeout: 504, cay.DiskFull: 507, "made up": 500,
	} {
		if got := reason.HTTPStatus(); got != want {
			t.Errorf("%s: %d, want %d", reason, got, want)
		}
	}
}
