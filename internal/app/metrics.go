package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/net/netutil"
)

// newRegistry is where all parts of a server register what they measure.
func newRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// listenForMetrics opens the listener of /metrics; nil without an address. urlFile is as for listen.
func listenForMetrics(ctx context.Context, address, urlFile string) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	l, err := listen(ctx, address, urlFile)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for Prometheus: %w; choose another address with CAY_METRICS_LISTEN", address, err)
	}
	return l, nil
}

// inheritListener takes over a listener that `cay up` has opened.
func inheritListener(fd uintptr) (net.Listener, error) {
	f := os.NewFile(fd, "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("take over the listener on descriptor %d: %w", fd, err)
	}
	return l, nil
}

// maxScrapers bounds the connections to the listener for metrics, which anybody may open who can reach it.
const maxScrapers = 32

// serveMetrics answers /metrics without a key until stop is called.
func serveMetrics(handler http.Handler, listener net.Listener, log *slog.Logger) (stop func()) {
	at := listener.Addr().(*net.TCPAddr)
	log.Info("metrics are shown without a key", "url", "http://"+reachableAddr(at)+"/metrics")
	if !at.IP.IsLoopback() {
		log.Warn("metrics_listen is no loopback address: whoever reaches it sees how much is done here, and how it goes", "address", at.String())
	}
	server := &http.Server{
		Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(netutil.LimitListener(listener, maxScrapers)); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are shown no longer", "error", err)
		}
	}()
	return func() {
		_ = server.Close() // a scrape can be had again
		<-done
	}
}
