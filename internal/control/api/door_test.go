package api

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

// memberNames are those of all members of an object, but for what is below metadata.
func memberNames(v any) []string {
	var all []string
	switch v := v.(type) {
	case map[string]any:
		for name, member := range v {
			all = append(all, name)
			if name != "metadata" {
				all = append(all, memberNames(member)...)
			}
		}
	case []any:
		for _, item := range v {
			all = append(all, memberNames(item)...)
		}
	}
	return all
}

// camelCase fails where a name of an answer is not in camelCase.
func (a answer) camelCase(t *testing.T) answer {
	t.Helper()
	var v any
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatal(err)
	}
	for _, name := range memberNames(v) {
		if strings.Contains(name, "_") && name != "data_base64" {
			t.Errorf("the answer has %q: %.300s", name, a.body)
		}
	}
	return a
}

func TestTheSimpleDoorRunsAJob(t *testing.T) {
	r := newRig(t)
	session := r.status(r.do("POST", "/session", `{"ttlSeconds":60,"diskGb":0.5,"name":"n","metadata":{"a_b":"c"}}`), 201).camelCase(t)
	sid := session.member(t, "sessionId").(string)
	if session.member(t, "volume") == nil || session.member(t, "expiresAt") == nil || session.Header.Get("Location") != "/session/"+sid {
		t.Errorf("got %s, %v", session.body, session.Header)
	}
	a := r.status(r.do("POST", "/execute", `{"code":"x","language":"python","sessionId":"`+sid+`","sessionShared":true,"timeoutSeconds":5,"queueTimeoutSeconds":9,"memoryMb":64,"diskGb":1,
		"stdinBase64":"eA==","env":{"A_B":"c_d"},"metadata":{"k_l":"v"},"packages":[],"network":[]}`), 202).camelCase(t)
	id := cay.ID(a.member(t, "jobId").(string))
	if a.member(t, "status") != "queued" || a.Header.Get("Location") != "/job/"+string(id) {
		t.Errorf("got %s, %v", a.body, a.Header)
	}
	if q := r.jobs.asked; string(q.SessionID) != sid || q.Env["A_B"] != "c_d" || q.Metadata["k_l"] != "v" || q.Timeout.Seconds() != 5 || *q.MemoryMB != 64 || string(q.Stdin) != "x" {
		t.Errorf("the queue was asked for %+v", q)
	}
	r.jobs.runs(id)
	r.jobs.results[id] = cay.JobResult{Stdout: []byte("42\n"), StdoutSize: 3, FilesChanged: []cay.FileChange{{Path: "/session/a\xff", Op: "create"}}, Outputs: []cay.JobOutput{{Path: "/output/a", Size: 1}}}
	r.jobs.files["/output/a"] = []byte("a")
	r.jobs.finishes(id, 0)
	a = r.status(r.do("GET", "/job/"+string(id)+"?waitSeconds=1", ""), 200).camelCase(t)
	for _, name := range []string{"jobId", "status", "language", "stdout", "stderr", "exitCode", "signal", "timedOut", "durationMs", "queuedAt", "startedAt", "finishedAt", "filesChanged", "outputs", "installLog", "metrics", "error"} {
		var m map[string]any
		if err := json.Unmarshal(a.body, &m); err != nil || !slices.Contains(slices.Collect(maps.Keys(m)), name) {
			t.Errorf("%s is not there: %s", name, a.body)
		}
	}
	if m := a.member(t, "metadata").(map[string]any); m["k_l"] != "v" || a.member(t, "stdout") != "42\n" || a.member(t, "exitCode") != 0.0 {
		t.Errorf("got %s", a.body)
	}
	if v1 := r.status(r.do("GET", "/v1/jobs/"+string(id), ""), 200); v1.member(t, "stdout") != "42\n" {
		t.Errorf("got %s", v1.body)
	}
	for _, list := range []string{"/jobs?limit=1&createdAfter=2026-01-02T03:04:05Z&sessionId=" + sid, "/sessions?metadata.a_b=c&createdAfter=2026-01-02T03:04:05Z"} {
		r.status(r.do("GET", list, ""), 200).camelCase(t)
	}
	if q := r.jobs.query; string(q.SessionID) != sid || q.CreatedAfter.IsZero() || r.sess.query.Metadata["a_b"] != "c" {
		t.Errorf("got %+v, %+v", q, r.sess.query)
	}
	r.status(r.do("DELETE", "/job/"+string(id), ""), 200).camelCase(t)
	r.status(r.do("GET", "/session/"+sid, ""), 200).camelCase(t)
	r.status(r.do("PUT", "/session/"+sid+"/files/content?path=a", "x"), 200).camelCase(t)
	r.status(r.do("GET", "/session/"+sid+"/files/content?path=a", ""), 200)
	r.status(r.do("HEAD", "/session/"+sid+"/files/content?path=a", ""), 200)
	r.status(r.do("GET", "/session/"+sid+"/files", ""), 200).camelCase(t)
	r.status(r.do("DELETE", "/session/"+sid+"/files/content?path=a", ""), 204)
	r.status(r.do("GET", "/session/"+sid+"/archive", ""), 200)
	r.status(r.do("PUT", "/session/"+sid+"/archive", "x"), 200)
	r.sess.stuck = true
	r.status(r.do("DELETE", "/session/"+sid, ""), 202).camelCase(t)
	r.sess.stuck = false
	r.status(r.do("DELETE", "/session/"+sid, ""), 204)
}

func TestTheSimpleDoorRefusesInItsOwnNames(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		method, target, body string
		reason               cay.ErrorReason
		field                string
	}{
		{"POST", "/execute", `{"code":"x","session_id":"x"}`, cay.InvalidRequest, "session_id"},
		{"POST", "/execute", `{"code":"x","sessionId":"x"}`, cay.Unprocessable, "sessionId"},
		{"POST", "/execute", `{"code":"x","timeoutSeconds":0}`, cay.InvalidRequest, "timeoutSeconds"},
		{"POST", "/execute", `{"code":"x","timeoutSeconds":"x"}`, cay.InvalidRequest, "timeoutSeconds"},
		{"POST", "/execute", `{"code":"x","timeoutSeconds":4000}`, cay.Unprocessable, "timeoutSeconds"},
		{"POST", "/execute", `{"code":"x","queueTimeoutSeconds":0}`, cay.InvalidRequest, "queueTimeoutSeconds"},
		{"POST", "/execute", `{"code":"x","env":{"A_=":"b"}}`, cay.InvalidRequest, "env.A_="},
		{"POST", "/execute?wait_seconds=1", `{"code":"x"}`, cay.InvalidRequest, "wait_seconds"},
		{"POST", "/execute?waitSeconds=301", `{"code":"x"}`, cay.InvalidRequest, "waitSeconds"},
		{"GET", "/jobs?createdAfter=x", "", cay.InvalidRequest, "createdAfter"},
		{"GET", "/jobs?sessionId=x", "", cay.InvalidRequest, "sessionId"},
		{"POST", "/session", `{"ttlSeconds":0}`, cay.InvalidRequest, "ttlSeconds"},
		{"POST", "/session", `{"ttl_seconds":1}`, cay.InvalidRequest, "ttl_seconds"},
		{"GET", "/stream", "", cay.InvalidRequest, "jobId"},
		{"GET", "/stream?jobId=" + string(cay.NewID(cay.PrefixJob)), "", cay.InvalidRequest, "Upgrade"},
	} {
		a := r.refused(r.do(c.method, c.target, c.body), c.reason)
		if a.member(t, "field") != c.field {
			t.Errorf("%s %s: the field is %v, want %s: %s", c.target, c.body, a.member(t, "field"), c.field, a.body)
		}
		if detail, _ := a.member(t, "detail").(string); !strings.Contains(c.field, "_") && strings.Contains(detail, "_") {
			t.Errorf("%s %s: %s", c.target, c.body, detail)
		}
	}
	r.refused(r.do("GET", "/stream?jobId=nope", "", header("Accept", eventStream)), cay.NotFound)
}

func TestTheSimpleDoorStreamsInItsOwnNames(t *testing.T) {
	r := newRig(t)
	id, want := r.talker()
	want[len(want)-1] = "exit 113 data=failed exitCode=3 signal=<nil> durationMs=1500"
	expect(t, r.frames("/job/"+string(id)+"/stream"), want)
	expect(t, r.frames("/stream?jobId="+string(id)+"&seq=1", header("Accept", eventStream)), want[1:])
	got, _ := r.socket("/stream?jobId=" + string(id)).rest()
	expect(t, got, want)
	got, _ = r.socket("/job/" + string(id) + "/stream?seq=2").rest()
	expect(t, got, want[2:])
}

func TestASessionOfTheSimpleDoorIsMadeOnce(t *testing.T) {
	r := newRig(t)
	key := header("Idempotency-Key", "k")
	first := r.status(r.do("POST", "/session", `{"name":"n"}`, key), 201).member(t, "sessionId")
	if again := r.status(r.do("POST", "/session", `{"name":"n"}`, key), 201).member(t, "sessionId"); again != first {
		t.Errorf("got %v and %v", first, again)
	}
	if a := r.refused(r.do("POST", "/session", `{"name":"n"}`), cay.AlreadyExists); a.member(t, "session_id") != first {
		t.Errorf("got %s", a.body)
	}
}
