package cay

import "time"

// Port is a TCP port of a sandbox that has a URL of its own.
type Port struct {
	SandboxID ID
	ProjectID ID
	Number    int    // 1 to 65535
	Public    bool   // no token is asked for
	Nonce     []byte // what the token is derived from, besides the server's secret; a port that is exposed anew has another
	CreatedAt time.Time
}

// ExposedPort is a port as its owner sees it.
type ExposedPort struct {
	Port
	URL   string
	Token string // "" when it is public
}

// MaxPorts bounds the exposed ports of one sandbox.
const MaxPorts = 64
