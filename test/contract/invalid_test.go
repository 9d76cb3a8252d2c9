package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/testkit"
)

// A bent is a valid request made invalid in one way, and what has to be answered.
type bent struct {
	what string
	request
	want []int
}

// TestWhatIsInvalidIsRefusedByItsReason bends the valid call of every operation in each way in which its description says that it
// can be wrong.
func TestWhatIsInvalidIsRefusedByItsReason(t *testing.T) {
	doc, _ := load(t)
	inst := testkit.Server(t)
	common := newStage(t)
	keys := newKeys(t, inst)
	for _, op := range doc.operations {
		t.Run(op.id, func(t *testing.T) {
			s := common.in(t)
			if calls[op.id].call == nil {
				t.Skip("it has no valid call; another test says so")
			}
			if calls[op.id].spoils {
				s = newStage(t)
			}
			c := calls[op.id].call(s)
			b := &bender{doc: doc, op: op, stage: s, call: c, keys: keys}
			b.identities()
			b.paths()
			b.queries()
			b.bodies()
			for _, r := range b.all {
				a, err := send(inst.Listen, r.request)
				if err != nil {
					t.Errorf("%s: %v: %v", r.what, r, err)
					continue
				}
				for _, fault := range doc.faults(op, r.request, a) {
					t.Errorf("%s: %v: %v: %v", r.what, r, a, fault)
				}
				if !slices.Contains(r.want, a.status) {
					t.Errorf("%s: %v: %v, want %d", r.what, r, a, r.want)
				}
				discard(t, op, a)
			}
		})
	}
}

// keys are those that may not do what is asked.
type keys struct {
	good, expired, foreign string
	ticket                 func(target string) string // one that has expired
	without                map[string]string          // by scope: a key that has every scope but that and admin
}

func newKeys(t *testing.T, inst *testkit.Instance) keys {
	home := inst.DefaultTenant(t)
	k := keys{good: inst.Key, without: map[string]string{}}
	k.expired = home.Key(t, time.Now().Add(-time.Minute), "admin").Key
	k.foreign = inst.NewTenant(t).Key(t, time.Time{}, "admin").Key
	scopes := []string{"sandboxes:read", "sandboxes:write", "exec", "files", "jobs"}
	for _, scope := range append(scopes, "admin") {
		k.without[scope] = home.Key(t, time.Time{}, slices.DeleteFunc(slices.Clone(scopes), func(s string) bool { return s == scope })...).Key
	}
	k.ticket = func(target string) string { return inst.ExpiredTicket(t, target) }
	return k
}

// bender makes the invalid requests of one operation.
type bender struct {
	doc   *document
	op    *operation
	stage *stage
	call  call
	keys  keys
	all   []bent
}

func (b *bender) add(want int, r request, what string, args ...any) {
	b.all = append(b.all, bent{fmt.Sprintf(what, args...), r, []int{want}})
}

// with is the valid request with another key.
func (b *bender) with(key string) request { return b.call.request(b.op, b.stage.box.ID, key) }

func (b *bender) valid() request { return b.with(b.keys.good) }

func (b *bender) identities() {
	if !b.op.keyed {
		return
	}
	b.add(401, b.with(""), "no key")
	b.add(401, b.with("cay_"+strings.Repeat("0", 64)), "a key that there is not")
	b.add(401, b.with("nonsense"), "no key at all")
	b.add(401, b.with(b.keys.expired), "a key that has expired")
	twice := b.valid()
	twice.header = append(twice.header, "X-API-Key", b.keys.good)
	b.add(401, twice, "two keys")
	basic := b.with("")
	basic.header = append(basic.header, "Authorization", "Basic eDp5")
	b.add(401, basic, "another scheme")
	if b.op.scope != "" {
		b.add(403, b.with(b.keys.without[b.op.scope]), "a key without %s", b.op.scope)
	}
	if strings.Contains(b.op.path, "{id}") {
		b.add(404, b.with(b.keys.foreign), "a key of another project")
	}
	for what, ticket := range map[string]string{"a ticket that there is not": strings.Repeat("0", 64), "a ticket that has expired": ""} {
		r := b.with("")
		if ticket == "" {
			if !b.op.tickets {
				continue
			}
			ticket = b.keys.ticket(r.target)
		}
		r.target = join(r.target, "ticket="+ticket)
		b.add(401, r, "%s", what)
	}
}

func join(target, query string) string {
	if strings.Contains(target, "?") {
		return target + "&" + query
	}
	return target + "?" + query
}

func (b *bender) paths() {
	for _, p := range b.op.params {
		if p.in != "path" {
			continue
		}
		unknown := map[string][]string{
			"id":      {"sbx_" + strings.Repeat("0", 26), "sbx_", "nope", "SBX_" + strings.Repeat("0", 26), strings.Repeat("0", 26), "prc_" + strings.Repeat("0", 26), "sbx_" + strings.Repeat("0", 27)},
			"context": {"ctx_" + strings.Repeat("0", 26), "ctx_", "nope"},
			"process": {"prc_" + strings.Repeat("0", 26), "none-of-that-name", "999999", "-1", "0"},
		}[p.name]
		for _, v := range unknown {
			r := b.valid()
			r.target = b.call.target(b.op, b.stage.box.ID, map[string]string{p.name: url.PathEscape(v)})
			b.add(404, r, "%s %q", p.name, v)
		}
	}
}

func (b *bender) queries() {
	query := func(name, value string) request {
		c := b.call
		c.query = c.query.With(fields{name: value})
		return c.request(b.op, b.stage.box.ID, b.keys.good)
	}
	b.add(400, query("nothing_of_that_name", "1"), "an unknown parameter")
	for _, broken := range []string{"%zz", "a%", "%"} {
		r := b.valid()
		r.target = join(r.target, broken)
		b.add(400, r, "the query %q", broken)
	}
	for _, p := range b.op.params {
		if p.in == "header" && p.schema["maxLength"] != nil {
			r := b.valid()
			r.header = append(r.header, p.name, strings.Repeat("k", int(p.schema["maxLength"].(float64))+1))
			b.add(400, r, "a header %s that is too long", p.name)
		}
		if p.in != "query" || strings.HasSuffix(p.name, "KEY") {
			continue
		}
		if p.required {
			c := b.call
			c.query = c.query.With()
			delete(c.query, p.name)
			b.add(400, c.request(b.op, b.stage.box.ID, b.keys.good), "no %s", p.name)
		}
		r := query(p.name, "a")
		r.target += "&" + p.name + "=b"
		b.add(400, r, "%s twice", p.name)
		for _, v := range badText(p.schema) {
			b.add(400, query(p.name, v), "%s=%s", p.name, v)
		}
	}
}

// badText are values of a parameter that its schema does not allow.
func badText(schema map[string]any) []string {
	var bad []string
	for _, kind := range typesOf(schema) {
		switch kind {
		case "integer":
			bad = append(bad, "x", "1.5", "1e400", "99999999999999999999")
		case "number":
			bad = append(bad, "x", "1e400", "1,5")
		case "boolean":
			bad = append(bad, "maybe", "2")
		}
	}
	if schema["enum"] != nil {
		bad = append(bad, "none of these")
	}
	if least, ok := schema["minimum"].(float64); ok {
		bad = append(bad, fmt.Sprint(least-1))
	}
	if most, ok := schema["maximum"].(float64); ok {
		bad = append(bad, fmt.Sprint(most+1))
	}
	return bad
}

// typesOf are the types that a schema allows; none: any.
func typesOf(schema map[string]any) []string {
	var types []string
	switch t := schema["type"].(type) {
	case string:
		types = append(types, t)
	case []any:
		for _, one := range t {
			types = append(types, fmt.Sprint(one))
		}
	}
	if options, ok := schema["oneOf"].([]any); ok {
		for _, o := range options {
			types = append(types, typesOf(o.(map[string]any))...)
		}
	}
	return types
}

// badJSON are values that a schema does not allow. null stands for absent, wherever a value is not needed.
func badJSON(schema map[string]any) []string {
	types := typesOf(schema)
	if len(types) == 0 {
		return nil
	}
	var bad []string
	for kind, value := range map[string]string{"string": `"x"`, "number": `1.5`, "boolean": `true`, "object": `{"x":1}`, "array": `[[1]]`} {
		if !slices.Contains(types, kind) {
			bad = append(bad, value)
		}
	}
	if schema["enum"] != nil {
		bad = append(bad, `"none of these"`)
	}
	if slices.Contains(types, "integer") {
		bad = append(bad, "1e400", "99999999999999999999")
	}
	if schema["contentEncoding"] == "base64" {
		bad = append(bad, `"no base64!"`, `"YQ="`)
	}
	if least, ok := schema["minimum"].(float64); ok {
		bad = append(bad, fmt.Sprint(least-1))
	}
	if most, ok := schema["maximum"].(float64); ok {
		bad = append(bad, fmt.Sprint(most+1))
	}
	slices.Sort(bad)
	return bad
}

// object is a JSON object whose members are written as they stand.
type object map[string]string

func objectOf(v any) object {
	o := object{}
	f, _ := v.(fields)
	for name, value := range f {
		o[name] = encoded(value)
	}
	return o
}

func encoded(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // what a test wrote
	}
	return string(b)
}

func (o object) with(name, value string) object {
	o = maps.Clone(o)
	o[name] = value
	return o
}

func (o object) without(name string) object {
	o = maps.Clone(o)
	delete(o, name)
	return o
}

func (o object) String() string {
	var members []string
	for _, name := range slices.Sorted(maps.Keys(o)) {
		members = append(members, fmt.Sprintf("%q:%s", name, o[name]))
	}
	return "{" + strings.Join(members, ",") + "}"
}

// Limits of the bodies that are larger than the usual MiB.
var largeBodies = map[string]int64{"exec": 64 << 20, "start-process": 64 << 20, "run-code": 64 << 20, "submit-job": 64 << 20, "simple-submit-job": 64 << 20}

func (b *bender) bodies() {
	schema, ok := b.op.body[jsonType].(map[string]any)
	if !ok {
		return
	}
	schema = b.doc.ref(schema)
	send := func(body string, header ...string) request {
		r := b.valid()
		for i := 0; i < len(r.header); i += 2 {
			if r.header[i] == "Content-Type" {
				r.header = slices.Delete(r.header, i, i+2)
				break
			}
		}
		r.body, r.header = []byte(body), append(r.header, header...)
		return r
	}
	good := encoded(b.call.body)
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "multipart/form-data; boundary=x", "nonsense"} {
		b.add(415, send(good, "Content-Type", kind), "a body as %s", kind)
	}
	b.add(415, send(good), "a body without a content type")
	b.add(415, send(good, "Content-Type", jsonType, "Content-Encoding", "gzip"), "a body that is said to be compressed")
	limit := largeBodies[b.op.id]
	if limit == 0 {
		limit = 1 << 20
	}
	b.add(413, send("{", "Content-Type", jsonType, "Content-Length", fmt.Sprint(limit+1)), "a body that is too long")
	broken := []string{"{", good + "{}", good[:len(good)-1], "nonsense", `"text"`, "1", "\xef\xbb\xbf" + good, "\x00", strings.Repeat("[", 5000), `{"a":`}
	if b.op.bodyNeeded {
		broken = append(broken, "", " ")
	}
	if !slices.Contains(typesOf(schema), "array") {
		broken = append(broken, "[]")
	}
	for _, body := range broken {
		b.add(400, send(body, "Content-Type", jsonType), "the body %s", short(body, 30))
	}
	whole := objectOf(b.call.body)
	properties, _ := schema["properties"].(map[string]any)
	required, _ := schema["required"].([]any)
	try := func(body, what string, args ...any) {
		b.add(400, send(body, "Content-Type", jsonType), what, args...)
	}
	try(whole.with("nothing_of_that_name", "1").String(), "an unknown field")
	for name := range whole {
		try(strings.TrimSuffix(whole.String(), "}")+fmt.Sprintf(",%q:%s}", name, whole[name]), "%s twice", name)
		break
	}
	for _, name := range required {
		try(whole.without(fmt.Sprint(name)).String(), "no %s", name)
		try(whole.with(fmt.Sprint(name), "null").String(), "%s null", name)
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		property, _ := properties[name].(map[string]any)
		property = b.doc.ref(property)
		for _, value := range badJSON(property) {
			try(whole.with(name, value).String(), "%s %s", name, value)
		}
		if slices.Contains(typesOf(property), "string") {
			try(whole.with(name, "\"\xff\"").String(), "%s that is no UTF-8", name)
			try(whole.with(name, `"\ud800"`).String(), "%s with half a character", name)
		}
	}
}
