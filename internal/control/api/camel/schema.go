package camel

import (
	"maps"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// prefix begins the name of a schema that is another's second spelling.
const prefix = "Simple"

// Schema implements huma.SchemaProvider.
func (Of[T]) Schema(r huma.Registry) *huma.Schema { return Schema(r, reflect.TypeFor[T]()) }

// Schema describes the JSON of an [Of] t: a schema of its own where names differ, else that of t.
func Schema(r huma.Registry, t reflect.Type) *huma.Schema {
	return schemaOf(r, r.Schema(t, true, ""), t)
}

func schemaOf(r huma.Registry, s *huma.Schema, t reflect.Type) *huma.Schema {
	t = elem(t)
	switch {
	case s.Ref != "" && isObject(t):
		at, name := s.Ref[:strings.LastIndex(s.Ref, "/")+1], s.Ref[strings.LastIndex(s.Ref, "/")+1:]
		if _, there := r.Map()[prefix+name]; !there {
			spelled := objectSchema(r, r.SchemaFromRef(s.Ref), t)
			if spelled == nil {
				return s
			}
			r.Map()[prefix+name] = spelled
		}
		return &huma.Schema{Ref: at + prefix + name}
	case s.Items != nil && t.Kind() == reflect.Slice:
		out := *s
		out.Items = schemaOf(r, s.Items, t.Elem())
		return &out
	}
	return s
}

// objectSchema is the other spelling of an object's schema; nil when it is the same. An object must not hold itself.
func objectSchema(r huma.Registry, s *huma.Schema, t reflect.Type) *huma.Schema {
	out := *s
	out.Properties = maps.Clone(s.Properties)
	out.Required = append([]string(nil), s.Required...)
	same := true
	for _, f := range fieldsOf(t) {
		property, ok := s.Properties[f.snake]
		if !ok {
			continue
		}
		delete(out.Properties, f.snake)
		spelled := schemaOf(r, property, f.of)
		out.Properties[f.camel] = spelled
		for i, name := range out.Required {
			if name == f.snake {
				out.Required[i] = f.camel
			}
		}
		same = same && f.snake == f.camel && sameRef(spelled, property)
	}
	if same {
		return nil
	}
	return &out
}

func sameRef(a, b *huma.Schema) bool {
	if a.Items != nil && b.Items != nil {
		return sameRef(a.Items, b.Items)
	}
	return a.Ref == b.Ref
}
