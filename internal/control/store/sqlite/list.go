package sqlite

import (
	"math"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

// page is what every list asks for, as the queries take it.
type page struct {
	after    int64 // made later than this
	cursorAt int64
	cursorID string
	metadata string
	max      int64 // one more than the page holds: whether there is a next one
}

// pageOf reads a list's query; prefix is that of the ids in it.
func pageOf(prefix string, limit int, cursor string, ascending bool, after time.Time, metadata map[string]string) (page, error) {
	p := page{after: math.MinInt64, cursorAt: math.MaxInt64, metadata: "{}", max: int64(limit) + 1}
	if !after.IsZero() {
		p.after = micros(after)
	}
	if ascending {
		p.cursorAt = math.MinInt64
	}
	if cursor != "" {
		at, err := store.ParseCursor(prefix, cursor)
		if err != nil {
			return page{}, err
		}
		p.cursorAt, p.cursorID = micros(at.At), string(at.ID)
	}
	if len(metadata) > 0 {
		var err error
		if p.metadata, err = encode(metadata); err != nil {
			return page{}, err
		}
	}
	return p, nil
}

// encodeAny is the JSON of a filter's values; that of none, which lets all pass, is an empty array.
func encodeAny[T any](values []T) (string, error) {
	if len(values) == 0 {
		return "[]", nil
	}
	return encode(values)
}

// cut makes a page of what a query found, and the cursor of the next one. place is where a row stands in the list.
func cut[T any](rows []T, limit int, place func(T) (at int64, id string)) ([]T, string) {
	if len(rows) <= limit {
		return rows, ""
	}
	rows = rows[:limit]
	at, id := place(rows[limit-1])
	return rows, store.Cursor{At: fromMicros(at), ID: cay.ID(id)}.String()
}
