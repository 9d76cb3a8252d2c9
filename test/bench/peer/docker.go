package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Docker is a Docker daemon of one's own: its directories, socket, network namespace and cgroups are apart from those of a daemon
// that the machine may already run, and all go with it.
type Docker struct {
	Runsc  string // a runtime "runsc" over this executable; "" for none
	Cgroup string // the parent of its containers' cgroups

	client  string
	dir     string
	version string
	daemon  *exec.Cmd
	done    chan struct{} // closed once the daemon has ended
}

const dockerImage = "cay-bench"

func (d *Docker) Name() string    { return "dockerd" }
func (d *Docker) Version() string { return d.version }

// Start starts the daemon and imports the image.
func (d *Docker) Start(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return Absent{"a Docker daemon needs root"}
	}
	if d.client, err = lookPath("docker"); err != nil {
		return err
	}
	if _, err = lookPath("runc"); err != nil {
		return err
	}
	daemon, err := lookPath("dockerd")
	if err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "cay-bench-docker"); err != nil {
		return err
	}
	if err = d.start(ctx, daemon); err != nil {
		return errors.Join(err, d.Stop())
	}
	return nil
}

func (d *Docker) start(ctx context.Context, daemon string) error {
	config := map[string]any{
		"data-root": d.at("data"), "exec-root": d.at("exec"), "pidfile": d.at("pid"), "hosts": []string{"unix://" + d.at("sock")},
		"cgroup-parent": "/" + d.Cgroup, "exec-opts": []string{"native.cgroupdriver=cgroupfs"},
		"bridge": "none", "iptables": false, "ip-forward": false, "log-level": "warn",
	}
	if d.Runsc != "" {
		config["runtimes"] = map[string]any{"runsc": map[string]any{"path": d.Runsc, "runtimeArgs": []string{"--platform=systrap", "--network=none"}}}
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.at("daemon.json"), encoded, 0o600); err != nil {
		return err
	}
	log, err := os.Create(d.at("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	d.daemon = exec.Command(daemon, "--config-file", d.at("daemon.json"))
	d.daemon.Stdout, d.daemon.Stderr = log, log
	d.daemon.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	if err := d.daemon.Start(); err != nil {
		return fmt.Errorf("start dockerd: %w", err)
	}
	d.done = make(chan struct{})
	go func() { // ends with the daemon, which Stop awaits
		defer close(d.done)
		_ = d.daemon.Wait()
	}()
	err = poll(ctx, 30*time.Second, func() (err error) {
		select {
		case <-d.done:
			return errors.New("dockerd ended")
		default:
		}
		d.version, err = output(d.command(ctx, "version", "--format", "{{.Server.Version}}"))
		return err
	})
	if err != nil {
		said, _ := os.ReadFile(d.at("log"))
		return fmt.Errorf("start dockerd: %w: %s", err, lastLines(said))
	}
	load := d.command(ctx, "import", "-", dockerImage)
	return pipeImage(load)
}

// pipeImage gives the image's archive to cmd.
func pipeImage(cmd *exec.Cmd) error {
	r, w := io.Pipe()
	cmd.Stdin = r
	written := make(chan struct{})
	go func() { // ends with the command, which closes the pipe
		defer close(written)
		w.CloseWithError(WriteImage(w))
	}()
	err := execute(cmd, io.Discard)
	r.Close()
	<-written
	return err
}

func (d *Docker) at(name string) string { return filepath.Join(d.dir, name) }

func (d *Docker) command(ctx context.Context, args ...string) *exec.Cmd {
	return command(ctx, append([]string{d.client, "--host", "unix://" + d.at("sock")}, args...)...)
}

// Stop ends the daemon with its containers and removes all that it made.
func (d *Docker) Stop() error {
	if d.dir == "" {
		return nil
	}
	if d.done != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if ids, err := output(d.command(ctx, "ps", "--all", "--quiet")); err == nil && ids != "" {
			_ = execute(d.command(ctx, append([]string{"rm", "--force"}, strings.Fields(ids)...)...), io.Discard) // what stays is seen below
		}
		_ = d.daemon.Process.Signal(syscall.SIGTERM)
		select {
		case <-d.done:
		case <-ctx.Done():
			_ = syscall.Kill(-d.daemon.Process.Pid, syscall.SIGKILL) // with its containerd
			<-d.done
		}
	}
	err := errors.Join(removeTree(d.dir), removeCgroups(d.Cgroup))
	d.dir, d.done = "", nil
	return err
}

// With is the daemon's peer for a runtime: "" is its default.
func (d *Docker) With(runtime string) *DockerRuntime {
	return &DockerRuntime{daemon: d, runtime: runtime}
}

// DockerRuntime runs and execs with the docker command. Its daemon is started and stopped apart from it.
type DockerRuntime struct {
	daemon  *Docker
	runtime string
	box     string
}

func (r *DockerRuntime) Name() string {
	if r.runtime == "" {
		return "docker"
	}
	return "docker+" + r.runtime
}

func (r *DockerRuntime) Version() string { return "dockerd " + r.daemon.version }

func (r *DockerRuntime) options() []string {
	options := []string{"--network", "none"}
	if r.runtime != "" {
		options = append(options, "--runtime", r.runtime)
	}
	return options
}

func (r *DockerRuntime) Start(ctx context.Context) (err error) {
	if r.daemon.done == nil {
		return Absent{"no Docker daemon"}
	}
	args := append(append([]string{"run", "--detach"}, r.options()...), dockerImage, "/bin/sleep", "infinity")
	r.box, err = output(r.daemon.command(ctx, args...))
	return err
}

func (r *DockerRuntime) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return execute(r.daemon.command(ctx, "rm", "--force", r.box), io.Discard)
}

func (r *DockerRuntime) Run(ctx context.Context, argv ...string) (time.Duration, error) {
	args := append(append([]string{"run", "--rm"}, r.options()...), dockerImage)
	return run(r.daemon.command(ctx, append(args, argv...)...))
}

func (r *DockerRuntime) Exec(ctx context.Context, stdout io.Writer, argv ...string) error {
	return execute(r.daemon.command(ctx, append([]string{"exec", r.box}, argv...)...), stdout)
}

// lastLines is the end of a log, for an error.
func lastLines(log []byte) string {
	const most = 1000
	if len(log) > most {
		log = log[len(log)-most:]
	}
	return strings.TrimSpace(string(log))
}
