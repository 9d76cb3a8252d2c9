package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// InsertProject implements store.Access.
func (s *Store) InsertProject(ctx context.Context, p cay.Project) error {
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		err := q.InsertProject(ctx, db.InsertProjectParams{ID: string(p.ID), Name: p.Name, CreatedAt: micros(p.CreatedAt)})
		return unique(err, "project", p.Name)
	})
}

// unique turns a broken UNIQUE constraint into the domain's already exists.
func unique(err error, what, name string) error {
	var se *sqlite.Error
	if errors.As(err, &se) && (se.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || se.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY) {
		return cay.Errorf(cay.AlreadyExists, "there is a %s %s already", what, name)
	}
	if err != nil {
		return fmt.Errorf("insert %s %s: %w", what, name, err)
	}
	return nil
}

func fromProject(r db.Project) cay.Project {
	return cay.Project{ID: cay.ID(r.ID), Name: r.Name, CreatedAt: fromMicros(r.CreatedAt)}
}

// Project implements store.Access.
func (s *Store) Project(ctx context.Context, id cay.ID) (cay.Project, error) {
	r, err := s.reading.Project(ctx, string(id))
	return fromProject(r), found(err, "project", id)
}

// ProjectByName implements store.Access.
func (s *Store) ProjectByName(ctx context.Context, name string) (cay.Project, error) {
	r, err := s.reading.ProjectByName(ctx, name)
	return fromProject(r), found(err, "project", name)
}

// Projects implements store.Access.
func (s *Store) Projects(ctx context.Context) ([]cay.Project, error) {
	rows, err := s.reading.Projects(ctx)
	if err != nil {
		return nil, fmt.Errorf("list projects: %w", err)
	}
	projects := make([]cay.Project, 0, len(rows))
	for _, r := range rows {
		projects = append(projects, fromProject(r))
	}
	return projects, nil
}

// InsertKey implements store.Access.
func (s *Store) InsertKey(ctx context.Context, k cay.Key) error { return s.ReplaceKey(ctx, k) }

// ReplaceKey implements store.Access.
func (s *Store) ReplaceKey(ctx context.Context, k cay.Key, old ...cay.ID) error {
	scopes, err := encode(k.Scopes)
	if err != nil {
		return err
	}
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		for _, id := range old {
			if err := q.DeleteKey(ctx, string(id)); err != nil {
				return fmt.Errorf("delete key %s: %w", id, err)
			}
		}
		err := q.InsertKey(ctx, db.InsertKeyParams{
			ID: string(k.ID), ProjectID: string(k.ProjectID), Name: k.Name, Hash: k.Hash[:], Hint: k.Hint, Scopes: scopes,
			CreatedAt: micros(k.CreatedAt), ExpiresAt: micros(k.ExpiresAt), RevokedAt: micros(k.RevokedAt),
		})
		return unique(err, "key", string(k.ID))
	})
}

func fromKey(r db.ApiKey) (cay.Key, error) {
	k := cay.Key{
		ID: cay.ID(r.ID), ProjectID: cay.ID(r.ProjectID), Name: r.Name, Hash: [32]byte(r.Hash), Hint: r.Hint,
		CreatedAt: fromMicros(r.CreatedAt), ExpiresAt: fromMicros(r.ExpiresAt), RevokedAt: fromMicros(r.RevokedAt),
	}
	if err := json.Unmarshal([]byte(r.Scopes), &k.Scopes); err != nil {
		return cay.Key{}, fmt.Errorf("read scopes of key %s: %w", r.ID, err)
	}
	return k, nil
}

// KeyByHash implements store.Access.
func (s *Store) KeyByHash(ctx context.Context, hash [32]byte) (cay.Key, error) {
	r, err := s.reading.KeyByHash(ctx, hash[:])
	if err := found(err, "key", "with this secret"); err != nil {
		return cay.Key{}, err
	}
	return fromKey(r)
}

// Key implements store.Access.
func (s *Store) Key(ctx context.Context, id cay.ID) (cay.Key, error) {
	r, err := s.reading.Key(ctx, string(id))
	if err := found(err, "key", id); err != nil {
		return cay.Key{}, err
	}
	return fromKey(r)
}

// Keys implements store.Access.
func (s *Store) Keys(ctx context.Context, project cay.ID) ([]cay.Key, error) {
	rows, err := s.reading.Keys(ctx, string(project))
	if err != nil {
		return nil, fmt.Errorf("list keys of %s: %w", project, err)
	}
	keys := make([]cay.Key, 0, len(rows))
	for _, r := range rows {
		k, err := fromKey(r)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// RevokeKey implements store.Access.
func (s *Store) RevokeKey(ctx context.Context, project, id cay.ID, at time.Time) error {
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		r, err := q.Key(ctx, string(id))
		if err := found(err, "key", id); err != nil {
			return err
		}
		if r.ProjectID != string(project) {
			return cay.Errorf(cay.NotFound, "there is no key %s", id)
		}
		if _, err := q.RevokeKey(ctx, db.RevokeKeyParams{ID: string(id), ProjectID: string(project), RevokedAt: micros(at)}); err != nil {
			return fmt.Errorf("revoke key %s: %w", id, err)
		}
		return nil
	})
}

// InsertTicket implements store.Access.
func (s *Store) InsertTicket(ctx context.Context, t cay.Ticket) error {
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		if err := q.InsertTicket(ctx, db.InsertTicketParams{
			Hash: t.Hash[:], KeyID: string(t.KeyID), Method: t.Method, Url: t.URL, ExpiresAt: micros(t.ExpiresAt),
		}); err != nil {
			return fmt.Errorf("insert ticket: %w", err)
		}
		return nil
	})
}

// TakeTicket implements store.Access.
func (s *Store) TakeTicket(ctx context.Context, hash [32]byte) (cay.Ticket, error) {
	var t cay.Ticket
	err := s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		r, err := q.TakeTicket(ctx, hash[:])
		if err := found(err, "ticket", "of this kind"); err != nil {
			return err
		}
		t = cay.Ticket{Hash: hash, KeyID: cay.ID(r.KeyID), Method: r.Method, URL: r.Url, ExpiresAt: fromMicros(r.ExpiresAt)}
		return nil
	})
	return t, err
}
