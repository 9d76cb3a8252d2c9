package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// explainer runs queries, and notes how SQLite goes about each.
type explainer struct {
	db.DBTX
	t       *testing.T
	queries int
	steps   map[string]string // of the plans, with the query that each is of
}

func (e *explainer) explain(query string, args []any) {
	e.t.Helper()
	e.queries++
	rows, err := e.DBTX.QueryContext(context.Background(), "EXPLAIN QUERY PLAN "+query, args...)
	if err != nil {
		e.t.Fatalf("explain %s: %v", query, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			e.t.Fatal(err)
		}
		e.steps[detail] = query
	}
	if err := rows.Err(); err != nil {
		e.t.Fatal(err)
	}
}

func (e *explainer) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	e.explain(query, args)
	return e.DBTX.ExecContext(ctx, query, args...)
}

func (e *explainer) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	e.explain(query, args)
	return e.DBTX.QueryContext(ctx, query, args...)
}

func (e *explainer) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	e.explain(query, args)
	return e.DBTX.QueryRowContext(ctx, query, args...)
}

// fill writes many jobs at once: finished ones, and queued ones, half of which wait for one session.
func fill(t *testing.T, s *Store, finished, queued int) {
	t.Helper()
	const insert = `
		INSERT INTO jobs SELECT 'job_%[1]s' || value, 'prj_' || (value %% 10), CASE WHEN value %% 2 THEN '' ELSE 'ses_' || (value %% 10) END, 0, '{}', '{}',
			5, '%[1]s', '', '', 0, '', '', 1000 + value, 0, %[2]d, 2000000, 0, NULL, '', 0, 0, 0, 0, 0, 0, 'null', 0, '', 0, 0, 1, '', '', 0, 0
		FROM generate_series_of;
		INSERT INTO job_payloads SELECT 'job_%[1]s' || value, x'00', NULL FROM generate_series_of;`
	for status, n := range map[string]int{"success": finished, "queued": queued} {
		series := fmt.Sprintf("(WITH RECURSIVE n (value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < %d) SELECT value FROM n)", n)
		at := 0
		if status == "success" {
			at = 5000
		}
		if _, err := s.write.Exec(strings.ReplaceAll(fmt.Sprintf(insert, status, at), "generate_series_of", series)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTakingJobsReadsOnlyWhatIsInTheQueue(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fill(t, s, 10_000, 1_000)
	now := time.UnixMicro(3000)
	tx, err := s.write.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	e := &explainer{DBTX: tx, t: t, steps: map[string]string{}}
	q := db.New(e)
	const limit = 16
	leased, err := leaseJobs(t.Context(), q, now, cay.Lease{Owner: "me", Until: now.Add(time.Minute)}, limit)
	if err != nil || len(leased) != limit {
		t.Fatalf("leased %d, %v", len(leased), err)
	}
	// Taking one is a few queries, each project whose turn may have come a few more, and nothing depends on how many jobs wait.
	if e.queries > 15*limit {
		t.Errorf("%d jobs took %d queries", limit, e.queries)
	}
	if slices.ContainsFunc(leased, func(j *cay.Job) bool { return j.Status != cay.JobQueued }) {
		t.Error("a finished job was leased")
	}
	if _, err := q.CountUnfinishedJobs(t.Context(), "prj_1"); err != nil {
		t.Fatal(err)
	}
	if _, err := q.ExpiredJobs(t.Context(), db.ExpiredJobsParams{Now: 3000, Max: 10}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.OldJobs(t.Context(), db.OldJobsParams{Before: 3000, Max: 10}); err != nil {
		t.Fatal(err)
	}
	// An index is searched, or holds so little that it may be read whole; nothing is sorted.
	found := regexp.MustCompile(`^SEARCH \w+ USING (COVERING )?INDEX (jobs_|job_turns_|sqlite_autoindex_)`)
	small := regexp.MustCompile(`^SCAN (CONSTANT ROW|waiting|\w+ USING (COVERING )?INDEX (jobs_running|jobs_leased|sandboxes_session))$`)
	for step, query := range e.steps {
		reads := strings.HasPrefix(step, "SEARCH") || strings.HasPrefix(step, "SCAN")
		if reads && !found.MatchString(step) && !small.MatchString(step) || strings.Contains(step, "TEMP B-TREE") {
			t.Errorf("%q reads more than it has to, for:\n%s", step, query)
		}
	}
}
