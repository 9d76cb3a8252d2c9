package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// named is a further member of a problem.
func named(resp testkit.Response, member string) string {
	var p map[string]any
	_ = json.Unmarshal(resp.Body, &p) // what is no problem names nothing
	s, _ := p[member].(string)
	return s
}

func TestASessionKeepsItsFilesFromOneLanguageToTheNext(t *testing.T) {
	t.Parallel()
	s := testkit.Server(t).Session(t)
	if s.Status != "active" || s.ExpiresAt == nil || s.Volume == "" || s.Name != nil {
		t.Errorf("a new session: %+v", s.SessionObject)
	}
	s.MustSay("/session\n", "python", "import os\nopen('/session/note', 'w').write('from python')\nprint(os.getcwd())")
	s.MustSay("from python", "bash", `cat note; echo " and bash" >> note; mkdir -p d; chmod 700 d; echo '#!/bin/sh
echo ran' > d/x; chmod +x d/x`)
	box(t).RequireProgram("node")
	s.MustSay("from python and bash\n", "javascript", `process.stdout.write(require("fs").readFileSync("/session/note", "utf8"))`)
	s.MustSay("ran\n", "sh", `d/x`)
	j := s.Run("python", "open('/session/new', 'w').write('1')\nopen('/session/note', 'a').write('more')")
	ops := map[string]string{}
	for _, f := range j.FilesChanged {
		ops[f.Path] = f.Op
	}
	if fmt.Sprint(ops) != "map[/session/new:create /session/note:write]" {
		t.Errorf("changed: %+v", j.FilesChanged)
	}
	if j.SessionID != s.ID || j.SessionShared {
		t.Errorf("the job is of session %q", j.SessionID)
	}
}

func TestASandboxOfASessionHasItsFilesAndHasThemAlone(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	s := inst.Session(t)
	s.MustSay("", "sh", "echo kept > /session/f")
	s.Unused()
	sb := inst.Create(t, fields{"session_id": s.ID})
	sb.MustSay("kept\n", "cat /session/f")
	if now := s.Refresh(); len(now.UsedBy) != 1 || now.UsedBy[0] != sb.ID {
		t.Errorf("used by %v", now.UsedBy)
	}
	for name, more := range map[string]fields{"exclusively": {}, "shared, beside one that does not share": {"session_shared": true}} {
		resp, err := inst.Do(t.Context(), "POST", "/v1/sandboxes", fields{"image": "host", "session_id": s.ID}.With(more))
		if err != nil || resp.Status != 409 || resp.Problem().Reason != "conflict" || named(resp, "sandbox_id") != sb.ID {
			t.Errorf("a second sandbox, %s: %v %v", name, resp, err)
		}
	}
	waiting := inst.Submit(t, "print(open('/session/f').read())", fields{"session_id": s.ID})
	sb.Must("echo left > /session/f")
	if now, err := inst.GetJob(t.Context(), waiting.ID, "wait_seconds=1"); err != nil || now.Status != "queued" {
		t.Errorf("a job of a session that is in use: %v, %v", now, err)
	}
	// Killed at once: what was written is there.
	if err := inst.DeleteSandbox(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if now := waiting.Wait(); !now.Said("left\n\n") {
		t.Errorf("after the sandbox has gone: %v", now)
	}
	list, err := inst.ListSandboxes(t.Context(), "session_id="+s.ID)
	if err != nil || len(list) != 1 || list[0].ID != sb.ID {
		t.Errorf("sandboxes of the session: %+v, %v", list, err)
	}
}

func TestASessionCanBeSharedAtOnce(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	s := inst.Session(t)
	shared := fields{"session_id": s.ID, "session_shared": true}
	a, b := inst.Create(t, shared), inst.Create(t, shared)
	a.Must("echo from a > /session/f")
	b.MustSay("from a\n", "cat /session/f")
	b.Must("echo from b >> /session/f; mkdir /session/d; ln -s f /session/l")
	a.MustSay("from a\nfrom b\n", "cat /session/l")
	// Two jobs of which each waits for the other's file have to run at once.
	meet := "import os, time\nopen('/session/%s', 'w').close()\nwhile not os.path.exists('/session/%s'): time.sleep(.05)\nprint('met')"
	one := inst.Submit(t, fmt.Sprintf(meet, "one", "two"), shared, fields{"timeout_seconds": 170})
	two := inst.Submit(t, fmt.Sprintf(meet, "two", "one"), shared, fields{"timeout_seconds": 170})
	for _, j := range []*testkit.Job{one, two} {
		if now := j.Wait(); !now.Said("met\n") {
			t.Errorf("%v", now)
		}
	}
	if now := s.Refresh(); len(now.UsedBy) < 2 {
		t.Errorf("used by %v", now.UsedBy)
	}
	if resp, err := inst.Do(t.Context(), "POST", "/v1/sandboxes", fields{"image": "host", "session_id": s.ID}); err != nil || resp.Status != 409 {
		t.Errorf("one that does not share, beside those that do: %v %v", resp, err)
	}
}

func TestJobsOfASessionRunOneAtATime(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	s := inst.Session(t)
	const n = 5
	var jobs []*testkit.Job
	for i := range n {
		jobs = append(jobs, inst.Submit(t, fmt.Sprintf("import time\nwith open('/session/log', 'a') as f:\n  f.write('begin %d\\n'); f.flush(); time.sleep(.3); f.write('end %d\\n')", i, i), fields{"session_id": s.ID}))
	}
	for _, j := range jobs {
		if now := j.Wait(); now.Status != "success" {
			t.Fatalf("%v", now)
		}
	}
	lines := strings.Split(strings.TrimSpace(string(s.Get("log"))), "\n")
	if len(lines) != 2*n {
		t.Fatalf("%q", lines)
	}
	for i := 0; i < len(lines); i += 2 {
		if number, ok := strings.CutPrefix(lines[i], "begin "); !ok || lines[i+1] != "end "+number {
			t.Errorf("two ran at once: %q", lines)
		}
	}
}

func TestASessionsQuotaIsReal(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	full, other := inst.Session(t, fields{"disk_gb": 0.125}), inst.Session(t, fields{"disk_gb": 0.125})
	other.MustSay("", "sh", "echo other > /session/f")
	j := full.Run("python", `
import errno, os
n = 0
try:
    with open('/session/big', 'wb', buffering=0) as f:
        while True: n += f.write(b'x' * (1 << 20))
except OSError as e:
    print(errno.errorcode[e.errno], n >> 20)
try:
    with open('/session/more', 'wb', buffering=0) as f:
        while True: f.write(b'x' * 4096)
except OSError as e:
    print(errno.errorcode[e.errno])
`)
	var first, second string
	var megabytes int
	if n, err := fmt.Sscan(j.Stdout, &first, &megabytes, &second); n != 3 || err != nil || first != "ENOSPC" || second != "ENOSPC" || megabytes < 90 || megabytes > 128 {
		t.Fatalf("%v", j)
	}
	other.MustSay("other\n", "sh", "head -c 10000000 /dev/zero > /session/g && cat /session/f")
	// A full volume can be looked at and made room in, by a job and by its file explorer.
	full.MustSay("yes\n", "sh", "rm /session/more && echo yes")
	if resp := full.Call("DELETE", testkit.SessionFile("big"), nil); resp.Status != 204 {
		t.Errorf("delete on a full volume: %v", resp)
	}
	full.MustSay("ok\n", "sh", "head -c 50000000 /dev/zero > /session/again && echo ok")
}

func TestASessionIsNamedListedAndEndsOnce(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	name := "n-" + testkit.NewKey()[4:20]
	s := inst.Session(t, fields{"name": name, "metadata": fields{"k": name}, "ttl_seconds": 500})
	if s.Name == nil || *s.Name != name || s.TTLSeconds != 500 || s.Metadata["k"] != name {
		t.Errorf("%+v", s.SessionObject)
	}
	if resp, err := inst.Do(t.Context(), "POST", "/v1/sessions", fields{"name": name}); err != nil || resp.Status != 409 || resp.Problem().Reason != "already_exists" || named(resp, "session_id") != s.ID {
		t.Errorf("a name that is taken: %v %v", resp, err)
	}
	key := testkit.NewKey()
	for range 2 {
		resp, err := inst.Do(t.Context(), "POST", "/v1/sessions", fields{"metadata": fields{"once": key}}, "Idempotency-Key", key)
		if err != nil || resp.Status != 201 {
			t.Errorf("with a key: %v %v", resp, err)
		}
	}
	if once, err := inst.ListSessions(t.Context(), "metadata.once="+key); err != nil || len(once) != 1 {
		t.Errorf("one key made %+v, %v", once, err)
	} else if err := inst.DeleteSession(t.Context(), once[0].ID); err != nil {
		t.Error(err)
	}
	for _, query := range []string{"name=" + name, "metadata.k=" + name, "status=active&name=" + name} {
		if list, err := inst.ListSessions(t.Context(), query); err != nil || len(list) != 1 || list[0].ID != s.ID {
			t.Errorf("%s: %+v, %v", query, list, err)
		}
	}
	s.Put("f", []byte("x"))
	sb := inst.Create(t, fields{"session_id": s.ID})
	if resp := s.Call("DELETE", "", nil); resp.Status != 409 || resp.Problem().Reason != "conflict" || named(resp, "sandbox_id") != sb.ID {
		t.Errorf("delete while it is in use: %v", resp)
	}
	sb.MustSay("x", "cat /session/f")
	if err := inst.DeleteSession(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	if now := sb.Refresh(); now.Status != "TERMINATED" {
		t.Errorf("its sandbox after a delete by force is %s", now.Status)
	}
	if now := s.Refresh(); now.Status != "deleted" || now.StatusReason != "deleted" || now.EndedAt == nil {
		t.Errorf("afterwards: %+v", now)
	}
	for _, resp := range []testkit.Response{s.Call("GET", "/files?path=/", nil), s.Call("PUT", testkit.SessionFile("f"), []byte("y")), s.Call("GET", "/archive", nil)} {
		if resp.Status != 410 || resp.Problem().StatusReason != "deleted" {
			t.Errorf("use after the end: %v", resp)
		}
	}
	for what, resp := range map[string]func() (testkit.Response, error){
		"a job": func() (testkit.Response, error) {
			return inst.Do(t.Context(), "POST", "/v1/jobs", fields{"code": "1", "session_id": s.ID})
		},
		"a sandbox": func() (testkit.Response, error) {
			return inst.Do(t.Context(), "POST", "/v1/sandboxes", fields{"image": "host", "session_id": s.ID})
		},
	} {
		if resp, err := resp(); err != nil || resp.Status != 410 {
			t.Errorf("%s of a session that has ended: %v %v", what, resp, err)
		}
	}
	if list, err := inst.ListSessions(t.Context(), "name="+name); err != nil || len(list) != 0 {
		t.Errorf("the list shows %+v, %v", list, err)
	}
	inst.Session(t, fields{"name": name}) // the name is free
}

func TestABadSessionIsRefusedAndSaysWhy(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	for name, c := range map[string]struct{ body, field string }{
		"a name with a slash": {`{"name":"a/b"}`, "name"},
		"a long name":         {`{"name":"` + strings.Repeat("n", 65) + `"}`, "name"},
		"no disk":             {`{"disk_gb":0}`, "disk_gb"},
		"less than none":      {`{"disk_gb":-1}`, "disk_gb"},
		"too much disk":       {`{"disk_gb":1e9}`, "disk_gb"},
		"no time":             {`{"ttl_seconds":0}`, "ttl_seconds"},
		"a past":              {`{"ttl_seconds":-5}`, "ttl_seconds"},
		"an unknown field":    {`{"nam":"x"}`, "nam"},
		"null":                {`null`, ""},
		"no object":           {`[]`, ""},
	} {
		resp, err := inst.Do(t.Context(), "POST", "/v1/sessions", []byte(c.body), "Content-Type", "application/json")
		if p := resp.Problem(); err != nil || resp.Status != 400 && resp.Status != 422 || !strings.Contains(p.Field+" "+p.Detail, c.field) {
			t.Errorf("%s: %v %v", name, resp, err)
		}
	}
	for _, rest := range []string{"", "/files?path=/", "/files/content?path=/f", "/archive"} {
		for _, id := range []string{"ses_00000000000000000000000000", "ses_x", "job_00000000000000000000000000"} {
			if resp, err := inst.Do(t.Context(), "GET", "/v1/sessions/"+id+rest, nil); err != nil || resp.Status != 404 {
				t.Errorf("%s%s: %v %v", id, rest, resp, err)
			}
		}
	}
	if resp, err := inst.Do(t.Context(), "GET", "/v1/sessions?status=nonsense", nil); err != nil || resp.Status != 400 {
		t.Errorf("a status that there is not: %v %v", resp, err)
	}
}

func TestASessionThatNobodyUsesExpiresWithItsFiles(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	s := inst.Session(t, fields{"ttl_seconds": 3})
	used := inst.Session(t, fields{"ttl_seconds": 3})
	s.MustSay("", "sh", "echo x > /session/f")
	sb := inst.Create(t, fields{"session_id": used.ID})
	testkit.Eventually(t, 2*time.Minute, "it expires", func() error {
		if now := s.Refresh(); now.Status != "deleted" || now.StatusReason != "ttl_expired" {
			return fmt.Errorf("%s %s", now.Status, now.StatusReason)
		}
		return nil
	})
	if resp := s.Call("GET", "/files?path=/", nil); resp.Status != 410 || resp.Problem().StatusReason != "ttl_expired" {
		t.Errorf("use after its end: %v", resp)
	}
	if now := used.Refresh(); now.Status != "active" {
		t.Errorf("one that is in use is %s (%s)", now.Status, now.StatusReason)
	}
	sb.MustSay("here\n", "echo here > /session/f; cat /session/f")
	if err := inst.DeleteSandbox(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 2*time.Minute, "it expires once it is not in use", func() error {
		if now := used.Refresh(); now.Status != "deleted" {
			return fmt.Errorf("it is %s", now.Status)
		}
		return nil
	})
}

func TestTheSimpleDoorOfSessions(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	inst := testkit.Server(t)
	ask := func(want int, method, path string, body any) map[string]any {
		t.Helper()
		resp, err := inst.Do(t.Context(), method, path, body)
		if err != nil || resp.Status != want {
			t.Fatalf("%s %s: %v %v", method, path, resp, err)
		}
		var out map[string]any
		if len(resp.Body) > 0 && strings.Contains(resp.Header.Get("Content-Type"), "json") {
			if err := json.Unmarshal(resp.Body, &out); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	s := ask(201, "POST", "/session", fields{"ttlSeconds": 600, "diskGb": 0.25, "metadata": fields{"snake_key": "v"}})
	id, _ := s["sessionId"].(string)
	t.Cleanup(func() {
		if resp, err := inst.Do(context.Background(), "DELETE", "/session/"+id+"?force=true", nil); err != nil || resp.Status != 204 {
			t.Errorf("DELETE /session: %v %v", resp, err)
		}
	})
	if !strings.HasPrefix(id, "ses_") || s["volume"] == "" || s["expiresAt"] == nil || s["diskGb"] != 0.25 || fmt.Sprint(s["metadata"]) != "map[snake_key:v]" {
		t.Errorf("POST /session: %v", s)
	}
	j := ask(202, "POST", "/execute", fields{"language": "python", "code": "import os\nopen('/session/f', 'w').write(os.environ['SNAKE_x'])", "sessionId": id, "timeoutSeconds": 60, "env": fields{"SNAKE_x": "1"}})
	if done := ask(200, "GET", "/job/"+j["jobId"].(string)+"?waitSeconds=120", nil); done["status"] != "success" || done["sessionId"] != id {
		t.Errorf("GET /job: %v", done)
	}
	if list := ask(200, "GET", "/session/"+id+"/files?path=/", nil); !strings.Contains(fmt.Sprint(list), "/session/f") || !strings.Contains(fmt.Sprint(list), "modifiedAt") {
		t.Errorf("files: %v", list)
	}
	if got := ask(200, "GET", "/session/"+id, nil); got["sessionId"] != id || got["lastUsedAt"] == nil {
		t.Errorf("GET /session: %v", got)
	}
	if list := ask(200, "GET", "/sessions", nil); !strings.Contains(fmt.Sprint(list), id) {
		t.Errorf("GET /sessions: %v", list)
	}
	if list := ask(200, "GET", "/jobs?sessionId="+id, nil); !strings.Contains(fmt.Sprint(list), j["jobId"].(string)) {
		t.Errorf("GET /jobs: %v", list)
	}
	ask(400, "POST", "/execute", fields{"code": "1", "session_id": id}) // the other door's word
}
