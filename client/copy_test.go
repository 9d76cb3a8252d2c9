package client_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
	"github.com/cayhq/cay/client/clienttest"
)

func TestArchivesTravelBothWays(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	f := c.Files(id)
	var up bytes.Buffer
	tw := tar.NewWriter(&up)
	for name, content := range map[string]string{"a.txt": "A", "d/b.txt": "BB"} {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o640, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	server.Refuse("PUT", "/archive", 503, "unavailable", 0)
	report, err := f.UploadArchive(ctx, "/workspace/x", bytes.NewReader(up.Bytes()), client.ArchiveOptions{})
	if err != nil || report.Files != 2 || report.Bytes != 3 {
		t.Fatalf("uploaded %+v, %v", report, err)
	}
	var down bytes.Buffer
	if n, err := f.DownloadArchive(ctx, "/workspace/x", &down, client.ArchiveOptions{Format: client.Tar}); err != nil || n != int64(down.Len()) {
		t.Fatalf("downloaded %d, %v", n, err)
	}
	var names []string
	for tr := tar.NewReader(&down); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if !slices.Equal(names, []string{"a.txt", "d/", "d/b.txt"}) {
		t.Errorf("names %v", names)
	}
	server.CutAfter(700)
	if _, err := f.DownloadArchive(ctx, "/workspace/x", io.Discard, client.ArchiveOptions{Format: client.Tar}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut short: %v", err)
	}
	if _, err := f.UploadArchive(ctx, "/workspace/y", strings.NewReader("no archive, however long it may be"), client.ArchiveOptions{}); client.ReasonOf(err) != client.ReasonUnprocessable {
		t.Errorf("what is no archive: %v", err)
	}
}

func TestAFolderRoundTripsWithModesAndLinks(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	server.Refuse("PUT", "/archive", 503, "unavailable", 0) // an upload is repeated, and counted once
	from := t.TempDir()
	write(t, from, "a.txt", "a", 0o644)
	write(t, from, "bin/run", "#!/bin/sh\n", 0o755)
	write(t, from, "deep/er/b", strings.Repeat("b", 100_000), 0o600)
	os.Symlink("../a.txt", filepath.Join(from, "bin/link"))
	mkfifo(t, filepath.Join(from, "fifo"))

	var progress int64
	sent, err := c.Files(id).CopyTo(ctx, from, "/workspace/p", client.CopyOptions{Progress: func(n int64) { progress += n }})
	if err != nil {
		t.Fatal(err)
	}
	if progress != sent.Bytes {
		t.Errorf("the progress was of %d bytes", progress)
	}
	if sent.Files != 3 || sent.Symlinks != 1 || sent.Bytes != 100_011 || len(sent.Skipped) != 1 {
		t.Errorf("sent %+v", sent)
	}
	to := filepath.Join(t.TempDir(), "copy")
	got, err := c.Files(id).CopyFrom(ctx, "/workspace/p", to, client.CopyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Files != 3 || got.Symlinks != 1 || got.Bytes != 100_011 || len(got.Skipped) != 0 {
		t.Errorf("got %+v", got)
	}
	for name, mode := range map[string]fs.FileMode{"a.txt": 0o644, "bin/run": 0o755, "deep/er/b": 0o600} {
		want, _ := os.ReadFile(filepath.Join(from, name))
		have, err := os.ReadFile(filepath.Join(to, name))
		info, _ := os.Stat(filepath.Join(to, name))
		if err != nil || !bytes.Equal(want, have) || info.Mode() != mode {
			t.Errorf("%s: %d bytes, %v, %v", name, len(have), info, err)
		}
	}
	if target, err := os.Readlink(filepath.Join(to, "bin/link")); err != nil || target != "../a.txt" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	leftovers(t, to)
}

func TestADownloadNeverLeavesItsFolder(t *testing.T) {
	file := func(name string) tar.Header { return tar.Header{Name: name, Mode: 0o644, Size: 4} }
	dir := func(name string) tar.Header { return tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeDir} }
	link := func(name, target string) tar.Header {
		return tar.Header{Name: name, Linkname: target, Typeflag: tar.TypeSymlink}
	}
	for name, tt := range map[string]struct {
		entries []tar.Header
		refused bool
	}{
		"a name that climbs":                   {[]tar.Header{file("../../x")}, true},
		"a name that climbs later":             {[]tar.Header{file("a/../../x")}, true},
		"a name that is ..":                    {[]tar.Header{dir("..")}, true},
		"a name that is .":                     {[]tar.Header{file(".")}, true},
		"an absolute name":                     {[]tar.Header{file("/etc/passwd")}, true},
		"a name that is too long":              {[]tar.Header{file(strings.Repeat("a/", 3000) + "x")}, true},
		"too many directories":                 {[]tar.Header{file(strings.Repeat("a/", 300) + "x")}, true},
		"an absolute link":                     {[]tar.Header{link("x", "/etc")}, false},
		"a link that climbs":                   {[]tar.Header{link("x", "../outside")}, false},
		"a link that climbs late":              {[]tar.Header{dir("d"), link("d/l", "../d/../../outside")}, false},
		"a link's target of 100 kB":            {[]tar.Header{link("x", strings.Repeat("a", 100_000))}, false},
		"a file below a link of the same name": {[]tar.Header{link("x", "../outside"), dir("x"), file("x/f")}, false},
		"a file through a link":                {[]tar.Header{link("x", "../outside"), file("x/f")}, false},
		"links that lead out together": {[]tar.Header{
			dir("d"), dir("d/e"), link("d/e/up", "../.."), link("out", "d/e/up/../outside"),
		}, false},
		"a hard link out":            {[]tar.Header{{Name: "x", Linkname: "../outside/secret", Typeflag: tar.TypeLink}}, true},
		"a hard link to nothing":     {[]tar.Header{{Name: "x", Linkname: "y", Typeflag: tar.TypeLink}}, false},
		"a hard link to a link":      {[]tar.Header{link("y", "../outside/secret"), {Name: "x", Linkname: "y", Typeflag: tar.TypeLink}}, false},
		"a setuid file":              {[]tar.Header{{Name: "x", Mode: 0o6755, Size: 4}}, false},
		"a device":                   {[]tar.Header{{Name: "x", Mode: 0o666, Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}}, false},
		"a directory of mode 0":      {[]tar.Header{{Name: "d", Typeflag: tar.TypeDir}, file("d/f")}, false},
		"the same name, other kinds": {[]tar.Header{file("x"), dir("x")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			server, c := connect(t)
			id := sandbox(t, c)
			server.SendArchive(archive(t, tt.entries...))
			parent := t.TempDir()
			write(t, parent, "outside/secret", "secret", 0o600)
			_, err := c.Files(id).DownloadDirectory(within(t), "/workspace", filepath.Join(parent, "in"), client.CopyOptions{})
			if tt.refused != (err != nil) {
				t.Errorf("got %v", err)
			}
			staysInside(t, parent)
			leftovers(t, parent)
		})
	}
}

// archive holds entries, files with the content "evil".
func archive(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, "evil"[:h.Size]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestADownloadKeepsHardLinksAndTimes(t *testing.T) {
	server, c := connect(t)
	at := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	server.SendArchive(archive(t, tar.Header{Name: "a", Size: 4, Mode: 0o640, ModTime: at}, tar.Header{Name: "b", Linkname: "a", Typeflag: tar.TypeLink}))
	to := filepath.Join(t.TempDir(), "in")
	for range 2 { // the second time over what is there
		if _, err := c.Files(sandbox(t, c)).DownloadDirectory(within(t), "/workspace", to, client.CopyOptions{}); err != nil {
			t.Fatal(err)
		}
		server.SendArchive(archive(t, tar.Header{Name: "a", Size: 4, Mode: 0o640, ModTime: at}, tar.Header{Name: "b", Linkname: "a", Typeflag: tar.TypeLink}))
	}
	a, errA := os.Stat(filepath.Join(to, "a"))
	b, errB := os.Stat(filepath.Join(to, "b"))
	if errA != nil || errB != nil || !os.SameFile(a, b) || !a.ModTime().Equal(at) || a.Mode() != 0o640 {
		t.Errorf("a is %v, b is %v, %v, %v", a, b, errA, errB)
	}
	leftovers(t, to)
}

func TestADownloadThatIsCutIsAnErrorAndLeavesNoPart(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	server.Put(id, "/workspace/a", clienttest.Entry{Type: "file", Mode: "0644", Content: make([]byte, 100_000)})
	to := filepath.Join(t.TempDir(), "in")
	server.CutAfter(5000)
	if _, err := c.Files(id).DownloadDirectory(ctx, "/workspace", to, client.CopyOptions{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v", err)
	}
	leftovers(t, to)
	if _, err := os.Stat(filepath.Join(to, "a")); err == nil {
		t.Error("half a file has its name")
	}
}

func TestAnUploadOfWhatCannotBeReadSaysSoAndWritesNothing(t *testing.T) {
	server, c := connect(t)
	id := sandbox(t, c)
	from := t.TempDir()
	write(t, from, "a", "a", 0o644)
	if err := os.Symlink("a", filepath.Join(from, "b")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(within(t))
	broken := errors.New("unplugged")
	_, err := c.Files(id).UploadDirectory(ctx, from, "/workspace/x", client.CopyOptions{Progress: func(int64) { cancel(broken) }})
	if err == nil {
		t.Error("half a folder was a success")
	}
	if _, there := server.Entry(id, "/workspace/x/a"); there {
		t.Error("half a folder was written")
	}
	if _, err := c.Files(id).UploadDirectory(within(t), filepath.Join(from, "nothing"), "/workspace/x", client.CopyOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// staysInside checks that nothing but parent's folder "in" changed, and that nothing in it leads out.
func staysInside(t *testing.T, parent string) {
	t.Helper()
	entries, _ := os.ReadDir(parent)
	for _, e := range entries {
		if e.Name() != "in" && e.Name() != "outside" {
			t.Errorf("%s appeared", e.Name())
		}
	}
	if outside, _ := os.ReadDir(filepath.Join(parent, "outside")); len(outside) != 1 {
		t.Errorf("outside holds %v", outside)
	}
	in := filepath.Join(parent, "in")
	filepath.WalkDir(in, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, _ := d.Info()
		if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s is %s", path, info.Mode())
		}
		if real, err := filepath.EvalSymlinks(path); err == nil && real != in && !strings.HasPrefix(real, in+"/") {
			t.Errorf("%s leads to %s", path, real)
		}
		return nil
	})
}

func TestADownloadDoesNotWriteThroughLinksThatWereThere(t *testing.T) {
	server, c := connect(t)
	id := sandbox(t, c)
	server.Put(id, "/w", clienttest.Entry{Type: "directory", Mode: "0755"})
	server.Put(id, "/w/d", clienttest.Entry{Type: "directory", Mode: "0755"})
	server.Put(id, "/w/d/f", clienttest.Entry{Type: "file", Mode: "0644", Content: []byte("new")})
	parent := t.TempDir()
	write(t, parent, "outside/f", "old", 0o644)
	os.Mkdir(filepath.Join(parent, "in"), 0o755)
	os.Symlink("../outside", filepath.Join(parent, "in/d"))
	if _, err := c.Files(id).CopyFrom(within(t), "/w", filepath.Join(parent, "in"), client.CopyOptions{}); err == nil {
		t.Error("a link was taken for a folder")
	}
	if got, _ := os.ReadFile(filepath.Join(parent, "outside/f")); string(got) != "old" {
		t.Errorf("outside/f is %q", got)
	}
}

func TestADownloadThatFailsLeavesNoFile(t *testing.T) {
	_, c := connect(t)
	dir := t.TempDir()
	if _, err := c.Files(sandbox(t, c)).CopyFrom(within(t), "/nothing", filepath.Join(dir, "f"), client.CopyOptions{}); client.ReasonOf(err) != client.ReasonNotFound {
		t.Fatalf("got %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Fatalf("left behind: %v", left)
	}
}

func write(t *testing.T, dir, name, content string, mode fs.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// leftovers checks that no part of a download stayed.
func leftovers(t *testing.T, dir string) {
	t.Helper()
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if strings.HasPrefix(d.Name(), ".cay-") {
			t.Errorf("left behind: %s", path)
		}
		return err
	})
}
