package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// metrics is what the API counts. Labels are patterns, codes and reasons, never what a client or a guest chooses.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
	streams  prometheus.Gauge
	output   prometheus.Counter
	panics   prometheus.Counter
	errors   map[cay.ErrorReason]prometheus.Counter
	starts   map[string]prometheus.Observer // by the kind of a start
}

// startKinds are the kinds of processes that the API starts.
var startKinds = []cay.RecordKind{cay.RecordExec, cay.RecordCode, cay.RecordProcess, cay.RecordTerminal}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	duration := func(name, help string, buckets ...float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}
	}
	problems := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cay_errors_total", Help: "Problems told to clients as an answer or at the end of a stream, by reason."}, []string{"reason"})
	starts := prometheus.NewHistogramVec(duration("cay_exec_start_duration_seconds", "From a request that starts a process to the process running, by what it is.",
		.001, .0025, .005, .01, .02, .04, .08, .15, .3, .6, 1.2, 2.5, 5, 15), []string{"kind"})
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cay_http_requests_total", Help: "Requests by route and status."}, []string{"route", "status"}),
		duration: prometheus.NewHistogramVec(duration("cay_http_request_duration_seconds", "Time from a request to the end of its answer, without WebSockets.",
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 15, 60, 300), []string{"route"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "cay_http_requests_in_flight", Help: "Requests that are being answered, streams included."}),
		streams:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "cay_streams", Help: "Open streams: server-sent events and WebSockets."}),
		output:   prometheus.NewCounter(prometheus.CounterOpts{Name: "cay_output_bytes_total", Help: "Bytes of process output that were passed on to clients."}),
		panics:   prometheus.NewCounter(prometheus.CounterOpts{Name: "cay_http_panics_total", Help: "Requests that ended in a panic."}),
		errors:   map[cay.ErrorReason]prometheus.Counter{},
		starts:   map[string]prometheus.Observer{},
	}
	for _, reason := range append(problem.Reasons(), cay.SlowConsumer) {
		m.errors[reason] = problems.WithLabelValues(string(reason))
	}
	for _, kind := range startKinds {
		m.starts[string(kind)] = starts.WithLabelValues(string(kind))
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration, m.inFlight, m.streams, m.output, m.panics, problems, starts} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("api: register metrics: %w", err)
		}
	}
	return m, nil
}

// answered counts an answer. A guest behind a port may choose any status, so that only those that HTTP knows have a series of their own.
func (m *metrics) answered(route string, status int, took time.Duration) {
	code := "other"
	if http.StatusText(status) != "" {
		code = strconv.Itoa(status)
	}
	m.requests.WithLabelValues(route, code).Inc()
	if status != http.StatusSwitchingProtocols {
		m.duration.WithLabelValues(route).Observe(took.Seconds())
	}
}

// told counts a problem, or what ended a stream. A client that has gone away was told nothing.
func (m *metrics) told(ctx context.Context, err error) {
	if err == nil || errors.Is(err, errClientGone) || errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return
	}
	if counter := m.errors[problem.From(err, "").Reason]; counter != nil {
		counter.Inc()
	}
}

// running takes the time from a request to its process's start. An attach is none.
func (m *metrics) running(first *nodev1.ProcessInput, since time.Time) {
	if observer := m.starts[first.GetStart().GetKind()]; observer != nil {
		observer.Observe(time.Since(since).Seconds())
	}
}

// metricsHandler shows what g gathers, as text, OpenMetrics or protobuf, as the client accepts. All who ask at the same time get the same.
func metricsHandler(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		EnableOpenMetrics: true, ErrorHandling: promhttp.ContinueOnError, CoalesceGather: true,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	})
}

func (a *API) showMetrics(w http.ResponseWriter, r *http.Request, _ *nothing) error {
	w.Header().Set("Cache-Control", "no-store")
	a.exposition.ServeHTTP(w, r)
	return nil
}

// MetricsOnly answers GET /metrics to whoever can reach it, and nothing else, for a listener that is Prometheus's alone.
func (a *API) MetricsOnly() http.Handler {
	return a.hostChecked(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/metrics":
			a.fail(w, r, cay.Errorf(cay.NotFound, "this listener has /metrics alone"))
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			a.fail(w, r, problem.From(cay.Errorf(cay.MethodNotAllowed, "%s is not possible here; GET is", clip(r.Method, 100)), "").WithHeader("Allow", "GET, HEAD"))
		default:
			_ = a.showMetrics(w, r, nil)
		}
	}))
}
