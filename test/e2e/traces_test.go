package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// caller is a client's own span, which a request continues.
type caller struct{ trace, span string }

func newCaller() caller {
	key := strings.TrimPrefix(testkit.NewKey(), "cay_")
	return caller{trace: key[:32], span: key[32:48]}
}

func (c caller) header() []string {
	return []string{"traceparent", "00-" + c.trace + "-" + c.span + "-01"}
}

func TestOneTraceShowsARequestsWayFromTheAPIToTheAgent(t *testing.T) {
	collector := testkit.StartCollector(t)
	const token = "collectors-own-secret-7f3a"
	inst := testkit.StartServer(t, testkit.Options{Env: append(collector.Env(), "OTEL_EXPORTER_OTLP_HEADERS=authorization="+token, "CAY_JOB_CONCURRENCY=1")})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	request := func(who caller, want int, method, path string, body any, into any) {
		t.Helper()
		resp, err := inst.Do(ctx, method, path, body, who.header()...)
		if err == nil {
			err = resp.Decode(want, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	creating := newCaller()
	var sb testkit.SandboxObject
	request(creating, 201, "POST", "/v1/sandboxes", fields{"cpu": 1, "memory_mb": 300}, &sb) // of a shape that nobody has prepared
	collector.Await(t, creating.trace, creating.span, "cay-server/HTTP create-sandbox", "cay-server/sandbox.create", "cay-server/queue.wait")
	way := []string{"cay-server/HTTP create-sandbox", "cay-server/sandbox.create", "cay-server/schedule.create", "cay-server/node.Create", "cay-node/node.Create",
		"cay-node/sandbox.boot"}
	for _, last := range []string{"cay-agent/agent.hello", "cay-agent/agent.claim"} {
		for _, s := range collector.Await(t, creating.trace, creating.span, append(way, last)...) {
			if s.Failed || s.Begin.After(s.End) || s.Attributes["cay.sandbox_id"] == "" && s.Name != "HTTP create-sandbox" {
				t.Errorf("%+v", s)
			}
		}
	}

	execing := newCaller()
	request(execing, 200, "POST", "/v1/sandboxes/"+sb.ID+"/exec", fields{"command": "exit 7"}, &struct{}{})
	way = []string{"cay-server/HTTP exec", "cay-server/node.Process", "cay-node/node.Process"}
	start := collector.Await(t, execing.trace, execing.span, append(way, "cay-agent/agent.start")...)
	process := collector.Await(t, execing.trace, execing.span, append(way, "cay-node/process")...)
	call, agent := start[2], start[3]
	if agent.Begin.Before(call.Begin) || agent.End.After(call.End) {
		t.Errorf("the agent's part %v to %v is not within the call, %v to %v", agent.Begin, agent.End, call.Begin, call.End)
	}
	if p := process[3].Attributes; !strings.Contains(p["cay.exit_code"], "7") || !strings.Contains(p["cay.reason"], "exited") || p["cay.process_id"] == "" {
		t.Errorf("the process's span says %v", p)
	}

	running := newCaller()
	var job testkit.JobObject
	request(running, 202, "POST", "/v1/jobs", fields{"code": "print(1)"}, &job)
	if done, err := inst.WaitJob(ctx, job.ID); err != nil || done.Status != "success" {
		t.Fatal(done, err)
	}
	const submit = "cay-server/HTTP submit-job"
	collector.Await(t, running.trace, running.span, submit, "cay-server/job.queue")
	collector.Await(t, running.trace, running.span, submit, "cay-server/job.run", "cay-server/sandbox.create", "cay-server/schedule.create", "cay-server/node.Create", "cay-node/node.Create")
	collector.Await(t, running.trace, running.span, submit, "cay-server/job.run", "cay-server/node.Process", "cay-node/node.Process", "cay-agent/agent.start")

	// A server that is killed takes no trace of a job with it: the row has it.
	blocker, err := inst.SubmitJob(ctx, "import time; time.sleep(600)")
	if err != nil {
		t.Fatal(err)
	}
	waiting := newCaller()
	request(waiting, 202, "POST", "/v1/jobs", fields{"code": "print(2)"}, &job)
	if err := inst.Kill9(testkit.RoleServer); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "the server is back", func() error { return inst.Ready(ctx) })
	if _, err := inst.CancelJob(ctx, blocker.ID); err != nil {
		t.Fatal(err)
	}
	if done, err := inst.WaitJob(ctx, job.ID); err != nil || done.Status != "success" {
		t.Fatal(done, err)
	}
	testkit.Eventually(t, time.Minute, "the trace goes on after the server was killed", func() error {
		for _, s := range collector.Trace(waiting.trace) {
			if s.Name == "agent.start" {
				return nil
			}
		}
		return fmt.Errorf("it has %v", collector.Trace(waiting.trace))
	})

	looking, asking := newCaller(), newCaller()
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if resp, err := inst.Do(ctx, "GET", path, nil, looking.header()...); err != nil || resp.Status != 200 {
			t.Fatal(path, resp, err)
		}
	}
	request(asking, 200, "GET", "/v1/info", nil, &struct{}{})
	collector.Await(t, asking.trace, asking.span, "cay-server/HTTP get-info") // and with it whatever came before
	for _, s := range collector.Trace(looking.trace) {
		if strings.HasPrefix(s.Name, "HTTP") {
			t.Errorf("looking at the server's health makes the span %s", s.Name)
		}
	}
	if collector.Header().Get("Authorization") != token {
		t.Error("the collector was not told who exports")
	}
	env, err := inst.Exec(ctx, sb.ID, "env; cat /proc/1/environ 2>/dev/null")
	if err != nil || strings.Contains(env.Stdout, token) || strings.Contains(env.Stdout, "OTEL_") {
		t.Errorf("a sandbox sees the collector's variables: %v %v", env, err)
	}
	if logs := inst.Logs(); strings.Contains(logs, token) || !strings.Contains(logs, "traces are exported") {
		t.Errorf("the log does not say where traces go, or says the secret: %s", logs)
	}
}

func TestNoSecretOfAClientOrItsProgramsIsExported(t *testing.T) {
	collector := testkit.StartCollector(t)
	inst := testkit.StartServer(t, testkit.Options{Env: collector.Env()})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	const secret = "vErY-5ecret-c0ffee"
	who := newCaller()
	send := func(method, path string, body any, headers ...string) testkit.Response {
		t.Helper()
		headers = append(headers, "traceparent", "00-"+who.trace+"-"+who.span+"-01", "tracestate", "vendor="+secret, "baggage", "a="+secret, "X-Request-Id", secret)
		resp, err := inst.Do(ctx, method, path, body, headers...)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	var sb testkit.SandboxObject
	resp := send("POST", "/v1/sandboxes", fields{"metadata": fields{"k": secret}, "env": fields{"S": secret}}, "Idempotency-Key", secret)
	if err := resp.Decode(201, &sb); err != nil {
		t.Fatal(err)
	}
	box := "/v1/sandboxes/" + sb.ID
	for _, resp := range []testkit.Response{
		send("POST", box+"/exec", fields{"command": "cat; echo " + secret + " >&2; exit 3", "env": fields{"A": secret}, "stdin": secret}),
		send("POST", box+"/exec", fields{"command": []string{"/no/" + secret}}),
		send("POST", box+"/code", fields{"code": "raise Exception('" + secret + "')"}),
		send("POST", box+"/processes", fields{"command": "sleep 1000; " + secret, "name": secret}),
		send("GET", box+"/processes/"+secret, nil),
		send("POST", box+"/processes/"+secret+"/signal", fields{"signal": "KILL"}),
		send("PUT", box+"/files?path=/workspace/"+secret, []byte(secret)),
		send("GET", box+"/files?path=/workspace/"+secret, nil),
		send("GET", box+"/files?path=/nope/"+secret, nil),
		send("GET", "/v1/sandboxes?metadata.k="+secret+"&nope="+secret, nil),
		send("GET", "/v1/sandboxes/"+secret, nil),
		send("GET", "/"+secret, nil),
		send("GET", "/v1/sandboxes", nil, "Authorization", "Bearer "+secret),
		send("POST", "/v1/sessions", fields{"name": secret}, "Idempotency-Key", secret+"2"),
	} {
		if resp.Status == 500 {
			t.Error(resp)
		}
	}
	if job, err := inst.RunJob(ctx, "import sys; sys.exit('"+secret+"')", fields{"stdin": secret, "metadata": fields{"k": secret}}); err != nil || job.Status != "failed" {
		t.Fatal(job, err)
	}
	last := newCaller()
	if _, err := inst.Do(ctx, "GET", "/v1/info", nil, last.header()...); err != nil {
		t.Fatal(err)
	}
	collector.Await(t, last.trace, last.span, "cay-server/HTTP get-info") // what was made before has come as well: of the server
	collector.Await(t, who.trace, who.span, "cay-server/HTTP signal-process", "cay-server/node.Signal", "cay-node/node.Signal")
	testkit.Eventually(t, time.Minute, "the exec's end", func() error {
		for _, s := range collector.Trace(who.trace) {
			if s.Name == "process" && strings.Contains(s.Attributes["cay.exit_code"], "3") {
				return nil
			}
		}
		return fmt.Errorf("not there")
	})
	metrics, err := inst.Do(ctx, "GET", "/metrics", nil)
	if err != nil || metrics.Status != 200 {
		t.Fatal(metrics, err)
	}
	for _, form := range []string{secret, url.QueryEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret))} {
		for what, sent := range map[string][]byte{"an export": collector.Bytes(), "GET /metrics": metrics.Body} {
			if i := bytes.Index(sent, []byte(form)); i >= 0 {
				t.Errorf("%s holds what a client sent: %q", what, sent[max(0, i-100):min(len(sent), i+100)])
			}
		}
	}
	// The search finds what is there.
	if !bytes.Contains(collector.Bytes(), []byte(sb.ID)) {
		t.Error("the search would find nothing")
	}
}

func TestACollectorThatHangsHoldsUpNothing(t *testing.T) {
	held := make(chan struct{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hung := make(chan struct{}, 1000)
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case hung <- struct{}{}:
		default:
		}
		<-held
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { close(held); server.Close(); <-served })
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + l.Addr().String(), "OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_BSP_MAX_QUEUE_SIZE=16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=16"}})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	sb, err := inst.CreateSandbox(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 30 {
		if out, err := inst.Exec(ctx, sb.ID, "echo hi"); err != nil || out.Stdout != "hi\n" {
			t.Fatal(out, err)
		}
	}
	select {
	case <-hung:
	case <-time.After(time.Minute):
		t.Fatal("nothing was exported, so that nothing could hang")
	}
	if err := inst.DeleteAll(ctx); err != nil {
		t.Fatal(err)
	}
	if err := inst.Stop(); err != nil { // TERM, and killed processes would be named in the log
		t.Error(err)
	}
	if logs := inst.Logs(); strings.Contains(logs, "was killed") || !strings.Contains(logs, "the last spans were not exported") {
		t.Errorf("the end was not bounded by itself:\n%s", logs)
	}
}

func TestTheCollectorOfTheHowToIsTheOneInDeploy(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs/how-to/traces.md"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(root, "deploy/otel-collector/config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(doc, config) {
		t.Error("docs/how-to/traces.md shows another configuration than deploy/otel-collector/config.yaml")
	}
}
