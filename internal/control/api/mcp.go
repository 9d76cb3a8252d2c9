package api

import (
	"bytes"
	"errors"
	"io"
	"net/http"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/observe/tracing"
)

// MCPPath is where Config.MCP is served.
const MCPPath = "/mcp"

const maxMCPBody = 4 << 20 // bytes of one message

// mcpRoute serves the Model Context Protocol, which is not of the OpenAPI document: its operations are tools. Any valid key is let in;
// what each tool does is a request of its own, with that key.
func (a *API) mcpRoute(mux *http.ServeMux) {
	mux.HandleFunc("POST "+MCPPath, func(w http.ResponseWriter, r *http.Request) {
		x := exchangeOf(r.Context())
		x.route = "POST " + MCPPath
		if a.MCP == nil {
			a.fail(w, r, cay.Errorf(cay.NotImplemented, "this server does not serve the Model Context Protocol"))
			return
		}
		var err error
		if x.identity, err = a.authenticate(r, nil, ""); err != nil {
			if cay.ReasonOf(err) == cay.Unauthorized {
				err = problem.From(err, x.requestID).WithHeader("WWW-Authenticate", "Bearer")
			}
			a.fail(w, r, err)
			return
		}
		body, err := readBody(r, maxMCPBody, x.bodies)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Set("X-Request-Id", x.requestID) // what it asks the API for is found by the same id and in the same trace
		if parent := tracing.Traceparent(r.Context()); parent != "" {
			r.Header.Set("Traceparent", parent)
		}
		a.MCP.ServeHTTP(w, r)
	})
}

// Refuse answers r with a problem: for handlers that the API is configured with.
func Refuse(w http.ResponseWriter, r *http.Request, status int, detail string) {
	reason := cay.InvalidRequest
	switch status {
	case http.StatusRequestEntityTooLarge:
		reason = cay.PayloadTooLarge
	case http.StatusUnsupportedMediaType:
		reason = cay.UnsupportedMedia
	case http.StatusServiceUnavailable:
		reason = cay.Unavailable
	case http.StatusInternalServerError:
		reason = cay.Internal
	}
	x := exchangeOf(r.Context())
	x.err = cay.Errorf(reason, "%s", detail)
	if err := problem.From(x.err, x.requestID).Write(w); err != nil {
		x.err = errors.Join(x.err, err)
	}
}
