package files

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

func asRoot(t testing.TB) *Files {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("acts as other users, which takes root")
	}
	return New(user.Open("/etc/passwd", "/etc/group"), func() string { return "0:0" })
}

func TestANameThatIsNotUTF8GoesBothWaysUnchanged(t *testing.T) {
	f := asRoot(t)
	dir := t.TempDir()
	strange := filepath.Join(dir, "a\xff\xfe b%2f")
	wire := cay.WirePath(strange)
	w, err := f.Create(&guestv1.WriteFile{Path: wire})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("content")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(strange); string(b) != "content" || err != nil {
		t.Fatalf("the file holds %q, %v", b, err)
	}
	info, err := f.Stat(&guestv1.Stat{Path: wire})
	if err != nil || info.Path != wire || string(info.Name) != filepath.Base(strange) {
		t.Errorf("stat says %v, %v", info, err)
	}
	list, err := f.List(&guestv1.List{Path: dir})
	if err != nil || len(list.Items) != 1 || list.Items[0].Path != wire {
		t.Errorf("list says %v, %v", list, err)
	}
	if _, err := f.Move(&guestv1.Move{From: wire, To: dir + "/plain"}); err != nil {
		t.Error(err)
	}
	if err := f.Remove(&guestv1.Remove{Path: dir + "/plain"}); err != nil {
		t.Error(err)
	}
}

func TestAPathThatCannotBeIsRefusedBeforeAnythingIsTouched(t *testing.T) {
	f := asRoot(t)
	for _, path := range []string{"", "relative", "%", "%zz", "%relative%ff", "/nul\x00byte", "%/nul%00byte", "/" + string(make([]byte, maxPath))} {
		if _, err := f.Stat(&guestv1.Stat{Path: path}); cay.ReasonOf(err) != cay.Unprocessable {
			t.Errorf("%.40q: %v", path, err)
		}
	}
}
