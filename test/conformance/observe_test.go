package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// happening is an event of a sandbox.
type happening struct {
	ID        string    `json:"id"`
	SandboxID string    `json:"sandbox_id"`
	Type      string    `json:"type"`
	At        time.Time `json:"at"`
	Data      map[string]any
}

// feed is a page of a sandbox's events or log.
type feed[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor"`
	Reset      bool
}

type said struct {
	ID, Source, Level, Message string
	At                         time.Time
}

type sampled struct {
	At           time.Time `json:"at"`
	CPUCores     float64   `json:"cpu_cores"`
	CPUSeconds   float64   `json:"cpu_seconds"`
	MemoryMB     int64     `json:"memory_mb"`
	PeakMemoryMB int64     `json:"peak_memory_mb"`
	DiskMB       int64     `json:"disk_mb"`
	PIDs         int64     `json:"pids"`
	Rx           *int64    `json:"network_rx_bytes"`
	Tx           *int64    `json:"network_tx_bytes"`
}

func get[T any](t *testing.T, sb *testkit.Sandbox, path string) T {
	t.Helper()
	var v T
	if err := sb.Call("GET", path, nil).Decode(200, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// following opens a stream of events or of a log.
func following(t *testing.T, sb *testkit.Sandbox, path string, headers ...string) *testkit.EventStream {
	t.Helper()
	s, resp, err := sb.OpenEvents(t.Context(), "GET", sb.Path(path), nil, headers...)
	if err != nil || s == nil {
		t.Fatalf("%s: %v, %v", path, resp, err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// next reads an event of the stream.
func next(t *testing.T, s *testkit.EventStream) (name string, h happening) {
	t.Helper()
	ev, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(ev.Data, &h); err != nil {
		t.Fatal(err)
	}
	if h.ID != ev.ID {
		t.Errorf("the event %s has the id %q and says %q", ev.Name, ev.ID, h.ID)
	}
	return ev.Name, h
}

func TestALifeIsToldAsItHappensAndAfterItsEnd(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"auto_resume": false})
	s := following(t, sb, "/events?follow=true")
	var lastID string
	status := func(from, to, reason string) {
		t.Helper()
		name, h := next(t, s)
		if got := fmt.Sprint(h.Data["from"], h.Data["to"], h.Data["reason"]); name != "status" || h.Type != "status" || h.SandboxID != sb.ID || got != fmt.Sprint(from, to, any(nilIfEmpty(reason))) {
			t.Fatalf("got %s %+v, want %s to %s %s", name, h, from, to, reason)
		}
		if off := time.Since(h.At); off < -time.Second || off > time.Minute {
			t.Errorf("it happened %v ago", off)
		}
		lastID = h.ID
	}
	status("CREATING", "READY", "")
	begun := time.Now()
	pause(t, sb)
	status("READY", "PAUSED", "")
	resume(t, sb)
	status("PAUSED", "READY", "")
	if took := time.Since(begun); took > 45*time.Second {
		t.Errorf("a pause and a resume were told after %v", took)
	}
	middle := lastID
	if err := sb.DeleteSandbox(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	status("READY", "TERMINATING", "deleted")
	status("TERMINATING", "TERMINATED", "deleted")
	if ev, err := s.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last status: %+v, %v", ev, err)
	}

	all := get[feed[happening]](t, sb, "/events")
	if len(all.Items) != 5 || all.NextCursor != "" || all.Items[4].ID != lastID {
		t.Errorf("after the end there are %+v", all)
	}
	page := get[feed[happening]](t, sb, "/events?limit=2&after="+middle)
	if len(page.Items) != 2 || page.Items[0].Data["to"] != "TERMINATING" {
		t.Errorf("after the resume there are %+v", page)
	}
	again := following(t, sb, "/events", "Last-Event-ID", middle)
	for range 2 {
		next(t, again)
	}
	if _, err := again.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("a follower of what has ended gets %v", err)
	}
	if ev, err := following(t, sb, "/events", "Last-Event-ID", "9000000000000000").Next(); err != nil || ev.Name != "reset" || string(ev.Data) != "{}" {
		t.Errorf("with an id that never was comes %+v, %v", ev, err)
	}
}

func nilIfEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func TestAProcessKilledForMemoryIsAnEventThatNamesIt(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"memory_mb": 256})
	sb.RequireProgram("python3")
	s := following(t, sb, "/events?follow=true")
	next(t, s)
	out := sb.X(`python3 -c "x=bytearray(1<<30)"`)
	for {
		name, h := next(t, s)
		if name == "status" { // the sandbox died of it, and says so
			if h.Data["reason"] != "oom" {
				t.Errorf("got %+v", h)
			}
			return
		}
		if name == "oom" {
			if rss, _ := h.Data["rss_mb"].(float64); rss < 64 || h.Data["pid"] == nil || h.Data["process_id"] != out.ProcessID {
				t.Errorf("process %s was killed, and told was %+v", out.ProcessID, h)
			}
			return
		}
	}
}

func TestAFullDiskIsAnEvent(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"disk_gb": 0.1})
	s := following(t, sb, "/events?follow=true")
	next(t, s)
	sb.Must("dd if=/dev/zero of=/workspace/big bs=1M 2>/dev/null; true")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	defer context.AfterFunc(ctx, func() { s.Close() })()
	name, h := next(t, s)
	if disk, _ := h.Data["disk_mb"].(float64); name != "disk_full" || disk < 90 || h.Data["limit_mb"] != 102.0 {
		t.Errorf("got %s %+v", name, h)
	}
	sb.Must("rm /workspace/big; echo there is room > /workspace/small")
}

func TestMetricsShowWhatASandboxUses(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"cpu": 1})
	begun := time.Now()
	sb.Must("timeout 7 sh -c 'while :; do :; done'; dd if=/dev/zero of=/workspace/f bs=1M count=50 2>/dev/null; sync", fields{"timeout_seconds": 120})
	var list struct {
		Items    []sampled `json:"items"`
		Interval float64   `json:"interval_seconds"`
	}
	testkit.Eventually(t, time.Minute, "samples after the work", func() error {
		list.Items = nil
		if err := sb.Call("GET", "/metrics", nil).Decode(200, &list); err != nil {
			return err
		}
		if n := len(list.Items); n < 2 || list.Items[n-1].DiskMB < 50 {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
	last, busy := list.Items[len(list.Items)-1], 0.0
	for i, s := range list.Items {
		busy = max(busy, s.CPUCores)
		if i > 0 && (!s.At.After(list.Items[i-1].At) || s.CPUSeconds < list.Items[i-1].CPUSeconds) {
			t.Errorf("after %+v comes %+v", list.Items[i-1], s)
		}
	}
	if list.Interval != 5 || busy < 0.1 || busy > 1.5 || last.CPUSeconds < 1 || last.MemoryMB < 1 || last.PeakMemoryMB < last.MemoryMB || last.PIDs < 1 || last.Rx == nil || *last.Rx != 0 || *last.Tx != 0 {
		t.Errorf("%v busy cores, last %+v", busy, last)
	}
	if one := get[feed[sampled]](t, sb, "/metrics?limit=1"); len(one.Items) != 1 || one.Items[0].At.Before(last.At) {
		t.Errorf("a limit of 1 leaves %+v", one.Items)
	}
	at := func(t time.Time) string { return url.QueryEscape(t.UTC().Format(time.RFC3339Nano)) }
	if none := get[feed[sampled]](t, sb, "/metrics?from="+at(begun.Add(-time.Hour))+"&to="+at(begun.Add(-time.Minute))); len(none.Items) != 0 {
		t.Errorf("before its time there are %+v", none.Items)
	}
}

func TestAFrozenSandboxUsesNoCPU(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"auto_resume": false})
	sb.Must("(while :; do :; done) >/dev/null 2>&1 & echo")
	pause(t, sb)
	paused := time.Now()
	var frozen []sampled // those whose time before them was all spent paused
	testkit.Eventually(t, time.Minute, "samples while it is paused", func() error {
		frozen = nil
		for i, s := range get[feed[sampled]](t, sb, "/metrics").Items {
			if s.At.After(paused.Add(6*time.Second)) && i > 0 {
				frozen = append(frozen, s)
			}
		}
		if len(frozen) < 2 {
			return fmt.Errorf("there are %d", len(frozen))
		}
		return nil
	})
	for _, s := range frozen {
		if s.CPUCores > 0.001 || s.CPUSeconds > frozen[0].CPUSeconds+0.001 || s.MemoryMB < 1 {
			t.Errorf("it uses %+v", s)
		}
	}
	if now := sb.Refresh(); now.Status != "PAUSED" {
		t.Errorf("asking for metrics made it %s", now.Status)
	}
	resume(t, sb)
	sb.MustSay("awake\n", "echo awake")
}

func TestALogTellsWhatBootAndWorkerDid(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"env": fields{"TOKEN": "s3cr3t-value"}, "auto_resume": false})
	s := following(t, sb, "/logs?follow=true")
	read := func(text string) said {
		t.Helper()
		for {
			ev, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			var e said
			if err := json.Unmarshal(ev.Data, &e); err != nil || ev.Name != "log" || ev.ID != e.ID {
				t.Fatalf("got %+v, %v", ev, err)
			}
			if strings.Contains(e.Message, text) {
				return e
			}
		}
	}
	if e := read("ready after"); e.Source != "boot" || e.Level != "info" || time.Since(e.At) > time.Minute {
		t.Errorf("got %+v", e)
	}
	sb.Must("echo what programs print is not in it; echo s3cr3t-value >&2")
	pause(t, sb)
	read("paused within")
	page := get[feed[said]](t, sb, "/logs?limit=1")
	if len(page.Items) != 1 || page.NextCursor != page.Items[0].ID {
		t.Errorf("a page of one is %+v", page)
	}
	rest := get[feed[said]](t, sb, "/logs?after="+page.NextCursor)
	for _, e := range append(page.Items, rest.Items...) {
		for _, bad := range []string{"s3cr3t", "what programs print", testkit.Server(t).DataDir} {
			if strings.Contains(e.Message, bad) {
				t.Errorf("%q is in %+v", bad, e)
			}
		}
	}
	resume(t, sb)
	read("resumed within")
	if err := sb.DeleteSandbox(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	if ev, err := s.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after its end: %+v, %v", ev, err)
	}
	for _, what := range []string{"/logs", "/logs?follow=true", "/metrics"} {
		if resp := sb.Call("GET", what, nil); resp.Status != 410 || resp.Problem().StatusReason != "deleted" {
			t.Errorf("%s after the end: %v", what, resp)
		}
	}
}

func TestObservingIsNoActivity(t *testing.T) {
	t.Parallel()
	sb := box(t, fields{"idle_timeout_seconds": 3})
	events, logs := following(t, sb, "/events?follow=true"), following(t, sb, "/logs?follow=true")
	testkit.Eventually(t, time.Minute, "it ends although it is observed", func() error {
		for _, what := range []string{"/metrics", "/events", "/logs", ""} {
			if resp := sb.Call("GET", what, nil); resp.Status != 200 && resp.Status != 410 {
				t.Errorf("%s: %v", what, resp)
			}
		}
		if now := sb.Refresh(); now.Status != "TERMINATED" || now.StatusReason != "idle_timeout" {
			return fmt.Errorf("it is %s (%s)", now.Status, now.StatusReason)
		}
		return nil
	})
	for _, s := range []*testkit.EventStream{events, logs} {
		for {
			if _, err := s.Next(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}
