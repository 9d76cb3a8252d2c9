package files

import (
	"path"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

func TestAGlobMatchesWhatItSays(t *testing.T) {
	for pattern, c := range map[string]struct{ yes, no string }{
		"":              {"a a/b .x", ""},
		"*.go":          {"a.go d/e/a.go .go", "a.gox a.g"},
		"/*.go":         {"a.go", "d/a.go"},
		"src/*.go":      {"src/a.go", "a.go src/d/a.go x/src/a.go"},
		"**/a":          {"a x/a x/y/a", "b xa x/ya"},
		"src/**":        {"src/a src/a/b", "src a"},
		"src/**/b":      {"src/b src/x/b src/x/y/b", "src/bb srcb"},
		"**":            {"a/b", ""},
		"a**b/c":        {"ab/c axxb/c", "a/b/c"},
		"{a,b}.{c,d}":   {"a.c b.d", "a.e {a,b}.c"},
		"{src,test}/**": {"src/x test/y/z", "doc/x"},
		"a?c":           {"abc aüc", "ac abbc"},
		"a?c/x":         {"abc/x", "a/c/x"},
		"[a-c]":         {"a b c x/a", "d -"},
		"[!a-c]":        {"d -", "a b"},
		"[]-]":          {"] -", "a"},
		"[a/x":          {"", ""},
		`\*`:            {"*", "a"},
		"a.b+c(d)|e^f$": {"a.b+c(d)|e^f$", "axb+c(d)|e^f$"},
		"}":             {"}", "a"},
		"a,b":           {"a,b", "a"},
	} {
		g, err := compileGlob(pattern)
		if err != nil {
			if c.yes != "" {
				t.Errorf("%s: %v", pattern, err)
			}
			continue
		}
		for rel := range strings.FieldsSeq(c.yes) {
			if !g.match(rel, path.Base(rel)) {
				t.Errorf("%s does not match %s", pattern, rel)
			}
		}
		for rel := range strings.FieldsSeq(c.no) {
			if g.match(rel, path.Base(rel)) {
				t.Errorf("%s matches %s", pattern, rel)
			}
		}
	}
}

// FuzzGlob: a pattern compiles or is refused as the caller's fault, and one without anything special matches itself.
func FuzzGlob(f *testing.F) {
	for _, p := range []string{"*.go", "**/a", "[a-z]", "[", "{a,{b,c}}", `\`, "[]a]", "[!]", "a\xffb", "[\\]]", "[a-]", "[z-a]", "{}", "[^/]"} {
		f.Add(p, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, pattern, rel string) {
		g, err := compileGlob(pattern)
		if err != nil {
			if cay.ReasonOf(err) != cay.Unprocessable {
				t.Errorf("%q: %v", pattern, err)
			}
			return
		}
		g.match(rel, path.Base(rel))
		if pattern != "" && !strings.ContainsAny(pattern, `*?[]{},\/`) && strings.ToValidUTF8(pattern, "") == pattern && !g.match("x/"+pattern, pattern) {
			t.Errorf("%q does not match itself", pattern)
		}
	})
}
