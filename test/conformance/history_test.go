package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// recorded is a line of the history.
type recorded struct {
	ID          string
	Kind        string
	ProjectID   string  `json:"project_id"`
	KeyID       *string `json:"key_id"`
	SandboxID   *string `json:"sandbox_id"`
	SessionID   *string `json:"session_id"`
	Name        string
	Command     string
	Language    *string
	Outcome     string
	OK          bool
	ExitCode    *int `json:"exit_code"`
	Signal      *string
	StartedAt   time.Time `json:"started_at"`
	EndedAt     time.Time `json:"ended_at"`
	DurationMS  int64     `json:"duration_ms"`
	StdoutBytes int64     `json:"stdout_bytes"`
	StderrBytes int64     `json:"stderr_bytes"`
	CPUSeconds  float64   `json:"cpu_seconds"`
}

type pageOf[T any] struct {
	Items      []T
	NextCursor *string `json:"next_cursor"`
}

// tell asks for something as JSON.
func tell[T any](t *testing.T, c *testkit.Client, path string) T {
	t.Helper()
	var v T
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := c.Do(ctx, "GET", path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Decode(200, &v); err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	return v
}

// refusedWith makes a call that must be refused.
func refusedWith(t *testing.T, c *testkit.Client, method, path string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := c.Do(ctx, method, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Status != status {
		t.Fatalf("%s %s: %v, want %d", method, path, resp, status)
	}
}

// record waits for the record of what has ended.
func record(t *testing.T, c *testkit.Client, id string) recorded {
	t.Helper()
	var r recorded
	testkit.Eventually(t, time.Minute, "the record of "+id, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		resp, err := c.Do(ctx, "GET", "/v1/history/"+id, nil)
		if err != nil {
			return err
		}
		return resp.Decode(200, &r)
	})
	if r.ID != id || r.EndedAt.Before(r.StartedAt) || time.Since(r.EndedAt).Abs() > time.Hour {
		t.Errorf("the record of %s is %+v", id, r)
	}
	return r
}

// whole makes a key of a new project with every scope.
func whole(t *testing.T) (*testkit.Client, testkit.Tenant) {
	t.Helper()
	tenant := testkit.Server(t).NewTenant(t)
	return tenant.Key(t, time.Time{}, "sandboxes:read", "sandboxes:write", "exec", "files", "jobs", "admin"), tenant
}

// own makes a sandbox of a project of its own, so that its history holds nothing else.
func own(t *testing.T, c *testkit.Client, more fields) *testkit.Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sb, err := c.CreateSandbox(ctx, more)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := c.DeleteSandbox(ctx, sb.ID); err != nil {
			t.Error(err)
		}
	})
	return (&testkit.Sandbox{Client: c, SandboxObject: sb}).In(t)
}

func orNull(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

func TestWhatRanIsOnRecordOnceItIsOver(t *testing.T) {
	t.Parallel()
	c, tenant := whole(t)
	sb := own(t, c, fields{"metadata": fields{"name": "recorded"}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	ran := sb.X("echo out; echo wrong >&2; exit 3")
	var program struct {
		ProcessID string `json:"process_id"`
	}
	if err := sb.Call("POST", "/code", fields{"code": "print('four')", "language": "python"}).Decode(200, &program); err != nil {
		t.Fatal(err)
	}
	var background struct{ ID string }
	if err := sb.Call("POST", "/processes", fields{"command": []string{"sleep", "300"}, "name": "sleeper"}).Decode(201, &background); err != nil {
		t.Fatal(err)
	}
	if resp := sb.Call("GET", "/history", nil); resp.Status != 404 {
		t.Errorf("a history of a sandbox: %v", resp)
	}
	refusedWith(t, c, "GET", "/v1/history/"+background.ID, 404) // it has not ended
	if resp := sb.Call("POST", "/processes/"+background.ID+"/signal", fields{"signal": "KILL"}); resp.Status != 204 {
		t.Fatal(resp)
	}
	shell := sb.Dial(ctx, "/terminal?cols=80&rows=24")
	var session testkit.Transcript
	if err := shell.Stdin(ctx, []byte("exit 5\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := shell.Collect(ctx, &session, func(*testkit.Transcript) bool { return false }); err != nil {
		t.Fatal(err)
	}

	for _, want := range []struct {
		id, kind, command, name, outcome string
		code                             int
		stdout, stderr                   int64
	}{
		{ran.ProcessID, "exec", "echo out", "", "exited", 3, 4, 6},
		{program.ProcessID, "code", "print('four')", "", "exited", 0, 5, 0},
		{background.ID, "process", "sleep 300", "sleeper", "", 137, 0, 0},
		{session.ProcessID, "terminal", "", "", "exited", 5, -1, 0},
	} {
		r := record(t, c, want.id)
		if r.Kind != want.kind || !strings.Contains(r.Command, want.command) || r.Name != want.name || want.outcome != "" && r.Outcome != want.outcome || r.ExitCode == nil || *r.ExitCode != want.code ||
			r.OK != (want.code == 0) || want.stdout >= 0 && r.StdoutBytes != want.stdout || r.StderrBytes != want.stderr {
			t.Errorf("got %+v, want %+v", r, want)
		}
		if r.ProjectID != tenant.Project || orNull(r.SandboxID) != sb.ID || r.KeyID == nil || r.DurationMS < 0 || r.DurationMS > 120_000 {
			t.Errorf("the record of %s is of project %s, sandbox %s, key %v and took %d ms", want.kind, r.ProjectID, orNull(r.SandboxID), r.KeyID, r.DurationMS)
		}
		if want.kind == "process" && orNull(r.Signal) != "KILL" {
			t.Errorf("the process that was killed ended by %s, signal %s", r.Outcome, orNull(r.Signal))
		}
		if want.kind == "code" && orNull(r.Language) != "python" {
			t.Errorf("the program's language is %s", orNull(r.Language))
		}
	}

	t.Run("it is found by what it was", func(t *testing.T) {
		for query, want := range map[string][]string{
			"kind=exec":                 {ran.ProcessID},
			"kind=exec,code":            {ran.ProcessID, program.ProcessID},
			"ok=true":                   {program.ProcessID},
			"text=ECHO+OUT":             {ran.ProcessID},
			"text=sleeper":              {background.ID},
			"text=%25":                  nil,
			"kind=exec&ok=true":         nil,
			"kind=terminal":             {session.ProcessID},
			"sandbox_id=" + sb.ID:       {ran.ProcessID, program.ProcessID, background.ID, session.ProcessID},
			"from=2100-01-01T00:00:00Z": nil,
			"to=2020-01-01T00:00:00Z":   nil,
			"sandbox_id=sbx_" + strings.Repeat("0", 26): nil,
		} {
			var found []string
			for _, r := range tell[pageOf[recorded]](t, c, "/v1/history?"+query).Items {
				found = append(found, r.ID)
			}
			slices.Sort(found)
			slices.Sort(want)
			if !slices.Equal(found, want) {
				t.Errorf("%s: found %v, want %v", query, found, want)
			}
		}
	})
	t.Run("pages follow one another", func(t *testing.T) {
		var ends []time.Time
		seen, cursor := map[string]bool{}, ""
		for range 10 {
			p := tell[pageOf[recorded]](t, c, "/v1/history?limit=1&cursor="+url.QueryEscape(cursor))
			for _, r := range p.Items {
				seen[r.ID] = true
				ends = append(ends, r.EndedAt)
			}
			if p.NextCursor == nil {
				break
			}
			cursor = *p.NextCursor
		}
		if len(seen) != 4 || len(ends) != 4 || !slices.IsSortedFunc(ends, func(a, b time.Time) int { return b.Compare(a) }) {
			t.Errorf("%d records that ended at %v", len(seen), ends)
		}
	})
	t.Run("another project sees nothing of it", func(t *testing.T) {
		stranger, _ := whole(t)
		refusedWith(t, stranger, "GET", "/v1/history/"+ran.ProcessID, 404)
		for _, query := range []string{"", "?sandbox_id=" + sb.ID, "?text=echo"} {
			if p := tell[pageOf[recorded]](t, stranger, "/v1/history"+query); len(p.Items) != 0 {
				t.Errorf("%s: %+v", query, p.Items)
			}
		}
		plain := tenant.Key(t, time.Time{}, "sandboxes:read")
		refusedWith(t, plain, "GET", "/v1/history?all_projects=true", 403)
		refusedWith(t, plain, "GET", "/v1/usage?all_projects=true", 403)
		refusedWith(t, plain, "GET", "/v1/audit", 403)
		if p := tell[pageOf[recorded]](t, stranger, "/v1/history?all_projects=true&sandbox_id="+sb.ID); len(p.Items) != 4 {
			t.Errorf("an administrator finds %d records of all projects", len(p.Items))
		}
	})
}

func TestSandboxesJobsAndSessionsAreOnRecordWithTheirEnd(t *testing.T) {
	t.Parallel()
	c, _ := whole(t)
	s := c.Session(t)
	job := c.Job(t, "print('x'); raise SystemExit(4)", fields{"session_id": s.ID})
	if job.Status != "failed" {
		t.Fatal(job)
	}
	r := record(t, c, job.ID)
	if r.Kind != "job" || r.Outcome != "failed" || r.OK || r.ExitCode == nil || *r.ExitCode != 4 || orNull(r.SessionID) != s.ID || orNull(r.Language) != "python" || r.KeyID == nil {
		t.Errorf("the job: %+v", r)
	}
	sb := own(t, c, fields{"session_id": s.ID, "session_shared": true})
	ran := sb.X("true")
	if r := record(t, c, ran.ProcessID); orNull(r.SessionID) != s.ID {
		t.Errorf("a command that can reach a session says %s", orNull(r.SessionID))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := c.DeleteSandbox(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	if r := record(t, c, sb.ID); r.Kind != "sandbox" || r.Outcome != "deleted" || !r.OK || r.KeyID == nil || orNull(r.SessionID) != s.ID {
		t.Errorf("the sandbox: %+v", r)
	}
	if err := c.DeleteSession(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if r := record(t, c, s.ID); r.Kind != "session" || r.Outcome != "deleted" || !r.OK || r.KeyID == nil {
		t.Errorf("the session: %+v", r)
	}
}

type used struct {
	Day             string
	SandboxID       string `json:"sandbox_id"`
	ProjectID       string `json:"project_id"`
	Sandboxes       int64
	Running         float64 `json:"running_seconds"`
	Paused          float64 `json:"paused_seconds"`
	CPU             float64 `json:"cpu_seconds"`
	AllocatedCPU    float64 `json:"allocated_cpu_seconds"`
	AllocatedMemory float64 `json:"allocated_memory_mb_seconds"`
}

type usageOf struct {
	From, To string
	Items    []used
	Total    used
}

func TestUsageAddsUpToWhatASandboxDid(t *testing.T) {
	t.Parallel()
	c, tenant := whole(t)
	sb := own(t, c, fields{"cpu": 1, "memory_mb": 256})
	sb.Must("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	pause(t, sb)
	resume(t, sb)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.DeleteSandbox(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	over := sb.Refresh()
	events := get[feed[happening]](t, sb, "/events").Items
	var running, ending, paused time.Duration
	for i, e := range events[:len(events)-1] {
		switch e.Data["to"] {
		case "TERMINATING": // counts as long as its worker has it
			ending += events[i+1].At.Sub(e.At)
		case "READY":
			running += events[i+1].At.Sub(e.At)
		case "PAUSED":
			paused += events[i+1].At.Sub(e.At)
		}
	}
	u := tell[usageOf](t, c, "/v1/usage?group_by=day,sandbox,project")
	var sum used
	for _, i := range u.Items {
		if i.SandboxID != sb.ID || i.ProjectID != tenant.Project || i.Day < u.From || i.Day > u.To {
			t.Errorf("the item is of %s, %s, %s", i.Day, i.SandboxID, i.ProjectID)
		}
		sum.Running, sum.Paused, sum.CPU, sum.AllocatedCPU, sum.AllocatedMemory = sum.Running+i.Running, sum.Paused+i.Paused, sum.CPU+i.CPU, sum.AllocatedCPU+i.AllocatedCPU, sum.AllocatedMemory+i.AllocatedMemory
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if d := got - want; d < -0.05 || d > 0.05 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	if sum.Running < running.Seconds()-0.05 || sum.Running > (running+ending).Seconds()+0.05 {
		t.Errorf("running: %v, want %v, and at most %v more", sum.Running, running, ending)
	}
	near("paused", sum.Paused, paused.Seconds())
	near("the promised cores", sum.AllocatedCPU, sum.Running)
	near("the promised memory", sum.AllocatedMemory/256, sum.Running+sum.Paused)
	near("the total", u.Total.Running, sum.Running)
	if u.Total.Sandboxes != 1 || running <= 0 || paused <= 0 {
		t.Errorf("%d sandboxes, running %v, paused %v", u.Total.Sandboxes, running, paused)
	}
	near("cpu", sum.CPU, over.Usage.CPUSeconds)
	if sum.CPU <= 0 {
		t.Error("the sandbox used no processor")
	}
}

type auditedRequest struct {
	ID, Action string
	At         time.Time
	ProjectID  *string `json:"project_id"`
	KeyID      *string `json:"key_id"`
	Object     *string
	Status     int
	Reason     *string
	RequestID  string `json:"request_id"`
	RemoteAddr string `json:"remote_addr"`
	UserAgent  string `json:"user_agent"`
}

func TestTheAuditLogSaysWhoChangedWhatAndWhoWasRefused(t *testing.T) {
	t.Parallel()
	c, tenant := whole(t)
	weak := tenant.Key(t, time.Time{}, "sandboxes:read")
	begun := time.Now().Add(-time.Second).UTC().Format(time.RFC3339)
	sb := own(t, c, fields{})
	sb.Must("true")
	refusedWith(t, weak, "DELETE", "/v1/sandboxes/"+sb.ID, 403)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.DeleteSandbox(ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	of := func(query string) (list []string) {
		for _, e := range tell[pageOf[auditedRequest]](t, c, "/v1/audit?order=asc&"+query).Items {
			list = append(list, fmt.Sprintf("%s %d %s %s", e.Action, e.Status, orNull(e.Object), orNull(e.Reason)))
			if orNull(e.ProjectID) != tenant.Project || e.KeyID == nil || !strings.HasPrefix(e.RemoteAddr, "127.") && e.RemoteAddr != "::1" || e.RequestID == "" {
				t.Errorf("the entry is %+v", e)
			}
		}
		return list
	}
	want := []string{
		"create-sandbox 201 " + sb.ID + " null",
		"delete-sandbox 403 " + sb.ID + " forbidden",
		"delete-sandbox 204 " + sb.ID + " null",
	}
	testkit.Eventually(t, time.Minute, "the three entries", func() error {
		if got := of("object=" + sb.ID); !slices.Equal(got, want) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	if got := of("action=create-sandbox"); !slices.Equal(got, want[:1]) {
		t.Errorf("of creates: %q", got)
	}

	// What nobody may ask is of no project: whoever may see all finds it.
	nobody := testkit.NewClient(testkit.Server(t).URL, testkit.NewKey())
	id := "audited-" + sb.ID
	resp, err := nobody.Do(ctx, http.MethodGet, "/v1/sandboxes", nil, "X-Request-Id", id)
	if err != nil || resp.Status != 401 {
		t.Fatal(resp, err)
	}
	testkit.Eventually(t, time.Minute, "the entry of a call without a key", func() error {
		// Of refusals only some of a second are kept, and other tests are refused as well.
		for _, e := range tell[pageOf[auditedRequest]](t, c, "/v1/audit?all_projects=true&limit=200&from="+begun+"&action=list-sandboxes").Items {
			if e.RequestID == id && e.Status == 401 && e.ProjectID == nil && e.KeyID == nil && orNull(e.Reason) == "unauthorized" {
				return nil
			}
		}
		_, err := nobody.Do(ctx, http.MethodGet, "/v1/sandboxes", nil, "X-Request-Id", id)
		return fmt.Errorf("it is not there yet (%v)", err)
	})
}

// projectHappening is an event of a project.
type projectHappening struct {
	ID        string
	Type      string
	SandboxID *string `json:"sandbox_id"`
	JobID     *string `json:"job_id"`
	SessionID *string `json:"session_id"`
	Data      map[string]any
}

func TestAProjectIsFollowedAsItHappensAndTakenUpAgain(t *testing.T) {
	t.Parallel()
	c, _ := whole(t)
	follow := func(headers ...string) *testkit.EventStream {
		t.Helper()
		s, resp, err := c.OpenEvents(t.Context(), "GET", "/v1/events?follow=true", nil, headers...)
		if err != nil || s == nil {
			t.Fatal(resp, err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	// until reads events up to one, and answers each in a word.
	until := func(s *testkit.EventStream, last string) (words, ids []string) {
		t.Helper()
		for len(words) == 0 || words[len(words)-1] != last {
			ev, err := s.Next()
			if err != nil {
				t.Fatalf("after %q: %v", words, err)
			}
			var h projectHappening
			if err := json.Unmarshal(ev.Data, &h); err != nil || h.ID != ev.ID || h.Type != ev.Name {
				t.Fatalf("%s %s: %v", ev.Name, ev.Data, err)
			}
			words, ids = append(words, fmt.Sprintf("%s %v", h.Type, h.Data["to"])), append(ids, h.ID)
			if h.JobID == nil && h.SessionID == nil && h.SandboxID == nil {
				t.Errorf("of nothing: %s", ev.Data)
			}
		}
		return words, ids
	}
	live := follow()
	s := c.Session(t, fields{"disk_gb": 0.1})
	job := c.Job(t, "print(1)")
	if job.Status != "success" {
		t.Fatal(job)
	}
	words, ids := until(live, "job_status success")
	for _, want := range []string{"session_status active", "job_status queued", "job_status running", "job_status success", "status READY"} {
		if !slices.Contains(words, want) {
			t.Errorf("%q was not told: %q", want, words)
		}
	}
	live.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.DeleteSession(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	again, _ := until(follow("Last-Event-ID", ids[0]), "session_status deleted")
	if !slices.Equal(again[:len(words)-1], words[1:]) {
		t.Errorf("taken up again: %q, was %q", again, words)
	}
	var only []string
	for _, h := range tell[feed[projectHappening]](t, c, "/v1/events?types=session_status&limit=200").Items {
		only = append(only, fmt.Sprint(h.Data["to"]))
		if orNull(h.SessionID) != s.ID {
			t.Errorf("an event of %s", orNull(h.SessionID))
		}
	}
	if len(only) < 2 || only[0] != "active" || only[len(only)-1] != "deleted" {
		t.Errorf("of sessions: %q", only)
	}
	stranger, _ := whole(t)
	if p := tell[feed[projectHappening]](t, stranger, "/v1/events"); len(p.Items) != 0 {
		t.Errorf("another project is told %+v", p.Items)
	}
}
