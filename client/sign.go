package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// SignOptions bounds what a signed URL is good for.
type SignOptions struct {
	Method   string        // GET or PUT; "": GET
	TTL      time.Duration // 0: an hour; at most a week
	MaxBytes int64         // of a PUT; 0: not bounded
}

// SignedURL lets anyone who has it read, or write, one file without a key, until it expires or the sandbox or the key ends.
type SignedURL struct {
	URL       string    `json:"url"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	ExpiresAt time.Time `json:"expires_at"`
	MaxBytes  int64     `json:"max_bytes"` // 0: not bounded

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (u *SignedURL) UnmarshalJSON(data []byte) error {
	type plain SignedURL
	return keeping(data, (*plain)(u), &u.Raw)
}

// Sign makes a URL for one file.
func (f *Files) Sign(ctx context.Context, path string, o SignOptions) (*SignedURL, error) {
	body := map[string]any{"method": http.MethodGet, "path": path}
	if o.Method != "" {
		body["method"] = o.Method
	}
	if f.user != "" {
		body["user"] = f.user
	}
	if o.TTL != 0 {
		body["ttl_seconds"] = inSeconds(o.TTL)
	}
	if o.MaxBytes > 0 {
		body["max_bytes"] = o.MaxBytes
	}
	r, err := keyedPost(append(slices.Clip(f.at.actions), "sign"), body, "")
	if err != nil {
		return nil, err
	}
	out := new(SignedURL)
	if _, err := f.c.json(ctx, r, out); err != nil {
		return nil, fmt.Errorf("sign %s: %w", path, err)
	}
	return out, nil
}
