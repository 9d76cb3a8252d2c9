package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// hostileServer answers each path with what a server of good will never says. /echo shows the request as it came, /log all of them.
const hostileServer = `
import socket, sys, threading, time
log = []
def answer(c, body, head=''):
    body = body.encode('latin1')
    c.sendall(('HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n%sContent-Length: %d\r\n\r\n' % (head, len(body))).encode() + body)
def one(c):
    data = b''
    while True:
        while b'\r\n\r\n' not in data:
            more = c.recv(65536)
            if not more: return
            data += more
        head, _, data = data.partition(b'\r\n\r\n')
        text = head.decode('latin1')
        log.append(text.split('\r\n')[0])
        for line in text.split('\r\n'):
            name, _, value = line.partition(':')
            if name.lower() == 'content-length':
                while len(data) < int(value): data += c.recv(65536)
                data = data[int(value):]
        path = text.split(' ')[1].split('?')[0]
        if path == '/echo': answer(c, text)
        elif path == '/log': answer(c, '\n'.join(log))
        elif path == '/silent': time.sleep(600)
        elif path == '/headers':
            c.sendall(b'HTTP/1.1 200 OK\r\n')
            while True: c.sendall(b'X-Junk: ' + b'a' * 60000 + b'\r\n')
        elif path == '/line':
            while True: c.sendall(b'HTTP/1.1 200 ' + b'a' * 60000)
        elif path == '/hints':
            while True: c.sendall(b'HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n' * 100)
        elif path == '/junk': c.sendall(b'\x00\xff\x16\x03\x01 nothing of HTTP\n' * 10); return
        elif path == '/early': c.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nshort'); return
        elif path == '/both': c.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison')
        elif path == '/twice': c.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison')
        elif path == '/chunks': c.sendall(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n'); return
        elif path == '/switch': c.sendall(b'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: evil\r\n\r\n')
        elif path == '/status': c.sendall(b'HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n')
        elif path == '/zero': c.sendall(b'HTTP/1.1 000 None\r\nContent-Length: 0\r\n\r\n')
        elif path == '/cookies': answer(c, 'x', 'Set-Cookie: a=b; Domain=localhost; Path=/\r\nSet-Cookie: cay_port_token=evil; Path=/\r\nClear-Site-Data: "*"\r\nX-Request-Id: evil\r\nX-Content-Type-Options: evil\r\nContent-Security-Policy: default-src *\r\nAccess-Control-Allow-Origin: *\r\n')
        else: answer(c, 'there is nothing')
def serve(c):
    try: one(c)
    except Exception: pass
    c.close()
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen(128)
print('listening', flush=True)
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
`

// exposed is a port with a hostile server behind it.
type exposed struct {
	Port  int
	URL   string
	Token string
}

// host is what requests to the port name.
func (e exposed) host() string { return strings.TrimSuffix(strings.TrimPrefix(e.URL, "http://"), "/") }

// expose starts the hostile server on a port and gives it a URL. c is whose sandbox it is.
func expose(t *testing.T, c *testkit.Client, id string, port int) exposed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := c.Do(ctx, "POST", "/v1/sandboxes/"+id+"/processes", fields{"command": []string{"python3", "-c", hostileServer, fmt.Sprint(port)}})
	if err != nil || resp.Status != 201 {
		t.Fatalf("%v %v", resp, err)
	}
	var e exposed
	if resp, err = c.Do(ctx, "POST", "/v1/sandboxes/"+id+"/ports", fields{"port": port}); err == nil {
		err = resp.Decode(201, &e)
	}
	if err != nil || e.Token == "" {
		t.Fatalf("%+v %v", e, err)
	}
	testkit.Eventually(t, time.Minute, "the server inside listens", func() error {
		resp, err := c.Do(ctx, "GET", fmt.Sprintf("/v1/sandboxes/%s/ports/%d/echo", id, port), nil)
		if err == nil && resp.Status != 200 {
			err = fmt.Errorf("%v", resp)
		}
		return err
	})
	return e
}

// visit asks a host for a path, with nothing but these headers.
func visit(t *testing.T, inst *testkit.Instance, host, path string, headers ...string) testkit.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	resp, err := testkit.NewClient(inst.URL, "").Do(ctx, "GET", path, nil, append([]string{"Host", host}, headers...)...)
	if err != nil {
		t.Fatalf("%s%s: %v", host, path, err)
	}
	return resp
}

// Defence: a token is derived from the sandbox, the port and a number of its own; keys count below the API's path only, and there
// nothing else does.
func TestAPortsTokenOpensThatPortAlone(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	stranger := inst.NewTenant(t).Key(t, time.Time{}, "admin")
	reader := inst.DefaultTenant(t).Key(t, time.Time{}, "sandboxes:read", "sandboxes:write", "files")
	mine := inst.Create(t)
	mine.RequireProgram("python3")
	theirs, err := stranger.CreateSandbox(t.Context(), fields{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := stranger.DeleteSandbox(ctx, theirs.ID); err != nil {
			t.Error(err)
		}
	})
	a, b, other := expose(t, inst.Client, mine.ID, 8080), expose(t, inst.Client, mine.ID, 8081), expose(t, stranger, theirs.ID, 8080)
	if resp := visit(t, inst, a.host(), "/echo", "Cay-Port-Token", a.Token); resp.Status != 200 {
		t.Fatalf("with its token: %v", resp)
	}
	for what, headers := range map[string][]string{
		"nothing":                           nil,
		"the token of another port":         {"Cay-Port-Token", b.Token},
		"the token of another tenant":       {"Cay-Port-Token", other.Token},
		"half of the token":                 {"Cay-Port-Token", a.Token[:len(a.Token)/2]},
		"the token in other letters":        {"Cay-Port-Token", strings.ToUpper(a.Token)},
		"the token as a bearer":             {"Authorization", "Bearer " + a.Token},
		"the owner's key":                   {"Authorization", "Bearer " + inst.Key},
		"the owner's key in another header": {"X-API-Key", inst.Key},
		"a cookie of another port":          {"Cookie", "cay_port_token=" + b.Token},
		"many cookies":                      {"Cookie", strings.Repeat("cay_port_token=x; ", 200) + "cay_port_token=" + b.Token},
	} {
		if resp := visit(t, inst, a.host(), "/echo", headers...); resp.Status != 401 || resp.Problem().Reason != "unauthorized" {
			t.Errorf("with %s: %v", what, resp)
		}
	}
	for what, path := range map[string]string{"another port": "/echo?cay_port_token=" + b.Token, "none": "/echo?cay_port_token="} {
		if resp := visit(t, inst, a.host(), path, "Sec-Fetch-Mode", "cors"); resp.Status != 401 {
			t.Errorf("with the token of %s in the query: %v", what, resp)
		}
	}
	below := fmt.Sprintf("/v1/sandboxes/%s/ports/8080/echo", mine.ID)
	for what, c := range map[string]struct {
		headers []string
		want    int
	}{
		"nothing":                 {nil, 401},
		"the port's token":        {[]string{"Cay-Port-Token", a.Token}, 401},
		"the port's cookie":       {[]string{"Cookie", "cay_port_token=" + a.Token}, 401},
		"another tenant's key":    {[]string{"X-API-Key", stranger.Key}, 404},
		"a key without the scope": {[]string{"X-API-Key", reader.Key}, 403},
	} {
		if resp := visit(t, inst, inst.Listen, below, c.headers...); resp.Status != c.want {
			t.Errorf("below the API's path with %s: %v, want %d", what, resp, c.want)
		}
	}
	var ticket struct{ Ticket string }
	resp, err := inst.Do(t.Context(), "POST", "/v1/tickets", fields{"method": "GET", "url": below})
	if err == nil && resp.Status == 200 {
		if err = resp.Decode(200, &ticket); err == nil {
			if resp := visit(t, inst, inst.Listen, below+"?ticket="+ticket.Ticket); resp.Status != 401 {
				t.Errorf("below the API's path with a ticket: %v", resp)
			}
		}
	}
	if err != nil {
		t.Error(err)
	}
	// What is taken away and given anew has another token.
	if resp := mine.Call("DELETE", "/ports/8080", nil); resp.Status != 204 {
		t.Fatalf("%v", resp)
	}
	if resp := visit(t, inst, a.host(), "/echo", "Cay-Port-Token", a.Token); resp.Status != 404 {
		t.Errorf("after it was taken away: %v", resp)
	}
	if resp := mine.Call("POST", "/ports", fields{"port": 8080}); resp.Status != 201 {
		t.Fatalf("%v", resp)
	}
	if resp := visit(t, inst, a.host(), "/echo", "Cay-Port-Token", a.Token); resp.Status != 401 {
		t.Errorf("with the token that it had before: %v", resp)
	}
}

// Defence: a port's host is exactly one label below the domain, written in one way; the API is not served there, nor the guest on the
// API's host.
func TestHostNamesOfPortsCannotBeConfused(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	sb := inst.Create(t)
	sb.RequireProgram("python3")
	e := expose(t, inst.Client, sb.ID, 8080)
	body := strings.TrimPrefix(sb.ID, "sbx_")
	domain := strings.TrimPrefix(e.host(), "8080-"+body)
	for _, host := range []string{
		"08080-" + body + domain, "+8080-" + body + domain, "8080-" + body[:25] + domain, "8080-sbx_" + body + domain, "x.8080-" + body + domain, "8080-" + body + ".x" + domain,
		"8080." + body + domain, "8081-" + body + domain, "65536-" + body + domain, "0-" + body + domain, "-1-" + body + domain, "8080-" + strings.Repeat("0", 26) + domain,
		"8080-" + body + ".localhost.evil.example", "8080-" + body, "8080-" + body + ".evil.example", "evil.example",
	} {
		if resp := visit(t, inst, host, "/echo", "Cay-Port-Token", e.Token); resp.Status != 404 && resp.Status != 403 && resp.Status != 401 || strings.Contains(string(resp.Body), "Cay-Port-Token") {
			t.Errorf("%s: %v", host, resp)
		}
	}
	// The API on the port's host is the guest's affair, and the key does not get there.
	resp := visit(t, inst, e.host(), "/v1/info", "Cay-Port-Token", e.Token, "Authorization", "Bearer "+inst.Key)
	if string(resp.Body) != "there is nothing" {
		t.Errorf("the API on a port's host: %v", resp)
	}
	if resp := visit(t, inst, inst.Listen, "/echo", "Cay-Port-Token", e.Token); resp.Status != 404 {
		t.Errorf("the guest on the API's host: %v", resp)
	}
	// A target in absolute form wins over Host; both are the same host then.
	for _, c := range [][2]string{{e.host(), inst.Listen}, {inst.Listen, e.host()}} {
		text := rawExchange(t, inst, time.Minute, fmt.Sprintf("GET http://%s/v1/info HTTP/1.1\r\nHost: %s\r\nCay-Port-Token: %s\r\nConnection: close\r\n\r\n", c[0], c[1], e.Token))
		if guest := strings.HasSuffix(text, "there is nothing"); guest != (c[0] == e.host()) {
			t.Errorf("for %s with Host %s: %q", c[0], c[1], text)
		}
	}
	if text := rawExchange(t, inst, 5*time.Second, fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %s\r\nCay-Port-Token: %s\r\n\r\n", e.host(), e.host(), e.Token)); strings.HasPrefix(text, "HTTP/1.1 2") {
		t.Errorf("CONNECT: %q", text)
	}
}

// rawExchange writes bytes to the server and reads what comes until the server closes, or a time is over.
func rawExchange(t *testing.T, inst *testkit.Instance, within time.Duration, text string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", inst.Listen, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(io.LimitReader(conn, 64<<10))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(out)
}

// Defence: one request in is one request out, parsed and written anew; the platform's credentials are taken out of it, and forwarding
// headers of the client's own.
func TestNothingIsSmuggledThroughAPort(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	sb := inst.Create(t)
	sb.RequireProgram("python3")
	e := expose(t, inst.Client, sb.ID, 8080)
	below := fmt.Sprintf("/v1/sandboxes/%s/ports/8080/echo", sb.ID)
	spoof := []string{"X-Forwarded-For", "6.6.6.6", "X-Forwarded-Host", "evil.example", "X-Forwarded-Proto", "gopher", "X-Real-Ip", "6.6.6.6", "Forwarded", "for=6.6.6.6", "Cookie", "mine=1; cay_port_token=" + e.Token, "Connection", "close, X-Request-Id"}
	for form, resp := range map[string]testkit.Response{
		"by host":  visit(t, inst, e.host(), "/echo?a=1&cay_port_token="+e.Token, append(spoof, "Cay-Port-Token", e.Token, "Authorization", "Bearer "+inst.Key, "Sec-Fetch-Mode", "cors")...),
		"by path":  visit(t, inst, inst.Listen, below, append(spoof, "Authorization", "Bearer "+inst.Key)...),
		"by path2": visit(t, inst, inst.Listen, below, append(spoof, "X-API-Key", inst.Key)...),
	} {
		seen := string(resp.Body)
		if resp.Status != 200 || !strings.HasPrefix(seen, "GET /echo") {
			t.Errorf("%s: %v", form, resp)
			continue
		}
		for _, secret := range []string{inst.Key, e.Token, "6.6.6.6", "evil.example", "gopher", "cay_port_token"} {
			if strings.Contains(seen, secret) {
				t.Errorf("%s: the guest sees %q in\n%s", form, secret, seen)
			}
		}
	}
	head := fmt.Sprintf("Host: %s\r\nCay-Port-Token: %s\r\n", e.host(), e.Token)
	last := "Connection: close\r\n" + head
	hidden := "GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
	for what, text := range map[string]string{
		"a length and chunks":    fmt.Sprintf("POST /echo HTTP/1.1\r\n%sContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n%s", last, hidden),
		"chunks spelt otherwise": fmt.Sprintf("POST /echo HTTP/1.1\r\n%sContent-Length: %d\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n%s", last, 5+len(hidden), hidden),
		"two lengths":            fmt.Sprintf("POST /echo HTTP/1.1\r\n%sContent-Length: 0\r\nContent-Length: %d\r\n\r\n%s", last, len(hidden), hidden),
		"a body of GET":          fmt.Sprintf("GET /echo HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", last, len(hidden), hidden),
		"a folded header":        fmt.Sprintf("GET /echo HTTP/1.1\r\n%sX: a\r\n b\r\n GET /hidden HTTP/1.1\r\n\r\n", last),
		"a bare line feed":       fmt.Sprintf("GET /echo HTTP/1.1\r\n%sX: a\n\nGET /hidden HTTP/1.1\r\nHost: x\r\n\r\n", last),
		"a line feed in a path":  fmt.Sprintf("GET /echo%%0d%%0aGET%%20/hidden HTTP/1.1\r\n%s\r\n", last),
		"an upgrade to h2c":      fmt.Sprintf("GET /echo HTTP/1.1\r\n%sConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n%s", head, hidden),
		"another upgrade":        fmt.Sprintf("GET /switch HTTP/1.1\r\n%sConnection: Upgrade\r\nUpgrade: evil\r\n\r\n%s", head, hidden),
	} {
		// The hidden request is for a host of its own, so that it must not come to the guest, whatever is made of it.
		text := rawExchange(t, inst, 5*time.Second, text)
		seen := visit(t, inst, e.host(), "/log", "Cay-Port-Token", e.Token)
		if strings.Contains(string(seen.Body), "GET /hidden") {
			t.Fatalf("%s: the guest was asked for /hidden; answer %.300q", what, text)
		}
	}
}

// Defence: an answer is parsed and written anew, within bounds of its head; what would reach beyond its host is taken out; requests of
// a sandbox are counted.
func TestAHostileServerOnAPortHurtsNobodyElse(t *testing.T) {
	a := newArena(t, 1)
	sb := a.attackers[0]
	sb.RequireProgram("python3")
	e := expose(t, a.inst.Client, sb.ID, 8080)
	a.within(t, func() {
		var wg sync.WaitGroup
		for _, path := range []string{"/headers", "/line", "/hints", "/junk", "/early", "/both", "/twice", "/chunks", "/switch", "/status", "/zero", "/silent"} {
			for n := range 8 {
				wg.Go(func() {
					patience := time.Minute
					if path == "/silent" || path == "/hints" { // there is no answer to wait for
						patience = 5 * time.Second
					}
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					below := fmt.Sprintf("/v1/sandboxes/%s/ports/8080%s", sb.ID, path)
					c, headers := a.inst.Client, []string{}
					if n%2 == 0 {
						c, below, headers = testkit.NewClient(a.inst.URL, ""), path, []string{"Host", e.host(), "Cay-Port-Token", e.Token}
					}
					resp, err := c.Do(ctx, "GET", below, nil, headers...)
					if errors.Is(err, context.DeadlineExceeded) && path != "/silent" && path != "/hints" {
						t.Errorf("%s: no answer within %v", path, patience)
					}
					// What a guest sends beyond an answer may become the next one on that connection, which only leads to the same port:
					// what is answered there is the guest's to say at any time.
					if resp.Status == 500 {
						t.Errorf("%s: %v", path, resp)
					}
				})
			}
		}
		wg.Wait()
		if resp := visit(t, a.inst, e.host(), "/echo", "Cay-Port-Token", e.Token); resp.Status != 200 {
			t.Errorf("afterwards: %v", resp)
		}
	})
	if logs := a.inst.Logs(); strings.Contains(logs, "poison") || strings.Contains(logs, "nothing of HTTP") {
		t.Error("the guest writes into the server's log")
	}
}

// Defence: in the path form the guest's page is of no origin at all, and of its headers none that reaches the API's origin is left; in
// the host form its cookies are its host's alone.
func TestAGuestsPageHasNoPowerOverItsNeighboursOrTheAPI(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	sb := inst.Create(t)
	sb.RequireProgram("python3")
	e := expose(t, inst.Client, sb.ID, 8080)
	resp := sb.Call("GET", "/ports/8080/cookies", nil)
	h := resp.Header
	if resp.Status != 200 || h.Get("Set-Cookie")+h.Get("Clear-Site-Data")+h.Get("Access-Control-Allow-Origin") != "" || h.Get("Content-Security-Policy") != "sandbox" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Request-Id") == "evil" {
		t.Errorf("by path: %v %v", resp, h)
	}
	resp = visit(t, inst, e.host(), "/cookies", "Cay-Port-Token", e.Token)
	if cookies := strings.Join(resp.Header.Values("Set-Cookie"), "\n"); resp.Status != 200 || !strings.Contains(cookies, "a=b") || strings.Contains(strings.ToLower(cookies), "domain") || strings.Contains(cookies, "cay_port_token") {
		t.Errorf("by host: %v %q", resp, cookies)
	}
	if id := resp.Header.Get("X-Request-Id"); id == "evil" || id == "" {
		t.Errorf("the request id is %q", id)
	}
}

// Defence: when a port or its sandbox goes, what is open through it goes with it.
func TestWhatIsUnderWayOnAPortEndsWithIt(t *testing.T) {
	t.Parallel()
	inst := testkit.Server(t)
	sb := inst.Create(t)
	sb.RequireProgram("python3")
	e := expose(t, inst.Client, sb.ID, 8080)
	// The connection to the guest is used again: should it end before an answer, it would be no wonder if another took its place.
	if resp := visit(t, inst, e.host(), "/echo", "Cay-Port-Token", e.Token); resp.Status != 200 {
		t.Fatalf("%v", resp)
	}
	conn, err := net.DialTimeout("tcp", inst.Listen, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "GET /silent HTTP/1.1\r\nHost: %s\r\nCay-Port-Token: %s\r\n\r\n", e.host(), e.Token); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "the request has come to the guest", func() error {
		if seen := visit(t, inst, e.host(), "/log", "Cay-Port-Token", e.Token); !strings.Contains(string(seen.Body), "GET /silent") {
			return fmt.Errorf("%v", seen)
		}
		return nil
	})
	if resp := sb.Call("DELETE", "/ports/8080", nil); resp.Status != 204 {
		t.Fatalf("%v", resp)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the request is still under way a minute after its port was taken away")
	}
	if err == nil {
		var p struct{ Reason string }
		_ = json.NewDecoder(resp.Body).Decode(&p) // shown below
		if resp.StatusCode < 400 {
			t.Errorf("it was answered %d %s", resp.StatusCode, p.Reason)
		}
	}
}
