package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const maxServerWait = 300 * time.Second // of wait_seconds

func sandboxPath(id string, more ...string) []string {
	return append([]string{"v1", "sandboxes", id}, more...)
}

// Create makes a sandbox and waits for READY as long as r.Wait says. A sandbox that is still CREATING then is no error; see
// [Client.Wait]. One that failed meanwhile is an [*Error] with its SandboxID.
func (c *Client) Create(ctx context.Context, r CreateRequest) (*Sandbox, error) {
	call, err := keyedPost([]string{"v1", "sandboxes"}, r, r.IdempotencyKey)
	if err != nil {
		return nil, err
	}
	call.query = url.Values{}
	switch {
	case r.Wait < 0:
		call.query.Set("wait_seconds", "0")
	case r.Wait > 0:
		call.query.Set("wait_seconds", formatSeconds(min(r.Wait, maxServerWait)))
	}
	sb := new(Sandbox)
	_, err = c.json(ctx, call, sb)
	return orNil(sb, err)
}

// Get answers a sandbox, also one that has ended (for 30 days).
func (c *Client) Get(ctx context.Context, id string) (*Sandbox, error) {
	sb := new(Sandbox)
	_, err := c.json(ctx, &call{method: http.MethodGet, path: sandboxPath(id)}, sb)
	return orNil(sb, err)
}

// Wait returns the sandbox once its status is want, or an error once that cannot happen any more or ctx has ended.
func (c *Client) Wait(ctx context.Context, id string, want Status) (*Sandbox, error) {
	for attempt := 0; ; attempt++ {
		asked := time.Now()
		sb := new(Sandbox)
		query := url.Values{"wait_for": {string(want)}, "wait_seconds": {"60"}}
		if _, err := c.json(ctx, &call{method: http.MethodGet, path: sandboxPath(id), query: query}, sb); err != nil {
			return nil, err
		}
		if sb.Status == want {
			return sb, nil
		}
		if sb.Status.Ended() {
			detail := fmt.Sprintf("sandbox %s is %s (%s) and will not become %s", sb.ID, sb.Status, sb.StatusReason, want)
			if sb.Detail != "" {
				detail += ": " + sb.Detail
			}
			return sb, &Error{Status: http.StatusGone, Reason: ReasonGone, SandboxID: sb.ID, StatusReason: sb.StatusReason, Detail: detail}
		}
		if time.Since(asked) < time.Second { // the server did not wait for us
			if err := sleep(ctx, backoff(attempt)); err != nil {
				return nil, fmt.Errorf("wait for sandbox %s: %w", id, err)
			}
		}
	}
}

// ListOptions selects sandboxes; zero is all, newest first.
type ListOptions struct {
	Statuses     []Status // "active" stands for CREATING, READY and PAUSED
	Metadata     map[string]string
	CreatedAfter time.Time
	Ascending    bool
	SessionID    string // only those that use this session
	Managed      bool   // also those that serve jobs and sessions
	PageSize     int    // of one request, at most 200
}

// Active selects the sandboxes that have not ended.
const Active Status = "active"

// List answers the sandboxes page by page as they are asked for. It ends after the first error.
func (c *Client) List(ctx context.Context, o ListOptions) iter.Seq2[*Sandbox, error] {
	query := listQuery(o.Statuses, o.Metadata, o.CreatedAfter, o.Ascending, o.PageSize)
	if o.SessionID != "" {
		query.Set("session_id", o.SessionID)
	}
	if o.Managed {
		query.Set("managed", "true")
	}
	return pages[*Sandbox](ctx, c, []string{"v1", "sandboxes"}, query, "list sandboxes")
}

// pages walks a list by its cursors.
func pages[T any](ctx context.Context, c *Client, path []string, query url.Values, attempted string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		cursor := ""
		for {
			var p page[T]
			q := cloneValues(query)
			if cursor != "" {
				q.Set("cursor", cursor)
			}
			var none T
			if _, err := c.json(ctx, &call{method: http.MethodGet, path: path, query: q}, &p); err != nil {
				yield(none, fmt.Errorf("%s: %w", attempted, err))
				return
			}
			for _, item := range p.Items {
				if !yield(item, nil) {
					return
				}
			}
			if p.NextCursor == "" {
				return
			}
			if p.NextCursor == cursor {
				yield(none, fmt.Errorf("%s: %w", attempted, errStuck))
				return
			}
			cursor = p.NextCursor
		}
	}
}

// collect walks a list to its end.
func collect[T any](ctx context.Context, c *Client, path []string, query url.Values, attempted string) ([]T, error) {
	var out []T
	for item, err := range pages[T](ctx, c, path, query, attempted) {
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}

// Delete ends a sandbox and returns once its resources are free, or after the server's 60 s while it is TERMINATING; gone says
// which. Deleting one that has ended is no error.
func (c *Client) Delete(ctx context.Context, id string) (gone bool, err error) {
	status, err := c.json(ctx, &call{method: http.MethodDelete, path: sandboxPath(id)}, nil)
	return status == http.StatusNoContent, err
}

// Pause stops every process of the sandbox until it is resumed. Idempotent.
func (c *Client) Pause(ctx context.Context, id string) (*Sandbox, error) {
	return c.change(ctx, id, "pause", nil)
}

// Resume lets a paused sandbox run on. ttl sets its end to now + ttl; 0 leaves what was left. Idempotent.
func (c *Client) Resume(ctx context.Context, id string, ttl time.Duration) (*Sandbox, error) {
	body := map[string]any{}
	if ttl != 0 {
		body["ttl_seconds"] = inSeconds(ttl)
	}
	return c.change(ctx, id, "resume", body)
}

// SetTimeout sets the sandbox's end to now + ttl, capped by the server: the answer's ExpiresAt is what holds.
func (c *Client) SetTimeout(ctx context.Context, id string, ttl time.Duration) (*Sandbox, error) {
	return c.change(ctx, id, "timeout", map[string]any{"ttl_seconds": inSeconds(ttl)})
}

// ExtendTimeout is [Client.SetTimeout] that never brings the end forward.
func (c *Client) ExtendTimeout(ctx context.Context, id string, ttl time.Duration) (*Sandbox, error) {
	return c.change(ctx, id, "timeout", map[string]any{"ttl_seconds": inSeconds(ttl), "extend_only": true})
}

// Keepalive counts as activity: the idle timeout begins anew.
func (c *Client) Keepalive(ctx context.Context, id string) error {
	r, err := keyedPost(sandboxPath(id, "keepalive"), nil, "")
	if err != nil {
		return err
	}
	_, err = c.json(ctx, r, nil)
	return err
}

// Update changes metadata, idle timeout or what a timeout does.
func (c *Client) Update(ctx context.Context, id string, u UpdateRequest) (*Sandbox, error) {
	r, err := (&call{method: http.MethodPatch, path: sandboxPath(id)}).withJSON(u)
	if err != nil {
		return nil, err
	}
	sb := new(Sandbox)
	_, err = c.json(ctx, r, sb)
	return orNil(sb, err)
}

// NetworkRules say what a sandbox may reach: host:port, *.suffix:port, CIDR:port, udp/…. Allow wins over Deny; no rules: no network.
type NetworkRules struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny,omitempty"`
}

// Network answers the rules in force.
func (c *Client) Network(ctx context.Context, id string) (*NetworkRules, error) {
	rules := new(NetworkRules)
	if _, err := c.json(ctx, &call{method: http.MethodGet, path: sandboxPath(id, "network")}, rules); err != nil {
		return nil, fmt.Errorf("network of %s: %w", id, err)
	}
	return rules, nil
}

// SetNetwork replaces the rules and answers those in force. Connections that are no longer allowed are cut.
func (c *Client) SetNetwork(ctx context.Context, id string, rules NetworkRules) (*NetworkRules, error) {
	if rules.Allow == nil {
		rules.Allow = []string{}
	}
	r, err := (&call{method: http.MethodPut, path: sandboxPath(id, "network")}).withJSON(rules)
	if err != nil {
		return nil, err
	}
	out := new(NetworkRules)
	if _, err := c.json(ctx, r, out); err != nil {
		return nil, fmt.Errorf("set network of %s: %w", id, err)
	}
	return out, nil
}

// change posts to an action that answers the sandbox.
func (c *Client) change(ctx context.Context, id, action string, body map[string]any) (*Sandbox, error) {
	r, err := keyedPost(sandboxPath(id, action), nil, "")
	if len(body) > 0 {
		r, err = keyedPost(sandboxPath(id, action), body, "")
	}
	if err != nil {
		return nil, err
	}
	sb := new(Sandbox)
	_, err = c.json(ctx, r, sb)
	return orNil(sb, err)
}

func formatSeconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func cloneValues(v url.Values) url.Values {
	out := make(url.Values, len(v)+1)
	for k, vs := range v {
		out[k] = vs
	}
	return out
}

func orNil[T any](v *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}
