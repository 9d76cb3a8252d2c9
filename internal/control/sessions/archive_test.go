package sessions_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/sessions"
)

// archiving is config with archives as soon as a session lies idle.
func archiving() sessions.Config {
	cfg := config()
	cfg.ArchiveAfter = time.Millisecond
	return cfg
}

// files is long enough for several messages.
var files = strings.Repeat("files of a session\n", 1000)

func TestAnIdleSessionIsArchivedAndComesBackOnUse(t *testing.T) {
	p := start(t, archiving())
	row := p.filled(cay.CreateSession{}, []byte(files))
	archived := p.becomes(row.ID, cay.SessionArchived)
	if archived.WorkerID != "" || archived.ArchiveBytes != int64(len(files)) || archived.ArchiveDigest == "" {
		t.Errorf("archived: %+v", archived)
	}
	p.wantNoVolume(row)
	if stored, err := os.ReadFile(p.archivePath(row)); err != nil || string(stored) != files {
		t.Fatalf("the archive holds %d bytes, %v, want %d", len(stored), err, len(files))
	}
	sb := p.use(row.ID)
	p.wantImage(row, files)
	if got := p.get(row.ID); got.Status != cay.SessionActive || got.WorkerID != p.node.Worker {
		t.Errorf("in use again: %+v", got)
	}
	p.wantNoArchive(row)
	p.remove(sb.ID)
	p.becomes(row.ID, cay.SessionArchived) // and again
	p.wantNoVolume(row)
	if helper, err := p.Enter(t.Context(), project, row.ID); err != nil || helper.Spec.ManagedBy != row.ID {
		t.Fatalf("files of an archived session: %v, %v", helper, err)
	}
	p.wantImage(row, files)
}

func TestSandboxesThatWantAnArchivedSessionAtOnceShareOneRestore(t *testing.T) {
	p := start(t, archiving())
	row := p.filled(cay.CreateSession{}, []byte(files))
	p.becomes(row.ID, cay.SessionArchived)
	var reads atomic.Int64
	p.blobs.meanwhile(func(_ context.Context, call string) error {
		if call == "read" {
			reads.Add(1)
		}
		return nil
	})
	var ids []cay.ID
	for range 5 {
		sb, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID, SessionShared: true})
		p.ok(err)
		ids = append(ids, sb.ID)
	}
	for _, id := range ids {
		p.wait(id, cay.Ready)
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("the archive was read %d times, want once", n)
	}
	p.wantImage(row, files)
}

func TestATamperedArchiveIsRefusedAndNothingIsLost(t *testing.T) {
	for name, spoil := range map[string]func(b []byte) []byte{
		"changed":   func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"longer":    func(b []byte) []byte { return append(b, "more"...) },
		"shorter":   func(b []byte) []byte { return b[:len(b)-1] },
		"exchanged": func(b []byte) []byte { return bytes.Repeat([]byte{'x'}, len(b)) },
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, archiving())
			row := p.filled(cay.CreateSession{}, []byte(files))
			p.becomes(row.ID, cay.SessionArchived)
			p.wantNoVolume(row)
			p.ok(os.WriteFile(p.archivePath(row), spoil([]byte(files)), 0o600))
			sb, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID})
			p.ok(err)
			if sb := p.wait(sb.ID, cay.Failed); sb.StatusReason != cay.ReasonUnprocessable || !strings.Contains(sb.Detail, "not what was stored") {
				t.Errorf("failed with %s (%q)", sb.StatusReason, sb.Detail)
			}
			_, err = p.Enter(t.Context(), project, row.ID)
			if e := reason(t, err, cay.Unprocessable); !strings.Contains(e.Detail, "not what was stored") {
				t.Errorf("its files: %q", e.Detail)
			}
			if got := p.becomes(row.ID, cay.SessionArchived); got.ArchiveKey == "" {
				t.Errorf("afterwards: %+v", got)
			}
			if _, there := p.node.Image(row.Volume()); there {
				t.Error("a volume was made of it")
			}
			p.ok(os.WriteFile(p.archivePath(row), []byte(files), 0o600)) // the operator has a copy
			p.use(row.ID)
			p.wantImage(row, files)
		})
	}
}

func TestAnArchiveThatIsGoneSaysSoAndTheSessionCanBeDeleted(t *testing.T) {
	p := start(t, archiving())
	row := p.filled(cay.CreateSession{}, []byte(files))
	p.becomes(row.ID, cay.SessionArchived)
	p.ok(os.Remove(p.archivePath(row)))
	_, err := p.Enter(t.Context(), project, row.ID)
	reason(t, err, cay.Unprocessable)
	got, err := p.Delete(t.Context(), project, row.ID, false)
	if err != nil || got.Status != cay.SessionDeleted {
		t.Errorf("deleted: %+v, %v", got, err)
	}
}

func TestBlobStorageThatFailsLeavesTheSessionAsItIs(t *testing.T) {
	p := start(t, archiving())
	var broken atomic.Bool
	var writes atomic.Int64
	broken.Store(true)
	p.blobs.meanwhile(func(_ context.Context, call string) error {
		if call == "write" {
			writes.Add(1)
		}
		if call != "delete" && broken.Load() {
			return errors.New("storage is down")
		}
		return nil
	})
	row := p.filled(cay.CreateSession{}, []byte(files))
	p.eventually("it was tried", func() bool { return writes.Load() > 0 })
	if got := p.becomes(row.ID, cay.SessionActive); got.WorkerID != p.node.Worker {
		t.Errorf("afterwards: %+v", got)
	}
	p.wantImage(row, files)
	p.wantNoArchive(row)
	sb := p.use(row.ID) // all the while it can be used
	p.remove(sb.ID)
	if n := writes.Load(); n > 3 {
		t.Errorf("storage that fails was tried %d times within moments", n)
	}
	broken.Store(false)
	p.becomes(row.ID, cay.SessionArchived)
	broken.Store(true)
	waiting, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID})
	p.ok(err)
	p.eventually("the restore has failed once", func() bool {
		sb, err := p.life.Get(t.Context(), project, waiting.ID)
		return err == nil && sb.Attempt > 1
	})
	broken.Store(false)
	p.wait(waiting.ID, cay.Ready)
	p.wantImage(row, files)
}

func TestASessionWhoseWorkerIsAwayIsNotArchivedUntilItIsBack(t *testing.T) {
	cfg := archiving()
	cfg.ArchiveAfter = 500 * time.Millisecond
	p := start(t, cfg)
	row := p.filled(cay.CreateSession{}, []byte(files))
	p.node.Kill()
	p.eventually("the worker is away", func() bool { return !p.nodes.Available(p.node.Worker) })
	idle := p.get(row.ID).LastUsedAt.Add(2 * cfg.ArchiveAfter)
	p.eventually("it lies idle", func() bool {
		if got := p.get(row.ID); got.Status != cay.SessionActive {
			t.Fatalf("while its worker is away it is %s", got.Status)
		}
		return time.Now().After(idle)
	})
	p.node.Start(t)
	p.becomes(row.ID, cay.SessionArchived)
}

func TestAnExportThatBreaksOffIsNoArchive(t *testing.T) {
	p := start(t, archiving())
	var exports atomic.Int64
	p.node.OnVolume = func(_ context.Context, call, _ string) error {
		if call == "export" && exports.Add(1) == 1 {
			return cay.Errorf(cay.Unavailable, "the disk does not answer")
		}
		return nil
	}
	row := p.filled(cay.CreateSession{}, []byte(files))
	p.becomes(row.ID, cay.SessionArchived)
	if stored, err := os.ReadFile(p.archivePath(row)); err != nil || string(stored) != files || exports.Load() != 2 {
		t.Errorf("after %d exports the archive holds %d bytes, %v", exports.Load(), len(stored), err)
	}
}

// A server that is killed leaves a row in the middle of something; the next one finds it so. Here the row is put there.
func TestWhatADeadServerLeftHalfArchivedIsArchived(t *testing.T) {
	p := start(t, config())
	row := p.filled(cay.CreateSession{}, []byte(files))
	p.down()
	p.half(row.ID, cay.SessionArchiving)
	half := p.archivePath(row) + ".1.tmp"
	p.ok(os.MkdirAll(filepath.Dir(half), 0o700))
	p.ok(os.WriteFile(half, []byte(files)[:100], 0o600))
	p.up(archiving())
	p.becomes(row.ID, cay.SessionArchived)
	p.wantNoVolume(row)
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("half an archive of the dead server: %v, want it gone", err)
	}
	p.use(row.ID)
	p.wantImage(row, files)
}

func TestWhatADeadServerLeftHalfRestoredIsRestored(t *testing.T) {
	for name, imported := range map[string]bool{"before the import": false, "after the import": true} {
		t.Run(name, func(t *testing.T) {
			p := start(t, archiving())
			row := p.filled(cay.CreateSession{}, []byte(files))
			p.becomes(row.ID, cay.SessionArchived)
			p.wantNoVolume(row)
			p.down()
			p.half(row.ID, cay.SessionRestoring)
			if imported {
				p.node.PutVolume(row.Volume(), []byte(files))
			}
			p.up(config())
			got := p.becomes(row.ID, cay.SessionActive)
			if got.WorkerID != p.node.Worker {
				t.Errorf("restored: %+v", got)
			}
			p.wantImage(row, files)
			p.wantNoArchive(row)
			p.use(row.ID)
		})
	}
}

// half brings the row of a stopped plane to a status, as it is written before the work begins.
func (p *plane) half(id cay.ID, status cay.SessionStatus) {
	p.t.Helper()
	st, err := openStore(p)
	p.ok(err)
	_, err = st.MutateSession(p.t.Context(), id, func(row *cay.Session, _ []*cay.Sandbox) error {
		if status == cay.SessionArchiving {
			row.ArchiveKey = "sessions/" + string(id) + "/volume.zst"
		} else {
			row.WorkerID = p.node.Worker
		}
		return row.Transition(status, "", time.Now())
	})
	p.ok(err)
	p.ok(st.Close())
}

func TestAStopInTheMiddleLosesNothing(t *testing.T) {
	for _, call := range []string{"export", "import"} {
		t.Run(call, func(t *testing.T) {
			p := start(t, archiving())
			middle := make(chan struct{}, 100)
			var hang atomic.Bool
			hang.Store(true)
			p.node.OnVolume = func(ctx context.Context, c, _ string) error {
				if c == call && hang.Load() {
					middle <- struct{}{}
					<-ctx.Done()
					return errors.New("called off")
				}
				return nil
			}
			row := p.filled(cay.CreateSession{}, []byte(files))
			if call == "import" {
				p.becomes(row.ID, cay.SessionArchived)
				_, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID})
				p.ok(err)
			}
			<-middle
			p.down()
			hang.Store(false)
			p.up(archiving())
			if call == "export" {
				p.becomes(row.ID, cay.SessionArchived)
				p.use(row.ID)
			}
			p.eventually("its files are there", func() bool { image, _ := p.node.Image(row.Volume()); return string(image) == files })
		})
	}
}

func TestASessionCanBeDeletedInEveryState(t *testing.T) {
	for _, state := range []cay.SessionStatus{cay.SessionActive, cay.SessionArchiving, cay.SessionArchived, cay.SessionRestoring} {
		t.Run(string(state), func(t *testing.T) {
			p := start(t, archiving())
			middle := make(chan struct{}, 100)
			p.node.OnVolume = func(ctx context.Context, call, _ string) error {
				if call == "export" && state == cay.SessionArchiving || call == "import" {
					middle <- struct{}{}
					<-ctx.Done()
					return errors.New("called off")
				}
				return nil
			}
			var row *cay.Session
			if state == cay.SessionActive {
				row = p.session(cay.CreateSession{})
			} else {
				row = p.filled(cay.CreateSession{}, []byte(files))
			}
			switch state {
			case cay.SessionArchiving:
				<-middle
			case cay.SessionArchived:
				p.becomes(row.ID, cay.SessionArchived)
			case cay.SessionRestoring:
				p.becomes(row.ID, cay.SessionArchived)
				_, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID})
				p.ok(err)
				<-middle
			}
			got, err := p.Delete(t.Context(), project, row.ID, true)
			if err != nil || got.Status != cay.SessionDeleted {
				t.Fatalf("deleted: %+v, %v", got, err)
			}
			p.wantNoVolume(row)
			p.wantNoArchive(row)
		})
	}
}
