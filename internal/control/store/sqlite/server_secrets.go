package sqlite

import (
	"context"
	"fmt"

	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

// ServerSecret implements store.Access.
func (s *Store) ServerSecret(ctx context.Context, name string, fresh []byte) ([]byte, error) {
	var kept []byte
	err := s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		if err := q.OfferServerSecret(ctx, db.OfferServerSecretParams{Name: name, Value: fresh}); err != nil {
			return fmt.Errorf("make the server secret %s: %w", name, err)
		}
		var err error
		kept, err = q.ServerSecret(ctx, name)
		return found(err, "server secret", name)
	})
	return kept, err
}
