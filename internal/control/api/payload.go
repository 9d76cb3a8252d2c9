package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/camel"
	"github.com/cayhq/cay/internal/control/api/strictjson"
)

// payload is the JSON body of a request, read within the operation's bound and decoded strictly. It is a field of an operation's
// input; huma calls Resolve before the handler.
type payload[T any] struct {
	value T
	sum   [sha256.Size]byte // of the body's bytes
}

// validated is a body that checks more than its types.
type validated interface{ validate() error }

// documented is what [bodySchema] looks for.
type documented interface {
	schema(huma.Registry) *huma.Schema
}

func (p *payload[T]) schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[T](), true, "")
}

func bodySchema(r huma.Registry, input reflect.Type) *huma.Schema {
	for i := range input.NumField() {
		if d, ok := reflect.New(input.Field(i).Type).Interface().(documented); ok {
			return d.schema(r)
		}
	}
	return nil
}

// Resolve implements huma.Resolver.
func (p *payload[T]) Resolve(hc huma.Context) []error {
	r, _ := humago.Unwrap(hc)
	op := hc.Operation()
	text, err := readBody(r, op.MaxBodyBytes, exchangeOf(hc.Context()).bodies)
	if err != nil {
		return []error{err}
	}
	p.sum = sha256.Sum256(text)
	if optional, _ := op.Metadata[metaOptionalBody].(bool); optional && len(text) == 0 {
		return nil
	}
	if err := strictjson.Decode(text, &p.value); err != nil {
		return []error{err}
	}
	body, spell := any(&p.value), func(err error) error { return err }
	if s, ok := body.(interface{ Plain() any }); ok {
		body, spell = s.Plain(), camel.Error
	}
	if v, ok := body.(validated); ok {
		if err := v.validate(); err != nil {
			return []error{spell(err)}
		}
	}
	return nil
}

func tooLarge(limit int64) error {
	return cay.Errorf(cay.PayloadTooLarge, "the body may have at most %d bytes", limit).With("limit_bytes", limit)
}

// budget is memory for large bodies, shared by all requests.
type budget interface {
	Acquire(ctx context.Context, n int64) error
	Release(n int64)
}

// bodyBudgetWait bounds the wait for other requests' bodies to be done with.
const bodyBudgetWait = 10 * time.Second

// readBody reads at most limit bytes. What exceeds the size of ordinary JSON is counted against the budget until the request ends.
func readBody(r *http.Request, limit int64, b budget) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	var buf bytes.Buffer
	small := min(limit, cay.MaxJSONBody)
	if r.ContentLength < 0 || r.ContentLength <= small {
		if r.ContentLength > 0 {
			buf.Grow(int(r.ContentLength) + bytes.MinRead)
		}
		if _, err := buf.ReadFrom(io.LimitReader(r.Body, small+1)); err != nil {
			return nil, bodyError(err)
		}
		if int64(buf.Len()) <= small {
			return buf.Bytes(), nil
		}
		if small == limit {
			return nil, tooLarge(limit)
		}
	}
	need := limit
	if r.ContentLength > 0 {
		need = r.ContentLength
	}
	if b != nil {
		ctx, cancel := context.WithTimeout(r.Context(), bodyBudgetWait)
		err := b.Acquire(ctx, 2*need) // the bytes, and what is decoded from them
		cancel()
		if err != nil {
			return nil, cay.Errorf(cay.Unavailable, "too many large bodies at once; try again").After(time.Second).Because(err)
		}
		context.AfterFunc(r.Context(), func() { b.Release(2 * need) })
	}
	buf.Grow(int(need) - buf.Len() + bytes.MinRead)
	if _, err := buf.ReadFrom(io.LimitReader(r.Body, limit+1-int64(buf.Len()))); err != nil {
		return nil, bodyError(err)
	}
	if int64(buf.Len()) > limit {
		return nil, tooLarge(limit)
	}
	return buf.Bytes(), nil
}

func bodyError(err error) error {
	var max *http.MaxBytesError
	if errors.As(err, &max) {
		return tooLarge(max.Limit)
	}
	return cay.Errorf(cay.InvalidRequest, "the body could not be read to its end").Because(err)
}
