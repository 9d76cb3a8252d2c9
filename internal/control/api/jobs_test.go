package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// job submits one and answers its id.
func (r *rig) job() cay.ID {
	r.Helper()
	return cay.ID(r.status(r.do("POST", "/v1/jobs", `{"code":"print(6*7)"}`), 202).member(r.T, "id").(string))
}

func TestAJobIsSubmittedAndAnsweredBeforeItRuns(t *testing.T) {
	r := newRig(t)
	session := r.session()
	a := r.status(r.do("POST", "/v1/jobs", `{"code":"print(6*7)","language":"python","stdin":"x","env":{"A_B":"c"},"metadata":{"k":"v"},"session_id":"`+session+`","session_shared":true,
		"timeout_seconds":1.5,"queue_timeout_seconds":10,"priority":0,"cpu":0.5,"memory_mb":64,"disk_gb":0.5,"pids":10,"packages":[],"network":[]}`), 202)
	if a.member(t, "status") != "queued" || a.Header.Get("Location") != "/v1/jobs/"+a.member(t, "id").(string) {
		t.Errorf("got %s, %s", a.Header.Get("Location"), a.body)
	}
	q := r.jobs.asked
	if string(q.Code) != "print(6*7)" || string(q.Stdin) != "x" || q.Env["A_B"] != "c" || q.Metadata["k"] != "v" || string(q.SessionID) != session || !q.SessionShared ||
		*q.Timeout != 1500*time.Millisecond || *q.QueueTimeout != 10*time.Second || *q.Priority != 0 || *q.CPU != 0.5 || *q.MemoryMB != 64 || *q.DiskGB != 0.5 || *q.Pids != 10 {
		t.Errorf("the queue was asked for %+v", q)
	}
	r.status(r.do("POST", "/v1/jobs", `{"code":"x","stdin_base64":"/w==","timeout_seconds":86400,"session_id":null}`), 422) // longer than here
	r.status(r.do("POST", "/v1/jobs", `{"code":"x","stdin_base64":"/w=="}`), 202)
	if q := r.jobs.asked; string(q.Stdin) != "\xff" || q.Timeout != nil || q.Priority != nil {
		t.Errorf("the queue was asked for %+v", q)
	}
}

func TestASubmissionIsChecked(t *testing.T) {
	r := newRig(t)
	for body, want := range map[string]struct {
		reason cay.ErrorReason
		field  string
	}{
		`{}`:                                                     {cay.InvalidRequest, "code"},
		`{"code":null}`:                                          {cay.InvalidRequest, "code"},
		`{"code":"x","nope":1}`:                                  {cay.InvalidRequest, "nope"},
		`{"code":"x","sessionId":"x"}`:                           {cay.InvalidRequest, "sessionId"},
		`{"code":"x","timeout_seconds":null}`:                    {cay.InvalidRequest, "timeout_seconds"},
		`{"code":"x","timeout_seconds":0}`:                       {cay.InvalidRequest, "timeout_seconds"},
		`{"code":"x","timeout_seconds":86401}`:                   {cay.InvalidRequest, "timeout_seconds"},
		`{"code":"x","queue_timeout_seconds":-1}`:                {cay.InvalidRequest, "queue_timeout_seconds"},
		`{"code":"x","priority":10}`:                             {cay.InvalidRequest, "priority"},
		`{"code":"x","priority":1.5}`:                            {cay.InvalidRequest, "priority"},
		`{"code":"x","packages":["numpy"]}`:                      {cay.NotImplemented, "packages"},
		`{"code":"x","network":["a:1"]}`:                         {cay.NotImplemented, "network"},
		`{"code":"x","stdin":"a","stdin_base64":""}`:             {cay.InvalidRequest, "stdin_base64"},
		`{"code":"x","env":{"A=":"b"}}`:                          {cay.InvalidRequest, "env.A="},
		`{"code":"x","cpu":0}`:                                   {cay.InvalidRequest, "cpu"},
		`{"code":"x","language":"cobol"}`:                        {cay.Unprocessable, "language"},
		`{"code":"x","session_id":"mine"}`:                       {cay.Unprocessable, "session_id"},
		`{"code":"x","metadata":{"":"v"}}`:                       {cay.InvalidRequest, "metadata."},
		`{"code":"x","metadata":{"a":"1"},"metadata":{"b":"2"}}`: {cay.InvalidRequest, "metadata"},
	} {
		if a := r.refused(r.do("POST", "/v1/jobs", body), want.reason); a.member(t, "field") != want.field {
			t.Errorf("%s: the field is %v, want %s: %s", body, a.member(t, "field"), want.field, a.body)
		}
	}
}

func TestASubmissionWithAKeyIsTheSameJobAsItIsNow(t *testing.T) {
	r := newRig(t)
	key := header("Idempotency-Key", "k")
	body := `{"code":"x"}`
	first := r.status(r.do("POST", "/v1/jobs", body, key), 202)
	id := cay.ID(first.member(t, "id").(string))
	r.jobs.runs(id)
	r.jobs.finishes(id, 0)
	again := r.status(r.do("POST", "/v1/jobs", body, key), 202)
	if again.member(t, "id") != string(id) || again.member(t, "status") != "success" || again.Header.Get("Location") != first.Header.Get("Location") {
		t.Errorf("got %s", again.body)
	}
	r.status(r.do("POST", "/v1/jobs?wait_seconds=1", body, key), 200)
	r.refused(r.do("POST", "/v1/jobs", `{"code":"y"}`, key), cay.IdempotencyMismatch)
	if door := r.status(r.do("POST", "/execute", body, key), 202); door.member(t, "jobId") == string(id) {
		t.Error("another route answers with the same job")
	}
	if len(r.jobs.rows) != 2 {
		t.Errorf("there are %d jobs", len(r.jobs.rows))
	}
}

func TestASubmissionWaitsWhenItIsAskedTo(t *testing.T) {
	r := newRig(t)
	answers := make(chan answer, 1)
	go func() { answers <- r.do("POST", "/v1/jobs?wait_seconds=60", `{"code":"x"}`) }()
	var id cay.ID
	r.eventually(func() bool {
		r.jobs.mu.Lock()
		defer r.jobs.mu.Unlock()
		for id = range r.jobs.rows {
		}
		return id != ""
	})
	r.jobs.runs(id)
	r.jobs.finishes(id, 3)
	if a := r.status(<-answers, 200); a.member(t, "status") != "failed" || a.member(t, "exit_code") != 3.0 {
		t.Errorf("got %s", a.body)
	}
	r.status(r.do("POST", "/v1/jobs?wait_seconds=0.01", `{"code":"x"}`), 202)
	r.refused(r.do("POST", "/v1/jobs?wait_seconds=301", `{"code":"x"}`), cay.InvalidRequest)
}

// eventually waits until something holds.
func (r *rig) eventually(ok func() bool) {
	r.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			r.Fatal("it did not come about within a minute")
		}
	}
}

func TestAJobTellsWhatItsProgramLeftBehind(t *testing.T) {
	r := newRig(t)
	id := r.job()
	path := "/v1/jobs/" + string(id)
	if a := r.status(r.do("GET", path, ""), 200); a.member(t, "started_at") != nil || a.member(t, "duration_ms") != nil || a.member(t, "stdout") != "" || a.member(t, "sandbox_id") != nil {
		t.Errorf("queued: %s", a.body)
	}
	r.jobs.runs(id)
	r.jobs.results[id] = cay.JobResult{Stdout: []byte("so far \xe2\x82"), StdoutSize: 10}
	if a := r.status(r.do("GET", path, ""), 200); a.member(t, "status") != "running" || a.member(t, "stdout") != "so far " || a.member(t, "exit_code") != nil {
		t.Errorf("running: %s", a.body)
	}
	r.jobs.results[id] = cay.JobResult{
		Stdout: []byte("head\xe2\x82\xactail"), StdoutSize: 1000, StdoutGap: &cay.Gap{Offset: 6, Bytes: 989}, Stderr: []byte("whole"), StderrSize: 5,
		FilesChanged: []cay.FileChange{{Path: "/session/a\xff", Size: 1, Op: "create"}}, Outputs: []cay.JobOutput{{Path: "/output/a.txt", MIME: "text/plain", Size: 2}},
	}
	r.jobs.files["/output/a.txt"] = []byte("hi")
	r.jobs.ends(id, "exit", func(j *cay.Job) {
		code := 0
		j.Status, j.ExitCode, j.Duration, j.Usage = cay.JobSuccess, &code, 1500*time.Millisecond, cay.Usage{CPUSeconds: 1.25, PeakMemoryMB: 7}
	})
	a := r.status(r.do("GET", path, ""), 200)
	var got struct {
		Status, Stdout, Stderr string
		ExitCode               *int  `json:"exit_code"`
		DurationMS             int64 `json:"duration_ms"`
		Gap                    *cay.Gap
		StdoutGap              *cay.Gap `json:"stdout_gap"`
		StderrGap              *cay.Gap `json:"stderr_gap"`
		StdoutSize             int64    `json:"stdout_size"`
		Lossy, Truncated       map[string]bool
		FilesChanged           []map[string]any `json:"files_changed"`
		Outputs                []map[string]any
		Metrics                map[string]any
		Error                  any
		Metadata               map[string]string
	}
	if err := json.Unmarshal(a.body, &got); err != nil {
		t.Fatal(err)
	}
	if got.Status != "success" || *got.ExitCode != 0 || got.DurationMS != 1500 || got.Error != nil || got.Metadata == nil || got.StdoutSize != 1000 {
		t.Errorf("got %s", a.body)
	}
	if got.Stdout != "head\ufffd\ufffdtail" || !got.Lossy["stdout"] || !got.Truncated["stdout"] || got.StdoutGap.Bytes != 989 {
		t.Errorf("what a gap cuts is no character: %s", a.body)
	}
	if got.Stderr != "whole" || got.Lossy["stderr"] || got.Truncated["stderr"] || got.StderrGap != nil {
		t.Errorf("got %s", a.body)
	}
	if f := got.FilesChanged[0]; f["path"] != "/session/a\ufffd" || f["path_percent"] != "%2Fsession%2Fa%FF" || f["op"] != "create" {
		t.Errorf("got %v", f)
	}
	if o := got.Outputs[0]; o["data_base64"] != base64.StdEncoding.EncodeToString([]byte("hi")) || o["mime"] != "text/plain" || o["url"] != nil {
		t.Errorf("got %v", o)
	}
	if m := got.Metrics; m["cpu_ms"] != 1250.0 || m["peak_memory_mb"] != 7.0 || m["queue_ms"] != 1000.0 {
		t.Errorf("got %v", m)
	}
}

func TestAJobWhoseOutputIsOutOfReachHasItsStatus(t *testing.T) {
	r := newRig(t)
	id := r.job()
	r.jobs.runs(id)
	r.jobs.fault = cay.Errorf(cay.Unavailable, "the worker does not answer")
	if a := r.status(r.do("GET", "/v1/jobs/"+string(id), ""), 200); a.member(t, "status") != "running" {
		t.Errorf("got %s", a.body)
	}
	r.jobs.finishes(id, 0)
	r.refused(r.do("GET", "/v1/jobs/"+string(id), ""), cay.Unavailable)
}

func TestWhatThePlatformDidToAJobIsTold(t *testing.T) {
	r := newRig(t)
	id := r.job()
	r.jobs.ends(id, "error", func(j *cay.Job) {
		j.Status, j.Fault = cay.JobError, &cay.JobFault{Reason: "no_capacity", Detail: "there was no room"}
	})
	a := r.status(r.do("GET", "/v1/jobs/"+string(id), ""), 200)
	if e, _ := a.member(t, "error").(map[string]any); e["reason"] != "no_capacity" || e["detail"] != "there was no room" {
		t.Errorf("got %s", a.body)
	}
}

func TestAListLeavesOutWhatProgramsLeftBehind(t *testing.T) {
	r := newRig(t)
	r.job()
	r.job()
	a := r.status(r.do("GET", "/v1/jobs?limit=1&order=asc&status=active,failed&metadata.agent=planner&created_after=2026-01-02T03:04:05Z&cursor=abc&session_id=ses_"+strings.Repeat("0", 26), ""), 200)
	items, _ := a.member(t, "items").([]any)
	if len(items) != 1 || a.member(t, "next_cursor") != "next" {
		t.Fatalf("got %s", a.body)
	}
	item := items[0].(map[string]any)
	for _, absent := range []string{"stdout", "stderr", "stdout_size", "stdout_gap", "files_changed", "outputs"} {
		if _, there := item[absent]; there {
			t.Errorf("%s is there", absent)
		}
	}
	for _, there := range []string{"id", "status", "language", "exit_code", "metrics", "error", "session_id", "attempt", "timeout_seconds", "metadata"} {
		if _, ok := item[there]; !ok {
			t.Errorf("%s is not there", there)
		}
	}
	q := r.jobs.query
	if q.Limit != 1 || !q.Ascending || fmt.Sprint(q.Statuses) != "[queued running failed]" || q.Metadata["agent"] != "planner" || q.CreatedAfter.Year() != 2026 || q.Cursor != "abc" || q.SessionID == "" {
		t.Errorf("got %+v", q)
	}
	for query, field := range map[string]string{"status=over": "status", "session_id=x": "session_id", "limit=0": "limit", "sessionId=x": "sessionId", "created_after=x": "created_after"} {
		if a := r.refused(r.do("GET", "/v1/jobs?"+query, ""), cay.InvalidRequest); a.member(t, "field") != field {
			t.Errorf("%s: the field is %v", query, a.member(t, "field"))
		}
	}
}

func TestACancelAnswersWhenTheJobHasEnded(t *testing.T) {
	r := newRig(t)
	queued, running, done, stuck := r.job(), r.job(), r.job(), r.job()
	r.jobs.runs(running)
	r.jobs.runs(done)
	r.jobs.finishes(done, 0)
	for id, want := range map[cay.ID]string{queued: "canceled", running: "canceled", done: "success"} {
		for range 2 {
			if a := r.status(r.do("DELETE", "/v1/jobs/"+string(id), ""), 200); a.member(t, "status") != want {
				t.Errorf("got %s, want %s", a.body, want)
			}
		}
	}
	r.jobs.runs(stuck)
	r.jobs.stuck = true
	if a := r.status(r.do("DELETE", "/v1/jobs/"+string(stuck), ""), 202); a.member(t, "status") != "running" {
		t.Errorf("got %s", a.body)
	}
}

func TestJobsOfOthersDoNotExist(t *testing.T) {
	r := newRig(t)
	path := "/v1/jobs/" + string(r.job())
	other := header("Authorization", "Bearer "+otherKey)
	for _, target := range []string{path, path + "/stream", path + "/outputs?path=/output/a", "/v1/jobs/job_x", "/v1/jobs/" + strings.Replace(path[len("/v1/jobs/"):], "job_", "sbx_", 1)} {
		r.refused(r.do("GET", target, "", other), cay.NotFound)
	}
	r.refused(r.do("DELETE", path, "", other), cay.NotFound)
	for _, target := range []string{path, path + "/stream", "/v1/jobs", "/v1/sessions", "/jobs", "/stream?jobId=x"} {
		r.refused(r.do("GET", target, "", header("Authorization", "Bearer "+readKey)), cay.Forbidden)
	}
}

func TestAnOutputThatIsTooLongForTheAnswerHasAURL(t *testing.T) {
	r := newRig(t)
	id := r.job()
	r.jobs.runs(id)
	large, small := strings.Repeat("x", maxJobInline), "hi"
	r.jobs.files["/output/small é&=#"], r.jobs.files["/output/large"] = []byte(small), []byte(large)
	r.jobs.results[id] = cay.JobResult{Outputs: []cay.JobOutput{{Path: "/output/small é&=#", MIME: "a/b", Size: 2}, {Path: "/output/large", MIME: "a/b", Size: maxJobInline}}}
	r.jobs.finishes(id, 0)
	a := r.status(r.do("GET", "/v1/jobs/"+string(id), ""), 200)
	outputs := a.member(t, "outputs").([]any)
	if o := outputs[0].(map[string]any); o["data_base64"] != "aGk=" || o["url"] != nil {
		t.Errorf("got %v", o)
	}
	o := outputs[1].(map[string]any)
	link, _ := strings.CutPrefix(o["url"].(string), r.srv.URL)
	if o["data_base64"] != nil || !strings.HasPrefix(link, "/v1/jobs/"+string(id)+"/outputs?path=%2Foutput%2Flarge&") {
		t.Fatalf("got %v", o)
	}
	got := r.status(r.do("GET", link, "", noKey), 200)
	if string(got.body) != large || got.Header.Get("Content-Disposition") != "attachment; filename=large" || got.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("got %d bytes, %v", len(got.body), got.Header)
	}
	if head := r.status(r.do("HEAD", link, "", noKey), 200); head.ContentLength != maxJobInline {
		t.Errorf("HEAD says %d", head.ContentLength)
	}
	other := r.job()
	for name, changed := range map[string]string{
		"another path":      strings.Replace(link, "large", "small", 1),
		"another job":       strings.Replace(link, string(id), string(other), 1),
		"a longer life":     strings.Replace(link, "expires=", "expires=9", 1),
		"the job itself":    strings.Replace(link, "/outputs?", "?", 1),
		"its stream":        strings.Replace(link, "/outputs?", "/stream?", 1),
		"a user":            link + "&user=root",
		"a bound":           link + "&max_bytes=5",
		"a sandbox's file":  strings.Replace(strings.Replace(link, "/v1/jobs/job_", "/v1/sandboxes/sbx_", 1), "/outputs?", "/files?", 1),
		"of the simple one": strings.Replace(link, "/v1/jobs/", "/job/", 1),
	} {
		if a := r.do("GET", changed, "", noKey); a.StatusCode != http.StatusUnauthorized && a.StatusCode != http.StatusNotFound {
			t.Errorf("%s: got %d", name, a.StatusCode)
		}
	}
	r.refused(r.do("GET", "/v1/jobs/"+string(id)+"/outputs?path=/output/none", ""), cay.NotFound)
	r.refused(r.do("GET", "/v1/jobs/"+string(id)+"/outputs?path=output/large", ""), cay.InvalidRequest)
	r.refused(r.do("GET", "/v1/jobs/"+string(id)+"/outputs", ""), cay.InvalidRequest)
}

func TestASignedURLOfASandboxIsNoneOfAJob(t *testing.T) {
	r := newRig(t)
	job := r.job()
	body := strings.TrimPrefix(string(job), cay.PrefixJob)
	sb := cay.ID(cay.PrefixSandbox + body)
	r.boxes.mu.Lock()
	r.boxes.rows[sb] = &cay.Sandbox{ID: sb, ProjectID: projectA, Status: cay.Ready}
	r.boxes.mu.Unlock()
	r.node.files["/output/a"], r.jobs.files["/output/a"] = []byte("sandbox"), []byte("job")
	get := r.sign("/v1/sandboxes/"+string(sb), `{"method":"GET","path":"/output/a"}`)
	if a := r.status(r.do("GET", get, "", noKey), 200); string(a.body) != "sandbox" {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("GET", strings.Replace(strings.Replace(get, "/v1/sandboxes/sbx_", "/v1/jobs/job_", 1), "/files?", "/outputs?", 1), "", noKey), cay.Unauthorized)
}

func TestAServerWithoutJobsSaysSo(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Jobs, c.Sessions = nil, nil })
	for _, target := range []string{"/v1/jobs", "/v1/sessions", "/jobs", "/sessions", "/stream?jobId=x", "/v1/jobs/job_x/stream", "/v1/sessions/x/files"} {
		r.refused(r.do("GET", target, ""), cay.NotImplemented)
	}
	r.refused(r.do("GET", "/v1/jobs", "", noKey), cay.Unauthorized)
	id := "ses_" + strings.Repeat("0", 26)
	if a := r.refused(r.do("POST", "/v1/sandboxes", `{"session_id":"`+id+`"}`), cay.NotImplemented); a.member(t, "field") != "session_id" {
		t.Errorf("got %s", a.body)
	}
}

func TestTheServerNamesWhatItHas(t *testing.T) {
	r := newRig(t)
	has := func() string { return fmt.Sprint(r.status(r.do("GET", "/v1/info", ""), 200).member(t, "features")) }
	if got := has(); !strings.Contains(got, "jobs") || !strings.Contains(got, "sessions") {
		t.Errorf("got %s", got)
	}
	r.sess.none = true
	if got := has(); !strings.Contains(got, "jobs") || strings.Contains(got, "sessions") {
		t.Errorf("without a worker that mounts: %s", got)
	}
}
