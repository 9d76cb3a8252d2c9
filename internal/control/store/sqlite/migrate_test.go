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

func TestUsageOfSandboxesOfAnEarlierSchemaCountsSinceTheyBecameWhatTheyAre(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	s, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)
	change := func(id cay.ID, to cay.Status, at time.Time) {
		t.Helper()
		if _, err := s.MutateSandbox(t.Context(), id, func(sb *cay.Sandbox) ([]cay.Event, error) {
			sb.Usage.CPUSeconds = 5
			return nil, sb.Transition(to, cay.ReasonDeleted, at)
		}); err != nil {
			t.Fatal(err)
		}
	}
	ids := map[cay.Status]cay.ID{}
	for _, status := range []cay.Status{cay.Creating, cay.Ready, cay.Paused, cay.Terminated} {
		sb := &cay.Sandbox{ID: cay.NewID(cay.PrefixSandbox), ProjectID: "prj_1", Status: cay.Creating, CreatedAt: at, LastActiveAt: at, Op: cay.OpCreate, Version: 1}
		if err := s.InsertSandbox(t.Context(), sb, 0, 0); err != nil {
			t.Fatal(err)
		}
		ids[status] = sb.ID
		for i, step := range map[cay.Status][]cay.Status{
			cay.Ready: {cay.Ready}, cay.Paused: {cay.Ready, cay.Paused}, cay.Terminated: {cay.Ready, cay.Terminating, cay.Terminated},
		}[status] {
			change(sb.ID, step, at.Add(time.Duration(i)*2*time.Hour))
		}
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, s.write, files)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.DownTo(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for status, want := range map[cay.Status]time.Time{cay.Creating: {}, cay.Ready: at, cay.Paused: at.Add(2 * time.Hour), cay.Terminated: {}} {
		if sb, err := s.Sandbox(t.Context(), ids[status]); err != nil || !sb.AccountedAt.Equal(want) || sb.CreatedBy != "" {
			t.Errorf("%s is accounted until %v, want %v: %v", status, sb.AccountedAt, want, err)
		}
	}
	change(ids[cay.Ready], cay.Terminating, at.Add(3*time.Hour))
	rows, total, _, err := s.Usage(t.Context(), "prj_1", cay.UsageQuery{GroupBy: []cay.UsageGroup{cay.UsageByDay}, Limit: 10})
	if err != nil || len(rows) != 2 || rows[0].CPUSeconds != 5 || rows[1].CPUSeconds != 5 || total.RunningSeconds != 3*3600 {
		t.Errorf("after the migration %+v is used, %v", rows, err)
	}
}
