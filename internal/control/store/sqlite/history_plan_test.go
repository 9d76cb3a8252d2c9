package sqlite

import (
	"database/sql"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
)

func TestAPageOfTheHistoryIsReadAlongAnIndexAndNothingIsSorted(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "cay.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e := &explainer{DBTX: s.read, t: t, steps: map[string]string{}}
	yes, from := true, time.UnixMicro(1)
	nothing := func(*sql.Rows) (place, error) { return place{}, nil }
	for _, ascending := range []bool{false, true} {
		for _, after := range []string{"", (&place{at: 5, id: int64(7)}).cursor()} {
			for _, q := range []cay.RecordQuery{{}, {AllProjects: true}, {SandboxID: "sbx_1"}, {SessionID: "ses_1"}, {Text: "x", OK: &yes, KeyID: "key_1", Kinds: cay.RecordKinds}, {From: from, To: from}} {
				q.Ascending, q.Cursor, q.Limit = ascending, after, 10
				w, err := recordWalk("prj_1", q)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.page(t.Context(), e, recordColumns, q.Limit, nothing); err != nil {
					t.Fatal(err)
				}
			}
			for _, q := range []cay.AuditQuery{{}, {AllProjects: true}, {Object: "sbx_1"}, {KeyID: "key_1", Action: "a", From: from, To: from}} {
				q.Ascending, q.Cursor, q.Limit = ascending, after, 10
				w, err := auditWalk("prj_1", q)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.page(t.Context(), e, auditColumns, q.Limit, nothing); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	found := regexp.MustCompile(`^SEARCH (records|audit) USING (COVERING )?INDEX \w+ \(.*(ended_at|\bat\b|\(ended_at,id\)|\(at,seq\)).*\)$`)
	for step, query := range e.steps {
		switch {
		case strings.Contains(step, "TEMP B-TREE"):
			t.Errorf("%q sorts, for:\n%s", step, query)
		case strings.Contains(step, "json_each"), strings.HasPrefix(step, "LIST SUBQUERY"), step == "CREATE BLOOM FILTER": // of the values of a filter
		case !found.MatchString(step):
			t.Errorf("%q reads more than it has to, for:\n%s", step, query)
		}
	}
	if len(e.steps) < 8 {
		t.Errorf("only %d steps were looked at", len(e.steps))
	}
}
