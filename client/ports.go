package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Ports are the servers inside one sandbox that the outside may reach.
type Ports struct {
	c       *Client
	sandbox string
}

// Ports are those of a sandbox.
func (c *Client) Ports(sandbox string) *Ports { return &Ports{c: c, sandbox: sandbox} }

// Port is a port of a sandbox that has an address of its own outside.
type Port struct {
	Port      int       `json:"port"`
	Public    bool      `json:"public"` // needs no token
	URL       string    `json:"url"`
	Token     string    `json:"token"` // "" when public; see [Port.Request]
	CreatedAt time.Time `json:"created_at"`

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (p *Port) UnmarshalJSON(data []byte) error {
	type plain Port
	return keeping(data, (*plain)(p), &p.Raw)
}

// MarshalJSON writes the object as it came.
func (p Port) MarshalJSON() ([]byte, error) {
	type plain Port
	return orRaw(p.Raw, plain(p))
}

// TokenHeader carries a port's token.
const TokenHeader = "Cay-Port-Token"

// TokenURL is the port's address with its token, for a browser: it trades the token for a cookie.
func (p *Port) TokenURL() string {
	u, err := url.Parse(p.URL)
	if err != nil || p.Token == "" {
		return p.URL
	}
	q := u.Query()
	q.Set("cay_port_token", p.Token)
	u.RawQuery = q.Encode()
	return u.String()
}

// Request is a request to a path of the server behind the port, with the token. The name in a local server's URLs ends in .localhost,
// which browsers take for this machine and not every resolver does; [Ports.Do] needs no name.
func (p *Port) Request(ctx context.Context, method, path string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(p.URL, "/")+"/"+strings.TrimLeft(path, "/"), nil)
	if err != nil {
		return nil, fmt.Errorf("request to port %d: %w", p.Port, err)
	}
	if p.Token != "" {
		r.Header.Set(TokenHeader, p.Token)
	}
	return r, nil
}

// ExposeOptions says who may reach a port.
type ExposeOptions struct {
	Public bool // everyone; else those with its token
}

// Expose gives a port an address outside. The server behind it may listen on the sandbox's loopback and need not run yet. A port
// that has one keeps it, and its token; who may reach it is as asked last.
func (p *Ports) Expose(ctx context.Context, port int, o ExposeOptions) (*Port, error) {
	r, err := keyedPost(p.path(), map[string]any{"port": port, "public": o.Public}, "")
	if err != nil {
		return nil, err
	}
	out := new(Port)
	if _, err := p.c.json(ctx, r, out); err != nil {
		return nil, fmt.Errorf("expose port %d of %s: %w", port, p.sandbox, err)
	}
	return out, nil
}

// List answers the ports that are exposed.
func (p *Ports) List(ctx context.Context) ([]Port, error) {
	return collect[Port](ctx, p.c, p.path(), nil, "list ports of "+p.sandbox)
}

// Close takes a port's address away and cuts its connections.
func (p *Ports) Close(ctx context.Context, port int) error {
	if _, err := p.c.json(ctx, &call{method: http.MethodDelete, path: p.path(strconv.Itoa(port))}, nil); err != nil {
		return fmt.Errorf("close port %d of %s: %w", port, p.sandbox, err)
	}
	return nil
}

// URL is where the API itself passes requests on to a port, exposed or not, for those who send the API key; see [Ports.Do].
func (p *Ports) URL(port int) string {
	return p.c.endpoint(nil, p.path(strconv.Itoa(port))...) + "/"
}

// Do sends r to a server inside the sandbox by way of the API with the client's key, which the server inside does not get to see.
// The path and query of r.URL count, its host does not; the port need not be exposed. The caller closes the answer's body. Whatever
// the server inside answers is no error; what Cay itself refuses comes as a problem document in the answer, as a proxy's would. A GET
// or HEAD is repeated as [Options.MaxRetries] allows while nothing listens there, as at the start of a server.
func (p *Ports) Do(r *http.Request, port int) (*http.Response, error) {
	target, err := url.Parse(strings.TrimSuffix(p.URL(port), "/") + "/" + strings.TrimPrefix(r.URL.EscapedPath(), "/"))
	if err != nil {
		return nil, fmt.Errorf("request to port %d of %s: %w", port, p.sandbox, err)
	}
	target.RawQuery = r.URL.RawQuery
	safe := (r.Method == "" || r.Method == http.MethodGet || r.Method == http.MethodHead) && (r.Body == nil || r.Body == http.NoBody)
	for attempt := 0; ; attempt++ {
		out := r.Clone(r.Context())
		out.URL, out.Host, out.RequestURI = target, "", ""
		p.c.authorize(out.Header)
		res, err := p.c.http.Do(out)
		if err != nil {
			return nil, fmt.Errorf("request to port %d of %s: %w", port, p.sandbox, err)
		}
		if !safe || res.StatusCode != http.StatusServiceUnavailable {
			return res, nil
		}
		refused := errorOf(res)
		res.Body.Close()
		wait, again := p.c.retry.next(attempt, refused)
		if refused.Reason != ReasonUnavailable || !again {
			res.Body = io.NopCloser(bytes.NewReader(refused.Body))
			return res, nil
		}
		if err := sleep(r.Context(), wait); err != nil {
			return nil, fmt.Errorf("request to port %d of %s: %w", port, p.sandbox, err)
		}
	}
}

func (p *Ports) path(more ...string) []string {
	return sandboxPath(p.sandbox, append([]string{"ports"}, more...)...)
}
