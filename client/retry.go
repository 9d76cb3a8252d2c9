package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"
)

const (
	defaultRetries = 3
	firstBackoff   = 100 * time.Millisecond
	maxBackoff     = 3 * time.Second
	maxRetryAfter  = 30 * time.Second // a server that asks for more is answered to the caller instead
)

type retryPolicy struct{ max int }

func newRetryPolicy(asked int) retryPolicy {
	switch {
	case asked < 0:
		return retryPolicy{}
	case asked == 0:
		return retryPolicy{defaultRetries}
	}
	return retryPolicy{asked}
}

// next says whether the attempt that failed with err is worth another, and after how long. It does not know whether repeating the
// request is safe.
func (p retryPolicy) next(attempt int, err error) (time.Duration, bool) {
	if attempt >= p.max {
		return 0, false
	}
	after, ok := transient(err)
	if !ok || after > maxRetryAfter {
		return 0, false
	}
	if after > 0 {
		return after, true
	}
	return backoff(attempt), true
}

// transient says whether err may go away by itself, and what the server asked to wait: a broken connection, 429, 503 and a
// proxy's 502 or 504 (which carry no reason of ours).
func transient(err error) (time.Duration, bool) {
	if local := (*localError)(nil); errors.As(err, &local) {
		return 0, false
	}
	var e *Error
	if !errors.As(err, &e) {
		return 0, !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
	}
	switch e.Status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return e.RetryAfter, e.Reason != ReasonQuotaExceeded
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return e.RetryAfter, e.Reason == ""
	}
	return 0, false
}

// backoff doubles from 100 ms to 3 s; half of it is random, so that many clients don't come back together.
func backoff(attempt int) time.Duration {
	d := min(firstBackoff<<min(attempt, 10), maxBackoff)
	return d/2 + rand.N(d/2+1)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// localError is a fault on this side, such as an unreadable file: repeating the request cannot mend it.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }
