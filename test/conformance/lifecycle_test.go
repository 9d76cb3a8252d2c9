package conformance

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// ends waits until the sandbox has ended, and says how long after begun that was and why.
func ends(t *testing.T, sb *testkit.Sandbox, within time.Duration) string {
	t.Helper()
	testkit.Eventually(t, within, "the sandbox ends", func() error {
		now, err := sb.GetSandbox(t.Context(), sb.ID)
		if err == nil && now.Status != "TERMINATED" {
			err = fmt.Errorf("it is %s", now.Status)
		}
		return err
	})
	return sb.Refresh().StatusReason
}

func TestL1WhatCountsAsIdle(t *testing.T) {
	t.Parallel()
	const idle = 5
	t.Run("(a) a running exec keeps it alive, silent or not", func(t *testing.T) {
		t.Parallel()
		sb := box(t, fields{"idle_timeout_seconds": idle})
		sb.MustSay("over\n", fmt.Sprintf("sleep %d; echo over", 3*idle))
	})
	t.Run("(a) so does a stream that its client reads", func(t *testing.T) {
		t.Parallel()
		sb := box(t, fields{"idle_timeout_seconds": idle})
		if tr := sb.Stream(fmt.Sprintf("sleep %d; echo over", 3*idle)); string(tr.Stdout) != "over\n" {
			t.Errorf("%q %+v", tr.Stdout, tr.Exit)
		}
	})
	t.Run("(b) a busy background job does not", func(t *testing.T) {
		t.Parallel()
		sb := box(t, fields{"idle_timeout_seconds": idle})
		sb.Must(`while :; do echo busy; sleep .2; done >/dev/null & echo`)
		if reason := ends(t, sb, 2*time.Minute); reason != "idle_timeout" {
			t.Errorf("reason %q", reason)
		}
	})
	t.Run("(d) an open silent terminal does not", func(t *testing.T) {
		t.Parallel()
		sb := box(t, fields{"idle_timeout_seconds": idle})
		w := sb.Dial(t.Context(), "/terminal")
		var tr testkit.Transcript
		if _, err := w.Collect(t.Context(), &tr, func(tr *testkit.Transcript) bool { return len(tr.Stdout) > 0 }); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := w.Collect(t.Context(), &tr, nil)
			ended <- err
		}()
		if reason := ends(t, sb, 2*time.Minute); reason != "idle_timeout" {
			t.Errorf("reason %q", reason)
		}
		<-ended // an exit or an error: the socket does not hang
	})
	t.Run("(e) nothing ends it on time, and use moves the time", func(t *testing.T) {
		t.Parallel()
		sb := box(t, fields{"idle_timeout_seconds": idle})
		sb.Must(fmt.Sprintf("sleep %d", idle-1))
		last := time.Now()
		reason := ends(t, sb, 2*time.Minute)
		if took := time.Since(last); reason != "idle_timeout" || took < (idle-1)*time.Second {
			t.Errorf("ended %v after its last use, reason %q", took, reason)
		}
		if resp := sb.Call("POST", "/exec", fields{"command": "true"}); resp.Status != 410 || resp.Problem().StatusReason != "idle_timeout" {
			t.Errorf("exec afterwards: %v", resp)
		}
	})
	t.Run("keepalive counts, reading its state does not", func(t *testing.T) {
		t.Parallel()
		sb := box(t, fields{"idle_timeout_seconds": idle})
		begun := time.Now()
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for time.Since(begun) < 2*idle*time.Second {
			if resp := sb.Call("POST", "/keepalive", nil); resp.Status/100 != 2 {
				t.Fatalf("keepalive: %v", resp)
			}
			<-tick.C
		}
		if now := sb.Refresh(); now.Status != "READY" {
			t.Errorf("it is %s (%s)", now.Status, now.StatusReason)
		}
		ends(t, sb, 2*time.Minute)
	})
}

func TestTheTTLEndsASandboxAndCanBeMoved(t *testing.T) {
	t.Parallel()
	t.Run("it ends on time, also in use", func(t *testing.T) {
		t.Parallel()
		sb := box(t, fields{"ttl_seconds": 3})
		tr, err := sb.StreamExec(t.Context(), sb.ID, "sleep 60")
		if err == nil && tr.Exit != nil && (tr.Exit.OK || tr.Exit.Reason != "sandbox_ended") {
			t.Errorf("the exec that was open: %+v", tr.Exit)
		}
		if reason := ends(t, sb, time.Minute); reason != "ttl_expired" {
			t.Errorf("reason %q", reason)
		}
	})
	t.Run("it can be set anew", func(t *testing.T) {
		t.Parallel()
		sb := box(t, fields{"ttl_seconds": 10})
		var now testkit.SandboxObject
		if err := sb.Call("POST", "/timeout", fields{"ttl_seconds": 600}).Decode(200, &now); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(*now.ExpiresAt); left < 500*time.Second || left > 601*time.Second {
			t.Errorf("expires in %v", left)
		}
		if err := sb.Call("POST", "/timeout", fields{"ttl_seconds": 5, "extend_only": true}).Decode(200, &now); err != nil || time.Until(*now.ExpiresAt) < 400*time.Second {
			t.Errorf("extend_only shortened it: %v, %v", now.ExpiresAt, err)
		}
		sb.MustSay("still\n", "sleep 11; echo still")
		for _, ttl := range []any{0, -1, 3000000000} {
			if resp := sb.Call("POST", "/timeout", fields{"ttl_seconds": ttl}); resp.Status != 400 {
				t.Errorf("ttl %v: %v", ttl, resp)
			}
		}
	})
}

func TestL4TheClockIsRightAfterAPause(t *testing.T) {
	t.Parallel()
	sb := box(t)
	pause(t, sb)
	<-time.After(time.Duration(testkit.Scaled(3, 40)) * time.Second) // the case is a clock that stood still: real time has to pass
	resume(t, sb)
	asked := time.Now()
	out := sb.Must("date +%s")
	answered := time.Now()
	inside, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if at := time.Unix(inside, 0); at.Before(asked.Add(-2*time.Second)) || at.After(answered.Add(time.Second)) {
		t.Errorf("the clock inside shows %v, the host's went from %v to %v", at, asked, answered)
	}
}

func pause(t *testing.T, sb *testkit.Sandbox) {
	t.Helper()
	var now testkit.SandboxObject
	if err := sb.Call("POST", "/pause", nil).Decode(200, &now); err != nil || now.Status != "PAUSED" {
		t.Fatalf("pause: %s, %v", now.Status, err)
	}
}

func resume(t *testing.T, sb *testkit.Sandbox) {
	t.Helper()
	var now testkit.SandboxObject
	if err := sb.Call("POST", "/resume", nil).Decode(200, &now); err != nil || now.Status != "READY" {
		t.Fatalf("resume: %s, %v", now.Status, err)
	}
}

func TestL6ABackgroundServerSurvivesAPause(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"auto_resume": false})
	sb.RequireProgram("python3")
	sb.Must("python3 -m http.server 8098 >/dev/null 2>&1 & echo")
	pause(t, sb)
	if out := sb.Call("POST", "/exec", fields{"command": "true"}); out.Status != 409 || out.Problem().Reason != "paused" {
		t.Errorf("exec while paused: %v", out)
	}
	resume(t, sb)
	if n := listed(t, sb, "python3 -m http.server"); n != 1 {
		t.Errorf("listed %d times", n)
	}
	testkit.Eventually(t, time.Minute, "it answers", func() error {
		out, err := sb.Client.Exec(t.Context(), sb.ID, `python3 -c "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8098/').status)"`)
		if err == nil && out.Stdout != "200\n" {
			err = fmt.Errorf("%q", out.Stderr)
		}
		return err
	})
	sb.Must("pkill -f '[h]ttp.server'; sleep .2")
	if n := sb.Count("python3 -m http.server"); n != 0 {
		t.Errorf("%d left after the kill", n)
	}
}

func TestL5AnExecThatIsOpenAcrossAPauseIsEitherContinuedOrToldSo(t *testing.T) {
	t.Parallel()
	sb := box(t)
	stream, tr := sb.Open(t.Context(), `for i in $(seq 30); do echo $i; sleep .1; done`)
	ev, err := stream.Next()
	if err != nil {
		t.Fatal(err)
	}
	if err := tr.Add(ev); err != nil {
		t.Fatal(err)
	}
	pause(t, sb)
	resume(t, sb)
	rest, err := stream.ReadAll()
	switch {
	case err != nil:
		t.Errorf("the stream broke without a word: %v", err)
	case rest.Exit != nil && string(tr.Stdout)+string(rest.Stdout) != sequence(30):
		t.Errorf("output was lost: %q", string(tr.Stdout)+string(rest.Stdout))
	case rest.Error != nil:
		offset := int64(len(tr.Stdout) + len(rest.Stdout))
		again, err := sb.AttachStream(t.Context(), tr.ProcessID, offset).ReadAll()
		if got := string(tr.Stdout) + string(rest.Stdout) + string(again.Stdout); err != nil || got != sequence(30) {
			t.Errorf("attached again: %q, %v", got, err)
		}
	}
}

func TestAPauseStopsTimeoutsAndClocks(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"ttl_seconds": 300, "idle_timeout_seconds": 8})
	before := time.Until(*sb.Refresh().ExpiresAt)
	pause(t, sb)
	<-time.After(10 * time.Second) // longer than the idle timeout: both clocks have to stand still
	if now := sb.Refresh(); now.Status != "PAUSED" {
		t.Fatalf("it is %s (%s)", now.Status, now.StatusReason)
	}
	resume(t, sb)
	if left := time.Until(*sb.Refresh().ExpiresAt); left < before-8*time.Second {
		t.Errorf("%v of the ttl are left, %v before the pause of 10 s", left, before)
	}
	sb.MustSay("here\n", "echo here")
}

func TestAutoResumeWakesAPausedSandbox(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"auto_resume": true})
	pause(t, sb)
	sb.MustSay("awake\n", "echo awake")
	if now := sb.Refresh(); now.Status != "READY" {
		t.Errorf("it is %s", now.Status)
	}
}

func TestPauseAndResumeAreIdempotentAndAPausedSandboxCanBeDeleted(t *testing.T) {
	t.Parallel()
	sb := box(t)
	pause(t, sb)
	pause(t, sb)
	resume(t, sb)
	resume(t, sb)
	pause(t, sb)
	if err := sb.DeleteSandbox(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if now := sb.Refresh(); now.Status != "TERMINATED" || now.StatusReason != "deleted" {
		t.Errorf("it is %s (%s)", now.Status, now.StatusReason)
	}
}

func TestOnTimeoutPausePausesInsteadOfEnding(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"idle_timeout_seconds": 2, "on_timeout": "pause", "paused_ttl_seconds": 5})
	testkit.Eventually(t, time.Minute, "it is paused", func() error {
		if now := sb.Refresh(); now.Status != "PAUSED" {
			return fmt.Errorf("it is %s", now.Status)
		}
		return nil
	})
	if reason := ends(t, sb, time.Minute); reason != "paused_ttl_expired" {
		t.Errorf("reason %q", reason)
	}
}

func TestF16FilesSurvivePauses(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for i := range 5 {
		sb.Put(fmt.Sprintf("/workspace/N%d", i), fmt.Appendf(nil, "content %d", i))
		pause(t, sb)
		resume(t, sb)
		for j := range i + 1 {
			if got := sb.Get(fmt.Sprintf("/workspace/N%d", j)); string(got) != fmt.Sprintf("content %d", j) {
				t.Errorf("after pause %d, N%d holds %q", i, j, got)
			}
		}
	}
}

func TestL9NonsenseIsRefusedWithTheFieldNamed(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	for name, c := range map[string]struct {
		raw   string
		field string
	}{
		"ttl 0":                   {`{"image":"host","ttl_seconds":0}`, "ttl_seconds"},
		"ttl -1":                  {`{"image":"host","ttl_seconds":-1}`, "ttl_seconds"},
		"ttl 1e18":                {`{"image":"host","ttl_seconds":1e18}`, "ttl_seconds"},
		"ttl as a text":           {`{"image":"host","ttl_seconds":"3600"}`, "ttl_seconds"},
		"ttl as NaN":              {`{"image":"host","ttl_seconds":NaN}`, ""},
		"idle -5":                 {`{"image":"host","idle_timeout_seconds":-5}`, "idle_timeout_seconds"},
		"cpu 0":                   {`{"image":"host","cpu":0}`, "cpu"},
		"cpu -1":                  {`{"image":"host","cpu":-1}`, "cpu"},
		"cpu 1e6":                 {`{"image":"host","cpu":1000000}`, "cpu"},
		"memory 0":                {`{"image":"host","memory_mb":0}`, "memory_mb"},
		"memory 1":                {`{"image":"host","memory_mb":1}`, "memory_mb"},
		"memory of a planet":      {`{"image":"host","memory_mb":9000000000000}`, "memory_mb"},
		"memory past int64":       {`{"image":"host","memory_mb":99999999999999999999}`, "memory_mb"},
		"half a megabyte":         {`{"image":"host","memory_mb":0.5}`, "memory_mb"},
		"pids 0":                  {`{"image":"host","pids":0}`, "pids"},
		"disk -1":                 {`{"image":"host","disk_gb":-1}`, "disk_gb"},
		"unknown image":           {`{"image":"no-such-image:1"}`, ""},
		"image and runtime":       {`{"image":"host","runtime":"python"}`, ""},
		"unknown runtime":         {`{"runtime":"cobol74"}`, "runtime"},
		"unknown field":           {`{"image":"host","memroy_mb":1}`, "memroy_mb"},
		"on_timeout":              {`{"image":"host","on_timeout":"explode"}`, "on_timeout"},
		"metadata of numbers":     {`{"image":"host","metadata":{"a":1}}`, "metadata"},
		"metadata too large":      {`{"image":"host","metadata":{"a":"` + strings.Repeat("x", 2000) + `"}}`, "metadata"},
		"duplicate keys":          {`{"image":"host","cpu":1,"cpu":2}`, ""},
		"network rules":           {`{"image":"host","network":["example.com:443"]}`, "network"},
		"relative workdir":        {`{"image":"host","workdir":"a/b"}`, "workdir"},
		"an array":                {`[]`, ""},
		"null":                    {`null`, ""},
		"two objects":             {`{"image":"host"}{"image":"host"}`, ""},
		"cut":                     {`{"image":"host"`, ""},
		"a megabyte and more":     {`{"image":"host","metadata":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`, ""},
		"deeply nested":           {strings.Repeat(`{"metadata":`, 20000) + `{}` + strings.Repeat(`}`, 20000), ""},
		"a name that is no UTF-8": {"{\"image\":\"ho\xffst\"}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp, err := inst.Do(t.Context(), "POST", "/v1/sandboxes", []byte(c.raw), "Content-Type", "application/json")
			if err != nil {
				t.Fatal(err)
			}
			p := resp.Problem()
			if name == "network rules" && resp.Status == 501 { // until there are some
				resp.Status = 422
			}
			if resp.Status/100 != 4 || p.Reason == "" || p.Detail == "" {
				t.Fatalf("%v, want a 4xx problem", resp)
			}
			if c.field != "" && !strings.Contains(p.Field+p.Detail, c.field) {
				t.Errorf("%v does not name %s", resp, c.field)
			}
		})
	}
}

func TestL9ConventionsOfRequestsAreKept(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	do := func(method, path string, body any, headers ...string) testkit.Response {
		t.Helper()
		resp, err := inst.Do(t.Context(), method, path, body, headers...)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Header.Get("X-Request-Id") == "" {
			t.Errorf("%s %s: no X-Request-Id", method, path)
		}
		return resp
	}
	want := func(what string, resp testkit.Response, status int, reason string) {
		t.Helper()
		if resp.Status != status || resp.Problem().Reason != reason {
			t.Errorf("%s: %v, want %d %s", what, resp, status, reason)
		}
	}
	want("no content type", do("POST", "/v1/sandboxes", []byte(`{"image":"host"}`), "Content-Type", "text/plain"), 415, "unsupported_media_type")
	want("a wrong key", do("GET", "/v1/sandboxes", nil, "Authorization", "Bearer "+testkit.NewKey()), 401, "unauthorized")
	want("a malformed key", do("GET", "/v1/sandboxes", nil, "Authorization", "Bearer x"), 401, "unauthorized")
	want("an unknown sandbox", do("GET", "/v1/sandboxes/sbx_00000000000000000000000000", nil), 404, "not_found")
	want("a malformed id", do("GET", "/v1/sandboxes/..%2f..%2fetc", nil), 404, "not_found")
	want("an exec in an unknown sandbox", do("POST", "/v1/sandboxes/sbx_00000000000000000000000000/exec", fields{"command": "true"}), 404, "not_found")
	want("a delete of an unknown one", do("DELETE", "/v1/sandboxes/sbx_00000000000000000000000000", nil), 404, "not_found")
	if resp := do("GET", "/v1/sandboxes?limit=0", nil); resp.Status != 400 {
		t.Errorf("limit 0: %v", resp)
	}
	if resp := do("GET", "/v1/sandboxes?status=SLEEPING", nil); resp.Status != 400 {
		t.Errorf("status SLEEPING: %v", resp)
	}
	if resp := do("GET", "/v1/sandboxes?cursor=nonsense", nil); resp.Status != 400 {
		t.Errorf("cursor nonsense: %v", resp)
	}
	for _, path := range []string{"/healthz", "/readyz", "/openapi.json", "/docs"} {
		if resp := do("GET", path, nil, "Authorization", ""); resp.Status != 200 {
			t.Errorf("%s: %v", path, resp)
		}
	}
	want("metrics without a key", do("GET", "/metrics", nil, "Authorization", ""), 401, "unauthorized")
	if resp := do("GET", "/metrics", nil); resp.Status != 200 || !strings.Contains(string(resp.Body), "# TYPE") {
		t.Errorf("metrics: %v", resp)
	}
}

func TestL9BadCommandsAreRefused(t *testing.T) {
	t.Parallel()
	sb := box(t)
	for name, raw := range map[string]string{
		"no command":         `{}`,
		"empty argv":         `{"command":[]}`,
		"a number":           `{"command":5}`,
		"a zero byte":        `{"command":["a\u0000b"]}`,
		"two kinds of stdin": `{"command":"cat","stdin":"a","stdin_base64":"YQ=="}`,
		"broken base64":      `{"command":"cat","stdin_base64":"***"}`,
		"timeout 0":          `{"command":"true","timeout_seconds":0}`,
		"timeout -1":         `{"command":"true","timeout_seconds":-1}`,
		"encoding":           `{"command":"true","encoding":"latin1"}`,
		"output limit":       `{"command":"true","max_output_bytes":-1}`,
		"output limit huge":  `{"command":"true","max_output_bytes":1e15}`,
		"unknown field":      `{"command":"true","tty_mode":true}`,
	} {
		if resp := sb.Call("POST", "/exec", []byte(raw), "Content-Type", "application/json"); resp.Status/100 != 4 || resp.Problem().Reason == "" {
			t.Errorf("%s: %v", name, resp)
		}
	}
	if resp := sb.Call("POST", "/exec", fields{"command": "true"}, "Accept", "text/event-stream", "Last-Event-ID", "5"); resp.Status != 400 {
		t.Errorf("Last-Event-ID with POST: %v", resp)
	}
}

func TestACreateIsRepeatedSafelyWithAnIdempotencyKey(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	key := testkit.NewKey()
	var mu sync.Mutex
	ids := map[string]bool{}
	var wg sync.WaitGroup
	create := func(body fields) testkit.Response {
		resp, err := inst.Do(t.Context(), "POST", "/v1/sandboxes", body, "Idempotency-Key", key)
		if err != nil {
			t.Error(err)
		}
		return resp
	}
	for range 5 {
		wg.Go(func() {
			var sb testkit.SandboxObject
			if err := create(fields{"image": "host"}).Decode(http.StatusCreated, &sb); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			ids[sb.ID] = true
		})
	}
	wg.Wait()
	for id := range ids {
		t.Cleanup(func() {
			if err := inst.DeleteSandbox(context.Background(), id); err != nil {
				t.Error(err)
			}
		})
	}
	if len(ids) != 1 {
		t.Errorf("one key made %d sandboxes", len(ids))
	}
	if resp := create(fields{"image": "host", "cpu": 2}); resp.Status != 409 || resp.Problem().Reason != "idempotency_mismatch" {
		t.Errorf("another body: %v", resp)
	}
}

func TestADeleteIsFinalAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	sb := box(t)
	stream, _ := sb.Open(t.Context(), "sleep 300")
	for range 2 {
		if resp := sb.Call("DELETE", "", nil); resp.Status != 204 {
			t.Fatalf("delete: %v", resp)
		}
	}
	tr, err := stream.ReadAll()
	if err == nil && tr.Exit != nil && (tr.Exit.OK || tr.Exit.Reason != "sandbox_ended") {
		t.Errorf("the open stream ended with %+v", tr.Exit)
	}
	now := sb.Refresh()
	if now.Status != "TERMINATED" || now.StatusReason != "deleted" || now.EndedAt == nil {
		t.Errorf("it is %+v", now)
	}
	for _, rest := range []string{"/exec", "/pause", "/resume", "/keepalive"} {
		if resp := sb.Call("POST", rest, fields{"command": "true"}); rest == "/exec" && (resp.Status != 410 || resp.Problem().StatusReason != "deleted") {
			t.Errorf("%s: %v", rest, resp)
		}
	}
	if resp := sb.Call("GET", testkit.FilePath("/etc/passwd"), nil); resp.Status != 410 {
		t.Errorf("files: %v", resp)
	}
}

func TestTheSandboxIsWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"cpu": 2, "memory_mb": 300, "disk_gb": 0.5, "pids": 77, "metadata": fields{"agent": "planner"}, "env": fields{"A": "b"}, "workdir": "/tmp"})
	if sb.CPU != 2 || sb.MemoryMB != 300 || sb.DiskGB != 0.5 || sb.Pids != 77 || sb.Metadata["agent"] != "planner" || sb.Env["A"] != "b" || sb.SandboxID != sb.ID {
		t.Errorf("%+v", sb.SandboxObject)
	}
	sb.MustSay("2000:2000 sandbox /tmp\n", `echo $(id -u):$(id -g) $(id -un) $(pwd)`)
	sb.MustSay("2\n", "nproc")
	if kb := strings.Fields(sb.Must("grep MemTotal /proc/meminfo"))[1]; true {
		if n, err := strconv.Atoi(kb); err != nil || n < 250<<10 || n > 420<<10 {
			t.Errorf("MemTotal %s kB", kb)
		}
	}
	for _, dir := range []string{"/workspace", "/output", "/tmp", "/home/sandbox"} {
		sb.Must("echo x > " + dir + "/probe && rm " + dir + "/probe")
	}
	sb.MustSay("/home/sandbox\n", "echo $HOME")
	sb.MustSay("0\n", "id -u", fields{"user": "root"})
	sb.MustSay("1234 1235\n", "echo $(id -u) $(id -g)", fields{"user": "1234:1235"})
}
