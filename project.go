package cay

import (
	"slices"
	"time"
)

// Scope is what a key may do.
type Scope string

const (
	ScopeSandboxesRead  Scope = "sandboxes:read"
	ScopeSandboxesWrite Scope = "sandboxes:write"
	ScopeExec           Scope = "exec"
	ScopeFiles          Scope = "files"
	ScopeJobs           Scope = "jobs"
	ScopeAdmin          Scope = "admin" // implies all others
)

// Scopes lists every scope.
var Scopes = []Scope{ScopeSandboxesRead, ScopeSandboxesWrite, ScopeExec, ScopeFiles, ScopeJobs, ScopeAdmin}

// Project is a tenant. What belongs to another project does not exist.
type Project struct {
	ID        ID
	Name      string
	CreatedAt time.Time
}

// Key is an API key as the store knows it: never the secret, only its SHA-256.
type Key struct {
	ID        ID
	ProjectID ID
	Name      string
	Hash      [32]byte
	Hint      string // the first eight characters of the secret, for people
	Scopes    []Scope
	CreatedAt time.Time
	ExpiresAt time.Time // zero: never
	RevokedAt time.Time // zero: live
}

// Live reports whether the key may be used at the time.
func (k Key) Live(at time.Time) bool {
	return k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || at.Before(k.ExpiresAt))
}

// Identity is who a request comes from: a project and what the key allows.
type Identity struct {
	ProjectID ID
	KeyID     ID
	Scopes    []Scope
}

// May reports whether the identity holds the scope, or admin.
func (id Identity) May(s Scope) bool {
	return slices.Contains(id.Scopes, ScopeAdmin) || slices.Contains(id.Scopes, s)
}
