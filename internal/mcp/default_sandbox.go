package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/cayhq/cay/client"
)

// metadataKey marks the default sandbox of a conversation; its value says of which.
const metadataKey = "cay.mcp"

// The clocks of a default sandbox. A conversation that rests keeps its files and variables: the sandbox is paused, runs on with the
// next call, and ends after a while. Its time to live stands still meanwhile.
const (
	defaultIdle      = 15 * time.Minute
	defaultPausedTTL = 4 * time.Hour
	defaultTTL       = 24 * time.Hour
)

// maxStart bounds the wait for a sandbox to become READY.
const maxStart = 5 * time.Minute

// ScopeOf is a fingerprint of an API key: it tells keys apart and does not give them away.
func ScopeOf(key string) string {
	sum := sha256.Sum256([]byte("cay.mcp scope\x00" + key))
	return hex.EncodeToString(sum[:6])
}

// mark is the metadata value of the caller's default sandbox. Conversations of different keys never share one.
func (c Caller) mark() string { return c.Conversation + "@" + c.Scope }

// sandbox is the id that the arguments name, else that of the default sandbox, which is made where there is none.
func (c *call) sandbox(ctx context.Context, id string) (string, error) {
	if id != "" {
		return id, nil
	}
	sb, err := c.defaultSandbox(ctx)
	if err != nil {
		return "", err
	}
	return sb.ID, nil
}

// defaultSandbox finds the caller's, or makes it. However many calls race, here and on other servers, one is made: they derive the
// same idempotency key from the mark and the id of the last one, and so find the same sandbox.
func (c *call) defaultSandbox(ctx context.Context) (*client.Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, maxStart)
	defer cancel()
	for attempt := 0; ; attempt++ {
		sb, err := c.newestDefault(ctx)
		if err == nil && (sb == nil || !usable(sb)) {
			sb, err = c.makeDefault(ctx, sb)
		}
		if err == nil && sb.Status == client.Creating {
			sb, err = c.Wait(ctx, sb.ID, client.Ready)
		}
		switch {
		case err == nil && (sb.Status == client.Ready || sb.Status == client.Paused):
			return sb, nil
		case err == nil:
			err = fmt.Errorf("the default sandbox %s is %s", sb.ID, sb.Status)
		case client.ReasonOf(err) != client.ReasonGone:
			return nil, err
		}
		if attempt == 2 { // it ended while we waited: somebody closed it, and again
			return nil, err
		}
	}
}

// newestDefault is the caller's newest default sandbox, also one that has ended; nil: there was none. One look has to tell both which
// one is in use and after which one to make the next: between two of them another call can have made it.
func (c *call) newestDefault(ctx context.Context) (*client.Sandbox, error) {
	for sb, err := range c.List(ctx, client.ListOptions{Metadata: map[string]string{metadataKey: c.caller.mark()}, PageSize: 1}) {
		return sb, err
	}
	return nil, nil
}

// usable reports whether sb can still take calls, now or soon.
func usable(sb *client.Sandbox) bool {
	return sb.Status == client.Creating || sb.Status == client.Ready || sb.Status == client.Paused
}

// makeDefault makes the default sandbox that comes after last, which may be nil.
func (c *call) makeDefault(ctx context.Context, last *client.Sandbox) (*client.Sandbox, error) {
	mark, after := c.caller.mark(), ""
	if last != nil {
		after = last.ID
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "cay.mcp sandbox 1\x00%s\x00%s", mark, after))
	request := client.CreateRequest{
		TTL: defaultTTL, IdleTimeout: defaultIdle, OnTimeout: client.OnTimeoutPause, PausedTTL: defaultPausedTTL,
		Metadata: map[string]string{metadataKey: mark, "name": "mcp"}, IdempotencyKey: "cay-mcp-" + hex.EncodeToString(sum[:16]),
	}
	sb, err := c.Create(ctx, request)
	var e *client.Error
	if errors.As(err, &e) && e.Reason != client.ReasonGone {
		return nil, fmt.Errorf("make the default sandbox: %w", err)
	}
	return sb, err
}

// CloseDefault ends the caller's default sandbox, if there is one.
func CloseDefault(ctx context.Context, caller Caller) error {
	c := &call{Client: caller.Client, caller: caller}
	sb, err := c.newestDefault(ctx)
	if err != nil || sb == nil || !usable(sb) {
		return err
	}
	_, err = c.Delete(ctx, sb.ID)
	return err
}
