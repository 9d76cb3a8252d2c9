package user

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

func database(t *testing.T) (*Database, string) {
	dir := t.TempDir()
	write(t, dir+"/passwd", "root:x:0:0:root:/root:/bin/bash\n# a comment\nann:x:1000:100:Ann:/home/ann:/bin/zsh\nbroken\nneg:x:-1:0::/:\nmax:x:4294967295:0::/:\nrel:x:1001:1001::home:sh\n")
	write(t, dir+"/group", "root:x:0:\nstaff:x:50:ann,bob\nusers:x:100:\nwheel:x:10:ann\n")
	return Open(dir+"/passwd", dir+"/group"), dir
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestAccountsAreFoundByNameNumberAndGroup(t *testing.T) {
	d, _ := database(t)
	for spec, want := range map[string]Account{
		"ann":       {Name: "ann", UID: 1000, GID: 100, Groups: []uint32{50, 10}, Home: "/home/ann", Shell: "/bin/zsh"},
		"1000":      {Name: "ann", UID: 1000, GID: 100, Groups: []uint32{50, 10}, Home: "/home/ann", Shell: "/bin/zsh"},
		"ann:staff": {Name: "ann", UID: 1000, GID: 50, Groups: []uint32{50, 10}, Home: "/home/ann", Shell: "/bin/zsh"},
		"7:8":       {UID: 7, GID: 8, Home: "/"},
		"7":         {UID: 7, GID: 7, Home: "/"},
		"rel":       {Name: "rel", UID: 1001, GID: 1001, Home: "/"},
		"sandbox":   {Name: "sandbox", UID: 2000, GID: 2000, Home: "/home/sandbox"},
		"2000":      {Name: "sandbox", UID: 2000, GID: 2000, Home: "/home/sandbox"},
		"root":      {Name: "root", Home: "/root", Shell: "/bin/bash"},
	} {
		got, err := d.Lookup(spec)
		if err != nil || got.Name != want.Name || got.UID != want.UID || got.GID != want.GID || got.Home != want.Home || got.Shell != want.Shell || len(got.Groups) != len(want.Groups) {
			t.Errorf("%s: %+v, %v", spec, got, err)
		}
	}
	for _, spec := range []string{"", "bob", "neg", "max", "-1", "4294967295", "ann:nobody", "ann:4294967295", "broken"} {
		if a, err := d.Lookup(spec); !errors.Is(err, &cay.Error{Reason: cay.Unprocessable}) {
			t.Errorf("%q: %+v, %v", spec, a, err)
		}
	}
}

func TestAChangedFileIsReadAgain(t *testing.T) {
	d, dir := database(t)
	if _, err := d.Lookup("new"); err == nil {
		t.Fatal("there is a new user already")
	}
	write(t, dir+"/passwd", "new:x:5:5::/new:/bin/sh\n")
	if a, err := d.Lookup("new"); err != nil || a.UID != 5 || d.Name(5) != "new" {
		t.Errorf("%+v, %v", a, err)
	}
	os.Remove(dir + "/passwd")
	if _, err := d.Lookup("new"); err == nil {
		t.Error("a removed file still counts")
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, "passwd")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Lookup("root"); err != nil {
		t.Errorf("a device instead of passwd: %v", err)
	}
}

func TestFilesActOfAUserAreChecked(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	file := t.TempDir() + "/closed"
	write(t, file, "x")
	os.Chmod(file, 0o600)
	account := Account{UID: 2000, GID: 2000}
	err := account.As(func() error { _, err := os.ReadFile(file); return err })
	if !errors.Is(err, os.ErrPermission) {
		t.Errorf("read as the user: %v", err)
	}
	for range 100 { // whatever thread runs this is the agent's own again
		if _, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzParsePasswd(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash\n")
	f.Add(strings.Repeat(":", 100) + "\n\x00::::::\n")
	f.Fuzz(func(t *testing.T, content string) {
		for _, a := range ParsePasswd(strings.NewReader(content)) {
			if a.Name == "" || !strings.HasPrefix(a.Home, "/") || a.UID == 1<<32-1 || a.GID == 1<<32-1 || strings.ContainsAny(a.Name+a.Home+a.Shell, "\x00\n:") {
				t.Errorf("%+v", a)
			}
		}
		parseGroup(strings.NewReader(content))
	})
}
