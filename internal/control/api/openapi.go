package api

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/camel"
	"github.com/cayhq/cay/internal/control/api/problem"
)

// operationDoc is what the document says of an operation beyond its parameters and body.
type operationDoc struct {
	tag, summary, description string
	status                    int // of the usual answer, where it is not 200 (204 without a body)
	answers                   []answerDoc
	events                    []eventDoc        // of its answers that are event streams
	reasons                   []cay.ErrorReason // besides those that every operation of its kind has
	maxBody                   int64             // bytes; 0: that of ordinary JSON
	optionalBody              bool
	binaryBody                bool   // the body is bytes, not JSON
	openQuery                 string // prefix of query names that clients choose
	signable                  string // prefix of the IDs for which a signed URL may stand in for a key
	needs                     string // the part of the server that the operation needs: jobs or sessions
	aliasOf                   string // the operation that this one is another form of
}

// aliasExtension names the operation that another one is a form of: who generates code from the document may leave the form out.
const aliasExtension = "x-alias-of"

// answerDoc is an answer that huma cannot see: another status, another content type.
type answerDoc struct {
	status      int
	contentType string       // "" for none
	body        reflect.Type // nil: bytes or text, or any JSON
	text        string
}

// eventDoc is a server-sent event.
type eventDoc struct {
	name string
	data reflect.Type
	id   string // what its id says; "" when it has none
}

// eventsSchema describes a stream as the list of its events, each with its name, its data decoded, and its id.
func eventsSchema(events []eventDoc, schema func(reflect.Type) *huma.Schema) *huma.Schema {
	items := &huma.Schema{}
	for _, e := range events {
		s := &huma.Schema{Type: "object", Title: e.name, Required: []string{"event", "data"}, Properties: map[string]*huma.Schema{
			"event": {Type: "string", Enum: []any{e.name}},
			"data":  schema(e.data),
		}}
		if e.id != "" {
			s.Properties["id"] = &huma.Schema{Type: "string", Description: e.id}
		}
		items.OneOf = append(items.OneOf, s)
	}
	return &huma.Schema{Type: "array", Title: "Server-sent events", Description: "One item for each event; the data of the stream is the JSON of data. Further events may come", Items: items}
}

func (a answerDoc) schema(r huma.Registry, doc operationDoc) *huma.Schema {
	schema := func(t reflect.Type) *huma.Schema { return r.Schema(t, true, "") }
	if doc.aliasOf != "" {
		schema = func(t reflect.Type) *huma.Schema { return camel.Schema(r, t) }
	}
	switch {
	case a.contentType == eventStream && doc.events != nil:
		return eventsSchema(doc.events, schema)
	case a.body != nil:
		return schema(a.body)
	case a.contentType == "application/json":
		return &huma.Schema{Type: "object", AdditionalProperties: true}
	case strings.HasPrefix(a.contentType, "text/"):
		return &huma.Schema{Type: "string"}
	}
	return &huma.Schema{Type: "string", Format: "binary"}
}

func documentHead() *huma.OpenAPI {
	return &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "Cay", Version: "v1", Description: overview,
			License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
		},
		Components: &huma.Components{
			Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"bearer":    {Type: "http", Scheme: "bearer", Description: "A key: cay_ and 64 hex digits"},
				"apiKey":    {Type: "apiKey", In: "header", Name: "X-API-Key"},
				"ticket":    {Type: "apiKey", In: "query", Name: ticketParam, Description: "For browsers: good once, 60 s, for one GET, SSE or WebSocket URL; see POST /v1/tickets"},
				"signedURL": {Type: "apiKey", In: "query", Name: signatureParam, Description: "For whoever is given the URL: good for one file of one sandbox or job, until it expires; see POST …/files/sign and the outputs of a job"},
			},
		},
		Tags: []*huma.Tag{
			{Name: "Jobs"}, {Name: "Sessions"}, {Name: "Sandboxes"}, {Name: "Commands"}, {Name: "Files"}, {Name: "Ports"}, {Name: tagHistory}, {Name: "System"},
			{Name: tagDoor, Description: "Jobs and sessions once more, by short paths and with names in camelCase"},
		},
	}
}

// schemaName names a type's schema; an instance of page is named after its items.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if rest, ok := strings.CutPrefix(name, "Page"); ok && rest != "" {
		return rest + "List"
	}
	return name
}

// problemSchema describes a problem document. Members beyond these are allowed.
func problemSchema(r huma.Registry) *huma.Schema {
	if r.Map()["Problem"] == nil {
		reasons := make([]any, 0)
		for _, reason := range slices.Sorted(slices.Values(problem.Reasons())) {
			reasons = append(reasons, string(reason))
		}
		r.Map()["Problem"] = &huma.Schema{
			Type: "object", Description: "RFC 9457. Further members say more: limit_bytes, state, status_reason, sandbox_id …",
			AdditionalProperties: true, Required: []string{"type", "title", "status", "detail", "reason", "request_id"},
			Properties: map[string]*huma.Schema{
				"type":       {Type: "string", Format: "uri", Description: "urn:cay:problem: and the reason"},
				"title":      {Type: "string"},
				"status":     {Type: "integer"},
				"detail":     {Type: "string", Description: "For people: what was wrong and what to do"},
				"reason":     {Type: "string", Enum: reasons, Description: "Stable; further values may come"},
				"request_id": {Type: "string"},
				"field":      {Type: "string", Description: "The field, parameter or header at fault"},
			},
		}
	}
	return &huma.Schema{Ref: "#/components/schemas/Problem"}
}

// Reasons that come with a kind of route.
var (
	everywhere = []cay.ErrorReason{cay.InvalidRequest, cay.Forbidden, cay.Internal} // forbidden: a foreign Host or Origin
	withKey    = []cay.ErrorReason{cay.Unauthorized, cay.Forbidden, cay.RateLimited, cay.Unavailable}
	withBody   = []cay.ErrorReason{cay.PayloadTooLarge, cay.UnsupportedMedia}
	onSandbox  = []cay.ErrorReason{cay.NotFound, cay.Gone, cay.Timeout}
	inUse      = []cay.ErrorReason{cay.NotReady, cay.SandboxPaused, cay.WorkerLost}
)

// document completes what huma wrote of an operation: security, body, answers, errors.
func (t *table) document(op *huma.Operation, doc operationDoc, who access, body *huma.Schema) {
	schemas := t.api.OpenAPI().Components.Schemas
	delete(op.Responses, "default")
	reasons := slices.Concat(everywhere, doc.reasons)
	if who == public {
		op.Security = []map[string][]string{}
	} else {
		reasons = append(reasons, withKey...)
		op.Security = []map[string][]string{{"bearer": {}}, {"apiKey": {}}}
		if op.Method == http.MethodGet {
			op.Security = append(op.Security, map[string][]string{"ticket": {}})
		}
		if doc.signable != "" {
			op.Security = append(op.Security, map[string][]string{"signedURL": {}})
		}
		if who != anyKey {
			op.Description = strings.TrimSpace(op.Description + "\n\nScope: `" + string(who) + "`.")
		}
	}
	if strings.Contains(op.Path, "{id}") {
		reasons = append(reasons, onSandbox...)
	}
	if body != nil {
		op.RequestBody = &huma.RequestBody{Required: !doc.optionalBody, Content: map[string]*huma.MediaType{"application/json": {Schema: body}}}
		reasons = append(reasons, withBody...)
	}
	if doc.binaryBody {
		op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{"application/octet-stream": {Schema: &huma.Schema{Type: "string", Format: "binary"}}}}
	}
	if len(doc.answers) > 0 && op.Responses["200"] != nil && op.Responses["200"].Content == nil {
		delete(op.Responses, "200") // huma's guess for a handler that writes its own answer
	}
	for _, a := range doc.answers {
		r := op.Responses[strconv.Itoa(a.status)]
		if r == nil {
			r = &huma.Response{}
			op.Responses[strconv.Itoa(a.status)] = r
		}
		r.Description = cmp.Or(a.text, r.Description, http.StatusText(a.status))
		if a.contentType == "" {
			r.Content = nil
			continue
		}
		if r.Content == nil {
			r.Content = map[string]*huma.MediaType{}
		}
		r.Content[a.contentType] = &huma.MediaType{Schema: a.schema(schemas, doc)}
	}
	byStatus := map[int][]string{}
	for _, reason := range reasons {
		s := reason.HTTPStatus()
		if !slices.Contains(byStatus[s], "`"+string(reason)+"`") {
			byStatus[s] = append(byStatus[s], "`"+string(reason)+"`")
		}
	}
	for status, names := range byStatus {
		slices.Sort(names)
		op.Responses[strconv.Itoa(status)] = &huma.Response{
			Description: strings.Join(names, ", "),
			Content:     map[string]*huma.MediaType{problem.ContentType: {Schema: problemSchema(schemas)}},
		}
	}
	for _, r := range op.Responses {
		if r.Headers == nil {
			r.Headers = map[string]*huma.Header{}
		}
		r.Headers["X-Request-Id"] = &huma.Header{Schema: &huma.Schema{Type: "string"}}
	}
	if doc.openQuery != "" {
		op.Parameters = append(op.Parameters, &huma.Param{
			Name: doc.openQuery + "KEY", In: "query", Description: "Only those whose metadata has KEY with this value; may be given for several keys",
			Schema: &huma.Schema{Type: "string"}, Example: "planner",
		})
	}
}

// finish drops what huma added by itself, and opens the objects of answers: they may grow.
func (t *table) finish() *huma.OpenAPI {
	doc := t.api.OpenAPI()
	schemas := doc.Components.Schemas
	delete(schemas.Map(), "Document")
	closed := map[*huma.Schema]bool{}
	var visit func(s *huma.Schema)
	visit = func(s *huma.Schema) {
		if s == nil || closed[s] {
			return
		}
		closed[s] = true
		if s.Ref != "" {
			visit(schemas.SchemaFromRef(s.Ref))
		}
		visit(s.Items)
		for _, p := range s.Properties {
			visit(p)
		}
	}
	for _, item := range doc.Paths {
		for _, op := range []*huma.Operation{item.Post, item.Put, item.Patch} {
			if op != nil && op.RequestBody != nil {
				for _, m := range op.RequestBody.Content {
					visit(m.Schema)
				}
			}
		}
	}
	for _, s := range schemas.Map() {
		if !closed[s] && s.AdditionalProperties == false {
			s.AdditionalProperties = nil
		}
	}
	return doc
}

func encodeOpenAPI(doc *huma.OpenAPI) ([]byte, error) {
	compact, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("api: encode the OpenAPI document: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, compact, "", "  "); err != nil {
		return nil, fmt.Errorf("api: indent the OpenAPI document: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

//go:embed docs.html
var docsTemplate string

// docsOperation is an operation as the page shows it.
type docsOperation struct {
	*huma.Operation
	Paragraphs []string
	BodyName   string
	Body       []docsField
	Answers    []docsAnswer
}

type docsField struct{ Name, Type, Text string }

type docsAnswer struct{ Status, Text, Type string }

// renderDocs makes the readable form of the document: one page that needs nothing else.
func renderDocs(doc *huma.OpenAPI) ([]byte, error) {
	groups := map[string][]docsOperation{}
	for _, path := range slices.Sorted(maps.Keys(doc.Paths)) {
		item := doc.Paths[path]
		for _, op := range []*huma.Operation{item.Get, item.Head, item.Post, item.Put, item.Patch, item.Delete} {
			if op != nil {
				groups[op.Tags[0]] = append(groups[op.Tags[0]], describe(doc, op))
			}
		}
	}
	schemas := map[string][]docsField{}
	for name, s := range doc.Components.Schemas.Map() {
		schemas[name] = fieldsOf(s)
	}
	page, err := template.New("docs").Parse(docsTemplate)
	if err != nil {
		return nil, fmt.Errorf("api: parse the docs page: %w", err)
	}
	var out bytes.Buffer
	err = page.Execute(&out, map[string]any{
		"Info": doc.Info, "Overview": strings.Split(doc.Info.Description, "\n\n"), "Tags": doc.Tags, "Groups": groups, "Schemas": schemas,
	})
	if err != nil {
		return nil, fmt.Errorf("api: render the docs page: %w", err)
	}
	return out.Bytes(), nil
}

func describe(doc *huma.OpenAPI, op *huma.Operation) docsOperation {
	d := docsOperation{Operation: op, Paragraphs: strings.Split(op.Description, "\n\n")}
	if op.RequestBody != nil {
		for kind, m := range op.RequestBody.Content {
			d.BodyName = kind
			s := m.Schema
			if s.Ref != "" {
				s = doc.Components.Schemas.SchemaFromRef(s.Ref)
			}
			d.Body = fieldsOf(s)
		}
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		r := op.Responses[status]
		a := docsAnswer{Status: status, Text: r.Description}
		for _, kind := range slices.Sorted(maps.Keys(r.Content)) {
			a.Type = strings.TrimPrefix(a.Type+", ", ", ") + kind + " " + typeName(r.Content[kind].Schema)
		}
		d.Answers = append(d.Answers, a)
	}
	return d
}

func fieldsOf(s *huma.Schema) []docsField {
	var fields []docsField
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		kind := typeName(p)
		if slices.Contains(s.Required, name) {
			kind += ", required"
		}
		fields = append(fields, docsField{name, kind, p.Description})
	}
	return fields
}

func typeName(s *huma.Schema) string {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		return s.Ref[strings.LastIndex(s.Ref, "/")+1:]
	case len(s.Enum) > 0:
		var names []string
		for _, v := range s.Enum {
			names = append(names, fmt.Sprint(v))
		}
		return strings.Join(names, " | ")
	case len(s.OneOf) > 0:
		var names []string
		for _, o := range s.OneOf {
			names = append(names, typeName(o))
		}
		return strings.Join(names, " | ")
	case s.Type == "array":
		return "list of " + typeName(s.Items)
	case s.Nullable:
		return s.Type + " | null"
	}
	return cmp.Or(s.Type, "any")
}
