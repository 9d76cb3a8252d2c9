package app

import (
	"log/slog"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/internal/app/inprocess"
	"github.com/cayhq/cay/internal/control/api"
	"github.com/cayhq/cay/internal/mcp"
)

// passedOn are the headers of a request to /mcp that the requests made for it have as well: the key, what finds them in the logs and in
// traces, and how the client reached this server, for URLs in answers.
var passedOn = []string{"Authorization", "X-API-Key", "X-Request-Id", "Traceparent", "Tracestate", "X-Forwarded-Proto", "User-Agent"}

// maxLargeEvents bounds the results of programs, of up to 64 MiB each, that are in memory for all callers together.
const maxLargeEvents = 4

// newMCP makes what serves /mcp: a client of the API in this process, with the key of whoever asks.
func newMCP(transport *inprocess.Transport, metrics *prometheus.Registry, log *slog.Logger) (*mcp.Handler, error) {
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cay_mcp_calls_total", Help: "Calls of MCP tools that have ended, by tool and result: ok, error, canceled, panic.",
	}, []string{"tool", "result"})
	if err := metrics.Register(calls); err != nil {
		return nil, err
	}
	large := mcp.NewLargeEvents(maxLargeEvents)
	return mcp.NewHandler(mcp.HTTPConfig{
		Config: mcp.Config{
			Version: Version, Logger: log,
			Observe: func(tool, result string) { calls.WithLabelValues(tool, result).Inc() },
		},
		Caller: func(r *http.Request) (mcp.Caller, error) {
			c, err := client.New(client.Options{
				URL: api.OriginOf(r), HTTPClient: &http.Client{Transport: large.Over(transport.On(r, passedOn...))},
			})
			return mcp.Caller{Client: c, Scope: mcp.ScopeOf(keyOf(r.Header))}, err
		},
		Refuse: api.Refuse,
	}), nil
}

// keyOf is the key of a request that the API has let in.
func keyOf(h http.Header) string {
	if _, key, ok := strings.Cut(h.Get("Authorization"), " "); ok {
		return strings.TrimSpace(key)
	}
	return strings.TrimSpace(h.Get("X-API-Key"))
}
