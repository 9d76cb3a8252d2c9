// Package strictjson decodes JSON that clients send: duplicate names, unknown names, trailing data and invalid UTF-8 are refused,
// with an error that names the field. It knows no request.
package strictjson

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
)

// Decode decodes data, one JSON value and nothing else, into v. A bare null says nothing, and is refused. The error is a *[cay.Error]
// of reason invalid_request.
func Decode(data []byte, v any) error {
	if string(bytes.TrimSpace(data)) == "null" {
		return cay.Errorf(cay.InvalidRequest, "the body must not be null")
	}
	err := json.Unmarshal(data, v, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	return explain(err)
}

func explain(err error) error {
	var own *cay.Error
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.As(err, &own):
		// From a type's own decoding. The position is known out here only.
		e := *own
		if errors.As(err, &semantic) && e.Field == "" {
			e.Field = Field(semantic.JSONPointer)
		}
		return &e
	case errors.As(err, &semantic):
		field := Field(semantic.JSONPointer)
		if errors.Is(semantic.Err, json.ErrUnknownName) {
			return cay.Errorf(cay.InvalidRequest, "there is no field %q", field).On(field)
		}
		where := "the body"
		if field != "" {
			where = "`" + field + "`"
		}
		detail := where + " must be " + kindOf(semantic.GoType)
		if k := kinds[semantic.JSONKind]; k != "" && !strings.HasSuffix(detail, k) {
			detail += ", not " + k
		} else {
			detail = where + " does not hold a value that is allowed: it must be " + kindOf(semantic.GoType)
		}
		return cay.Errorf(cay.InvalidRequest, "%s", detail).On(field)
	case errors.As(err, &syntactic):
		field := Field(syntactic.JSONPointer)
		switch {
		case errors.Is(syntactic.Err, jsontext.ErrDuplicateName):
			return cay.Errorf(cay.InvalidRequest, "the field %q is given twice", field).On(field)
		case errors.Is(syntactic.Err, io.ErrUnexpectedEOF):
			return cay.Errorf(cay.InvalidRequest, "the JSON ends early, at byte %d", syntactic.ByteOffset).On(field)
		}
		return cay.Errorf(cay.InvalidRequest, "this is not JSON, at byte %d: %v", syntactic.ByteOffset, syntactic.Err).On(field)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return cay.Errorf(cay.InvalidRequest, "a JSON body is needed")
	}
	return cay.Errorf(cay.InvalidRequest, "this is not a JSON body that is understood").Because(err)
}

// Field writes a JSON pointer the way people write fields: env.PATH, command.0.
func Field(p jsontext.Pointer) string {
	var parts []string
	for token := range p.Tokens() {
		parts = append(parts, token)
	}
	return strings.Join(parts, ".")
}

var kinds = map[jsontext.Kind]string{
	'n': "null", 'f': "a boolean", 't': "a boolean", '"': "a string", '0': "a number", '{': "an object", '[': "a list",
}

func kindOf(t reflect.Type) string {
	if t == nil {
		return "something else"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return kindOf(t.Elem())
	case reflect.Bool:
		return "a boolean"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number within range"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "base64"
		}
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	}
	return "something else"
}
