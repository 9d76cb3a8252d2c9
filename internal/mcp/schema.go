package mcp

import (
	"fmt"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
)

// limits are what the properties of a tool's arguments may be, by name.
type limits map[string]func(*jsonschema.Schema)

// between bounds a number, both ends included.
func between(least, most float64) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) { s.Minimum, s.Maximum = &least, &most }
}

// upTo bounds a text in characters; it may not be empty.
func upTo(characters int) func(*jsonschema.Schema) {
	least := 1
	return func(s *jsonschema.Schema) { s.MinLength, s.MaxLength = &least, &characters }
}

// atMost bounds a text in characters, or a list in items; it may be empty.
func atMost(n int) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) {
		switch s.Type {
		case "array":
			s.MaxItems = &n
		case "object":
			s.MaxProperties = &n
		default:
			s.MaxLength = &n
		}
	}
}

// oneOf lists what a text may be.
func oneOf(values ...any) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) { s.Enum = values }
}

// by is what a property is when it is left out, in JSON, with further limits.
func by(value string, more ...func(*jsonschema.Schema)) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) {
		s.Default = []byte(value)
		for _, limit := range more {
			limit(s)
		}
	}
}

// schemaOf describes T. Lists are lists, never null.
func schemaOf[T any]() (*jsonschema.Schema, error) {
	s, err := jsonschema.For[T](nil)
	if err != nil {
		return nil, err
	}
	withoutNull(s)
	return s, nil
}

func inputSchema[In any](l limits) (*jsonschema.Schema, *jsonschema.Resolved, error) {
	s, err := schemaOf[In]()
	if err != nil {
		return nil, nil, err
	}
	l = withCommon(s, l)
	for name, limit := range l {
		property, ok := s.Properties[name]
		if !ok {
			return nil, nil, fmt.Errorf("there is no property %s to limit", name)
		}
		limit(property)
	}
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	return s, resolved, err
}

// withCommon adds the limits of properties that mean the same in every tool.
func withCommon(s *jsonschema.Schema, l limits) limits {
	out := limits{}
	for name, limit := range map[string]func(*jsonschema.Schema){
		"sandbox_id": atMost(64), "process_id": upTo(64), "cwd": atMost(4096), "path": upTo(4096), "env": atMost(1024),
	} {
		if s.Properties[name] != nil {
			out[name] = limit
		}
	}
	for name, limit := range l {
		out[name] = limit
	}
	return out
}

// withoutNull takes null from the types that a Go pointer, map or slice may be: an absent property is left out instead.
func withoutNull(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if i := slices.Index(s.Types, "null"); i >= 0 && len(s.Types) == 2 {
		s.Type, s.Types = s.Types[1-i], nil
	}
	withoutNull(s.Items)
	withoutNull(s.AdditionalProperties)
	for _, p := range s.Properties {
		withoutNull(p)
	}
}
