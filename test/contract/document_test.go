package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/cayhq/cay/internal/testkit"
)

// operation is one of the document.
type operation struct {
	id, method, path string
	params           []parameter
	body             map[string]any // schema by media type; nil: none
	bodyNeeded       bool
	responses        map[int]map[string]*jsonschema.Schema // by status and media type; nil schema: bytes or text
	reasons          map[int][]string                      // of errors, by status
	events           *jsonschema.Schema                    // of one server-sent event; nil: it has none
	keyed            bool                                  // it needs a key
	scope            string                                // "" any key
	tickets          bool
}

type parameter struct {
	name, in string
	required bool
	schema   map[string]any
}

// document is what the server says of itself.
type document struct {
	operations []*operation // by path and method
	problem    *jsonschema.Schema
	reasons    []string
	raw        map[string]any
}

// rawOperation is an operation as it stands in the document.
type rawOperation struct {
	OperationID string `json:"operationId"`
	Summary     string
	Description string
	Tags        []string
	Security    *[]map[string][]string
	Parameters  []struct {
		Name, In, Description string
		Required              bool
		Schema                map[string]any
	}
	RequestBody *struct {
		Required bool
		Content  map[string]struct{ Schema map[string]any }
	}
	Responses map[string]struct {
		Description string
		Headers     map[string]any
		Content     map[string]struct{ Schema map[string]any }
	}
}

type rawDocument struct {
	OpenAPI    string
	Tags       []struct{ Name string }
	Paths      map[string]map[string]rawOperation
	Components struct {
		Schemas map[string]map[string]any
	}
}

const (
	jsonType    = "application/json"
	problemType = "application/problem+json"
	eventType   = "text/event-stream"
)

var loaded struct {
	once sync.Once
	text []byte
	raw  rawDocument
	doc  *document
	err  error
}

// load reads the document of the shared server once.
func load(t testing.TB) (*document, rawDocument) {
	t.Helper()
	inst := testkit.Server(t)
	loaded.once.Do(func() {
		resp, err := inst.Do(t.Context(), "GET", "/openapi.json", nil)
		if err == nil && resp.Status != 200 {
			err = fmt.Errorf("%v", resp)
		}
		if err == nil {
			err = json.Unmarshal(resp.Body, &loaded.raw)
		}
		if err == nil {
			loaded.text = resp.Body
			loaded.doc, err = parse(resp.Body, loaded.raw)
		}
		loaded.err = err
	})
	if loaded.err != nil {
		t.Fatalf("the document: %v", loaded.err)
	}
	return loaded.doc, loaded.raw
}

const base = "https://cay.test/openapi.json"

// parse compiles the schemas of all answers. They are closed first: an answer may grow, but not without its description.
func parse(text []byte, raw rawDocument) (*document, error) {
	tree, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	closeObjects(tree)
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	compiler.AssertContent()
	if err := compiler.AddResource(base, tree); err != nil {
		return nil, err
	}
	at := func(pointer ...string) (*jsonschema.Schema, error) {
		for i, p := range pointer {
			pointer[i] = url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(p))
		}
		return compiler.Compile(base + "#/" + strings.Join(pointer, "/"))
	}
	doc := &document{raw: tree.(map[string]any)}
	if doc.problem, err = at("components", "schemas", "Problem"); err != nil {
		return nil, err
	}
	reasons, _ := raw.Components.Schemas["Problem"]["properties"].(map[string]any)["reason"].(map[string]any)["enum"].([]any)
	for _, r := range reasons {
		doc.reasons = append(doc.reasons, fmt.Sprint(r))
	}
	for _, path := range slices.Sorted(maps.Keys(raw.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(raw.Paths[path])) {
			r := raw.Paths[path][method]
			op := &operation{id: r.OperationID, method: strings.ToUpper(method), path: path, responses: map[int]map[string]*jsonschema.Schema{}, reasons: map[int][]string{}}
			for _, p := range r.Parameters {
				op.params = append(op.params, parameter{p.Name, p.In, p.Required, p.Schema})
			}
			if r.RequestBody != nil {
				op.body, op.bodyNeeded = map[string]any{}, r.RequestBody.Required
				for kind, m := range r.RequestBody.Content {
					op.body[kind] = m.Schema
				}
			}
			for text, answer := range r.Responses {
				status, err := strconv.Atoi(text)
				if err != nil {
					return nil, fmt.Errorf("%s %s: status %q", method, path, text)
				}
				op.responses[status] = map[string]*jsonschema.Schema{}
				if status >= 400 {
					for reason := range strings.SplitSeq(answer.Description, ", ") {
						op.reasons[status] = append(op.reasons[status], strings.Trim(reason, "`"))
					}
				}
				for kind, m := range answer.Content {
					switch {
					case kind == eventType && m.Schema["items"] != nil:
						if op.events, err = at("paths", path, method, "responses", text, "content", kind, "schema", "items"); err != nil {
							return nil, err
						}
						op.responses[status][kind] = nil
					case isJSON(kind):
						if op.responses[status][kind], err = at("paths", path, method, "responses", text, "content", kind, "schema"); err != nil {
							return nil, err
						}
					default:
						op.responses[status][kind] = nil
					}
				}
			}
			if r.Security != nil {
				for _, way := range *r.Security {
					op.keyed = true
					_, ticket := way["ticket"]
					op.tickets = op.tickets || ticket
				}
			}
			if _, rest, ok := strings.Cut(r.Description, "Scope: `"); ok {
				op.scope, _, _ = strings.Cut(rest, "`")
			}
			if !carried(path) {
				doc.operations = append(doc.operations, op)
			}
		}
	}
	return doc, nil
}

// carried is a path whose requests and answers are the affair of a server inside a sandbox, to whom any method and query goes as it is.
func carried(path string) bool { return strings.HasSuffix(path, "/{rest}") }

func isJSON(kind string) bool { return kind == jsonType || strings.HasSuffix(kind, "+json") }

// closeObjects refuses members that a schema does not describe, wherever it describes any.
func closeObjects(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, object := v["properties"].(map[string]any); object && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
		for _, child := range v {
			closeObjects(child)
		}
	case []any:
		for _, child := range v {
			closeObjects(child)
		}
	}
}

// ref follows a reference into the document, if the schema is one.
func (d *document) ref(schema any) map[string]any {
	s, _ := schema.(map[string]any)
	target, _ := s["$ref"].(string)
	rest, ok := strings.CutPrefix(target, "#/components/schemas/")
	if !ok {
		return s
	}
	components, _ := d.raw["components"].(map[string]any)
	schemas, _ := components["schemas"].(map[string]any)
	found, _ := schemas[rest].(map[string]any)
	return found
}

// bodies says whether the answer of a status has a body.
func bodies(method string, status int) bool {
	return method != http.MethodHead && status != http.StatusNoContent && status != http.StatusNotModified && status != http.StatusSwitchingProtocols
}

// TestTheDocumentDescribesEveryOperationWhole: types of an SDK can be made of it.
func TestTheDocumentDescribesEveryOperationWhole(t *testing.T) {
	_, raw := load(t)
	if raw.OpenAPI != "3.1.0" {
		t.Errorf("it is OpenAPI %s", raw.OpenAPI)
	}
	tags := map[string]bool{}
	for _, tag := range raw.Tags {
		tags[tag.Name] = true
	}
	ids := map[string]string{}
	for path, item := range raw.Paths {
		for method, op := range item {
			at := strings.ToUpper(method) + " " + path
			if other, taken := ids[op.OperationID]; taken || op.OperationID == "" {
				t.Errorf("%s: its operationId %q is that of %q", at, op.OperationID, other)
			}
			ids[op.OperationID] = at
			if op.Summary == "" || len(op.Tags) != 1 || !tags[op.Tags[0]] || op.Security == nil {
				t.Errorf("%s lacks a summary, security, or a tag that the document describes (%v)", at, op.Tags)
			}
			for _, p := range op.Parameters {
				if len(p.Schema) == 0 || p.In != "query" && p.In != "path" && p.In != "header" {
					t.Errorf("%s: parameter %s has no schema", at, p.Name)
				}
			}
			if strings.Count(path, "{") != count(op, "path") {
				t.Errorf("%s: not every part of its path is described", at)
			}
			if op.RequestBody != nil {
				for kind, m := range op.RequestBody.Content {
					if len(m.Schema) == 0 {
						t.Errorf("%s: its body as %s has no schema", at, kind)
					}
				}
				for _, status := range []string{"413"} {
					if _, ok := op.Responses[status]; !ok && op.RequestBody.Content[jsonType].Schema != nil {
						t.Errorf("%s takes a body and has no %s", at, status)
					}
				}
			}
			success := false
			for text, answer := range op.Responses {
				status, err := strconv.Atoi(text)
				if err != nil || answer.Description == "" || answer.Headers["X-Request-Id"] == nil {
					t.Errorf("%s: its answer %s lacks a description or X-Request-Id", at, text)
				}
				success = success || status < 400
				switch {
				case status >= 400:
					if len(answer.Content) != 1 || answer.Content[problemType].Schema == nil {
						t.Errorf("%s: its answer %s is no problem", at, text)
					}
				case bodies(strings.ToUpper(method), status):
					if len(answer.Content) == 0 {
						t.Errorf("%s: its answer %s has no content", at, text)
					}
					for kind, m := range answer.Content {
						if len(m.Schema) == 0 {
							t.Errorf("%s: its answer %s as %s has no schema", at, text, kind)
						}
						if kind == eventType && m.Schema["items"] == nil {
							t.Errorf("%s: the events of its answer %s are not described", at, text)
						}
					}
				case len(answer.Content) > 0:
					t.Errorf("%s: its answer %s cannot have content", at, text)
				}
			}
			if !success {
				t.Errorf("%s has no answer of success", at)
			}
		}
	}
}

func count(op rawOperation, in string) int {
	n := 0
	for _, p := range op.Parameters {
		if p.In == in {
			n++
		}
	}
	return n
}

func TestEveryReferenceOfTheDocumentLeadsSomewhereAndNoSchemaIsUnused(t *testing.T) {
	doc, raw := load(t)
	used := map[string]bool{}
	var visit func(v any)
	visit = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if target, ok := v["$ref"].(string); ok {
				name := strings.TrimPrefix(target, "#/components/schemas/")
				used[name] = true
				if raw.Components.Schemas[name] == nil {
					t.Errorf("%s leads nowhere", target)
				}
			}
			for _, child := range v {
				visit(child)
			}
		case []any:
			for _, child := range v {
				visit(child)
			}
		}
	}
	visit(doc.raw)
	for name := range raw.Components.Schemas {
		if !used[name] {
			t.Errorf("the schema %s is used by nothing", name)
		}
	}
}
