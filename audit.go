package cay

import "time"

// AuditEntry is one request that changed something, or that was refused for who asked: who did what, when, from where, and how it
// ended. It holds neither bodies nor queries.
type AuditEntry struct {
	Seq        int64 // ordered, durable
	At         time.Time
	ProjectID  ID // "": of nobody known
	KeyID      ID
	Action     string // the operation's id, such as create-sandbox
	Object     string // the id that the URL names, or that was made; "": none
	Status     int    // of the answer
	Reason     string // of the problem, where it is one
	RequestID  string
	TraceID    string
	RemoteAddr string // the client's address, without port
	UserAgent  string // clipped
}

// AuditQuery selects a page of the audit log, newest first unless Ascending.
type AuditQuery struct {
	AllProjects bool // also what is of nobody known
	KeyID       ID
	Action      string
	Object      string
	From, To    time.Time
	Ascending   bool
	Limit       int
	Cursor      string
}
