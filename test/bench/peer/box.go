package peer

import (
	"context"
	"errors"
	"io"
)

// Box is a runtime that also keeps one sandbox up, for Exec.
type Box struct{ OCI }

// Start tries a run and starts the sandbox.
func (b *Box) Start(ctx context.Context) error {
	if err := b.OCI.Start(ctx); err != nil {
		return err
	}
	bundle, err := b.bundle("box", "/bin/sleep", "infinity")
	if err == nil {
		err = b.detach(ctx, bundle)
	}
	if err != nil {
		return errors.Join(err, b.Stop())
	}
	return nil
}

// Stop removes the sandbox and everything of the runtime.
func (b *Box) Stop() error { return errors.Join(b.deleteBox(), b.OCI.Stop()) }

// Exec runs argv in the sandbox with the runtime's exec.
func (b *Box) Exec(ctx context.Context, stdout io.Writer, argv ...string) error {
	return execute(command(ctx, b.args(append([]string{"exec", boxID}, argv...)...)...), stdout)
}
