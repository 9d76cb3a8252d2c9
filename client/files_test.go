package client_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/client"
)

func TestFilesOfEveryNameRoundTrip(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	f := c.Files(sandbox(t, c))
	names := []string{"a b", "ü日本", "new\nline", "-rf", ".env", "%2e%2e", "a?b#c", strings.Repeat("x", 255), "e\u0301", "\u00e9"}
	for _, name := range names {
		path := "/workspace/names/" + name
		content := []byte("content of " + name)
		if _, err := f.Write(ctx, path, bytes.NewReader(content), client.WriteOptions{Mode: 0o750}); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		r, err := f.Read(ctx, path, client.ReadOptions{})
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || !bytes.Equal(got, content) || r.Size != int64(len(content)) || r.ETag == "" {
			t.Fatalf("%q: %q, size %d, etag %s, %v", name, got, r.Size, r.ETag, err)
		}
		info, err := f.Stat(ctx, path)
		if err != nil || info.Name != name || info.Mode != 0o750 || !info.IsRegular() {
			t.Fatalf("%q: %+v, %v", name, info, err)
		}
	}
	var listed []string
	for info, err := range f.List(ctx, "/workspace/names", 1) {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, info.Name)
	}
	slices.Sort(listed)
	slices.Sort(names)
	if !slices.Equal(listed, names) {
		t.Fatalf("listed %q", listed)
	}
	for _, name := range names {
		if err := f.Remove(ctx, "/workspace/names/"+name, false); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesAnswerTypedErrors(t *testing.T) {
	_, c := connect(t)
	ctx := within(t)
	f := c.Files(sandbox(t, c))
	f.Write(ctx, "/tmp/a", strings.NewReader("0123456789"), client.WriteOptions{})
	f.Write(ctx, "/tmp/b", strings.NewReader("b"), client.WriteOptions{})
	_, missing := f.Read(ctx, "/nothing", client.ReadOptions{})
	_, dir := f.Read(ctx, "/tmp", client.ReadOptions{})
	_, replaced := f.Write(ctx, "/tmp/a", strings.NewReader("x"), client.WriteOptions{Create: true})
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"read of a missing file": {missing, client.ReasonNotFound},
		"read of a directory":    {dir, client.ReasonUnprocessable},
		"mkdir of what exists":   {f.Mkdir(ctx, "/tmp", 0, false), client.ReasonAlreadyExists},
		"move onto what exists":  {f.Move(ctx, "/tmp/a", "/tmp/b", false), client.ReasonAlreadyExists},
		"a write that replaces":  {replaced, client.ReasonPreconditionFailed},
		"mkdir with parents":     {f.Mkdir(ctx, "/tmp/p/q", 0o700, true), ""},
		"move":                   {f.Move(ctx, "/tmp/b", "/tmp/c", false), ""},
		"remove, recursive":      {f.Remove(ctx, "/tmp/p", true), ""},
	} {
		if client.ReasonOf(tt.err) != tt.want || (tt.want == "") != (tt.err == nil) {
			t.Errorf("%s: %v", name, tt.err)
		}
	}
	r, err := f.Read(ctx, "/tmp/a", client.ReadOptions{Offset: 3, Length: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if part, _ := io.ReadAll(r); string(part) != "3456" {
		t.Errorf("a range brought %q", part)
	}
}

func TestAWriteWhoseContentFailsWritesNothing(t *testing.T) {
	server, c := connect(t)
	id := sandbox(t, c)
	broken := errors.New("broken disk")
	content := io.MultiReader(strings.NewReader("half"), errReader{broken})
	if _, err := c.Files(id).Write(within(t), "/tmp/a", content, client.WriteOptions{}); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	if _, there := server.Entry(id, "/tmp/a"); there {
		t.Fatal("half a file was written")
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

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
