package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/go-json-experiment/json"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/camel"
	"github.com/cayhq/cay/internal/control/api/problem"
	"github.com/cayhq/cay/internal/control/api/strictjson"
)

// access is who may use a route: a scope, or one of these.
type access string

const (
	public access = "public" // anybody, without a key
	anyKey access = "key"    // any valid key
)

// table registers routes with huma, which parses their parameters and writes the OpenAPI document, on the standard mux.
type table struct {
	a   *API
	mux *http.ServeMux
	api huma.API
}

func newTable(a *API, mux *http.ServeMux) *table {
	installProblems()
	t := &table{a: a, mux: mux}
	marshal := func(w io.Writer, v any) error { return json.MarshalWrite(w, v, json.Deterministic(true)) }
	format := huma.Format{Marshal: marshal, Unmarshal: strictjson.Decode}
	t.api = huma.NewAPI(huma.Config{
		OpenAPI: documentHead(), DefaultFormat: "application/json",
		// huma looks a type such as application/problem+json up by what follows the plus.
		Formats: map[string]huma.Format{"application/json": format, "json": format},
	}, t)
	return t
}

// Handle implements huma.Adapter.
func (t *table) Handle(op *huma.Operation, handler func(huma.Context)) {
	t.mux.Handle(op.Method+" "+op.Path, t.a.admitted(op, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler(humago.NewContext(op, r, w))
	})))
}

// ServeHTTP implements huma.Adapter.
func (t *table) ServeHTTP(w http.ResponseWriter, r *http.Request) { t.mux.ServeHTTP(w, r) }

// Keys of huma.Operation.Metadata.
const (
	metaAccess       = "access"
	metaOptionalBody = "optional_body"
	metaOpenQuery    = "open_query" // prefix of query names that clients choose
	metaSignable     = "signable"   // prefix of the IDs for which a signed URL may stand in for a key
	metaNeeds        = "needs"      // the part of the server that the operation needs
)

func typed[I, O any](t *table, method, path string, who access, id string, handle func(context.Context, *I) (*O, error)) {
	register(t, method, path, who, id, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, in)
		if err != nil {
			if operations[id].aliasOf != "" {
				err = camel.Error(err)
			}
			x := exchangeOf(ctx)
			x.err = err
			return nil, problem.From(err, x.requestID)
		}
		return out, nil
	})
}

func raw[I any](t *table, method, path string, who access, id string, handle func(http.ResponseWriter, *http.Request, *I) error) {
	register(t, method, path, who, id, func(_ context.Context, in *I) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			r, w := humago.Unwrap(hc)
			if err := handle(w, r, in); err != nil {
				if operations[id].aliasOf != "" {
					err = camel.Error(err)
				}
				t.a.fail(w, r, err)
			}
		}}, nil
	})
}

func register[I, O any](t *table, method, path string, who access, id string, handle func(context.Context, *I) (*O, error)) {
	doc, ok := operations[id]
	if !ok {
		panic("api: operation " + id + " is not documented")
	}
	op := huma.Operation{
		OperationID: id, Method: strings.TrimSpace(method), Path: path, Summary: doc.summary, Description: doc.description,
		Tags: []string{doc.tag}, MaxBodyBytes: cmpOr(doc.maxBody, cay.MaxJSONBody), DefaultStatus: doc.status,
		Metadata: map[string]any{
			metaAccess: who, metaOptionalBody: doc.optionalBody, metaOpenQuery: doc.openQuery, metaSignable: doc.signable, metaNeeds: doc.needs,
		},
	}
	if doc.aliasOf != "" {
		op.Extensions = map[string]any{aliasExtension: doc.aliasOf}
	}
	huma.Register(t.api, op, handle)
	t.document(t.registered(op.Method, path), doc, who, bodySchema(t.api.OpenAPI().Components.Schemas, reflect.TypeFor[I]()))
}

func cmpOr(n, otherwise int64) int64 {
	if n != 0 {
		return n
	}
	return otherwise
}

func (t *table) registered(method, path string) *huma.Operation {
	item := t.api.OpenAPI().Paths[path]
	return map[string]*huma.Operation{
		"GET": item.Get, "HEAD": item.Head, "POST": item.Post, "PUT": item.Put, "PATCH": item.Patch, "DELETE": item.Delete,
	}[method]
}

// admitted lets a request through to its route's handler once its key, its scope, its query's names and its content type are right.
func (a *API) admitted(op *huma.Operation, next http.Handler) http.Handler {
	who, _ := op.Metadata[metaAccess].(access)
	openQuery, _ := op.Metadata[metaOpenQuery].(string)
	signable, _ := op.Metadata[metaSignable].(string)
	needs, _ := op.Metadata[metaNeeds].(string)
	action, always := audited(op.Method, op.OperationID)
	known := map[string]bool{}
	for _, p := range op.Parameters {
		known[p.Name] = known[p.Name] || p.In == "query"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x := exchangeOf(r.Context())
		x.route = op.Method + " " + op.Path
		x.action, x.audited, x.object = action, always, objectOf(r)
		query, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			a.fail(w, r, cay.Errorf(cay.InvalidRequest, "the query cannot be read: %v", err))
			return
		}
		if who != public {
			if x.identity, err = a.authenticate(r, query, signable); err != nil {
				a.fail(w, r, err)
				return
			}
			if who != anyKey && !x.identity.May(cay.Scope(who)) {
				a.fail(w, r, cay.Errorf(cay.Forbidden, "this needs a key with the scope %s", who).With("scope", string(who)))
				return
			}
		}
		if err := a.has(needs); err != nil {
			a.fail(w, r, err)
			return
		}
		if signable != "" && query.Has(signatureParam) {
			if query, err = a.unsigned(w, r, query); err != nil {
				a.fail(w, r, err)
				return
			}
		}
		for name, values := range query {
			ok := known[name] || name == ticketParam && r.Method == http.MethodGet || openQuery != "" && strings.HasPrefix(name, openQuery)
			if !ok {
				a.fail(w, r, cay.Errorf(cay.InvalidRequest, "there is no parameter %q here", clip(name, 100)).On(clip(name, 100)))
				return
			}
			if len(values) > 1 {
				a.fail(w, r, cay.Errorf(cay.InvalidRequest, "the parameter %q is given twice", clip(name, 100)).On(clip(name, 100)))
				return
			}
		}
		if err := checkContentType(op, r); err != nil {
			a.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func checkContentType(op *huma.Operation, r *http.Request) error {
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return cay.Errorf(cay.UnsupportedMedia, "a body with Content-Encoding %q is not understood; send it as it is", clip(coding, 100))
	}
	if op.RequestBody == nil || op.RequestBody.Content["application/json"] == nil || r.ContentLength == 0 {
		return nil
	}
	given := r.Header.Get("Content-Type")
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || kind != "application/json" || params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
		return cay.Errorf(cay.UnsupportedMedia, "the body must be JSON, with Content-Type: application/json (not %q)", clip(given, 100))
	}
	return nil
}

// humaProblem makes problems of what huma itself refuses: parameters that cannot be parsed, and what resolvers answer.
func humaProblem(hc huma.Context, status int, msg string, errs ...error) huma.StatusError {
	x := &exchange{}
	if hc != nil {
		x = exchangeOf(hc.Context())
	}
	err := humaError(status, msg, errs)
	x.err = err
	return problem.From(err, x.requestID)
}

func humaError(status int, msg string, errs []error) error {
	for _, err := range errs {
		var own *cay.Error
		if errors.As(err, &own) {
			return err
		}
		var detail *huma.ErrorDetail
		if errors.As(err, &detail) {
			_, field, _ := strings.Cut(detail.Location, ".")
			return cay.Errorf(cay.InvalidRequest, "`%s`: %s", field, detail.Message).On(field)
		}
	}
	if status >= 400 && status < 500 {
		return cay.Errorf(cay.InvalidRequest, "%s", msg)
	}
	return cay.Errorf(cay.Internal, "%s", msg).Because(fmt.Errorf("huma: %d: %w", status, errors.Join(errs...)))
}
