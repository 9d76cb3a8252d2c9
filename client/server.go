package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Info answers what the server is and can do.
func (c *Client) Info(ctx context.Context) (*Info, error) {
	info := new(Info)
	_, err := c.json(ctx, &call{method: http.MethodGet, path: []string{"v1", "info"}}, info)
	return orNil(info, err)
}

// Runtimes answers the languages that sandboxes can be asked for by name.
func (c *Client) Runtimes(ctx context.Context) ([]Runtime, error) {
	var raw json.RawMessage
	if _, err := c.json(ctx, &call{method: http.MethodGet, path: []string{"v1", "runtimes"}}, &raw); err != nil {
		return nil, err
	}
	var p page[Runtime]
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("decode runtimes: %w", err)
	}
	return p.Items, nil
}

// Ready answers nil when the server can serve sandboxes, else why not.
func (c *Client) Ready(ctx context.Context) error {
	_, err := c.json(ctx, &call{method: http.MethodGet, path: []string{"readyz"}}, nil)
	return err
}

// Healthy answers nil when the server answers at all.
func (c *Client) Healthy(ctx context.Context) error {
	_, err := c.json(ctx, &call{method: http.MethodGet, path: []string{"healthz"}}, nil)
	return err
}

// OpenAPI answers the server's own description of its API.
func (c *Client) OpenAPI(ctx context.Context) (json.RawMessage, error) {
	var doc json.RawMessage
	if _, err := c.json(ctx, &call{method: http.MethodGet, path: []string{"openapi.json"}}, &doc); err != nil {
		return nil, fmt.Errorf("get openapi.json: %w", err)
	}
	return doc, nil
}

// ServerMetrics opens the server's own figures in Prometheus' text format. The caller closes the reader.
func (c *Client) ServerMetrics(ctx context.Context) (io.ReadCloser, error) {
	res, err := c.do(ctx, &call{method: http.MethodGet, path: []string{"metrics"}})
	if err != nil {
		return nil, fmt.Errorf("get metrics: %w", err)
	}
	return res.Body, nil
}

// Ticket lets a browser make one request without the key.
type Ticket struct {
	Ticket    string    `json:"ticket"` // for the parameter ticket of the request's query
	ExpiresAt time.Time `json:"expires_at"`
}

// Ticket makes a ticket that is good once, for a minute, for a GET, a stream or a WebSocket of exactly that address: path and query.
func (c *Client) Ticket(ctx context.Context, address string) (*Ticket, error) {
	r, err := keyedPost([]string{"v1", "tickets"}, map[string]string{"method": http.MethodGet, "url": address}, "")
	if err != nil {
		return nil, err
	}
	out := new(Ticket)
	if _, err := c.json(ctx, r, out); err != nil {
		return nil, fmt.Errorf("make a ticket: %w", err)
	}
	return out, nil
}
