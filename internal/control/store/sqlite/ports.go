package sqlite

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store/sqlite/db"
)

func fromPort(r db.Port) cay.Port {
	return cay.Port{
		SandboxID: cay.ID(r.SandboxID), ProjectID: cay.ID(r.ProjectID), Number: int(r.Port), Public: r.Public != 0, Nonce: r.Nonce,
		CreatedAt: fromMicros(r.CreatedAt),
	}
}

// PutPort implements store.Ports.
func (s *Store) PutPort(ctx context.Context, p cay.Port, limit int64) (kept cay.Port, created bool, err error) {
	err = s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		r, err := q.PutPort(ctx, db.PutPortParams{
			SandboxID: string(p.SandboxID), Port: int64(p.Number), ProjectID: string(p.ProjectID), Public: flag(p.Public), Nonce: p.Nonce,
			CreatedAt: micros(p.CreatedAt),
		})
		if err != nil {
			return fmt.Errorf("write port %d of %s: %w", p.Number, p.SandboxID, err)
		}
		n, err := q.CountPorts(ctx, string(p.SandboxID))
		if err != nil {
			return fmt.Errorf("count the ports of %s: %w", p.SandboxID, err)
		}
		kept, created = fromPort(r), bytes.Equal(r.Nonce, p.Nonce)
		if created && n > limit {
			return cay.Errorf(cay.Conflict, "the sandbox has %d exposed ports, which is the most; remove one first", limit)
		}
		return nil
	})
	return kept, created, err
}

// Port implements store.Ports.
func (s *Store) Port(ctx context.Context, sandbox cay.ID, number int) (cay.Port, error) {
	r, err := s.reading.Port(ctx, db.PortParams{SandboxID: string(sandbox), Port: int64(number)})
	return fromPort(r), found(err, "exposed port", number)
}

// Ports implements store.Ports.
func (s *Store) Ports(ctx context.Context, sandbox cay.ID) ([]cay.Port, error) {
	rows, err := s.reading.Ports(ctx, string(sandbox))
	if err != nil {
		return nil, fmt.Errorf("list the ports of %s: %w", sandbox, err)
	}
	ports := make([]cay.Port, 0, len(rows))
	for _, r := range rows {
		ports = append(ports, fromPort(r))
	}
	return ports, nil
}

// DeletePort implements store.Ports.
func (s *Store) DeletePort(ctx context.Context, sandbox cay.ID, number int) error {
	return s.transact(ctx, func(ctx context.Context, q *db.Queries) error {
		n, err := q.DeletePort(ctx, db.DeletePortParams{SandboxID: string(sandbox), Port: int64(number)})
		if err != nil {
			return fmt.Errorf("delete port %d of %s: %w", number, sandbox, err)
		}
		if n == 0 {
			return cay.Errorf(cay.NotFound, "there is no exposed port %d", number)
		}
		return nil
	})
}
