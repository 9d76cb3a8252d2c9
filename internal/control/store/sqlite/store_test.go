package sqlite_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
	"github.com/cayhq/cay/internal/control/store/sqlite"
	"github.com/cayhq/cay/internal/control/store/storetest"
)

// crashFile makes the test binary write rows to that file, naming each on stdout once it is acknowledged, until it is killed.
const crashFile = "CAY_TEST_CRASH_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashFile); path != "" {
		fmt.Fprintln(os.Stderr, writeUntilKilled(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func writeUntilKilled(path string) error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, path)
	if err != nil {
		return err
	}
	failures := make(chan error)
	for range 8 { // so that commits are shared
		go func() {
			for {
				sb := storetest.Sandbox(time.Now())
				if err := s.InsertSandbox(ctx, sb, 0, 0); err != nil {
					failures <- err
					return
				}
				if _, err := s.MutateSandbox(ctx, sb.ID, func(sb *cay.Sandbox) ([]cay.Event, error) {
					return []cay.Event{{SandboxID: sb.ID, ProjectID: sb.ProjectID, Type: "status", At: time.Now()}}, sb.Transition(cay.Ready, "", time.Now())
				}); err != nil {
					failures <- err
					return
				}
				fmt.Println(sb.ID)
			}
		}()
	}
	return <-failures
}

func open(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSQLitePassesTheSuite(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, filepath.Join(t.TempDir(), "cay.db")) })
}

func TestAcknowledgedWritesSurviveAKillAtAnyMoment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	acknowledged := 0
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashFile+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var ids []cay.ID
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			ids = append(ids, cay.ID(strings.TrimSpace(lines.Text())))
			if len(ids) == 20*(round+1) {
				if err := cmd.Process.Kill(); err != nil { // SIGKILL
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the writer ended by itself")
		}
		acknowledged += len(ids)
		if len(ids) < 20 {
			t.Fatalf("the writer acknowledged %d rows before it was killed", len(ids))
		}

		s := open(t, path)
		for _, id := range ids {
			sb, err := s.Sandbox(t.Context(), id)
			if err != nil {
				t.Fatalf("acknowledged and lost: %v", err)
			}
			if sb.Status != cay.Ready {
				t.Errorf("%s is %s, its acknowledged change is lost", id, sb.Status)
			}
			events, _, err := s.Events(t.Context(), sb.ProjectID, cay.EventQuery{SandboxID: id, Limit: 2})
			if err != nil || len(events) != 1 {
				t.Errorf("%s has %d events: %v", id, len(events), err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d acknowledged rows", acknowledged)
}

func TestAnIdempotencyKeyOfADeadServerIsFreeAgainAndNamesWhatWasToBeMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cay.db")
	s := open(t, path)
	i := s.Idempotency()
	for key, object := range map[string]string{"unfinished": "job_1", "nothing chosen": "", "finished": "job_2"} {
		if rec, fresh, err := i.Begin(t.Context(), "prj_1", "r", key, [32]byte{}, object); err != nil || !fresh || rec.ObjectID != object {
			t.Fatal(rec, fresh, err)
		}
	}
	if err := i.Finish(t.Context(), "prj_1", "r", "finished", 201, "job_2"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	i = open(t, path).Idempotency()
	if _, _, err := i.Begin(t.Context(), "prj_1", "r", "unfinished", [32]byte{1}, ""); cay.ReasonOf(err) != cay.IdempotencyMismatch {
		t.Errorf("another body: %v", err)
	}
	for key, want := range map[string]struct {
		object string
		fresh  bool
	}{"unfinished": {"job_1", true}, "nothing chosen": {"", true}, "finished": {"job_2", false}} {
		rec, fresh, err := i.Begin(t.Context(), "prj_1", "r", key, [32]byte{}, "job_9")
		if err != nil || fresh != want.fresh || rec.ObjectID != want.object || rec.Done == fresh {
			t.Errorf("%s: %+v, fresh %v, %v", key, rec, fresh, err)
		}
	}
	if rec, fresh, err := i.Begin(t.Context(), "prj_1", "r", "unfinished", [32]byte{}, "job_9"); err != nil || fresh || rec.Done {
		t.Errorf("claimed again while it runs: %+v, fresh %v, %v", rec, fresh, err)
	}
}

func TestTheFileIsItsOwnersAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a dir?#%", "cay.db")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, path)
	if err := s.InsertSandbox(t.Context(), storetest.Sandbox(time.Now()), 0, 0); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", info.Name(), info.Mode().Perm())
		}
	}
}

func TestAClosedStoreSaysSo(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "cay.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.InsertSandbox(t.Context(), storetest.Sandbox(time.Now()), 0, 0); err == nil {
		t.Error("a closed store took a write")
	}
}

func BenchmarkInsertsThatShareCommits(b *testing.B) {
	s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "cay.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := s.InsertSandbox(b.Context(), storetest.Sandbox(time.Now()), 0, 0); err != nil {
				b.Error(err)
			}
		}
	})
}
