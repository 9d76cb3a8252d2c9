package cay

import "time"

// SignedURL is a request to one file of a sandbox whose URL alone is the authority for it. All that it says is covered by its signature.
type SignedURL struct {
	Method    string // GET, which allows HEAD, or PUT
	SandboxID ID
	Path      string // absolute, any bytes
	User      string // whose access counts; "" is the sandbox's user
	MaxBytes  int64  // of a PUT's body; 0: no bound
	KeyID     ID     // the URL dies with this key
	ExpiresAt time.Time
}

// Bounds of a signed URL's life.
const (
	DefaultSignedURLPeriod = time.Hour
	MaxSignedURLPeriod     = 7 * 24 * time.Hour
)
