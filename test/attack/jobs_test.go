package attack

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// Defence: what belongs to another project does not exist, whichever door and whichever id is tried; each thing asks for its scope.
func TestJobsAndSessionsOfAnotherProjectDoNotExist(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	session := inst.Session(t)
	session.Put("secret", []byte("mine"))
	job := inst.Submit(t, "print('mine')\nopen('/output/o', 'w').write('mine')", fields{"session_id": session.ID})
	if now := job.Wait(); !now.Said("mine\n") {
		t.Fatalf("%v", now)
	}
	tenant := inst.NewTenant(t)
	stranger := tenant.Key(t, time.Time{}, "admin")
	ask := func(c *testkit.Client, method, path string, body any) testkit.Response {
		t.Helper()
		headers := []string{}
		if strings.Contains(path, "stream") {
			headers = []string{"Accept", "text/event-stream"}
		}
		resp, err := c.Do(t.Context(), method, path, body, headers...)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(resp.Body), "mine") {
			t.Errorf("%s %s tells the secret: %v", method, path, resp)
		}
		return resp
	}
	s, j := session.ID, job.ID
	for _, c := range [][2]string{
		{"GET", "/v1/jobs/" + j}, {"DELETE", "/v1/jobs/" + j}, {"GET", "/v1/jobs/" + j + "/stream"}, {"GET", "/v1/jobs/" + j + "/outputs?path=/output/o"},
		{"GET", "/job/" + j}, {"DELETE", "/job/" + j}, {"GET", "/job/" + j + "/stream"}, {"GET", "/stream?jobId=" + j},
		{"GET", "/v1/sessions/" + s}, {"DELETE", "/v1/sessions/" + s + "?force=true"}, {"GET", "/v1/sessions/" + s + "/files?path=/"},
		{"GET", "/v1/sessions/" + s + "/files/content?path=secret"}, {"HEAD", "/v1/sessions/" + s + "/files/content?path=secret"}, {"PUT", "/v1/sessions/" + s + "/files/content?path=x"},
		{"DELETE", "/v1/sessions/" + s + "/files/content?path=secret"}, {"GET", "/v1/sessions/" + s + "/archive"}, {"PUT", "/v1/sessions/" + s + "/archive"},
		{"GET", "/session/" + s}, {"GET", "/session/" + s + "/files/content?path=secret"},
	} {
		if resp := ask(stranger, c[0], c[1], []byte("x")); resp.Status != 404 {
			t.Errorf("%s %s: %v", c[0], c[1], resp)
		}
	}
	for path, body := range map[string]fields{
		"/v1/jobs": {"code": "print(open('/session/secret').read())", "session_id": s}, "/execute": {"code": "1", "sessionId": s},
		"/v1/sandboxes": {"image": "host", "session_id": s}, "/v1/jobs?wait_seconds=1": {"code": "1", "session_id": s, "session_shared": true},
	} {
		if resp := ask(stranger, "POST", path, body); resp.Status != 422 || !strings.Contains(resp.Problem().Field, "ession") {
			t.Errorf("POST %s with another's session: %v", path, resp)
		}
	}
	for _, path := range []string{"/v1/jobs", "/v1/jobs?session_id=" + s, "/jobs", "/v1/sessions", "/sessions", "/v1/sandboxes?managed=true&session_id=" + s} {
		if resp := ask(stranger, "GET", path, nil); resp.Status != 200 || strings.Contains(string(resp.Body), j) || strings.Contains(string(resp.Body), s) {
			t.Errorf("GET %s: %v", path, resp)
		}
	}
	// The same project, and a key without the scope.
	owner := inst.DefaultTenant(t)
	for scope, paths := range map[string][]string{
		"files": {"/v1/jobs", "/v1/jobs/" + j, "/v1/sessions/" + s, "/job/" + j},
		"jobs":  {"/v1/sessions/" + s + "/files?path=/", "/v1/sessions/" + s + "/files/content?path=secret", "/v1/sessions/" + s + "/archive", "/v1/sandboxes"},
		"exec":  {"/v1/jobs/" + j, "/v1/sessions", "/v1/sessions/" + s + "/files?path=/"},
	} {
		key := owner.Key(t, time.Time{}, scope)
		for _, path := range paths {
			if resp := ask(key, "GET", path, nil); resp.Status != http.StatusForbidden {
				t.Errorf("GET %s with scope %s alone: %v", path, scope, resp)
			}
		}
	}
	if resp, err := testkit.NewClient(inst.URL, "").Do(t.Context(), "GET", "/v1/jobs/"+j, nil); err != nil || resp.Status != 401 {
		t.Errorf("without a key: %v %v", resp, err)
	}
}

// Defence: the signature covers the job, the file and the time.
func TestASignedURLOfAnOutputIsGoodForItAlone(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	const program = "for name in 'ab': open('/output/' + name, 'wb').write(name.encode() * (2 << 20))"
	one, other := inst.Job(t, program), inst.Job(t, program)
	if len(one.Outputs) != 2 || one.Outputs[0].URL == "" {
		t.Fatalf("%v: %+v", one, one.Outputs)
	}
	link, ok := strings.CutPrefix(one.Outputs[0].URL, inst.URL)
	if !ok || one.Outputs[0].Path != "/output/a" {
		t.Fatalf("%+v", one.Outputs[0].URL)
	}
	stranger := testkit.NewClient(inst.URL, "")
	if resp, err := stranger.Do(t.Context(), "GET", link, nil); err != nil || resp.Status != 200 || len(resp.Body) != 2<<20 || resp.Body[0] != 'a' {
		t.Fatalf("the URL as it was given: %v %v", resp, err)
	}
	for name, c := range map[string][2]string{
		"another output":    {"GET", strings.Replace(link, "%2Fa", "%2Fb", 1)},
		"another job":       {"GET", strings.Replace(link, one.ID, other.ID, 1)},
		"to cancel":         {"DELETE", link},
		"for longer":        {"GET", strings.Replace(link, "expires=", "expires=9", 1)},
		"the job itself":    {"GET", strings.Replace(link, "/outputs?", "?", 1)},
		"its stream":        {"GET", strings.Replace(link, "/outputs?", "/stream?", 1)},
		"a sandbox's file":  {"GET", strings.Replace(link, "/v1/jobs/"+one.ID+"/outputs", "/v1/sandboxes/"+one.SandboxID+"/files", 1)},
		"without signature": {"GET", link[:strings.Index(link, "&signature=")]},
		"with one more":     {"GET", link + "&user=root"},
		"longer":            {"GET", link + "A"},
	} {
		if resp, err := stranger.Do(t.Context(), c[0], c[1], nil); err != nil || resp.Status/100 != 4 || strings.Contains(string(resp.Body), "aaaa") || strings.Contains(string(resp.Body), "bbbb") {
			t.Errorf("%s: %v %v", name, resp, err)
		}
	}
	if strings.Contains(inst.Logs(), "signature=") {
		t.Error("the query of a signed URL was logged")
	}
}

// Defence: the queue takes the next job of the project that has the fewest under way, and a project has a bound of jobs.
func TestAFloodOfJobsLeavesTheOtherProjectItsTurn(t *testing.T) {
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_JOB_CONCURRENCY=2", "CAY_MAX_JOBS_PER_PROJECT=200"}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	flooder := inst.NewTenant(t).Key(t, time.Time{}, "jobs")
	refused := 0
	for n := range 210 {
		resp, err := flooder.Do(ctx, "POST", "/v1/jobs", fields{"code": "import time\nprint('x' * 100000)\ntime.sleep(5)", "timeout_seconds": 5, "priority": 9, "metadata": fields{"n": fmt.Sprint(n)}})
		switch {
		case err != nil:
			t.Fatal(err)
		case resp.Status == http.StatusTooManyRequests && resp.Problem().Reason == "quota_exceeded":
			refused++
		case resp.Status != 202:
			t.Fatalf("job %d: %v", n, resp)
		}
	}
	if refused == 0 {
		t.Error("no job was refused: there is no bound")
	}
	for range 3 {
		begun := time.Now()
		j, err := inst.RunJob(ctx, "print('served')", fields{"priority": 0})
		if err != nil || !j.Said("served\n") {
			t.Fatalf("%v, %v", j, err)
		}
		t.Logf("the other project's job took %v, beside %d of the flood", time.Since(begun).Round(time.Millisecond), 210-refused)
		waiting, err := flooder.ListJobs(ctx, "status=queued")
		if err != nil || len(waiting) < 100 {
			t.Errorf("only %d of the flood's jobs wait still, %v", len(waiting), err)
		}
	}
	active, err := flooder.ListJobs(ctx, "status=active")
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range active {
		if _, err := flooder.CancelJob(ctx, j.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// Defence: output goes to a spool of bounded size on the node's disk and from there, in pieces, to readers and to blob storage.
func TestAGigabyteOfAJobsOutputCostsLittleMemory(t *testing.T) {
	testkit.RequireRoot(t)
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_POOL_SIZE=0"}}) // of its own, to be measured alone
	program := func(mb int) string {
		return fmt.Sprintf("import sys\nblock = b'0123456789abcde\\n' * 65536\nfor _ in range(%d): sys.stdout.buffer.write(block)", mb)
	}
	if j := inst.Job(t, program(20), fields{"timeout_seconds": 600}); j.Status != "success" { // what is allocated once is not growth
		t.Fatalf("%v", j)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for _, role := range []testkit.Role{testkit.RoleServer, testkit.RoleNode} {
		pid, err := inst.PID(role)
		if err != nil {
			t.Fatal(err)
		}
		stop := testkit.WatchRSS(pid)
		defer func() {
			before, peak := stop()
			t.Logf("%s: %d MiB before, at most %d MiB", role, before>>20, peak>>20)
			if peak-before > 128<<20 {
				t.Errorf("%s grew by %d MiB", role, (peak-before)>>20)
			}
		}()
	}
	const megabytes = 1024
	j := inst.Submit(t, program(megabytes), fields{"timeout_seconds": 600})
	idle := j.Attach(ctx, 0) // and never read
	defer idle.Close()
	live, resp, err := inst.OpenEvents(ctx, "GET", j.Path("/stream"), nil)
	if err != nil || live == nil {
		t.Fatalf("%v %v", resp, err)
	}
	defer live.Close()
	for { // read along, keeping nothing
		ev, err := live.Next()
		if err != nil {
			t.Fatalf("the stream of a gigabyte broke: %v", err)
		}
		if ev.Name == "exit" {
			break
		}
	}
	now, err := inst.WaitJob(ctx, j.ID)
	if err != nil || now.Status != "success" || now.StdoutSize != megabytes<<20 || !now.Truncated.Stdout || len(now.Stdout) > 1<<20 {
		t.Errorf("%s, %d bytes, %d in the answer, %v", now.Status, now.StdoutSize, len(now.Stdout), err)
	}
}
