package cay

import (
	"strings"
	"time"
)

// SignedURL is a request to one file of a sandbox, or one output of a job, whose URL alone is the authority for it. All that it says is
// covered by its signature.
type SignedURL struct {
	Method    string // GET, which allows HEAD, or PUT
	Of        ID     // the sandbox or the job; their IDs differ by prefix, so that a signature for one is never good for the other
	Path      string // absolute, any bytes
	User      string // whose access counts; "" is the sandbox's user
	MaxBytes  int64  // of a PUT's body; 0: no bound
	KeyID     ID     // the URL dies with this key
	ExpiresAt time.Time
}

// Scope is what the key of the URL must have, and all that the URL gives.
func (u SignedURL) Scope() Scope {
	if strings.HasPrefix(string(u.Of), PrefixJob) {
		return ScopeJobs
	}
	return ScopeFiles
}

// Bounds of a signed URL's life.
const (
	DefaultSignedURLPeriod = time.Hour
	MaxSignedURLPeriod     = 7 * 24 * time.Hour
)
