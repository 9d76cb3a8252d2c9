package attack

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

func TestEveryPromiseOfSecurityMdNamesTestsThatExist(t *testing.T) {
	root := testkit.ModuleRoot()
	doc, err := os.ReadFile(filepath.Join(root, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	var code bytes.Buffer
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		code.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]+|test/[a-z/_]+\\.go)`").FindAllSubmatch(doc, -1)
	if len(named) < 10 {
		t.Fatalf("only %d tests are named", len(named))
	}
	for _, n := range named {
		name := string(n[1])
		if strings.HasPrefix(name, "test/") {
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Error(err)
			}
		} else if !bytes.Contains(code.Bytes(), []byte("func "+name+"(")) {
			t.Errorf("there is no %s", name)
		}
	}
}
