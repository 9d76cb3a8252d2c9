package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// fakeHistory answers what the test puts into it, and keeps what it was asked.
type fakeHistory struct {
	mu      sync.Mutex
	records cay.RecordQuery
	usage   cay.UsageQuery
	past    cay.AuditQuery
	noted   []cay.AuditEntry
}

func (f *fakeHistory) Record(_ context.Context, _, id cay.ID) (cay.Record, error) {
	return cay.Record{}, cay.Errorf(cay.NotFound, "there is no record of %s", id)
}

func (f *fakeHistory) Records(_ context.Context, _ cay.ID, q cay.RecordQuery) ([]cay.Record, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.records = q
	return []cay.Record{{ID: "prc_1", Kind: cay.RecordExec, Duration: 1500 * time.Millisecond}}, "next", nil
}

func (f *fakeHistory) Usage(_ context.Context, _ cay.ID, q cay.UsageQuery) ([]cay.UsageRow, cay.UsageRow, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usage = q
	row := cay.UsageRow{Day: q.From, Sandboxes: 1, UsageAmounts: cay.UsageAmounts{RunningSeconds: 0.1 + 0.2}}
	return []cay.UsageRow{row}, row, "", nil
}

func (f *fakeHistory) Audit(_ context.Context, _ cay.ID, q cay.AuditQuery) ([]cay.AuditEntry, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.past = q
	return slices.Clone(f.noted), "", nil
}

func (f *fakeHistory) NoteAudit(e cay.AuditEntry) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noted = append(f.noted, e)
}

func (f *fakeHistory) Events(context.Context, cay.ID, cay.EventQuery) (cay.EventPage, error) {
	return cay.EventPage{}, nil
}

func (f *fakeHistory) NextEvents(ctx context.Context, _ cay.ID, _ cay.EventQuery) (cay.EventPage, error) {
	<-ctx.Done()
	return cay.EventPage{}, nil
}

func withHistory(t *testing.T) (*rig, *fakeHistory) {
	t.Helper()
	past := &fakeHistory{}
	return newRig(t, func(c *Config) { c.History = past }), past
}

func TestWithoutAHistoryItsRoutesAreNotImplemented(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/v1/history", "/v1/usage", "/v1/audit", "/v1/events", "/v1/history/prc_1"} {
		r.refused(r.do("GET", path, ""), cay.NotImplemented)
	}
}

func TestTheHistoryIsAskedForWhatTheQuerySays(t *testing.T) {
	r, past := withHistory(t)
	sandbox := cay.NewID(cay.PrefixSandbox)
	a := r.status(r.do("GET", "/v1/history?kind=exec,job&outcome=timeout,oom&ok=false&text=x&limit=7&order=asc&from=2026-01-02T00:00:00Z&all_projects=true&sandbox_id="+string(sandbox), ""), 200)
	q := past.records
	if !slices.Equal(q.Kinds, []cay.RecordKind{cay.RecordExec, cay.RecordJob}) || !slices.Equal(q.Outcomes, []string{"timeout", "oom"}) || q.OK == nil || *q.OK || q.Text != "x" ||
		q.Limit != 7 || !q.Ascending || q.From.Year() != 2026 || !q.To.IsZero() || !q.AllProjects || q.SandboxID != sandbox {
		t.Errorf("asked %+v", q)
	}
	if a.member(t, "next_cursor") != "next" || !strings.Contains(string(a.body), `"duration_ms":1500`) || !strings.Contains(string(a.body), `"key_id":null`) {
		t.Errorf("answered %s", a.body)
	}
	r.refused(r.do("GET", "/v1/history?all_projects=true", "", header("Authorization", "Bearer "+readKey)), cay.Forbidden)
}

func TestUsageIsOfWholeDays(t *testing.T) {
	r, past := withHistory(t)
	for query, want := range map[string]string{
		"from=2026-01-02&to=2026-01-03":                          "2026-01-02 2026-01-04",
		"from=2026-01-02&to=2026-01-02":                          "2026-01-02 2026-01-03",
		"from=2026-01-02T23:59:59Z&to=2026-01-04T00:00:00Z":      "2026-01-02 2026-01-04", // a time is where it ends
		"from=2026-01-02T23:00:00-05:00&to=2026-01-04T00:00:01Z": "2026-01-03 2026-01-05",
		"to=2026-01-30": "2026-01-01 2026-01-31",
	} {
		a := r.status(r.do("GET", "/v1/usage?"+strings.ReplaceAll(query, "+", "%2B"), ""), 200)
		if got := past.usage.From.Format(dayForm) + " " + past.usage.To.Format(dayForm); got != want {
			t.Errorf("%s: from %s", query, got)
		}
		if a.member(t, "from") != past.usage.From.Format(dayForm) || !strings.Contains(string(a.body), `"running_seconds":0.3,`) {
			t.Errorf("answered %s", a.body)
		}
	}
	r.status(r.do("GET", "/v1/usage", ""), 200)
	if days := past.usage.To.Sub(past.usage.From).Hours() / 24; days != 30 || past.usage.To.Before(time.Now()) || !slices.Equal(past.usage.GroupBy, []cay.UsageGroup{cay.UsageByDay}) {
		t.Errorf("by default %+v", past.usage)
	}
}

func TestWhatChangesSomethingAndWhoIsRefusedIsAudited(t *testing.T) {
	r, past := withHistory(t)
	id := string(r.boxes.add(projectA, cay.Ready))
	box := "/v1/sandboxes/" + id
	weak := header("Authorization", "Bearer "+readKey)
	for _, step := range []struct {
		ask  func() answer
		want string // action, status, object, reason; "": no entry
	}{
		{func() answer { return r.do("GET", box, "") }, ""},
		{func() answer { return r.do("POST", box+"/exec", `{"command":"x"}`) }, ""},
		{func() answer { return r.do("POST", box+"/files/mkdir", `{"path":"/a"}`) }, ""},
		{func() answer { return r.do("POST", box+"/pause", "") }, "pause-sandbox 200 " + id + " "},
		{func() answer { return r.do("POST", box+"/resume", "", weak) }, "resume-sandbox 403 " + id + " forbidden"},
		{func() answer { return r.do("POST", box+"/exec", `{"command":"x"}`, weak) }, "exec 403 " + id + " forbidden"},
		{func() answer { return r.do("GET", box, "", noKey) }, "get-sandbox 401 " + id + " unauthorized"},
		{func() answer { return r.do("POST", "/v1/sandboxes", `{"cpu":5000}`) }, "create-sandbox 422  unprocessable"},
		{func() answer { return r.do("POST", "/v1/tickets", `{"method":"GET","url":"/v1/info"}`) }, "create-ticket 200  "},
		{func() answer { return r.do("DELETE", "/v1/sandboxes/nonsense", "") }, "delete-sandbox 404  not_found"},
		{func() answer { return r.do("PUT", "/v1/info", "", header("Origin", "https://evil.example")) }, "unmatched 403  forbidden"},
		{func() answer { return r.do("GET", box+"/ports/80/", "", noKey) }, "port 401  unauthorized"},
	} {
		past.mu.Lock()
		past.noted = nil
		past.mu.Unlock()
		step.ask()
		// The entry is made once the answer is out: another request on the same connection comes after it.
		r.do("GET", "/healthz", "")
		past.mu.Lock()
		var got []string
		for _, e := range past.noted {
			got = append(got, fmt.Sprintf("%s %d %s %s", e.Action, e.Status, e.Object, e.Reason))
			if e.RemoteAddr != "127.0.0.1" || e.RequestID == "" || e.At.IsZero() || e.UserAgent == "" || (e.Status == http.StatusUnauthorized || e.Action == unmatched) != (e.KeyID == "") {
				t.Errorf("the entry is %+v", e)
			}
		}
		past.mu.Unlock()
		if step.want == "" && len(got) > 0 || step.want != "" && !slices.Equal(got, []string{step.want}) {
			t.Errorf("noted %q, want %q", got, step.want)
		}
		if action, _, ok := strings.Cut(step.want, " "); ok {
			r.status(r.do("GET", "/v1/audit?action="+action, ""), 200)
		}
	}
}

func TestTheAuditLogCanBeReadWhateverAClientCallsItself(t *testing.T) {
	r, past := withHistory(t)
	r.refused(r.do("GET", "/v1/info", "", noKey, header("User-Agent", strings.Repeat("\xff\xe4", 200))), cay.Unauthorized)
	r.do("GET", "/healthz", "")
	a := r.status(r.do("GET", "/v1/audit", ""), 200)
	past.mu.Lock()
	defer past.mu.Unlock()
	if len(past.noted) != 1 || !strings.Contains(string(a.body), "\uFFFD") || len(past.noted[0].UserAgent) > maxUserAgent {
		t.Errorf("noted %+v, answered %s", past.noted, a.body)
	}
}

func TestWhatIsMadeIsTheObjectOfItsEntry(t *testing.T) {
	r, past := withHistory(t)
	a := r.status(r.do("POST", "/v1/sandboxes", `{}`), 201)
	var sb struct{ ID string }
	if err := json.Unmarshal(a.body, &sb); err != nil {
		t.Fatal(err)
	}
	r.do("GET", "/healthz", "")
	past.mu.Lock()
	defer past.mu.Unlock()
	if len(past.noted) != 1 || past.noted[0].Object != sb.ID || past.noted[0].ProjectID != projectA {
		t.Errorf("noted %+v", past.noted)
	}
}
