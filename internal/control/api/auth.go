package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cayhq/cay"
)

const ticketParam = "ticket"

// maxSecret bounds what is looked at as a key or ticket, in bytes.
const maxSecret = 256

// authenticate finds out who asks: by a key in a header, or by a ticket in the query of a GET; where the route allows it, by a signed
// URL, for whose sake a key is not looked at: it may do less.
func (a *API) authenticate(r *http.Request, query url.Values, signable string) (cay.Identity, error) {
	if signable != "" && query.Has(signatureParam) {
		return a.verifySigned(r, query, signable)
	}
	secret, err := keyOf(r.Header)
	if err != nil {
		return cay.Identity{}, err
	}
	if secret != "" {
		return a.Auth.Key(r.Context(), secret)
	}
	if ticket := query.Get(ticketParam); ticket != "" && r.Method == http.MethodGet {
		if len(ticket) > maxSecret || len(query[ticketParam]) > 1 {
			return cay.Identity{}, cay.Errorf(cay.Unauthorized, "this ticket is not valid")
		}
		return a.Auth.RedeemTicket(r.Context(), ticket, http.MethodGet, canonicalURL(r.URL.Path, query))
	}
	return cay.Identity{}, cay.Errorf(cay.Unauthorized, "a key is needed, as Authorization: Bearer KEY or X-API-Key: KEY")
}

func keyOf(h http.Header) (string, error) {
	authorization, apiKey := h.Values("Authorization"), h.Values("X-API-Key")
	if len(authorization)+len(apiKey) == 0 {
		return "", nil
	}
	secret := ""
	if len(authorization) > 0 {
		scheme, rest, _ := strings.Cut(authorization[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", cay.Errorf(cay.Unauthorized, "the Authorization header must be of the form Bearer KEY")
		}
		secret = strings.TrimSpace(rest)
	} else {
		secret = strings.TrimSpace(apiKey[0])
	}
	if len(authorization)+len(apiKey) > 1 || secret == "" || len(secret) > maxSecret {
		return "", cay.Errorf(cay.Unauthorized, "exactly one key is needed, as Authorization: Bearer KEY or X-API-Key: KEY")
	}
	return secret, nil
}

// canonicalURL is a path and query, without its ticket, in the one form in which tickets name them.
func canonicalURL(path string, query url.Values) string {
	rest := url.Values{}
	for k, v := range query {
		if k != ticketParam {
			rest[k] = v
		}
	}
	u := url.URL{Path: path, RawQuery: rest.Encode()}
	return u.String()
}

type ticketRequest struct {
	Method string `json:"method" enum:"GET" doc:"GET, also for SSE and WebSocket"`
	URL    string `json:"url" doc:"Path and query of the request that the ticket is for; an absolute URL is taken too" example:"/v1/sandboxes/sbx_…/terminal?cols=80&rows=24"`
}

func (t *ticketRequest) validate() error {
	if t.Method != http.MethodGet {
		return cay.Errorf(cay.InvalidRequest, "`method` must be GET").On("method")
	}
	return nil
}

type ticket struct {
	Ticket    string `json:"ticket"`
	ExpiresAt moment `json:"expires_at"`
}

type createTicketInput struct {
	Payload payload[ticketRequest]
}

type ticketOutput struct {
	Body ticket
}

// ticketable says which paths a ticket can be for: those below /v1 and of the simple door.
func ticketable(path string) bool {
	if path == doorStream || path == doorJobs || path == doorSessions {
		return true
	}
	return slices.ContainsFunc([]string{"/v1/", doorJob + "/", doorSession + "/"}, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

// createTicket does not look at Idempotency-Key: a ticket is good once, so that a repeated request needs one of its own.
func (a *API) createTicket(ctx context.Context, in *createTicketInput) (*ticketOutput, error) {
	u, err := url.Parse(in.Payload.value.URL)
	if err != nil || !ticketable(u.Path) || u.Opaque != "" || u.User != nil || u.Fragment != "" {
		return nil, cay.Errorf(cay.InvalidRequest, "`url` must be the path of a GET that needs a key, with its query").On("url")
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil || query.Has(ticketParam) {
		return nil, cay.Errorf(cay.InvalidRequest, "the query of `url` cannot be read, or holds a ticket itself").On("url")
	}
	secret, expires, err := a.Auth.MintTicket(ctx, exchangeOf(ctx).identity, http.MethodGet, canonicalURL(u.Path, query))
	if err != nil {
		return nil, err
	}
	return &ticketOutput{Body: ticket{Ticket: secret, ExpiresAt: moment(expires)}}, nil
}
