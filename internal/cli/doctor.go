package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/client"
)

const doctorPatience = 10 * time.Second

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Find out what works here and what does not",
		Long: "Doctor looks at the server (reachable, key, version, isolation, limits it enforces, runtimes) and at this machine.\n" +
			"It exits with 125 when something is wrong that keeps sandboxes from running.",
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorPatience)
			defer cancel()
			checks := append(a.checkServer(ctx), machineChecks()...)
			if a.LocalChecks != nil {
				checks = append(checks, a.LocalChecks(ctx)...)
			}
			if err := a.printChecks(checks); err != nil {
				return err
			}
			for _, c := range checks {
				if c.Status == "fail" {
					return exitWith(codeFailed)
				}
			}
			return nil
		},
	}
}

func (a *app) printChecks(checks []Check) error {
	if a.json() {
		return a.printJSON(map[string]any{"checks": checks})
	}
	for _, c := range checks {
		if _, err := fmt.Fprintf(a.Stdout, "%-5s %-13s %s\n", c.Status, c.Name, printable(c.Detail)); err != nil {
			return err
		}
		if c.Hint != "" {
			fmt.Fprintf(a.Stdout, "%20s%s\n", "", c.Hint)
		}
	}
	return nil
}

// checkServer looks as far as it can get: without a server there is nothing to ask.
func (a *app) checkServer(ctx context.Context) []Check {
	c, err := a.connect()
	if err != nil {
		return []Check{{Name: "server", Status: "fail", Detail: err.Error()}}
	}
	defer c.Close()
	where := fmt.Sprintf("%s (from %s)", a.found.URL, a.found.URLFrom)
	var out []Check
	switch err := c.Ready(ctx); {
	case err == nil:
		out = append(out, Check{Name: "server", Status: "ok", Detail: where + " is ready"})
	case client.ReasonOf(err) != "" || isAnswer(err):
		out = append(out, Check{Name: "server", Status: "fail", Detail: where + " is not ready: " + err.Error(), Hint: "look at the log of cay up"})
	default:
		return []Check{{Name: "server", Status: "fail", Detail: where + ": " + err.Error(), Hint: a.adviceFor(err)}}
	}
	info, err := c.Info(ctx)
	if err != nil {
		status := Check{Name: "key", Status: "fail", Detail: err.Error(), Hint: a.adviceFor(err)}
		return append(out, status)
	}
	out = append(out, Check{Name: "key", Status: "ok", Detail: "accepted, from " + a.found.KeyFrom})
	version := Check{Name: "version", Status: "ok", Detail: fmt.Sprintf("server %s, this command %s", info.Version, a.Version)}
	if info.Version != a.Version {
		version.Status = "info"
	}
	out = append(out, version, Check{Name: "isolation", Status: isolationStatus(info.Isolation), Detail: orUnknown(info.Isolation)})
	return append(out, enforcedCheck(info), runtimesCheck(ctx, c, info))
}

func isAnswer(err error) bool {
	var e *client.Error
	return errors.As(err, &e)
}

func isolationStatus(name string) string {
	if name == "" || name == "none" {
		return "warn"
	}
	return "ok"
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func enforcedCheck(info *client.Info) Check {
	if info.Enforced == nil {
		return Check{Name: "limits", Status: "info", Detail: "the server does not say which limits it enforces"}
	}
	var missing []string
	for _, limit := range []string{"cpu", "memory_mb", "disk_gb", "pids"} {
		if !slices.Contains(info.Enforced, limit) {
			missing = append(missing, limit)
		}
	}
	if len(missing) == 0 {
		return Check{Name: "limits", Status: "ok", Detail: "enforced: " + strings.Join(info.Enforced, ", ")}
	}
	return Check{Name: "limits", Status: "warn",
		Detail: fmt.Sprintf("enforced: %s; not enforced: %s", orNone(info.Enforced), strings.Join(missing, ", ")),
		Hint:   "run cay up as root, or with delegated cgroups"}
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func runtimesCheck(ctx context.Context, c *client.Client, info *client.Info) Check {
	runtimes := info.Runtimes
	if len(runtimes) == 0 {
		var err error
		if runtimes, err = c.Runtimes(ctx); err != nil {
			return Check{Name: "runtimes", Status: "warn", Detail: err.Error()}
		}
	}
	var names []string
	for _, r := range runtimes {
		names = append(names, strings.TrimSpace(r.Name+" "+r.Version))
	}
	if len(names) == 0 {
		return Check{Name: "runtimes", Status: "warn", Detail: "none found", Hint: "install an interpreter, such as python3, on the server's machine"}
	}
	return Check{Name: "runtimes", Status: "ok", Detail: strings.Join(names, ", ")}
}

// machineChecks say what this machine offers to a server on it.
func machineChecks() []Check {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return []Check{{Name: "kernel", Status: "warn", Detail: err.Error()}}
	}
	kernel := Check{Name: "kernel", Status: "ok", Detail: fmt.Sprintf("%s %s %s", text(uts.Sysname[:]), text(uts.Release[:]), text(uts.Machine[:]))}
	user := Check{Name: "user", Status: "ok", Detail: "root"}
	if uid := os.Geteuid(); uid != 0 {
		user = Check{Name: "user", Status: "info", Detail: fmt.Sprintf("uid %d", uid), Hint: "a server run by it enforces only what its delegated cgroups allow"}
	}
	return []Check{kernel, systrapCheck(), cgroupsCheck(), user, volumesCheck()}
}

func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// systrapCheck asks for what gVisor's systrap platform needs: seccomp filters on an architecture it knows.
func systrapCheck() Check {
	c := Check{Name: "systrap", Status: "ok", Detail: "possible"}
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return Check{Name: "systrap", Status: "fail", Detail: "not on " + runtime.GOARCH}
	}
	actions, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail")
	switch {
	case err != nil:
		return Check{Name: "systrap", Status: "warn", Detail: "cannot tell: " + err.Error()}
	case !bytes.Contains(actions, []byte("trap")):
		return Check{Name: "systrap", Status: "fail", Detail: "the kernel has no seccomp filters"}
	}
	return c
}

// volumesCheck looks for what sessions need; whether this machine lets a server mount, the server alone finds out.
func volumesCheck() Check {
	const name = "sessions"
	if os.Geteuid() != 0 {
		return Check{Name: name, Status: "info", Detail: "only with root: their volumes must be mounted"}
	}
	found := false
	for _, path := range []string{"mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"} {
		_, err := exec.LookPath(path)
		found = found || err == nil
	}
	if !found {
		return Check{Name: name, Status: "warn", Detail: "not possible: there is no mkfs.ext4", Hint: "install e2fsprogs"}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return Check{Name: name, Status: "warn", Detail: "not possible: there are no loop devices", Hint: "load the kernel's module loop"}
	}
	return Check{Name: name, Status: "ok", Detail: "possible"}
}

func cgroupsCheck() Check {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return Check{Name: "cgroups", Status: "warn", Detail: "none: " + err.Error(), Hint: "limits cannot be enforced"}
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		if err != nil {
			return Check{Name: "cgroups", Status: "warn", Detail: "v2, controllers unknown: " + err.Error()}
		}
		return Check{Name: "cgroups", Status: "ok", Detail: "v2: " + strings.TrimSpace(string(controllers))}
	}
	if err := unix.Statfs("/sys/fs/cgroup/unified", &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return Check{Name: "cgroups", Status: "ok", Detail: "v1 with v2 beside it (hybrid)"}
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory"); err != nil {
		return Check{Name: "cgroups", Status: "warn", Detail: "none", Hint: "limits cannot be enforced"}
	}
	return Check{Name: "cgroups", Status: "ok", Detail: "v1"}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this command and of the server",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorPatience)
			defer cancel()
			server := ""
			if c, err := a.connect(); err == nil {
				defer c.Close()
				if info, err := c.Info(ctx); err == nil {
					server = info.Version
				}
			}
			if a.json() {
				return a.printJSON(map[string]any{"client": a.Version, "server": server, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			fmt.Fprintf(a.Stdout, "cay %s (%s %s/%s)\n", a.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			if server == "" {
				server = "not reachable"
			}
			_, err := fmt.Fprintf(a.Stdout, "server %s\n", server)
			return err
		},
	}
}
