package peer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// OCI is a runtime that is given a bundle by hand: runsc, runc, crun. Its root file system is the machine's own programs.
type OCI struct {
	Program string   // a path, or a name to be found
	Label   string   // as the tables show it
	Flags   []string // before the command, unless Like says them
	Cgroup  string   // the parent of its cgroups, from the root of each hierarchy; "" for none
	Like    *Like    // a sandbox to boot alike; nil for the machine's own programs
	Hide    string   // a mount that it must not see, for runtimes that refuse mixed cgroups; "" for none

	hidden  *exec.Cmd      // holds the mount namespace in which Hide is not mounted
	release io.WriteCloser // its stdin

	path string
	dir  string
	runs atomic.Int64
}

func (o *OCI) Name() string    { return o.Label }
func (o *OCI) Version() string { return versionLine(o.path) }

func (o *OCI) Start(ctx context.Context) error {
	if err := o.prepare(); err != nil {
		return err
	}
	if _, err := o.Run(ctx, "/bin/echo", "works"); err != nil { // some refuse the machine's cgroups, and say so here
		return errors.Join(err, o.Stop())
	}
	return nil
}

// prepare makes all but a sandbox.
func (o *OCI) prepare() (err error) {
	if o.path, err = lookPath(o.Program); err != nil {
		return err
	}
	if o.dir, err = os.MkdirTemp("", "cay-bench-oci"); err != nil {
		return err
	}
	if o.Like == nil {
		err = makeRoot(o.root())
	} else {
		err = errors.Join(os.Mkdir(o.disk(), 0o700), os.Mkdir(o.sockets(), 0o700))
	}
	if err == nil && o.Hide != "" {
		err = o.hide()
	}
	if err != nil {
		return errors.Join(err, o.Stop())
	}
	return nil
}

const boxID = "cay-bench-box"

// detach starts a sandbox, called boxID, that stays up.
func (o *OCI) detach(ctx context.Context, bundle string) error {
	// A file and no pipe: the sandbox would keep a pipe open beyond the end of the command.
	log, err := os.Create(o.boxLog())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := command(ctx, o.args("run", "--detach", "--bundle", bundle, boxID)...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start a sandbox with %s: %w: %s", o.Label, err, o.said())
	}
	return nil
}

// said is the last of what the sandbox and its runtime printed.
func (o *OCI) said() string {
	said, err := os.ReadFile(o.boxLog())
	if err != nil {
		return err.Error()
	}
	return lastLines(said)
}

// deleteBox removes what detach started.
func (o *OCI) deleteBox() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return execute(command(ctx, o.args("delete", "--force", boxID)...), io.Discard)
}

// hide makes a mount namespace without what is to be hidden. It lives as long as a process in it that waits for the end of its stdin.
func (o *OCI) hide() error {
	o.hidden = exec.Command("unshare", "--mount", "sh", "-c", `umount "$1" && echo hidden && read _`, "sh", o.Hide)
	out, err := o.hidden.StdoutPipe()
	if err != nil {
		return err
	}
	if o.release, err = o.hidden.StdinPipe(); err != nil {
		return err
	}
	if err := o.hidden.Start(); err != nil {
		return fmt.Errorf("hide %s: %w", o.Hide, err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "hidden\n" {
		return fmt.Errorf("hide %s: %w", o.Hide, err)
	}
	return nil
}

// show ends the namespace that hide made.
func (o *OCI) show() {
	if o.hidden == nil || o.hidden.Process == nil {
		return
	}
	o.release.Close()
	_ = o.hidden.Wait() // its read fails at the end of the input, as meant
	o.hidden = nil
}

func (o *OCI) Stop() error {
	o.show()
	err := removeTree(o.dir)
	if o.Cgroup != "" {
		err = errors.Join(err, removeCgroups(o.Cgroup))
	}
	return err
}

func (o *OCI) args(args ...string) []string {
	var enter []string
	if o.hidden != nil {
		enter = []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", o.hidden.Process.Pid)}
	}
	flags := o.Flags
	if o.Like != nil {
		flags = o.Like.flags(o.disk())
	}
	return slices.Concat(enter, []string{o.path, "--root", filepath.Join(o.dir, "state")}, flags, args)
}

func (o *OCI) Run(ctx context.Context, argv ...string) (time.Duration, error) {
	id := "cay-bench-" + strconv.FormatInt(o.runs.Add(1), 10)
	bundle, err := o.bundle(id, argv...)
	if err != nil {
		return 0, err
	}
	first, err := run(command(ctx, o.args("run", "--bundle", bundle, id)...))
	return first, errors.Join(err, os.RemoveAll(bundle))
}

// bundle writes a bundle that runs argv.
func (o *OCI) bundle(id string, argv ...string) (string, error) {
	dir := filepath.Join(o.dir, "bundle-"+id)
	if o.Like != nil {
		config, err := o.Like.spec(argv, o.sockets())
		if err != nil {
			return "", err
		}
		return dir, writeBundle(dir, config)
	}
	spec := hostSpec(o.root(), argv)
	if o.Cgroup != "" {
		spec.Linux.CgroupsPath = o.Cgroup + "/" + id
	}
	config, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	return dir, writeBundle(dir, config)
}

func writeBundle(dir string, config []byte) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}

func (o *OCI) boxLog() string  { return filepath.Join(o.dir, "box.log") }
func (o *OCI) root() string    { return filepath.Join(o.dir, "rootfs") }
func (o *OCI) disk() string    { return filepath.Join(o.dir, "disk") }
func (o *OCI) sockets() string { return filepath.Join(o.dir, "s") }

// hostSpec is a bundle's specification over the machine's own programs, without network. root was made by makeRoot.
func hostSpec(root string, argv []string) *specs.Spec {
	s := &specs.Spec{
		Version:  "1.0.2", // what old runtimes take too
		Process:  &specs.Process{Args: argv, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/root"}, Cwd: "/"},
		Root:     &specs.Root{Path: root},
		Hostname: "bench",
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=65536k"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "size=65536k"}},
		},
		Linux: &specs.Linux{},
	}
	for _, m := range hostMounts() {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: m.Destination, Type: "bind", Source: m.Source, Options: []string{"bind", "ro", "nosuid"}})
	}
	for _, ns := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: ns})
	}
	return s
}
