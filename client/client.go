package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Options configures a [Client]. Only URL is needed by every server.
type Options struct {
	URL string // base address, such as http://127.0.0.1:8080
	Key string // API key; sent as a bearer token

	// HTTPClient carries every request, WebSocket handshakes included. It must not have a Timeout, which would cut streams.
	// Nil: a client of its own, whose idle connections [Client.Close] ends.
	HTTPClient *http.Client

	// UserAgent is put in front of the SDK's own.
	UserAgent string

	// MaxRetries bounds how often one request is repeated; 0 means 3, negative none.
	MaxRetries int

	// ReconnectFor bounds how long a broken stream tries to attach again without success; 0 means 2 minutes, negative not at all.
	ReconnectFor time.Duration
}

// Client is a connection to one server with one key. It is safe for concurrent use.
type Client struct {
	base         *url.URL
	key          string
	http         *http.Client
	ownHTTP      bool
	userAgent    string
	retry        retryPolicy
	reconnectFor time.Duration
	silence      time.Duration // a stream without a byte for this long is taken for broken; the server speaks every 15 s
}

const (
	defaultReconnect = 2 * time.Minute
	streamSilence    = 50 * time.Second
	maxAnswerBytes   = 768 << 20 // of a JSON answer: two streams of 256 MiB in base64, and some
	maxErrorBytes    = 64 << 10  // of an error's body that are kept
)

// New makes a client. It does not connect.
func New(o Options) (*Client, error) {
	base, err := parseBase(o.URL)
	if err != nil {
		return nil, err
	}
	c := &Client{
		base: base, key: o.Key, http: o.HTTPClient, userAgent: strings.TrimSpace(o.UserAgent + " cay-go"),
		retry: newRetryPolicy(o.MaxRetries), reconnectFor: o.ReconnectFor, silence: streamSilence,
	}
	if c.reconnectFor == 0 {
		c.reconnectFor = defaultReconnect
	}
	if c.http == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.DisableCompression = true // a file's Content-Length is its size
		transport.MaxIdleConnsPerHost = 32
		c.http, c.ownHTTP = &http.Client{Transport: transport}, true
	}
	return c, nil
}

// Close ends idle connections. Requests that run are not cut.
func (c *Client) Close() {
	if c.ownHTTP {
		c.http.CloseIdleConnections()
	}
}

// URL is the server's base address.
func (c *Client) URL() string { return c.base.String() }

func parseBase(raw string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	if err != nil {
		return nil, fmt.Errorf("parse server address: %w", err)
	}
	if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("server address %q is not of the form http://HOST:PORT", raw)
	}
	u.RawQuery, u.Fragment = "", ""
	return u, nil
}

// call is one API request. A body that is nil is none; open is called anew for every attempt.
type call struct {
	method string
	path   []string // segments after the base, each escaped as a whole
	query  url.Values
	header http.Header
	open   func() (io.Reader, error)
	size   int64 // of the body; -1 unknown
	once   bool  // the body cannot be opened a second time
	safe   bool  // doing it twice is doing it once, whatever the method says
}

func (c *Client) endpoint(query url.Values, segments ...string) string {
	u := c.base.JoinPath()
	var path, raw strings.Builder
	path.WriteString(strings.TrimRight(u.Path, "/"))
	raw.WriteString(strings.TrimRight(u.EscapedPath(), "/"))
	for _, s := range segments {
		path.WriteString("/" + s)
		raw.WriteString("/" + url.PathEscape(s))
	}
	u.Path, u.RawPath, u.RawQuery = path.String(), raw.String(), query.Encode()
	return u.String()
}

func (r *call) withJSON(body any) (*call, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	r.open = func() (io.Reader, error) { return bytes.NewReader(data), nil }
	r.size = int64(len(data))
	r.set("Content-Type", "application/json")
	return r, nil
}

func (r *call) set(key, value string) *call {
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set(key, value)
	return r
}

func (r *call) repeatable() bool {
	if r.once {
		return false
	}
	switch r.method {
	case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.safe || r.header.Get("Idempotency-Key") != ""
}

// newIdempotencyKey is 128 random bits in hex.
func newIdempotencyKey() string {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

// do sends r, repeating it as the policy allows, and returns an answer below 400, whose body the caller closes; else an *Error.
func (c *Client) do(ctx context.Context, r *call) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		res, err := c.attempt(ctx, r)
		if err == nil {
			return res, nil
		}
		wait, again := c.retry.next(attempt, err)
		if !again || !r.repeatable() || ctx.Err() != nil {
			return nil, err
		}
		if sleepErr := sleep(ctx, wait); sleepErr != nil {
			return nil, fmt.Errorf("%w (while waiting to repeat it after: %w)", sleepErr, err)
		}
	}
}

func (c *Client) attempt(ctx context.Context, r *call) (*http.Response, error) {
	for _, segment := range r.path {
		if segment == "" || segment == "." || segment == ".." {
			return nil, &localError{fmt.Errorf("%q is not an id", segment)}
		}
	}
	var body io.Reader
	if r.open != nil {
		opened, err := r.open()
		if err != nil {
			return nil, &localError{err}
		}
		body = opened
	}
	req, err := http.NewRequestWithContext(ctx, r.method, c.endpoint(r.query, r.path...), body)
	if err != nil {
		return nil, &localError{err}
	}
	if body != nil {
		req.ContentLength = r.size
		if r.size == 0 {
			req.Body, req.GetBody = http.NoBody, nil
		}
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	c.authorize(req.Header)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(r, err)
	}
	if res.StatusCode >= 400 {
		defer res.Body.Close()
		return nil, errorOf(res)
	}
	return res, nil
}

func (c *Client) authorize(h http.Header) {
	if c.key != "" {
		h.Set("Authorization", "Bearer "+c.key)
	}
	h.Set("User-Agent", c.userAgent)
}

// explain drops the query of the address from a transport error: it may hold names of files.
func (c *Client) explain(r *call, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	return fmt.Errorf("%s %s: %w", r.method, c.endpoint(nil, r.path...), err)
}

// json sends r and decodes the answer into out, which may be nil. It returns the answer's status.
func (c *Client) json(ctx context.Context, r *call, out any) (int, error) {
	r.set("Accept", "application/json")
	res, err := c.do(ctx, r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if out == nil || res.StatusCode == http.StatusNoContent {
		io.Copy(io.Discard, io.LimitReader(res.Body, maxErrorBytes)) // so that the connection can be used again
		return res.StatusCode, nil
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes))
	if err != nil {
		return 0, c.explain(r, fmt.Errorf("read answer: %w", err))
	}
	if len(data) == 0 {
		return res.StatusCode, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return 0, fmt.Errorf("%s %s: decode answer: %w", r.method, c.endpoint(nil, r.path...), err)
	}
	return res.StatusCode, nil
}
