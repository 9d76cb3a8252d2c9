package testkit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"
	"time"
)

// requestTimeout bounds what a test asks without saying how long it may take.
const requestTimeout = 3 * time.Minute

// Sandbox is a sandbox of a test. Its methods fail the test, and so belong to the test's own goroutine; others use the Client.
type Sandbox struct {
	*Client
	SandboxObject
	t testing.TB
}

// Create makes a sandbox that is deleted at the end of the test.
func (i *Instance) Create(t testing.TB, more ...Fields) *Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	obj, err := i.CreateSandbox(ctx, Fields{}.With(more...))
	if err != nil {
		t.Fatal(err)
	}
	sb := &Sandbox{i.Client, obj, t}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
		defer cancel()
		if err := i.DeleteSandbox(ctx, obj.ID); err != nil && i.Running() {
			t.Error(err)
		}
	})
	return sb
}

// In is the same sandbox for a subtest.
func (s *Sandbox) In(t testing.TB) *Sandbox { return &Sandbox{s.Client, s.SandboxObject, t} }

// Path is the sandbox's path in the API, and what follows.
func (s *Sandbox) Path(rest string) string { return "/v1/sandboxes/" + s.ID + rest }

// Call sends a request about the sandbox.
func (s *Sandbox) Call(method, rest string, body any, headers ...string) Response {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), requestTimeout)
	defer cancel()
	resp, err := s.Do(ctx, method, s.Path(rest), body, headers...)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, s.Path(rest), err)
	}
	return resp
}

// X runs a command by the sandbox's shell and returns what came of it.
func (s *Sandbox) X(command string, more ...Fields) ExecResult {
	s.t.Helper()
	return s.Run(command, more...)
}

// Run runs a command: a string by the shell, a []string by itself.
func (s *Sandbox) Run(command any, more ...Fields) ExecResult {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), requestTimeout)
	defer cancel()
	out, err := s.Exec(ctx, s.ID, command, more...)
	if err != nil {
		s.t.Fatalf("%v: %v", command, err)
	}
	return out
}

// Must runs a command that has to succeed and returns its standard output.
func (s *Sandbox) Must(command string, more ...Fields) string {
	s.t.Helper()
	out := s.X(command, more...)
	if !out.OK {
		s.t.Fatalf("%s: exit code %d, %s, stderr %q, stdout %q", command, out.ExitCode, out.Reason, tail(out.Stderr), tail(out.Stdout))
	}
	return out.Stdout
}

// MustSay runs a command that has to succeed and to print exactly that.
func (s *Sandbox) MustSay(want, command string, more ...Fields) {
	s.t.Helper()
	if got := s.Must(command, more...); got != want {
		s.t.Fatalf("%s printed %q, want %q", command, tail(got), tail(want))
	}
}

func tail(s string) string {
	const most = 600
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// RequireProgram skips the test when the image has no such program.
func (s *Sandbox) RequireProgram(names ...string) {
	s.t.Helper()
	for _, name := range names {
		if out := s.X("command -v " + name); out.ExitCode != 0 {
			Missing(s.t, "%s in the host image", name)
		}
	}
}

// Refresh reads the object anew.
func (s *Sandbox) Refresh() SandboxObject {
	s.t.Helper()
	obj, err := s.GetSandbox(s.t.Context(), s.ID)
	if err != nil {
		s.t.Fatal(err)
	}
	return obj
}

// FilePath is the API's path of a file of the sandbox.
func FilePath(path string, more ...string) string {
	q := url.Values{"path": {path}}
	for n := 0; n+1 < len(more); n += 2 {
		q.Set(more[n], more[n+1])
	}
	return "/files?" + q.Encode()
}

// Put uploads a file and fails the test unless that works. more are further query parameters.
func (s *Sandbox) Put(path string, data []byte, more ...string) {
	s.t.Helper()
	if resp := s.Call("PUT", FilePath(path, more...), data); resp.Status/100 != 2 {
		s.t.Fatalf("upload %q: %v", path, resp)
	}
}

// Get downloads a file and fails the test unless that works.
func (s *Sandbox) Get(path string) []byte {
	s.t.Helper()
	resp := s.Call("GET", FilePath(path), nil)
	if resp.Status != 200 {
		s.t.Fatalf("download %q: %v", path, resp)
	}
	return resp.Body
}

// FileObject is what the API says of a file.
type FileObject struct {
	Path       string `json:"path"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	Size       int64  `json:"size"`
	Mode       string `json:"mode"`
	UID        int    `json:"uid"`
	GID        int    `json:"gid"`
	User       string `json:"user"`
	ModifiedAt string `json:"modified_at"`
	Target     string `json:"target"`
}

// Stat asks for a file.
func (s *Sandbox) Stat(path string) FileObject {
	s.t.Helper()
	var f FileObject
	if err := s.Call("GET", "/files/stat?"+url.Values{"path": {path}}.Encode(), nil).Decode(200, &f); err != nil {
		s.t.Fatalf("stat %q: %v", path, err)
	}
	return f
}

// List lists a directory, all pages of it.
func (s *Sandbox) List(path string) []FileObject {
	s.t.Helper()
	var all []FileObject
	q := url.Values{"path": {path}}
	for {
		var page struct {
			Items      []FileObject `json:"items"`
			NextCursor string       `json:"next_cursor"`
		}
		if err := s.Call("GET", "/files/list?"+q.Encode(), nil).Decode(200, &page); err != nil {
			s.t.Fatalf("list %q: %v", path, err)
		}
		all = append(all, page.Items...)
		if page.NextCursor == "" {
			return all
		}
		q.Set("cursor", page.NextCursor)
	}
}

// Others lists the command lines of all processes inside but the agent's and the one that looks; zombies have none.
func (s *Sandbox) Others() []string {
	s.t.Helper()
	out := s.Must(`for p in /proc/[0-9]*; do [ $p = /proc/1 ] || [ $p = /proc/$$ ] || { tr '\0' ' ' <$p/cmdline && echo; } 2>/dev/null; done; true`)
	var lines []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// Count is how many of the [Sandbox.Others] begin with prefix.
func (s *Sandbox) Count(prefix string) int {
	s.t.Helper()
	n := 0
	for _, line := range s.Others() {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// Digest is the SHA-256 of data as sha256sum prints it.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
