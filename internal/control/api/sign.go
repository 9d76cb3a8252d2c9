package api

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cayhq/cay"
)

// Query parameters of a signed URL, besides those of the file.
const (
	maxBytesParam  = "max_bytes"
	keyParam       = "key"
	expiresParam   = "expires"
	signatureParam = "signature"
)

// signedParams are all that the query of a signed URL may hold: what a signature does not cover, no holder of the URL may add.
var signedParams = map[string]bool{"path": true, "user": true, maxBytesParam: true, keyParam: true, expiresParam: true, signatureParam: true}

// verifySigned answers who signed the URL of the request, which is about something with an ID of that prefix.
func (a *API) verifySigned(r *http.Request, query url.Values, prefix string) (cay.Identity, error) {
	u, err := signedURLOf(r, query, prefix)
	if err != nil {
		return cay.Identity{}, err
	}
	return a.Auth.VerifyURL(r.Context(), u, query.Get(signatureParam))
}

// signedURLOf reads what the URL says. Each value has one spelling, so that what is verified is what is done.
func signedURLOf(r *http.Request, query url.Values, prefix string) (cay.SignedURL, error) {
	bad := func(what string) (cay.SignedURL, error) {
		return cay.SignedURL{}, cay.Errorf(cay.Unauthorized, "this is no signed URL that this server made: %s; ask for a new one", what)
	}
	for name, values := range query {
		if !signedParams[name] || len(values) != 1 {
			return bad("its query holds more than was signed")
		}
	}
	id, ok := cay.ParseID(prefix, r.PathValue("id"))
	key, okKey := cay.ParseID(cay.PrefixKey, query.Get(keyParam))
	expires, okExpires := decimal(query.Get(expiresParam))
	if !ok || !okKey || !okExpires || len(query.Get(signatureParam)) > maxSecret {
		return bad("its query is malformed")
	}
	u := cay.SignedURL{Method: r.Method, Of: id, Path: query.Get("path"), User: query.Get("user"), KeyID: key, ExpiresAt: time.Unix(expires, 0)}
	if query.Has(maxBytesParam) {
		if u.MaxBytes, ok = decimal(query.Get(maxBytesParam)); !ok || u.MaxBytes == 0 {
			return bad("its query is malformed")
		}
	}
	return u, nil
}

// decimal reads a number that is not negative, in the one way in which it is written.
func decimal(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
}

// unsigned holds a request to the bound that its verified URL sets, and answers what the query says of the file.
func (a *API) unsigned(w http.ResponseWriter, r *http.Request, query url.Values) (url.Values, error) {
	if limit, ok := decimal(query.Get(maxBytesParam)); ok {
		if r.ContentLength > limit {
			return nil, tooLarge(limit)
		}
		r.Body = http.MaxBytesReader(w, r.Body, limit)
	}
	file := url.Values{"path": query["path"]}
	if query.Has("user") {
		file["user"] = query["user"]
	}
	return file, nil
}

// signURL makes an absolute URL for the file that is good by itself, with the authority of the request's key.
func (a *API) signURL(ctx context.Context, u cay.SignedURL) (string, error) {
	x := exchangeOf(ctx)
	u.KeyID = x.identity.KeyID
	signature, err := a.Auth.SignURL(ctx, u)
	if err != nil {
		return "", err
	}
	query := "path=" + url.QueryEscape(u.Path)
	if u.User != "" {
		query += "&user=" + url.QueryEscape(u.User)
	}
	if u.MaxBytes > 0 {
		query += "&" + maxBytesParam + "=" + strconv.FormatInt(u.MaxBytes, 10)
	}
	query += "&" + keyParam + "=" + string(u.KeyID) + "&" + expiresParam + "=" + strconv.FormatInt(u.ExpiresAt.Unix(), 10) + "&" + signatureParam + "=" + signature
	at := "/v1/sandboxes/" + string(u.Of) + "/files?"
	if u.Scope() == cay.ScopeJobs {
		at = "/v1/jobs/" + string(u.Of) + "/outputs?"
	}
	return x.origin + at + query, nil
}

// signedUntil is the end of a signed URL that is good for at least period: whole seconds.
func signedUntil(period time.Duration) time.Time {
	return time.Now().Add(period + time.Second - 1).Truncate(time.Second)
}

type signRequest struct {
	Method     string   `json:"method" enum:"GET,PUT" doc:"GET also allows HEAD"`
	Path       string   `json:"path"`
	User       string   `json:"user,omitzero" doc:"Whose access and ownership count; default the sandbox's user"`
	TTLSeconds *float64 `json:"ttl_seconds,omitzero" minimum:"1" maximum:"604800" doc:"How long the URL is good; default 3600"`
	MaxBytes   *int64   `json:"max_bytes,omitzero" minimum:"1" doc:"PUT only: a larger body is 413 and nothing is written"`
}

func (s *signRequest) validate() error {
	if s.Method != http.MethodGet && s.Method != http.MethodPut {
		return cay.Errorf(cay.InvalidRequest, "`method` must be GET or PUT").On("method")
	}
	if ttl := s.TTLSeconds; ttl != nil && !(*ttl >= 1 && *ttl <= cay.MaxSignedURLPeriod.Seconds()) {
		return cay.Errorf(cay.InvalidRequest, "`ttl_seconds` must be from 1 to %d", int(cay.MaxSignedURLPeriod.Seconds())).On("ttl_seconds")
	}
	if s.MaxBytes != nil && (s.Method != http.MethodPut || *s.MaxBytes < 1) {
		return cay.Errorf(cay.InvalidRequest, "`max_bytes` must be at least 1, and goes with PUT only").On("max_bytes")
	}
	return nil
}

type signInput struct {
	Idempotent
	SandboxPath
	Payload payload[signRequest]
}

type signedFile struct {
	URL       string `json:"url" doc:"Absolute, with the scheme and host of this request"`
	Method    string `json:"method" enum:"GET,PUT"`
	Path      string `json:"path"`
	ExpiresAt moment `json:"expires_at"`
	MaxBytes  *int64 `json:"max_bytes"`
}

type signOutput struct {
	Body signedFile
}

// signFile does nothing to the sandbox: not even a paused one is resumed. A repeated request makes a URL that is good for as long.
func (a *API) signFile(ctx context.Context, in *signInput) (*signOutput, error) {
	body := in.Payload.value
	id, err := in.id()
	if err != nil {
		return nil, err
	}
	name := body.Path
	if _, err := guestPath("path", name); err != nil {
		return nil, err
	}
	user, err := FileUser{User: body.User}.user()
	if err != nil {
		return nil, err
	}
	project := exchangeOf(ctx).identity.ProjectID
	sb, err := a.Sandboxes.Get(ctx, project, id)
	if err != nil {
		return nil, err
	}
	if sb.Status.Ended() {
		return nil, sb.Usable()
	}
	once := a.once(project, "POST /v1/sandboxes/"+string(id)+"/files/sign", in.IdempotencyKey, in.Payload.sum)
	_, fresh, err := once.begin(ctx)
	if err != nil {
		return nil, err
	}
	u := cay.SignedURL{Method: body.Method, Of: id, Path: name, User: user, ExpiresAt: signedUntil(cay.DefaultSignedURLPeriod)}
	if body.TTLSeconds != nil {
		u.ExpiresAt = signedUntil(time.Duration(*body.TTLSeconds * float64(time.Second)))
	}
	if body.MaxBytes != nil {
		u.MaxBytes = *body.MaxBytes
	}
	text, err := a.signURL(ctx, u)
	if err != nil {
		once.failed(ctx, err)
		return nil, err
	}
	out := &signOutput{Body: signedFile{URL: text, Method: u.Method, Path: name, ExpiresAt: moment(u.ExpiresAt), MaxBytes: body.MaxBytes}}
	if !fresh {
		return out, nil
	}
	return out, once.finish(ctx, http.StatusOK, "")
}
