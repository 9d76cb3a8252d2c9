package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/testkit"
)

// hostileText goes wherever text may go.
var hostileText = []string{
	"", " ", "\x00", "a\x00b", "\x01\x1f\x7f", "a\r\nX-Evil: 1", "\xff\xfe", "\xc0\xaf", "\u202e\ufeff\u0000", "../../../../etc/passwd", "..", ".", "/", "//", "/proc/self/root", "/proc/1/fd/0", "/dev/zero",
	"%00", "%2e%2e%2f", "%", "ü", strings.Repeat("😀", 300), "' OR 1=1--", "$(id)`id`", "{{7*7}}", "-1", "0", "-0", "1e308", "1e309", "-1e-320", "NaN", "Infinity", "9223372036854775807", "9223372036854775808",
	"18446744073709551616", "0x10", "1_000", "+1", "true", "null", "[]", "{}", "*", "a,b,,c", strings.Repeat("A", 5000), "/workspace/" + strings.Repeat("a/", 300), "/workspace/" + strings.Repeat("b", 300),
	"/workspace/\xff\x00", "/workspace/../../etc/shadow", "/workspace/\n", "root", "0:0", "4294967295", "-1:-1",
}

// hostileJSON goes wherever a value of JSON may go, as it stands.
var hostileJSON = []string{
	"null", "true", "0", "-0", "-1", "0.1", "1e308", "-1e308", "1e309", "1e-400", "9007199254740993", "9223372036854775807", "9223372036854775808", "123456789012345678901234567890",
	`""`, "[]", "{}", `[null]`, `["\u0000"]`, `[""]`, `{"":""}`, `{"__proto__":{}}`, `{"a\u0000b":"c"}`, `{"A=B":"c"}`, `"\u0000"`, `"\ud800"`, "\"\xff\"", `"\uffff\ufeff"`,
	"NaN", "Infinity", "0x1", "01", "1.", ".5", "+1", "'a'", "undefined", "\"\x01\"",
	strings.Repeat("[", 9000) + strings.Repeat("]", 9000), strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000), `"` + strings.Repeat("a", 900<<10) + `"`,
	"[" + strings.TrimSuffix(strings.Repeat(`"a",`, 100_000), ",") + "]",
}

// hostileParts are parts of a path, as they stand in the request's first line.
var hostileParts = []string{
	"..", ".", "%2e%2e", "..%2f..%2fx", "../../x", "%2e%2e%2f%2e%2e", "%00", "%ff", "%zz", "%", "%25%32%65", "a%20b", "%0d%0aX:%201", "*", "~", "-", "a;b=c", "a%3fb", "a%23b", "{id}", "%7Bid%7D", strings.Repeat("A", 8000), "sbx_" + strings.Repeat("%00", 26),
	"%e2%80%ae", "1e308", "-0", "0", "1", "99999999999999999999",
}

// hostileHeaders are names and values that no client of good will sends.
var hostileHeaders = [][]string{
	{"X-Request-Id", strings.Repeat("a", 5000)}, {"X-Request-Id", "a b\"<script>"}, {"traceparent", "00-zz-xx-01"}, {"Idempotency-Key", "\xff\xfe\x80"}, {"Idempotency-Key", strings.Repeat("é", 200)},
	{"Accept", "*/*;q=x,,,;;"}, {"Accept", "image/png"}, {"Accept", strings.Repeat("text/event-stream,", 500)}, {"Accept-Encoding", "gzip, br, zstd"}, {"Range", "bytes=-0"}, {"Range", "bytes=9223372036854775807-9223372036854775808"},
	{"Range", "bytes=" + strings.Repeat("0-0,", 1000)}, {"Range", "lines=1-2"}, {"If-Match", `W/"`}, {"If-None-Match", strings.Repeat("*,", 1000)}, {"If-Range", "\x80"}, {"Last-Event-ID", "-1"}, {"Last-Event-ID", "\xff"},
	{"Last-Event-ID", strings.Repeat("9", 100)}, {"Host", "evil.example"}, {"Host", ""}, {"Host", "a b"}, {"Origin", "null"}, {"Origin", "https://evil.example"}, {"X-Forwarded-For", "127.0.0.1"}, {"X-HTTP-Method-Override", "DELETE"},
	{"Expect", "200-maybe"}, {"Expect", "100-continue"}, {"Cookie", "a=b; " + strings.Repeat("c=d;", 1000)}, {"Upgrade", "h2c"}, {"Connection", "close, X-Request-Id, Content-Length"}, {"Transfer-Encoding", "identity"}, {"Transfer-Encoding", "gzip, chunked"},
	{"Content-Length", "-1"}, {"Content-Length", "99999999999999999999"}, {"Content-Length", "1, 2"}, {"Content-Type", "application/json; charset=\xff"}, {"X-Junk", "\x80\xff"}, {"X Junk", "a"}, {"X-Big", strings.Repeat("b", 2<<20)}, {"Authorization", "Bearer \x80"}, {"X-API-Key", strings.Repeat("c", 9000)},
}

// TestHostileInputIsNeverAFaultOfTheServer bends the valid call of every operation as an attacker would. What may be asked is answered as
// the document says; all else is refused by a problem, at once.
func TestHostileInputIsNeverAFaultOfTheServer(t *testing.T) {
	doc, _ := load(t)
	inst := testkit.Server(t)
	common := newStage(t)
	for i, op := range doc.operations {
		t.Run(op.id, func(t *testing.T) {
			t.Parallel()
			entry := calls[op.id]
			if entry.call == nil {
				t.Skip("it has no valid call; another test says so")
			}
			s := common.in(t)
			if entry.spoils {
				s = newStage(t)
			}
			h := &hostility{t: t, inst: inst, doc: doc, op: op, entry: entry, stage: s, call: entry.call(s), random: rand.New(rand.NewPCG(1, uint64(i)))}
			h.paths()
			h.queries()
			h.headers()
			h.values()
			h.wholeBodies()
			h.sockets()
			if now := s.box.Refresh(); !entry.spoils && now.Status != "READY" {
				t.Errorf("the sandbox is %s %s", now.Status, now.StatusReason)
			}
		})
	}
}

// hostility is what one operation has to bear.
type hostility struct {
	t      *testing.T
	inst   *testkit.Instance
	doc    *document
	op     *operation
	entry  example
	stage  *stage
	call   call
	random *rand.Rand
}

// valid is the valid call, on a sandbox that is up.
func (h *hostility) valid() request {
	if h.entry.spoils {
		h.revive()
	}
	return h.call.request(h.op, h.stage.box.ID, h.inst.Key)
}

// revive brings the sandbox back to what it was, or puts another one in its place.
func (h *hostility) revive() {
	now, err := h.inst.GetSandbox(h.t.Context(), h.stage.box.ID)
	if err == nil && now.Status == "PAUSED" {
		_, err = h.inst.Do(h.t.Context(), "POST", h.stage.box.Path("/resume"), nil)
	} else if err == nil && now.Status != "READY" {
		h.stage = newStage(h.t)
		h.call = h.entry.call(h.stage)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// try sends what is meant for the operation.
func (h *hostility) try(r request) {
	h.t.Helper()
	h.check(h.op, r)
}

// check holds the answer against op; nil: another one, or none, may have been met.
func (h *hostility) check(op *operation, r request) {
	h.t.Helper()
	r.until, r.hasty = h.call.until, true
	a, err := send(h.inst.Listen, r)
	if err != nil {
		h.t.Errorf("%v: %v", r, err)
		return
	}
	if op == nil {
		if a.status >= 500 && !a.bare {
			h.t.Errorf("%v: %v", r, a)
		}
		if a.status >= 400 && !a.bare {
			for _, fault := range h.doc.problemFaults(nil, r, a) {
				h.t.Errorf("%v: %v: %v", r, a, fault)
			}
		}
		return
	}
	a.cut = cutByTest(r, a.cut)
	for _, fault := range h.doc.faults(op, r, a) {
		h.t.Errorf("%v: %v: %v", r, a, fault)
	}
	discard(h.t, op, a)
}

// cutByTest forgets that a stream was left by the test.
func cutByTest(r request, err error) error {
	if err == errTimeout && r.until != "" { //nolint:errorlint // its own value
		return nil
	}
	return err
}

// some are a choice, another one each time but the same in each run: what one member is spared another one gets.
func (h *hostility) some(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(string) bool { return h.spared() })
}

func (h *hostility) spared() bool {
	if h.entry.dear {
		return h.random.IntN(12) > 0
	}
	return h.random.IntN(3) > 0
}

func (h *hostility) paths() {
	for _, p := range h.op.params {
		if p.in != "path" {
			continue
		}
		for _, part := range hostileParts {
			r := h.valid()
			r.target = h.call.target(h.op, h.stage.box.ID, map[string]string{p.name: part})
			h.check(nil, r)
		}
	}
	for _, target := range []string{h.op.path + "/", "/" + h.op.path, h.op.path + "//x", h.op.path + "/..", strings.ToUpper(h.op.path), h.op.path + "%2f", h.op.path + "?", h.op.path + "#x", "http://evil.example" + h.op.path, "*"} {
		r := h.valid()
		r.target = strings.NewReplacer("{id}", h.stage.box.ID).Replace(target)
		h.check(nil, r)
	}
}

func (h *hostility) queries() {
	for _, p := range h.op.params {
		if p.in != "query" {
			continue
		}
		for _, v := range h.some(hostileText) {
			h.valid() // so that there is a sandbox
			c := h.call
			c.query = c.query.With(fields{p.name: v})
			h.try(c.request(h.op, h.stage.box.ID, h.inst.Key))
		}
	}
	for _, query := range []string{"a;b", "&&&", "=", "%00=%00", "%ff=1", "ticket=x", "ticket=x&ticket=y", "[]=1&a[b]=c", strings.Repeat("a=b&", 2000), "\x7f", "é"} {
		r := h.valid()
		r.target = join(r.target, query)
		h.try(r)
	}
}

func (h *hostility) headers() {
	for _, header := range hostileHeaders {
		if h.spared() {
			continue
		}
		r := h.valid()
		r.header = append(r.header, header...)
		h.try(r)
	}
	for _, p := range h.op.params {
		if p.in != "header" {
			continue
		}
		for _, v := range hostileText {
			if strings.ContainsAny(v, "\x00\r\n\x01\x1f\x7f") {
				continue // no HTTP; tried above
			}
			r := h.valid()
			r.header = append(r.header, p.name, v)
			h.try(r)
		}
	}
}

// values puts what is hostile into every member of a JSON body.
func (h *hostility) values() {
	schema, ok := h.op.body[jsonType].(map[string]any)
	if !ok {
		return
	}
	properties, _ := h.doc.ref(schema)["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		values := h.some(hostileJSON)
		if property, _ := properties[name].(map[string]any); slices.Contains(typesOf(h.doc.ref(property)), "string") {
			for _, v := range h.some(hostileText) {
				values = append(values, encoded(strings.ToValidUTF8(v, "\u0000")))
			}
		}
		for _, value := range values {
			r := h.valid()
			r.body = []byte(objectOf(h.call.body).with(name, value).String())
			h.try(r)
		}
	}
}

// wholeBodies sends bodies that are cut, that are longer or shorter than they say, and that chance has changed.
func (h *hostility) wholeBodies() {
	if h.op.body == nil {
		for _, body := range []string{"{}", "junk", strings.Repeat("x", 10<<10)} {
			r := h.valid()
			r.body = []byte(body)
			r.header = append(r.header, "Content-Type", jsonType)
			h.try(r)
		}
		return
	}
	for _, v := range h.some(hostileJSON) {
		r := h.valid()
		r.body = []byte(v)
		h.try(r)
	}
	good := h.valid().body
	if len(good) == 0 {
		good = []byte("{}")
	}
	for range 20 {
		r := h.valid()
		r.body = slices.Clone(good)
		for range 1 + h.random.IntN(3) {
			r.body[h.random.IntN(len(r.body))] = byte(h.random.Uint32())
		}
		h.try(r)
	}
	frames := map[string][]string{
		"a longer length than there is":  {"Content-Length", fmt.Sprint(len(good) + 10)},
		"a shorter length than there is": {"Content-Length", fmt.Sprint(len(good) - 1)},
		"no chunks":                      {"Transfer-Encoding", "chunked"},
		"chunks and a length":            {"Transfer-Encoding", "chunked", "Content-Length", "3"},
		"two lengths":                    {"Content-Length", fmt.Sprint(len(good)), "Content-Length", "1"},
	}
	for _, what := range slices.Sorted(maps.Keys(frames)) {
		r := h.valid()
		r.header = append(r.header, frames[what]...)
		h.try(r)
	}
	for _, body := range []string{"5\r\nab", "ffffffffffffffff\r\n", "-1\r\n\r\n", "2\r\n{}\r\n", "2\r\n{}\r\n0\r\nX-Trailer: " + strings.Repeat("a", 5000) + "\r\n\r\n", "1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"} {
		r := h.valid()
		r.body = []byte(body)
		r.header = append(r.header, "Transfer-Encoding", "chunked")
		h.try(r)
	}
}

// sockets asks for a WebSocket where there is none, and for none where there is one.
func (h *hostility) sockets() {
	plain := h.call
	plain.socket = nil
	h.valid()
	if _, socket := h.op.responses[http.StatusSwitchingProtocols]; !socket {
		r := h.valid()
		r.header = append(r.header, upgrade...)
		h.try(r)
		return
	}
	h.try(plain.request(h.op, h.stage.box.ID, h.inst.Key))
	for i := 0; i < len(upgrade); i += 2 {
		for _, v := range []string{"", "x", "\x80", strings.Repeat("a,", 500)} {
			r := plain.request(h.op, h.stage.box.ID, h.inst.Key)
			bad := slices.Clone(upgrade)
			bad[i+1] = v
			r.header = append(r.header, bad...)
			h.try(r)
		}
	}
}

// TestWrongMethodsAreRefusedAndNameTheRightOnes asks every path by every method that it does not have.
func TestWrongMethodsAreRefusedAndNameTheRightOnes(t *testing.T) {
	doc, raw := load(t)
	inst := testkit.Server(t)
	for _, path := range slices.Sorted(maps.Keys(raw.Paths)) {
		if carried(path) {
			continue
		}
		allowed := map[string]bool{}
		for method := range raw.Paths[path] {
			allowed[strings.ToUpper(method)] = true
		}
		target := path
		for _, part := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
			if strings.HasPrefix(part, "{") {
				target = strings.Replace(target, part, "1", 1)
			}
		}
		for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "get", "X"} {
			if allowed[method] {
				continue
			}
			r := request{method: method, target: target, header: []string{"Authorization", "Bearer " + inst.Key}}
			a, err := send(inst.Listen, r)
			if err != nil {
				t.Errorf("%v: %v", r, err)
				continue
			}
			var p struct{ Reason string }
			_ = json.Unmarshal(a.body, &p) // a fault below
			if a.status != 405 || p.Reason != "method_not_allowed" {
				t.Errorf("%v: %v", r, a)
			}
			for _, fault := range doc.problemFaults(nil, r, a) {
				t.Errorf("%v: %v: %v", r, a, fault)
			}
			for right := range allowed {
				if !slices.Contains(strings.Split(a.header.Get("Allow"), ", "), right) {
					t.Errorf("%v: Allow: %s, without %s", r, a.header.Get("Allow"), right)
				}
			}
		}
	}
}

// TestHeadAnswersAsGetWithoutABody: also where GET would be a stream.
func TestHeadAnswersAsGetWithoutABody(t *testing.T) {
	doc, _ := load(t)
	inst := testkit.Server(t)
	s := newStage(t)
	for _, op := range doc.operations {
		if op.method != http.MethodGet || calls[op.id].call == nil {
			continue
		}
		r := calls[op.id].call(s).request(op, s.box.ID, inst.Key)
		r.method = http.MethodHead
		a, err := send(inst.Listen, r)
		if err != nil {
			t.Errorf("%v: %v", r, err)
			continue
		}
		if a.status >= 500 || len(a.body)+len(a.events) > 0 || a.header.Get("X-Request-Id") == "" {
			t.Errorf("%v: %v", r, a)
		}
	}
}

// TestWhatIsNowhereIsNotFound: no path is answered by a page, a redirect or a guess.
func TestWhatIsNowhereIsNotFound(t *testing.T) {
	doc, _ := load(t)
	inst := testkit.Server(t)
	for _, path := range append([]string{"/v1", "/v1/", "/v2/sandboxes", "/favicon.ico", "/.env", "/v1/sandboxes/", "/debug/pprof/", "/v1/sandboxes//exec", "/%2e%2e/etc/passwd", "/" + strings.Repeat("a/", 3000)}, hostileParts...) {
		if !strings.HasPrefix(path, "/") {
			path = "/" + path
		}
		r := request{method: "GET", target: path, header: []string{"Authorization", "Bearer " + inst.Key}}
		a, err := send(inst.Listen, r)
		if err != nil {
			t.Errorf("%v: %v", r, err)
			continue
		}
		if a.bare {
			continue
		}
		if a.status != 404 {
			t.Errorf("%v: %v", r, a)
		}
		for _, fault := range doc.problemFaults(nil, r, a) {
			t.Errorf("%v: %v: %v", r, a, fault)
		}
	}
}
