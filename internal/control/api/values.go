package api

import (
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
)

// moment is a time in JSON: RFC 3339, UTC, milliseconds; the zero time is null.
type moment time.Time

// MarshalJSONTo implements json.MarshalerTo.
func (m moment) MarshalJSONTo(e *jsontext.Encoder) error {
	if time.Time(m).IsZero() {
		return e.WriteToken(jsontext.Null)
	}
	return e.WriteToken(jsontext.String(time.Time(m).UTC().Format("2006-01-02T15:04:05.000Z")))
}

// Schema implements huma.SchemaProvider.
func (moment) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: "string", Format: "date-time", Nullable: true, Description: "RFC 3339, UTC, milliseconds"}
}

// optional tells null from absent, where null means something of its own.
type optional[T any] struct {
	set  bool
	null bool
	v    T
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (o *optional[T]) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	o.set = true
	if d.PeekKind() == 'n' {
		o.null = true
		return d.SkipValue()
	}
	return unmarshalFrom(d, &o.v)
}

// Schema implements huma.SchemaProvider.
func (optional[T]) Schema(r huma.Registry) *huma.Schema {
	s := *r.Schema(reflect.TypeFor[T](), true, "")
	s.Nullable = true
	return &s
}

// maxNumber is the largest duration in seconds, and the largest limit, that a request may name.
const maxNumber = 1 << 31

// seconds makes a duration of a number of seconds, which must be above zero.
func seconds(field string, s float64) (time.Duration, error) {
	if math.IsNaN(s) || s <= 0 || s > maxNumber {
		return 0, cay.Errorf(cay.InvalidRequest, "`%s` must be above 0 and at most 2147483648", field).On(field)
	}
	return max(time.Millisecond, time.Duration(s*float64(time.Second))), nil
}

// secondsOrNone takes 0 for none.
func secondsOrNone(field string, s float64) (time.Duration, error) {
	if s == 0 {
		return 0, nil
	}
	return seconds(field, s)
}

func inSeconds(d time.Duration) float64 { return d.Seconds() }

// within checks a limit that a request names.
func within[T int64 | float64](field string, v *T) error {
	if v != nil && (*v <= 0 || float64(*v) > maxNumber) {
		return cay.Errorf(cay.InvalidRequest, "`%s` must be above 0 and at most 2147483648", field).On(field)
	}
	return nil
}

// waitFor reads wait_seconds: 0 to 300, decimals allowed.
func waitFor(s float64) (time.Duration, error) {
	if math.IsNaN(s) || s < 0 || s > 300 {
		return 0, cay.Errorf(cay.InvalidRequest, "`wait_seconds` must be from 0 to 300").On("wait_seconds")
	}
	return time.Duration(s * float64(time.Second)), nil
}

// plain refuses text that no operating system takes as an argument, a path or a name.
func plain(field, s string) error {
	if strings.IndexByte(s, 0) >= 0 {
		return cay.Errorf(cay.InvalidRequest, "`%s` holds a NUL byte", field).On(field)
	}
	return nil
}

// checkEnv bounds an environment and refuses what execve cannot carry.
func checkEnv(env map[string]string) error {
	total := 0
	for name, value := range env {
		field := "env." + clip(name, 100)
		switch {
		case name == "":
			return cay.Errorf(cay.InvalidRequest, "`env` holds a variable without a name").On("env")
		case strings.ContainsAny(name, "=\x00"):
			return cay.Errorf(cay.InvalidRequest, "`%s`: a name holds neither '=' nor NUL", field).On(field)
		case strings.IndexByte(value, 0) >= 0:
			return cay.Errorf(cay.InvalidRequest, "`%s`: a value holds no NUL", field).On(field)
		}
		total += len(name) + len(value) + 2 // '=' and the NUL at the end
	}
	if total > cay.MaxEnvBytes {
		return cay.Errorf(cay.InvalidRequest, "`env` may have at most %d bytes in all", cay.MaxEnvBytes).On("env").With("limit_bytes", cay.MaxEnvBytes)
	}
	return nil
}

// Bounds of a sandbox's metadata.
const (
	maxMetadataKeys  = 64
	maxMetadataEntry = 1 << 10 // bytes of a key and its value
)

func checkMetadata(m map[string]string) error {
	if len(m) > maxMetadataKeys {
		return cay.Errorf(cay.InvalidRequest, "`metadata` may have at most %d keys", maxMetadataKeys).On("metadata")
	}
	for k, v := range m {
		field := "metadata." + clip(k, 100)
		if k == "" || len(k)+len(v) > maxMetadataEntry {
			return cay.Errorf(cay.InvalidRequest, "`%s`: a key, which must not be empty, and its value may have %d bytes together", field, maxMetadataEntry).On(field)
		}
	}
	return nil
}

// page is how every list answers.
type page[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor" doc:"Give it as cursor for what follows; null at the end"`
}

func pageOf[T any](items []T, next string) page[T] {
	p := page[T]{Items: items}
	if next != "" {
		p.NextCursor = &next
	}
	return p
}

// maxCursor bounds a cursor that a client sends back, in bytes.
const maxCursor = 4096

// checkCursor refuses what no answer of ours held. What is inside, the list's owner knows.
func checkCursor(s string) error { return checkCursorWithin(s, maxCursor) }

func checkCursorWithin(s string, most int) error {
	ok := len(s) <= most
	for _, c := range []byte(s) {
		ok = ok && c > ' ' && c < 0x7f
	}
	if !ok {
		return cay.Errorf(cay.InvalidRequest, "`cursor` is none that was given out").On("cursor")
	}
	return nil
}

// SandboxPath is the {id} of a sandbox's routes. It is exported, as others like it are, since huma looks into embedded types only then.
type SandboxPath struct {
	ID string `path:"id" doc:"The sandbox, sbx_…"`
}

func (p SandboxPath) id() (cay.ID, error) {
	id, ok := cay.ParseID(cay.PrefixSandbox, p.ID)
	if !ok {
		return "", cay.Errorf(cay.NotFound, "there is no sandbox %q", clip(p.ID, 100))
	}
	return id, nil
}

func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
