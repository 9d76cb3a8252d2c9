package client_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
)

func newSession(t *testing.T, c *client.Client, r client.CreateSessionRequest) *client.SessionInfo {
	t.Helper()
	s, err := c.Sessions().Create(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestASessionIsMadeFoundAndDeleted(t *testing.T) {
	server, c := connect(t)
	ctx := within(t)
	server.Refuse("POST", "/sessions", 503, "unavailable", 0)
	s := newSession(t, c, client.CreateSessionRequest{Name: "planner", TTL: time.Hour, Metadata: map[string]string{"agent": "a"}})
	if !strings.HasPrefix(s.ID, "ses_") || s.Name != "planner" || s.Status != client.SessionActive || s.TTL != time.Hour || s.ExpiresAt.IsZero() || s.Volume == "" {
		t.Errorf("made %+v", s)
	}
	_, err := c.Sessions().Create(ctx, client.CreateSessionRequest{Name: "planner"})
	if e := refused(t, err); e.Reason != client.ReasonAlreadyExists || e.SessionID != s.ID {
		t.Errorf("the name again: %+v", e)
	}
	other := newSession(t, c, client.CreateSessionRequest{})
	var ids []string
	for s, err := range c.Sessions().List(ctx, client.SessionListOptions{PageSize: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID)
	}
	if !slices.Equal(ids, []string{other.ID, s.ID}) {
		t.Errorf("listed %v", ids)
	}
	for found, err := range c.Sessions().List(ctx, client.SessionListOptions{Name: "planner"}) {
		if err != nil || found.ID != s.ID {
			t.Errorf("by its name: %+v, %v", found, err)
		}
	}
	for range 2 {
		if gone, err := c.Sessions().Delete(ctx, s.ID, false); err != nil || !gone {
			t.Errorf("deleted: %v, %v", gone, err)
		}
	}
	if s, err := c.Sessions().Get(ctx, s.ID); err != nil || !s.Status.Ended() || s.StatusReason != "deleted" {
		t.Errorf("afterwards it is %+v, %v", s, err)
	}
	if _, err := c.Sessions().Files(s.ID).Head(ctx, "a"); refused(t, err).Status != 410 {
		t.Errorf("its files: %v", err)
	}
}

func refused(t *testing.T, err error) *client.Error {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v", err)
	}
	return e
}

func TestOneSandboxAtATimeUsesASessionUnlessItIsShared(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	s := newSession(t, c, client.CreateSessionRequest{})
	sb, err := c.Create(ctx, client.CreateRequest{SessionID: s.ID})
	if err != nil || sb.SessionID != s.ID || sb.SessionShared || sb.ManagedBy != "" {
		t.Fatalf("made %+v, %v", sb, err)
	}
	_, err = c.Create(ctx, client.CreateRequest{SessionID: s.ID, SessionShared: true})
	if e := refused(t, err); e.Reason != client.ReasonConflict || e.SandboxID != sb.ID {
		t.Errorf("a second one: %+v", e)
	}
	for found, err := range c.List(ctx, client.ListOptions{SessionID: s.ID, Managed: true}) {
		if err != nil || found.ID != sb.ID {
			t.Errorf("its sandboxes: %+v, %v", found, err)
		}
	}
	_, err = c.Sessions().Delete(ctx, s.ID, false)
	if e := refused(t, err); e.Reason != client.ReasonConflict || e.SandboxID != sb.ID {
		t.Errorf("a delete while it is used: %+v", e)
	}
	if gone, err := c.Sessions().Delete(ctx, s.ID, true); err != nil || !gone {
		t.Errorf("by force: %v, %v", gone, err)
	}
	if sb, err := c.Get(ctx, sb.ID); err != nil || !sb.Status.Ended() {
		t.Errorf("the sandbox that used it: %+v, %v", sb, err)
	}
}

func TestASessionKeepsFilesFromOneJobToTheNext(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	s := newSession(t, c, client.CreateSessionRequest{})
	if j := submit(t, c, client.JobRequest{Code: "save(/session/a.txt)", SessionID: s.ID, Wait: time.Minute}); j.Status != client.JobSuccess || j.SessionID != s.ID {
		t.Fatalf("ended as %+v", j)
	}
	f := c.Sessions().Files(s.ID)
	for _, path := range []string{"a.txt", "/a.txt", "/session/a.txt"} {
		r, err := f.Read(ctx, path, client.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if content, err := io.ReadAll(r); err != nil || string(content) != "saved" {
			t.Errorf("%s holds %q, %v", path, content, err)
		}
		r.Close()
	}
}

func TestASessionsFilesAreWrittenListedAndRemoved(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	f := c.Sessions().Files(newSession(t, c, client.CreateSessionRequest{}).ID)
	for _, path := range []string{"b", "/d/c", "/session/a"} {
		if _, err := f.Write(ctx, path, strings.NewReader("x"), client.WriteOptions{Mode: 0o640}); err != nil {
			t.Fatal(err)
		}
	}
	var listed []string
	for info, err := range f.List(ctx, "", 1) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, info.Path)
	}
	if !slices.Equal(listed, []string{"/session/a", "/session/b", "/session/d"}) {
		t.Errorf("listed %v", listed)
	}
	if head, err := f.Head(ctx, "b"); err != nil || head.Size != 1 || head.ETag == "" {
		t.Errorf("head %+v, %v", head, err)
	}
	for path, isDir := range map[string]bool{"": true, "/": true, "d": true, "/session/d/": true, "d/c": false} {
		if info, err := f.Stat(ctx, path); err != nil || info.IsDir() != isDir {
			t.Errorf("stat %q: %+v, %v", path, info, err)
		}
	}
	if _, err := f.Stat(ctx, "d/e"); client.ReasonOf(err) != client.ReasonNotFound {
		t.Errorf("stat of nothing: %v", err)
	}
	if err := f.Remove(ctx, "d", true); err != nil {
		t.Error(err)
	}
	if _, err := f.Stat(ctx, "d"); client.ReasonOf(err) != client.ReasonNotFound {
		t.Errorf("what was removed: %v", err)
	}
}

func TestFoldersAndArchivesTravelToASessionAndBack(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	f := c.Sessions().Files(newSession(t, c, client.CreateSessionRequest{}).ID)
	from := t.TempDir()
	write(t, from, "a.txt", "a", 0o644)
	write(t, from, "bin/run", "#!/bin/sh\n", 0o755)
	if report, err := f.CopyTo(ctx, from, "p", client.CopyOptions{}); err != nil || report.Files != 2 {
		t.Fatalf("sent %+v, %v", report, err)
	}
	to := filepath.Join(t.TempDir(), "copy")
	if report, err := f.CopyFrom(ctx, "/session/p", to, client.CopyOptions{}); err != nil || report.Files != 2 {
		t.Fatalf("got %+v, %v", report, err)
	}
	if info, err := os.Stat(filepath.Join(to, "bin/run")); err != nil || info.Mode() != 0o755 {
		t.Errorf("bin/run is %v, %v", info, err)
	}
	if report, err := f.CopyFrom(ctx, "p/a.txt", filepath.Join(to, "one"), client.CopyOptions{}); err != nil || report.Files != 1 {
		t.Errorf("one file: %+v, %v", report, err)
	}
	var all bytes.Buffer
	if _, err := f.DownloadArchive(ctx, "", &all, client.ArchiveOptions{}); err != nil {
		t.Fatal(err)
	}
	second := c.Sessions().Files(newSession(t, c, client.CreateSessionRequest{}).ID)
	if report, err := second.UploadArchive(ctx, "", bytes.NewReader(all.Bytes()), client.ArchiveOptions{}); err != nil || report.Files != 2 {
		t.Fatalf("imported %+v, %v", report, err)
	}
	if info, err := second.Stat(ctx, "p/bin/run"); err != nil || info.Mode != 0o755 {
		t.Errorf("in the copy of the session it is %+v, %v", info, err)
	}
}
