package attack

import (
	"bytes"
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

// TestASignedURLIsGoodForItsFileAlone holds a URL, and no key, and tries to make more of it.
func TestASignedURLIsGoodForItsFileAlone(t *testing.T) {
	inst := testkit.Server(t)
	box, other := inst.Create(t), inst.Create(t)
	box.Put("/workspace/a", []byte("mine"))
	box.Put("/workspace/b", []byte("other"))
	other.Put("/workspace/a", []byte("theirs"))
	sign := func(f fields) string {
		var out struct{ URL string }
		if err := box.Call("POST", "/files/sign", f).Decode(200, &out); err != nil {
			t.Fatal(err)
		}
		path, ok := strings.CutPrefix(out.URL, inst.URL)
		if !ok {
			t.Fatalf("%s is not below %s", out.URL, inst.URL)
		}
		return path
	}
	ask := func(method, path string, body any) testkit.Response {
		t.Helper()
		resp, err := inst.Do(t.Context(), method, path, body, "Authorization", "")
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	get := sign(fields{"method": "GET", "path": "/workspace/a"})
	put := sign(fields{"method": "PUT", "path": "/workspace/up", "user": "sandbox", "max_bytes": 1000})
	if resp := ask("GET", get, nil); resp.Status != 200 || string(resp.Body) != "mine" {
		t.Fatalf("the URL as it was given: %v", resp)
	}
	if resp := ask("HEAD", get, nil); resp.Status != 200 {
		t.Errorf("HEAD: %v", resp)
	}

	for name, c := range map[string][2]string{
		"another file":       {"GET", strings.Replace(get, "%2Fa", "%2Fb", 1)},
		"a way round":        {"GET", strings.Replace(get, "path=%2Fworkspace%2Fa", "path=%2Fworkspace%2F..%2Fworkspace%2Fa", 1)},
		"an encoded slash":   {"GET", strings.Replace(get, "path=%2Fworkspace", "path=%252Fworkspace", 1)},
		"another sandbox":    {"GET", strings.Replace(get, box.ID, other.ID, 1)},
		"to write":           {"PUT", get},
		"to read":            {"GET", put},
		"to delete":          {"DELETE", get},
		"as root":            {"PUT", strings.Replace(put, "user=sandbox", "user=root", 1)},
		"with root besides":  {"PUT", put + "&user=root"},
		"executable":         {"PUT", put + "&mode=4755"},
		"without a bound":    {"PUT", strings.Replace(put, "max_bytes=1000&", "", 1)},
		"with a larger one":  {"PUT", strings.Replace(put, "max_bytes=1000", "max_bytes=1000000", 1)},
		"for longer":         {"GET", strings.Replace(get, "expires=", "expires=9", 1)},
		"of another route":   {"GET", strings.Replace(get, "/files?", "/files/list?", 1)},
		"without signature":  {"GET", get[:strings.Index(get, "&signature=")]},
		"cut by a character": {"GET", get[:len(get)-1]},
		"with one more":      {"GET", get + "A"},
		"padded":             {"GET", get + "%3D"},
	} {
		if resp := ask(c[0], c[1], []byte("attack")); resp.Status != 401 || resp.Problem().Reason != "unauthorized" {
			t.Errorf("%s: %v", name, resp)
		}
	}

	box.Put("/workspace/up", []byte("old"))
	tooMuch := bytes.Repeat([]byte("x"), 1001)
	for name, body := range map[string]any{"with its length": tooMuch, "chunked": io.MultiReader(bytes.NewReader(tooMuch))} {
		if resp := ask("PUT", put, body); resp.Status != 413 {
			t.Errorf("too much, %s: %v", name, resp)
		}
	}
	if got := box.Get("/workspace/up"); string(got) != "old" {
		t.Errorf("too much was written: %d bytes", len(got))
	}
	if resp := ask("PUT", put, tooMuch[1:]); resp.Status != 200 {
		t.Errorf("as much as is allowed: %v", resp)
	}
	if logs := inst.Logs(); strings.Contains(logs, "signature") || strings.Contains(logs, url.QueryEscape("/workspace/a")) {
		t.Error("the query of a signed URL was logged")
	}
	if err := inst.DeleteSandbox(t.Context(), box.ID); err != nil {
		t.Fatal(err)
	}
	if resp := ask("GET", get, nil); resp.Status != 410 {
		t.Errorf("after the sandbox's end: %v", resp)
	}
}
