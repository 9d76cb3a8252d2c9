package blobs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/blobs"
)

// s3 is a bucket on a server of S3's protocol.
func s3(t *testing.T) string {
	backend := s3mem.New()
	if err := backend.CreateBucket("cay"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", "id")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	return "s3://cay?" + url.Values{"region": {"us-east-1"}, "endpoint": {server.URL}, "s3ForcePathStyle": {"true"}, "disable_https": {"true"}}.Encode()
}

func TestBlobsInAFolderAndInS3(t *testing.T) {
	for name, address := range map[string]string{"a folder": "", "S3": s3(t)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			b, err := blobs.Open(t.Context(), address, dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			read := func(key string) ([]byte, error) {
				r, err := b.Read(t.Context(), key)
				if err != nil {
					return nil, err
				}
				defer r.Close()
				return io.ReadAll(r)
			}
			data := bytes.Repeat([]byte("some bytes\x00\xff"), 1<<20)
			for _, key := range []string{"jobs/a/output", "jobs/a/outputs/0", "jobs/b/output"} {
				if n, err := b.Write(t.Context(), key, bytes.NewReader(data)); err != nil || n != int64(len(data)) {
					t.Fatalf("write %s: %d, %v", key, n, err)
				}
			}
			if got, err := read("jobs/a/output"); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read: %d bytes, %v", len(got), err)
			}

			for _, part := range [][2]int64{{0, 3}, {7, 100}, {int64(len(data)) - 5, -1}, {int64(len(data)) - 5, 5}, {0, -1}} {
				end := int64(len(data))
				if part[1] >= 0 {
					end = part[0] + part[1]
				}
				r, err := b.ReadRange(t.Context(), "jobs/a/output", part[0], part[1])
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(r)
				_ = r.Close()
				if err != nil || !bytes.Equal(got, data[part[0]:end]) {
					t.Errorf("%d bytes from %d: %d, %v", part[1], part[0], len(got), err)
				}
			}

			broken := errors.New("cut off")
			if _, err := b.Write(t.Context(), "jobs/a/output", io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken))); !errors.Is(err, broken) {
				t.Errorf("a write from a broken reader: %v", err)
			}
			if got, err := read("jobs/a/output"); err != nil || !bytes.Equal(got, data) {
				t.Errorf("after a write that was cut off: %d bytes, %v", len(got), err)
			}
			canceled, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := b.Write(canceled, "jobs/c", strings.NewReader("x")); err == nil {
				t.Error("a write in a context that has ended succeeded")
			}
			if _, err := read("jobs/c"); cay.ReasonOf(err) != cay.NotFound {
				t.Errorf("what was never written: %v", err)
			}

			if err := b.DeleteBelow(t.Context(), "jobs/a/"); err != nil {
				t.Fatal(err)
			}
			if err := b.DeleteBelow(t.Context(), "jobs"); err == nil {
				t.Error("a prefix without a slash was taken")
			}
			if _, err := read("jobs/a/outputs/0"); cay.ReasonOf(err) != cay.NotFound {
				t.Errorf("after the removal: %v", err)
			}
			if _, err := read("jobs/b/output"); err != nil {
				t.Errorf("a neighbour: %v", err)
			}
			if err := b.Delete(t.Context(), "jobs/none"); err != nil {
				t.Errorf("the removal of nothing: %v", err)
			}
		})
	}
}

func TestAnAddressThatIsNoneIsRefused(t *testing.T) {
	for _, address := range []string{"gs://bucket", "file://relative", "://", "/a/folder"} {
		if b, err := blobs.Open(t.Context(), address, ""); err == nil {
			_ = b.Close()
			t.Errorf("%q was taken", address)
		}
	}
	file := t.TempDir() + "/f"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := blobs.Open(t.Context(), "", file+"/below"); err == nil {
		t.Error("a folder below a file was taken")
	}
}
