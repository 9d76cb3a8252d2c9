package lifecycle_test

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/lifecycle"
)

// mortalStore is a store as a server sees it that is killed: once dead it takes no write.
type mortalStore struct {
	lifecycle.Store
	dead atomic.Bool
}

func (m *mortalStore) TouchSandboxes(ctx context.Context, rows []*cay.Sandbox) error {
	if m.dead.Load() {
		return errors.New("the server is dead")
	}
	return m.Store.TouchSandboxes(ctx, rows)
}
