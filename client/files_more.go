package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"time"
)

// FileHead is what a read of a file would answer, without its content.
type FileHead struct {
	Size       int64
	ETag       string
	ModifiedAt time.Time // zero when the server does not say
}

// Head answers a file's size and ETag, a symlink's target's.
func (f *Files) Head(ctx context.Context, path string) (*FileHead, error) {
	res, err := f.c.do(ctx, f.call(http.MethodHead, path, nil))
	if err != nil {
		return nil, fmt.Errorf("head %s: %w", path, err)
	}
	defer res.Body.Close()
	modified, _ := http.ParseTime(res.Header.Get("Last-Modified"))
	return &FileHead{Size: res.ContentLength, ETag: res.Header.Get("ETag"), ModifiedAt: modified}, nil
}

// ChmodOptions says what to change; zero leaves it.
type ChmodOptions struct {
	Mode      fs.FileMode // permission bits
	User      string      // the new owner
	Recursive bool        // and all below
}

// Chmod changes the mode or the owner of a file.
func (f *Files) Chmod(ctx context.Context, path string, o ChmodOptions) (*FileInfo, error) {
	body := map[string]any{"path": path}
	if o.Mode != 0 {
		body["mode"] = formatMode(o.Mode)
	}
	if o.User != "" {
		body["user"] = o.User
	}
	if o.Recursive {
		body["recursive"] = true
	}
	info := new(FileInfo)
	if err := f.act(ctx, "chmod", path, body, info); err != nil {
		return nil, err
	}
	return info, nil
}

// Compose puts up to 1000 files together into one at path and removes them: the parts of an upload that was made in pieces.
// Readers see the old file or the whole new one. Mode 0: the server's default.
func (f *Files) Compose(ctx context.Context, sources []string, path string, mode fs.FileMode) (*FileInfo, error) {
	body := map[string]any{"sources": sources, "path": path}
	if mode != 0 {
		body["mode"] = formatMode(mode)
	}
	info := new(FileInfo)
	if err := f.act(ctx, "compose", path, body, info); err != nil {
		return nil, err
	}
	return info, nil
}

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
	if err := json.Unmarshal(data, (*plain)(u)); err != nil {
		return err
	}
	u.Raw = append(u.Raw[:0:0], data...)
	return nil
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
	r, err := keyedPost(sandboxPath(f.sandbox, "files", "sign"), body, "")
	if err != nil {
		return nil, err
	}
	out := new(SignedURL)
	if _, err := f.c.json(ctx, r, out); err != nil {
		return nil, fmt.Errorf("sign %s: %w", path, err)
	}
	return out, nil
}

// act posts to an action of the files group. out may be nil.
func (f *Files) act(ctx context.Context, action, path string, body map[string]any, out any) error {
	r, err := f.call(http.MethodPost, "", url.Values{}, action).withJSON(body)
	if err != nil {
		return err
	}
	r.set("Idempotency-Key", newIdempotencyKey())
	if _, err := f.c.json(ctx, r, out); err != nil {
		return fmt.Errorf("%s %s: %w", action, path, err)
	}
	return nil
}
