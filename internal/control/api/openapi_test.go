package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// document is the part of the OpenAPI document that the tests walk.
type document struct {
	OpenAPI string `json:"openapi"`
	Paths   map[string]map[string]struct {
		OperationID string `json:"operationId"`
		Summary     string
		Parameters  []struct {
			Name, In string
			Required bool
		}
		RequestBody *struct {
			Content map[string]struct {
				Schema json.RawMessage
			}
		}
		Responses map[string]struct {
			Description string
			Content     map[string]any
		}
		Security []map[string][]string
	}
	Components struct {
		Schemas map[string]any
	}
}

func loadDocument(t *testing.T) (document, []byte) {
	t.Helper()
	b, err := OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	return d, b
}

func TestTheDocumentIsWholeAndStable(t *testing.T) {
	d, first := loadDocument(t)
	if _, second := loadDocument(t); !bytes.Equal(first, second) {
		t.Error("it differs from build to build")
	}
	if d.OpenAPI != "3.1.0" {
		t.Errorf("got %s", d.OpenAPI)
	}
	n := 0
	for path, item := range d.Paths {
		for method, op := range item {
			n++
			success := false
			for status, res := range op.Responses {
				success = success || status[0] < '4'
				if status[0] >= '4' && res.Content["application/problem+json"] == nil {
					t.Errorf("%s %s: %s is no problem", method, path, status)
				}
				if res.Description == "" {
					t.Errorf("%s %s: %s says nothing", method, path, status)
				}
			}
			if !success || op.Summary == "" || op.Security == nil {
				t.Errorf("%s %s is incomplete", method, path)
			}
			for _, p := range strings.Split(path, "/") {
				if name, ok := strings.CutPrefix(p, "{"); ok && !hasParam(op.Parameters, strings.TrimSuffix(name, "}")) {
					t.Errorf("%s %s does not describe %s", method, path, p)
				}
			}
		}
	}
	if want := len(operations) + len(portMethods) - 1; n != want { // one text serves all methods of the path form
		t.Errorf("%d operations are served, %d are documented", n, want)
	}
	for ref := range strings.SplitSeq(string(first), `"$ref": "#/components/schemas/`) {
		if name, _, ok := strings.Cut(ref, `"`); ok && ref != string(first) && !strings.HasPrefix(ref, "{") && d.Components.Schemas[name] == nil {
			t.Errorf("schema %q is missing", name)
		}
	}
}

func hasParam(list []struct {
	Name, In string
	Required bool
}, name string) bool {
	for _, p := range list {
		if p.Name == name && p.In == "path" {
			return true
		}
	}
	return false
}

var hostileText = []string{"", "-1", "0", "99999999999999999999", "1e309", "NaN", "null", "\x00", "\xff\xfe", "../../etc/passwd", "/", "%00", "ü", "' OR 1=1", strings.Repeat("A", 5000), "{}", "[]"}

var hostileBodies = []string{
	"", "{", "null", "[]", "0", `""`, "{}", `{"a":`, `{"":""}`, `{"__proto__":{}}`, "\xff", `{"command":null}`, `{"command":{"a":1}}`, `{"cpu":1e999}`, `{"ttl_seconds":null}`,
	`{"path":null,"from":null,"to":null}`, `{"path":"\u0000"}`, `{"from":"/a","to":"\ud800"}`, `{"signal":9}`, `{"method":"GET","url":"http://[::1"}`, `{"method":"GET","url":"%"}`,
	strings.Repeat("[", 20000), `{"env":` + strings.Repeat(`{"a":`, 500) + "1" + strings.Repeat("}", 500) + "}",
}

// TestHostileInputIsNeverAServerFault walks every operation of the document.
func TestHostileInputIsNeverAServerFault(t *testing.T) {
	r := newRig(t)
	r.node.process = says(exitMsg(&nodev1.Exit{}))
	id := r.boxes.add(projectA, cay.Ready)
	d, _ := loadDocument(t)
	for path, item := range d.Paths {
		for method, op := range item {
			method = strings.ToUpper(method)
			real := strings.NewReplacer("{id}", string(id), "{process}", "prc_x").Replace(path)
			try := func(target, body string, opts ...with) {
				t.Helper()
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, method, r.srv.URL+target, strings.NewReader(body))
				if err != nil {
					return // no HTTP client would send it
				}
				req.Header.Set("X-API-Key", adminKey)
				if op.RequestBody != nil && op.RequestBody.Content["application/json"].Schema != nil {
					req.Header.Set("Content-Type", "application/json")
				}
				for _, o := range opts {
					o(req)
				}
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					if strings.Contains(err.Error(), "invalid header") {
						return
					}
					t.Errorf("%s %.100q %.60q: %v", method, target, body, err)
					return
				}
				defer res.Body.Close()
				if res.StatusCode >= 500 && res.StatusCode != 501 {
					t.Errorf("%s %.100q %.60q: %d", method, target, body, res.StatusCode)
				}
				if res.StatusCode >= 400 && method != "HEAD" {
					var p map[string]any
					if json.NewDecoder(res.Body).Decode(&p) != nil || p["reason"] == nil || p["request_id"] == nil || res.Header.Get("Content-Type") != "application/problem+json" {
						t.Errorf("%s %.100q %.60q: %d is no problem", method, target, body, res.StatusCode)
					}
				}
				r.boxes.change(id, func(sb *cay.Sandbox) { sb.Status = cay.Ready })
			}
			required := url.Values{}
			for _, p := range op.Parameters {
				if p.In == "query" && p.Required {
					required.Set(p.Name, "/a")
				}
			}
			for _, p := range op.Parameters {
				for _, v := range hostileText {
					switch p.In {
					case "query":
						q, _ := url.ParseQuery(required.Encode())
						q.Set(p.Name, v)
						if p.Name == "wait_seconds" || p.Name == "wait_for" {
							q.Set("wait_seconds", "0")
						}
						try(real+"?"+q.Encode(), "{}")
					case "header":
						try(real+"?"+required.Encode(), "{}", header(p.Name, v))
					case "path":
						if v != "" {
							try(strings.Replace(strings.Replace(path, "{"+p.Name+"}", url.PathEscape(v), 1), "{id}", string(id), 1)+"?"+required.Encode(), "{}")
						}
					}
				}
			}
			for _, body := range hostileBodies {
				try(real+"?"+required.Encode(), body)
			}
			for _, q := range []string{"%", "a=%zz", "a;b", "&&&", "=", "path=/a&path=/b", "ticket=x"} {
				try(real+"?"+q, "{}")
			}
		}
	}
}
