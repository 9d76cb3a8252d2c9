// Package sqlite keeps the control plane's truth in one SQLite file. It is for one server at a time: whoever opens it holds the lock
// on the data directory. One goroutine writes, in groups that share a commit; readers have connections of their own.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite" // also the driver of that name
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	readers  = 4
	maxGroup = 128 // writes that share one commit
)

// Store is a store.Store in a file.
type Store struct {
	write *sql.DB // one connection, used by the writer goroutine alone
	// unsynced says that commits do not wait for the disk now. For the writer alone.
	unsynced bool
	read     *sql.DB
	reading  *db.Queries

	writes    chan write
	closing   chan struct{}
	closeOnce sync.Once
	writer    sync.WaitGroup
	closeErr  error
}

var _ store.Store = (*Store)(nil)

// write is one change and where its outcome goes.
type write struct {
	do     func(ctx context.Context, q *db.Queries) error
	unsync bool       // it need not survive the machine, and waits for no disk
	done   chan error // capacity 1
}

var errClosed = errors.New("the store is closed")

// Open opens or makes the file and brings its schema up to date. Idempotency keys of requests that an earlier process did not finish
// are forgotten, since nobody works on them any more.
func Open(ctx context.Context, path string) (*Store, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) // SQLite gives its side files the same mode
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{writes: make(chan write), closing: make(chan struct{})}
	if s.write, err = open(path, 1, "synchronous(FULL)", "foreign_keys(1)", "journal_size_limit(67108864)"); err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", path, err), s.write.Close())
	}
	if s.read, err = open(path, readers, "query_only(1)"); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", path, err), s.write.Close())
	}
	s.reading = db.New(s.read)
	s.writer.Go(s.writeLoop)
	return s, nil
}

func open(path string, conns int, pragmas ...string) (*sql.DB, error) {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": append([]string{"busy_timeout(10000)", "journal_mode(WAL)"}, pragmas...)}
	dsn := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}
	d, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, err
	}
	d.SetMaxOpenConns(conns)
	d.SetMaxIdleConns(conns)
	return d, nil
}

func (s *Store) prepare(ctx context.Context) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, s.write, files)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return db.New(s.write).OrphanIdempotencyKeys(ctx)
}

// Close waits for the writes under way. It is idempotent; what is asked afterwards fails.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closing)
		s.writer.Wait()
		s.closeErr = errors.Join(s.read.Close(), s.write.Close())
	})
	return s.closeErr
}

// transact runs do within a write transaction and returns once it is committed. Until the writer has taken it up it can be called
// off by ctx; from then on the caller gets the true outcome.
func (s *Store) transact(ctx context.Context, do func(ctx context.Context, q *db.Queries) error) error {
	return s.hand(ctx, write{do: do, done: make(chan error, 1)})
}

// transactUnsynced is transact for what need not survive the machine: it does not wait for the disk. A later transact makes it as
// durable as itself, and what is lost is lost from the end, so that the file is always as it once was.
func (s *Store) transactUnsynced(ctx context.Context, do func(ctx context.Context, q *db.Queries) error) error {
	return s.hand(ctx, write{do: do, unsync: true, done: make(chan error, 1)})
}

func (s *Store) hand(ctx context.Context, w write) error {
	select {
	case s.writes <- w:
		return <-w.done
	case <-s.closing:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) writeLoop() {
	for {
		select {
		case <-s.closing:
			return
		case first := <-s.writes:
			s.commit(s.gather(first))
		}
	}
}

// gather adds the writes that wait already: they came in while the last commit was on its way to the disk.
func (s *Store) gather(first write) []write {
	group := []write{first}
	for len(group) < maxGroup {
		select {
		case w := <-s.writes:
			group = append(group, w)
		default:
			return group
		}
	}
	return group
}

// commit runs a group in one transaction, each write within a savepoint so that its failure is its own.
func (s *Store) commit(group []write) {
	ctx := context.Background() // a write that was taken up is finished
	outcomes := make([]error, len(group))
	err := func() error {
		if err := s.setSync(ctx, slices.ContainsFunc(group, func(w write) bool { return !w.unsync })); err != nil {
			return err
		}
		tx, err := s.write.BeginTx(ctx, nil)
		if err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		defer tx.Rollback() // nothing after a commit
		q := db.New(tx)
		for i, w := range group {
			if _, err := tx.ExecContext(ctx, "SAVEPOINT one"); err != nil {
				return fmt.Errorf("savepoint: %w", err)
			}
			if outcomes[i] = w.do(ctx, q); outcomes[i] != nil {
				if _, err := tx.ExecContext(ctx, "ROLLBACK TO one"); err != nil {
					return fmt.Errorf("roll back to savepoint: %w", err)
				}
			}
			if _, err := tx.ExecContext(ctx, "RELEASE one"); err != nil {
				return fmt.Errorf("release savepoint: %w", err)
			}
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		return nil
	}()
	for i, w := range group {
		if outcomes[i] == nil && err != nil {
			outcomes[i] = fmt.Errorf("write to the store: %w", err)
		}
		w.done <- full(outcomes[i])
	}
}

// setSync says whether the next commit waits until it is on the disk. Only for the writer.
func (s *Store) setSync(ctx context.Context, sync bool) error {
	if s.unsynced == !sync {
		return nil
	}
	mode := "FULL"
	if !sync {
		mode = "NORMAL"
	}
	if _, err := s.write.ExecContext(ctx, "PRAGMA synchronous="+mode); err != nil {
		return fmt.Errorf("set synchronous to %s: %w", mode, err)
	}
	s.unsynced = !sync
	return nil
}

// full tells a disk that is full from other failures: it is the one that an operator can mend.
func full(err error) error {
	var failure *sqlite.Error
	if errors.As(err, &failure) && failure.Code()&0xff == sqlite3.SQLITE_FULL {
		return cay.Errorf(cay.DiskFull, "the server's own disk is full; nothing was changed: free some space in its data directory and try again").Because(err)
	}
	return err
}

// found turns SQL's "no rows" into the domain's not found.
func found(err error, what string, id any) error {
	if errors.Is(err, sql.ErrNoRows) {
		return cay.Errorf(cay.NotFound, "there is no %s %v", what, id)
	}
	if err != nil {
		return fmt.Errorf("read %s %v: %w", what, id, err)
	}
	return nil
}

func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

func fromMicros(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}
