// Package camel gives a JSON object a second spelling: names in camelCase where its type has them in snake_case. Members of structs are
// renamed, keys of maps never are. It knows no request and no object of the API.
package camel

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/strictjson"
)

// Of is a T whose JSON has names in camelCase. The tag camel of a field gives it another name there.
type Of[T any] struct{ Value T }

// Plain is the value itself, to be checked in the names of its own.
func (o *Of[T]) Plain() any { return &o.Value }

// MarshalJSONTo implements json.MarshalerTo.
func (o Of[T]) MarshalJSONTo(e *jsontext.Encoder) error {
	plain, err := json.Marshal(o.Value, json.Deterministic(true))
	if err != nil {
		return err
	}
	return respell(e, jsontext.NewDecoder(bytes.NewReader(plain)), reflect.TypeFor[T](), toCamel)
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It is as strict as package strictjson, and names fields as they are spelled here.
func (o *Of[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	v, err := d.ReadValue()
	if err != nil {
		return err
	}
	var plain bytes.Buffer
	if err := respell(jsontext.NewEncoder(&plain), jsontext.NewDecoder(bytes.NewReader(v)), reflect.TypeFor[T](), toSnake); err != nil {
		return err
	}
	return Error(strictjson.Decode(plain.Bytes(), &o.Value))
}

// Error names the field at fault as it is spelled here. A field below another, such as a variable of env, keeps its own name.
func Error(err error) error {
	var e *cay.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	first, rest, nested := strings.Cut(e.Field, ".")
	spelled := Name(first)
	if spelled == first {
		return err
	}
	out := *e
	out.Detail = replaceWord(e.Detail, first, spelled)
	if out.Field = spelled; nested {
		out.Field += "." + rest
	}
	return &out
}

// replaceWord replaces a name wherever it is not part of a longer one.
func replaceWord(text, old, spelled string) string {
	var out strings.Builder
	for {
		at := strings.Index(text, old)
		if at < 0 {
			return out.String() + text
		}
		end := at + len(old)
		whole := (at == 0 || !inName(text[at-1])) && (end == len(text) || !inName(text[end]))
		out.WriteString(text[:at])
		if whole {
			out.WriteString(spelled)
		} else {
			out.WriteString(old)
		}
		text = text[end:]
	}
}

func inName(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// Name spells a name of snake_case in camelCase.
func Name(snake string) string {
	parts := strings.Split(snake, "_")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

// field is a member of an object in both spellings.
type field struct {
	snake, camel string
	of           reflect.Type
}

type direction func(field) (from, to string)

func toCamel(f field) (from, to string) { return f.snake, f.camel }
func toSnake(f field) (from, to string) { return f.camel, f.snake }

var known sync.Map // fields of a struct by its reflect.Type

// fieldsOf are the members of a struct's JSON, those of embedded structs among them.
func fieldsOf(t reflect.Type) []field {
	if found, ok := known.Load(t); ok {
		return found.([]field)
	}
	var all []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			all = append(all, fieldsOf(f.Type)...)
		case name != "" && name != "-":
			camel := f.Tag.Get("camel")
			if camel == "" {
				camel = Name(name)
			}
			all = append(all, field{name, camel, f.Type})
		}
	}
	known.Store(t, all)
	return all
}

// isObject reports whether t is a struct whose JSON are its fields, rather than what the type itself writes.
func isObject(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	p := reflect.PointerTo(t)
	for _, own := range []reflect.Type{reflect.TypeFor[json.MarshalerTo](), reflect.TypeFor[json.UnmarshalerFrom](), reflect.TypeFor[json.Marshaler]()} {
		if p.Implements(own) {
			return false
		}
	}
	return true
}

func elem(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// respell copies a value of type t with the names of the other spelling. A name that is none of t is an error.
func respell(e *jsontext.Encoder, d *jsontext.Decoder, t reflect.Type, way direction) error {
	t = elem(t)
	switch kind := d.PeekKind(); {
	case kind == '{' && isObject(t):
		return respellObject(e, d, t, way)
	case kind == '[' && t.Kind() == reflect.Slice:
		if err := copyToken(e, d); err != nil {
			return err
		}
		for d.PeekKind() != ']' {
			if err := respell(e, d, t.Elem(), way); err != nil {
				return err
			}
		}
		return copyToken(e, d)
	}
	v, err := d.ReadValue()
	if err != nil {
		return err
	}
	return e.WriteValue(v)
}

func respellObject(e *jsontext.Encoder, d *jsontext.Decoder, t reflect.Type, way direction) error {
	names := map[string]field{}
	for _, f := range fieldsOf(t) {
		from, _ := way(f)
		names[from] = f
	}
	if err := copyToken(e, d); err != nil {
		return err
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		f, ok := names[name.String()]
		if !ok {
			at := strictjson.Field(d.StackPointer())
			return cay.Errorf(cay.InvalidRequest, "there is no field %q", at).On(at)
		}
		_, to := way(f)
		if err := e.WriteToken(jsontext.String(to)); err != nil {
			return err
		}
		if err := respell(e, d, f.of, way); err != nil {
			return err
		}
	}
	return copyToken(e, d)
}

func copyToken(e *jsontext.Encoder, d *jsontext.Decoder) error {
	token, err := d.ReadToken()
	if err != nil {
		return err
	}
	return e.WriteToken(token)
}
