package contract

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// call is a valid call of an operation, before it is bent.
type call struct {
	vars   fields // of the path, besides id
	query  fields
	header []string // names and values in turn
	body   any      // fields as JSON; []byte as it is
	until  string   // the last event of a stream that has an end
	socket []fields // messages that are sent over a WebSocket once it is open
	stdin  string   // what is typed there
	want   int      // the status; 0: any of success
}

// example is the entry of an operation in the table.
type example struct {
	call func(*stage) call
	more []func(*stage) call // further calls, for other answers
	// spoils: it can end or pause its sandbox, or take its files away, so that it is bent on one of its own.
	spoils bool
	// dear: a call takes so long that not everything can be tried.
	dear bool
}

// stage is what calls are about: a sandbox with a file and a process, and what they need fresh.
type stage struct {
	t       testing.TB
	box     *testkit.Sandbox
	process string // runs, and reads its stdin
	ended   string
	files   *atomic.Int64
}

// path of a file that no call before has named.
func (s *stage) path() string {
	return fmt.Sprintf("/workspace/f%d", s.files.Add(1))
}

const file, sized = "/workspace/file", "0123456789"

// newStage makes a sandbox that is deleted at the end of the test.
func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{t: t, files: new(atomic.Int64), box: testkit.Server(t).Create(t, fields{"metadata": fields{"suite": "contract"}, "auto_resume": false})}
	s.box.Put(file, []byte(sized))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, tr := s.box.Open(ctx, "exec cat", fields{"timeout_seconds": 3000, "stdin": ""})
	stream.Close()
	s.ended = tr.ProcessID
	stream, tr = s.box.Open(ctx, "exec sleep 3000", fields{"timeout_seconds": 3000})
	stream.Close()
	s.process = tr.ProcessID
	return s
}

// context makes one.
func (s *stage) context(language string) string {
	s.t.Helper()
	var c struct{ ID string }
	if err := s.box.Call("POST", "/contexts", fields{"language": language}).Decode(201, &c); err != nil {
		s.t.Fatal(err)
	}
	return c.ID
}

// start starts a process in the background.
func (s *stage) start(command string, more fields) string {
	s.t.Helper()
	var p struct{ ID string }
	if err := s.box.Call("POST", "/processes", fields{"command": command}.With(more)).Decode(201, &p); err != nil {
		s.t.Fatal(err)
	}
	return p.ID
}

// in is the same stage for a subtest.
func (s *stage) in(t testing.TB) *stage {
	c := *s
	c.t, c.box = t, s.box.In(t)
	return &c
}

// does is a call that is always the same.
func does(c call) func(*stage) call { return func(*stage) call { return c } }

// ownCalls are those of what is in /v1 alone, but for jobs and sessions.
var ownCalls = map[string]example{
	"create-sandbox": {dear: true, call: does(call{query: fields{"wait_seconds": "60"}, body: fields{"image": "host", "ttl_seconds": 60}, want: 201}), more: []func(*stage) call{
		does(call{query: fields{"wait": "false"}, body: fields{"ttl_seconds": 60.5, "metadata": fields{"a": "b"}, "env": fields{"A": "b"}, "cpu": 0.5, "memory_mb": 512, "disk_gb": 1, "pids": 64,
			"idle_timeout_seconds": nil, "on_timeout": "pause", "paused_ttl_seconds": 60, "auto_resume": false, "network": []string{}, "workdir": "/tmp", "user": "sandbox", "queue_timeout_seconds": 30}}),
		does(call{body: fields{"network": []string{"example.org:443"}}, want: 501}),
		does(call{body: fields{"image": "no/such:image"}, want: 422}),
	}},
	"list-sandboxes": {call: does(call{query: fields{"limit": "5", "order": "asc", "status": "active", "created_after": "2020-01-02T15:04:05Z", "metadata.suite": "contract"}})},
	"get-sandbox":    {call: does(call{query: fields{"wait_for": "READY", "wait_seconds": "0.5"}})},
	"update-sandbox": {spoils: true, call: does(call{body: fields{"metadata": fields{"a": "b"}, "idle_timeout_seconds": nil, "on_timeout": "terminate"}})},
	"delete-sandbox": {spoils: true, dear: true, call: does(call{want: 204})},
	"set-timeout":    {spoils: true, call: does(call{body: fields{"ttl_seconds": 3000, "extend_only": true}})},
	"keep-alive":     {call: does(call{})},
	"pause-sandbox":  {spoils: true, call: does(call{})},
	"resume-sandbox": {spoils: true, call: does(call{body: fields{"ttl_seconds": 3000}})},
	"get-network":    {call: does(call{})},
	"set-network": {call: does(call{body: fields{"allow": []string{}, "deny": []string{}}}), more: []func(*stage) call{
		does(call{body: []string{}}), does(call{body: []string{"*"}, want: 501})}},

	"list-events": {call: does(call{query: fields{"after": "0", "limit": "10"}}), more: []func(*stage) call{
		does(call{query: fields{"follow": "true"}}), does(call{header: []string{"Accept", eventType, "Last-Event-ID", "999999"}})}},
	"get-metrics": {call: does(call{query: fields{"from": "2026-01-02T15:04:05Z", "limit": "10"}}), more: []func(*stage) call{does(call{})}},
	"read-logs": {call: does(call{query: fields{"after": "1", "limit": "1"}}), more: []func(*stage) call{
		does(call{query: fields{"follow": "true"}}), does(call{header: []string{"Accept", eventType, "Last-Event-ID", "1"}})}},

	"exec": {
		call: does(call{body: fields{"command": []string{"echo", "hi"}, "timeout_seconds": 5, "env": fields{"A": "b"}, "cwd": "/tmp", "user": "sandbox", "max_output_bytes": 100, "encoding": "utf8", "stdin": "x", "kill_on_disconnect": true}}),
		more: []func(*stage) call{
			does(call{header: []string{"Accept", eventType}, until: "exit", body: fields{"command": "echo out; echo err >&2; printf '\\377'", "timeout_seconds": 20}}),
			does(call{header: []string{"Accept", eventType}, until: "exit", body: fields{"command": "echo out; seq 1 100000", "encoding": "base64", "max_output_bytes": 10, "timeout_seconds": 20}}),
			does(call{body: fields{"command": "seq 1 1000; kill -9 $$", "max_output_bytes": 100, "encoding": "base64", "timeout_seconds": 20}}),
			does(call{body: fields{"command": []string{"/no/such"}}}),
			does(call{body: fields{"command": "sleep 60", "timeout_seconds": 0.1}}),
			does(call{body: fields{"command": "true", "cwd": "/no/such"}, want: 422}),
			does(call{header: []string{"Accept", eventType}, body: fields{"command": "true", "user": "nobody-here"}, want: 422}),
		}},
	"exec-websocket": {call: does(call{socket: []fields{{"type": "start", "command": "echo hi"}}, want: 101})},
	"terminal":       {call: does(call{query: fields{"cols": "90", "rows": "30", "user": "sandbox", "cwd": "/tmp"}, socket: []fields{}, stdin: "exit\n", want: 101})},
	"run-code": {dear: true, call: does(call{body: fields{"code": "echo hi", "language": "bash", "timeout_seconds": 10, "env": fields{"A": "b"}, "cwd": "/tmp", "user": "sandbox", "max_output_bytes": 100, "encoding": "utf8", "stdin": "x", "kill_on_disconnect": true}}),
		more: []func(*stage) call{
			does(call{header: []string{"Accept", eventType}, until: "result", body: fields{"code": "print(1); open('/output/a', 'w').write('x')"}}),
			func(s *stage) call { return call{body: fields{"code": "1/0", "context_id": s.context("python")}} },
			does(call{body: fields{"code": "x", "language": "cobol"}, want: 422})}},
	"code-websocket": {call: does(call{socket: []fields{{"type": "start", "code": "echo hi", "language": "bash"}}, want: 101})},
	"create-context": {dear: true, spoils: true, call: does(call{body: fields{"language": "bash", "cwd": "/tmp", "user": "sandbox", "env": fields{"A": "b"}}, want: 201}), more: []func(*stage) call{
		does(call{body: fields{"language": "cobol"}, want: 422})}},
	"list-contexts":     {call: func(s *stage) call { s.context("bash"); return call{} }},
	"get-context":       {call: func(s *stage) call { return call{vars: fields{"context": s.context("bash")}} }},
	"interrupt-context": {call: func(s *stage) call { return call{vars: fields{"context": s.context("bash")}} }},
	"restart-context":   {dear: true, call: func(s *stage) call { return call{vars: fields{"context": s.context("bash")}} }},
	"delete-context":    {dear: true, call: func(s *stage) call { return call{vars: fields{"context": s.context("bash")}, want: 204} }},
	"list-processes":    {call: does(call{query: fields{"all": "true"}})},
	"start-process": {call: does(call{body: fields{"command": []string{"true"}, "name": "short", "timeout_seconds": 10, "stdin_open": false, "tty": true, "cols": 80, "rows": 25, "env": fields{"A": "b"}, "cwd": "/tmp",
		"user": "sandbox", "max_output_bytes": 1000}, want: 201}), more: []func(*stage) call{
		does(call{body: fields{"command": []string{"/no/such"}}, want: 201}), does(call{body: fields{"command": "true", "name": "1"}, want: 400}), does(call{body: fields{"command": "true", "cwd": "/no/such"}, want: 422})}},
	"get-process-logs": {call: func(s *stage) call {
		return call{vars: fields{"process": s.ended}, query: fields{"offset": "0", "limit": "100", "encoding": "base64"}}
	},
		more: []func(*stage) call{func(s *stage) call {
			return call{vars: fields{"process": s.start("echo héllo; echo err >&2; seq 1 100000; exec sleep 30", fields{"max_output_bytes": 1000})}}
		}}},
	"resize-process": {call: func(s *stage) call {
		return call{vars: fields{"process": s.start("sleep 300", fields{"tty": true})}, body: fields{"cols": 100, "rows": 30}, want: 204}
	}, more: []func(*stage) call{func(s *stage) call {
		return call{vars: fields{"process": s.process}, body: fields{"cols": 100, "rows": 30}, want: 409}
	}}},
	"write-stdin": {call: func(s *stage) call {
		return call{vars: fields{"process": s.start("cat", fields{"stdin_open": true})}, query: fields{"offset": "0", "close": "false"}, body: []byte("hi"), want: 200}
	}, more: []func(*stage) call{func(s *stage) call { return call{vars: fields{"process": s.process}, body: []byte("hi"), want: 409} },
		func(s *stage) call {
			return call{vars: fields{"process": s.start("cat", fields{"stdin_open": true})}, query: fields{"offset": "5"}, body: []byte("hi"), want: 409}
		}}},
	"wait-for-process": {call: func(s *stage) call {
		return call{vars: fields{"process": s.ended}, query: fields{"timeout_seconds": "0.2"}}
	},
		more: []func(*stage) call{func(s *stage) call {
			return call{vars: fields{"process": s.process}, query: fields{"timeout_seconds": "0.1"}}
		}}},
	"get-process": {call: func(s *stage) call { return call{vars: fields{"process": s.process}} }},
	"stream-process": {
		call: func(s *stage) call {
			return call{vars: fields{"process": s.ended}, query: fields{"offset": "0", "encoding": "utf8"}, until: "exit"}
		},
		more: []func(*stage) call{func(s *stage) call { return call{vars: fields{"process": s.process}} }}},
	"signal-process": {call: func(s *stage) call {
		return call{vars: fields{"process": s.process}, body: fields{"signal": "CONT", "tree": true}, want: 204}
	}, more: []func(*stage) call{func(s *stage) call {
		return call{vars: fields{"process": s.process}, body: fields{"signal": "NONE"}, want: 400}
	}}},

	"read-file": {
		call: does(call{query: fields{"path": file, "user": "root"}, want: 200}),
		more: []func(*stage) call{
			does(call{query: fields{"path": file}, header: []string{"Range", "bytes=1-3"}, want: 206}),
			does(call{query: fields{"path": file}, header: []string{"Range", "bytes=100-"}, want: 416}),
			does(call{query: fields{"path": file}, header: []string{"If-None-Match", "*"}, want: 304}),
			does(call{query: fields{"path": file}, header: []string{"If-Match", `"other"`}, want: 412}),
			does(call{query: fields{"path": "/dev/null"}, want: 422}),
			does(call{query: fields{"path": "/root/secret"}, want: 403}),
			does(call{query: fields{"path": "/no/such"}, want: 404}),
		}},
	"head-file": {call: does(call{query: fields{"path": file}, want: 200}), more: []func(*stage) call{
		does(call{query: fields{"path": file}, header: []string{"If-None-Match", "*"}, want: 304}),
		does(call{query: fields{"path": file}, header: []string{"If-Match", `"other"`}, want: 412})}},
	"write-file": {call: func(s *stage) call {
		return call{query: fields{"path": s.path(), "mode": "0640"}, body: []byte("hi"), want: 200}
	},
		more: []func(*stage) call{
			does(call{query: fields{"path": file}, header: []string{"If-None-Match", "*"}, body: []byte("hi"), want: 412}),
			does(call{query: fields{"path": "/workspace"}, body: []byte("hi"), want: 422}),
			does(call{query: fields{"path": "/usr/bin/sh"}, body: []byte("hi"), want: 403}),
		}},
	"delete-file": {spoils: true, call: func(s *stage) call {
		p := s.path()
		s.box.Put(p, []byte("x"))
		return call{query: fields{"path": p, "recursive": "true"}, want: 204}
	}, more: []func(*stage) call{does(call{query: fields{"path": "/workspace/none"}, want: 404})}},
	"list-files":  {call: does(call{query: fields{"path": "/", "depth": "2", "limit": "100"}})},
	"stat-file":   {call: does(call{query: fields{"path": "/bin", "follow": "true"}}), more: []func(*stage) call{does(call{query: fields{"path": "/proc/self/exe"}})}},
	"change-mode": {spoils: true, call: does(call{query: fields{"user": "root"}, body: fields{"path": file, "mode": "0640", "user": "sandbox", "recursive": false}})},
	"compose-file": {spoils: true, call: func(s *stage) call {
		p := s.path()
		s.box.Put(p+".1", []byte("a"))
		return call{body: fields{"sources": []string{p + ".1"}, "path": p, "mode": "0600"}}
	}},
	"search-files": {dear: true, call: does(call{query: fields{"path": "/workspace", "pattern": "*", "contains": "0", "limit": "10"}})},
	"watch-files": {dear: true, call: does(call{query: fields{"path": "/workspace", "recursive": "true"}, until: "ready"}), more: []func(*stage) call{
		does(call{query: fields{"path": "/no/such"}, want: 404})}},
	"make-directory": {dear: true, call: func(s *stage) call {
		return call{body: fields{"path": s.path() + "/a", "mode": "0700", "parents": true, "user": "root"}, want: 201}
	},
		more: []func(*stage) call{does(call{body: fields{"path": "/tmp"}, want: 409})}},
	"move-file": {spoils: true, call: func(s *stage) call {
		p := s.path()
		s.box.Put(p, []byte("x"))
		return call{body: fields{"from": p, "to": p + ".moved", "overwrite": true}, want: 200}
	}, more: []func(*stage) call{does(call{body: fields{"from": file, "to": "/etc/hosts", "user": "root"}, want: 409})}},

	"sign-file": {call: does(call{body: fields{"method": "PUT", "path": "/workspace/signed", "user": "root", "ttl_seconds": 60, "max_bytes": 10}})},

	"expose-port": {call: does(call{body: fields{"port": 3000, "public": false}}), more: []func(*stage) call{does(call{body: fields{"port": 3000, "public": true}, want: 200})}},
	"list-ports":  {call: does(call{})},
	"remove-port": {call: func(s *stage) call {
		s.box.Call("POST", "/ports", fields{"port": 3001})
		return call{vars: fields{"port": "3001"}, want: 204}
	}, more: []func(*stage) call{does(call{vars: fields{"port": "3002"}, want: 404}), does(call{vars: fields{"port": "0"}, want: 400})}},

	"read-archive": {call: func(s *stage) call {
		s.box.Put("/tmp/archive/a", []byte("a"))
		return call{query: fields{"path": "/tmp/archive", "format": "tar", "user": "sandbox"}, want: 200}
	}, more: []func(*stage) call{
		does(call{query: fields{"path": "/workspace"}}), does(call{query: fields{"path": "/workspace", "format": "tar.zst"}}),
		does(call{query: fields{"path": "/dev/null"}, want: 422}), does(call{query: fields{"path": "/no/such"}, want: 404})}},
	"write-archive": {call: func(s *stage) call {
		return call{query: fields{"path": s.path(), "format": "tar"}, body: archive("a/b"), want: 200}
	},
		more: []func(*stage) call{
			func(s *stage) call { return call{query: fields{"path": s.path()}, body: archive("x")} },
			func(s *stage) call { return call{query: fields{"path": s.path()}, body: archive("../x"), want: 422} },
			func(s *stage) call {
				return call{query: fields{"path": s.path()}, body: []byte("no archive"), want: 422}
			}}},

	"create-ticket": {call: does(call{body: fields{"method": "GET", "url": "/v1/info"}})},
	"get-info":      {call: does(call{})},
	"list-runtimes": {call: does(call{})},
	"metrics":       {call: does(call{})},
	"healthz":       {call: does(call{})},
	"readyz":        {call: does(call{})},
	"openapi":       {call: does(call{})},
	"docs":          {call: does(call{})},
}

// archive is a tar file with one file of that name.
func archive(name string) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 2, Typeflag: tar.TypeReg})
	if err == nil {
		_, err = w.Write([]byte("hi"))
	}
	if err := errors.Join(err, w.Close()); err != nil {
		panic(err) // memory takes everything
	}
	return b.Bytes()
}

// upgrade are the headers that open a WebSocket.
var upgrade = []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol", testkit.Subprotocol}

// text is a value of a query or of a path.
func text(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // what a test wrote
	}
	return string(b)
}

// target is the path and query of a call. raw are parts of the path that go in as they are.
func (c call) target(op *operation, box string, raw map[string]string) string {
	path := op.path
	for name, v := range (fields{"id": box}).With(c.vars) {
		part, ok := raw[name]
		if !ok {
			part = url.PathEscape(text(v))
		}
		path = strings.ReplaceAll(strings.ReplaceAll(path, "{"+name+"}", part), "{"+name+"...}", part)
	}
	if len(c.query) == 0 {
		return path
	}
	q := url.Values{}
	for name, v := range c.query {
		q.Set(name, text(v))
	}
	return path + "?" + q.Encode()
}

// request is the call as it is sent with a key.
func (c call) request(op *operation, box, key string) request {
	r := request{method: op.method, target: c.target(op, box, nil), until: c.until}
	r.header = append(r.header, c.header...)
	if c.socket != nil {
		r.header = append(r.header, upgrade...)
	}
	if key != "" {
		r.header = append(r.header, "Authorization", "Bearer "+key)
	}
	switch body := c.body.(type) {
	case nil:
	case []byte:
		r.body = body
		r.header = append(r.header, "Content-Type", "application/octet-stream")
	default:
		r.body = []byte(text(body))
		r.header = append(r.header, "Content-Type", jsonType)
	}
	return r
}
