package testkit

import (
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver of the server's store
)

// Tenant is a project of its own on a running server. Projects and keys have no API, so that they are written to the server's store.
type Tenant struct {
	Project string
	inst    *Instance
}

// NewTenant makes a project.
func (i *Instance) NewTenant(t testing.TB) Tenant {
	t.Helper()
	tenant := Tenant{newID("prj_"), i}
	i.write(t, "INSERT INTO projects (id, name, created_at) VALUES (?, ?, ?)", tenant.Project, "test-"+tenant.Project[20:], time.Now().UnixMicro())
	return tenant
}

// DefaultTenant is the project of the bootstrap key.
func (i *Instance) DefaultTenant(t testing.TB) Tenant {
	t.Helper()
	var project string
	i.store(t, func(db *sql.DB) error {
		return db.QueryRowContext(t.Context(), "SELECT project_id FROM api_keys WHERE name = 'bootstrap' AND revoked_at = 0").Scan(&project)
	})
	return Tenant{project, i}
}

// Key makes a key of the project with these scopes, and a client that uses it. expires zero: never.
func (n Tenant) Key(t testing.TB, expires time.Time, scopes ...string) *Client {
	t.Helper()
	secret := NewKey()
	hash := sha256.Sum256([]byte(secret))
	list, err := json.Marshal(scopes)
	if err != nil {
		t.Fatal(err)
	}
	until := int64(0)
	if !expires.IsZero() {
		until = expires.UnixMicro()
	}
	id := newID("key_")
	n.inst.write(t, "INSERT INTO api_keys (id, project_id, name, hash, hint, scopes, created_at, expires_at, revoked_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
		id, n.Project, id, hash[:], secret[:8], string(list), time.Now().UnixMicro(), until)
	return NewClient(n.inst.URL, secret)
}

// ExpiredTicket is a ticket of the bootstrap key for a path and query that was good until a moment ago.
func (i *Instance) ExpiredTicket(t testing.TB, pathAndQuery string) string {
	t.Helper()
	ticket := NewKey()[4:]
	hash, key := sha256.Sum256([]byte(ticket)), sha256.Sum256([]byte(i.Key))
	i.write(t, "INSERT INTO tickets (hash, key_id, method, url, expires_at) SELECT ?, id, 'GET', ?, ? FROM api_keys WHERE hash = ?",
		hash[:], pathAndQuery, time.Now().Add(-time.Second).UnixMicro(), key[:])
	return ticket
}

func (i *Instance) write(t testing.TB, query string, args ...any) {
	t.Helper()
	i.store(t, func(db *sql.DB) error {
		_, err := db.ExecContext(t.Context(), query, args...)
		return err
	})
}

// store opens the store of the running server, which keeps its files in being and in its own hands.
func (i *Instance) store(t testing.TB, use func(*sql.DB) error) {
	t.Helper()
	path := url.URL{Scheme: "file", Path: filepath.Join(i.DataDir, "server", "cay.db"), RawQuery: "_pragma=busy_timeout(10000)"}
	db, err := sql.Open("sqlite", path.String())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := use(db); err != nil {
		t.Fatalf("the server's store: %v", err)
	}
}

func newID(prefix string) string {
	var b [13]byte
	rand.Read(b[:])
	return prefix + hex.EncodeToString(b[:])
}
