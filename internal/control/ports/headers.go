package ports

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

const (
	tokenHeader = "Cay-Port-Token"
	tokenName   = "cay_port_token" // of the query's parameter and of the cookie
)

// platformKey is what an API key looks like, wherever in a header it is.
var platformKey = regexp.MustCompile(`cay_[0-9a-f]{64}`)

// strip takes the platform's credentials out of a request.
func (f form) strip(h http.Header) {
	h.Del(tokenHeader)
	if f == byPath {
		for _, name := range []string{"Authorization", "X-Api-Key", "Cookie"} {
			h.Del(name)
		}
		return
	}
	for _, name := range []string{"Authorization", "X-Api-Key"} {
		keep(h, name, func(v string) (string, bool) { return v, !platformKey.MatchString(v) })
	}
	keep(h, "Cookie", func(v string) (string, bool) {
		parts := slices.DeleteFunc(strings.Split(v, ";"), func(part string) bool {
			name, _, _ := strings.Cut(part, "=")
			return strings.TrimSpace(name) == tokenName
		})
		v = strings.TrimSpace(strings.Join(parts, ";"))
		return v, v != ""
	})
}

// keep replaces each value of a header, or drops it.
func keep(h http.Header, name string, change func(string) (string, bool)) {
	var kept []string
	for _, v := range h[name] {
		if v, ok := change(v); ok {
			kept = append(kept, v)
		}
	}
	if len(kept) == 0 {
		delete(h, name)
		return
	}
	h[name] = kept
}

// reachOrigin are headers by which an answer changes how a browser treats everything of its origin. In the path form that is the API's.
var reachOrigin = []string{
	"Set-Cookie", "Set-Cookie2", "Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "Service-Worker-Allowed", "Nel", "Report-To",
	"Reporting-Endpoints", "Expect-Ct", "Public-Key-Pins", "Public-Key-Pins-Report-Only", "Origin-Agent-Cluster", "Accept-Ch", "Critical-Ch",
	"Content-Security-Policy", "Content-Security-Policy-Report-Only", "X-Content-Type-Options", "X-Request-Id",
	"Access-Control-Allow-Origin", "Access-Control-Allow-Credentials", "Access-Control-Expose-Headers", "Access-Control-Allow-Methods",
	"Access-Control-Allow-Headers", "Access-Control-Max-Age", "Access-Control-Allow-Private-Network",
}

// scrub takes out of an answer what reaches beyond its own host.
func (f form) scrub(h http.Header) {
	if f == byPath {
		for _, name := range reachOrigin {
			h.Del(name)
		}
		return
	}
	h.Del("X-Request-Id")
	keep(h, "Set-Cookie", ownCookie)
}

// add puts into a final answer what keeps a guest's page from acting as one of the API's.
func (f form) add(h http.Header) {
	if f == byPath {
		h.Set("Content-Security-Policy", "sandbox")
		h.Set("X-Content-Type-Options", "nosniff")
	}
}

// ownCookie makes a cookie one of its own host alone: a Domain could only name that host again, or hosts above it, which are other
// sandboxes' too. The platform's own cookie is not a guest's to set.
func ownCookie(line string) (string, bool) {
	parts := strings.Split(line, ";")
	name, _, _ := strings.Cut(parts[0], "=")
	if strings.TrimSpace(name) == tokenName {
		return "", false
	}
	parts = slices.DeleteFunc(parts, func(part string) bool {
		attribute, _, _ := strings.Cut(part, "=")
		return strings.EqualFold(strings.Trim(attribute, " \t"), "domain")
	})
	return strings.Join(parts, ";"), len(parts) > 0
}

// withoutToken takes the token out of a query and leaves all else as it was written.
func withoutToken(query string) string {
	if !strings.Contains(query, "=") && !strings.Contains(query, tokenName) {
		return query
	}
	return strings.Join(slices.DeleteFunc(strings.Split(query, "&"), isToken), "&")
}

func isToken(part string) bool {
	name, _, _ := strings.Cut(part, "=")
	name, err := url.QueryUnescape(name)
	return err == nil && name == tokenName
}

// queryTokens are the tokens in a query.
func queryTokens(query string) []string {
	var tokens []string
	for part := range strings.SplitSeq(query, "&") {
		if isToken(part) {
			_, value, _ := strings.Cut(part, "=")
			if value, err := url.QueryUnescape(value); err == nil {
				tokens = append(tokens, value)
			}
		}
	}
	return tokens
}

func unescaped(path string) string {
	if p, err := url.PathUnescape(path); err == nil {
		return p
	}
	return path // a request's path has been read once already
}
