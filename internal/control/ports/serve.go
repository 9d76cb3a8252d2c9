package ports

import (
	"crypto/subtle"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
)

// Owns reports whether a request's host is below the domain of ports. Whatever else is served, it is not served there.
func (p *Ports) Owns(host string) bool {
	_, ok := p.labels(host)
	return ok
}

// labels is what stands before the domain in a request's host.
func (p *Ports) labels(host string) (string, bool) {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.CutSuffix(strings.ToLower(strings.TrimSuffix(host, ".")), "."+p.host)
}

// ServeHost serves a request whose host Owns. An error means that nothing was answered.
func (p *Ports) ServeHost(w http.ResponseWriter, r *http.Request) error {
	labels, _ := p.labels(r.Host)
	k, ok := parseLabel(labels)
	if !ok || r.Method == http.MethodConnect {
		return cay.Errorf(cay.NotFound, "there is no port of a sandbox at this host name")
	}
	ctx, release := p.cuttable(r.Context(), byHost.pool(k))
	defer release()
	r = r.WithContext(ctx)
	row, err := p.row(ctx, k)
	if cay.ReasonOf(err) == cay.NotFound {
		return notExposed(k.port)
	}
	if err != nil {
		return err
	}
	if err := p.lives(r.Context(), row.ProjectID, k.sandbox); err != nil {
		return err
	}
	if !row.Public {
		if done, err := p.admit(w, r, row); done || err != nil {
			return err
		}
	}
	w.Header().Del("X-Content-Type-Options") // how its answers are to be read, the server inside says
	return p.forward(w, r, row.ProjectID, &target{key: k, form: byHost, host: r.Host, scheme: p.cfg.Scheme})
}

// maxTokens bounds the tokens of one request that are looked at. Several cookies of the name may come: a page of another sandbox can
// set one for the common domain, and must not shut anybody out by that.
const maxTokens = 16

// admit looks for the port's token. done: the answer is that the browser comes again with a cookie.
func (p *Ports) admit(w http.ResponseWriter, r *http.Request, row cay.Port) (done bool, err error) {
	want, err := p.tokens.PortToken(r.Context(), row)
	if err != nil {
		return false, err
	}
	good := func(given []string) bool {
		ok := 0
		for _, g := range given[:min(len(given), maxTokens)] {
			ok |= subtle.ConstantTimeCompare([]byte(g), []byte(want))
		}
		return ok == 1
	}
	if good(r.Header.Values(tokenHeader)) {
		return false, nil
	}
	if good(queryTokens(r.URL.RawQuery)) {
		if navigates(r) {
			p.settle(w, r, want)
			return true, nil
		}
		return false, nil
	}
	var cookies []string
	for _, c := range r.CookiesNamed(tokenName) {
		cookies = append(cookies, c.Value)
	}
	if good(cookies) {
		return false, nil
	}
	w.Header().Set("Cache-Control", "no-store")
	return false, cay.Errorf(cay.Unauthorized, "this port asks for its token, as %s: TOKEN or ?%s=TOKEN", tokenHeader, tokenName)
}

// navigates reports whether the request may be a person's who follows a link: then the token is to leave the address bar. A browser
// says so; of what does not say, every GET that is no upgrade.
func navigates(r *http.Request) bool {
	mode := r.Header.Get("Sec-Fetch-Mode")
	return r.Method == http.MethodGet && (mode == "" || mode == "navigate") && r.Header.Get("Upgrade") == ""
}

// settle puts the token into a cookie of this host alone and sends the browser to the same URL without it.
func (p *Ports) settle(w http.ResponseWriter, r *http.Request, token string) {
	http.SetCookie(w, &http.Cookie{
		Name: tokenName, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: p.cfg.Scheme == "https",
	})
	// Absolute, because a path may begin with two slashes.
	location := p.cfg.Scheme + "://" + r.Host + r.URL.EscapedPath()
	if rest := withoutToken(r.URL.RawQuery); rest != "" {
		location += "?" + rest
	}
	h := w.Header()
	h.Set("Location", location)
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(http.StatusSeeOther)
}

// ServePath serves a request below the API's path, whose key is the caller's affair. rest is the escaped path of the request to the
// server inside. An error means that nothing was answered.
func (p *Ports) ServePath(w http.ResponseWriter, r *http.Request, project, sandbox cay.ID, number int, rest string) error {
	if number < 1 || number > 65535 {
		return cay.Errorf(cay.InvalidRequest, "`port` must be from 1 to 65535").On("port")
	}
	k := key{sandbox, number}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	ctx, release := p.cuttable(r.Context(), byPath.pool(k))
	defer release()
	return p.forward(w, r.WithContext(ctx), project, &target{key: k, form: byPath, host: "localhost:" + strconv.Itoa(number), scheme: scheme, path: rest})
}
