package volume

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cayhq/cay"
)

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// exported is a volume of 32 MiB with a file that says "kept", as Export writes it.
func exported(t *testing.T, s *Store) []byte {
	t.Helper()
	s.mustCreate(t, "from", 32*mib)
	u := s.mustAttach(t, "from", "a")
	write(t, filepath.Join(u.Dir(), "file"), "kept")
	u.mustRelease(t)
	var out bytes.Buffer
	d, err := s.Export(t.Context(), "from", &out)
	if err != nil || d.Bytes != int64(out.Len()) || d.SHA256 != digest(out.Bytes()) {
		t.Fatalf("exported %d bytes: %+v, %v", out.Len(), d, err)
	}
	return out.Bytes()
}

func TestAnExportedVolumeComesBackAsItWas(t *testing.T) {
	s := open(t)
	data := exported(t, s)
	if len(data) > mib {
		t.Errorf("a nearly empty volume is exported as %d bytes", len(data))
	}
	info, err := s.Import(t.Context(), "to", 32*mib, digest(data), bytes.NewReader(data))
	if err != nil || info.Bytes != 32*mib {
		t.Fatalf("imported: %+v, %v", info, err)
	}
	if from, to := blocks(t, s.image("from")), blocks(t, s.image("to")); to > from+mib {
		t.Errorf("%d bytes of the disk became %d: holes were filled", from, to)
	}
	u := s.mustAttach(t, "to", "a")
	if got := read(t, filepath.Join(u.Dir(), "file")); got != "kept" {
		t.Errorf("the file says %q", got)
	}
	write(t, filepath.Join(u.Dir(), "later"), "lost")
	_, err = s.Export(t.Context(), "to", io.Discard)
	wants(t, "export while it is used", err, cay.Conflict)
	_, err = s.Import(t.Context(), "to", 32*mib, digest(data), bytes.NewReader(data))
	wants(t, "import while it is used", err, cay.Conflict)
	u.mustRelease(t)
	if _, err := s.Import(t.Context(), "to", 32*mib, digest(data), bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	u = s.mustAttach(t, "to", "a")
	defer u.mustRelease(t)
	if _, err := os.Stat(filepath.Join(u.Dir(), "later")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was replaced is still there: %v", err)
	}
}

func TestNobodyUsesAVolumeThatIsBeingExported(t *testing.T) {
	s := open(t)
	exported(t, s)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := s.Export(t.Context(), "from", w)
		done <- err
	}()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_, err := s.Attach(t.Context(), "from", "a")
	wants(t, "attach", err, cay.Conflict)
	wants(t, "delete", s.Delete(t.Context(), "from"), cay.Conflict)
	r.CloseWithError(errors.New("the client left"))
	if err := <-done; err == nil || !strings.Contains(err.Error(), "the client left") {
		t.Errorf("an export that nobody reads: %v", err)
	}
	s.mustAttach(t, "from", "a").mustRelease(t)
}

func TestDataThatIsNotWhatItShouldBeMakesNothing(t *testing.T) {
	s := open(t)
	good := exported(t, s)
	s.mustCreate(t, "there", 16*mib)
	u := s.mustAttach(t, "there", "a")
	write(t, filepath.Join(u.Dir(), "file"), "as before")
	u.mustRelease(t)

	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	for _, c := range []struct {
		what   string
		data   []byte
		sha    string
		size   int64
		reason cay.ErrorReason
	}{
		{"a wrong digest", good, strings.Repeat("0", 64), 32 * mib, cay.Unprocessable},
		{"no digest", good, "", 32 * mib, cay.Unprocessable},
		{"a changed bit", flipped, digest(good), 32 * mib, cay.Unprocessable},
		{"a cut end", good[:len(good)-10], digest(good), 32 * mib, cay.Unprocessable},
		{"a cut end with its digest", good[:len(good)-10], digest(good[:len(good)-10]), 32 * mib, cay.Unprocessable},
		{"something after the end", append(bytes.Clone(good), 1), digest(append(bytes.Clone(good), 1)), 32 * mib, cay.Unprocessable},
		{"another size", good, digest(good), 16 * mib, cay.Unprocessable},
		{"a bare file system", make([]byte, 32*mib), digest(make([]byte, 32*mib)), 32 * mib, cay.Unprocessable},
		{"nothing", nil, digest(nil), 32 * mib, cay.Unprocessable},
	} {
		for _, name := range []string{"there", "new"} {
			_, err := s.Import(t.Context(), name, c.size, c.sha, bytes.NewReader(c.data))
			wants(t, c.what, err, c.reason)
		}
	}
	broken := errors.New("the line broke")
	_, err := s.Import(t.Context(), "new", 32*mib, digest(good), io.MultiReader(bytes.NewReader(good[:100]), failing{broken}))
	if !errors.Is(err, broken) {
		t.Errorf("a line that breaks: %v", err)
	}
	if entries, err := os.ReadDir(s.dir); err != nil || len(entries) != 2 || len(s.List()) != 2 {
		t.Errorf("left: %v, %v", entries, err)
	}
	u = s.mustAttach(t, "there", "a")
	defer u.mustRelease(t)
	if got := read(t, filepath.Join(u.Dir(), "file")); got != "as before" {
		t.Errorf("the volume says %q", got)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// flat is a file in memory that notices what would not fit.
type flat struct {
	t    testing.TB
	size int64
}

func (f flat) WriteAt(p []byte, at int64) (int, error) {
	if at < 0 || at+int64(len(p)) > f.size {
		f.t.Errorf("%d bytes at %d of %d", len(p), at, f.size)
	}
	return len(p), nil
}

func FuzzDecode(f *testing.F) {
	for _, text := range []string{"", magic, magic + "\x00\x00\x00\x00\x00\x80\x00\x00", magic + "\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"} {
		f.Add([]byte(text))
	}
	f.Add([]byte(magic + "\x00\x00\x00\x00\x00\x80\x00\x00" + "\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x10\x00" + strings.Repeat("x", 4096) +
		"\x00\x00\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const size = 8 << 20
		err := decode(bytes.NewReader(data), flat{t, size}, size)
		if err != nil && !errors.Is(err, errForm) {
			t.Errorf("a fault of the data is told as %v", err)
		}
		if err == nil && len(data) < len(magic)+24 {
			t.Errorf("%d bytes were a volume", len(data))
		}
	})
}

func TestAStreamThatAsksForMuchMemoryIsRefused(t *testing.T) {
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out, zstd.WithWindowSize(64<<20), zstd.WithSingleSegment(false))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, io.LimitReader(endless{}, 80<<20)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unpack(bytes.NewReader(out.Bytes()), f, 16*mib); !errors.Is(err, errForm) || !strings.Contains(err.Error(), "window") {
		t.Errorf("a window of 64 MiB: %v", err)
	}
}
