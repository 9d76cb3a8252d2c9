package conformance

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// found is an entry of a search.
type found struct {
	testkit.FileObject
	Lines []struct {
		Number int64  `json:"number"`
		Text   string `json:"text"`
	} `json:"lines"`
}

// search reads all pages of a search.
func search(t *testing.T, sb *testkit.Sandbox, q url.Values) []found {
	t.Helper()
	var all []found
	for {
		var page struct {
			Items      []found `json:"items"`
			NextCursor string  `json:"next_cursor"`
		}
		if err := sb.Call("GET", "/files/search?"+q.Encode(), nil).Decode(200, &page); err != nil {
			t.Fatalf("search %v: %v", q, err)
		}
		all = append(all, page.Items...)
		if page.NextCursor == "" {
			return all
		}
		q.Set("cursor", page.NextCursor)
	}
}

func names(all []found) string {
	var paths []string
	for _, f := range all {
		paths = append(paths, strings.TrimPrefix(f.Path, "/workspace/"))
	}
	return strings.Join(paths, " ")
}

func TestASearchFindsByNameAndByContent(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must(`mkdir -p src/deep/er .git empty; printf 'package a\nfunc One() {}\n' >src/a.go; printf 'func two() {}\r\nx\nfunc three() {}' >src/deep/b.go; printf 'func \0 binary' >src/deep/er/c.go
		printf x >src/readme.md; printf 'func hidden' >.git/d.go; ln -s /etc/passwd link.go; ln -s src more; head -c 100000 /dev/zero | tr '\0' a >long.txt; printf ' needle\nneedle' >>long.txt`)
	for pattern, want := range map[string]string{
		"*.go": ".git/d.go link.go src/a.go src/deep/b.go src/deep/er/c.go", "src/*.go": "src/a.go", "src/**/*.go": "src/a.go src/deep/b.go src/deep/er/c.go",
		"**/er/*": "src/deep/er/c.go", "src/deep/**": "src/deep/b.go src/deep/er src/deep/er/c.go", "*.{md,txt}": "long.txt src/readme.md", "[a-b].go": "src/a.go src/deep/b.go", "[!a-c].go": ".git/d.go",
		"e*": "empty src/deep/er", "?.go": ".git/d.go src/a.go src/deep/b.go src/deep/er/c.go", "nothing": "",
	} {
		if got := names(search(t, sb, url.Values{"path": {"/workspace"}, "pattern": {pattern}, "limit": {"2"}})); got != want {
			t.Errorf("%s: %s, want %s", pattern, got, want)
		}
	}
	got := search(t, sb, url.Values{"path": {"/workspace"}, "contains": {`^func \w+`}})
	if names(got) != ".git/d.go src/a.go src/deep/b.go" || len(got[2].Lines) != 2 || got[2].Lines[0].Text != "func two() {}" || got[2].Lines[1].Number != 3 {
		t.Errorf("%+v", got)
	}
	if got := search(t, sb, url.Values{"path": {"/workspace"}, "contains": {`^needle`}, "pattern": {"*.txt"}}); len(got) != 1 || got[0].Lines[0].Number != 2 {
		t.Errorf("behind a long line: %+v", got)
	}
	for field, bad := range map[string][]string{"pattern": {"[", "{a", `\`, strings.Repeat("a", 2000)}, "contains": {"(", "*", "(?<x", "((a{100}){100}){100}", strings.Repeat("x{1000}", 9)}, "cursor": {"!!", "Li4vLi4"}} {
		for _, value := range bad {
			resp := sb.Call("GET", "/files/search?"+url.Values{"path": {"/workspace"}, field: {value}}.Encode(), nil)
			if resp.Status != 422 && resp.Status != 400 || resp.Problem().Field != field {
				t.Errorf("%s %.20q: %v", field, value, resp)
			}
		}
	}
	for path, status := range map[string]int{"/workspace/no": 404, "/workspace/long.txt": 422} {
		if resp := sb.Call("GET", "/files/search?"+url.Values{"path": {path}}.Encode(), nil); resp.Status != status {
			t.Errorf("%s: %v", path, resp)
		}
	}
}

func TestASearchOfALargeTreeIsBoundedAndGoesOn(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.RequireProgram("python3")
	sb.Must(`python3 -c '
import os
for d in range(20):
    os.makedirs(f"t/d{d:02}")
    for i in range(500): open(f"t/d{d:02}/f{i:03}", "w").write("x" * 100 + str(i))'`)
	begun := time.Now()
	got := search(t, sb, url.Values{"path": {"/workspace/t"}, "pattern": {"f*"}, "limit": {"1000"}})
	if len(got) != 10000 || !slices.IsSortedFunc(got, func(a, b found) int { return strings.Compare(a.Path, b.Path) }) {
		t.Errorf("%d found, or not in order", len(got))
	}
	// The worst pattern for a backtracking matcher.
	worst := search(t, sb, url.Values{"path": {"/workspace/t"}, "contains": {`(x+x+)+y`}})
	if len(worst) != 0 {
		t.Errorf("%d found", len(worst))
	}
	t.Logf("took %v", time.Since(begun))
}

func TestModesAndOwnersAreTheKernelsToAllow(t *testing.T) {
	t.Parallel()
	sb := box(t)
	sb.Must("mkdir -p d/e; echo>d/f; echo>d/e/g; ln -s /etc/passwd d/link; ln -s d/f top; mkfifo d/fifo")
	chmod := func(status int, query string, body fields) testkit.FileObject {
		t.Helper()
		var f testkit.FileObject
		resp := sb.Call("POST", "/files/chmod"+query, body)
		if resp.Status != status {
			t.Errorf("%v: %v", body, resp)
		} else if status == 200 {
			if err := resp.Decode(200, &f); err != nil {
				t.Error(err)
			}
		}
		return f
	}
	if f := chmod(200, "", fields{"path": "/workspace/top", "mode": "0601"}); f.Mode != "0601" {
		t.Errorf("%+v", f)
	}
	chmod(200, "", fields{"path": "/workspace/d", "mode": "0750", "recursive": true})
	sb.MustSay("750 750 750 750 750 777\n", "echo $(stat -c %a d d/f d/e d/e/g d/fifo d/link)")
	chmod(200, "", fields{"path": "/workspace/d", "mode": "0000", "recursive": true})
	sb.MustSay("0\n", "stat -c %a d")
	chmod(200, "", fields{"path": "/workspace/d", "mode": "0700", "recursive": true})
	sb.MustSay("700 700 700 700\n", "echo $(stat -c %a d d/f d/e d/e/g)")
	chmod(403, "", fields{"path": "/workspace/d", "user": "root"})
	chmod(403, "", fields{"path": "/etc/passwd", "mode": "0666"})
	chmod(404, "", fields{"path": "/workspace/no", "mode": "0666"})
	chmod(422, "", fields{"path": "/workspace/d", "user": "nobody-of-that-name"})
	if f := chmod(200, "?user=root", fields{"path": "/workspace/d", "user": "root", "mode": "0755", "recursive": true}); f.User != "root" || f.UID != 0 {
		t.Errorf("%+v", f)
	}
	sb.MustSay("root root root sandbox root\n", "echo $(stat -c %U d d/f d/e/g d/link /etc/passwd)")
	resp := sb.Call("POST", "/files/chmod", fields{"path": "/workspace/d/f", "mode": "0777"})
	if resp.Status != 403 || !strings.Contains(resp.Problem().Detail, "user=root") {
		t.Errorf("another's file: %v", resp)
	}
}

func TestPartsBecomeOneFileAndGo(t *testing.T) {
	t.Parallel()
	sb := box(t)
	var sources []string
	var whole []byte
	for i := range 20 {
		path := fmt.Sprintf("/workspace/parts/%02d", i)
		data := noise(100_000 + i)
		sb.Put(path, data)
		sources, whole = append(sources, path), append(whole, data...)
	}
	var f testkit.FileObject
	if err := sb.Call("POST", "/files/compose", fields{"sources": sources, "path": "/workspace/out/whole", "mode": "0640"}, "Idempotency-Key", "k").Decode(200, &f); err != nil {
		t.Fatal(err)
	}
	if f.Size != int64(len(whole)) || f.Mode != "0640" || testkit.Digest(sb.Get("/workspace/out/whole")) != testkit.Digest(whole) {
		t.Errorf("%+v", f)
	}
	sb.MustSay("", "ls -A parts")
	if err := sb.Call("POST", "/files/compose", fields{"sources": sources, "path": "/workspace/out/whole", "mode": "0640"}, "Idempotency-Key", "k").Decode(200, &f); err != nil {
		t.Errorf("again with the key: %v", err)
	}
	sb.Must("printf a >a; printf b >b; mkdir d; mkfifo p")
	for name, c := range map[string]struct {
		sources []string
		path    string
		status  int
	}{
		"a missing source": {[]string{"/workspace/a", "/workspace/no"}, "/workspace/c", 404},
		"a directory":      {[]string{"/workspace/a", "/workspace/d"}, "/workspace/c", 422},
		"a FIFO":           {[]string{"/workspace/a", "/workspace/p"}, "/workspace/c", 422},
		"another's":        {[]string{"/workspace/a", "/etc/passwd"}, "/workspace/c", 403},
		"over a directory": {[]string{"/workspace/a"}, "/workspace/d", 422},
	} {
		if resp := sb.Call("POST", "/files/compose", fields{"sources": c.sources, "path": c.path}); resp.Status != c.status {
			t.Errorf("%s: %v", name, resp)
		}
	}
	sb.MustSay("a b d out p parts\n", "echo $(ls -A)")
	if resp := sb.Call("POST", "/files/compose", fields{"sources": []string{"/workspace/a", "/workspace/b", "/workspace/a"}, "path": "/workspace/a"}); resp.Status != 200 {
		t.Errorf("onto a source: %v", resp)
	}
	sb.MustSay("aba", "test ! -e b && cat a")
}
