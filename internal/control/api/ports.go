package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cayhq/cay"
)

type exposeRequest struct {
	Port   int  `json:"port" minimum:"1" maximum:"65535"`
	Public bool `json:"public,omitzero" doc:"Ask for no token: whoever knows the URL may use it"`
}

func (e *exposeRequest) validate() error {
	if e.Port < 1 || e.Port > 65535 {
		return cay.Errorf(cay.InvalidRequest, "`port` must be from 1 to 65535").On("port")
	}
	return nil
}

type exposedPort struct {
	Port      int     `json:"port"`
	Public    bool    `json:"public"`
	URL       string  `json:"url" doc:"A host of its own, for HTTP and WebSocket"`
	Token     *string `json:"token" doc:"As the header Cay-Port-Token, or behind ?cay_port_token=; null when public"`
	CreatedAt moment  `json:"created_at"`
}

func exposedOf(p cay.ExposedPort) exposedPort {
	return exposedPort{Port: p.Number, Public: p.Public, URL: p.URL, Token: nullable(p.Token), CreatedAt: moment(p.CreatedAt)}
}

type exposeInput struct {
	Idempotent
	SandboxPath
	Payload payload[exposeRequest]
}

type exposedOutput struct {
	Status int
	Body   exposedPort
}

// exposePort is idempotent by itself; a key makes a repeated request answer with the status of the first.
func (a *API) exposePort(ctx context.Context, in *exposeInput) (*exposedOutput, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	project, body := exchangeOf(ctx).identity.ProjectID, in.Payload.value
	once := a.once(project, "POST /v1/sandboxes/"+string(id)+"/ports", in.IdempotencyKey, in.Payload.sum)
	rec, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	p, created, err := a.Ports.Expose(ctx, project, id, body.Port, body.Public)
	if err != nil {
		if fresh {
			once.failed(ctx, err)
		}
		return nil, err
	}
	out := &exposedOutput{Status: http.StatusOK, Body: exposedOf(p)}
	if created {
		out.Status = http.StatusCreated
	}
	if !fresh {
		out.Status = rec.Status
		return out, nil
	}
	return out, once.finish(ctx, out.Status, strconv.Itoa(body.Port))
}

type portsOutput struct {
	Body page[exposedPort]
}

func (a *API) listPorts(ctx context.Context, in *SandboxPath) (*portsOutput, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	list, err := a.Ports.List(ctx, exchangeOf(ctx).identity.ProjectID, id)
	if err != nil {
		return nil, err
	}
	items := make([]exposedPort, len(list))
	for i, p := range list {
		items[i] = exposedOf(p)
	}
	return &portsOutput{Body: pageOf(items, "")}, nil
}

type portPath struct {
	SandboxPath
	Port string `path:"port" doc:"1 to 65535"`
}

// portNumber reads a port in the one way in which it is written.
func portNumber(s string) (int, error) {
	n, ok := decimal(s)
	if !ok || n < 1 || n > 65535 {
		return 0, cay.Errorf(cay.InvalidRequest, "`port` must be from 1 to 65535").On("port")
	}
	return int(n), nil
}

func (a *API) removePort(ctx context.Context, in *portPath) (*noContent, error) {
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	n, err := portNumber(in.Port)
	if err != nil {
		return nil, err
	}
	if err := a.Ports.Remove(ctx, exchangeOf(ctx).identity.ProjectID, id, n); err != nil {
		return nil, err
	}
	return &noContent{Status: http.StatusNoContent}, nil
}

// hosted answers the hosts of ports by the proxy alone: nothing of the API is reachable there, so that no page of a sandbox is of the
// API's origin. It stands before the check of host names.
func (a *API) hosted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.Ports.Owns(r.Host) {
			next.ServeHTTP(w, r)
			return
		}
		x := exchangeOf(r.Context())
		x.route, x.action, x.guest = "port", portAccess, true
		if err := a.Ports.ServeHost(w, r); err != nil {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			a.fail(w, r, err)
		}
	})
}

// portRoute is the path form, of any method.
const portRoute = "/v1/sandboxes/{id}/ports/{port}/{rest}"

// proxied answers the path form. It stands before the mux, which would clean the path that the server inside is to see as it is.
func (a *API) proxied(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, port, rest, ok := splitPortPath(r.URL.EscapedPath())
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		x := exchangeOf(r.Context())
		x.route, x.action, x.guest = "ANY "+portRoute, portAccess, true
		if err := a.servePort(w, r, x, id, port, rest); err != nil {
			a.fail(w, r, err)
		}
	})
}

func (a *API) servePort(w http.ResponseWriter, r *http.Request, x *exchange, sandbox, port, rest string) error {
	secret, err := keyOf(r.Header)
	if err != nil {
		return err
	}
	if secret == "" {
		return cay.Errorf(cay.Unauthorized, "a key is needed, as Authorization: Bearer KEY or X-API-Key: KEY; for browsers there is the port's own URL")
	}
	if x.identity, err = a.Auth.Key(r.Context(), secret); err != nil {
		return err
	}
	if !x.identity.May(cay.ScopeExec) {
		return cay.Errorf(cay.Forbidden, "this needs a key with the scope %s", cay.ScopeExec).With("scope", string(cay.ScopeExec))
	}
	id, err := SandboxPath{ID: sandbox}.id()
	if err != nil {
		return err
	}
	n, err := portNumber(port)
	if err != nil {
		return err
	}
	return a.Ports.ServePath(w, r, x.identity.ProjectID, id, n, rest)
}

// splitPortPath takes the path form apart; rest is escaped and begins with a slash.
func splitPortPath(escaped string) (sandbox, port, rest string, ok bool) {
	after, ok := strings.CutPrefix(escaped, "/v1/sandboxes/")
	if !ok {
		return "", "", "", false
	}
	sandbox, after, ok = strings.Cut(after, "/ports/")
	if !ok || strings.Contains(sandbox, "/") {
		return "", "", "", false
	}
	port, rest, ok = strings.Cut(after, "/")
	return sandbox, port, "/" + rest, ok
}

// portMethods are those of the path form that the document lists; HEAD, OPTIONS and others work alike.
var portMethods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// documentPortPath writes the path form into the document. It is no route of the mux.
func (t *table) documentPortPath() {
	doc := operations["port"]
	for _, method := range portMethods {
		op := &huma.Operation{
			OperationID: "port-" + strings.ToLower(method), Method: method, Path: portRoute, Summary: doc.summary, Description: doc.description,
			Tags: []string{doc.tag}, Responses: map[string]*huma.Response{},
		}
		for _, name := range []string{"id", "port", "rest"} {
			op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "path", Required: true, Schema: &huma.Schema{Type: "string"}})
		}
		t.api.OpenAPI().AddOperation(op)
		t.document(op, doc, runCommands, nil)
		op.Security = []map[string][]string{{"bearer": {}}, {"apiKey": {}}} // no ticket
	}
}
