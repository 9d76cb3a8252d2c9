package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// The two lines that the first page of the documentation has, as a shell runs them.
func TestTheTwoLinesOfAFirstJobWork(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	curl := func(args ...string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "curl", append([]string{"-sS", "-H", "Authorization: Bearer " + inst.Key}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("curl %v: %v", args, err)
		}
		return out
	}
	if _, err := exec.LookPath("curl"); err != nil {
		testkit.Missing(t, "curl")
	}
	var first struct{ JobID, Status string }
	submitted := curl("-X", "POST", inst.URL+"/execute", "-H", "Content-Type: application/json", "-d", `{"language": "python", "code": "print(\"hello from sandbox\")"}`)
	if err := json.Unmarshal(submitted, &first); err != nil || !strings.HasPrefix(first.JobID, "job_") || first.Status != "queued" {
		t.Fatalf("POST /execute: %s, %v", submitted, err)
	}
	var job map[string]any
	testkit.Eventually(t, 2*time.Minute, "the job has ended", func() error {
		job = nil
		text := curl(inst.URL + "/job/" + first.JobID)
		if err := json.Unmarshal(text, &job); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		if status := job["status"]; status == "queued" || status == "running" {
			return fmt.Errorf("it is %v", status)
		}
		return nil
	})
	if job["status"] != "success" || job["stdout"] != "hello from sandbox\n" || job["stderr"] != "" || job["exitCode"] != 0.0 || job["jobId"] != first.JobID || job["language"] != "python" {
		t.Errorf("GET /job: %v", job)
	}
	for _, member := range []string{"signal", "timedOut", "durationMs", "queuedAt", "startedAt", "finishedAt", "filesChanged", "outputs", "installLog", "metrics", "error"} {
		if _, there := job[member]; !there {
			t.Errorf("GET /job has no %s", member)
		}
	}
	if metrics, _ := job["metrics"].(map[string]any); metrics["cpuMs"] == nil || metrics["peakMemoryMb"] == nil {
		t.Errorf("metrics: %v", job["metrics"])
	}
}

func TestEveryLanguageThatTheHostHasRunsAsAJob(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	probe := box(t)
	for language, c := range map[string]struct{ program, code string }{
		"python":     {"python3", `print("hi")`},
		"javascript": {"node", `console.log("hi")`},
		"typescript": {"", "const s: string = \"hi\"\nconsole.log(s)"}, // as the version of node has it
		"bash":       {"bash", `[[ -n $BASH_VERSION ]] && echo hi`},
		"sh":         {"sh", `echo hi`},
		"php":        {"php", `<?php echo "hi\n";`},
		"ruby":       {"ruby", `puts "hi"`},
		"go":         {"", "package main\nfunc main() { println(\"hi\") }"}, // no prerequisite of the tests
	} {
		t.Run(language, func(t *testing.T) {
			if c.program != "" {
				probe.In(t).RequireProgram(c.program)
			} else if resp := probe.In(t).Call("POST", "/code", fields{"language": language, "code": ""}); resp.Status == 422 {
				return // the machine has none
			}
			if j := inst.Job(t, c.code, fields{"language": language, "timeout_seconds": 170}); j.Status != "success" || j.Stdout+j.Stderr != "hi\n" || j.Language != language {
				t.Errorf("%v", j)
			}
		})
	}
}

func TestTheOrderOfAPythonJobsOutputIsTheOrderOfEvents(t *testing.T) {
	t.Parallel()
	const n = 50
	// What is in both pipes at once has no order between them: each line waits until the one before has been read.
	j := testkit.Server(t).Submit(t, fmt.Sprintf(`
import array, fcntl, sys, termios, time
def read(f):
    left = array.array('i', [1])
    while left[0]:
        fcntl.ioctl(f.fileno(), termios.FIONREAD, left)
    time.sleep(.01)
for i in range(%d):
    print('out', i); read(sys.stdout)
    print('err', i, file=sys.stderr); read(sys.stderr)
`, n))
	var order, stdout, stderr strings.Builder
	for i := range n {
		fmt.Fprintf(&stdout, "out %d\n", i)
		fmt.Fprintf(&stderr, "err %d\n", i)
		fmt.Fprintf(&order, "out %d\nerr %d\n", i, i)
	}
	if tr := j.Stream(); string(tr.Both) != order.String() {
		t.Errorf("streamed %q", tr.Both)
	}
	if now := j.Wait(); !now.Said(stdout.String()) || now.Stderr != stderr.String() {
		t.Errorf("%v", now)
	}
}

func TestAPythonJobsOutputComesWhileItRuns(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	s := inst.Session(t)
	j := inst.Submit(t, "import os, time\nprint('begun')\nwhile not os.path.exists('/session/go'): time.sleep(.05)\nprint('done')", fields{"session_id": s.ID, "timeout_seconds": 170})
	j.Until("what it has printed is told while it runs", func(now testkit.JobObject) bool { return now.Status == "running" && now.Stdout == "begun\n" })
	s.Put("go", nil)
	if now := j.Wait(); !now.Said("begun\ndone\n") {
		t.Errorf("%v", now)
	}
}

func TestTheCodeOfAJobLiesReadOnlyUnderSandbox(t *testing.T) {
	t.Parallel()
	code := `
import errno, os, stat, sys
me = os.path.realpath(__file__)
assert me.startswith('/sandbox/'), me
assert os.getuid() != 0
found = os.listdir('/sandbox')
assert found == [os.path.basename(me)], found
def refused(what, f):
    try: f()
    except OSError as e:
        assert e.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EBUSY), (what, e)
    else: print('not refused:', what)
refused('write', lambda: open(me, 'a'))
refused('truncate', lambda: os.truncate(me, 0))
refused('create', lambda: open('/sandbox/new', 'w'))
refused('mkdir', lambda: os.mkdir('/sandbox/new'))
refused('chmod', lambda: os.chmod(me, 0o777))
refused('chmod dir', lambda: os.chmod('/sandbox', 0o777))
refused('chown', lambda: os.chown(me, os.getuid(), os.getgid()) if os.stat(me).st_uid != os.getuid() else os.chmod(me, 0o777))
refused('rename', lambda: os.rename(me, '/sandbox/other'))
refused('rename out', lambda: os.rename(me, '/workspace/other'))
refused('rename over', lambda: (open('/workspace/evil', 'w').close(), os.rename('/workspace/evil', me)))
refused('unlink', lambda: os.unlink(me))
refused('symlink', lambda: os.symlink('/etc/passwd', '/sandbox/l'))
refused('replace dir', lambda: os.rename('/sandbox', '/old'))
refused('rmdir', lambda: os.rmdir('/sandbox'))
refused('utime', lambda: os.utime(me, (0, 0)))
refused('setxattr', lambda: os.setxattr(me, 'user.x', b'y'))
print('kept')
`
	j := testkit.Server(t).Job(t, code)
	if !j.Said("kept\n") {
		t.Errorf("%v", j)
	}
}

func TestAJobGetsItsEnvironmentAndInput(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	if j := inst.Job(t, "import os, sys\nprint(os.environ['A'], os.environ['B'], sys.stdin.read())\nprint(os.getcwd())", fields{"env": fields{"A": "b=c", "B": "ü\n"}, "stdin": "line\nno end"}); !j.Said("b=c ü\n line\nno end\n/workspace\n") {
		t.Errorf("%v", j)
	}
	if j := inst.Job(t, "import sys\nprint(repr(sys.stdin.buffer.read()))", fields{"stdin_base64": []byte("\xff\x00\r\n")}); !j.Said("b'\\xff\\x00\\r\\n'\n") {
		t.Errorf("binary input: %v", j)
	}
	if j := inst.Job(t, "import sys\nprint(repr(sys.stdin.read()))"); !j.Said("''\n") {
		t.Errorf("without input: %v", j)
	}
	// A long program and a long input are as good as short ones.
	if j := inst.Job(t, "import sys\ns = '"+strings.Repeat("x", 3<<20)+"'\nprint(len(s), len(sys.stdin.read()))", fields{"stdin": strings.Repeat("y", 4<<20)}); !j.Said(fmt.Sprintln(3<<20, 4<<20)) {
		t.Errorf("%v", j)
	}
}

func TestAJobTellsWhatItLeftBehind(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	j := inst.Job(t, "open('note', 'w').write('hi')\nopen('/output/t.csv', 'w').write('a,b\\n')\nopen('/output/big.bin', 'wb').write(b'z' * (3 << 20))")
	if j.Status != "success" || len(j.FilesChanged) != 3 || len(j.Outputs) != 2 {
		t.Fatalf("%v: changed %+v, %d outputs", j, j.FilesChanged, len(j.Outputs))
	}
	for _, o := range j.Outputs {
		switch o.Path {
		case "/output/t.csv":
			if o.MIME != "text/csv" || o.Data == nil || string(*o.Data) != "a,b\n" || o.URL != "" {
				t.Errorf("a small output: %+v", o)
			}
		case "/output/big.bin":
			if o.Data != nil || o.Size != 3<<20 || o.URL == "" {
				t.Fatalf("a large output: %d bytes, URL %q", o.Size, o.URL)
			}
			want := bytes.Repeat([]byte("z"), 3<<20)
			stranger := testkit.NewClient("", "")
			if resp, err := stranger.Do(t.Context(), "GET", o.URL, nil); err != nil || resp.Status != 200 || !bytes.Equal(resp.Body, want) || !strings.HasPrefix(resp.Header.Get("Content-Disposition"), "attachment") || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("a large output by its URL: %v, %v", resp, err)
			}
			if resp, err := inst.Do(t.Context(), "GET", "/v1/jobs/"+j.ID+"/outputs?path=/output/big.bin", nil); err != nil || resp.Status != 200 || !bytes.Equal(resp.Body, want) {
				t.Errorf("a large output by the key: %v, %v", resp, err)
			}
		default:
			t.Errorf("an output that nobody wrote: %+v", o)
		}
	}
	for _, path := range []string{"/output/none", "/output", "/etc/passwd", "/output/../etc/passwd", "relative"} {
		if resp, err := inst.Do(t.Context(), "GET", "/v1/jobs/"+j.ID+"/outputs?path="+path, nil); err != nil || resp.Status/100 != 4 {
			t.Errorf("%s: %v, %v", path, resp, err)
		}
	}
}

func TestAJobSaysHowItEnded(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	for name, c := range map[string]struct {
		code   string
		more   fields
		status string
		exit   int
		signal string
		fault  string
	}{
		"an exit code":       {code: "print('x')\nraise SystemExit(7)", status: "failed", exit: 7},
		"an exception":       {code: "print('x')\n1/0", status: "failed", exit: 1},
		"a signal":           {code: "import os\nprint('x')\nos.kill(os.getpid(), 15)", status: "failed", exit: 143, signal: "TERM"},
		"its time":           {code: "print('x')\nwhile True: pass", more: fields{"timeout_seconds": 2}, status: "timeout", exit: 137, signal: "KILL"},
		"a tree of its time": {code: "print('x')\nimport os\nif os.fork() == 0: os.setsid()\nwhile True: pass", more: fields{"timeout_seconds": 2}, status: "timeout", exit: 137, signal: "KILL"},
		"lack of memory":     {code: "print('x')\nkeep = [bytes([1]) * (16 << 20) for _ in range(100)]\nimport time\ntime.sleep(60)", more: fields{"memory_mb": 256}, status: "failed", fault: "oom"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.fault == "oom" {
				testkit.RequireRoot(t)
			}
			j := inst.Job(t, c.code, c.more)
			if j.Status != c.status || j.TimedOut != (c.status == "timeout") || j.FinishedAt == nil || j.Attempt != 1 {
				t.Fatalf("%v", j)
			}
			if c.fault != "" {
				if j.Error == nil || j.Error.Reason != c.fault {
					t.Errorf("want error %s: %v", c.fault, j)
				}
				return
			}
			signal := ""
			if j.Signal != nil {
				signal = *j.Signal
			}
			if j.ExitCode == nil || *j.ExitCode != c.exit || signal != c.signal || j.Stdout != "x\n" || j.DurationMS == nil || j.Metrics.CPUMS == nil || j.Metrics.QueueMS == nil {
				t.Errorf("want code %d, signal %q: %v, %+v", c.exit, c.signal, j, j.Metrics)
			}
		})
	}
}

func TestMuchOutputOfAJobIsCutInItsAnswerAndSaysSo(t *testing.T) {
	t.Parallel()
	const size = 5 << 20
	j := testkit.Server(t).Job(t, fmt.Sprintf("import sys\nsys.stdout.write('ab' * %d)\nsys.stderr.buffer.write(b'\\xff')", size/2))
	if j.Status != "success" || j.StdoutSize != size || !j.Truncated.Stdout || j.StdoutGap == nil || int64(len(j.Stdout))+j.StdoutGap.Bytes != size || len(j.Stdout) > 1<<20 {
		t.Errorf("%s: %d bytes of %d, gap %+v, truncated %v", j.Status, len(j.Stdout), j.StdoutSize, j.StdoutGap, j.Truncated)
	}
	if j.Stderr != "\ufffd" || !j.Lossy.Stderr || j.Lossy.Stdout || j.Truncated.Stderr {
		t.Errorf("stderr %q, lossy %v, truncated %v", j.Stderr, j.Lossy, j.Truncated)
	}
}

func TestAJobCanBeCanceledInEveryState(t *testing.T) {
	t.Parallel()
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_JOB_CONCURRENCY=1", "CAY_POOL_SIZE=0"}})
	running := inst.Submit(t, "import time\nprint('begun')\ntime.sleep(600)", fields{"timeout_seconds": 600})
	queued := inst.Submit(t, "print(1)")
	running.Until("it has printed", func(now testkit.JobObject) bool { return now.Stdout == "begun\n" })
	if now := queued.Cancel(); now.Status != "canceled" || now.Attempt != 0 || now.StartedAt != nil || now.FinishedAt == nil {
		t.Errorf("canceled while queued: %v", now)
	}
	if tr := queued.Stream(); tr.Last.Type != "error" || tr.Status() != "canceled" {
		t.Errorf("the stream of what never ran: %+v", tr)
	}
	if now := running.Cancel(); now.Status != "canceled" || now.Stdout != "begun\n" || now.ExitCode == nil {
		t.Errorf("canceled while running: %v", now)
	}
	if tr := running.Stream(); tr.Last.Type != "exit" || tr.Status() != "canceled" || string(tr.Stdout) != "begun\n" {
		t.Errorf("the stream of what was canceled: %+v", tr)
	}
	if again := running.Cancel(); again.Status != "canceled" || again.Stdout != "begun\n" {
		t.Errorf("canceled again: %v", again)
	}
	finished := inst.Submit(t, "print(1)")
	if now := finished.Wait(); !now.Said("1\n") {
		t.Fatalf("%v", now)
	}
	if now := finished.Cancel(); !now.Said("1\n") {
		t.Errorf("canceled after the end: %v", now)
	}
	// Without a pool each job boots first: the cancel comes at any time of it.
	for n := range 4 {
		booting := inst.Submit(t, "import time\ntime.sleep(600)", fields{"timeout_seconds": 600})
		if n%2 == 0 {
			booting.Until("it has a sandbox", func(now testkit.JobObject) bool { return now.SandboxID != "" })
		}
		if now := booting.Cancel(); now.Status != "canceled" {
			t.Errorf("canceled while booting: %v", now)
		}
	}
	testkit.Eventually(t, 2*time.Minute, "no sandbox is left", func() error {
		left, err := inst.ListSandboxes(t.Context(), "managed=true&status=CREATING,READY,PAUSED,TERMINATING")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d, the first is %s %s", len(left), left[0].ID, left[0].Status)
		}
		return err
	})
}

func TestABadJobIsRefusedAndSaysWhy(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	for name, c := range map[string]struct {
		body   string
		status int
		reason string
		field  string
	}{
		"no code":                    {`{}`, 400, "invalid_request", "code"},
		"null code":                  {`{"code":null}`, 400, "invalid_request", "code"},
		"code that is no text":       {`{"code":1}`, 400, "invalid_request", "code"},
		"an unknown field":           {`{"code":"1","cod":"2"}`, 400, "invalid_request", "cod"},
		"no JSON":                    {`{"code":`, 400, "invalid_request", ""},
		"an unknown language":        {`{"code":"1","language":"cobol"}`, 422, "unprocessable", "language"},
		"no time":                    {`{"code":"1","timeout_seconds":0}`, 400, "invalid_request", "timeout_seconds"},
		"less than no time":          {`{"code":"1","timeout_seconds":-1}`, 400, "invalid_request", "timeout_seconds"},
		"too much time":              {`{"code":"1","timeout_seconds":86401}`, 400, "invalid_request", "timeout_seconds"},
		"time without end":           {`{"code":"1","timeout_seconds":null}`, 400, "invalid_request", "timeout_seconds"},
		"a negative queue timeout":   {`{"code":"1","queue_timeout_seconds":-1}`, 400, "invalid_request", "queue_timeout_seconds"},
		"a priority below":           {`{"code":"1","priority":-1}`, 400, "invalid_request", "priority"},
		"a priority above":           {`{"code":"1","priority":10}`, 400, "invalid_request", "priority"},
		"half a priority":            {`{"code":"1","priority":1.5}`, 400, "invalid_request", "priority"},
		"packages":                   {`{"code":"1","packages":["numpy"]}`, 501, "not_implemented", "packages"},
		"network":                    {`{"code":"1","network":["example.com"]}`, 501, "not_implemented", "network"},
		"a session of another kind":  {`{"code":"1","session_id":"sbx_00000000000000000000000000"}`, 422, "unprocessable", "session_id"},
		"a session that never was":   {`{"code":"1","session_id":"ses_00000000000000000000000000"}`, 422, "unprocessable", "session_id"},
		"two inputs":                 {`{"code":"1","stdin":"a","stdin_base64":"YQ=="}`, 400, "invalid_request", "stdin_base64"},
		"a variable with an equals":  {`{"code":"1","env":{"A=B":"c"}}`, 400, "invalid_request", "env"},
		"a variable with a zero":     {`{"code":"1","env":{"A":"\u0000"}}`, 400, "invalid_request", "env"},
		"too much memory":            {`{"code":"1","memory_mb":100000000}`, 422, "unprocessable", "memory_mb"},
		"no memory":                  {`{"code":"1","memory_mb":0}`, 400, "invalid_request", "memory_mb"},
		"no cpu":                     {`{"code":"1","cpu":0}`, 400, "invalid_request", "cpu"},
		"metadata that is no object": {`{"code":"1","metadata":["a"]}`, 400, "invalid_request", "metadata"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := inst.Do(t.Context(), "POST", "/v1/jobs", []byte(c.body), "Content-Type", "application/json")
			if err != nil {
				t.Fatal(err)
			}
			p := resp.Problem()
			if resp.Status != c.status || p.Reason != c.reason || !strings.Contains(p.Field+" "+p.Detail, c.field) {
				t.Errorf("%v, want %d %s that names %q", resp, c.status, c.reason, c.field)
			}
			if c.field == "language" && !strings.Contains(p.Detail, "python") {
				t.Errorf("it does not say which languages there are: %v", resp)
			}
		})
	}
	if resp, err := inst.Do(t.Context(), "POST", "/v1/jobs", []byte(`{"code":"1"}`), "Content-Type", "text/plain"); err != nil || resp.Status != http.StatusUnsupportedMediaType {
		t.Errorf("another type: %v %v", resp, err)
	}
	for _, id := range []string{"job_00000000000000000000000000", "job_x", "sbx_00000000000000000000000000"} {
		for _, ask := range [][2]string{{"GET", ""}, {"DELETE", ""}, {"GET", "/stream"}, {"GET", "/outputs?path=/output/x"}} {
			if resp, err := inst.Do(t.Context(), ask[0], "/v1/jobs/"+id+ask[1], nil); err != nil || resp.Status != 404 {
				t.Errorf("%s %s%s: %v %v", ask[0], id, ask[1], resp, err)
			}
		}
	}
	for _, query := range []string{"status=nonsense", "limit=0", "limit=201", "order=up", "session_id=x", "cursor=x"} {
		if resp, err := inst.Do(t.Context(), "GET", "/v1/jobs?"+query, nil); err != nil || resp.Status != 400 {
			t.Errorf("GET /v1/jobs?%s: %v %v", query, resp, err)
		}
	}
}

func TestJobsAreListedAndASubmissionIsIdempotent(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	tag := testkit.NewKey()[4:20]
	key := testkit.NewKey()
	var ids []string
	for range 2 {
		resp, err := inst.Do(t.Context(), "POST", "/v1/jobs?wait_seconds=120", fields{"code": "print('once')", "metadata": fields{"tag": tag}}, "Idempotency-Key", key)
		var j testkit.JobObject
		if err != nil || resp.Status != 200 && resp.Status != 202 {
			t.Fatalf("%v %v", resp, err)
		}
		if err := json.Unmarshal(resp.Body, &j); err != nil {
			t.Fatal(err)
		}
		if !j.Said("once\n") {
			t.Errorf("%d: %v", resp.Status, j)
		}
		ids = append(ids, j.ID)
	}
	if ids[0] != ids[1] {
		t.Errorf("one key made %v", ids)
	}
	if resp, err := inst.Do(t.Context(), "POST", "/v1/jobs", fields{"code": "print('other')"}, "Idempotency-Key", key); err != nil || resp.Status != 409 || resp.Problem().Reason != "idempotency_mismatch" {
		t.Errorf("another body: %v %v", resp, err)
	}
	later := inst.Submit(t, "raise SystemExit(1)", fields{"metadata": fields{"tag": tag}, "language": "python"})
	later.Wait()
	all, err := inst.ListJobs(t.Context(), "metadata.tag="+tag)
	if err != nil || len(all) != 2 || all[0].ID != later.ID || all[1].ID != ids[0] || all[1].Stdout != "" {
		t.Errorf("the list has %+v, %v", all, err)
	}
	if failed, err := inst.ListJobs(t.Context(), "status=failed&metadata.tag="+tag); err != nil || len(failed) != 1 || failed[0].ID != later.ID {
		t.Errorf("those that failed: %+v, %v", failed, err)
	}
	if active, err := inst.ListJobs(t.Context(), "status=active&metadata.tag="+tag); err != nil || len(active) != 0 {
		t.Errorf("those that are active: %+v, %v", active, err)
	}
	resp, err := inst.Do(t.Context(), "GET", "/v1/jobs?metadata.tag="+tag, nil)
	if err != nil || strings.Contains(string(resp.Body), `"stdout"`) || strings.Contains(string(resp.Body), `"outputs"`) {
		t.Errorf("a list leaves output out: %v %v", resp, err)
	}
}

func TestAJobOfHigherPriorityIsTakenFirst(t *testing.T) {
	t.Parallel()
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_JOB_CONCURRENCY=1"}})
	first := inst.Submit(t, "import time\ntime.sleep(5)")
	first.Running() // the others wait behind it
	low := inst.Submit(t, "print('low')", fields{"priority": 1})
	usual := inst.Submit(t, "print('usual')")
	high := inst.Submit(t, "print('high')", fields{"priority": 9})
	a, b, c := high.Wait(), usual.Wait(), low.Wait()
	if a.StartedAt == nil || b.StartedAt == nil || c.StartedAt == nil || !a.StartedAt.Before(*b.StartedAt) || !b.StartedAt.Before(*c.StartedAt) {
		t.Errorf("high %v, usual %v, low %v", a.StartedAt, b.StartedAt, c.StartedAt)
	}
}

func TestAJobThatWaitsTooLongEndsWithoutCapacity(t *testing.T) {
	t.Parallel()
	inst := testkit.StartServer(t, testkit.Options{Env: []string{"CAY_JOB_CONCURRENCY=1"}})
	busy := inst.Submit(t, "import time\ntime.sleep(600)", fields{"timeout_seconds": 600})
	busy.Running()
	j := inst.Job(t, "print('never')", fields{"queue_timeout_seconds": 1})
	if j.Status != "error" || j.Error == nil || j.Error.Reason != "no_capacity" || j.StartedAt != nil {
		t.Errorf("%v", j)
	}
	busy.Cancel()
}
