package sessions_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite"
)

func openStore(p *plane) (*sqlite.Store, error) {
	return sqlite.Open(p.t.Context(), filepath.Join(p.dir, "cay.db"))
}

func TestASessionExpiresAfterItsLastUseAndNeverInUse(t *testing.T) {
	p := start(t, config())
	row := p.session(cay.CreateSession{TTL: ptr(200 * time.Millisecond)})
	sb := p.use(row.ID)
	over := time.Now().Add(400 * time.Millisecond)
	p.eventually("its time is up", func() bool { return time.Now().After(over) })
	if got := p.get(row.ID); got.Status != cay.SessionActive {
		t.Fatalf("a session in use is %s", got.Status)
	}
	p.remove(sb.ID)
	got := p.becomes(row.ID, cay.SessionDeleted)
	if got.StatusReason != cay.ReasonTTLExpired || got.EndedAt.Before(got.LastUsedAt.Add(row.TTL)) {
		t.Errorf("expired: %+v", got)
	}
	p.wantNoVolume(row)
}

func TestAnArchivedSessionExpiresWithItsArchive(t *testing.T) {
	p := start(t, archiving())
	row := p.filled(cay.CreateSession{TTL: ptr(time.Second)}, []byte(files))
	p.becomes(row.ID, cay.SessionArchived)
	p.becomes(row.ID, cay.SessionDeleted)
	p.wantNoArchive(row)
	p.wantNoVolume(row)
}

// Whichever comes first, the other one sees it: a session that a sandbox got is there until the sandbox has ended.
func TestExpiryAndUseAtTheSameMoment(t *testing.T) {
	p := start(t, config())
	for range 20 {
		row := p.session(cay.CreateSession{TTL: ptr(20 * time.Millisecond)})
		p.eventually("its time is up", func() bool { return !time.Now().Before(row.ExpiresAt) })
		sb, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID})
		if err != nil {
			reason(t, err, cay.Gone)
			continue
		}
		p.wait(sb.ID, cay.Ready)
		if got := p.get(row.ID); got.Status != cay.SessionActive {
			t.Fatalf("a session in use is %s", got.Status)
		}
		p.wantImage(row, "")
		p.remove(sb.ID)
	}
}

func TestVolumesThatNobodyNeedsAreRemovedAndNoOthers(t *testing.T) {
	p := start(t, config())
	deleted := p.filled(cay.CreateSession{}, []byte(files))
	_, err := p.Delete(t.Context(), project, deleted.ID, false)
	p.ok(err)
	active := p.filled(cay.CreateSession{}, []byte(files))
	unused := p.session(cay.CreateSession{})
	unknown := &cay.Session{ID: cay.NewID(cay.PrefixSession)}
	for _, row := range []*cay.Session{unused, unknown} {
		p.node.PutVolume(row.Volume(), []byte(files))
	}
	p.node.PutVolume("cache-of-somebody", nil)
	var sweeps atomic.Int64
	p.node.OnVolume = func(_ context.Context, call, name string) error {
		if call == "delete" && name == deleted.Volume() {
			sweeps.Add(1)
		}
		return nil
	}
	for range 2 { // what comes again goes again: the others have been looked at in between
		p.node.PutVolume(deleted.Volume(), []byte(files))
		p.wantNoVolume(deleted)
	}
	for _, row := range []*cay.Session{active, unused, unknown} {
		p.wantImage(row, files)
	}
	if _, there := p.node.Image("cache-of-somebody"); !there || sweeps.Load() < 2 {
		t.Errorf("a volume that belongs to no session is there: %v, after %d sweeps", there, sweeps.Load())
	}
}

func TestTheVolumeOfAnArchivedSessionThatStayedBehindIsRemoved(t *testing.T) {
	p := start(t, archiving())
	var refused atomic.Bool
	p.node.OnVolume = func(_ context.Context, call, _ string) error {
		if call == "delete" && !refused.Swap(true) {
			return cay.Errorf(cay.Unavailable, "not now")
		}
		return nil
	}
	row := p.filled(cay.CreateSession{}, []byte(files))
	p.becomes(row.ID, cay.SessionArchived)
	p.wantNoVolume(row)
	if !refused.Load() {
		t.Error("nothing was refused")
	}
	p.use(row.ID)
	p.wantImage(row, files)
}
