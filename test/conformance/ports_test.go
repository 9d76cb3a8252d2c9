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
