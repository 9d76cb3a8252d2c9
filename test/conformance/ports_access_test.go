package conformance

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

func TestAPortAsksForItsTokenUnlessItIsPublic(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	e := s.expose(false)
	other := serve(t, "127.0.0.1:3000").expose(false)
	for name, headers := range map[string][]string{
		"nothing":             nil,
		"another port's":      other.token(),
		"a part of it":        {"Cay-Port-Token", (*e.Token)[1:]},
		"the API's key":       {"Authorization", "Bearer " + s.Key},
		"a cookie of another": {"Cookie", "cay_port_token=" + *other.Token},
		"an empty cookie":     {"Cookie", "cay_port_token="},
	} {
		if resp := e.ask("GET", "/small", nil, headers...); resp.Status != 401 || resp.Problem().Reason != "unauthorized" {
			t.Errorf("%s: %v", name, resp)
		}
	}
	for name, headers := range map[string][]string{"header": e.token(), "cookie": {"Cookie", "a=b; cay_port_token=x; cay_port_token=" + *e.Token}} {
		if resp := e.ask("GET", "/small", nil, headers...); resp.Status != 200 || string(resp.Body) != "small" {
			t.Errorf("the token as a %s: %v", name, resp)
		}
	}
	public := s.expose(true)
	if public.URL != e.URL {
		t.Errorf("the URL became %s", public.URL)
	}
	if resp := e.ask("GET", "/small", nil); resp.Status != 200 {
		t.Errorf("public: %v", resp)
	}
	if again := s.expose(false); again.Token == nil || *again.Token != *e.Token {
		t.Error("the token is another after the port was public for a while")
	}
	if resp := e.ask("GET", "/small", nil); resp.Status != 401 {
		t.Errorf("no longer public: %v", resp)
	}
	var list struct{ Items []exposed }
	if err := s.Call("GET", "/ports", nil).Decode(200, &list); err != nil || len(list.Items) != 1 || list.Items[0].URL != e.URL || *list.Items[0].Token != *e.Token {
		t.Errorf("listed: %+v, %v", list, err)
	}
}

func TestATokenInALinkBecomesACookieOfItsHost(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	e, other := s.expose(false), serve(t, "127.0.0.1:3000").expose(false)
	link := "/echo//evil.example/x?a=%3D&cay_port_token=" + *e.Token + "&b"
	resp := e.ask("GET", link, nil, "Sec-Fetch-Mode", "navigate")
	if want := strings.TrimSuffix(e.URL, "/") + "/echo//evil.example/x?a=%3D&b"; resp.Status != 303 || resp.Header.Get("Location") != want {
		t.Fatalf("%v, Location %q, want %q", resp, resp.Header.Get("Location"), want)
	}
	cookie, err := http.ParseSetCookie(resp.Header.Get("Set-Cookie"))
	if err != nil || cookie.Name != "cay_port_token" || !cookie.HttpOnly || cookie.SameSite != http.SameSiteLaxMode || cookie.Domain != "" || cookie.Path != "/" {
		t.Errorf("the cookie %q: %v", resp.Header.Get("Set-Cookie"), err)
	}
	got := echoOf(t, e.ask("GET", "/echo/?a=%3D&b", nil, "Cookie", "theirs=1; cay_port_token="+cookie.Value+"; more=2"))
	if got.URI != "/echo/?a=%3D&b" || got.Headers.Get("Cookie") != "theirs=1; more=2" {
		t.Errorf("inside: %+v", got)
	}
	if resp := other.ask("GET", "/small", nil, "Cookie", "cay_port_token="+cookie.Value); resp.Status != 401 {
		t.Errorf("at another sandbox: %v", resp)
	}
	if resp := e.ask("GET", "/small?cay_port_token=wrong", nil); resp.Status != 401 || resp.Header.Get("Set-Cookie") != "" {
		t.Errorf("a wrong token in a link: %v %v", resp, resp.Header)
	}
	// What is no navigation is answered at once, and the token stays outside.
	for name, got := range map[string]echo{
		"fetch": echoOf(t, e.ask("GET", "/echo/?cay_port_token="+*e.Token+"&q=1", nil, "Sec-Fetch-Mode", "cors")),
		"POST":  echoOf(t, e.ask("POST", "/echo/?q=1&cay%5Fport_token="+*e.Token, nil)),
	} {
		if got.URI != "/echo/?q=1" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// The path may not lead the browser elsewhere.
	if resp := e.ask("GET", "//evil.example/?cay_port_token="+*e.Token, nil); !strings.HasPrefix(resp.Header.Get("Location"), e.URL) {
		t.Errorf("sent on to %q", resp.Header.Get("Location"))
	}
}

func TestNoCredentialOfThePlatformReachesTheServerInside(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	e := s.expose(false)
	lies := []string{
		"X-API-Key", s.Key, "Cookie", "cay_port_token=" + *e.Token, "X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil.example",
		"X-Forwarded-Proto", "gopher", "X-Forwarded-Prefix", "/evil", "Forwarded", "for=6.6.6.6", "X-Real-IP", "6.6.6.6", "Proxy-Authorization", "Bearer " + s.Key,
	}
	for name, got := range map[string]echo{
		"host form":               echoOf(t, e.ask("GET", "/echo/", nil, append(lies, "Cay-Port-Token", *e.Token, "Authorization", "Bearer "+s.Key)...)),
		"path form":               echoOf(t, s.Call("GET", s.path("/echo/?cay_port_token="+*e.Token), nil, append(lies[2:], "Cay-Port-Token", *e.Token)...)),
		"path form, other header": echoOf(t, s.Call("GET", s.path("/echo/"), nil, append(lies, "Authorization", "")...)),
	} {
		all := fmt.Sprint(got)
		for what, secret := range map[string]string{"the key": s.Key, "the token": *e.Token, "a lie": "6.6.6.6", "another lie": "evil"} {
			if strings.Contains(all, secret) {
				t.Errorf("%s: the server inside sees %s: %s", name, what, all)
			}
		}
		if got.Headers.Get("X-Forwarded-For") != "127.0.0.1" || got.Headers.Get("X-Forwarded-Proto") != "http" || got.Headers.Get("X-Forwarded-Host") == "" {
			t.Errorf("%s: forwarded as %v", name, got.Headers)
		}
	}
	// What is the guest's own affair stays.
	got := echoOf(t, e.ask("GET", "/echo/", nil, "Cay-Port-Token", *e.Token, "Authorization", "Basic dXNlcjpwYXNz", "X-API-Key", "theirs", "Cookie", "a=1; b=2"))
	if got.Headers.Get("Authorization") != "Basic dXNlcjpwYXNz" || got.Headers.Get("X-Api-Key") != "theirs" || got.Headers.Get("Cookie") != "a=1; b=2" {
		t.Errorf("got %v", got.Headers)
	}
}

func TestTheAPIAndPortsAreOnHostsOfTheirOwn(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	e := s.expose(true)
	own := func(host string) testkit.Response {
		return e.ask("GET", "/v1/sandboxes", nil, "Host", host, "Authorization", "Bearer "+s.Key)
	}
	if resp := own(e.host); resp.Status != 404 || resp.Problem().Reason != "" {
		t.Errorf("the API at a port's host: %v", resp)
	}
	if resp := own(strings.ToUpper(e.host)); resp.Status != 404 || resp.Problem().Reason != "" {
		t.Errorf("the API at a port's host, in upper case: %v", resp)
	}
	if resp := own("localhost:8080"); resp.Status != 200 {
		t.Errorf("the API at its own: %v", resp)
	}
	_, body, _ := strings.Cut(strings.Split(e.host, ".")[0], "-")
	for _, host := range []string{
		"evil", "evil.example", "evil.example:80", "3000-" + body + ".localhost.evil.example", "3000-" + body, "3000-" + body + ".example",
	} {
		if resp := e.ask("GET", "/small", nil, "Host", host); resp.Status != 403 {
			t.Errorf("Host %s: %v", host, resp)
		}
	}
	for _, host := range []string{
		"03000-" + body + ".localhost", "+3000-" + body + ".localhost", "0-" + body + ".localhost", "65536-" + body + ".localhost", "3001-" + body + ".localhost", "x.3000-" + body + ".localhost",
		"3000-" + body[1:] + ".localhost", "3000-sbx_" + body + ".localhost", "3000-" + strings.Repeat("0", 26) + ".localhost", "-.localhost", "3000.localhost", "api.localhost",
	} {
		if resp := e.ask("GET", "/small", nil, "Host", host); resp.Status != 404 || resp.Problem().Reason != "not_found" {
			t.Errorf("Host %s: %v", host, resp)
		}
	}
	for name, resp := range map[string]testkit.Response{
		"no key":           e.ask("GET", s.Path(s.path("/small")), nil, "Host", ""),
		"a ticket":         e.ask("GET", s.Path(s.path("/small?ticket=tkt_1")), nil, "Host", ""),
		"a cookie":         e.ask("GET", s.Path(s.path("/small")), nil, "Host", "", "Cookie", "cay_port_token=x"),
		"the port's token": e.ask("GET", s.Path(s.path("/small")), nil, "Host", "", "Cay-Port-Token", "x"),
	} {
		if resp.Status != 401 {
			t.Errorf("the path form with %s: %v", name, resp)
		}
	}
}

func TestAnAnswerOfTheGuestReachesNoFurtherThanItsHost(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	e := s.expose(false)
	q := url.Values{"Set-Cookie": {"a=1; Path=/; Domain=localhost", "b=2; domain = .localhost ;Secure", "c=3", "cay_port_token=x"}, "X-Request-Id": {"theirs"}, "Location": {"http://127.0.0.1:1/"}, "status": {"302"}}
	resp := e.ask("GET", "/answer?"+q.Encode(), nil, e.token()...)
	if got := resp.Header.Values("Set-Cookie"); len(got) != 3 || strings.Contains(strings.ToLower(fmt.Sprint(got)), "domain") || !strings.HasPrefix(got[0], "a=1; Path=/") {
		t.Errorf("cookies: %q", got)
	}
	if resp.Status != 302 || resp.Header.Get("Location") != "http://127.0.0.1:1/" || len(resp.Header.Values("X-Request-Id")) != 1 || resp.Header.Get("X-Request-Id") == "theirs" {
		t.Errorf("a redirect: %v %v", resp, resp.Header)
	}
	if resp := e.ask("GET", "/answer", nil, e.token()...); resp.Header.Get("X-Content-Type-Options") != "" || resp.Header.Get("Content-Security-Policy") != "" {
		t.Errorf("a page got headers that its server did not send: %v", resp.Header)
	}
	q.Set("Content-Security-Policy", "default-src *")
	q.Set("Access-Control-Allow-Origin", "*")
	q.Set("Clear-Site-Data", `"*"`)
	q.Set("status", "200")
	resp = s.Call("GET", s.path("/answer?"+q.Encode()), nil)
	for name, want := range map[string]string{
		"Set-Cookie": "", "Content-Security-Policy": "sandbox", "X-Content-Type-Options": "nosniff", "Access-Control-Allow-Origin": "", "Clear-Site-Data": "",
	} {
		if got := strings.Join(resp.Header.Values(name), "|"); got != want {
			t.Errorf("path form: %s is %q, want %q", name, got, want)
		}
	}
	q.Set("status", "103") // an interim answer, and then 200
	for name, resp := range map[string]testkit.Response{
		"host form": e.ask("GET", "/answer?"+q.Encode(), nil, e.token()...), "path form": s.Call("GET", s.path("/answer?"+q.Encode()), nil),
	} {
		if resp.Status != 200 || resp.Header.Get("X-Request-Id") == "" || len(resp.Header.Values("X-Request-Id")) != 1 {
			t.Errorf("%s, after early hints: %v %v", name, resp, resp.Header)
		}
	}
}
