package ports

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
)

func FuzzAHostNameLeadsToThePortItWasMadeOf(f *testing.F) {
	id := cay.NewID(cay.PrefixSandbox)
	f.Add(label(key{id, 3000}))
	f.Add("0-" + id.Body())
	f.Add("65536-" + id.Body())
	f.Add("+1-" + id.Body())
	f.Add("1-" + strings.ToUpper(id.Body()))
	f.Add("1-")
	f.Fuzz(func(t *testing.T, s string) {
		k, ok := parseLabel(s)
		if ok && (label(k) != s || k.port < 1 || k.port > 65535) {
			t.Errorf("%q is read as %+v, which is written %q", s, k, label(k))
		}
	})
}

func FuzzACookieKeepsToItsHost(f *testing.F) {
	for _, s := range []string{"a=1", "a=1; Domain=localhost", "a=1;domain", "a=1; \tDOMAIN \t= .x ;Path=/", "cay_port_token=x", " cay_port_token =x; Path=/", "=;;Domain=", ";domain=x", "a=\"b;domain=x\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		got, ok := ownCookie(line)
		if !ok {
			return
		}
		// As browsers read it (RFC 6265, 5.2), not as ownCookie does.
		for i, part := range strings.Split(got, ";") {
			name, _, _ := strings.Cut(part, "=")
			name = strings.Trim(name, " \t")
			if i == 0 && name == tokenName {
				t.Errorf("%q became %q, which is the platform's cookie", line, got)
			}
			if i > 0 && strings.EqualFold(name, "domain") {
				t.Errorf("%q became %q, which has a domain", line, got)
			}
		}
	})
}

func FuzzTheTokenLeavesTheQuery(f *testing.F) {
	for _, s := range []string{"", "a=b", "cay_port_token=x", "a&cay_port_token=x&b=%zz", "cay%5Fport%5ftoken=x", "cay_port_token", "&&cay_port_token=&", "a=cay_port_token=x", "cay_port_token=%", "cay+port_token=1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		rest := withoutToken(query)
		if len(queryTokens(rest)) > 0 {
			t.Errorf("%q leaves %q", query, rest)
		}
		// All else stays as it was, in its order.
		var want []string
		for part := range strings.SplitSeq(query, "&") {
			if !isToken(part) {
				want = append(want, part)
			}
		}
		if rest != strings.Join(want, "&") {
			t.Errorf("%q became %q", query, rest)
		}
	})
}

func TestOnlyThePlatformsOwnIsStrippedInTheHostForm(t *testing.T) {
	apiKey := "cay_" + strings.Repeat("0a", 32)
	h := http.Header{
		"Authorization": {"Bearer " + apiKey, "bearer\t" + apiKey, "Basic abc"}, "X-Api-Key": {apiKey}, "Cay-Port-Token": {"t"},
		"Cookie": {"a=1; cay_port_token=x;b=2", "cay_port_token=y", " cay_port_token = z ; c=3"}, "Accept": {"*/*"},
	}
	byHost.strip(h)
	if !slices.Equal(h["Authorization"], []string{"Basic abc"}) || h["X-Api-Key"] != nil || h["Cay-Port-Token"] != nil || h.Get("Accept") != "*/*" {
		t.Errorf("left: %v", h)
	}
	if got := strings.Join(h["Cookie"], "|"); got != "a=1;b=2|c=3" {
		t.Errorf("cookies left: %q", got)
	}
}
