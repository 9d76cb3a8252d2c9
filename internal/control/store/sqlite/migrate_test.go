package sqlite

import (
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/cayhq/cay"
)

func TestSandboxesOfAnEarlierSchemaAreKeptAndBelongToNoSession(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	sb := &cay.Sandbox{ID: cay.NewID(cay.PrefixSandbox), ProjectID: "prj_1", Status: cay.Creating, CreatedAt: time.UnixMicro(1), Op: cay.OpCreate, Version: 1}
	if err := s.InsertSandbox(t.Context(), sb, 0, 0); err != nil {
		t.Fatal(err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, s.write, files)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.DownTo(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	items, _, err := s.ListSandboxes(t.Context(), "prj_1", cay.SandboxQuery{Limit: 10})
	if err != nil || len(items) != 1 || items[0].ID != sb.ID || items[0].NearWorker != "" {
		t.Errorf("after the migration there are %v, %v", items, err)
	}
	if _, _, _, err := s.CountJobs(t.Context()); err != nil {
		t.Error(err)
	}
}
