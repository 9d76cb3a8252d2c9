package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// walkLimit bounds the rows that one page of a filtered list looks at, however few of them the filters let pass: a page may be short and
// yet have a next one.
const walkLimit = 10_000

// walk is a query for a page of a table along an index whose last two columns are a time and what orders those of the same time. Its
// parts are constants of this package; what callers say is bound as parameters.
type walk struct {
	table, index, at, id string
	ascending            bool

	where   []string // what the index finds, with its parameters
	args    []any
	filters []string // what each row on the way is asked, with its parameters
	asked   []any
}

// place is where a row stands on a walk; id is a string or an int64, as the column is.
type place struct {
	at int64
	id any
}

// along adds what the index finds.
func (w *walk) along(condition string, args ...any) {
	w.where, w.args = append(w.where, condition), append(w.args, args...)
}

// only adds what each row is asked.
func (w *walk) only(condition string, args ...any) {
	w.filters, w.asked = append(w.filters, condition), append(w.asked, args...)
}

// onlyIf adds a filter by a value that is not empty.
func (w *walk) onlyIf(column, value string) {
	if value != "" {
		w.only(column+" = ?", value)
	}
}

// between bounds the walk to times at or after from and before to, zero being no bound, and to what comes after the place of the last page.
func (w *walk) between(from, to time.Time, after *place) {
	low, high := int64(math.MinInt64), int64(math.MaxInt64)
	if !from.IsZero() {
		low = micros(from)
	}
	if !to.IsZero() {
		high = micros(to)
	}
	// The place takes the place of the bound on its side: of two bounds SQLite would seek by either one and look at all up to the other.
	if after != nil && w.ascending && after.at >= low {
		w.along(fmt.Sprintf("(%s, %s) > (?, ?)", w.at, w.id), after.at, after.id)
	} else {
		w.along(w.at+" >= ?", low)
	}
	if after != nil && !w.ascending && after.at < high {
		w.along(fmt.Sprintf("(%s, %s) < (?, ?)", w.at, w.id), after.at, after.id)
	} else {
		w.along(w.at+" < ?", high)
	}
}

func (w *walk) order() string {
	if w.ascending {
		return fmt.Sprintf("ORDER BY %s, %s", w.at, w.id)
	}
	return fmt.Sprintf("ORDER BY %s DESC, %s DESC", w.at, w.id)
}

// edge is the last place that a page with filters may look at; nil when the walk ends before it.
func (w *walk) edge(ctx context.Context, read db.DBTX) (*place, error) {
	if len(w.filters) == 0 {
		return nil, nil
	}
	query := fmt.Sprintf("SELECT %s, %s FROM %s INDEXED BY %s WHERE %s %s LIMIT 1 OFFSET %d",
		w.at, w.id, w.table, w.index, strings.Join(w.where, " AND "), w.order(), walkLimit-1)
	p := &place{}
	err := read.QueryRowContext(ctx, query, w.args...).Scan(&p.at, &p.id)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look how far a page goes: %w", err)
	}
	return p, nil
}

// page reads at most limit rows, and says where the next page goes on; nil: nowhere. scan reads one row of the columns and says its place.
func (w *walk) page(ctx context.Context, read db.DBTX, columns string, limit int, scan func(row *sql.Rows) (place, error)) (*place, error) {
	edge, err := w.edge(ctx, read)
	if err != nil {
		return nil, err
	}
	if edge != nil {
		beyond := ">="
		if w.ascending {
			beyond = "<="
		}
		w.along(fmt.Sprintf("(%s, %s) %s (?, ?)", w.at, w.id, beyond), edge.at, edge.id)
	}
	query := fmt.Sprintf("SELECT %s FROM %s INDEXED BY %s WHERE %s %s LIMIT ?",
		columns, w.table, w.index, strings.Join(append(w.where, w.filters...), " AND "), w.order())
	args := append(append(w.args, w.asked...), limit+1)
	rows, err := read.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var last place
	for n := 0; rows.Next(); n++ {
		if n == limit {
			return &last, nil
		}
		if last, err = scan(rows); err != nil {
			return nil, err
		}
	}
	return edge, rows.Err()
}
