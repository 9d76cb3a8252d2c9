package contract

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/testkit"
)

// kept are a job that has finished and a session with a file, made when they are first needed: calls leave both as they are.
var kept struct {
	once         sync.Once
	job, session string
	err          error
}

// output is what the job left behind, and held the file of the session.
const output, held = "/output/a.txt", "held.txt"

func keep(t testing.TB) {
	t.Helper()
	kept.once.Do(func() {
		var job struct{ ID, Status, Stdout string }
		code := "open('/output/a.txt', 'w').write('left'); print('said')"
		if kept.err = ask(t, "POST", "/v1/jobs?wait_seconds=60", fields{"code": code}, 200, &job); kept.err != nil {
			return
		}
		if kept.job = job.ID; job.Status != "success" || job.Stdout != "said\n" {
			kept.err = fmt.Errorf("the job is %+v", job)
			return
		}
		var session struct{ ID string }
		if kept.err = ask(t, "POST", "/v1/sessions", fields{"disk_gb": 0.1}, 201, &session); kept.err != nil {
			return
		}
		kept.session = session.ID
		kept.err = ask(t, "PUT", "/v1/sessions/"+session.ID+"/files/content?path="+held, []byte(sized), 200, nil)
	})
	if kept.err != nil {
		t.Fatal(kept.err)
	}
}

// ask makes a call outside of those that are held against the document. want 0 is any status of success.
func ask(t testing.TB, method, target string, body any, want int, into any) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	resp, err := testkit.Server(t).Do(ctx, method, target, body)
	if err != nil {
		return err
	}
	if into != nil {
		return resp.Decode(want, into)
	}
	if resp.Status != want && (want != 0 || resp.Status >= 300) {
		return fmt.Errorf("%s %s: %v", method, target, resp)
	}
	return nil
}

// made is the id of what a POST makes.
func (s *stage) made(target string, body fields, want int) string {
	s.t.Helper()
	var it struct{ ID string }
	if err := ask(s.t, "POST", target, body, want, &it); err != nil {
		s.t.Fatal(err)
	}
	return it.ID
}

// ofJob is a call about the job that is kept.
func ofJob(c call) func(*stage) call {
	return func(s *stage) call {
		keep(s.t)
		c.vars = fields{"id": kept.job}
		return c
	}
}

// ofSession is a call about the session that is kept.
func ofSession(c call) func(*stage) call {
	return func(s *stage) call {
		keep(s.t)
		c.vars = fields{"id": kept.session}
		return c
	}
}

// follow reads a job's stream over a WebSocket, which has no subprotocol, to the server's close.
func follow(t *testing.T, op *operation, target string) {
	t.Helper()
	inst := testkit.Server(t)
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, strings.Replace(inst.URL, "http", "ws", 1)+target, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + inst.Key}}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	conn.SetReadLimit(4 << 20)
	var events []event
	for {
		_, data, err := conn.Read(ctx)
		if err != nil {
			if code := websocket.CloseStatus(err); code != websocket.StatusNormalClosure || len(events) == 0 || events[len(events)-1].name != "exit" {
				t.Errorf("after %d frames: closed with %v: %v", len(events), code, err)
			}
			break
		}
		var frame struct {
			Type string
			Seq  int64
		}
		if err := json.Unmarshal(data, &frame); err != nil {
			t.Fatal(err)
		}
		events = append(events, event{frame.Type, fmt.Sprint(frame.Seq), data})
	}
	for _, fault := range op.eventFaults(events) {
		t.Error(fault)
	}
}

var jobCalls = map[string]example{
	"submit-job": {dear: true, call: does(call{query: fields{"wait_seconds": "0"}, want: 202, body: fields{"code": "print(input())", "language": "python", "stdin": "x", "env": fields{"A": "b"}, "metadata": fields{"suite": "contract"},
		"packages": []string{}, "network": []string{}, "session_shared": false, "timeout_seconds": 20.5, "queue_timeout_seconds": 60, "priority": 9, "cpu": 0.5, "memory_mb": 256, "disk_gb": 0.5, "pids": 64}}),
		more: []func(*stage) call{
			does(call{query: fields{"wait_seconds": "60"}, body: fields{"code": "print(1)"}, want: 200}),
			does(call{query: fields{"wait_seconds": "60"}, body: fields{"code": "import os; os.write(1, b'\\xff'); open('/workspace/a', 'w'); 1/0", "stdin_base64": "/w=="}, want: 200}),
			does(call{body: fields{"code": "x", "language": "cobol"}, want: 422}),
			does(call{body: fields{"code": "x", "session_id": "ses_" + strings.Repeat("0", 26)}, want: 422}),
			does(call{body: fields{"code": "x", "packages": []string{"numpy"}}, want: 501}),
		}},
	"list-jobs": {call: does(call{query: fields{"limit": "5", "order": "asc", "status": "active,success", "created_after": "2020-01-02T15:04:05Z", "metadata.suite": "contract"}}), more: []func(*stage) call{
		func(s *stage) call { keep(s.t); return call{query: fields{"session_id": kept.session}} }}},
	"get-job": {call: ofJob(call{query: fields{"wait_seconds": "0.5"}})},
	"cancel-job": {dear: true, call: func(s *stage) call {
		return call{vars: fields{"id": s.made("/v1/jobs", fields{"code": "import time; time.sleep(60)"}, 202)}, want: 200}
	}, more: []func(*stage) call{ofJob(call{want: 200})}},
	"read-job-output": {call: ofJob(call{query: fields{"path": output}, want: 200}), more: []func(*stage) call{ofJob(call{query: fields{"path": "/output/none"}, want: 404})}},
	"stream-job": {call: ofJob(call{query: fields{"seq": "0"}, header: []string{"Accept", eventType}, until: "exit"}), more: []func(*stage) call{
		ofJob(call{query: fields{"seq": "3"}, socket: []fields{}, want: 101}), ofJob(call{header: []string{"Accept", eventType, "Last-Event-ID", "4"}, until: "exit"}),
		func(s *stage) call {
			return call{vars: fields{"id": s.made("/v1/jobs", fields{"code": "import time; print(1, flush=True); time.sleep(5)"}, 202)}, header: []string{"Accept", eventType}, until: "stdout"}
		}}},

	"create-session": {dear: true, call: does(call{body: fields{"ttl_seconds": 600, "disk_gb": 0.1, "metadata": fields{"suite": "contract"}}, want: 201}), more: []func(*stage) call{
		does(call{body: fields{}, want: 201}), does(call{body: fields{"disk_gb": 100000}, want: 422})}},
	"list-sessions": {call: does(call{query: fields{"limit": "5", "order": "desc", "status": "active,deleted", "created_after": "2020-01-02T15:04:05Z", "metadata.suite": "contract"}}), more: []func(*stage) call{
		does(call{query: fields{"name": "none-of-that-name"}})}},
	"get-session": {call: ofSession(call{})},
	"delete-session": {dear: true, call: func(s *stage) call {
		return call{vars: fields{"id": s.made("/v1/sessions", fields{"disk_gb": 0.1}, 201)}, query: fields{"force": "true"}, want: 204}
	}},
	"list-session-files": {dear: true, call: ofSession(call{query: fields{"path": "/session", "depth": "2", "limit": "10"}}), more: []func(*stage) call{ofSession(call{})}},
	"read-session-file": {dear: true, call: ofSession(call{query: fields{"path": held}, want: 200}), more: []func(*stage) call{
		ofSession(call{query: fields{"path": "/session/" + held}, header: []string{"Range", "bytes=1-3"}, want: 206}), ofSession(call{query: fields{"path": "none"}, want: 404}),
		ofSession(call{query: fields{"path": "../../etc/shadow"}, want: 404})}}, // a path that no hostile call has made within the session
	"head-session-file": {dear: true, call: ofSession(call{query: fields{"path": held}, want: 200})},
	"write-session-file": {dear: true, call: func(s *stage) call {
		c := ofSession(call{body: []byte("hi"), want: 200})(s)
		c.query = fields{"path": "written/" + strings.TrimPrefix(s.path(), "/workspace/"), "mode": "0640"}
		return c
	}, more: []func(*stage) call{ofSession(call{query: fields{"path": held}, header: []string{"If-None-Match", "*"}, body: []byte("hi"), want: 412})}},
	"delete-session-file": {dear: true, call: func(s *stage) call {
		c := ofSession(call{want: 204})(s)
		name := strings.TrimPrefix(s.path(), "/workspace/")
		if err := ask(s.t, "PUT", "/v1/sessions/"+kept.session+"/files/content?path="+name, []byte("x"), 200, nil); err != nil {
			s.t.Fatal(err)
		}
		c.query = fields{"path": name, "recursive": "true"}
		return c
	}, more: []func(*stage) call{ofSession(call{query: fields{"path": "/", "recursive": "true"}, want: 422})}},
	"read-session-archive": {dear: true, call: ofSession(call{query: fields{"format": "tar"}, want: 200}), more: []func(*stage) call{ofSession(call{want: 200})}},
	"write-session-archive": {dear: true, call: ofSession(call{query: fields{"format": "tar"}, body: archive("archived"), want: 200}), more: []func(*stage) call{
		ofSession(call{body: archive("../x"), want: 422})}},
}

// simply is an entry with the names of the simple door.
func simply(e example) example {
	spelled := func(make func(*stage) call) func(*stage) call {
		return func(s *stage) call {
			c := make(s)
			c.query = camelNames(c.query)
			if body, ok := c.body.(fields); ok {
				c.body = camelNames(body)
			}
			return c
		}
	}
	out := example{call: spelled(e.call), spoils: e.spoils, dear: e.dear}
	for _, m := range e.more {
		out.more = append(out.more, spelled(m))
	}
	return out
}

func camelNames(f fields) fields {
	if f == nil {
		return nil
	}
	out := fields{}
	for name, v := range f {
		if !strings.HasPrefix(name, "metadata.") {
			parts := strings.Split(name, "_")
			for i := range parts[1:] {
				parts[i+1] = strings.ToUpper(parts[i+1][:1]) + parts[i+1][1:]
			}
			name = strings.Join(parts, "")
		}
		out[name] = v
	}
	return out
}

// calls has a valid call of every operation.
var calls = func() map[string]example {
	all := maps.Clone(ownCalls)
	maps.Copy(all, historyCalls)
	for id, e := range jobCalls {
		all[id] = e
		if id != "read-job-output" {
			all["simple-"+id] = simply(e)
		}
	}
	all["simple-stream"] = example{call: func(s *stage) call {
		keep(s.t)
		return call{query: fields{"jobId": kept.job, "seq": "0"}, header: []string{"Accept", eventType}, until: "exit"}
	}, more: []func(*stage) call{func(s *stage) call {
		keep(s.t)
		return call{query: fields{"jobId": kept.job}, socket: []fields{}, want: 101}
	}}}
	return all
}()
