package api

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// observedNode is what a fakeNode knows of a sandbox's past.
type observedNode struct {
	metrics *nodev1.GetMetricsRequest // the last
	logs    chan *nodev1.LogEntry     // closed at the sandbox's end
	broken  error                     // how the log ends
}

func (n *fakeNode) GetMetrics(_ context.Context, r *connect.Request[nodev1.GetMetricsRequest]) (*connect.Response[nodev1.GetMetricsResponse], error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.observed.metrics = r.Msg
	return connect.NewResponse(&nodev1.GetMetricsResponse{IntervalMs: 5000, Samples: []*nodev1.Sample{{
		AtUnixMs: 1_700_000_000_000, CpuCores: 0.5, CpuSeconds: 2.25, MemoryMb: 3, PeakMemoryMb: 4, DiskMb: 5, Pids: 6, NetworkRxBytes: 7, NetworkTxBytes: 8,
	}}}), nil
}

func (n *fakeNode) ReadLogs(ctx context.Context, r *connect.Request[nodev1.ReadLogsRequest], s *connect.ServerStream[nodev1.LogEntry]) error {
	n.mu.Lock()
	logs := n.observed.logs
	n.mu.Unlock()
	for {
		select {
		case e, ok := <-logs:
			if !ok {
				return noderpc.Encode(n.observed.broken)
			}
			if e.Seq <= r.Msg.After {
				continue
			}
			if err := s.Send(e); err != nil {
				return err
			}
			continue
		default:
			if !r.Msg.Follow {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return noderpc.Encode(ctx.Err())
		case <-time.After(time.Millisecond): // the log is looked at again
		}
	}
}

// said fills the fake's log.
func (r *rig) said(n int) {
	r.node.mu.Lock()
	defer r.node.mu.Unlock()
	r.node.observed.logs = make(chan *nodev1.LogEntry, 1000)
	for i := range n {
		r.node.observed.logs <- logNumber(i + 1)
	}
}

func logNumber(n int) *nodev1.LogEntry {
	return &nodev1.LogEntry{Seq: int64(n), AtUnixMs: 1_700_000_000_000, Source: "agent", Level: "warn", Message: fmt.Sprintf("message %d", n)}
}

func TestMetricsSayWhatTheNodeMeasured(t *testing.T) {
	r := newRig(t)
	path := "/v1/sandboxes/" + string(r.boxes.add(projectA, cay.Paused)) + "/metrics"
	const want = `{"items":[{"at":"2023-11-14T22:13:20.000Z","cpu_cores":0.5,"cpu_seconds":2.25,"memory_mb":3,"peak_memory_mb":4,"disk_mb":5,"pids":6,` +
		`"network_rx_bytes":7,"network_tx_bytes":8}],"interval_seconds":5}`
	if a := r.status(r.do("GET", path, ""), 200); strings.TrimSpace(string(a.body)) != want {
		t.Errorf("got %s", a.body)
	}
	if m := r.node.observed.metrics; m.Limit != 720 || m.ToUnixMs-m.FromUnixMs != time.Hour.Milliseconds() || time.Since(time.UnixMilli(m.ToUnixMs)) > time.Minute {
		t.Errorf("by default it asks %v", m)
	}
	r.status(r.do("GET", path+"?from=2026-01-02T15:04:05Z&to=2026-01-02T16:04:04%2B01:00&limit=7", ""), 400) // it ends before it begins
	r.status(r.do("GET", path+"?from=2026-01-02T15:04:05Z&to=2026-01-02T17:04:05.5%2B01:00&limit=7", ""), 200)
	if m := r.node.observed.metrics; m.Limit != 7 || m.FromUnixMs != 1767366245000 || m.ToUnixMs != 1767369845500 {
		t.Errorf("it asks %v", m)
	}
	for field, query := range map[string]string{"from": "?from=yesterday", "to": "?to=1", "limit": "?limit=0"} {
		if a := r.refused(r.do("GET", path+query, ""), cay.InvalidRequest); a.member(t, "field") != field {
			t.Errorf("%s: the field is %v", query, a.member(t, "field"))
		}
	}
}

func TestWhatIsObservedIsRefusedByTheStateOfTheSandbox(t *testing.T) {
	r := newRig(t)
	r.said(0)
	for status, reason := range map[cay.Status]cay.ErrorReason{
		cay.Creating: cay.NotReady, cay.Terminating: cay.Gone, cay.Terminated: cay.Gone, cay.Failed: cay.Gone,
	} {
		id := string(r.boxes.add(projectA, status))
		r.refused(r.do("GET", "/v1/sandboxes/"+id+"/metrics", ""), reason)
		r.refused(r.do("GET", "/v1/sandboxes/"+id+"/logs", ""), reason)
		r.refused(r.do("GET", "/v1/sandboxes/"+id+"/logs?follow=true", ""), reason)
	}
	theirs := "/v1/sandboxes/" + string(r.boxes.add(projectB, cay.Ready))
	r.refused(r.do("GET", theirs+"/metrics", ""), cay.NotFound)
	r.refused(r.do("GET", theirs+"/logs", ""), cay.NotFound)
	paused := r.boxes.add(projectA, cay.Paused)
	for _, what := range []string{"/metrics", "/logs", "/events"} {
		r.status(r.do("GET", "/v1/sandboxes/"+string(paused)+what, "", header("Authorization", "Bearer "+readKey)), 200)
	}
	if sb, err := r.boxes.Get(t.Context(), projectA, paused); err != nil || sb.Status != cay.Paused {
		t.Errorf("looking at a paused sandbox made it %v, %v", sb.Status, err)
	}
}

func TestLogsArePaged(t *testing.T) {
	r := newRig(t)
	path := "/v1/sandboxes/" + string(r.boxes.add(projectA, cay.Ready)) + "/logs"
	r.said(0)
	if a := r.status(r.do("GET", path, ""), 200); strings.TrimSpace(string(a.body)) != `{"items":[],"next_cursor":null}` {
		t.Errorf("an empty log: %s", a.body)
	}
	r.said(5)
	a := r.status(r.do("GET", path+"?limit=4", ""), 200)
	if items := a.member(t, "items").([]any); len(items) != 4 || a.member(t, "next_cursor") != "4" {
		t.Errorf("got %s", a.body)
	}
	r.said(5)
	a = r.status(r.do("GET", path+"?limit=4&after=4", ""), 200)
	const want = `{"items":[{"id":"5","at":"2023-11-14T22:13:20.000Z","source":"agent","level":"warn","message":"message 5"}],"next_cursor":null}`
	if strings.TrimSpace(string(a.body)) != want {
		t.Errorf("got %s", a.body)
	}
}

func TestLogsAreFollowedToTheEndOfTheSandbox(t *testing.T) {
	r := newRig(t)
	path := "/v1/sandboxes/" + string(r.boxes.add(projectA, cay.Ready)) + "/logs"
	r.said(2)
	next, leave := r.follow(path+"?follow=true", header("Last-Event-ID", "1"))
	defer leave()
	expect := func(id string) {
		t.Helper()
		if e, err := next(); err != nil || e.name != "log" || e.id != id || e.data["id"] != id || e.data["source"] != "agent" {
			t.Fatalf("got %+v, %v, want %s", e, err, id)
		}
	}
	expect("2")
	r.node.observed.logs <- logNumber(3)
	expect("3")
	close(r.node.observed.logs)
	if e, err := next(); err != io.EOF {
		t.Errorf("at the end comes %+v, %v", e, err)
	}
}

func TestAFollowerOfALogThatBreaksIsTold(t *testing.T) {
	r := newRig(t)
	path := "/v1/sandboxes/" + string(r.boxes.add(projectA, cay.Ready)) + "/logs?follow=true"
	r.said(0)
	r.node.observed.broken = cay.Errorf(cay.Unavailable, "the worker is restarting")
	close(r.node.observed.logs)
	next, leave := r.follow(path)
	defer leave()
	if e, err := next(); err != nil || e.name != "error" || e.data["reason"] != "unavailable" {
		t.Errorf("got %+v, %v", e, err)
	}
	r.said(0)
	next, leave = r.follow(path)
	defer leave()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.api.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if e, err := next(); err != nil || e.name != "error" {
		t.Errorf("got %+v, %v", e, err)
	}
}
