package peer

import (
	"context"
	"io"
	"runtime"
	"time"
)

// NativeName is the name of [Native].
const NativeName = "native"

// Native is the machine itself, without isolation: the floor under all others.
type Native struct{}

func (Native) Name() string                { return NativeName }
func (Native) Version() string             { return runtime.GOOS + "/" + runtime.GOARCH }
func (Native) Start(context.Context) error { return nil }
func (Native) Stop() error                 { return nil }

func (Native) Run(ctx context.Context, argv ...string) (time.Duration, error) {
	return run(command(ctx, argv...))
}

func (Native) Exec(ctx context.Context, stdout io.Writer, argv ...string) error {
	return execute(command(ctx, argv...), stdout)
}

// Bwrap is bubblewrap over the machine's own programs, everything unshared.
type Bwrap struct{ path string }

func (b *Bwrap) Name() string    { return "bwrap" }
func (b *Bwrap) Version() string { return versionLine(b.path) }
func (b *Bwrap) Stop() error     { return nil }

func (b *Bwrap) Start(context.Context) (err error) {
	b.path, err = lookPath("bwrap")
	return err
}

func (b *Bwrap) Run(ctx context.Context, argv ...string) (time.Duration, error) {
	args := []string{b.path, "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"}
	for _, m := range hostMounts() {
		args = append(args, "--ro-bind", m.Source, m.Destination)
	}
	for link, target := range hostLinks() {
		args = append(args, "--symlink", target, link)
	}
	return run(command(ctx, append(append(args, "--"), argv...)...))
}
