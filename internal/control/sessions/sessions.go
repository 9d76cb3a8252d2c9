// Package sessions holds the rules of sessions, whose files outlive the sandboxes that use them. It has a session's volume made where the
// session is first used, brought to blob storage when it lies idle and back when it is used again, and removed when the session has expired
// or is deleted; and it finds or makes the sandbox in which a session's files can be reached. It never sees a file: a volume passes through
// as a compressed image, and paths are resolved inside of sandboxes. What a volume is and how it is mounted is the node's part.
package sessions

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// Store is where rows are kept; internal/control/store says what each method promises.
type Store interface {
	InsertSession(ctx context.Context, s *cay.Session, most int64) error
	Session(ctx context.Context, id cay.ID) (*cay.Session, error)
	ListSessions(ctx context.Context, project cay.ID, q cay.SessionQuery) (items []*cay.Session, next string, err error)
	MutateSession(ctx context.Context, id cay.ID, change func(s *cay.Session, users []*cay.Sandbox) error) (*cay.Session, error)
	DueSessions(ctx context.Context, now, idleBefore time.Time, limit int) ([]*cay.Session, error)
	SessionUsers(ctx context.Context, id cay.ID) ([]*cay.Sandbox, error)
}

// Sandboxes is the life of sandboxes; internal/control/lifecycle implements it.
type Sandboxes interface {
	Create(ctx context.Context, project cay.ID, req cay.CreateSandbox) (*cay.Sandbox, error)
	Get(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	Wait(ctx context.Context, project, id cay.ID, want ...cay.Status) (*cay.Sandbox, error)
	Enter(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
	Delete(ctx context.Context, project, id cay.ID) (*cay.Sandbox, error)
}

// Nodes finds the node of a worker; internal/control/nodes implements it.
type Nodes interface {
	For(ctx context.Context, worker cay.ID) (nodev1connect.NodeServiceClient, error)
	Available(worker cay.ID) bool
	Workers() []cay.Worker
}

// Blobs is where archives are kept; internal/control/blobs implements it.
type Blobs interface {
	Write(ctx context.Context, key string, r io.Reader) (int64, error)
	Read(ctx context.Context, key string) (io.ReadCloser, error)
	DeleteBelow(ctx context.Context, prefix string) error
}

// Config is bounds, defaults and clocks.
type Config struct {
	DefaultDiskGB float64
	MaxDiskGB     float64
	DefaultTTL    time.Duration
	MaxTTL        time.Duration // a longer one is capped
	MaxSessions   int64         // of a project, that have not ended; zero: no bound
	ArchiveAfter  time.Duration // without use; zero: never

	Scan       time.Duration // between looks for sessions with which something is to be done
	Orphans    time.Duration // between looks for volumes that nobody needs
	HelperIdle time.Duration // how long the sandbox for a session's files stays after its last use
	Archives   int           // at once; they are in nobody's way
	Restores   int           // at once; somebody waits for each
	Ends       int           // at once
}

// DefaultConfig is what is in force unless the operator says otherwise.
func DefaultConfig() Config {
	return Config{
		DefaultDiskGB: 1, MaxDiskGB: 16, DefaultTTL: 7 * 24 * time.Hour, MaxTTL: 90 * 24 * time.Hour, MaxSessions: 1000,
		ArchiveAfter: 24 * time.Hour,
		Scan:         time.Second, Orphans: time.Minute, HelperIdle: time.Minute, Archives: 1, Restores: 4, Ends: 8,
	}
}

const (
	minDiskGB  = 0.01
	maxSeconds = 1 << 31 // of any duration in a request

	transferTimeout = time.Hour        // of one archive or restore, whatever stands still
	placeTimeout    = 30 * time.Second // of making or removing a volume
	endTimeout      = 2 * time.Minute  // of one attempt to end a session
	helperTimeout   = transferTimeout  // the helper may have to wait for a restore
	writeTimeout    = 10 * time.Second // of a row, also while stopping

	finishPatience = time.Second // for the sandbox of a job to begin to end, which it does once the job has finished

	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute

	// quiet is how long a helper must have been silent before its session counts as idle: its node speaks once a second.
	quiet = 5 * time.Second
)

// Sessions is the life of all sessions.
type Sessions struct {
	cfg       Config
	store     Store
	sandboxes Sandboxes
	nodes     Nodes
	blobs     Blobs
	log       *slog.Logger

	volumes  *tasks // on volumes
	helpers  *tasks // that bring helpers up
	archives slots
	restores slots
	ends     slots

	mu       sync.Mutex
	failures map[cay.ID]failure // guarded by mu; of what the sweeper began
	storage  failure            // guarded by mu; of blob storage: archives wait for it
	reported map[string]bool    // guarded by mu; volumes of which the log speaks already

	stop    context.CancelFunc
	running sync.WaitGroup
}

// New makes the life of sessions. Calls work at once; what is done without being asked begins with Start.
func New(cfg Config, store Store, sandboxes Sandboxes, nodes Nodes, blobs Blobs, log *slog.Logger) *Sessions {
	return &Sessions{
		cfg: cfg, store: store, sandboxes: sandboxes, nodes: nodes, blobs: blobs, log: log,
		volumes: newTasks(), helpers: newTasks(),
		archives: make(slots, cfg.Archives), restores: make(slots, cfg.Restores), ends: make(slots, cfg.Ends),
		failures: map[cay.ID]failure{}, reported: map[string]bool{},
	}
}

// Start sets the sweeper going. What an earlier start left half done is taken up.
func (s *Sessions) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.running.Go(func() { every(ctx, s.cfg.Scan, s.sweep) })
	s.running.Go(func() { every(ctx, s.cfg.Orphans, s.sweepVolumes) })
}

// Stop calls off what is under way, which the next start takes up, and returns when nothing runs any more. It is idempotent.
func (s *Sessions) Stop() {
	if s.stop != nil {
		s.stop()
		s.running.Wait()
	}
	s.helpers.stop()
	s.volumes.stop()
}

func every(ctx context.Context, period time.Duration, do func(context.Context)) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		do(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// now is the time as the store keeps it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// errUnchanged is what a change returns when there is nothing to write.
var errUnchanged = errors.New("unchanged")

// mutate is the one way a row changes. errUnchanged from change is no error: the row comes back as it is.
func (s *Sessions) mutate(ctx context.Context, id cay.ID, change func(row *cay.Session, users []*cay.Sandbox) error) (*cay.Session, error) {
	row, err := s.store.MutateSession(ctx, id, change)
	if errors.Is(err, errUnchanged) {
		return row, nil
	}
	if err != nil {
		return nil, err
	}
	return row, nil
}

// settle is mutate for the outcome of what has been done: it is written even when the doing was called off.
func (s *Sessions) settle(ctx context.Context, id cay.ID, change func(row *cay.Session, users []*cay.Sandbox) error) (*cay.Session, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return s.mutate(ctx, id, change)
}

// used notes a use of the row.
func used(row *cay.Session, at time.Time) {
	if at.After(row.LastUsedAt) {
		row.LastUsedAt, row.ExpiresAt = at, at.Add(row.TTL)
	}
}

// serves reports whether a sandbox is the session's own helper.
func serves(sb *cay.Sandbox, session cay.ID) bool { return sb.Spec.ManagedBy == session }

// others are the users of a session but for its helpers.
func others(users []*cay.Sandbox, session cay.ID) []*cay.Sandbox {
	list := []*cay.Sandbox{}
	for _, sb := range users {
		if !serves(sb, session) {
			list = append(list, sb)
		}
	}
	return list
}
