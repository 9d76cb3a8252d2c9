package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cayhq/cay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	adminKey = "cay_admin"
	readKey  = "cay_read"
	otherKey = "cay_other"
)

var (
	projectA = cay.ID("prj_" + strings.Repeat("a", 26))
	projectB = cay.ID("prj_" + strings.Repeat("b", 26))
)

// fakeSandboxes keeps sandboxes in memory. A change of a row wakes who waits.
type fakeSandboxes struct {
	mu      sync.Mutex
	rows    map[cay.ID]*cay.Sandbox
	changed chan struct{}
	status  cay.Status // of what is created
	reason  cay.StatusReason
	created int
	query   cay.SandboxQuery // of the last List
	events  []cay.Event
	oldest  int64 // event that is kept
	panics  bool
}

func newFakeSandboxes() *fakeSandboxes {
	return &fakeSandboxes{rows: map[cay.ID]*cay.Sandbox{}, changed: make(chan struct{}), status: cay.Ready}
}

func (f *fakeSandboxes) change(id cay.ID, do func(*cay.Sandbox)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(f.rows[id])
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeSandboxes) add(project cay.ID, status cay.Status) cay.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addLocked(project, status, cay.CreateSandbox{}).ID
}

func (f *fakeSandboxes) addLocked(project cay.ID, status cay.Status, req cay.CreateSandbox) *cay.Sandbox {
	now := time.Now()
	sb := &cay.Sandbox{ID: cay.NewID(cay.PrefixSandbox), ProjectID: project, Status: status, WorkerID: "wrk_1", CreatedAt: now,
		Spec: cay.SandboxSpec{Image: "host", CPU: 1, MemoryMB: 512, DiskGB: 1, Pids: 100, TTL: time.Hour, Network: []string{}, Env: req.Env, Metadata: req.Metadata, SessionID: req.SessionID, SessionShared: req.SessionShared, User: "sandbox", Workdir: "/workspace", OnTimeout: cay.OnTimeoutTerminate}}
	if req.TTL != nil {
		sb.Spec.TTL = *req.TTL
	}
	if status == cay.Ready {
		sb.ReadyAt, sb.ExpiresAt = now, now.Add(sb.Spec.TTL)
	}
	f.rows[sb.ID] = sb
	return sb
}

func (f *fakeSandboxes) Create(_ context.Context, project cay.ID, req cay.CreateSandbox) (*cay.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.panics {
		panic("the secret inside")
	}
	if req.CPU != nil && *req.CPU > 1000 {
		return nil, cay.Errorf(cay.Unprocessable, "no worker has %v cores", *req.CPU).On("cpu")
	}
	f.created++
	sb := f.addLocked(project, f.status, req)
	sb.StatusReason = f.reason
	c := *sb
	return &c, nil
}

func (f *fakeSandboxes) Get(_ context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sb, ok := f.rows[id]
	if !ok || sb.ProjectID != project {
		return nil, cay.Errorf(cay.NotFound, "there is no sandbox %s", id)
	}
	c := *sb
	return &c, nil
}

func (f *fakeSandboxes) Wait(ctx context.Context, project, id cay.ID, want ...cay.Status) (*cay.Sandbox, error) {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()
		sb, err := f.Get(ctx, project, id)
		if err != nil || sb.Status.Ended() || slices.Contains(want, sb.Status) || ctx.Err() != nil {
			return sb, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (f *fakeSandboxes) List(_ context.Context, project cay.ID, q cay.SandboxQuery) ([]*cay.Sandbox, string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.query = q
	var all []*cay.Sandbox
	for _, sb := range f.rows {
		if sb.ProjectID == project {
			all = append(all, sb)
		}
	}
	return all[:min(len(all), q.Limit)], map[bool]string{true: "next"}[len(all) > q.Limit], nil
}

func (f *fakeSandboxes) end(ctx context.Context, project, id cay.ID, to cay.Status) (*cay.Sandbox, error) {
	sb, err := f.Get(ctx, project, id)
	if err != nil || sb.Status.Ended() {
		return sb, err
	}
	f.change(id, func(sb *cay.Sandbox) { sb.Status, sb.StatusReason, sb.EndedAt = to, cay.ReasonDeleted, time.Now() })
	return f.Get(ctx, project, id)
}

func (f *fakeSandboxes) Delete(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	return f.end(ctx, project, id, cay.Terminated)
}

func (f *fakeSandboxes) usable(ctx context.Context, project, id cay.ID, do func(*cay.Sandbox)) (*cay.Sandbox, error) {
	sb, err := f.Get(ctx, project, id)
	if err != nil {
		return nil, err
	}
	if !sb.Status.Active() {
		return nil, sb.Usable()
	}
	f.change(id, do)
	return f.Get(ctx, project, id)
}

func (f *fakeSandboxes) Pause(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	return f.usable(ctx, project, id, func(sb *cay.Sandbox) { sb.Status = cay.Paused })
}

func (f *fakeSandboxes) Resume(ctx context.Context, project, id cay.ID, _ *time.Duration) (*cay.Sandbox, error) {
	return f.usable(ctx, project, id, func(sb *cay.Sandbox) { sb.Status = cay.Ready })
}

func (f *fakeSandboxes) SetTimeout(ctx context.Context, project, id cay.ID, ttl time.Duration, _ bool) (*cay.Sandbox, error) {
	return f.usable(ctx, project, id, func(sb *cay.Sandbox) { sb.ExpiresAt = time.Now().Add(min(ttl, 24*time.Hour)) })
}

func (f *fakeSandboxes) Update(ctx context.Context, project, id cay.ID, u cay.UpdateSandbox) (*cay.Sandbox, error) {
	return f.usable(ctx, project, id, func(sb *cay.Sandbox) {
		if u.Metadata != nil {
			sb.Spec.Metadata = u.Metadata
		}
		if u.IdleTimeout != nil {
			sb.Spec.IdleTimeout = *u.IdleTimeout
		}
	})
}

func (f *fakeSandboxes) Enter(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error) {
	sb, err := f.Get(ctx, project, id)
	if err != nil {
		return nil, err
	}
	return sb, sb.Usable()
}

func (f *fakeSandboxes) Enforced() []string { return []string{"cpu", "pids"} }

func (f *fakeSandboxes) Limits() cay.Limits { return cay.Limits{MaxCPU: 8} }

func (f *fakeSandboxes) Runtimes(context.Context) ([]cay.Runtime, error) {
	return []cay.Runtime{{Name: "python", Version: "3.12", Image: "host", Exec: []string{"python3"}}}, nil
}

// fakeAuth knows three keys, and tickets.
type fakeAuth struct {
	mu      sync.Mutex
	tickets map[string]string // ticket to URL
}

func (f *fakeAuth) Key(_ context.Context, secret string) (cay.Identity, error) {
	switch secret {
	case adminKey:
		return cay.Identity{ProjectID: projectA, KeyID: "key_" + cay.ID(strings.Repeat("a", 26)), Scopes: []cay.Scope{cay.ScopeAdmin}}, nil
	case readKey:
		return cay.Identity{ProjectID: projectA, KeyID: "key_r", Scopes: []cay.Scope{cay.ScopeSandboxesRead}}, nil
	case otherKey:
		return cay.Identity{ProjectID: projectB, KeyID: "key_b", Scopes: []cay.Scope{cay.ScopeAdmin}}, nil
	}
	return cay.Identity{}, cay.Errorf(cay.Unauthorized, "this key is not valid")
}

func (f *fakeAuth) MintTicket(_ context.Context, _ cay.Identity, method, url string) (string, time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := fmt.Sprintf("tkt_%d", len(f.tickets))
	f.tickets[t] = method + " " + url
	return t, time.Now().Add(time.Minute), nil
}

func (f *fakeAuth) RedeemTicket(ctx context.Context, ticket, method, url string) (cay.Identity, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tickets[ticket] != method+" "+url {
		return cay.Identity{}, cay.Errorf(cay.Unauthorized, "this ticket is not valid")
	}
	delete(f.tickets, ticket)
	return f.Key(ctx, adminKey)
}

// SignURL binds a signature to every field, as the real one does.
func (f *fakeAuth) SignURL(_ context.Context, u cay.SignedURL) (string, error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []any{u.Method, u.Of, u.Path, u.User, fmt.Sprint(u.MaxBytes), u.KeyID, u.ExpiresAt.UTC().String()}))
	return fmt.Sprintf("%x", sum), nil
}

func (f *fakeAuth) VerifyURL(ctx context.Context, u cay.SignedURL, signature string) (cay.Identity, error) {
	if u.Method == http.MethodHead {
		u.Method = http.MethodGet
	}
	if want, _ := f.SignURL(ctx, u); signature != want || u.ExpiresAt.Before(time.Now()) {
		return cay.Identity{}, cay.Errorf(cay.Unauthorized, "this URL is not valid")
	}
	return cay.Identity{ProjectID: projectA, KeyID: u.KeyID, Scopes: []cay.Scope{u.Scope()}}, nil
}

// fakePorts keeps ports in memory and answers requests to them with what it was asked.
type fakePorts struct {
	mu      sync.Mutex
	exposed map[int]cay.ExposedPort
}

func (f *fakePorts) Expose(_ context.Context, _, sandbox cay.ID, number int, public bool) (cay.ExposedPort, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, there := f.exposed[number]
	p.Port = cay.Port{SandboxID: sandbox, Number: number, Public: public, CreatedAt: time.Now()}
	p.URL, p.Token = "http://port.localhost/", "token"
	if public {
		p.Token = ""
	}
	f.exposed[number] = p
	return p, !there, nil
}

func (f *fakePorts) List(context.Context, cay.ID, cay.ID) ([]cay.ExposedPort, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.exposed)), nil
}

func (f *fakePorts) Remove(_ context.Context, _, _ cay.ID, number int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, there := f.exposed[number]; !there {
		return cay.Errorf(cay.NotFound, "there is no exposed port %d", number)
	}
	delete(f.exposed, number)
	return nil
}

func (f *fakePorts) Owns(host string) bool { return strings.HasPrefix(host, "port.localhost") }

func (f *fakePorts) ServeHost(w http.ResponseWriter, r *http.Request) error {
	if r.URL.Path == "/refused" {
		return cay.Errorf(cay.Unauthorized, "a token is needed")
	}
	_, err := fmt.Fprintf(w, "host %s %s", r.Method, r.URL)
	return err
}

func (f *fakePorts) ServePath(w http.ResponseWriter, r *http.Request, project, sandbox cay.ID, number int, rest string) error {
	_, err := fmt.Fprintf(w, "path %s %s %d %s %s", r.Method, project, number, rest, r.URL.RawQuery)
	return err
}

// fakeIdempotency keeps answers in memory.
type fakeIdempotency struct {
	mu   sync.Mutex
	recs map[string]fakeRecord
}

type fakeRecord struct {
	cay.IdempotencyRecord
	sum [32]byte
}

func (f *fakeIdempotency) Begin(_ context.Context, project cay.ID, route, key string, sum [32]byte, object string) (cay.IdempotencyRecord, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := string(project) + route + key
	rec, ok := f.recs[k]
	if !ok {
		f.recs[k] = fakeRecord{sum: sum}
		return cay.IdempotencyRecord{ObjectID: object}, true, nil
	}
	if rec.sum != sum {
		return cay.IdempotencyRecord{}, false, cay.Errorf(cay.IdempotencyMismatch, "this key was used with another body")
	}
	return rec.IdempotencyRecord, false, nil
}

func (f *fakeIdempotency) Finish(_ context.Context, project cay.ID, route, key string, status int, object string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := string(project) + route + key
	f.recs[k] = fakeRecord{cay.IdempotencyRecord{Done: true, Status: status, ObjectID: object}, f.recs[k].sum}
	return nil
}

func (f *fakeIdempotency) Abandon(_ context.Context, project cay.ID, route, key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.recs, string(project)+route+key)
	return nil
}
