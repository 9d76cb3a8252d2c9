package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cayhq/cay/internal/testkit"
)

// webServer builds the program that sandboxes serve with, once.
var webServer = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "webserver")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "webserver"), "./test/webserver")
	cmd.Dir = testkit.ModuleRoot()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the web server: %w\n%s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "webserver"))
})

// site is a web server in a sandbox.
type site struct {
	*testkit.Sandbox
	t    *testing.T
	port int
}

// serve starts the web server in a new sandbox, at an address of its loopback, and returns once it answers by the path form.
func serve(t *testing.T, address string, more ...fields) *site {
	t.Helper()
	return serveIn(t, testkit.Server(t), address, more...)
}

func serveIn(t *testing.T, inst *testkit.Instance, address string, more ...fields) *site {
	t.Helper()
	program, err := webServer()
	if err != nil {
		t.Fatal(err)
	}
	sb := inst.Create(t, more...)
	sb.Put("/tmp/webserver", program, "mode", "0755")
	port, err := strconv.Atoi(address[strings.LastIndex(address, ":")+1:])
	if err != nil {
		t.Fatal(err)
	}
	s := &site{sb, t, port}
	s.start(address)
	return s
}

func (s *site) start(address string) {
	s.t.Helper()
	s.Must(fmt.Sprintf("setsid /tmp/webserver '%s' </dev/null >/tmp/web.log 2>&1 &", address))
	testkit.Eventually(s.t, time.Minute, "the web server answers", func() error {
		if resp := s.Call("GET", s.path("/small"), nil); resp.Status != 200 || string(resp.Body) != "small" {
			return fmt.Errorf("%v", resp)
		}
		return nil
	})
}

func (s *site) path(rest string) string { return "/ports/" + strconv.Itoa(s.port) + rest }

// exposed is a port's URL, reached at the server's own address whatever the resolver thinks of *.localhost.
type exposed struct {
	Port    int
	Public  bool
	URL     string
	Token   *string
	site    *site
	host    string
	browser *http.Client
}

func (s *site) expose(public bool) *exposed {
	s.t.Helper()
	e := &exposed{site: s}
	resp := s.Call("POST", "/ports", fields{"port": s.port, "public": public})
	if resp.Status != 201 && resp.Status != 200 {
		s.t.Fatalf("expose: %v", resp)
	}
	if err := json.Unmarshal(resp.Body, e); err != nil {
		s.t.Fatal(err)
	}
	u, err := url.Parse(e.URL)
	if err != nil || u.Path != "/" || (e.Token == nil) != public || e.Port != s.port || e.Public != public {
		s.t.Fatalf("exposed: %s", resp.Body)
	}
	e.host = u.Host
	return e
}

// ask sends a request to the port's URL without the API's key; headers as of testkit.Client.
func (e *exposed) ask(method, path string, body any, headers ...string) testkit.Response {
	e.site.t.Helper()
	ctx, cancel := context.WithTimeout(e.site.t.Context(), time.Minute)
	defer cancel()
	req, err := e.site.Request(ctx, method, path, body, append([]string{"Authorization", "", "Host", e.host}, headers...)...)
	if err != nil {
		e.site.t.Fatal(err)
	}
	client := *e.site.HTTP
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		e.site.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		e.site.t.Fatalf("%s %s: %v", method, path, err)
	}
	return testkit.Response{Status: resp.StatusCode, Header: resp.Header, Body: b}
}

func (e *exposed) token() []string { return []string{"Cay-Port-Token", *e.Token} }

// socket opens a WebSocket at the port's URL.
func (e *exposed) socket(ctx context.Context, path string, headers ...string) (*websocket.Conn, *http.Response, error) {
	h := http.Header{}
	for n := 0; n+1 < len(headers); n += 2 {
		h.Add(headers[n], headers[n+1])
	}
	return websocket.Dial(ctx, strings.Replace(e.site.URL, "http", "ws", 1)+path, &websocket.DialOptions{Host: e.host, HTTPHeader: h, HTTPClient: e.site.HTTP})
}

type echo struct {
	Method, URI, Host, Local string
	Headers                  http.Header
	Length                   int64
}

func echoOf(t *testing.T, resp testkit.Response) echo {
	t.Helper()
	var e echo
	if err := resp.Decode(200, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAServerOnTheLoopbackIsReachedByItsURL(t *testing.T) {
	for name, address := range map[string]string{"IPv4": "127.0.0.1:3000", "IPv6": "[::1]:3001", "everywhere": "0.0.0.0:3002"} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, address)
			e := s.expose(false)
			got := echoOf(t, e.ask("POST", "/echo/a%2Fb//c?x=1&y=%20", []byte("body"), append(e.token(), "X-Own", "kept")...))
			if got.Method != "POST" || got.URI != "/echo/a%2Fb//c?x=1&y=%20" || got.Host != e.host || got.Length != 4 || got.Headers.Get("X-Own") != "kept" {
				t.Errorf("got %+v", got)
			}
			got = echoOf(t, s.Call("PATCH", s.path("/echo/a%2Fb//../c?x=1"), []byte("body")))
			if got.Method != "PATCH" || got.URI != "/echo/a%2Fb//../c?x=1" || got.Host != "localhost:"+strconv.Itoa(s.port) {
				t.Errorf("by the path form: %+v", got)
			}
		})
	}
}

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

func TestWebSocketsWork(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	e := s.expose(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, resp, err := e.socket(ctx, "/ws"); err == nil || resp == nil || resp.StatusCode != 401 {
		t.Errorf("without a token: %v %v", resp, err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	talk := func(name string, conn *websocket.Conn, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		defer conn.CloseNow()
		conn.SetReadLimit(4 << 20)
		_, said, err := conn.Read(ctx)
		if err != nil || strings.Contains(string(said), *e.Token) || strings.Contains(string(said), s.Key) {
			t.Errorf("%s: inside %.500s, %v", name, said, err)
		}
		for _, data := range [][]byte{[]byte("hello"), large, nil} {
			if err := conn.Write(ctx, websocket.MessageBinary, data); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if _, got, err := conn.Read(ctx); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s: %d bytes came back as %d, %v", name, len(data), len(got), err)
			}
		}
		if err := conn.Close(websocket.StatusNormalClosure, ""); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
	conn, _, err := e.socket(ctx, "/ws?headers=1", e.token()...)
	talk("token in a header", conn, err)
	conn, _, err = e.socket(ctx, "/ws?headers=1&cay_port_token="+*e.Token)
	talk("token in the query", conn, err)
	conn, _, err = e.socket(ctx, "/ws?headers=1", "Cookie", "cay_port_token="+*e.Token)
	talk("token in a cookie", conn, err)
	conn, _, err = websocket.Dial(ctx, strings.Replace(s.URL, "http", "ws", 1)+s.Path(s.path("/ws?headers=1")), &websocket.DialOptions{
		HTTPHeader: http.Header{"Authorization": {"Bearer " + s.Key}}, HTTPClient: s.HTTP,
	})
	talk("path form", conn, err)
	testkit.Eventually(t, time.Minute, "the server inside has no request open", func() error {
		if resp := s.Call("GET", s.path("/count"), nil); string(resp.Body) != "0" {
			return fmt.Errorf("%v", resp)
		}
		return nil
	})
}

func TestEventsArriveWhileTheAnswerIsOpen(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	e := s.expose(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	byHost := append([]string{"Authorization", "", "Host", e.host}, e.token()...)
	for name, open := range map[string]func() (*testkit.EventStream, testkit.Response, error){
		"host form": func() (*testkit.EventStream, testkit.Response, error) {
			return s.OpenEvents(ctx, "GET", "/events", nil, byHost...)
		},
		"path form": func() (*testkit.EventStream, testkit.Response, error) {
			return s.OpenEvents(ctx, "GET", s.Path(s.path("/events")), nil)
		},
	} {
		stream, resp, err := open()
		if err != nil || stream == nil {
			t.Fatalf("%s: %v %v", name, resp, err)
		}
		for i := range 3 {
			line := fmt.Sprintf("event %d", i)
			if resp := e.ask("POST", "/tell", []byte(line), e.token()...); resp.Status != 200 {
				t.Fatalf("%s: %v", name, resp)
			}
			if ev, err := stream.Next(); err != nil || string(ev.Data) != line {
				t.Errorf("%s: got %q, %v", name, ev.Data, err)
			}
		}
		_ = stream.Close()
	}
}

func TestLargeBodiesStreamBothWays(t *testing.T) {
	const size = 128 << 20
	inst := testkit.Server(t)
	s := serveIn(t, inst, "127.0.0.1:3000")
	e := s.expose(false)
	pid, err := inst.PID(testkit.RoleServer)
	if err != nil {
		t.Fatal(err)
	}
	watch := testkit.WatchRSS(pid)
	digest := sha256.New()
	body := io.TeeReader(io.LimitReader(stripes{}, size), digest)
	if resp := e.ask("PUT", "/upload", body, e.token()...); resp.Status != 200 || string(resp.Body) != fmt.Sprintf("%d %s", size, hex.EncodeToString(digest.Sum(nil))) {
		t.Errorf("upload: %v", resp)
	}
	req, err := s.Request(t.Context(), "GET", s.Path(s.path(fmt.Sprintf("/download?bytes=%d", size))), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.HTTP.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if resp.Body.Close(); err != nil || n != size {
		t.Errorf("download: %d bytes, %v", n, err)
	}
	before, peak := watch()
	if peak-before > 64<<20 {
		t.Errorf("the server grew by %d MiB", (peak-before)>>20)
	}
}

// stripes is endless data that is not all the same.
type stripes struct{}

func (stripes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(i * 31)
	}
	return len(p), nil
}

func TestWhereNothingListensItIsUnavailable(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	for name, resp := range map[string]testkit.Response{
		"path form": s.Call("GET", "/ports/9/x", nil),
	} {
		if p := resp.Problem(); resp.Status != 503 || p.Reason != "unavailable" || p.Detail != "nothing listens on port 9 of the sandbox" || resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%s: %v %v", name, resp, resp.Header)
		}
	}
	for path, want := range map[string]int{"/ports/0/": 400, "/ports/65536/": 400, "/ports/x/": 400, "/ports/03000/": 400, "/ports/-1/": 400} {
		if resp := s.Call("GET", path, nil); resp.Status != want {
			t.Errorf("%s: %v", path, resp)
		}
	}
	for name, raw := range map[string]string{
		"nothing at all":            "",
		"no HTTP":                   "SSH-2.0-x\r\n",
		"an endless header":         "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20),
		"a switch nobody asked for": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
		"two lengths":               "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
	} {
		if resp := s.Call("POST", s.path("/raw"), []byte(raw)); resp.Status != 503 {
			t.Errorf("%s: %v", name, resp)
		}
	}
	if resp := s.Call("GET", s.path("/header?bytes=100000"), nil); resp.Status != 503 {
		t.Errorf("a header of 100 KB: %v", resp)
	}
}

func TestClientsThatGoLeaveNoConnectionsBehindAtADeafServer(t *testing.T) {
	const more = 300 // than a sandbox can have connections
	s := serve(t, "127.0.0.1:3000")
	var clients sync.WaitGroup
	slots := make(chan struct{}, 16)
	for range more {
		slots <- struct{}{}
		clients.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, _ = s.Do(ctx, "GET", s.Path(s.path("/deaf")), nil) // there is no answer
		})
	}
	clients.Wait()
	testkit.Eventually(t, time.Minute, "new connections are possible", func() error {
		for range 3 {
			if resp := s.Call("GET", s.path("/small"), nil, "Connection", "close"); resp.Status != 200 {
				return fmt.Errorf("%v", resp)
			}
		}
		return nil
	})
}

func TestARemovedPortAndADeletedSandboxAreGone(t *testing.T) {
	s := serve(t, "127.0.0.1:3000")
	e := s.expose(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	socket := func() *websocket.Conn {
		t.Helper()
		conn, _, err := e.socket(ctx, "/ws", e.token()...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.CloseNow() })
		return conn
	}
	conn := socket()
	if resp := s.Call("DELETE", s.path(""), nil); resp.Status != 204 {
		t.Fatalf("remove: %v", resp)
	}
	if _, _, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the connection of a removed port: %v", err)
	}
	if resp := e.ask("GET", "/small", nil, e.token()...); resp.Status != 404 {
		t.Errorf("a removed port: %v", resp)
	}
	if resp := s.Call("DELETE", s.path(""), nil); resp.Status != 404 {
		t.Errorf("remove again: %v", resp)
	}
	if resp := s.Call("GET", s.path("/small"), nil); resp.Status != 200 {
		t.Errorf("the path form needs no URL: %v", resp)
	}
	old := *e.Token
	if e = s.expose(false); *e.Token == old {
		t.Error("a port that is exposed anew has its old token")
	}
	if resp := e.ask("GET", "/small", nil, "Cay-Port-Token", old); resp.Status != 401 {
		t.Errorf("the old token: %v", resp)
	}
	conn = socket()
	if err := s.DeleteSandbox(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the connection of a deleted sandbox: %v", err)
	}
	for name, resp := range map[string]testkit.Response{
		"the URL": e.ask("GET", "/small", nil, e.token()...), "the URL without a token": e.ask("GET", "/small", nil), "the path form": s.Call("GET", s.path("/small"), nil), "the list": s.Call("GET", "/ports", nil),
	} {
		if resp.Status != 410 || resp.Problem().StatusReason != "deleted" {
			t.Errorf("%s of a deleted sandbox: %v", name, resp)
		}
	}
}

func TestAPausedSandboxWakesForItsPortIfItMay(t *testing.T) {
	s := serve(t, "127.0.0.1:3000", fields{"auto_resume": true})
	e := s.expose(false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, _, err := e.socket(ctx, "/ws", e.token()...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	pause := func(sb *testkit.Sandbox) {
		t.Helper()
		if resp := sb.Call("POST", "/pause", nil); resp.Status != 200 {
			t.Fatalf("pause: %v", resp)
		}
	}
	pause(s.Sandbox) // an open connection is no obstacle
	if err := conn.Write(ctx, websocket.MessageText, []byte("while it stands still")); err != nil {
		t.Fatal(err)
	}
	if resp := e.ask("GET", "/small", nil); resp.Status != 401 || s.Refresh().Status != "PAUSED" {
		t.Errorf("a stranger: %v, and the sandbox is %s", resp, s.Refresh().Status)
	}
	if resp := e.ask("GET", "/small", nil, e.token()...); resp.Status != 200 {
		t.Errorf("paused, by its URL: %v", resp)
	}
	if _, got, err := conn.Read(ctx); err != nil || string(got) != "while it stands still" {
		t.Errorf("the connection from before the pause: %q, %v", got, err)
	}
	pause(s.Sandbox)
	if resp := s.Call("GET", s.path("/small"), nil); resp.Status != 200 {
		t.Errorf("paused, by the path form: %v", resp)
	}
	asleep := serve(t, "127.0.0.1:3000", fields{"auto_resume": false})
	pause(asleep.Sandbox)
	sleeping := asleep.expose(false)
	for name, resp := range map[string]testkit.Response{"by its URL": sleeping.ask("GET", "/small", nil, sleeping.token()...), "by the path form": asleep.Call("GET", asleep.path("/small"), nil)} {
		if resp.Status != 409 || resp.Problem().Reason != "paused" {
			t.Errorf("%s, without auto_resume: %v", name, resp)
		}
	}
}

func TestBytesOfAPortCountAsUseAndAnIdleConnectionDoesNot(t *testing.T) {
	const idle = 6 * time.Second
	s := serve(t, "127.0.0.1:3000", fields{"idle_timeout_seconds": idle.Seconds()})
	e := s.expose(false)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	conn, _, err := e.socket(ctx, "/ws", e.token()...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	for begun := time.Now(); time.Since(begun) < 2*idle; {
		if err := conn.Write(ctx, websocket.MessageText, []byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := conn.Read(ctx); err != nil {
			t.Fatalf("after %v of use: %v", time.Since(begun), err)
		}
	}
	if status := s.Refresh().Status; status != "READY" {
		t.Errorf("in use it became %s", status)
	}
	if _, _, err := conn.Read(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("an idle connection keeps the sandbox: %v", err)
	}
	testkit.Eventually(t, time.Minute, "it ends as idle", func() error {
		if sb := s.Refresh(); sb.StatusReason != "idle_timeout" {
			return fmt.Errorf("%s %s", sb.Status, sb.StatusReason)
		}
		return nil
	})
}
