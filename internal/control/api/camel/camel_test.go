package camel_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/camel"
	"github.com/cayhq/cay/internal/control/api/strictjson"
)

// Base is embedded; own writes its JSON itself.
type (
	Base struct {
		ID      string            `json:"id" camel:"thingId"`
		LongOne int               `json:"long_one"`
		EnvVars map[string]string `json:"env_vars"`
	}
	inner struct {
		DataBase64 []byte `json:"data_base64,omitzero" camel:"data_base64"`
		MaxValue   *int   `json:"max_value"`
	}
	own   struct{ text string }
	thing struct {
		Base
		Inners []inner `json:"inner_ones"`
		One    *inner  `json:"one_inner"`
		Own    own     `json:"own_json,omitzero"`
	}
)

func (o own) MarshalJSONTo(e *jsontext.Encoder) error {
	return e.WriteValue(jsontext.Value(`{"snake_case":"` + o.text + `"}`))
}

func (o *own) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	v, err := d.ReadValue()
	o.text = string(v)
	return err
}

const spelled = `{"thingId":"a","longOne":1,"envVars":{"A_B":"c_d","long_one":"x"},"innerOnes":[{"data_base64":"YQ==","maxValue":null},{"maxValue":3}],"oneInner":null,"ownJson":{"snake_case":"x_y"}}`

func value() thing {
	three := 3
	return thing{
		Base: Base{"a", 1, map[string]string{"A_B": "c_d", "long_one": "x"}}, Inners: []inner{{DataBase64: []byte("a")}, {MaxValue: &three}}, Own: own{"x_y"},
	}
}

func TestMembersAreRenamedAndKeysOfMapsAreNot(t *testing.T) {
	got, err := jsonv2.Marshal(camel.Of[thing]{Value: value()}, jsonv2.Deterministic(true))
	if err != nil || string(got) != spelled {
		t.Errorf("got %s, %v", got, err)
	}
	var back camel.Of[thing]
	if err := strictjson.Decode([]byte(spelled), &back); err != nil {
		t.Fatal(err)
	}
	if v := back.Value; v.ID != "a" || v.LongOne != 1 || v.EnvVars["A_B"] != "c_d" || v.EnvVars["long_one"] != "x" || string(v.Inners[0].DataBase64) != "a" || *v.Inners[1].MaxValue != 3 || v.One != nil {
		t.Errorf("got %+v", v)
	}
}

func TestWhatIsRefusedIsNamedAsItIsSpelledHere(t *testing.T) {
	for body, want := range map[string]struct{ field, in string }{
		`{"long_one":1}`:                     {"long_one", `no field "long_one"`},
		`{"id":"x"}`:                         {"id", `no field "id"`},
		`{"innerOnes":[{"max_value":1}]}`:    {"innerOnes.0.max_value", `no field "innerOnes.0.max_value"`},
		`{"longOne":"x"}`:                    {"longOne", "`longOne`"},
		`{"longOne":1,"longOne":2}`:          {"longOne", "twice"},
		`{"envVars":{"A_B":1}}`:              {"envVars.A_B", "`envVars.A_B`"},
		`{"envVars":{"a_b":"x","a_b":"y"}}`:  {"envVars.a_b", "twice"},
		`{"nothing":1}`:                      {"nothing", "nothing"},
		`[]`:                                 {"", "object"},
		`{"innerOnes":{"maxValue":1}}`:       {"innerOnes", "innerOnes"},
		`{"longOne":1`:                       {"", "ends early"},
		"{\"thingId\":\"\xff\"}":             {"thingId", ""},
		`{"oneInner":{"data_base64":"no!"}}`: {"oneInner.data_base64", ""},
	} {
		var v camel.Of[thing]
		err := strictjson.Decode([]byte(body), &v)
		e, ok := err.(*cay.Error)
		if !ok || e.Reason != cay.InvalidRequest || e.Field != want.field && want.in != "ends early" || !strings.Contains(e.Detail, want.in) {
			t.Errorf("%s: got %v, field %q, want %q", body, err, e.Field, want.field)
		}
	}
}

func TestAnErrorNamesItsFieldAsItIsSpelledHere(t *testing.T) {
	for _, c := range []struct{ field, detail, wantField, wantDetail string }{
		{"session_id", "`session_id`: there is no session", "sessionId", "`sessionId`: there is no session"},
		{"disk_gb", "disk_gb is at least 1, as max_disk_gb and disk_gb2 say", "diskGb", "diskGb is at least 1, as max_disk_gb and disk_gb2 say"},
		{"env.A_B", "`env.A_B` holds A_B", "env.A_B", "`env.A_B` holds A_B"},
		{"env_vars.A_B", "`env_vars.A_B`: no", "envVars.A_B", "`envVars.A_B`: no"},
		{"Last-Event-ID", "`Last-Event-ID` is none", "Last-Event-ID", "`Last-Event-ID` is none"},
		{"", "no field_at all", "", "no field_at all"},
	} {
		e := camel.Error(cay.Errorf(cay.Unprocessable, "%s", c.detail).On(c.field).With("session_id", "x")).(*cay.Error)
		if e.Field != c.wantField || e.Detail != c.wantDetail || e.Reason != cay.Unprocessable || e.Extra["session_id"] != "x" {
			t.Errorf("%s: got %+v", c.field, e)
		}
	}
	if camel.Error(nil) != nil {
		t.Error("nothing became an error")
	}
}

func TestTheSchemaIsThatOfTheOtherSpelling(t *testing.T) {
	r := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	type plain struct {
		One *int `json:"one"`
	}
	type holder struct {
		Base
		Inners []inner `json:"inners"`
		Plain  plain   `json:"plain"`
	}
	huma.DefaultArrayNullable = false
	s := r.Schema(reflect.TypeFor[camel.Of[holder]](), true, "")
	if s.Ref != "#/components/schemas/SimpleHolder" {
		t.Fatalf("got %+v", s)
	}
	h := r.SchemaFromRef(s.Ref)
	for _, name := range []string{"thingId", "longOne", "envVars", "inners", "plain"} {
		if h.Properties[name] == nil {
			t.Errorf("it lacks %s", name)
		}
	}
	if len(h.Properties) != 5 || strings.Contains(strings.Join(h.Required, " "), "_") || len(h.Required) != 5 {
		t.Errorf("it has %d properties and needs %v", len(h.Properties), h.Required)
	}
	if h.Properties["inners"].Items.Ref != "#/components/schemas/SimpleInner" || h.Properties["plain"].Ref != "#/components/schemas/Plain" {
		t.Errorf("got %+v, %+v", h.Properties["inners"].Items, h.Properties["plain"])
	}
	if b := r.SchemaFromRef("#/components/schemas/Holder"); b.Properties["long_one"] == nil || b.Properties["longOne"] != nil {
		t.Error("the first spelling changed")
	}
}

func FuzzOf(f *testing.F) {
	f.Add([]byte(spelled))
	f.Add([]byte(`{"innerOnes":[null,{}],"oneInner":{"maxValue":1e3}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var v, again camel.Of[thing]
		if err := strictjson.Decode(data, &v); err != nil {
			if cay.ReasonOf(err) != cay.InvalidRequest {
				t.Fatal(err)
			}
			return
		}
		v.Value.Own = own{}
		first, err := jsonv2.Marshal(v, jsonv2.Deterministic(true))
		if err != nil || !json.Valid(first) {
			t.Fatalf("%s: %v", first, err)
		}
		if err := strictjson.Decode(first, &again); err != nil {
			t.Fatalf("%s: %v", first, err)
		}
		again.Value.Own = own{}
		if second, err := jsonv2.Marshal(again, jsonv2.Deterministic(true)); err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%s became %s, %v", first, second, err)
		}
	})
}
