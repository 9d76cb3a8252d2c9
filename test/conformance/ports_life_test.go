package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/testkit"
)

func TestClientsThatGoLeaveNoConnectionsBehindAtADeafServer(t *testing.T) {
	const more = 300 // than a sandbox can have connections
	s := serve(t, "127.0.0.1:3000")
	var clients sync.WaitGroup
	slots := make(chan struct{}, 16)
	for range more {
		slots <- struct{}{}
		clients.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, _ = s.Do(ctx, "GET", s.Path(s.path("/deaf")), nil) // there is no answer
		})
	}
	clients.Wait()
	testkit.Eventually(t, time.Minute, "new connections are possible", func() error {
		for range 3 {
			if resp := s.Call("GET", s.path("/small"), nil, "Connection", "close"); resp.Status != 200 {
				return fmt.Errorf("%v", resp)
			}
		}
		return nil
	})
}

func TestARemovedPortAndADeletedSandboxAreGone(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	e := s.expose(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	socket := func() *websocket.Conn {
		t.Helper()
		conn, _, err := e.socket(ctx, "/ws", e.token()...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.CloseNow() })
		return conn
	}
	conn := socket()
	if resp := s.Call("DELETE", s.path(""), nil); resp.Status != 204 {
		t.Fatalf("remove: %v", resp)
	}
	if _, _, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the connection of a removed port: %v", err)
	}
	if resp := e.ask("GET", "/small", nil, e.token()...); resp.Status != 404 {
		t.Errorf("a removed port: %v", resp)
	}
	if resp := s.Call("DELETE", s.path(""), nil); resp.Status != 404 {
		t.Errorf("remove again: %v", resp)
	}
	if resp := s.Call("GET", s.path("/small"), nil); resp.Status != 200 {
		t.Errorf("the path form needs no URL: %v", resp)
	}
	old := *e.Token
	if e = s.expose(false); *e.Token == old {
		t.Error("a port that is exposed anew has its old token")
	}
	if resp := e.ask("GET", "/small", nil, "Cay-Port-Token", old); resp.Status != 401 {
		t.Errorf("the old token: %v", resp)
	}
	conn = socket()
	if err := s.DeleteSandbox(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the connection of a deleted sandbox: %v", err)
	}
	for name, resp := range map[string]testkit.Response{
		"the URL": e.ask("GET", "/small", nil, e.token()...), "the URL without a token": e.ask("GET", "/small", nil), "the path form": s.Call("GET", s.path("/small"), nil), "the list": s.Call("GET", "/ports", nil),
	} {
		if resp.Status != 410 || resp.Problem().StatusReason != "deleted" {
			t.Errorf("%s of a deleted sandbox: %v", name, resp)
		}
	}
}

func TestAPausedSandboxWakesForItsPortIfItMay(t *testing.T) {
	s := serve(t, "127.0.0.1:3000", fields{"auto_resume": true})
	e := s.expose(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, _, err := e.socket(ctx, "/ws", e.token()...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	pause := func(sb *testkit.Sandbox) {
		t.Helper()
		if resp := sb.Call("POST", "/pause", nil); resp.Status != 200 {
			t.Fatalf("pause: %v", resp)
		}
	}
	pause(s.Sandbox) // an open connection is no obstacle
	if err := conn.Write(ctx, websocket.MessageText, []byte("while it stands still")); err != nil {
		t.Fatal(err)
	}
	if resp := e.ask("GET", "/small", nil); resp.Status != 401 || s.Refresh().Status != "PAUSED" {
		t.Errorf("a stranger: %v, and the sandbox is %s", resp, s.Refresh().Status)
	}
	if resp := e.ask("GET", "/small", nil, e.token()...); resp.Status != 200 {
		t.Errorf("paused, by its URL: %v", resp)
	}
	if _, got, err := conn.Read(ctx); err != nil || string(got) != "while it stands still" {
		t.Errorf("the connection from before the pause: %q, %v", got, err)
	}
	pause(s.Sandbox)
	if resp := s.Call("GET", s.path("/small"), nil); resp.Status != 200 {
		t.Errorf("paused, by the path form: %v", resp)
	}
	asleep := serve(t, "127.0.0.1:3000", fields{"auto_resume": false})
	pause(asleep.Sandbox)
	sleeping := asleep.expose(false)
	for name, resp := range map[string]testkit.Response{"by its URL": sleeping.ask("GET", "/small", nil, sleeping.token()...), "by the path form": asleep.Call("GET", asleep.path("/small"), nil)} {
		if resp.Status != 409 || resp.Problem().Reason != "paused" {
			t.Errorf("%s, without auto_resume: %v", name, resp)
		}
	}
}

func TestBytesOfAPortCountAsUseAndAnIdleConnectionDoesNot(t *testing.T) {
	const idle = 6 * time.Second
	s := serve(t, "127.0.0.1:3000", fields{"idle_timeout_seconds": idle.Seconds()})
	e := s.expose(false)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conn, _, err := e.socket(ctx, "/ws", e.token()...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	for begun := time.Now(); time.Since(begun) < 2*idle; {
		if err := conn.Write(ctx, websocket.MessageText, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.Read(ctx); err != nil {
			t.Fatalf("after %v of use: %v", time.Since(begun), err)
		}
	}
	if status := s.Refresh().Status; status != "READY" {
		t.Errorf("in use it became %s", status)
	}
	if _, _, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("an idle connection keeps the sandbox: %v", err)
	}
	testkit.Eventually(t, time.Minute, "it ends as idle", func() error {
		if sb := s.Refresh(); sb.StatusReason != "idle_timeout" {
			return fmt.Errorf("%s %s", sb.Status, sb.StatusReason)
		}
		return nil
	})
}
