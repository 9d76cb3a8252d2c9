package client_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/client"
)

func TestEventsAreFollowedOverBrokenConnectionsToTheEnd(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	var told []string
	for e, err := range c.Events(ctx, id, client.FeedOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.Type != "status" || e.SandboxID != id || e.At.IsZero() {
			t.Errorf("got %+v", e)
		}
		told = append(told, e.ID)
		switch e.ID {
		case "1":
			server.Break()
			_, err = c.Pause(ctx, id)
		case "2":
			server.Break()
			_, err = c.Delete(ctx, id)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if strings.Join(told, " ") != "1 2 3" {
		t.Errorf("told %v", told)
	}
	told = nil
	for e, err := range c.Events(ctx, id, client.FeedOptions{After: "1"}) { // also of one that has ended
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, e.ID+string(e.Data))
	}
	if len(told) != 2 || !strings.Contains(told[1], "TERMINATED") {
		t.Errorf("told %v", told)
	}
}

func TestEventsThatAreNoLongerKeptAreSaidToBeMissing(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	for _, do := range []func() error{
		func() error { _, err := c.Pause(ctx, id); return err },
		func() error { _, err := c.Resume(ctx, id, 0); return err },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	server.ForgetEvents(id, 2)
	var told []string
	for e, err := range c.Events(ctx, id, client.FeedOptions{After: "1"}) {
		if err != nil {
			t.Fatal(err)
		}
		told = append(told, e.Type+e.ID)
	}
	if strings.Join(told, " ") != "reset status3" {
		t.Errorf("told %v", told)
	}
}

func TestLogsAreReadAndFollowed(t *testing.T) {
	server, c := connect(t)
	ctx, id := within(t), sandbox(t, c)
	lines := 0
	for l, err := range c.Logs(ctx, id, client.FeedOptions{}) {
		if err != nil || l.Source != "boot" || l.Message == "" {
			t.Fatalf("got %+v, %v", l, err)
		}
		lines++
	}
	for l, err := range c.Logs(ctx, id, client.FeedOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		if l.Source == "boot" {
			server.Log(id, "agent", "warn", "low on disk")
			continue
		}
		if l.Level != "warn" || l.Message != "low on disk" || lines != 1 {
			t.Errorf("got %+v after %d", l, lines)
		}
		break
	}
	if _, err := c.Delete(ctx, id); err != nil {
		t.Fatal(err)
	}
	for _, err := range c.Logs(ctx, id, client.FeedOptions{}) {
		if client.ReasonOf(err) != client.ReasonGone {
			t.Errorf("after the end: %v", err)
		}
	}
}

func TestMetricsAreReadOverTime(t *testing.T) {
	server, c := connect(t)
	from := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	m, err := c.Metrics(within(t), sandbox(t, c), client.MetricsOptions{From: from, Limit: 10})
	if err != nil || len(m.Items) != 2 || m.Interval != 5*time.Second || m.Items[1].CPUSeconds != 11 || m.Items[0].At.IsZero() {
		t.Fatalf("got %+v, %v", m, err)
	}
	all := server.Requests()
	if q := all[len(all)-1].Query; q != "from=2026-01-02T03%3A04%3A05.006Z&limit=10" {
		t.Errorf("asked for %s", q)
	}
}
