// Package noderpc carries domain errors over the service between control plane and node, and dials it. The messages are in nodev1.
package noderpc

import (
	"context"
	"errors"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
)

// Metadata keys of an error.
const (
	metaReason     = "cay-reason"
	metaField      = "cay-field"
	metaRetryAfter = "cay-retry-after-ms"
)

// codes maps reasons to the nearest Connect code; it matters only to tools that read the transport, since the reason travels along.
var codes = map[cay.ErrorReason]connect.Code{
	cay.InvalidRequest: connect.CodeInvalidArgument, cay.NotFound: connect.CodeNotFound, cay.Conflict: connect.CodeAborted,
	cay.AlreadyExists: connect.CodeAlreadyExists, cay.NotReady: connect.CodeFailedPrecondition, cay.Gone: connect.CodeNotFound,
	cay.PreconditionFailed: connect.CodeFailedPrecondition, cay.Unprocessable: connect.CodeInvalidArgument,
	cay.NoCapacity: connect.CodeResourceExhausted, cay.Unavailable: connect.CodeUnavailable, cay.Timeout: connect.CodeDeadlineExceeded,
	cay.NotImplemented: connect.CodeUnimplemented, cay.DiskFull: connect.CodeResourceExhausted,
}

// Encode turns err into what a handler returns. The private cause is dropped; an error that is no *cay.Error says nothing.
func Encode(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) && !errors.As(err, new(*cay.Error)) {
		return connect.NewError(connect.CodeCanceled, err)
	}
	e := domain(err)
	code, ok := codes[e.Reason]
	if !ok {
		code = connect.CodeInternal
	}
	ce := connect.NewError(code, errors.New(e.Detail))
	ce.Meta().Set(metaReason, string(e.Reason))
	if e.Field != "" {
		ce.Meta().Set(metaField, e.Field)
	}
	if e.RetryAfter > 0 {
		ce.Meta().Set(metaRetryAfter, strconv.FormatInt(e.RetryAfter.Milliseconds(), 10))
	}
	return ce
}

// domain is err as the other side may see it.
func domain(err error) *cay.Error {
	var e *cay.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return &cay.Error{Reason: cay.Timeout, Detail: "the node did not finish in time"}
	default:
		return &cay.Error{Reason: cay.Internal, Detail: "the node failed"}
	}
}

// Decode turns what a call returned into a domain error. A node that cannot be reached is cay.Unavailable.
func Decode(err error) error {
	if err == nil {
		return nil
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return err
	}
	if reason := ce.Meta().Get(metaReason); reason != "" {
		e := &cay.Error{Reason: cay.ErrorReason(reason), Detail: ce.Message(), Field: ce.Meta().Get(metaField), Cause: nil}
		if ms, err := strconv.ParseInt(ce.Meta().Get(metaRetryAfter), 10, 64); err == nil && ms > 0 {
			e.RetryAfter = time.Duration(ms) * time.Millisecond
		}
		return e
	}
	unreachable := cay.Errorf(cay.Unavailable, "the worker cannot be reached; try again").After(time.Second).Because(err)
	switch code := ce.Code(); {
	case code == connect.CodeCanceled && errors.Is(err, context.Canceled):
		return context.Canceled
	case code == connect.CodeCanceled: // what a connection that breaks while writing, or a node that stops, looks like
		return unreachable
	case code == connect.CodeDeadlineExceeded:
		return context.DeadlineExceeded
	case code == connect.CodeUnavailable, code == connect.CodeUnknown:
		return unreachable
	case !connect.IsWireError(err) && code != connect.CodeResourceExhausted: // made up on this side: the transport failed
		return unreachable
	default:
		return &cay.Error{Reason: cay.Internal, Detail: "the worker failed", Cause: err}
	}
}
