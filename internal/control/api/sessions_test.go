package api

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

// session creates one and answers its id.
func (r *rig) session() string {
	r.Helper()
	return r.status(r.do("POST", "/v1/sessions", `{}`), 201).member(r.T, "id").(string)
}

func TestASessionIsCreatedAndTold(t *testing.T) {
	r := newRig(t)
	key := header("Idempotency-Key", "k")
	body := `{"name":"a.B_c-1","ttl_seconds":60.5,"disk_gb":0.5,"metadata":{"k_e":"v"}}`
	a := r.status(r.do("POST", "/v1/sessions", body, key), 201)
	id := a.member(t, "id").(string)
	if a.Header.Get("Location") != "/v1/sessions/"+id || a.member(t, "ttl_seconds") != 60.5 || a.member(t, "disk_gb") != 0.5 || a.member(t, "volume") != "ses-"+id[4:] ||
		a.member(t, "status") != "active" || a.member(t, "worker_id") != nil || fmt.Sprint(a.member(t, "used_by")) != "[]" || fmt.Sprint(a.member(t, "metadata")) != "map[k_e:v]" {
		t.Errorf("got %s", a.body)
	}
	user := r.boxes.add(projectA, cay.Ready)
	r.sess.users[cay.ID(id)] = []*cay.Sandbox{{ID: user}}
	again := r.status(r.do("POST", "/v1/sessions", body, key), 201)
	if again.member(t, "id") != id || fmt.Sprint(again.member(t, "used_by")) != "["+string(user)+"]" {
		t.Errorf("again: %s", again.body)
	}
	if a := r.refused(r.do("POST", "/v1/sessions", body), cay.AlreadyExists); a.member(t, "session_id") != id {
		t.Errorf("got %s", a.body)
	}
	if a := r.status(r.do("GET", "/v1/sessions/"+id, ""), 200); a.member(t, "name") != "a.B_c-1" {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("GET", "/v1/sessions/"+id, "", header("Authorization", "Bearer "+otherKey)), cay.NotFound)
	r.refused(r.do("GET", "/v1/sessions/ses_x", ""), cay.NotFound)
}

func TestASessionsFieldsAreChecked(t *testing.T) {
	r := newRig(t)
	for body, field := range map[string]string{
		`{"name":""}`: "name", `{"name":"a/b"}`: "name", `{"name":"ü"}`: "name", `{"name":"` + strings.Repeat("a", 65) + `"}`: "name",
		`{"ttl_seconds":0}`: "ttl_seconds", `{"ttl_seconds":-1}`: "ttl_seconds", `{"disk_gb":0}`: "disk_gb", `{"ttlSeconds":1}`: "ttlSeconds", `{"metadata":{"":"x"}}`: "metadata.",
	} {
		if a := r.refused(r.do("POST", "/v1/sessions", body), cay.InvalidRequest); a.member(t, "field") != field {
			t.Errorf("%s: got %s", body, a.body)
		}
	}
}

func TestSessionsAreListedBySelection(t *testing.T) {
	r := newRig(t)
	id := r.session()
	a := r.status(r.do("GET", "/v1/sessions?name=n&status=active,deleted&metadata.k=v&order=asc&limit=7", ""), 200)
	if !strings.Contains(string(a.body), id) {
		t.Errorf("got %s", a.body)
	}
	q := r.sess.query
	if q.Name != "n" || fmt.Sprint(q.Statuses) != "[active deleted]" || q.Metadata["k"] != "v" || !q.Ascending || q.Limit != 7 {
		t.Errorf("got %+v", q)
	}
	r.refused(r.do("GET", "/v1/sessions?status=gone", ""), cay.InvalidRequest)
	r.refused(r.do("GET", "/v1/sessions?name=a/b", ""), cay.InvalidRequest)
}

func TestADeleteOfASessionInUseNeedsForce(t *testing.T) {
	r := newRig(t)
	id := r.session()
	at := "/v1/sessions/" + id
	user := r.boxes.add(projectA, cay.Ready)
	r.sess.users[cay.ID(id)] = []*cay.Sandbox{{ID: user}}
	if a := r.refused(r.do("DELETE", at, ""), cay.Conflict); a.member(t, "sandbox_id") != string(user) {
		t.Errorf("got %s", a.body)
	}
	r.sess.stuck = true
	if a := r.status(r.do("DELETE", at+"?force=true", ""), 202); a.member(t, "status") != "deleting" || a.member(t, "status_reason") != "deleted" {
		t.Errorf("got %s", a.body)
	}
	r.sess.stuck = false
	r.status(r.do("DELETE", at+"?force=true", ""), 204)
	r.status(r.do("DELETE", at, ""), 204)
	if a := r.status(r.do("GET", at, ""), 200); a.member(t, "status") != "deleted" || a.member(t, "ended_at") == nil {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("GET", at+"/files", ""), cay.Gone)
	r.refused(r.do("PUT", at+"/archive", "x"), cay.Gone)
}

func TestPathsOfASessionStayInIt(t *testing.T) {
	for given, want := range map[string]string{
		"": "/session", "/": "/session", ".": "/session", "/session": "/session", "/session/": "/session", "session": "/session/session",
		"a/b": "/session/a/b", "/a/b": "/session/a/b", "/session/a/b": "/session/a/b", "a//b/./c/": "/session/a/b/c",
		"..": "/session", "../..": "/session", "../a": "/session/a", "a/../../../b": "/session/b", "/session/..": "/session", "/session/../..": "/session",
		"/session/../etc/passwd": "/session/etc/passwd", "/../session/a": "/session/a", "/sessions/a": "/session/sessions/a", "/session/session/a": "/session/session/a",
		"session/a": "/session/session/a", "../session/a": "/session/session/a", "/etc/passwd": "/session/etc/passwd", "a\xff": "/session/a\xff", "...": "/session/...", "..a": "/session/..a",
	} {
		if got := sessionFile(given); got != want {
			t.Errorf("%q is %q, want %q", given, got, want)
		}
	}
}

func FuzzSessionFile(f *testing.F) {
	for _, s := range []string{"", "a/../../b", "/session/../x", "//session", "/session//..//session", "\x00", "..\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := sessionFile(s)
		if got != "/session" && !strings.HasPrefix(got, "/session/") || path.Clean(got) != got {
			t.Fatalf("%q leads to %q", s, got)
		}
		if again := sessionFile(got); again != got {
			t.Fatalf("%q, which was answered, is %q", got, again)
		}
	})
}

func TestFilesOfASessionAreReachedWithoutASandboxOfTheClients(t *testing.T) {
	r := newRig(t)
	at := "/v1/sessions/" + r.session()
	file := at + "/files/content?path="
	put := r.status(r.do("PUT", file+"a/b.txt&mode=0600", "content"), 200)
	if put.member(t, "path") != "/session/a/b.txt" || put.Header.Get("ETag") == "" || put.member(t, "mode") != "0600" {
		t.Errorf("got %s", put.body)
	}
	for _, p := range []string{"a/b.txt", "/a/b.txt", "/session/a/b.txt", "x/../../a/b.txt"} {
		if a := r.status(r.do("GET", file+p, ""), 200); string(a.body) != "content" || a.Header.Get("Content-Disposition") != "attachment; filename=b.txt" {
			t.Errorf("%s: got %q, %v", p, a.body, a.Header)
		}
	}
	if a := r.status(r.do("GET", file+"a/b.txt", "", header("Range", "bytes=1-2")), 206); string(a.body) != "on" {
		t.Errorf("got %q", a.body)
	}
	if a := r.status(r.do("HEAD", file+"a/b.txt", ""), 200); a.ContentLength != 7 || a.Header.Get("ETag") != put.Header.Get("ETag") {
		t.Errorf("got %v", a.Header)
	}
	r.refused(r.do("PUT", file+"a/b.txt", "x", header("If-None-Match", "*")), cay.PreconditionFailed)
	if a := r.status(r.do("GET", at+"/files", ""), 200); !strings.Contains(string(a.body), `"path":"/session/a/b.txt"`) {
		t.Errorf("got %s", a.body)
	}
	if a := r.status(r.do("GET", at+"/archive?format=tar", ""), 200); string(a.body) != "archive of /session as tar" || !strings.Contains(a.Header.Get("Content-Disposition"), "ses_") {
		t.Errorf("got %s, %v", a.body, a.Header)
	}
	r.status(r.do("PUT", at+"/archive", "archive"), 200)
	r.status(r.do("DELETE", file+"a/b.txt", ""), 204)
	r.refused(r.do("GET", file+"a/b.txt", ""), cay.NotFound)
	for _, whole := range []string{"/", "/session", "..", "a/.."} {
		r.refused(r.do("DELETE", file+whole+"&recursive=true", ""), cay.Unprocessable)
	}
	r.refused(r.do("GET", file+"a%00", ""), cay.InvalidRequest)
	r.refused(r.do("GET", file+strings.Repeat("a", 4096), ""), cay.InvalidRequest)
	r.refused(r.do("GET", at+"/files/content", ""), cay.InvalidRequest)
	r.refused(r.do("GET", file+"a&user=root", ""), cay.InvalidRequest)
	r.refused(r.do("GET", at+"/files", "", header("Authorization", "Bearer "+otherKey)), cay.NotFound)
	r.refused(r.do("GET", at+"/files", "", header("Authorization", "Bearer "+readKey)), cay.Forbidden)
}

func TestASandboxOfASessionSaysSo(t *testing.T) {
	r := newRig(t)
	session := r.session()
	a := r.status(r.do("POST", "/v1/sandboxes", `{"session_id":"`+session+`","session_shared":true}`), 201)
	if a.member(t, "session_id") != session || a.member(t, "session_shared") != true || a.member(t, "managed_by") != nil {
		t.Errorf("got %s", a.body)
	}
	if a := r.status(r.do("POST", "/v1/sandboxes", `{}`), 201); a.member(t, "session_id") != nil || a.member(t, "session_shared") != false {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("POST", "/v1/sandboxes", `{"session_id":"x"}`), cay.Unprocessable)
	r.status(r.do("GET", "/v1/sandboxes?managed=true&session_id="+session, ""), 200)
	if q := r.boxes.query; !q.Managed || string(q.SessionID) != session {
		t.Errorf("got %+v", q)
	}
	r.status(r.do("GET", "/v1/sandboxes", ""), 200)
	if q := r.boxes.query; q.Managed || q.SessionID != "" {
		t.Errorf("got %+v", q)
	}
}
