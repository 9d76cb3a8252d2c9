package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"time"

	"github.com/cayhq/cay"
)

// Names of the server's secrets. Each use has one of its own, so that no signature of one kind is ever good as another.
const (
	signedURLSecret = "signed_urls"
	portTokenSecret = "port_tokens"
)

// serverSecret answers one of the server's secrets, which the first server that asks makes.
func (a *Auth) serverSecret(ctx context.Context, name string) ([]byte, error) {
	a.mu.Lock()
	kept := a.secrets[name]
	a.mu.Unlock()
	if kept != nil {
		return kept, nil
	}
	var fresh [secretBytes]byte
	rand.Read(fresh[:]) // never fails, see crypto/rand
	kept, err := a.store.ServerSecret(ctx, name, fresh[:])
	if err != nil {
		return nil, fmt.Errorf("read the secret %s: %w", name, err)
	}
	if len(kept) != secretBytes {
		return nil, fmt.Errorf("read the secret %s: it has %d bytes, not %d", name, len(kept), secretBytes)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.secrets[name] = kept
	return kept, nil
}

// mac is the HMAC-SHA256 of the fields, each behind its length, so that no two lists of fields make the same message.
func mac(secret []byte, fields ...string) string {
	h := hmac.New(sha256.New, secret)
	var size [8]byte
	for _, f := range fields {
		binary.BigEndian.PutUint64(size[:], uint64(len(f)))
		h.Write(size[:])
		h.Write([]byte(f))
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func number(n int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }

func urlMAC(secret []byte, u cay.SignedURL) string {
	return mac(secret, u.Method, string(u.Of), u.Path, u.User, number(u.MaxBytes), string(u.KeyID), number(u.ExpiresAt.Unix()))
}

// SignURL answers the signature of the URL. ExpiresAt counts in whole seconds.
func (a *Auth) SignURL(ctx context.Context, u cay.SignedURL) (string, error) {
	secret, err := a.serverSecret(ctx, signedURLSecret)
	if err != nil {
		return "", err
	}
	return urlMAC(secret, u), nil
}

// VerifyURL answers who signed the URL, with the scope of what it is for alone. A signature of anything else, an expired URL, and a key that is
// expired, revoked or has lost the scope are all the same cay.Unauthorized.
func (a *Auth) VerifyURL(ctx context.Context, u cay.SignedURL, signature string) (cay.Identity, error) {
	refused := cay.Errorf(cay.Unauthorized, "the signed URL was changed, has expired, or its key is no longer good; ask for a new one")
	if u.Method == http.MethodHead {
		u.Method = http.MethodGet
	}
	secret, err := a.serverSecret(ctx, signedURLSecret)
	if err != nil {
		return cay.Identity{}, err
	}
	now := time.Now()
	if !hmac.Equal([]byte(signature), []byte(urlMAC(secret, u))) || !now.Before(u.ExpiresAt) {
		return cay.Identity{}, refused
	}
	k, err := a.store.Key(ctx, u.KeyID)
	if cay.ReasonOf(err) == cay.NotFound {
		return cay.Identity{}, refused
	}
	if err != nil {
		return cay.Identity{}, fmt.Errorf("verify a signed URL: %w", err)
	}
	id := identity(k)
	if !k.Live(now) || !id.May(u.Scope()) {
		return cay.Identity{}, refused
	}
	id.Scopes = []cay.Scope{u.Scope()}
	return id, nil
}

// PortToken answers the token of a port: derived, so that none is kept.
func (a *Auth) PortToken(ctx context.Context, p cay.Port) (string, error) {
	secret, err := a.serverSecret(ctx, portTokenSecret)
	if err != nil {
		return "", err
	}
	return mac(secret, string(p.SandboxID), number(int64(p.Number)), string(p.Nonce)), nil
}
