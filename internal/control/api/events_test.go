package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

// happen adds an event to a sandbox of the project and wakes who follows.
func (f *fakeSandboxes) happen(id cay.ID, kind cay.EventType, data map[string]any) {
	f.change(id, func(sb *cay.Sandbox) {
		if to, ok := data["to"].(string); ok {
			sb.Status = cay.Status(to)
		}
		f.events = append(f.events, cay.Event{
			Seq: int64(len(f.events) + 1), SandboxID: id, ProjectID: sb.ProjectID, Type: kind, At: time.UnixMilli(1_700_000_000_000), Data: data,
		})
	})
}

func (f *fakeSandboxes) Events(ctx context.Context, project, id cay.ID, after int64, limit int) (cay.EventPage, error) {
	sb, err := f.Get(ctx, project, id)
	if err != nil {
		return cay.EventPage{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := cay.EventPage{Reset: cay.EventSpan{Oldest: f.oldest, Newest: int64(len(f.events))}.Missed(after)}
	for _, e := range f.events {
		if e.SandboxID == id && e.Seq > after && e.Seq >= f.oldest && len(p.Events) < limit {
			p.Events = append(p.Events, e)
		}
	}
	p.Ended = sb.Status.Ended() && len(p.Events) < limit
	return p, nil
}

func (f *fakeSandboxes) NextEvents(ctx context.Context, project, id cay.ID, after int64, limit int) (cay.EventPage, error) {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		p, err := f.Events(ctx, project, id, after, limit)
		if err != nil || len(p.Events) > 0 || p.Ended || p.Reset {
			return p, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return cay.EventPage{}, nil
		}
	}
}

func statusData(from, to cay.Status) map[string]any {
	return map[string]any{"from": string(from), "to": string(to)}
}

// follow opens a stream of events. next reads one, io.EOF at its end.
func (r *rig) follow(path string, opts ...with) (next func() (event, error), leave func()) {
	r.Helper()
	res, err := http.DefaultClient.Do(r.request("GET", path, "", opts...))
	if err != nil {
		r.Fatal(err)
	}
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != eventStream {
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		r.Fatalf("got %d %s: %s", res.StatusCode, res.Header.Get("Content-Type"), b)
	}
	lines := bufio.NewReader(res.Body)
	return func() (event, error) {
		var e event
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return e, err
			}
			line = strings.TrimSuffix(line, "\n")
			if line == "" && e.name != "" {
				return e, nil
			}
			field, value, _ := strings.Cut(line, ": ")
			switch field {
			case "event":
				e.name = value
			case "id":
				e.id = value
			case "data":
				if err := json.Unmarshal([]byte(value), &e.data); err != nil {
					return e, err
				}
			}
		}
	}, func() { res.Body.Close() }
}

func TestEventsArePagedOldestFirst(t *testing.T) {
	r := newRig(t)
	id := r.boxes.add(projectA, cay.Ready)
	path := "/v1/sandboxes/" + string(id) + "/events"
	if a := r.status(r.do("GET", path, ""), 200); string(a.body) != `{"items":[],"next_cursor":null,"reset":false}`+"\n" {
		t.Errorf("without any: %s", a.body)
	}
	for n := range 5 {
		r.boxes.happen(id, cay.EventOOM, map[string]any{"pid": n})
	}
	var seen []string
	after := ""
	for range 3 {
		var page eventListAnswer
		a := r.status(r.do("GET", path+"?limit=2&after="+after, ""), 200)
		if err := json.Unmarshal(a.body, &page); err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Items {
			seen = append(seen, e.ID)
			if e.SandboxID != string(id) || e.Type != "oom" || e.At != "2023-11-14T22:13:20.000Z" {
				t.Errorf("got %+v", e)
			}
		}
		if page.NextCursor == nil {
			break
		}
		after = *page.NextCursor
	}
	if fmt.Sprint(seen) != "[1 2 3 4 5]" {
		t.Errorf("the pages hold %v", seen)
	}
}

type eventListAnswer struct {
	Items []struct {
		ID        string `json:"id"`
		SandboxID string `json:"sandbox_id"`
		Type, At  string
		Data      map[string]any
	}
	NextCursor *string `json:"next_cursor"`
	Reset      bool
}

func TestEventsAreFollowedToTheLastStatus(t *testing.T) {
	for name, open := range map[string]struct {
		query string
		with  with
	}{
		"with follow=true":    {"?follow=true", header("Accept", "application/json")},
		"with an event's id":  {"", func(r *http.Request) { r.Header.Set("Accept", eventStream); r.Header.Set("Last-Event-ID", "0") }},
		"with the media type": {"?limit=1", header("Accept", eventStream)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			id := r.boxes.add(projectA, cay.Creating)
			r.boxes.happen(id, cay.EventStatus, statusData(cay.Creating, cay.Ready))
			next, leave := r.follow("/v1/sandboxes/"+string(id)+"/events"+open.query, open.with)
			defer leave()
			expect := func(name, id, key, value string) {
				t.Helper()
				e, err := next()
				data, _ := e.data["data"].(map[string]any)
				if err != nil || e.name != name || e.id != id || e.data["id"] != id || e.data["type"] != name || data[key] != value {
					t.Fatalf("got %+v, %v, want %s %s with %s %s", e, err, name, id, key, value)
				}
			}
			expect("status", "1", "to", "READY")
			r.boxes.happen(id, cay.EventOOM, map[string]any{"process_id": "prc_1"})
			expect("oom", "2", "process_id", "prc_1")
			r.boxes.happen(id, cay.EventStatus, statusData(cay.Ready, cay.Terminating))
			r.boxes.happen(id, cay.EventStatus, statusData(cay.Terminating, cay.Terminated))
			expect("status", "3", "to", "TERMINATING")
			expect("status", "4", "to", "TERMINATED")
			if e, err := next(); err != io.EOF {
				t.Errorf("after the last status: %+v, %v", e, err)
			}
		})
	}
}

func TestAReaderThatMissedEventsIsTold(t *testing.T) {
	r := newRig(t)
	id := r.boxes.add(projectA, cay.Ready)
	for range 9 {
		r.boxes.happen(id, cay.EventOOM, nil)
	}
	r.boxes.oldest = 5
	path := "/v1/sandboxes/" + string(id) + "/events"
	for after, reset := range map[string]bool{"": false, "0": false, "3": true, "4": false, "9": false} {
		if got := r.do("GET", path+"?after="+after, "").member(t, "reset"); got != reset {
			t.Errorf("after %q: reset %v", after, got)
		}
	}
	next, leave := r.follow(path+"?follow=true&after=4", header("Last-Event-ID", "2"))
	defer leave()
	if e, err := next(); err != nil || e.name != "reset" || e.id != "" || len(e.data) != 0 {
		t.Fatalf("first comes %+v, %v", e, err)
	}
	if e, err := next(); err != nil || e.id != "5" {
		t.Fatalf("then comes %+v, %v", e, err)
	}
}

func TestAStreamOfWhatThereIsEnds(t *testing.T) {
	r := newRig(t)
	id := r.boxes.add(projectA, cay.Ready)
	for range 2*followPage + 1 {
		r.boxes.happen(id, cay.EventOOM, nil)
	}
	next, leave := r.follow("/v1/sandboxes/"+string(id)+"/events?follow=false", header("Accept", eventStream))
	defer leave()
	for n := range 2*followPage + 1 {
		if e, err := next(); err != nil || e.id != fmt.Sprint(n+1) {
			t.Fatalf("event %d is %+v, %v", n+1, e, err)
		}
	}
	if _, err := next(); err != io.EOF {
		t.Errorf("then %v", err)
	}
}

func TestAFollowerHearsThatTheServerGoesAway(t *testing.T) {
	r := newRig(t)
	id := r.boxes.add(projectA, cay.Ready)
	next, leave := r.follow("/v1/sandboxes/"+string(id)+"/events", header("Accept", eventStream))
	defer leave()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.api.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if e, err := next(); err != nil || e.name != "error" || e.data["reason"] != "unavailable" {
		t.Errorf("got %+v, %v", e, err)
	}
	if _, err := next(); err != io.EOF {
		t.Errorf("then %v", err)
	}
}

func TestASilentFollowerIsKeptAlive(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Keepalive = time.Millisecond })
	id := r.boxes.add(projectA, cay.Ready)
	res, err := http.DefaultClient.Do(r.request("GET", "/v1/sandboxes/"+string(id)+"/events?follow=true", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if line, err := bufio.NewReader(res.Body).ReadString('\n'); err != nil || line != ": keep-alive\n" {
		t.Errorf("got %q, %v", line, err)
	}
}

func TestEventsRefuseWhatMeansNothing(t *testing.T) {
	r := newRig(t)
	mine, theirs := r.boxes.add(projectA, cay.Ready), r.boxes.add(projectB, cay.Ready)
	path := "/v1/sandboxes/" + string(mine) + "/events"
	for field, query := range map[string]string{"after": "?after=x", "limit": "?limit=201", "follow": "?follow=maybe", "since": "?since=1"} {
		if a := r.refused(r.do("GET", path+query, ""), cay.InvalidRequest); a.member(t, "field") != field {
			t.Errorf("%s: the field is %v", query, a.member(t, "field"))
		}
	}
	if a := r.refused(r.do("GET", path, "", header("Accept", eventStream), header("Last-Event-ID", "-1")), cay.InvalidRequest); a.member(t, "field") != "Last-Event-ID" {
		t.Errorf("the field is %v", a.member(t, "field"))
	}
	for _, accept := range []string{"application/json", eventStream} {
		r.refused(r.do("GET", "/v1/sandboxes/"+string(theirs)+"/events", "", header("Accept", accept)), cay.NotFound)
	}
	r.status(r.do("HEAD", path+"?follow=true", ""), 405)
	r.status(r.do("HEAD", path, ""), 200)
	r.status(r.do("GET", path, "", header("Authorization", "Bearer "+readKey)), 200)
}
