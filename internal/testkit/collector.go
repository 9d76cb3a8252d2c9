package testkit

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector receives traces by OTLP over HTTP.
type Collector struct {
	URL string

	mu     sync.Mutex
	spans  []TraceSpan // guarded by mu
	bodies bytes.Buffer
	header http.Header // of the last request; guarded by mu
	fault  error       // guarded by mu
}

// TraceSpan is a span as it was exported.
type TraceSpan struct {
	Trace, ID, Parent string // in hex; Parent "" of a root
	Service, Name     string
	Failed            bool
	Begin, End        time.Time
	Attributes        map[string]string
}

// StartCollector listens on loopback until the test ends.
func StartCollector(t testing.TB) *Collector {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &Collector{URL: "http://" + l.Addr().String()}
	server := &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // ends with Close
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
		if c.fault != nil {
			t.Error(c.fault)
		}
	})
	return c
}

// Env are the variables by which a server exports to it without delay.
func (c *Collector) Env() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.URL, "OTEL_BSP_SCHEDULE_DELAY=50"}
}

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender went away
	}
	var m coltrace.ExportTraceServiceRequest
	err = proto.Unmarshal(body, &m)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || r.URL.Path != "/v1/traces" {
		c.fault = fmt.Errorf("export to %s: %w", r.URL.Path, err)
	}
	c.bodies.Write(body)
	c.header = r.Header
	for _, of := range m.ResourceSpans {
		service := ""
		for _, kv := range of.Resource.GetAttributes() {
			if kv.Key == "service.name" {
				service = kv.Value.GetStringValue()
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				span := TraceSpan{
					Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
					Service: service, Name: s.Name, Failed: s.Status.GetCode() == 2, Attributes: map[string]string{},
					Begin: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)),
				}
				for _, kv := range s.Attributes {
					span.Attributes[kv.Key] = strings.Trim(strings.TrimPrefix(fmt.Sprint(kv.Value.GetValue()), "&"), "{}")
				}
				c.spans = append(c.spans, span)
			}
		}
	}
}

// Bytes is everything that was ever sent.
func (c *Collector) Bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.bodies.Bytes())
}

// Header is that of the last export.
func (c *Collector) Header() http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.header
}

// Trace is the spans that have come of one trace.
func (c *Collector) Trace(id string) []TraceSpan {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []TraceSpan
	for _, s := range c.spans {
		if s.Trace == id {
			out = append(out, s)
		}
	}
	return out
}

// Await waits until a trace holds a chain of spans from a client's own span down, each named SERVICE/NAME, and returns them.
func (c *Collector) Await(t testing.TB, trace, parent string, chain ...string) []TraceSpan {
	t.Helper()
	var found []TraceSpan
	Eventually(t, time.Minute, strings.Join(chain, " > "), func() error {
		spans := c.Trace(trace)
		if found = below(spans, parent, chain); found == nil {
			var there []string
			for _, s := range spans {
				there = append(there, fmt.Sprintf("%s/%s %s<%s", s.Service, s.Name, s.ID, s.Parent))
			}
			return fmt.Errorf("there are: %s", strings.Join(there, ", "))
		}
		return nil
	})
	return found
}

func below(spans []TraceSpan, parent string, chain []string) []TraceSpan {
	if len(chain) == 0 {
		return []TraceSpan{}
	}
	for _, s := range spans {
		if s.Parent != parent || s.Service+"/"+s.Name != chain[0] {
			continue
		}
		if rest := below(spans, s.ID, chain[1:]); rest != nil {
			return append([]TraceSpan{s}, rest...)
		}
	}
	return nil
}
