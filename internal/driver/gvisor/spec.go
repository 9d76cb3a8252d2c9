package gvisor

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/image"
)

// Where the agent finds itself and its socket inside.
const (
	guestBin    = "/.cay/bin"
	guestSocket = "/.cay/s"
)

// capabilities are the agent's, and the most that root inside may have; the agent takes more away from what it starts. They are
// capabilities towards the sandbox's own kernel. The agent makes files for any user, drops to users, kills, and mounts control
// groups (SYS_ADMIN); without SYS_PTRACE, SYS_BOOT, SYS_TIME, MKNOD, NET_ADMIN, NET_RAW and the rest nobody inside has them.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE",
	"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT", "CAP_SYS_RESOURCE",
}

// writeConfig writes the OCI config.json of a bundle.
func (d *Driver) writeConfig(dir string, h driver.Handle, shape driver.Shape, img *image.Host) error {
	b, err := json.Marshal(d.config(h, shape, img))
	if err != nil {
		return fmt.Errorf("write config.json: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		return fmt.Errorf("write config.json: %w", err)
	}
	return nil
}

func (d *Driver) config(h driver.Handle, shape driver.Shape, img *image.Host) *specs.Spec {
	socketDir := d.socketDir(h)
	mounts := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc"},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "noexec", "mode=1777", "size=67108864", "nr_inodes=16384"}},
	}
	mounts = append(mounts, img.Mounts()...)
	mounts = append(mounts,
		specs.Mount{Destination: guestBin, Type: "bind", Source: filepath.Dir(d.cfg.Agent), Options: []string{"bind", "ro", "nosuid", "nodev"}},
		specs.Mount{Destination: guestSocket, Type: "bind", Source: socketDir, Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"}},
	)
	annotations := map[string]string{
		"com.cayhq.cpus":         strconv.Itoa(cpus(shape.CPU)),
		"com.cayhq.memory_bytes": strconv.FormatInt(shape.MemoryMB<<20, 10),
	}
	// All other mounts are exclusive: nothing changes in them while a sandbox runs. The socket is replaced by a restarted node, and what
	// is written to a volume is on the host, for others to see, when the write returns.
	shared := func(name, source string) {
		hint := "dev.gvisor.spec.mount." + name
		annotations[hint+".source"], annotations[hint+".type"], annotations[hint+".share"] = source, "bind", "shared"
	}
	shared("channel", socketDir)
	if d.canMount {
		mounts = append(mounts, specs.Mount{
			Destination: guestVolumes, Type: "bind", Source: d.boxVolumesDir(h), Options: []string{"bind", "rslave", "nosuid", "nodev"},
		})
		shared("volumes", d.boxVolumesDir(h))
	}
	return &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args:            []string{guestBin + "/" + filepath.Base(d.cfg.Agent), "-socket", guestSocket + "/" + socketName},
			Env:             []string{"PATH=" + image.Path},
			Cwd:             "/",
			NoNewPrivileges: true,
			Capabilities:    &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
			Rlimits:         rlimits(),
		},
		Root:     &specs.Root{Path: img.Root()},
		Hostname: "sandbox",
		Mounts:   mounts,
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
		Annotations: annotations,
	}
}

// cpus is the count of processors shown inside. Programs that see a single one may leave out locks, while threads of a sandbox
// do run at the same time under a quota of one core: gVisor shows two at least, and so does this. There are never more than the
// host has.
func cpus(cores float64) int { return min(max(int(math.Ceil(cores)), 2), max(runtime.NumCPU(), 2)) }

// rlimits are the agent's and of what it starts. The soft limit on files is the usual one for programs, many of which loop up to it;
// Go raises its own to the hard one and hands the soft one on.
func rlimits() []specs.POSIXRlimit {
	var out []specs.POSIXRlimit
	for _, r := range []struct {
		name       string
		id         int
		soft, hard uint64
	}{
		{"RLIMIT_NOFILE", unix.RLIMIT_NOFILE, 1024, 65536},
		{"RLIMIT_CORE", unix.RLIMIT_CORE, 0, 0},
	} {
		var now unix.Rlimit
		if err := unix.Getrlimit(r.id, &now); err == nil {
			// To raise a hard limit takes CAP_SYS_RESOURCE on the host.
			r.soft, r.hard = min(r.soft, now.Max), min(r.hard, now.Max)
		}
		out = append(out, specs.POSIXRlimit{Type: r.name, Soft: r.soft, Hard: r.hard})
	}
	return out
}

// inodes bounds the files of a sandbox's disk, so that a program that makes too many of them runs out of files and not the sandbox
// out of memory: more than about half of that never goes into empty ones.
func inodes(shape driver.Shape) int64 {
	return min(max(minInodes, int64(shape.DiskGB*inodesPerGB)), shape.MemoryMB<<20/memoryPerInode)
}

// arguments are runsc's, for a start.
func (d *Driver) arguments(h driver.Handle, shape driver.Shape) []string {
	disk := int64(shape.DiskGB * (1 << 30))
	args := []string{
		"--root=" + d.runscRoot(),
		"--log=" + filepath.Join(d.dir(h), logName),
		"--platform=systrap",
		"--network=none",
		"--host-uds=open",
		"--file-access-mounts=exclusive",
		// The agent keeps each process's tree in a group of version 2: a kill finds all of it, and pids.max is the limit on processes.
		"--in-sandbox-cgroup=v2",
		// The limits hold because runsc and all its children are born in the control group that this package made.
		"--ignore-cgroups",
		// The inodes are an addition of cmd/cay-runsc; an unpatched runsc refuses the value.
		fmt.Sprintf("--overlay2=root:dir=%s,size=%d/nr_inodes=%d", d.diskDir(h), disk, inodes(shape)),
	}
	if d.rootless {
		args = append(args, "--rootless")
	}
	return append(args, "run", "--detach", "--bundle="+d.dir(h), string(h))
}
