package sessions_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

func ptr[T any](v T) *T { return &v }

func TestASessionGetsDefaultsAndItsBoundsAreKept(t *testing.T) {
	cfg := config()
	cfg.MaxSessions = 3
	p := start(t, cfg)
	row := p.session(cay.CreateSession{Name: "a.b_c-1"})
	if row.DiskGB != 1 || row.TTL != 7*24*time.Hour || row.Status != cay.SessionActive || !row.ExpiresAt.Equal(row.LastUsedAt.Add(row.TTL)) {
		t.Errorf("by default: %+v", row)
	}
	if row := p.session(cay.CreateSession{TTL: ptr(1000 * 24 * time.Hour), DiskGB: ptr(16.0)}); row.TTL != cfg.MaxTTL || row.DiskGB != 16 {
		t.Errorf("a TTL above the maximum is %s, want %s", row.TTL, cfg.MaxTTL)
	}
	for name, c := range map[string]struct {
		req    cay.CreateSession
		reason cay.ErrorReason
		field  string
	}{
		"a name with a slash": {cay.CreateSession{Name: "a/b"}, cay.InvalidRequest, "name"},
		"too long a name":     {cay.CreateSession{Name: strings.Repeat("n", 65)}, cay.InvalidRequest, "name"},
		"no time to live":     {cay.CreateSession{TTL: ptr(time.Duration(0))}, cay.InvalidRequest, "ttl_seconds"},
		"no disk":             {cay.CreateSession{DiskGB: ptr(0.0)}, cay.InvalidRequest, "disk_gb"},
		"too large a disk":    {cay.CreateSession{DiskGB: ptr(17.0)}, cay.Unprocessable, "disk_gb"},
		"empty metadata key":  {cay.CreateSession{Metadata: map[string]string{"": "x"}}, cay.InvalidRequest, "metadata"},
	} {
		_, err := p.Create(t.Context(), project, c.req)
		if e := reason(t, err, c.reason); e.Field != c.field {
			t.Errorf("%s: on %q, want on %q", name, e.Field, c.field)
		}
	}
	_, err := p.Create(t.Context(), project, cay.CreateSession{Name: "a.b_c-1"})
	if e := reason(t, err, cay.AlreadyExists); e.Extra["session_id"] != string(row.ID) {
		t.Errorf("a taken name: %v, want it to name %s", e.Extra, row.ID)
	}
	p.session(cay.CreateSession{})
	_, err = p.Create(t.Context(), project, cay.CreateSession{})
	reason(t, err, cay.QuotaExceeded)
	if _, err := p.Get(t.Context(), cay.NewID(cay.PrefixProject), row.ID); cay.ReasonOf(err) != cay.NotFound {
		t.Errorf("for another project: %v, want not_found", err)
	}
}

func TestWithoutAWorkerThatCanMountThereAreNoSessions(t *testing.T) {
	p := start(t, config())
	p.node.Kill()
	p.node.CanMount = false
	p.node.Start(t)
	p.eventually("the worker says that it cannot mount", func() bool { return !p.Available() })
	_, err := p.Create(t.Context(), project, cay.CreateSession{})
	reason(t, err, cay.NotImplemented)
}

func TestTheFilesOfASessionAreThereForTheNextSandbox(t *testing.T) {
	p := start(t, config())
	row := p.session(cay.CreateSession{})
	if _, there := p.node.Image(row.Volume()); there {
		t.Error("a volume is there before anybody has used the session")
	}
	first := p.use(row.ID)
	if got := p.get(row.ID); got.WorkerID != p.node.Worker || got.LastUsedAt.Before(first.CreatedAt) {
		t.Errorf("in use: %+v", got)
	}
	p.node.PutVolume(row.Volume(), []byte("files"))
	_, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID})
	if e := reason(t, err, cay.Conflict); e.Extra["sandbox_id"] != string(first.ID) {
		t.Errorf("an exclusive session in use: %v, want it to name %s", e.Extra, first.ID)
	}
	p.remove(first.ID)
	p.use(row.ID)
	p.wantImage(row, "files")
}

func TestASharedSessionHasSeveralUsersAtOnce(t *testing.T) {
	p := start(t, config())
	row := p.session(cay.CreateSession{})
	var ids []cay.ID
	for range 4 {
		sb, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID, SessionShared: true})
		p.ok(err)
		ids = append(ids, sb.ID)
	}
	for _, id := range ids {
		p.wait(id, cay.Ready)
	}
	if users, err := p.Users(t.Context(), project, row.ID); err != nil || len(users) != 4 {
		t.Errorf("users: %d, %v, want 4", len(users), err)
	}
	_, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID})
	reason(t, err, cay.Conflict)
}

func TestAVolumeThatItsWorkerLostIsNeverMadeAnew(t *testing.T) {
	p := start(t, config())
	row := p.filled(cay.CreateSession{}, []byte("files"))
	p.node.LoseVolume(row.Volume())
	sb, err := p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID})
	p.ok(err)
	if sb := p.wait(sb.ID, cay.Failed); sb.StatusReason != cay.ReasonUnprocessable || sb.Detail == "" {
		t.Errorf("failed with %s (%q), want unprocessable and why", sb.StatusReason, sb.Detail)
	}
	if _, there := p.node.Image(row.Volume()); there {
		t.Error("a fresh volume has taken the place of the lost one")
	}
	_, err = p.Enter(t.Context(), project, row.ID)
	reason(t, err, cay.Unprocessable)
}

func TestADeletedSessionLeavesNothing(t *testing.T) {
	p := start(t, config())
	row := p.filled(cay.CreateSession{Name: "n"}, []byte("files"))
	got, err := p.Delete(t.Context(), project, row.ID, false)
	p.ok(err)
	if got.Status != cay.SessionDeleted || got.StatusReason != cay.ReasonDeleted || got.EndedAt.IsZero() || got.WorkerID != "" {
		t.Errorf("deleted: %+v", got)
	}
	p.wantNoVolume(row)
	again, err := p.Delete(t.Context(), project, row.ID, false)
	if err != nil || !again.EndedAt.Equal(got.EndedAt) {
		t.Errorf("again: %+v, %v", again, err)
	}
	_, err = p.life.Create(t.Context(), project, cay.CreateSandbox{SessionID: row.ID})
	reason(t, err, cay.Gone)
	_, err = p.Enter(t.Context(), project, row.ID)
	reason(t, err, cay.Gone)
	p.session(cay.CreateSession{Name: "n"}) // the name is free again
	if _, err := p.Delete(t.Context(), cay.NewID(cay.PrefixProject), row.ID, true); cay.ReasonOf(err) != cay.NotFound {
		t.Errorf("of another project: %v, want not_found", err)
	}
}

func TestARepeatedCreateOfAChosenIDFindsTheFirst(t *testing.T) {
	p := start(t, config())
	req := cay.CreateSession{ID: cay.NewID(cay.PrefixSession), Name: "n"}
	first, again := p.session(req), p.session(req)
	if first.ID != req.ID || again.ID != req.ID {
		t.Errorf("first %s, again %s, want %s", first.ID, again.ID, req.ID)
	}
	req.ID = cay.NewID(cay.PrefixSession)
	_, err := p.Create(t.Context(), project, req)
	reason(t, err, cay.AlreadyExists)
}

func TestASessionInUseIsDeletedByForceAlone(t *testing.T) {
	p := start(t, config())
	row := p.session(cay.CreateSession{})
	sb := p.use(row.ID)
	_, err := p.Delete(t.Context(), project, row.ID, false)
	if e := reason(t, err, cay.Conflict); e.Extra["sandbox_id"] != string(sb.ID) {
		t.Errorf("in use: %v, want it to name %s", e.Extra, sb.ID)
	}
	got, err := p.Delete(t.Context(), project, row.ID, true)
	p.ok(err)
	if ended := p.wait(sb.ID, cay.Terminated); got.Status != cay.SessionDeleted || ended.StatusReason != cay.ReasonDeleted {
		t.Errorf("session %s, its user %s (%s)", got.Status, ended.Status, ended.StatusReason)
	}
	p.wantNoVolume(row)
}

func TestASandboxThatIsEndingHoldsNoSessionBack(t *testing.T) {
	for name, req := range map[string]cay.CreateSandbox{
		"a client's own":            {},
		"of a job that is finished": {ID: cay.NewID(cay.PrefixSandbox), ManagedBy: cay.NewID(cay.PrefixJob)},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, config())
			release, begun := make(chan struct{}), make(chan struct{}, 10)
			p.node.OnDestroy = func(context.Context, *nodev1.DestroyRequest) error {
				begun <- struct{}{}
				<-release
				return nil
			}
			row := p.session(cay.CreateSession{})
			req.SessionID = row.ID
			sb, err := p.life.Create(t.Context(), project, req)
			p.ok(err)
			p.wait(sb.ID, cay.Ready)
			_, err = p.life.Delete(t.Context(), project, sb.ID)
			p.ok(err)
			<-begun
			deleted := make(chan error, 1)
			go func() {
				got, err := p.Delete(t.Context(), project, row.ID, false)
				if err == nil && got.Status != cay.SessionDeleted {
					err = fmt.Errorf("it is %s", got.Status)
				}
				deleted <- err
			}()
			p.becomes(row.ID, cay.SessionDeleting)
			close(release)
			p.ok(<-deleted)
		})
	}
}

func TestADeleteGoesOnAfterItsCallerAndAfterARestart(t *testing.T) {
	p := start(t, config())
	row := p.filled(cay.CreateSession{}, []byte("files"))
	var stuck atomic.Bool
	stuck.Store(true)
	asked := make(chan struct{}, 100)
	p.node.OnVolume = func(_ context.Context, call, _ string) error {
		if call == "delete" && stuck.Load() {
			asked <- struct{}{}
			return cay.Errorf(cay.Conflict, "it is mounted")
		}
		return nil
	}
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-asked; leave() }()
	got, err := p.Delete(ctx, project, row.ID, false)
	if err != nil || got.Status != cay.SessionDeleting {
		t.Fatalf("while the node refuses: %+v, %v, want deleting", got, err)
	}
	p.down()
	stuck.Store(false)
	p.up(config())
	p.becomes(row.ID, cay.SessionDeleted)
	p.wantNoVolume(row)
}

func TestTheFilesCanBeReachedThroughAUserOrAHelper(t *testing.T) {
	p := start(t, config())
	row := p.session(cay.CreateSession{})
	helper, err := p.Enter(t.Context(), project, row.ID)
	p.ok(err)
	if helper.Status != cay.Ready || helper.Spec.ManagedBy != row.ID || helper.Spec.SessionID != row.ID || helper.Spec.IdleTimeout != time.Minute {
		t.Errorf("with no user: %+v", helper)
	}
	if users, err := p.Users(t.Context(), project, row.ID); err != nil || len(users) != 0 {
		t.Errorf("a helper counts as a user: %v, %v", users, err)
	}
	again, err := p.Enter(t.Context(), project, row.ID)
	if err != nil || again.ID != helper.ID {
		t.Errorf("again: %v, %v, want %s", again, err, helper.ID)
	}
	user := p.use(row.ID) // the helper is in nobody's way
	p.remove(helper.ID)
	if sb, err := p.Enter(t.Context(), project, row.ID); err != nil || sb.ID != user.ID {
		t.Errorf("with a user: %v, %v, want %s", sb, err, user.ID)
	}
	if _, err := p.life.Pause(t.Context(), project, user.ID); err != nil {
		t.Fatal(err)
	}
	beside, err := p.Enter(t.Context(), project, row.ID)
	p.ok(err)
	if paused := p.wait(user.ID, cay.Paused); beside.Spec.ManagedBy != row.ID || paused.Status != cay.Paused {
		t.Errorf("with a paused user: entered %s, which serves %q", beside.ID, beside.Spec.ManagedBy)
	}
}

func TestManyWhoEnterAtOnceShareOneHelperAndOneThatDiesIsReplaced(t *testing.T) {
	p := start(t, config())
	row := p.session(cay.CreateSession{})
	var creates atomic.Int64
	p.node.OnCreate = func(context.Context, *nodev1.CreateRequest) error { creates.Add(1); return nil }
	enter := func() cay.ID {
		var once sync.Once
		var first cay.ID
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				sb, err := p.Enter(t.Context(), project, row.ID)
				if err != nil {
					t.Error(err)
					return
				}
				once.Do(func() { first = sb.ID })
			})
		}
		all.Wait()
		return first
	}
	first := enter()
	if n := creates.Load(); n != 1 {
		t.Errorf("%d helpers were made, want one", n)
	}
	p.node.Lose(first)
	p.eventually("the loss is noticed", func() bool {
		sb, err := p.life.Get(t.Context(), project, first)
		return err == nil && !sb.Status.Active()
	})
	if second := enter(); second == first || creates.Load() != 2 {
		t.Errorf("after its death: helper %s, %d made in all, want another one", second, creates.Load())
	}
}

func TestAHelperThatCannotBootSaysWhy(t *testing.T) {
	p := start(t, config())
	row := p.session(cay.CreateSession{})
	p.node.OnCreate = func(context.Context, *nodev1.CreateRequest) error {
		return cay.Errorf(cay.NotImplemented, "no such thing here")
	}
	_, err := p.Enter(t.Context(), project, row.ID)
	if e := reason(t, err, cay.BootFailed); !strings.Contains(e.Detail, "no such thing here") {
		t.Errorf("detail %q, want the node's reason", e.Detail)
	}
}

func TestWhoeverEntersCanLeaveBeforeTheHelperIsUp(t *testing.T) {
	p := start(t, config())
	row := p.session(cay.CreateSession{})
	booting := make(chan struct{})
	p.node.OnCreate = func(ctx context.Context, _ *nodev1.CreateRequest) error {
		close(booting)
		<-ctx.Done()
		return errors.New("called off")
	}
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-booting; leave() }()
	_, err := p.Enter(ctx, project, row.ID)
	reason(t, err, cay.Timeout)
}
