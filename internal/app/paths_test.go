package app

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestTheServersDirectoryIsHandedOverAndNothingBeyondIt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	const uid, gid = 61999, 61999
	p := paths{data: t.TempDir(), run: t.TempDir()}
	outside := filepath.Join(t.TempDir(), "outside")
	for _, path := range []string{outside, filepath.Join(p.server(), "sub", "cay.db")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(outside, filepath.Join(p.server(), "second name")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(p.server(), "way out")); err != nil {
		t.Fatal(err)
	}
	if err := p.create(uid, gid); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		p.server(): uid, filepath.Join(p.server(), "sub"): uid, filepath.Join(p.server(), "sub", "cay.db"): uid, outside: 0, filepath.Dir(outside): 0,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := int(info.Sys().(*syscall.Stat_t).Uid); got != want {
			t.Errorf("%s belongs to %d, want %d", path, got, want)
		}
	}
}
