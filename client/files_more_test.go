package client_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
)

func TestFilesAreChangedComposedAndHeaded(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	f := c.Files(sandbox(t, c))
	for path, content := range map[string]string{"/tmp/1": "one ", "/tmp/2": "two"} {
		if _, err := f.Write(ctx, path, strings.NewReader(content), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	info, err := f.Compose(ctx, []string{"/tmp/1", "/tmp/2"}, "/workspace/whole", 0o600)
	if err != nil || info.Size != 7 || info.Mode != 0o600 {
		t.Fatalf("composed %+v, %v", info, err)
	}
	if _, err := f.Stat(ctx, "/tmp/1"); client.ReasonOf(err) != client.ReasonNotFound {
		t.Errorf("a part is left: %v", err)
	}
	if info, err = f.Chmod(ctx, "/workspace/whole", client.ChmodOptions{Mode: 0o755}); err != nil || info.Mode != 0o755 {
		t.Errorf("changed to %+v, %v", info, err)
	}
	if _, err := f.Chmod(ctx, "/workspace/whole", client.ChmodOptions{}); client.ReasonOf(err) != client.ReasonInvalidRequest {
		t.Errorf("nothing to change: %v", err)
	}
	head, err := f.Head(ctx, "/workspace/whole")
	if err != nil || head.Size != 7 || head.ETag == "" {
		t.Errorf("head %+v, %v", head, err)
	}
	if _, err := f.Head(ctx, "/nothing"); err == nil {
		t.Error("what is not there was found")
	}
}

func TestSearchWalksEveryPageAndSaysWhenItIsNotAll(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	f := c.Files(sandbox(t, c))
	for _, name := range []string{"a.go", "b.go", "c.go", "d.txt"} {
		if _, err := f.Write(ctx, "/workspace/"+name, strings.NewReader("package "+name+"\nfunc\n"), client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	for m, err := range f.Search(ctx, "/workspace", client.SearchOptions{Pattern: "*.go", Contains: "func"}) {
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Lines) != 1 || m.Lines[0] != (client.MatchLine{Number: 2, Text: "func"}) {
			t.Errorf("lines %+v", m.Lines)
		}
		names = append(names, m.Name)
	}
	if strings.Join(names, " ") != "a.go b.go c.go" {
		t.Errorf("found %v", names)
	}
	var last error
	n := 0
	for _, err := range f.Search(ctx, "/workspace", client.SearchOptions{Pattern: "everything"}) {
		if last = err; err == nil {
			n++
		}
	}
	if n != 4 || !errors.Is(last, client.ErrSearchTruncated) {
		t.Errorf("%d found, then %v", n, last)
	}
}

func TestAWatchTellsChangesAndWhatWasMissed(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	f := c.Files(id)
	var told []string
	for ev, err := range f.Watch(ctx, "/workspace", client.WatchOptions{Recursive: true}) {
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, string(ev.Type))
		switch len(told) {
		case 1:
			_, err = f.Write(ctx, "/workspace/d/a", strings.NewReader("x"), client.WriteOptions{})
		case 2:
			err = f.Move(ctx, ev.Path, "/workspace/b", false)
		case 3:
			if ev.To != "/workspace/b" {
				t.Errorf("renamed to %q", ev.To)
			}
			server.Overflow(id)
		case 4:
			server.Break()
		case 6:
			err = f.Remove(ctx, "/workspace/b", false)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(told) == 7 {
			break
		}
	}
	if want := "ready create rename overflow overflow ready remove"; strings.Join(told, " ") != want {
		t.Errorf("told %v, not %s", told, want)
	}
	for _, err := range f.Watch(ctx, "/nothing", client.WatchOptions{}) {
		if client.ReasonOf(err) != client.ReasonNotFound {
			t.Errorf("what is not there: %v", err)
		}
	}
}

func TestASignedURLNeedsNoKey(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	f := c.Files(sandbox(t, c))
	put, err := f.Sign(ctx, "/tmp/up", client.SignOptions{Method: http.MethodPut, TTL: time.Minute, MaxBytes: 3})
	if err != nil || put.MaxBytes != 3 || time.Until(put.ExpiresAt) > time.Minute {
		t.Fatalf("signed %+v, %v", put, err)
	}
	send := func(content string) int {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, put.URL, strings.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if status := send("four"); status != http.StatusRequestEntityTooLarge {
		t.Errorf("more than was signed for: %d", status)
	}
	if status := send("abc"); status != http.StatusCreated {
		t.Errorf("put: %d", status)
	}
	get, err := f.Sign(ctx, "/tmp/up", client.SignOptions{})
	if err != nil || get.Method != http.MethodGet {
		t.Fatalf("signed %+v, %v", get, err)
	}
	res, err := http.Get(get.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if content, err := io.ReadAll(res.Body); err != nil || string(content) != "abc" {
		t.Errorf("got %q, %v", content, err)
	}
	http.DefaultClient.CloseIdleConnections()
}

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
