package noderpc

import (
	"context"
	"errors"
	"io"
	"path"
	"sync"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// TraceHeader carries the trace of a call, as W3C Trace Context says.
const TraceHeader = "Traceparent"

// Traced makes a span of each call that belongs to a trace, on either side, and carries the trace over: node.Create and so on. A stream's span ends
// with the stream. Calls that nobody's request has caused, such as heartbeats, make none.
func Traced() connect.Option { return connect.WithInterceptors(traced{}) }

type traced struct{}

func rpcSpan(spec connect.Spec) string { return "node." + path.Base(spec.Procedure) }

// WrapUnary implements connect.Interceptor.
func (traced) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		spec := r.Spec()
		if !spec.IsClient {
			ctx = tracing.With(ctx, r.Header().Get(TraceHeader))
		}
		if !tracing.Within(ctx) {
			return next(ctx, r)
		}
		var span tracing.Span
		if spec.IsClient {
			ctx, span = tracing.StartClient(ctx, rpcSpan(spec))
			r.Header().Set(TraceHeader, tracing.Traceparent(ctx))
		} else {
			ctx, span = tracing.StartServer(ctx, rpcSpan(spec))
		}
		defer span.End()
		if m, ok := r.Any().(interface{ GetSandboxId() string }); ok && span.Recording() {
			if id, ok := cay.ParseID(cay.PrefixSandbox, m.GetSandboxId()); ok {
				span.Set(tracing.SandboxID(id))
			}
		}
		answer, err := next(ctx, r)
		failed(ctx, span, err)
		return answer, err
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (traced) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		if !tracing.Within(ctx) {
			return next(ctx, spec)
		}
		ctx, span := tracing.StartClient(ctx, rpcSpan(spec))
		conn := next(ctx, spec)
		conn.RequestHeader().Set(TraceHeader, tracing.Traceparent(ctx))
		if !span.Recording() {
			return conn
		}
		c := &tracedConn{StreamingClientConn: conn, ctx: func() context.Context { return ctx }, span: span}
		c.stop = context.AfterFunc(ctx, func() { c.end(nil) }) // of a stream that is left without being closed
		return c
	}
}

// tracedConn ends its span with its stream.
type tracedConn struct {
	connect.StreamingClientConn
	ctx  func() context.Context
	span tracing.Span
	stop func() bool
	once sync.Once
}

func (c *tracedConn) end(err error) {
	c.once.Do(func() {
		failed(c.ctx(), c.span, err)
		c.span.End()
	})
}

// Receive implements connect.StreamingClientConn.
func (c *tracedConn) Receive(m any) error {
	err := c.StreamingClientConn.Receive(m)
	if err != nil {
		c.stop()
		c.end(err)
	}
	return err
}

// CloseResponse implements connect.StreamingClientConn.
func (c *tracedConn) CloseResponse() error {
	c.stop()
	c.end(nil)
	return c.StreamingClientConn.CloseResponse()
}

// WrapStreamingHandler implements connect.Interceptor.
func (traced) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx = tracing.With(ctx, conn.RequestHeader().Get(TraceHeader))
		if !tracing.Within(ctx) {
			return next(ctx, conn)
		}
		ctx, span := tracing.StartServer(ctx, rpcSpan(conn.Spec()))
		defer span.End()
		err := next(ctx, conn)
		failed(ctx, span, err)
		return err
	}
}

// failed says why a call failed, unless it was its caller who ended it.
func failed(ctx context.Context, span tracing.Span, err error) {
	if err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil && span.Recording() {
		span.Fail(string(cay.ReasonOf(Decode(err))))
	}
}
