package cay

import (
	"errors"
	"fmt"
	"time"
)

// ErrorReason is the stable, machine-readable name of what went wrong. Clients match on it; it never changes its meaning.
type ErrorReason string

// Reasons, each with the HTTP status that the API answers (see [ErrorReason.HTTPStatus]).
const (
	InvalidRequest      ErrorReason = "invalid_request"
	Unauthorized        ErrorReason = "unauthorized"
	Forbidden           ErrorReason = "forbidden"
	NotFound            ErrorReason = "not_found"
	MethodNotAllowed    ErrorReason = "method_not_allowed"
	Conflict            ErrorReason = "conflict"
	NotReady            ErrorReason = "not_ready"
	SandboxPaused       ErrorReason = "paused"
	AlreadyExists       ErrorReason = "already_exists"
	IdempotencyMismatch ErrorReason = "idempotency_mismatch"
	Gone                ErrorReason = "gone"
	PreconditionFailed  ErrorReason = "precondition_failed"
	PayloadTooLarge     ErrorReason = "payload_too_large"
	UnsupportedMedia    ErrorReason = "unsupported_media_type"
	RangeNotSatisfiable ErrorReason = "range_not_satisfiable"
	Unprocessable       ErrorReason = "unprocessable"
	InvalidImage        ErrorReason = "invalid_image"
	RateLimited         ErrorReason = "rate_limited"
	QuotaExceeded       ErrorReason = "quota_exceeded"
	Internal            ErrorReason = "internal"
	NotImplemented      ErrorReason = "not_implemented"
	BootFailed          ErrorReason = "boot_failed"
	NoCapacity          ErrorReason = "no_capacity"
	Unavailable         ErrorReason = "unavailable"
	WorkerLost          ErrorReason = "worker_lost"
	Timeout             ErrorReason = "timeout"
	DiskFull            ErrorReason = "disk_full"

	// SlowConsumer ends a stream whose reader made no progress; it is a stream's error, never a response's status.
	SlowConsumer ErrorReason = "slow_consumer"
)

var httpStatus = map[ErrorReason]int{
	InvalidRequest: 400, Unauthorized: 401, Forbidden: 403, NotFound: 404, MethodNotAllowed: 405,
	Conflict: 409, NotReady: 409, SandboxPaused: 409, AlreadyExists: 409, IdempotencyMismatch: 409,
	Gone: 410, PreconditionFailed: 412, PayloadTooLarge: 413, UnsupportedMedia: 415, RangeNotSatisfiable: 416,
	Unprocessable: 422, InvalidImage: 422, RateLimited: 429, QuotaExceeded: 429,
	Internal: 500, NotImplemented: 501, BootFailed: 502,
	NoCapacity: 503, Unavailable: 503, WorkerLost: 503, Timeout: 504, DiskFull: 507, SlowConsumer: 503,
}

// HTTPStatus is the status code the API answers with for r; 500 for a reason it does not know.
func (r ErrorReason) HTTPStatus() int {
	if s, ok := httpStatus[r]; ok {
		return s
	}
	return 500
}

// Error is the one error type that crosses zones. Detail is meant for the caller: it says what was wrong and what to do, and
// holds nothing of the inside. Cause is for the log alone.
type Error struct {
	Reason     ErrorReason
	Detail     string
	Field      string         // the request field at fault, where there is one
	RetryAfter time.Duration  // zero: not said
	Extra      map[string]any // further members of the problem document, such as limit_bytes or status
	Cause      error
}

// Errorf makes an Error whose detail is formatted. A %w among the arguments becomes the cause and is also part of the detail, so
// use it for causes that the caller may see; [Error.Because] attaches one that it may not.
func Errorf(reason ErrorReason, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Reason: reason, Detail: wrapped.Error(), Cause: errors.Unwrap(wrapped)}
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Reason, e.Detail, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Detail)
}

func (e *Error) Unwrap() error { return e.Cause }

// Because attaches a private cause.
func (e *Error) Because(cause error) *Error { e.Cause = cause; return e }

// On names the request field at fault.
func (e *Error) On(field string) *Error { e.Field = field; return e }

// After says when trying again makes sense.
func (e *Error) After(d time.Duration) *Error { e.RetryAfter = d; return e }

// With adds a member to the problem document.
func (e *Error) With(key string, value any) *Error {
	if e.Extra == nil {
		e.Extra = map[string]any{}
	}
	e.Extra[key] = value
	return e
}

// Is makes errors.Is match by reason, so that errors.Is(err, &Error{Reason: NotFound}) holds for any not-found error.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Reason == e.Reason && t.Detail == ""
}

// ReasonOf is the reason of the first *Error in err's chain; Internal for another error, "" for nil.
func ReasonOf(err error) ErrorReason {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return Internal
}
