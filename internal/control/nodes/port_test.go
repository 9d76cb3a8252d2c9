package nodes_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
)

func TestAConnectionToAPortCarriesBytesFromTheFirstOne(t *testing.T) {
	id := cay.NewID(cay.PrefixSandbox)
	w := start(t, func(w *world) {
		w.node.OnPort = func(rw http.ResponseWriter, r *http.Request) {
			if r.PathValue("sandbox") != string(id) || r.PathValue("port") != "80" || r.Header.Get("Upgrade") != noderpc.PortProtocol {
				noderpc.Refuse(rw, cay.Errorf(cay.InvalidRequest, "asked for %s with %v", r.URL, r.Header))
				return
			}
			conn, in, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			// The first bytes come with the answer.
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: cay-port\r\n\r\nhello ")
			_, _ = io.Copy(conn, in)
		}
	})
	<-w.ready
	conn, err := w.DialPort(t.Context(), w.node.Worker, id, 80)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "world"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello world" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestARefusedConnectionToAPortIsADomainError(t *testing.T) {
	var answer atomic.Pointer[http.HandlerFunc] // one that was broken off may still be running
	w := start(t, func(w *world) {
		w.node.OnPort = func(rw http.ResponseWriter, r *http.Request) { (*answer.Load())(rw, r) }
	})
	<-w.ready
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   cay.ErrorReason
		detail string
	}{
		"nothing listens": {func(rw http.ResponseWriter, _ *http.Request) {
			noderpc.Refuse(rw, cay.Errorf(cay.Unavailable, "nothing listens").After(time.Second).Because(errors.New("the inside")))
		}, cay.Unavailable, "nothing listens"},
		"paused": {func(rw http.ResponseWriter, _ *http.Request) {
			noderpc.Refuse(rw, cay.Errorf(cay.SandboxPaused, "paused"))
		}, cay.SandboxPaused, "paused"},
		"an unknown fault": {func(rw http.ResponseWriter, _ *http.Request) { noderpc.Refuse(rw, errors.New("the inside")) }, cay.Internal, "the node failed"},
		"no refusal":       {func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(200) }, cay.Unavailable, "the worker gave no usable answer; try again"},
		"no answer":        {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, cay.Unavailable, "the worker cannot be reached; try again"},
	} {
		answer.Store(&c.answer)
		_, err := w.DialPort(t.Context(), w.node.Worker, cay.NewID(cay.PrefixSandbox), 80)
		var e *cay.Error
		if !errors.As(err, &e) || e.Reason != c.want || e.Detail != c.detail {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestADialThatNobodyWaitsForEnds(t *testing.T) {
	asked, over := make(chan struct{}), make(chan struct{})
	w := start(t, func(w *world) {
		w.node.OnPort = func(_ http.ResponseWriter, r *http.Request) {
			close(asked)
			<-r.Context().Done() // the connection was closed
			close(over)
		}
	})
	<-w.ready
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	if _, err := w.DialPort(ctx, w.node.Worker, cay.NewID(cay.PrefixSandbox), 80); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	<-over
}
