package peer

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// Podman keeps its storage and state in directories of its own. It uses runc where there is one: crun refuses machines whose
// cgroups are mixed.
type Podman struct {
	Cgroup string // the parent of its containers' cgroups

	path    string
	runtime string
	dir     string
	box     string
}

func (p *Podman) Name() string    { return "podman" }
func (p *Podman) Version() string { return versionLine(p.path) + ", " + p.runtime }

func (p *Podman) Start(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return Absent{"podman is measured as root only"}
	}
	if p.path, err = lookPath("podman"); err != nil {
		return err
	}
	if p.runtime = "runc"; !installed("runc") {
		p.runtime = "crun"
	}
	if p.dir, err = os.MkdirTemp("", "cay-bench-podman"); err != nil {
		return err
	}
	if err = pipeImage(p.command(ctx, "import", "--quiet", "-", dockerImage)); err == nil {
		p.box, err = output(p.command(ctx, append(append([]string{"run", "--detach"}, p.options()...), dockerImage, "/bin/sleep", "infinity")...))
	}
	if err != nil {
		return errors.Join(err, p.Stop())
	}
	return nil
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

func (p *Podman) command(ctx context.Context, args ...string) *exec.Cmd {
	return command(ctx, append([]string{p.path, "--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"), "--tmpdir", filepath.Join(p.dir, "tmp"),
		"--cgroup-manager", "cgroupfs", "--events-backend", "none", "--runtime", p.runtime}, args...)...)
}

func (p *Podman) options() []string {
	// Its own limits are higher than a caller without CAP_SYS_RESOURCE may set.
	return []string{"--network", "none", "--cgroup-parent", "/" + p.Cgroup, "--ulimit", "nofile=1024:4096", "--ulimit", "nproc=16384:16384"}
}

func (p *Podman) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	removed := execute(p.command(ctx, "rm", "--all", "--force", "--time", "0"), io.Discard)
	// The clean-up of its last containers runs on for a moment in processes of its own.
	gone := poll(ctx, 10*time.Second, func() error { return errors.Join(removeTree(p.dir), removeCgroups(p.Cgroup)) })
	return errors.Join(removed, gone)
}

func (p *Podman) Run(ctx context.Context, argv ...string) (time.Duration, error) {
	args := append(append([]string{"run", "--rm"}, p.options()...), dockerImage)
	return run(p.command(ctx, append(args, argv...)...))
}

func (p *Podman) Exec(ctx context.Context, stdout io.Writer, argv ...string) error {
	return execute(p.command(ctx, append([]string{"exec", p.box}, argv...)...), stdout)
}
