// Package user finds the accounts of a sandbox in its own passwd and group files, and acts as them. It is no part of the host's
// user database, and it trusts neither file: both belong to whoever is root inside.
package user

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay"
)

// The account that every sandbox has, even where its passwd does not name it.
const (
	Sandbox    = "sandbox"
	SandboxUID = 2000
	SandboxGID = 2000
)

const (
	maxFile   = 4 << 20 // bytes read of passwd or group
	maxLine   = 16 << 10
	maxGroups = 256 // supplementary groups of one account
)

// Account is whom something runs as.
type Account struct {
	Name   string // "" for a uid that has no entry
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary
	Home   string
	Shell  string
}

// Root reports whether a is root of the sandbox.
func (a Account) Root() bool { return a.UID == 0 }

// In reports whether a is in a group.
func (a Account) In(gid uint32) bool { return a.GID == gid || slices.Contains(a.Groups, gid) }

// Database reads passwd and group, again whenever they changed. It is safe for concurrent use.
type Database struct {
	passwdPath, groupPath string

	mu     sync.Mutex
	passwd version
	group  version
	users  []Account // in the file's order, without groups
	groups []groupEntry
}

// version tells one state of a file from the next.
type version struct {
	size  int64
	mtime time.Time
	seen  bool
}

type groupEntry struct {
	name    string
	gid     uint32
	members []string
}

// Open names the files; they are read at the first look-up and may be missing.
func Open(passwd, group string) *Database { return &Database{passwdPath: passwd, groupPath: group} }

// Lookup finds an account by name or uid, with an optional group: "name", "uid", "uid:gid", "name:group". A number needs no entry.
// The error is a cay.Error without a field.
func (d *Database) Lookup(spec string) (Account, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()

	name, group, withGroup := strings.Cut(spec, ":")
	account, ok := d.find(name)
	if !ok {
		return Account{}, cay.Errorf(cay.Unprocessable, "there is no user %q in the sandbox", name)
	}
	if withGroup {
		gid, ok := d.findGroup(group)
		if !ok {
			return Account{}, cay.Errorf(cay.Unprocessable, "there is no group %q in the sandbox", group)
		}
		account.GID = gid
	}
	account.Groups = d.groupsOf(account)
	return account, nil
}

// Name is the name of uid, or "".
func (d *Database) Name(uid uint32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refresh()
	for _, u := range d.users {
		if u.UID == uid {
			return u.Name
		}
	}
	if uid == SandboxUID {
		return Sandbox
	}
	return ""
}

// refresh expects d.mu.
func (d *Database) refresh() {
	if d.passwd.stale(d.passwdPath) {
		d.users = parseFile(d.passwdPath, ParsePasswd)
	}
	if d.group.stale(d.groupPath) {
		d.groups = parseFile(d.groupPath, parseGroup)
	}
}

// stale notes the file's version and reports whether it differs from the one noted before.
func (v *version) stale(path string) bool {
	now := version{seen: true}
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		now.size, now.mtime = info.Size(), info.ModTime()
	}
	changed := *v != now
	*v = now
	return changed
}

func parseFile[T any](path string, parse func(io.Reader) []T) []T {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil // a FIFO here would block the agent
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	return parse(io.LimitReader(f, maxFile))
}

// find expects d.mu.
func (d *Database) find(name string) (Account, bool) {
	for _, u := range d.users {
		if u.Name == name {
			return u, true
		}
	}
	if name == Sandbox {
		return Account{Name: Sandbox, UID: SandboxUID, GID: SandboxGID, Home: "/home/" + Sandbox}, true
	}
	if name == "root" {
		return Account{Name: "root", Home: "/root"}, true
	}
	uid, ok := parseID(name)
	if !ok {
		return Account{}, false
	}
	for _, u := range d.users {
		if u.UID == uid {
			return u, true
		}
	}
	switch uid {
	case 0:
		return Account{Name: "root", Home: "/root"}, true
	case SandboxUID:
		return Account{Name: Sandbox, UID: SandboxUID, GID: SandboxGID, Home: "/home/" + Sandbox}, true
	}
	return Account{UID: uid, GID: uid, Home: "/"}, true
}

// findGroup expects d.mu.
func (d *Database) findGroup(name string) (uint32, bool) {
	for _, g := range d.groups {
		if g.name == name {
			return g.gid, true
		}
	}
	if gid, ok := parseID(name); ok {
		return gid, true
	}
	if name == Sandbox {
		return SandboxGID, true
	}
	return 0, false
}

// groupsOf expects d.mu.
func (d *Database) groupsOf(a Account) []uint32 {
	var gids []uint32
	if a.Name == "" {
		return nil
	}
	for _, g := range d.groups {
		for _, m := range g.members {
			if m == a.Name && len(gids) < maxGroups {
				gids = append(gids, g.gid)
				break
			}
		}
	}
	return gids
}

// ParsePasswd reads passwd lines; what is malformed is skipped.
func ParsePasswd(r io.Reader) []Account {
	var users []Account
	eachLine(r, 7, func(f []string) {
		uid, ok := parseID(f[2])
		gid, ok2 := parseID(f[3])
		if !ok || !ok2 || f[0] == "" {
			return
		}
		users = append(users, Account{Name: f[0], UID: uid, GID: gid, Home: absolute(f[5], "/"), Shell: absolute(f[6], "")})
	})
	return users
}

func parseGroup(r io.Reader) []groupEntry {
	var groups []groupEntry
	eachLine(r, 4, func(f []string) {
		gid, ok := parseID(f[2])
		if !ok || f[0] == "" {
			return
		}
		g := groupEntry{name: f[0], gid: gid}
		if f[3] != "" {
			g.members = strings.Split(f[3], ",")
		}
		groups = append(groups, g)
	})
	return groups
}

// eachLine calls take for every line of the given number of fields that is free of NUL. A line longer than maxLine ends the reading.
func eachLine(r io.Reader, fields int, take func([]string)) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 || line[0] == '#' || bytes.IndexByte(line, 0) >= 0 {
			continue
		}
		if f := strings.Split(string(line), ":"); len(f) == fields {
			take(f)
		}
	}
}

// parseID accepts what may be a uid or gid; 2^32-1 is none: to setresuid it means "leave".
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 {
		return 0, false
	}
	return uint32(n), true
}

func absolute(path, otherwise string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return otherwise
}
