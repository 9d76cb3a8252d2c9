package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
)

func TestTheHistoryIsReadPageByPage(t *testing.T) {
	server, c := connect(t)
	for _, id := range []string{"prc_1", "prc_2", "prc_3"} {
		server.AddRecord(map[string]any{"id": id, "kind": "exec", "command": "make " + id, "ok": id == "prc_2", "exit_code": 2, "duration_ms": 1500, "key_id": nil, "signal": nil, "ended_at": "2026-01-02T15:04:05.000Z"})
	}
	server.AddRecord(map[string]any{"id": "job_1", "kind": "job", "ok": true, "exit_code": nil})
	var ids []string
	for r, err := range c.History().List(within(t), client.HistoryOptions{Kinds: []client.RecordKind{client.RecordExec, client.RecordCode}, PageSize: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.ID)
		if r.Duration != 1500*time.Millisecond || r.ExitCode == nil || *r.ExitCode != 2 || r.EndedAt.Year() != 2026 || r.Command != "make "+r.ID || len(r.Raw) == 0 {
			t.Errorf("got %+v", r)
		}
	}
	if len(ids) != 3 || ids[0] != "prc_3" {
		t.Errorf("listed %v", ids)
	}
	failed := false
	n := 0
	for _, err := range c.History().List(within(t), client.HistoryOptions{OK: &failed, Text: "make"}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("%d failed", n)
	}
	r, err := c.History().Get(within(t), "job_1")
	if err != nil || r.Kind != client.RecordJob || r.ExitCode != nil {
		t.Errorf("got %+v, %v", r, err)
	}
	var refused *client.Error
	if _, err := c.History().Get(within(t), "job_2"); !errors.As(err, &refused) || refused.Reason != "not_found" {
		t.Errorf("of an unknown one: %v", err)
	}
}

func TestUsageIsReadToItsEnd(t *testing.T) {
	server, c := connect(t)
	for range 450 {
		server.AddUsage(map[string]any{"day": "2026-01-02", "sandbox_id": "sbx_1", "sandboxes": 1, "running_seconds": 2.5})
	}
	day := time.Date(2026, 1, 2, 23, 0, 0, 0, time.UTC)
	u, err := c.Usage(within(t), client.UsageOptions{From: day, To: day, GroupBy: []client.UsageGroup{client.UsageByDay, client.UsageBySandbox}})
	if err != nil {
		t.Fatal(err)
	}
	if len(u.Items) != 450 || u.From != "2026-01-02" || u.To != "2026-01-02" || len(u.GroupBy) != 2 || u.Total.RunningSeconds != 60 || u.Items[449].RunningSeconds != 2.5 {
		t.Errorf("%d items, from %s to %s by %v, total %+v", len(u.Items), u.From, u.To, u.GroupBy, u.Total)
	}
}

func TestTheAuditLogIsListed(t *testing.T) {
	server, c := connect(t)
	server.AddAudit(map[string]any{"action": "create-sandbox", "object": "sbx_1", "status": 201, "reason": nil})
	server.AddAudit(map[string]any{"action": "delete-sandbox", "object": "sbx_1", "status": 403, "reason": "forbidden"})
	n := 0
	for e, err := range c.Audit().List(within(t), client.AuditOptions{Action: "delete-sandbox"}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if e.ID != "2" || e.Status != 403 || e.Reason != "forbidden" || e.Object != "sbx_1" {
			t.Errorf("got %+v", e)
		}
	}
	if n != 1 {
		t.Errorf("%d entries, want one", n)
	}
}

func TestAProjectIsFollowedOverBrokenConnections(t *testing.T) {
	server, c := connect(t)
	ctx, stop := context.WithCancel(within(t))
	defer stop()
	server.Happen("job_status", map[string]any{"job_id": "job_1", "sandbox_id": nil, "data": map[string]any{"to": "queued"}})
	var told []string
	for e, err := range c.ProjectEvents(ctx, client.ProjectEventOptions{FeedOptions: client.FeedOptions{Follow: true}, Types: []string{"job_status", "status"}}) {
		if errors.Is(err, context.Canceled) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, e.ID+e.Type+e.JobID+e.SandboxID)
		switch len(told) {
		case 1:
			server.Break()
			server.Happen("status", map[string]any{"sandbox_id": "sbx_1"})
		case 2:
			stop()
		}
	}
	if len(told) != 2 || told[0] != "1job_statusjob_1" || told[1] != "2statussbx_1" {
		t.Errorf("told %q", told)
	}
	n := 0
	for _, err := range c.ProjectEvents(within(t), client.ProjectEventOptions{FeedOptions: client.FeedOptions{After: "1"}}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d events after the first", n)
	}
}
