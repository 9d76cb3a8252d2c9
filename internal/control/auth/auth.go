// Package auth turns secrets into identities: API keys, tickets for browsers, and signed URLs. It knows projects and scopes; what a scope opens is
// said by package api beside each route.
package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

const (
	keyPrefix    = "cay_"
	ticketPrefix = "tkt_"
	secretBytes  = 32

	// TicketPeriod is how long a ticket waits to be used.
	TicketPeriod = 60 * time.Second

	// cachePeriod bounds how long a key that another server revoked still works here; what this one revokes ends at once.
	cachePeriod = 10 * time.Second
	cacheSize   = 1024

	// BootstrapName is the name of the key that EnsureBootstrap keeps. No other key may take it.
	BootstrapName  = "bootstrap"
	defaultProject = "default"
	maxName        = 100
)

var secretForm = regexp.MustCompile(`^cay_[0-9a-f]{64}$`)

// Store is where projects, keys and tickets are kept.
type Store interface {
	InsertProject(ctx context.Context, p cay.Project) error
	Project(ctx context.Context, id cay.ID) (cay.Project, error)
	ProjectByName(ctx context.Context, name string) (cay.Project, error)
	Projects(ctx context.Context) ([]cay.Project, error)
	InsertKey(ctx context.Context, k cay.Key) error
	ReplaceKey(ctx context.Context, k cay.Key, old ...cay.ID) error
	KeyByHash(ctx context.Context, hash [32]byte) (cay.Key, error)
	Key(ctx context.Context, id cay.ID) (cay.Key, error)
	Keys(ctx context.Context, project cay.ID) ([]cay.Key, error)
	RevokeKey(ctx context.Context, project, id cay.ID, at time.Time) error
	InsertTicket(ctx context.Context, t cay.Ticket) error
	TakeTicket(ctx context.Context, hash [32]byte) (cay.Ticket, error)
	ServerSecret(ctx context.Context, name string, fresh []byte) ([]byte, error)
}

// Auth answers who a request comes from.
type Auth struct {
	store Store

	mu      sync.Mutex
	cache   map[[32]byte]cached // guarded by mu; live keys only
	epoch   uint64              // guarded by mu; raised by every revocation, so that a look-up from before it is not cached after it
	secrets map[string][]byte   // guarded by mu; the server's own, by name
}

type cached struct {
	key   cay.Key
	until time.Time
}

// New makes an Auth over the store.
func New(store Store) *Auth {
	return &Auth{store: store, cache: map[[32]byte]cached{}, secrets: map[string][]byte{}}
}

// Key answers the identity behind an API key's secret; cay.Unauthorized for one that is unknown, expired or revoked.
func (a *Auth) Key(ctx context.Context, secret string) (cay.Identity, error) {
	if !secretForm.MatchString(secret) {
		return cay.Identity{}, unauthorized()
	}
	hash := sha256.Sum256([]byte(secret))
	now := time.Now()
	a.mu.Lock()
	c, ok := a.cache[hash]
	epoch := a.epoch
	a.mu.Unlock()
	if ok && now.Before(c.until) && c.key.Live(now) {
		return identity(c.key), nil
	}
	k, err := a.store.KeyByHash(ctx, hash)
	if cay.ReasonOf(err) == cay.NotFound {
		return cay.Identity{}, unauthorized()
	}
	if err != nil {
		return cay.Identity{}, fmt.Errorf("look up key: %w", err)
	}
	if subtle.ConstantTimeCompare(k.Hash[:], hash[:]) != 1 || !k.Live(now) {
		return cay.Identity{}, unauthorized()
	}
	a.remember(hash, k, now, epoch)
	return identity(k), nil
}

func (a *Auth) remember(hash [32]byte, k cay.Key, now time.Time, epoch uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.epoch != epoch {
		return
	}
	if len(a.cache) >= cacheSize {
		for h := range a.cache { // any one will do: what is in use comes back
			delete(a.cache, h)
			break
		}
	}
	a.cache[hash] = cached{key: k, until: now.Add(cachePeriod)}
}

func (a *Auth) forget(id cay.ID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.epoch++
	for h, c := range a.cache {
		if c.key.ID == id {
			delete(a.cache, h)
		}
	}
}

func identity(k cay.Key) cay.Identity {
	return cay.Identity{ProjectID: k.ProjectID, KeyID: k.ID, Scopes: slices.Clone(k.Scopes)}
}

func unauthorized() error {
	return cay.Errorf(cay.Unauthorized, "the API key is missing, unknown, expired or revoked")
}

// MintTicket makes a ticket that is good once, for TicketPeriod, for exactly that method and URL (path and query without the ticket).
func (a *Auth) MintTicket(ctx context.Context, id cay.Identity, method, url string) (string, time.Time, error) {
	ticket := ticketPrefix + randomHex()
	expires := time.Now().Add(TicketPeriod)
	err := a.store.InsertTicket(ctx, cay.Ticket{
		Hash: sha256.Sum256([]byte(ticket)), KeyID: id.KeyID, Method: method, URL: url, ExpiresAt: expires,
	})
	if err != nil {
		return "", time.Time{}, fmt.Errorf("mint ticket: %w", err)
	}
	return ticket, expires, nil
}

// RedeemTicket uses a ticket up, also when it then proves to be for another URL. It has the scopes that its key has now.
func (a *Auth) RedeemTicket(ctx context.Context, ticket, method, url string) (cay.Identity, error) {
	refused := cay.Errorf(cay.Unauthorized, "the ticket is unknown, used, expired or for another request; ask for a new one")
	if !strings.HasPrefix(ticket, ticketPrefix) || len(ticket) != len(ticketPrefix)+2*secretBytes {
		return cay.Identity{}, refused
	}
	t, err := a.store.TakeTicket(ctx, sha256.Sum256([]byte(ticket)))
	if cay.ReasonOf(err) == cay.NotFound {
		return cay.Identity{}, refused
	}
	if err != nil {
		return cay.Identity{}, fmt.Errorf("redeem ticket: %w", err)
	}
	now := time.Now()
	if !now.Before(t.ExpiresAt) || t.Method != method || t.URL != url {
		return cay.Identity{}, refused
	}
	k, err := a.store.Key(ctx, t.KeyID)
	if cay.ReasonOf(err) == cay.NotFound {
		return cay.Identity{}, refused
	}
	if err != nil {
		return cay.Identity{}, fmt.Errorf("redeem ticket: %w", err)
	}
	if !k.Live(now) {
		return cay.Identity{}, refused
	}
	return identity(k), nil
}

func randomHex() string {
	var b [secretBytes]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return hex.EncodeToString(b[:])
}

// NewSecret makes the secret of an API key.
func NewSecret() string { return keyPrefix + randomHex() }

// ValidSecret reports whether s has the form of an API key's secret: cay_ and 64 hex digits in lower case.
func ValidSecret(s string) bool { return secretForm.MatchString(s) }

// EnsureBootstrap makes the project "default" and its admin key on the first start. secret is what the operator wants the key to be,
// or what an earlier start kept for the owner; "" leaves the choice to Cay. It returns the secret in force, "" when only its hash is
// known (it was made by an earlier start), and whether the key was made now. A secret that differs from the last one replaces it:
// the old one no longer works. A secret that was revoked is refused.
func (a *Auth) EnsureBootstrap(ctx context.Context, secret string) (inForce string, created bool, err error) {
	if secret != "" && !ValidSecret(secret) {
		return "", false, errors.New("the bootstrap key must be cay_ followed by 64 hex digits in lower case")
	}
	project, err := a.ensureDefaultProject(ctx)
	if err != nil {
		return "", false, err
	}
	keys, err := a.store.Keys(ctx, project.ID)
	if err != nil {
		return "", false, fmt.Errorf("look for the bootstrap key: %w", err)
	}
	var old []cay.ID
	for _, k := range keys {
		if k.Name == BootstrapName {
			old = append(old, k.ID)
		}
	}
	if secret == "" {
		if len(old) > 0 {
			return "", false, nil
		}
		secret = NewSecret()
	}
	hash := sha256.Sum256([]byte(secret))
	switch k, err := a.store.KeyByHash(ctx, hash); {
	case err == nil && k.Live(time.Now()):
		return secret, false, nil
	case err == nil:
		return "", false, fmt.Errorf("the bootstrap key %s… was revoked or has expired; choose another", k.Hint)
	case cay.ReasonOf(err) != cay.NotFound:
		return "", false, fmt.Errorf("look for the bootstrap key: %w", err)
	}
	if err := a.store.ReplaceKey(ctx, newKey(project.ID, BootstrapName, secret, []cay.Scope{cay.ScopeAdmin}, time.Time{}), old...); err != nil {
		return "", false, fmt.Errorf("write the bootstrap key: %w", err)
	}
	for _, id := range old {
		a.forget(id)
	}
	return secret, true, nil
}

func (a *Auth) ensureDefaultProject(ctx context.Context) (cay.Project, error) {
	p, err := a.store.ProjectByName(ctx, defaultProject)
	if cay.ReasonOf(err) == cay.NotFound {
		return a.CreateProject(ctx, defaultProject)
	}
	if err != nil {
		return cay.Project{}, fmt.Errorf("look for the default project: %w", err)
	}
	return p, nil
}

func newKey(project cay.ID, name, secret string, scopes []cay.Scope, expires time.Time) cay.Key {
	return cay.Key{
		ID: cay.NewID(cay.PrefixKey), ProjectID: project, Name: name, Hash: sha256.Sum256([]byte(secret)), Hint: secret[:8],
		Scopes: scopes, CreatedAt: time.Now(), ExpiresAt: expires,
	}
}

// CreateKey makes a key of the project. The secret is returned this once; expires zero means never.
func (a *Auth) CreateKey(ctx context.Context, project cay.ID, name string, scopes []cay.Scope, expires time.Time) (cay.Key, string, error) {
	if err := validName(name); err != nil {
		return cay.Key{}, "", err
	}
	if name == BootstrapName {
		return cay.Key{}, "", cay.Errorf(cay.Unprocessable, "the name %s is kept for the key of the first start", BootstrapName).On("name")
	}
	if len(scopes) == 0 {
		return cay.Key{}, "", cay.Errorf(cay.InvalidRequest, "a key needs at least one scope").On("scopes")
	}
	for _, s := range scopes {
		if !slices.Contains(cay.Scopes, s) {
			return cay.Key{}, "", cay.Errorf(cay.InvalidRequest, "there is no scope %q; there are %v", s, cay.Scopes).On("scopes")
		}
	}
	if !expires.IsZero() && !expires.After(time.Now()) {
		return cay.Key{}, "", cay.Errorf(cay.InvalidRequest, "the expiry is in the past").On("expires_at")
	}
	if _, err := a.store.Project(ctx, project); err != nil {
		return cay.Key{}, "", err
	}
	secret := NewSecret()
	k := newKey(project, name, secret, slices.Clone(scopes), expires)
	if err := a.store.InsertKey(ctx, k); err != nil {
		return cay.Key{}, "", fmt.Errorf("create key: %w", err)
	}
	return k, secret, nil
}

// Keys lists the keys of the project, revoked ones too.
func (a *Auth) Keys(ctx context.Context, project cay.ID) ([]cay.Key, error) {
	return a.store.Keys(ctx, project)
}

// RevokeKey ends a key at once, and the tickets made with it. Idempotent.
func (a *Auth) RevokeKey(ctx context.Context, project, id cay.ID) error {
	if err := a.store.RevokeKey(ctx, project, id, time.Now()); err != nil {
		return err
	}
	a.forget(id)
	return nil
}

// CreateProject makes a tenant; cay.AlreadyExists for a name in use.
func (a *Auth) CreateProject(ctx context.Context, name string) (cay.Project, error) {
	if err := validName(name); err != nil {
		return cay.Project{}, err
	}
	p := cay.Project{ID: cay.NewID(cay.PrefixProject), Name: name, CreatedAt: time.Now()}
	if err := a.store.InsertProject(ctx, p); err != nil {
		return cay.Project{}, err
	}
	return p, nil
}

// Projects lists the tenants.
func (a *Auth) Projects(ctx context.Context) ([]cay.Project, error) { return a.store.Projects(ctx) }

func validName(name string) error {
	if name == "" || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return cay.Errorf(cay.InvalidRequest, "a name has 1 to %d characters, none of them a control character", maxName).On("name")
	}
	return nil
}
