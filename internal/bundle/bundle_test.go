package bundle

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
)

func packed(t *testing.T, content map[string]string) fstest.MapFS {
	t.Helper()
	out := fstest.MapFS{"files/.gitkeep": {}}
	for name, data := range content {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := z.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		out["files/"+name+".zst"] = &fstest.MapFile{Data: b.Bytes()}
	}
	return out
}

func both(t *testing.T, version string) fstest.MapFS {
	return packed(t, map[string]string{"runsc": "runsc " + version, "cay-agent": "agent " + version})
}

func TestABinaryWithoutExecutablesSaysHowToBuildThem(t *testing.T) {
	for _, from := range []fstest.MapFS{packed(t, nil), packed(t, map[string]string{"runsc": "x"})} {
		if _, err := unpack(t.Context(), from, t.TempDir()); !errors.Is(err, ErrEmpty) {
			t.Errorf("got %v, want ErrEmpty", err)
		}
	}
}

func TestUnpackingTwiceKeepsTheFirstFiles(t *testing.T) {
	dir := t.TempDir()
	from := both(t, "1")
	first, err := unpack(t.Context(), from, dir)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(first.Runsc); err != nil || string(b) != "runsc 1" {
		t.Fatalf("runsc is %q, %v", b, err)
	}
	before, err := os.Stat(first.Agent)
	if err != nil {
		t.Fatal(err)
	}
	second, err := unpack(t.Context(), from, dir)
	if err != nil || second != first {
		t.Fatalf("second: %+v, %v", second, err)
	}
	if after, err := os.Stat(first.Agent); err != nil || !os.SameFile(before, after) {
		t.Error("the agent was written again")
	}
}

func TestADamagedFolderIsMadeAnew(t *testing.T) {
	for name, damage := range map[string]func(Paths) error{
		"cut short":            func(p Paths) error { return os.Truncate(p.Runsc, 2) },
		"missing":              func(p Paths) error { return os.Remove(p.Agent) },
		"not executable":       func(p Paths) error { return os.Chmod(p.Runsc, 0o644) },
		"writable by others":   func(p Paths) error { return os.Chmod(p.Dir, 0o777) },
		"a symlink":            func(p Paths) error { return errors.Join(os.Remove(p.Runsc), os.Symlink("/bin/true", p.Runsc)) },
		"without its manifest": func(p Paths) error { return os.Remove(filepath.Join(p.Dir, manifestName)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from := both(t, "1")
			p, err := unpack(t.Context(), from, dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(p); err != nil {
				t.Fatal(err)
			}
			if _, err := unpack(t.Context(), from, dir); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(p.Runsc); err != nil || string(b) != "runsc 1" || !whole(p.Dir) {
				t.Errorf("after the repair: %q, %v", b, err)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 1 {
				t.Errorf("left over: %v", entries)
			}
		})
	}
}

func TestManyUnpackersAgree(t *testing.T) {
	dir := t.TempDir()
	from := both(t, "1")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if p, err := unpack(t.Context(), from, dir); err != nil || !whole(p.Dir) {
				t.Errorf("%+v: %v", p, err)
			}
		})
	}
	wg.Wait()
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left over: %v", entries)
	}
}

func TestPruneKeepsWhatIsInUse(t *testing.T) {
	dir := t.TempDir()
	old, err := unpack(t.Context(), both(t, "1"), dir)
	if err != nil {
		t.Fatal(err)
	}
	now, err := unpack(t.Context(), both(t, "2"), dir)
	if err != nil {
		t.Fatal(err)
	}
	if old.Digest == now.Digest {
		t.Fatal("two versions have one digest")
	}
	if err := os.Mkdir(filepath.Join(dir, ".unpack-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Prune(dir, map[string]bool{now.Digest: true}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != now.Digest {
		t.Errorf("left: %v, %v", entries, err)
	}
	if err := Prune(filepath.Join(dir, "nowhere"), nil); err != nil {
		t.Errorf("a directory that was never made: %v", err)
	}
}
