package cli

import (
	"bufio"
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cayhq/cay/client"
)

// size is a flag in bytes, as in 512m or 2g; units are powers of 1024.
type size int64

func (s *size) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10) + "b"
}
func (s *size) Type() string { return "SIZE" }

var sizeUnits = map[string]float64{"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

func (s *size) Set(text string) error {
	unit := strings.TrimLeft(strings.ToLower(text), "0123456789.")
	number := text[:len(text)-len(unit)]
	unit = strings.TrimSuffix(strings.TrimSuffix(unit, "b"), "i")
	if strings.HasSuffix(strings.ToLower(text), "b") && unit == "" {
		unit = "b"
	}
	n, err := strconv.ParseFloat(number, 64)
	factor, known := sizeUnits[unit]
	switch {
	case unit == "" && err == nil:
		return fmt.Errorf("say the unit, as in %sm or %sg", number, number)
	case err != nil || !known:
		return fmt.Errorf("%q is not a size such as 512m or 2g", text)
	case n <= 0 || n*factor > math.MaxInt64/2:
		return fmt.Errorf("%q is out of range", text)
	}
	*s = size(n * factor)
	return nil
}

func (s size) mb() int64   { return (int64(s) + 1<<20 - 1) >> 20 }
func (s size) gb() float64 { return float64(s) / (1 << 30) }

// duration is a flag such as 30s, 10m, 1h30m or 2d; a bare number is seconds.
type duration time.Duration

func (d *duration) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}
func (d *duration) Type() string { return "TIME" }

func (d *duration) Set(text string) error {
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return d.from(n*float64(time.Second), text)
	}
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil {
			return fmt.Errorf("%q is not a time such as 30s, 10m, 1h or 2d", text)
		}
		return d.from(n*float64(24*time.Hour), text)
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a time such as 30s, 10m, 1h or 2d", text)
	}
	return d.from(float64(v), text)
}

func (d *duration) from(ns float64, text string) error {
	if !(ns > 0) || ns > math.MaxInt64/2 {
		return fmt.Errorf("%q is out of range", text)
	}
	*d = duration(ns)
	return nil
}

// envFlags collects -e and --env-file.
type envFlags struct {
	pairs []string
	files []string
}

func (e *envFlags) register(f *pflag.FlagSet) {
	f.StringArrayVarP(&e.pairs, "env", "e", nil, "environment variable, `NAME=VALUE`; NAME alone passes on the local value")
	f.StringArrayVar(&e.files, "env-file", nil, "`FILE` of lines NAME=VALUE")
}

// collect answers the variables; -e wins over files, later ones over earlier.
func (e *envFlags) collect(a *app) (map[string]string, error) {
	env := map[string]string{}
	for _, name := range e.files {
		if err := a.readEnvFile(env, name); err != nil {
			return nil, err
		}
	}
	for _, pair := range e.pairs {
		if err := a.setEnv(env, pair); err != nil {
			return nil, usagef("-e %s: %w", pair, err)
		}
	}
	return env, nil
}

func (a *app) setEnv(env map[string]string, pair string) error {
	name, value, given := strings.Cut(pair, "=")
	if name == "" {
		return fmt.Errorf("there is no name")
	}
	if given {
		env[name] = value
	} else if value := a.Getenv(name); value != "" {
		env[name] = value
	}
	return nil
}

func (a *app) readEnvFile(env map[string]string, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return usagef("--env-file: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimLeft(lines.Text(), " \t")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := a.setEnv(env, line); err != nil {
			return usagef("--env-file %s:%d: %w", name, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// createFlags are those of create and run.
type createFlags struct {
	image, runtime, user, workdir, name, onTimeout string
	cpu                                            float64
	memory, disk                                   size
	pids                                           int64
	ttl, idle                                      duration
	metadata                                       metadataFlags
	env                                            envFlags
	session                                        sessionFlags
}

func (f *createFlags) register(a *app, cmd *cobra.Command) {
	f.session.register(a, cmd)
	fs := cmd.Flags()
	fs.StringVar(&f.image, "image", "", "`IMAGE`: an OCI reference, or host for this machine's own programs")
	fs.StringVar(&f.runtime, "runtime", "", "language by `NAME`, as in: cay doctor")
	fs.Float64Var(&f.cpu, "cpu", 0, "`CORES`, decimals allowed")
	fs.VarP(&f.memory, "memory", "m", "memory, as in 512m or 2g")
	fs.Var(&f.disk, "disk", "disk, as in 10g")
	fs.Int64Var(&f.pids, "pids", 0, "`NUMBER` of processes and threads at once")
	fs.Var(&f.ttl, "ttl", "life of the sandbox, as in 30m or 2h")
	fs.Var(&f.idle, "idle-timeout", "end of the sandbox after so long without use")
	fs.StringVar(&f.onTimeout, "on-timeout", "", "what ttl and idle timeout do: terminate or pause (`WHAT`)")
	fs.StringVar(&f.name, "name", "", "`NAME` of the sandbox: its metadata entry name")
	f.metadata.register(fs)
	f.env.register(fs)
}

func (f *createFlags) request(ctx context.Context, a *app, c *client.Client) (client.CreateRequest, error) {
	if f.image != "" && f.runtime != "" {
		return client.CreateRequest{}, usagef("give --image or --runtime, not both")
	}
	r := client.CreateRequest{
		Image: f.image, Runtime: f.runtime, CPU: f.cpu, MemoryMB: f.memory.mb(), DiskGB: f.disk.gb(), Pids: f.pids,
		TTL: time.Duration(f.ttl), IdleTimeout: time.Duration(f.idle), OnTimeout: f.onTimeout, User: f.user, Workdir: f.workdir,
	}
	var err error
	if r.Env, err = f.env.collect(a); err != nil {
		return r, err
	}
	if r.Metadata, err = f.metadata.collect(); err != nil {
		return r, err
	}
	if f.name != "" {
		if r.Metadata == nil {
			r.Metadata = map[string]string{}
		}
		r.Metadata["name"] = f.name
	}
	r.SessionID, r.SessionShared, err = f.session.resolve(ctx, c)
	return r, err
}

// metadataFlags collects --metadata.
type metadataFlags []string

func (m *metadataFlags) register(f *pflag.FlagSet) {
	f.StringArrayVar((*[]string)(m), "metadata", nil, "metadata entry, `KEY=VALUE`")
}

// registerFilter is register for lists.
func (m *metadataFlags) registerFilter(f *pflag.FlagSet) {
	f.StringArrayVar((*[]string)(m), "metadata", nil, "only those with this entry, `KEY=VALUE`")
}

func (m metadataFlags) collect() (map[string]string, error) {
	var out map[string]string
	for _, pair := range m {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usagef("--metadata %s: it is not KEY=VALUE", pair)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[key] = value
	}
	return out, nil
}

// sessionFlags name the session that a sandbox or a job uses.
type sessionFlags struct {
	ref    string
	shared bool
}

func (f *sessionFlags) register(a *app, cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.ref, "session", "", "the session `SES`, whose files are at /session")
	cmd.Flags().BoolVar(&f.shared, "session-shared", false, "others may use the session at the same time, if they say so too")
	cmd.RegisterFlagCompletionFunc("session", a.completeSessions(0))
}

func (f *sessionFlags) resolve(ctx context.Context, c *client.Client) (id string, shared bool, err error) {
	switch {
	case f.ref != "":
		id, err = resolveSession(ctx, c, f.ref, false)
	case f.shared:
		err = usagef("--session-shared is of a session; say which with --session")
	}
	return id, f.shared, err
}
