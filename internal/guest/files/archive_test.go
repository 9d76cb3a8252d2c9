package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"golang.org/x/sys/unix"
)

func tarOf(t testing.TB, headers ...*tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("x"), int(h.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestAPipeCarriesEverythingAndItsEnd(t *testing.T) {
	p := newPipe()
	content := make([]byte, 3*pipePieces*pipePiece+17)
	for i := range content {
		content[i] = byte(i * i >> 3)
	}
	failure := errors.New("the end")
	var writing sync.WaitGroup
	writing.Go(func() {
		for rest := content; len(rest) > 0; {
			n := min(len(rest), 100_003)
			if _, err := p.Write(rest[:n]); err != nil {
				t.Error(err)
			}
			rest = rest[n:]
		}
		p.close(failure)
	})
	got, err := io.ReadAll(p)
	writing.Wait()
	if err != failure || !bytes.Equal(got, content) {
		t.Errorf("%d bytes of %d, %v", len(got), len(content), err)
	}
}

func TestAPipeWhoseReaderLeftRefusesItsWriter(t *testing.T) {
	p := newPipe()
	p.stop()
	for n := 0; ; n++ {
		if _, err := p.Write(make([]byte, pipePiece)); err != nil {
			if !errors.Is(err, errPipe) {
				t.Error(err)
			}
			return
		}
		if n > pipePieces {
			t.Fatal("it takes more than there is room for")
		}
	}
}

// cutReader answers content, then an error that is no end.
type cutReader struct {
	io.Reader
}

var errCut = cay.Errorf(cay.Unavailable, "the connection is gone")

func (c cutReader) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	if err == io.EOF {
		err = errCut
	}
	return n, err
}

func TestAnArchiveWhoseSourceBreaksIsNotWritten(t *testing.T) {
	f := asRoot(t)
	dir := t.TempDir()
	data := tarOf(t, &tar.Header{Name: "a", Size: 1 << 20, Mode: 0o644}, &tar.Header{Name: "b", Size: 10, Mode: 0o644})
	for _, size := range []int{0, 100, 600, 1 << 19, len(data) - 1024, len(data)} {
		_, err := f.WriteArchive(&guestv1.WriteArchive{Path: dir + "/t"}, cutReader{bytes.NewReader(data[:size])})
		if err == nil {
			t.Errorf("%d bytes and a broken source were taken", size)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Fatalf("after %d bytes %v is left", size, left)
		}
	}
}

func TestADirectorySwappedForASymlinkIsNeverWalkedThrough(t *testing.T) {
	f := asRoot(t)
	dir := t.TempDir()
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("outside"), 0o600); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "t")
	if err := os.MkdirAll(filepath.Join(target, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		x, y := filepath.Join(target, "x"), filepath.Join(dir, "link")
		if err := os.Symlink(outside, y); err != nil {
			t.Error(err)
		}
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, x, unix.AT_FDCWD, y, unix.RENAME_EXCHANGE)
			}
		}
	})
	data := tarOf(t, &tar.Header{Name: "x/evil", Size: 4, Mode: 0o644}, &tar.Header{Name: "x/d/evil", Size: 4, Mode: 0o644})
	written := 0
	for range 300 {
		if _, err := f.WriteArchive(&guestv1.WriteArchive{Path: target}, bytes.NewReader(data)); err == nil {
			written++
		}
		var out bytes.Buffer
		if err := f.ReadArchive(&guestv1.ReadArchive{Path: target, Format: "tar"}, &out); err == nil && bytes.Contains(out.Bytes(), []byte("outside")) && bytes.Contains(out.Bytes(), []byte("secret")) {
			t.Fatal("what is outside came out in an archive")
		}
		_, _ = f.Chmod(&guestv1.Chmod{Path: target, Mode: 0o777, SetMode: true, Recursive: true})
		found, err := f.Search(&guestv1.Search{Path: target, Contains: "outside"})
		if err == nil && len(found.Items) > 0 {
			t.Fatalf("what is outside was found: %v", found.Items)
		}
		_ = f.Remove(&guestv1.Remove{Path: target + "/x", Recursive: true})
		_ = os.MkdirAll(filepath.Join(target, "x"), 0o755)
	}
	close(stop)
	swapping.Wait()
	left, err := os.ReadDir(outside)
	if err != nil || len(left) != 1 {
		t.Errorf("outside there is %v, %v", left, err)
	}
	if info, err := os.Stat(filepath.Join(outside, "secret")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file outside is %v, %v", info, err)
	}
	t.Logf("%d of 300 archives found the directory in its place", written)
}

func TestAFileThatShrinksCutsTheArchive(t *testing.T) {
	f := asRoot(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, make([]byte, 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	shrinking := writerFunc(func(b []byte) (int, error) { return len(b), os.Truncate(file, 1<<20) })
	err := f.ReadArchive(&guestv1.ReadArchive{Path: dir, Format: "tar"}, shrinking)
	if cay.ReasonOf(err) != cay.Conflict || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("%v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestWhatMayNotBeReadIsNoSilentHole(t *testing.T) {
	f := asRoot(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "roots"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path := dir; path != "/tmp" && path != "/"; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := f.ReadArchive(&guestv1.ReadArchive{Path: dir, User: "12345", Format: "tar"}, io.Discard)
	if cay.ReasonOf(err) != cay.Forbidden || !strings.Contains(err.Error(), "user=root") {
		t.Errorf("%v", err)
	}
}

func TestALargeFileKeepsItsSizeAndASparseOneStaysSmall(t *testing.T) {
	f := asRoot(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 9<<30); err != nil {
		t.Skipf("no file of 9 GiB here: %v", err)
	}
	r, w := io.Pipe()
	var walking sync.WaitGroup
	walking.Go(func() {
		w.CloseWithError(f.ReadArchive(&guestv1.ReadArchive{Path: dir, Format: "tar"}, w))
	})
	in := tar.NewReader(r)
	h, err := in.Next()
	if err != nil || h.Size != 9<<30 {
		t.Errorf("%+v, %v", h, err)
	}
	r.CloseWithError(errCut) // the reader leaves, and the walk ends
	walking.Wait()
}

// FuzzEntryPath: whatever an entry is called, it is refused or stays below the target.
func FuzzEntryPath(f *testing.F) {
	for _, name := range []string{"a/b", "../x", "/x", "a/../b", "a//b/./c", "", ".", "..", "a/..", "\xff", "a\x00b", strings.Repeat("d/", 300) + "x"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		rel, err := entryPath("entry", name)
		if err != nil {
			if cay.ReasonOf(err) != cay.Unprocessable {
				t.Errorf("%q: %v", name, err)
			}
			return
		}
		if strings.HasPrefix(rel, "/") || strings.HasSuffix(rel, "/") || strings.Contains(rel, "//") || strings.Contains(rel, "\x00") || len(rel) > maxPath {
			t.Errorf("%q became %q", name, rel)
		}
		if rel != "" {
			for part := range strings.SplitSeq(rel, "/") {
				if part == "." || part == ".." || part == "" {
					t.Errorf("%q became %q", name, rel)
				}
			}
		}
		if outside := filepath.Join("/t", rel); outside != "/t" && !strings.HasPrefix(outside, "/t/") {
			t.Errorf("%q leads to %q", name, outside)
		}
	})
}

// FuzzWriteArchive: whatever an archive holds, nothing appears beside the target, and nothing is left of one that is refused.
func FuzzWriteArchive(f *testing.F) {
	f.Add(tarOf(f, &tar.Header{Name: "a/b", Size: 3, Mode: 0o4755}, &tar.Header{Name: "l", Linkname: "../x", Typeflag: tar.TypeSymlink}, &tar.Header{Name: "l/x", Size: 1, Mode: 0o644}))
	f.Add(tarOf(f, &tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o700}, &tar.Header{Name: "d/h", Linkname: "d", Typeflag: tar.TypeLink}))
	f.Add(tarOf(f, &tar.Header{Name: "../evil", Size: 1, Mode: 0o644}))
	f.Add([]byte("\x1f\x8b\x08\x00"))
	f.Add([]byte("\x28\xb5\x2f\xfd\x04\x58"))
	files := asRoot(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		base := t.TempDir()
		target := filepath.Join(base, "t")
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := files.WriteArchive(&guestv1.WriteArchive{Path: target}, bytes.NewReader(data))
		beside, _ := os.ReadDir(base)
		if len(beside) != 1 {
			t.Fatalf("beside the target there is %v", beside)
		}
		inside, _ := os.ReadDir(target)
		if err != nil && len(inside) != 0 {
			t.Errorf("refused with %v, and left %v", err, inside)
		}
		for _, e := range inside {
			if strings.HasPrefix(e.Name(), staging) {
				t.Errorf("%s is left", e.Name())
			}
		}
	})
}
