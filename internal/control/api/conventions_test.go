package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

func TestKeysAreTakenFromEitherHeader(t *testing.T) {
	r := newRig(t)
	r.status(r.do("GET", "/v1/sandboxes", ""), 200)
	r.status(r.do("GET", "/v1/sandboxes", "", noKey, header("X-API-Key", adminKey)), 200)
	for name, opts := range map[string][]with{
		"no key":        {noKey},
		"a wrong key":   {header("Authorization", "Bearer cay_wrong")},
		"another form":  {header("Authorization", "Basic "+adminKey)},
		"two keys":      {header("X-API-Key", adminKey)},
		"a key of 1 KB": {header("Authorization", "Bearer "+strings.Repeat("x", 1024))},
	} {
		t.Run(name, func(t *testing.T) {
			r.refused(r.do("GET", "/v1/sandboxes", "", opts...), cay.Unauthorized)
		})
	}
}

func TestAScopeThatIsMissingIsForbidden(t *testing.T) {
	r := newRig(t)
	asReader := header("Authorization", "Bearer "+readKey)
	r.status(r.do("GET", "/v1/sandboxes", "", asReader), 200)
	r.status(r.do("GET", "/v1/info", "", asReader), 200)
	r.refused(r.do("POST", "/v1/sandboxes", `{}`, asReader), cay.Forbidden)
	r.refused(r.do("GET", "/metrics", "", asReader), cay.Forbidden)
}

func TestWhatBelongsToAnotherProjectDoesNotExist(t *testing.T) {
	r := newRig(t)
	id := r.boxes.add(projectA, cay.Ready)
	other := header("Authorization", "Bearer "+otherKey)
	r.refused(r.do("GET", "/v1/sandboxes/"+string(id), "", other), cay.NotFound)
	r.refused(r.do("DELETE", "/v1/sandboxes/"+string(id), "", other), cay.NotFound)
	r.refused(r.do("POST", "/v1/sandboxes/"+string(id)+"/exec", `{"command":"true"}`, other), cay.NotFound)
}

func TestATicketIsGoodOnceForItsURL(t *testing.T) {
	r := newRig(t)
	id := string(r.boxes.add(projectA, cay.Ready))
	r.node.files["/a"] = []byte("content")
	mint := func(url string) string {
		a := r.status(r.do("POST", "/v1/tickets", `{"method":"GET","url":"`+url+`"}`), 200)
		return a.member(t, "ticket").(string)
	}
	file := "/v1/sandboxes/" + id + "/files?path=%2Fa"
	ticket := mint(file)
	r.refused(r.do("GET", "/v1/sandboxes/"+id+"/files?path=%2Fb&ticket="+ticket, "", noKey), cay.Unauthorized)
	if got := r.status(r.do("GET", file+"&ticket="+ticket, "", noKey), 200); string(got.body) != "content" {
		t.Fatalf("got %q", got.body)
	}
	r.refused(r.do("GET", file+"&ticket="+ticket, "", noKey), cay.Unauthorized)
	r.refused(r.do("DELETE", file+"&ticket="+mint(file), "", noKey), cay.Unauthorized)
	if strings.Contains(r.log.String(), "tkt_") {
		t.Error("a ticket was logged")
	}
	r.refused(r.do("POST", "/v1/tickets", `{"method":"POST","url":"/v1/sandboxes"}`), cay.InvalidRequest)
	r.refused(r.do("POST", "/v1/tickets", `{"method":"GET","url":"/metrics"}`), cay.InvalidRequest)
}

func TestARequestIDIsTakenWhenItIsSane(t *testing.T) {
	r := newRig(t)
	if got := r.do("GET", "/healthz", "", header("X-Request-Id", "abc-1.2")).Header.Get("X-Request-Id"); got != "abc-1.2" {
		t.Errorf("got %q", got)
	}
	for _, bad := range []string{"", strings.Repeat("a", 129), "a b", `a"b`, "ü"} {
		if got := r.do("GET", "/healthz", "", header("X-Request-Id", bad)).Header.Get("X-Request-Id"); got == bad || got == "" {
			t.Errorf("%q was answered by %q", bad, got)
		}
	}
}

func TestATraceparentReachesTheLog(t *testing.T) {
	r := newRig(t)
	r.do("GET", "/healthz", "", header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	if !strings.Contains(r.log.String(), "trace_id=0af7651916cd43dd8448eb211c80319c") {
		t.Error(r.log)
	}
	r.status(r.do("GET", "/healthz", "", header("traceparent", "nonsense")), 200)
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/nope", "/v1/", "/v1/sandboxes/", "//v1/sandboxes", "/v1/../v1/sandboxes", "/v1/sandboxes/x/y/z", "/v1/sandboxes/%2e%2e/exec"} {
		r.refused(r.do("GET", path, ""), cay.NotFound)
	}
	a := r.refused(r.do("PUT", "/v1/sandboxes", `{}`), cay.MethodNotAllowed)
	for _, m := range []string{"GET", "POST"} {
		if !strings.Contains(a.Header.Get("Allow"), m) {
			t.Errorf("Allow is %q", a.Header.Get("Allow"))
		}
	}
}

func TestBodiesAreReadStrictly(t *testing.T) {
	r := newRig(t)
	for body, field := range map[string]string{
		`{"nope":1}`:                          "nope",
		`{"cpu":1,"cpu":2}`:                   "cpu",
		`{"metadata":{"a":"1","a":"2"}}`:      "metadata.a",
		`{"cpu":"two"}`:                       "cpu",
		`{"memory_mb":1.5}`:                   "memory_mb",
		`{"metadata":{"a":1}}`:                "metadata.a",
		`{"cpu":0}`:                           "cpu",
		`{"cpu":-1}`:                          "cpu",
		`{"cpu":1e400}`:                       "cpu",
		`{"ttl_seconds":0}`:                   "ttl_seconds",
		`{"ttl_seconds":-1}`:                  "ttl_seconds",
		`{"ttl_seconds":1e18}`:                "ttl_seconds",
		`{"on_timeout":"explode"}`:            "on_timeout",
		`{"env":{"A=B":"1"}}`:                 "env.A=B",
		`{"env":{"":"1"}}`:                    "env",
		`{"env":{"A":"\u0000"}}`:              "env.A",
		`{"image":"host","runtime":"python"}`: "runtime",
		`{"metadata":{"k":"` + strings.Repeat("v", 1024) + `"}}`: "metadata.k",
	} {
		a := r.refused(r.do("POST", "/v1/sandboxes", body), cay.InvalidRequest)
		if got := a.member(t, "field"); got != field {
			t.Errorf("%.60s: field is %v, want %q: %s", body, got, field, a.body)
		}
	}
	for _, body := range []string{``, `[]`, `null1`, `{} {}`, `{}x`, `{"cpu":1`, "{\"image\":\"\xff\"}", `"x"`} {
		r.refused(r.do("POST", "/v1/sandboxes", body, header("Content-Type", "application/json")), cay.InvalidRequest)
	}
	r.refused(r.do("POST", "/v1/sandboxes", `{}`, header("Content-Type", "text/plain")), cay.UnsupportedMedia)
	r.refused(r.do("POST", "/v1/sandboxes", `{}`, header("Content-Encoding", "gzip")), cay.UnsupportedMedia)
	r.status(r.do("POST", "/v1/sandboxes", `{}`, header("Content-Type", "application/json; charset=utf-8")), 201)
}

func TestABodyBeyondItsLimitSaysTheLimit(t *testing.T) {
	r := newRig(t)
	big := `{"image":"` + strings.Repeat("x", cay.MaxJSONBody) + `"}`
	a := r.refused(r.do("POST", "/v1/sandboxes", big), cay.PayloadTooLarge)
	if got := a.member(t, "limit_bytes"); got != float64(cay.MaxJSONBody) {
		t.Errorf("limit_bytes is %v", got)
	}
	a = r.refused(r.do("POST", "/v1/sandboxes", big, func(r *http.Request) { r.ContentLength = -1 }), cay.PayloadTooLarge)
	if got := a.member(t, "limit_bytes"); got != float64(cay.MaxJSONBody) {
		t.Errorf("chunked: limit_bytes is %v", got)
	}
}

func TestParametersAreChecked(t *testing.T) {
	r := newRig(t)
	for query, field := range map[string]string{
		"limit=0": "limit", "limit=201": "limit", "limit=x": "limit", "order=up": "order", "status=READY,GONE": "status",
		"created_after=yesterday": "created_after", "nope=1": "nope", "limit=1&limit=2": "limit", "cursor=%00": "cursor",
	} {
		a := r.refused(r.do("GET", "/v1/sandboxes?"+query, ""), cay.InvalidRequest)
		if got := a.member(t, "field"); got != field {
			t.Errorf("%s: field is %v: %s", query, got, a.body)
		}
	}
	r.refused(r.do("GET", "/v1/sandboxes?limit=%zz", ""), cay.InvalidRequest)
	r.refused(r.do("POST", "/v1/sandboxes?wait_seconds=NaN", `{}`), cay.InvalidRequest)
	r.refused(r.do("POST", "/v1/sandboxes?wait_seconds=301", `{}`), cay.InvalidRequest)
	r.refused(r.do("POST", "/v1/sandboxes?wait=perhaps", `{}`), cay.InvalidRequest)
}

func TestAListPassesItsSelectionOn(t *testing.T) {
	r := newRig(t)
	r.boxes.add(projectA, cay.Ready)
	r.boxes.add(projectA, cay.Ready)
	a := r.status(r.do("GET", "/v1/sandboxes?limit=1&order=asc&status=active&metadata.agent=planner&metadata.x.y=z&created_after=2026-01-02T03:04:05Z&cursor=abc", ""), 200)
	if a.member(t, "next_cursor") != "next" || len(a.member(t, "items").([]any)) != 1 {
		t.Errorf("got %s", a.body)
	}
	q := r.boxes.query
	if q.Limit != 1 || !q.Ascending || len(q.Statuses) != 3 || q.Metadata["agent"] != "planner" || q.Metadata["x.y"] != "z" || q.CreatedAfter.Year() != 2026 || q.Cursor != "abc" {
		t.Errorf("got %+v", q)
	}
}

func TestAForeignOriginIsRefusedUnlessItIsAllowed(t *testing.T) {
	r := newRig(t)
	for _, origin := range []string{"https://evil.example", "null", "http://localhost:1"} {
		r.refused(r.do("POST", "/v1/sandboxes", `{}`, header("Origin", origin)), cay.Forbidden)
		upgrade := []with{header("Origin", origin), header("Connection", "Upgrade"), header("Upgrade", "websocket")}
		r.refused(r.do("GET", "/v1/sandboxes/x/exec", "", upgrade...), cay.Forbidden)
		if got := r.do("GET", "/v1/info", "", header("Origin", origin)).Header.Get("Access-Control-Allow-Origin"); got != "" {
			t.Errorf("CORS for %s: %q", origin, got)
		}
	}
	r.status(r.do("POST", "/v1/sandboxes", `{}`, header("Origin", r.srv.URL)), 201)
	allowed := r.status(r.do("POST", "/v1/sandboxes", `{}`, header("Origin", "https://console.example.com")), 201)
	if allowed.Header.Get("Access-Control-Allow-Origin") != "https://console.example.com" || allowed.Header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("got %v", allowed.Header)
	}
	preflight := r.status(r.do("OPTIONS", "/v1/sandboxes", "", noKey, header("Origin", "https://console.example.com"), header("Access-Control-Request-Method", "POST")), 204)
	if !strings.Contains(preflight.Header.Get("Access-Control-Allow-Methods"), "POST") {
		t.Errorf("got %v", preflight.Header)
	}
}

func TestALoopbackListenerKnowsItsNames(t *testing.T) {
	r := newRig(t, func(c *Config) { c.AllowedHosts = []string{"cay.example.com"} })
	for host, ok := range map[string]bool{
		"localhost:8080": true, "127.0.0.1": true, "[::1]:80": true, "x.localhost": true, "cay.example.com": true,
		"evil.example": false, "localhost.evil.example": false, "10.0.0.1": false, "127.0.0.1.nip.io": false,
	} {
		a := r.do("GET", "/healthz", "", func(r *http.Request) { r.Host = host })
		if ok {
			r.status(a, 200)
		} else {
			r.refused(a, cay.Forbidden)
		}
	}
}

func TestAPanicSaysNothingOfTheInside(t *testing.T) {
	r := newRig(t)
	r.boxes.panics = true
	a := r.refused(r.do("POST", "/v1/sandboxes", `{}`), cay.Internal)
	if strings.Contains(string(a.body), "secret") {
		t.Errorf("got %s", a.body)
	}
	if !strings.Contains(r.log.String(), "the secret inside") {
		t.Error("the log does not have it")
	}
}

func TestReadyzSaysWhatIsNot(t *testing.T) {
	r := newRig(t)
	r.status(r.do("GET", "/readyz", "", noKey), 200)
	r.nodes.ready = cay.Errorf(cay.Unavailable, "no worker answers")
	a := r.refused(r.do("GET", "/readyz", "", noKey), cay.Unavailable)
	if !strings.Contains(string(a.body), "no worker answers") || a.Header.Get("Retry-After") != "1" {
		t.Errorf("got %s", a.body)
	}
}

func TestTheSystemPagesAnswer(t *testing.T) {
	r := newRig(t)
	r.status(r.do("GET", "/healthz", "", noKey), 200)
	if a := r.status(r.do("GET", "/v1/info", ""), 200); a.member(t, "version") != "test" || a.member(t, "isolation") != "gvisor" {
		t.Errorf("got %s", a.body)
	}
	r.status(r.do("GET", "/v1/runtimes", ""), 200)
	if a := r.status(r.do("GET", "/metrics", ""), 200); !strings.Contains(string(a.body), `cay_http_requests_total{route="GET /v1/info",status="200"} 1`) {
		t.Errorf("got %s", a.body)
	}
	r.refused(r.do("GET", "/metrics", "", noKey), cay.Unauthorized)
	docs := r.status(r.do("GET", "/docs", "", noKey), 200)
	if !strings.Contains(string(docs.body), "/v1/sandboxes/{id}/exec") || strings.Contains(string(docs.body), "https://") {
		t.Error("the page is incomplete, or needs the network")
	}
	r.status(r.do("GET", "/openapi.json", "", noKey), 200)
}
