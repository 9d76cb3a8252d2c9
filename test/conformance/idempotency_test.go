package conformance

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// repeatable is a POST on a sandbox that is sent twice with one key. Path and body are made once for each case.
type repeatable struct {
	path        string
	body, other any    // other is refused with the same key; nil: there is only one body
	same        string // the member of both answers that must be the same, besides the status
	// doubled says what a second execution would have left, "" when there was only one.
	doubled func(t *testing.T, sb *testkit.Sandbox) string
}

// says is a doubled that runs a command whose output must be want.
func says(want, command string) func(*testing.T, *testkit.Sandbox) string {
	return func(t *testing.T, sb *testkit.Sandbox) string {
		t.Helper()
		if got := sb.Must(command); got != want {
			return fmt.Sprintf("%s says %q, want %q", command, got, want)
		}
		return ""
	}
}

// repeatables are all POSTs below a sandbox by operation, of a sandbox in which cat reads from a pipe as the process "cat", with the
// files /workspace/{a,b,c}.
var repeatables = map[string]repeatable{
	"exec": {path: "/exec", body: fields{"command": "echo x >> /workspace/n"}, other: fields{"command": "echo y"}, same: "process_id",
		doubled: says("1\n", "wc -l < /workspace/n")},
	"start-process": {path: "/processes", body: fields{"command": "echo x >> /workspace/n; sleep 300"}, other: fields{"command": "sleep 301"}, same: "id",
		doubled: says("1\n", "until [ -s /workspace/n ]; do sleep .05; done; sleep .5; wc -l < /workspace/n")},
	"run-code": {path: "/code", body: fields{"language": "sh", "code": "echo x >> /workspace/n"}, other: fields{"language": "sh", "code": "echo y"}, same: "process_id",
		doubled: says("1\n", "wc -l < /workspace/n")},
	"create-context": {path: "/contexts", body: fields{"language": "sh"}, other: fields{"language": "bash"}, same: "id"},
	"signal-process": {path: "/processes/cat/signal", body: fields{"signal": "CONT"}, other: fields{"signal": "TERM"},
		doubled: says("", "pgrep -x cat >/dev/null || echo it was ended")},
	"write-stdin": {path: "/processes/cat/stdin?offset=0", body: []byte("x\n"), same: "stdin_offset"},
	"make-directory": {path: "/files/mkdir", body: fields{"path": "/workspace/new"}, other: fields{"path": "/workspace/newer"}, same: "path",
		doubled: says("", "ls -d /workspace/newer 2>/dev/null; true")},
	"move-file": {path: "/files/move", body: fields{"from": "/workspace/a", "to": "/workspace/moved"}, other: fields{"from": "/workspace/b", "to": "/workspace/moved"}, same: "path",
		doubled: says("a", "cat /workspace/moved")},
	"change-mode":    {path: "/files/chmod", body: fields{"path": "/workspace/a", "mode": "0600"}, other: fields{"path": "/workspace/a", "mode": "0644"}, same: "mode"},
	"compose-file":   {path: "/files/compose", body: fields{"sources": []string{"/workspace/a", "/workspace/b"}, "path": "/workspace/ab"}, other: fields{"sources": []string{"/workspace/c"}, "path": "/workspace/ab"}, same: "size", doubled: says("ab", "cat /workspace/ab")},
	"sign-file":      {path: "/files/sign", body: fields{"method": "GET", "path": "/workspace/a"}, other: fields{"method": "GET", "path": "/workspace/b"}, same: "path"},
	"expose-port":    {path: "/ports", body: fields{"port": 8000}, other: fields{"port": 8001}, same: "token"},
	"set-timeout":    {path: "/timeout", body: fields{"ttl_seconds": 1000}, other: fields{"ttl_seconds": 10}, same: "id"},
	"keep-alive":     {path: "/keepalive", same: "id"},
	"resume-sandbox": {path: "/resume", body: fields{"ttl_seconds": 1000}, other: fields{"ttl_seconds": 10}, same: "id"},
	"pause-sandbox":  {path: "/pause", same: "id"},
}

// notRepeatable are POSTs whose repetition does nothing more than the first, or that are the guest's.
var notRepeatable = map[string]string{
	"create-sandbox": "has tests of its own", "submit-job": "is tested with jobs", "create-session": "is tested with sessions", "simple-submit-job": "is its alias", "simple-create-session": "is its alias", "create-ticket": "each is a new secret, which is not kept", "port-post": "is the guest's",
	"resize-process": "sets what is so already", "interrupt-context": "does nothing once it is idle", "restart-context": "starts anew what is new already",
}

func TestEveryPostIsDoneOnceForEachIdempotencyKey(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	resp, err := inst.Do(t.Context(), "GET", "/openapi.json", nil)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := resp.Decode(200, &doc); err != nil {
		t.Fatal(err)
	}
	for path, item := range doc.Paths {
		if item["post"] == nil {
			continue
		}
		var op struct{ OperationID string }
		if err := json.Unmarshal(item["post"], &op); err != nil {
			t.Fatal(err)
		}
		c, ok := repeatables[op.OperationID]
		if !ok {
			if notRepeatable[op.OperationID] == "" {
				t.Errorf("POST %s (%s): say here what repeating it does", path, op.OperationID)
			}
			continue
		}
		t.Run(op.OperationID, func(t *testing.T) {
			t.Parallel()
			sb := box(t)
			for _, name := range []string{"a", "b", "c"} {
				sb.Put("/workspace/"+name, []byte(name))
			}
			if strings.Contains(c.path, "/cat/") {
				if resp := sb.Call("POST", "/processes", fields{"command": []string{"cat"}, "name": "cat", "stdin_open": true}); resp.Status != 201 {
					t.Fatal(resp)
				}
			}
			key := testkit.NewKey()
			post := func(body any) (testkit.Response, map[string]any) {
				t.Helper()
				headers := []string{"Idempotency-Key", key}
				if _, raw := body.([]byte); raw {
					headers = append(headers, "Content-Type", "application/octet-stream")
				}
				resp := sb.Call("POST", c.path, body, headers...)
				var v map[string]any
				if len(resp.Body) > 0 && json.Unmarshal(resp.Body, &v) != nil {
					t.Fatalf("no JSON: %v", resp)
				}
				return resp, v
			}
			first, was := post(c.body)
			if first.Status/100 != 2 {
				t.Fatal(first)
			}
			again, now := post(c.body)
			if again.Status != first.Status || c.same != "" && (was[c.same] == nil || was[c.same] != now[c.same]) {
				t.Errorf("first %v, again %v", first, again)
			}
			if c.other != nil {
				if resp, _ := post(c.other); resp.Status != 409 || resp.Problem().Reason != "idempotency_mismatch" {
					t.Errorf("with another body: %v", resp)
				}
			}
			if c.doubled != nil {
				if what := c.doubled(t, sb); what != "" {
					t.Error(what)
				}
			}
		})
	}
}

func TestARepeatedCreateAnswersWithTheObjectAsItIsNow(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	key := testkit.NewKey()
	create := func(query string) (testkit.Response, testkit.SandboxObject) {
		t.Helper()
		resp, err := inst.Do(t.Context(), "POST", "/v1/sandboxes"+query, fields{"image": "host", "metadata": fields{"v": "1"}}, "Idempotency-Key", key)
		if err != nil {
			t.Fatal(err)
		}
		var sb testkit.SandboxObject
		if err := json.Unmarshal(resp.Body, &sb); err != nil {
			t.Fatal(err)
		}
		return resp, sb
	}
	first, made := create("?wait=false")
	if first.Status != 202 && first.Status != 201 {
		t.Fatal(first)
	}
	resp, now := create("") // joins the first, and waits for it
	if resp.Status != 201 || now.ID != made.ID || now.Status != "READY" || resp.Header.Get("Location") != "/v1/sandboxes/"+made.ID {
		t.Fatalf("a retry that waits: %v", resp)
	}
	if resp, err := inst.Do(t.Context(), "PATCH", "/v1/sandboxes/"+made.ID, fields{"metadata": fields{"v": "2"}}); err != nil || resp.Status != 200 {
		t.Fatal(resp, err)
	}
	if resp, now = create(""); resp.Status != 201 || now.Metadata["v"] != "2" {
		t.Errorf("after a change: %v", resp)
	}
	if err := inst.DeleteSandbox(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	if resp, now = create(""); resp.Status != 201 || now.ID != made.ID || now.Status != "TERMINATED" {
		t.Errorf("after its end: %v", resp)
	}
}

func TestARefusalIsKeptWithItsKeyAndAKeyBelongsToItsProject(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	sb := inst.Create(t)
	key := testkit.NewKey()
	exec := func(body fields) testkit.Response {
		return sb.Call("POST", "/files/mkdir", body, "Idempotency-Key", key)
	}
	sb.Must("mkdir /workspace/d")
	if resp := exec(fields{"path": "/workspace/d"}); resp.Status != 409 || resp.Problem().Reason != "already_exists" {
		t.Fatal(resp)
	}
	sb.Must("rmdir /workspace/d")
	if resp := exec(fields{"path": "/workspace/d"}); resp.Status != 409 || resp.Problem().Reason != "already_exists" {
		t.Errorf("the refusal was forgotten: %v", resp)
	}
	other := inst.NewTenant(t).Key(t, time.Time{}, "sandboxes:write", "sandboxes:read")
	shared := testkit.NewKey()
	ids := map[string]bool{}
	for _, c := range []*testkit.Client{inst.Client, other} {
		resp, err := c.Do(t.Context(), "POST", "/v1/sandboxes", fields{"image": "host"}, "Idempotency-Key", shared)
		if err != nil {
			t.Fatal(err)
		}
		var made testkit.SandboxObject
		if err := resp.Decode(201, &made); err != nil {
			t.Fatal(err)
		}
		ids[made.ID] = true
		if err := c.DeleteSandbox(t.Context(), made.ID); err != nil {
			t.Error(err)
		}
	}
	if len(ids) != 2 {
		t.Error("two projects with one key share a sandbox")
	}
}
