package api

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

func TestAFileGoesUpAndComesDown(t *testing.T) {
	r := newRig(t)
	box := r.box()
	content := bytes.Repeat([]byte{0, 1, 0xff, '\n'}, 300_000)
	a := r.status(r.do("PUT", box+"/files?path=/w/a&mode=0755", string(content)), 200)
	if a.member(t, "mode") != "0755" || a.member(t, "size") != float64(len(content)) || a.Header.Get("ETag") == "" {
		t.Errorf("got %s", a.body)
	}
	got := r.status(r.do("GET", box+"/files?path=/w/a", ""), 200)
	if !bytes.Equal(got.body, content) {
		t.Error("the content differs")
	}
	for k, want := range map[string]string{"Content-Disposition": `attachment; filename=a`, "X-Content-Type-Options": "nosniff", "Accept-Ranges": "bytes", "ETag": a.Header.Get("ETag"), "Content-Type": "application/octet-stream"} {
		if got.Header.Get(k) != want {
			t.Errorf("%s is %q, want %q", k, got.Header.Get(k), want)
		}
	}
	if head := r.status(r.do("HEAD", box+"/files?path=/w/a", ""), 200); head.ContentLength != int64(len(content)) || head.Header.Get("ETag") != a.Header.Get("ETag") {
		t.Errorf("got %v", head.Header)
	}
	r.status(r.do("PUT", box+"/files?path=/empty", ""), 200)
	if got := r.status(r.do("GET", box+"/files?path=/empty", ""), 200); len(got.body) != 0 {
		t.Errorf("got %q", got.body)
	}
	r.status(r.do("DELETE", box+"/files?path=/w/a", ""), 204)
	r.refused(r.do("GET", box+"/files?path=/w/a", ""), cay.NotFound)
	r.refused(r.do("GET", box+"/files?path=/dir", ""), cay.Unprocessable)
	if res := r.do("HEAD", box+"/files?path=/dir", ""); res.StatusCode != 422 {
		t.Errorf("got %d", res.StatusCode)
	}
}

func TestRangesAndConditions(t *testing.T) {
	r := newRig(t)
	box := r.box()
	r.node.files["/a"] = []byte("0123456789")
	etag := r.do("HEAD", box+"/files?path=/a", "").Header.Get("ETag")
	for rng, want := range map[string]string{"bytes=2-4": "234", "bytes=7-": "789", "bytes=-3": "789", "bytes=0-99": "0123456789", "bytes=-99": "0123456789"} {
		a := r.status(r.do("GET", box+"/files?path=/a", "", header("Range", rng)), 206)
		if string(a.body) != want || !strings.HasPrefix(a.Header.Get("Content-Range"), "bytes ") || !strings.HasSuffix(a.Header.Get("Content-Range"), "/10") {
			t.Errorf("%s: got %q %v", rng, a.body, a.Header)
		}
	}
	for _, rng := range []string{"lines=1-2", "bytes=4-2", "bytes=1-2,4-5", "bytes=x-", "bytes=-", "bytes"} {
		if a := r.status(r.do("GET", box+"/files?path=/a", "", header("Range", rng)), 200); string(a.body) != "0123456789" {
			t.Errorf("%s: got %q", rng, a.body)
		}
	}
	for _, rng := range []string{"bytes=10-", "bytes=99999999999999999999-", "bytes=-0"} {
		a := r.refused(r.do("GET", box+"/files?path=/a", "", header("Range", rng)), cay.RangeNotSatisfiable)
		if a.Header.Get("Content-Range") != "bytes */10" {
			t.Errorf("%s: got %v", rng, a.Header)
		}
	}
	r.status(r.do("GET", box+"/files?path=/a", "", header("Range", "bytes=1-2"), header("If-Range", etag)), 206)
	r.status(r.do("GET", box+"/files?path=/a", "", header("Range", "bytes=1-2"), header("If-Range", `"other"`)), 200)
	r.status(r.do("GET", box+"/files?path=/a", "", header("If-None-Match", etag)), 304)
	r.status(r.do("GET", box+"/files?path=/a", "", header("If-Match", etag)), 200)
	r.refused(r.do("GET", box+"/files?path=/a", "", header("If-Match", `"other"`)), cay.PreconditionFailed)
	r.refused(r.do("PUT", box+"/files?path=/a", "x", header("If-None-Match", "*")), cay.PreconditionFailed)
}

func TestAnUploadThatIsCutWritesNothing(t *testing.T) {
	r := newRig(t)
	box := r.box()
	r.node.files["/a"] = []byte("old")
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "PUT "+box+"/files?path=/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+adminKey+"\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat("x", 70000))
	_ = conn.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(conn)
	_ = conn.Close()
	if len(answer) > 0 && !strings.HasPrefix(string(answer), "HTTP/1.1 400") {
		t.Errorf("got %.100s", answer)
	}
	if got := r.do("GET", box+"/files?path=/a", ""); string(got.body) != "old" {
		t.Errorf("it holds %d bytes", len(got.body))
	}
}

func TestNamesOfAllKindsRoundTrip(t *testing.T) {
	r := newRig(t)
	box := r.box()
	for _, name := range []string{"a b", "ü日本", "new\nline", "-rf", ".env", "%2e%2e", "a?b#c", strings.Repeat("x", 255), "e\u0301", "caf\xe9", "\xff\xfe"} {
		path := "?path=" + url.QueryEscape("/"+name)
		r.status(r.do("PUT", box+"/files"+path, name), 200)
		if got := r.status(r.do("GET", box+"/files"+path, ""), 200); string(got.body) != name {
			t.Errorf("%q: got %q", name, got.body)
		}
		stat := r.status(r.do("GET", box+"/files/stat"+path, ""), 200)
		if stat.member(t, "name") != strings.ToValidUTF8(name, "\uFFFD") {
			t.Errorf("%q: got %s", name, stat.body)
		}
		if percent, _ := stat.member(t, "path_percent").(string); percent != "" {
			r.status(r.do("GET", box+"/files/stat?path="+percent, ""), 200)
		} else if stat.member(t, "path") != "/"+name {
			t.Errorf("%q: got %s", name, stat.body)
		}
		r.status(r.do("GET", box+"/files/list?path=/", ""), 200)
		r.status(r.do("DELETE", box+"/files"+path, ""), 204)
	}
}

func TestPathsAndModesAreChecked(t *testing.T) {
	r := newRig(t)
	box := r.box()
	for query, field := range map[string]string{
		"": "path", "?path=": "path", "?path=relative": "path", "?path=%2Fa%00": "path", "?path=/" + strings.Repeat("x", 4096): "path",
		"?path=/a&mode=999": "mode", "?path=/a&mode=07777777": "mode", "?path=/a&mode=-1": "mode", "?path=/a&user=%00": "user",
	} {
		a := r.refused(r.do("PUT", box+"/files"+query, "x"), cay.InvalidRequest)
		if a.member(t, "field") != field {
			t.Errorf("%.40s: got %s", query, a.body)
		}
	}
}

func TestDirectoriesAreMadeAndFilesMoved(t *testing.T) {
	r := newRig(t)
	box := r.box()
	if a := r.status(r.do("POST", box+"/files/mkdir", `{"path":"/w/d","parents":true}`), 201); a.member(t, "type") != "directory" || a.member(t, "mode") != "0755" {
		t.Errorf("got %s", a.body)
	}
	r.node.files["/a"] = []byte("x")
	key := header("Idempotency-Key", "k")
	for range 2 { // the second would be a 404 without the key
		if a := r.status(r.do("POST", box+"/files/move", `{"from":"/a","to":"/b"}`, key), 200); a.member(t, "path") != "/b" {
			t.Errorf("got %s", a.body)
		}
	}
	r.refused(r.do("POST", box+"/files/move", `{"from":"/a","to":"/b"}`), cay.NotFound)
	r.refused(r.do("POST", box+"/files/move", `{"from":"a","to":"/b"}`), cay.InvalidRequest)
	r.refused(r.do("POST", box+"/files/mkdir", `{"path":"/w","mode":"rwx"}`), cay.InvalidRequest)
}

func TestAnAnswerThatHasBegunIsCut(t *testing.T) {
	r := newRig(t)
	w := &response{ResponseWriter: discard{http.Header{}}}
	defer func() {
		if recover() != http.ErrAbortHandler {
			t.Error("the answer was not cut")
		}
	}()
	req := r.request("GET", "/healthz", "")
	w.WriteHeader(200)
	r.api.fail(w, req, cay.Errorf(cay.Unavailable, "gone"))
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
