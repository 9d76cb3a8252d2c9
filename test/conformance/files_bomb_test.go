package conformance

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// streamArchive uploads what write makes, compressed, without holding it.
func streamArchive(t *testing.T, sb *testkit.Sandbox, path string, write func(*tar.Writer) error) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r, w := io.Pipe()
	req, err := sb.Request(ctx, http.MethodPut, sb.Path(archivePath(path)), r)
	if err != nil {
		t.Fatal(err)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		zip, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		out := tar.NewWriter(zip)
		err := write(out)
		if err == nil {
			err = out.Close()
		}
		if err == nil {
			err = zip.Close()
		}
		w.CloseWithError(err)
	}()
	defer func() {
		r.CloseWithError(io.ErrClosedPipe)
		<-written
	}()
	resp, err := sb.HTTP.Do(req)
	if err != nil {
		t.Fatalf("upload: %v", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func TestABombIsBoundedByTheDiskAndLeavesNothing(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	sb := testkit.Server(t).Create(t, fields{"disk_gb": 0.25, "memory_mb": 512})
	sb.Must("mkdir t && echo old >t/kept")
	zeros := make([]byte, 1<<20)
	status, body := streamArchive(t, sb, "/workspace/t", func(w *tar.Writer) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "bomb", Size: 4 << 30, Mode: 0o644}); err != nil {
			return err
		}
		for range 4 << 10 {
			if _, err := w.Write(zeros); err != nil {
				return err
			}
		}
		return nil
	})
	if status != 507 || !strings.Contains(body, `"disk_full"`) {
		t.Errorf("a bomb of zeros: %d %s", status, body)
	}
	sb.MustSay("kept\nold\n", "ls -A t; cat t/kept")
	status, body = streamArchive(t, sb, "/workspace/t", func(w *tar.Writer) error {
		for i := range 1_000_000 {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("d%d/f%d", i/1000, i), Mode: 0o644}); err != nil {
				return err
			}
		}
		return nil
	})
	if status != 507 || !strings.Contains(body, `"disk_full"`) {
		t.Errorf("a million files: %d %s", status, body)
	}
	sb.MustSay("kept\nold\n", "ls -A t; cat t/kept")
	sb.Put("/workspace/after", noise(1<<20))
}
