package api

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// sign makes a signed URL and answers it without scheme and host.
func (r *rig) sign(box, body string) string {
	r.Helper()
	full := r.status(r.do("POST", box+"/files/sign", body), 200).member(r.T, "url").(string)
	path, ok := strings.CutPrefix(full, r.srv.URL)
	if !ok {
		r.Fatalf("the URL %s is not of this server, %s", full, r.srv.URL)
	}
	return path
}

func TestASignedURLWorksWithoutAKey(t *testing.T) {
	r := newRig(t)
	box := r.box()
	name := "/w/a b&c=d+é#?%2F"
	a := r.status(r.do("POST", box+"/files/sign", fmt.Sprintf(`{"method":"PUT","path":%q,"max_bytes":5,"ttl_seconds":60.5}`, name)), 200)
	expires, err := time.Parse(time.RFC3339, a.member(t, "expires_at").(string))
	if left := time.Until(expires); err != nil || left < 59*time.Second || left > 62*time.Second {
		t.Errorf("expires_at is %v, %v", expires, err)
	}
	if a.member(t, "method") != "PUT" || a.member(t, "path") != name || a.member(t, "max_bytes") != 5.0 {
		t.Errorf("got %s", a.body)
	}
	put := strings.TrimPrefix(a.member(t, "url").(string), r.srv.URL)
	r.status(r.do("PUT", put, "12345", noKey), 200)
	get := r.sign(box, fmt.Sprintf(`{"method":"GET","path":%q}`, name))
	if got := r.status(r.do("GET", get, "", noKey), 200); string(got.body) != "12345" {
		t.Errorf("got %q", got.body)
	}
	r.status(r.do("HEAD", get, "", noKey), 200)
	r.status(r.do("GET", get, "", noKey, header("Range", "bytes=1-2")), 206)
	// Whoever asks, the URL decides: another project's key adds nothing, a wrong one takes nothing away.
	r.status(r.do("GET", get, "", header("Authorization", "Bearer cay_wrong")), 200)
	if strings.Contains(r.log.String(), url.QueryEscape(name)) || strings.Contains(r.log.String(), "signature") {
		t.Error("the query of a signed URL was logged")
	}
}

func TestASignedURLIsGoodForNothingElse(t *testing.T) {
	r := newRig(t)
	box, other := r.box(), r.box()
	r.node.files["/a"], r.node.files["/b"] = []byte("content"), []byte("other")
	get := r.sign(box, `{"method":"GET","path":"/a"}`)
	put := r.sign(box, `{"method":"PUT","path":"/a","user":"sandbox","max_bytes":5}`)
	r.status(r.do("GET", get, "", noKey), 200)
	edit := func(u string, change func(url.Values)) string {
		path, query, _ := strings.Cut(u, "?")
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		change(q)
		return path + "?" + q.Encode()
	}
	set := func(u, k, v string) string { return edit(u, func(q url.Values) { q.Set(k, v) }) }
	without := func(u, k string) string { return edit(u, func(q url.Values) { q.Del(k) }) }
	expires := func() string { _, q, _ := strings.Cut(get, "?"); v, _ := url.ParseQuery(q); return v.Get("expires") }()
	for name, c := range map[string][2]string{
		"another path":             {"GET", set(get, "path", "/b")},
		"an equal path, unclean":   {"GET", set(get, "path", "/./a")},
		"no path":                  {"GET", without(get, "path")},
		"a method of more power":   {"PUT", get},
		"a method of less power":   {"GET", put},
		"DELETE":                   {"DELETE", get},
		"another sandbox":          {"GET", strings.Replace(get, box, other, 1)},
		"another user":             {"GET", set(get, "user", "root")},
		"no user":                  {"PUT", without(put, "user")},
		"a higher bound":           {"PUT", set(put, "max_bytes", "6")},
		"a bound spelled anew":     {"PUT", set(put, "max_bytes", "05")},
		"a bound below zero":       {"PUT", set(put, "max_bytes", "-5")},
		"no bound":                 {"PUT", without(put, "max_bytes")},
		"a bound where none was":   {"GET", set(get, "max_bytes", "5")},
		"a later end":              {"GET", set(get, "expires", "99999999999")},
		"an end spelled anew":      {"GET", set(get, "expires", "+"+expires)},
		"no end":                   {"GET", without(get, "expires")},
		"another key":              {"GET", set(get, "key", string(cay.NewID(cay.PrefixKey)))},
		"no key":                   {"GET", without(get, "key")},
		"an added parameter":       {"PUT", set(put, "mode", "4777")},
		"an added ticket":          {"GET", set(get, "ticket", "tkt_1")},
		"a parameter twice":        {"GET", get + "&path=/b"},
		"the signature twice":      {"GET", get + "&signature=x"},
		"a changed signature":      {"GET", get + "x"},
		"an empty signature":       {"GET", set(get, "signature", "")},
		"a signature without end":  {"GET", set(get, "signature", strings.Repeat("x", 10_000))},
		"the sibling route, list":  {"GET", strings.Replace(get, "/files?", "/files/list?", 1)},
		"the sibling route, stat":  {"GET", strings.Replace(get, "/files?", "/files/stat?", 1)},
		"the sandbox itself":       {"GET", strings.Replace(get, "/files?", "?", 1)},
		"a NUL behind the path":    {"GET", set(get, "path", "/a\x00")},
		"a path that is not UTF-8": {"GET", set(get, "path", "/a\xff")},
	} {
		t.Run(name, func(t *testing.T) { r.refused(r.do(c[0], c[1], "", noKey), cay.Unauthorized) })
	}
	r.refused(r.do("GET", set(get, "signature", ""), ""), cay.Unauthorized) // not even with a key
	if string(r.node.files["/a"]) != "content" {
		t.Errorf("it was written: %q", r.node.files["/a"])
	}
}

func TestASignedUploadBeyondItsBoundWritesNothing(t *testing.T) {
	r := newRig(t)
	box := r.box()
	r.node.files["/a"] = []byte("old")
	put := r.sign(box, `{"method":"PUT","path":"/a","max_bytes":100000}`)
	tooMuch := strings.Repeat("x", 100_001)
	if a := r.refused(r.do("PUT", put, tooMuch, noKey), cay.PayloadTooLarge); a.member(t, "limit_bytes") != 100_000.0 {
		t.Errorf("got %s", a.body)
	}
	// Without a length the bound is met while the body streams.
	r.refused(r.do("PUT", put, tooMuch, noKey, chunked), cay.PayloadTooLarge)
	if got := r.do("GET", box+"/files?path=/a", ""); string(got.body) != "old" {
		t.Errorf("it holds %d bytes", len(got.body))
	}
	r.status(r.do("PUT", put, tooMuch[1:], noKey, chunked), 200)
}

func TestASignedURLEndsWithItsSandbox(t *testing.T) {
	r := newRig(t)
	id := r.boxes.add(projectA, cay.Ready)
	box := "/v1/sandboxes/" + string(id)
	r.node.files["/a"] = []byte("content")
	get := r.sign(box, `{"method":"GET","path":"/a"}`)
	r.status(r.do("DELETE", box, ""), 204)
	r.refused(r.do("GET", get, "", noKey), cay.Gone)
	r.refused(r.do("POST", box+"/files/sign", `{"method":"GET","path":"/a"}`), cay.Gone)
}

func TestWhatIsSignedIsChecked(t *testing.T) {
	r := newRig(t)
	box := r.box()
	for body, field := range map[string]string{
		`{"path":"/a"}`:                                         "method",
		`{"method":"DELETE","path":"/a"}`:                       "method",
		`{"method":"HEAD","path":"/a"}`:                         "method",
		`{"method":"GET"}`:                                      "path",
		`{"method":"GET","path":"a"}`:                           "path",
		`{"method":"GET","path":"/a\u0000"}`:                    "path",
		`{"method":"GET","path":"/a","user":"\u0000"}`:          "user",
		`{"method":"GET","path":"/a","max_bytes":5}`:            "max_bytes",
		`{"method":"PUT","path":"/a","max_bytes":0}`:            "max_bytes",
		`{"method":"PUT","path":"/a","max_bytes":-1}`:           "max_bytes",
		`{"method":"GET","path":"/a","ttl_seconds":0}`:          "ttl_seconds",
		`{"method":"GET","path":"/a","ttl_seconds":604801}`:     "ttl_seconds",
		`{"method":"GET","path":"/a","key":"key_1"}`:            "key",
		`{"method":"GET","path":"/a","ttl_seconds":"tomorrow"}`: "ttl_seconds",
	} {
		if a := r.refused(r.do("POST", box+"/files/sign", body), cay.InvalidRequest); a.member(t, "field") != field {
			t.Errorf("%s: got %s", body, a.body)
		}
	}
	r.refused(r.do("POST", box+"/files/sign", `{"method":"GET","path":"/a"}`, header("Authorization", "Bearer "+readKey)), cay.Forbidden)
	r.refused(r.do("POST", box+"/files/sign", `{"method":"GET","path":"/a"}`, header("Authorization", "Bearer "+otherKey)), cay.NotFound)
	key := header("Idempotency-Key", "k")
	for range 2 {
		r.status(r.do("POST", box+"/files/sign", `{"method":"GET","path":"/a"}`, key), 200)
	}
	r.refused(r.do("POST", box+"/files/sign", `{"method":"GET","path":"/b"}`, key), cay.IdempotencyMismatch)
}
