package noderpc_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/observe/tracing"
	"github.com/cayhq/cay/internal/wire/noderpc"
)

func TestACallOfATraceHasASpanOnEitherSideAndOthersHaveNone(t *testing.T) {
	to := tracetest.NewSpanRecorder()
	uninstall, err := tracing.Install(t.Context(), tracing.Config{Service: "test"}, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := uninstall(context.Background()); err != nil {
			t.Error(err)
		}
	})
	mux := http.NewServeMux()
	mux.Handle("/service/Ask", connect.NewUnaryHandler("/service/Ask",
		func(context.Context, *connect.Request[emptypb.Empty]) (*connect.Response[emptypb.Empty], error) {
			return nil, noderpc.Encode(cay.Errorf(cay.NoCapacity, "not to be told"))
		}, noderpc.Traced()))
	mux.Handle("/service/Follow", connect.NewServerStreamHandler("/service/Follow",
		func(_ context.Context, _ *connect.Request[emptypb.Empty], s *connect.ServerStream[emptypb.Empty]) error {
			return s.Send(&emptypb.Empty{})
		}, noderpc.Traced()))
	server := httptest.NewServer(mux)
	defer server.Close()
	ask := connect.NewClient[emptypb.Empty, emptypb.Empty](server.Client(), server.URL+"/service/Ask", noderpc.Traced())
	follow := connect.NewClient[emptypb.Empty, emptypb.Empty](server.Client(), server.URL+"/service/Follow", noderpc.Traced())

	call := func(ctx context.Context) {
		if _, err := ask.CallUnary(ctx, connect.NewRequest(&emptypb.Empty{})); cay.ReasonOf(noderpc.Decode(err)) != cay.NoCapacity {
			t.Fatal(err)
		}
		stream, err := follow.CallServerStream(ctx, connect.NewRequest(&emptypb.Empty{}))
		if err != nil {
			t.Fatal(err)
		}
		for stream.Receive() {
		}
		if err := stream.Close(); err != nil {
			t.Fatal(err)
		}
	}
	call(t.Context())
	if n := len(to.Started()); n != 0 {
		t.Errorf("calls of no trace made %d spans", n)
	}
	call(tracing.With(t.Context(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	server.Close() // the server's side may end after its answer
	var names []string
	for _, s := range to.Ended() {
		names = append(names, s.Name()+" "+s.SpanKind().String())
		if s.Status().Description != "" {
			t.Errorf("%s says %q", s.Name(), s.Status().Description)
		}
		if s.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s is of another trace", s.Name())
		}
	}
	slices.Sort(names)
	if want := []string{"node.Ask client", "node.Ask server", "node.Follow client", "node.Follow server"}; !slices.Equal(names, want) {
		t.Errorf("spans: %v", names)
	}
}
