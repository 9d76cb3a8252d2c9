package api

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

func TestMCPNeedsAKeyAndRefusesForeignOrigins(t *testing.T) {
	var served []string
	r := newRig(t, func(c *Config) {
		c.MCP = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			served = append(served, string(body))
			if r.Header.Get("X-Request-Id") == "" || r.Header.Get("X-Request-Id") != w.Header().Get("X-Request-Id") {
				t.Errorf("the request id is %q, the answer's %q", r.Header.Get("X-Request-Id"), w.Header().Get("X-Request-Id"))
			}
		})
	})
	for _, opts := range [][]with{{noKey}, {header("Authorization", "Bearer cay_wrong")}, {header("Authorization", "Basic x")}} {
		if a := r.refused(r.do("POST", "/mcp", `{}`, opts...), cay.Unauthorized); a.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("WWW-Authenticate is %q", a.Header.Get("WWW-Authenticate"))
		}
	}
	for _, method := range []string{"GET", "DELETE"} {
		if a := r.refused(r.do(method, "/mcp", ""), cay.MethodNotAllowed); a.Header.Get("Allow") != "POST" {
			t.Errorf("%s: Allow is %q", method, a.Header.Get("Allow"))
		}
	}
	r.refused(r.do("POST", "/mcp", `{}`, header("Origin", "https://evil.example.com")), cay.Forbidden)
	if len(served) != 0 {
		t.Fatalf("served %v", served)
	}

	r.status(r.do("POST", "/mcp?conversation=a", `{"a":1}`), 200)
	r.status(r.do("POST", "/mcp", `{"b":1}`, noKey, header("X-API-Key", adminKey), header("Origin", "https://console.example.com")), 200)
	if strings.Join(served, " ") != `{"a":1} {"b":1}` {
		t.Errorf("served %v", served)
	}
	preflight := r.status(r.do("OPTIONS", "/mcp", "", noKey, header("Origin", "https://console.example.com"), header("Access-Control-Request-Method", "POST")), 204)
	for _, name := range []string{"Authorization", "Mcp-Protocol-Version", "Mcp-Method", "Mcp-Name", "Cay-Conversation"} {
		if !strings.Contains(preflight.Header.Get("Access-Control-Allow-Headers"), name) {
			t.Errorf("a browser may not send %s", name)
		}
	}
}

func TestLargeBodiesForMCPCountAgainstTheBudgetOfAllBodies(t *testing.T) {
	serving, finish := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(c *Config) {
		c.MCP = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			close(serving)
			<-finish
		})
	})
	large := r.refused(r.do("POST", "/mcp", strings.Repeat(" ", maxMCPBody+1)), cay.PayloadTooLarge)
	if !strings.Contains(string(large.body), `"limit_bytes":4194304`) {
		t.Errorf("the limit is not told: %s", large.body)
	}
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		r.do("POST", "/mcp", strings.Repeat(" ", 2<<20))
	}()
	<-serving
	if r.api.bodies.TryAcquire(maxBodiesInFlight) {
		t.Error("a body of 2 MiB that is being served takes nothing of the budget")
		r.api.bodies.Release(maxBodiesInFlight)
	}
	close(finish)
	<-answered
}

func TestAServerWithoutMCPSaysSo(t *testing.T) {
	r := newRig(t)
	r.refused(r.do("POST", "/mcp", `{}`), cay.NotImplemented)
}
