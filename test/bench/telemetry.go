package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay/test/bench/harness"
)

// Contenders of the telemetry group.
const (
	telemetryOff    = "Cay, no commands in the history, no traces"
	telemetryUsual  = "Cay, history and metrics as usual, scraped each second"
	telemetryTraces = "Cay, every request traced to a receiver on loopback"
)

// telemetryBurst is how many execs in a row are one sample: what is written behind falls on all of them.
const telemetryBurst = 25

// telemetry measures what observing costs an exec of true, with servers of its own that take turns.
func (b *bench) telemetry(ctx context.Context, budget time.Duration) (group harness.Group) {
	group = harness.Group{Name: "telemetry", Title: "An exec of /bin/true, of 25 in a row, by what is observed of it", Unit: "ms", Base: telemetryOff}
	spans, err := newReceiver()
	if err != nil {
		group.Series = []harness.Series{harness.Absent(telemetryTraces, err.Error())}
		return group
	}
	defer spans.stop()
	var contenders []harness.Contender
	for _, c := range []struct {
		name   string
		env    []string
		scrape bool
	}{
		{telemetryOff, []string{"CAY_HISTORY_COMMANDS=false"}, false},
		{telemetryUsual, nil, true},
		{telemetryTraces, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + spans.url, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_TRACES_SAMPLER=always_on"}, false},
	} {
		s, err := startServer(ctx, 0, c.env...)
		if err != nil {
			group.Series = append(group.Series, harness.Absent(c.name, err.Error()))
			continue
		}
		defer func() {
			if err := s.Close(); err != nil {
				progress("telemetry: %v", err)
			}
		}()
		box, err := s.create(ctx)
		if err != nil {
			group.Series = append(group.Series, harness.Absent(c.name, err.Error()))
			continue
		}
		scraped := time.Time{}
		contenders = append(contenders, harness.Contender{Name: c.name, Sample: func(ctx context.Context) (float64, error) {
			took, err := harness.Millis(func() error {
				if c.scrape && time.Since(scraped) > time.Second {
					scraped = time.Now()
					if resp, err := s.Do(ctx, "GET", "/metrics", nil); err != nil || resp.Status != 200 {
						return errors.Join(err, errors.New("no metrics: "+resp.String()))
					}
				}
				for range telemetryBurst {
					if err := s.exec(ctx, box.ID, "", "/bin/true"); err != nil {
						return err
					}
				}
				return nil
			})
			return took / telemetryBurst, err
		}})
	}
	group.Series = append(harness.Interleave(ctx, b.plan(60, budget), contenders), group.Series...)
	progress("telemetry: the receiver of traces got %d requests", spans.requests.Load())
	return group
}

// receiver takes traces by OTLP over HTTP and throws them away.
type receiver struct {
	url      string
	requests atomic.Int64
	server   *http.Server
	done     chan struct{}
}

func newReceiver() (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + l.Addr().String(), done: make(chan struct{})}
	r.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		r.requests.Add(1)
		w.Header().Set("Content-Type", "application/x-protobuf")
	})}
	go func() {
		defer close(r.done)
		_ = r.server.Serve(l)
	}()
	return r, nil
}

func (r *receiver) stop() {
	_ = r.server.Close()
	<-r.done
}
