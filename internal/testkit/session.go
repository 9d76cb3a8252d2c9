package testkit

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"
)

// SessionObject is the part of the API's session object that tests look at.
type SessionObject struct {
	ID           string            `json:"id"`
	Name         *string           `json:"name"`
	Status       string            `json:"status"`
	StatusReason string            `json:"status_reason"`
	Volume       string            `json:"volume"`
	DiskGB       float64           `json:"disk_gb"`
	TTLSeconds   float64           `json:"ttl_seconds"`
	WorkerID     string            `json:"worker_id"`
	CreatedAt    time.Time         `json:"created_at"`
	LastUsedAt   time.Time         `json:"last_used_at"`
	ExpiresAt    *time.Time        `json:"expires_at"`
	EndedAt      *time.Time        `json:"ended_at"`
	UsedBy       []string          `json:"used_by"`
	Metadata     map[string]string `json:"metadata"`
}

// CreateSession makes one.
func (c *Client) CreateSession(ctx context.Context, fields Fields) (SessionObject, error) {
	var s SessionObject
	resp, err := c.Do(ctx, "POST", "/v1/sessions", Fields{}.With(fields))
	if err != nil {
		return s, fmt.Errorf("create a session: %w", err)
	}
	if err := resp.Decode(201, &s); err != nil {
		return s, fmt.Errorf("create a session: %w", err)
	}
	return s, nil
}

// GetSession reads it.
func (c *Client) GetSession(ctx context.Context, id string) (SessionObject, error) {
	var s SessionObject
	resp, err := c.Do(ctx, "GET", "/v1/sessions/"+id, nil)
	if err != nil {
		return s, err
	}
	return s, resp.Decode(200, &s)
}

// ListSessions reads every page of a list; query is what follows the question mark.
func (c *Client) ListSessions(ctx context.Context, query string) ([]SessionObject, error) {
	return list[SessionObject](ctx, c, "/v1/sessions", query)
}

// DeleteSession ends the session with whoever uses it, and waits until its files are gone.
func (c *Client) DeleteSession(ctx context.Context, id string) error {
	return Until(requestTimeout, func() error {
		resp, err := c.Do(ctx, "DELETE", "/v1/sessions/"+id+"?force=true", nil)
		if err == nil && resp.Status != 204 {
			err = fmt.Errorf("%v", resp)
		}
		if err != nil {
			return fmt.Errorf("delete %s: %w", id, err)
		}
		return nil
	})
}

// Session is a session of a test. Its methods fail the test, and so belong to the test's own goroutine.
type Session struct {
	*Client
	SessionObject
	t testing.TB
}

// Session makes a session that is deleted at the end of the test, with whoever uses it.
func (c *Client) Session(t testing.TB, more ...Fields) *Session {
	t.Helper()
	RequireRoot(t) // the node mounts volumes
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	obj, err := c.CreateSession(ctx, Fields{}.With(more...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		defer cancel()
		if c.Ready(ctx) != nil {
			return // the test took the server down
		}
		if err := c.DeleteSession(ctx, obj.ID); err != nil {
			t.Error(err)
		}
	})
	return &Session{c, obj, t}
}

// Path is the session's path in the API, and what follows.
func (s *Session) Path(rest string) string { return "/v1/sessions/" + s.ID + rest }

// Call sends a request about the session.
func (s *Session) Call(method, rest string, body any, headers ...string) Response {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), requestTimeout)
	defer cancel()
	resp, err := s.Do(ctx, method, s.Path(rest), body, headers...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, s.Path(rest), err)
	}
	return resp
}

// Refresh reads the object anew.
func (s *Session) Refresh() SessionObject {
	s.t.Helper()
	obj, err := s.GetSession(s.t.Context(), s.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	return obj
}

// Unused waits until nobody uses the session: the sandbox of a job that has finished goes a moment later.
func (s *Session) Unused() {
	s.t.Helper()
	Eventually(s.t, time.Minute, "nobody uses the session", func() error {
		if now := s.Refresh(); len(now.UsedBy) > 0 {
			return fmt.Errorf("it is used by %v", now.UsedBy)
		}
		return nil
	})
}

// Run runs a program as a job in the session and waits for its end.
func (s *Session) Run(language, code string, more ...Fields) JobObject {
	s.t.Helper()
	return s.Job(s.t, code, append([]Fields{{"language": language, "session_id": s.ID}}, more...)...)
}

// MustSay runs a program that has to succeed and to print exactly that.
func (s *Session) MustSay(want, language, code string, more ...Fields) {
	s.t.Helper()
	if j := s.Run(language, code, more...); !j.Said(want) {
		s.t.Fatalf("%s: want %q, got %v", code, tail(want), j)
	}
}

// SessionFile is the API's path of a file of a session.
func SessionFile(path string, more ...string) string {
	q := url.Values{"path": {path}}
	for n := 0; n+1 < len(more); n += 2 {
		q.Set(more[n], more[n+1])
	}
	return "/files/content?" + q.Encode()
}

// Put uploads a file and fails the test unless that works.
func (s *Session) Put(path string, data []byte, more ...string) {
	s.t.Helper()
	if resp := s.Call("PUT", SessionFile(path, more...), data); resp.Status/100 != 2 {
		s.t.Fatalf("upload %q: %v", path, resp)
	}
}

// Get downloads a file and fails the test unless that works.
func (s *Session) Get(path string) []byte {
	s.t.Helper()
	resp := s.Call("GET", SessionFile(path), nil)
	if resp.Status != 200 {
		s.t.Fatalf("download %q: %v", path, resp)
	}
	return resp.Body
}

// List lists a directory of the session, all pages of it.
func (s *Session) List(path string) []FileObject {
	s.t.Helper()
	all, err := list[FileObject](s.t.Context(), s.Client, s.Path("/files"), url.Values{"path": {path}}.Encode())
	if err != nil {
		s.t.Fatalf("list %q: %v", path, err)
	}
	return all
}
