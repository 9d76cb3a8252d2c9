// Command bench measures Cay beside its peers, in one run on one machine: commands, fresh sandboxes, streams, memory, deletes,
// files, jobs and telemetry. It prints tables in Markdown and writes every sample as JSON. It says whether what was promised is met and fails only when
// it cannot measure Cay: times belong to the machine as much as to the program. It is no test of behaviour; those are beside it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cayhq/cay/test/bench/harness"
	"github.com/cayhq/cay/test/bench/peer"
)

// settings are the flags.
type settings struct {
	out       string
	quick     bool
	streamMiB int64
	fileMiB   int64
	only      string
}

// groupNames are the groups in their order.
var groupNames = []string{"exec", "boot", "python", "python-boot", "code", "code-first", "pause", "stream", "ports", "idle", "churn", "files", "archive", "jobs", "session", "telemetry"}

func (s settings) check(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	if s.streamMiB < 1 || s.fileMiB < 1 {
		return errors.New("-stream and -file must be at least 1")
	}
	for name := range strings.SplitSeq(s.only, ",") {
		if s.only != "" && !slices.Contains(groupNames, name) {
			return fmt.Errorf("there is no group %q, only %s", name, strings.Join(groupNames, ", "))
		}
	}
	return nil
}

// wants says whether a group was asked for.
func (s settings) wants(group string) bool {
	return s.only == "" || slices.Contains(strings.Split(s.only, ","), group)
}

func main() {
	var s settings
	flag.StringVar(&s.out, "out", "", "write machine, samples and targets to this `file` as JSON")
	flag.BoolVar(&s.quick, "quick", false, "be done within 75 seconds, with fewer samples and smaller streams")
	flag.Int64Var(&s.streamMiB, "stream", 256, "size of a streamed output, `MiB`")
	flag.Int64Var(&s.fileMiB, "file", 64, "size of an uploaded file, `MiB`")
	flag.StringVar(&s.only, "only", "", "measure only these `groups`, comma-separated: "+strings.Join(groupNames, ", "))
	flag.Parse()
	if err := s.check(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	settings
	cold  *server // without a pool
	warm  *server
	box   string // a sandbox of cold that stays up
	peers []entry

	deletes []float64 // ms, taken while sandboxes are measured
}

// entry is a peer, or why there is none.
type entry struct {
	peer.Peer
	absent string
}

// pythonPath is the machine's own interpreter, which is that of the host image as well.
const pythonPath = "/usr/bin/python3"

// Bounds of a whole run. The groups' budgets below add up to less, since peers and servers need time to come and go.
const (
	runLimit   = 6 * time.Minute
	quickLimit = 75 * time.Second
)

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	limit := runLimit
	if s.quick {
		limit = quickLimit
		s.streamMiB, s.fileMiB = min(s.streamMiB, 32), min(s.fileMiB, 16)
	}
	measuring, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the run's limit of %v has passed", limit))
	defer cancel()
	b := &bench{settings: s}
	report := harness.Report{}
	m := facts()
	defer func() { err = errors.Join(err, b.stop()) }()
	if err := b.start(measuring); err != nil {
		return err
	}
	m.Versions["Cay"] = b.cold.version(measuring)
	for _, p := range b.peers {
		if p.absent == "" {
			m.Versions[p.Name()] = p.Version()
		}
	}
	report.Machine = m
	report.Groups = b.measure(measuring)
	report.Targets = targets(report)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}

	fmt.Fprintf(out, "%s\n\n", m.heading())
	if err := report.Markdown(out); err != nil {
		return fmt.Errorf("print the tables: %w", err)
	}
	if s.out == "" {
		return nil
	}
	return writeJSON(s.out, report)
}

func writeJSON(path string, report harness.Report) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := errors.Join(report.JSON(f), f.Close()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// measure runs the groups that were asked for. The shares are seconds of a run of six minutes.
func (b *bench) measure(ctx context.Context) []harness.Group {
	share := func(seconds int) time.Duration {
		if b.quick {
			return time.Duration(seconds) * time.Second / 8
		}
		return time.Duration(seconds) * time.Second
	}
	churnRounds := 4
	if b.quick {
		churnRounds = 1
	}
	python := []string{pythonPath, "-c", printOne}
	one := func(g harness.Group) []harness.Group { return []harness.Group{g} }
	var groups []harness.Group
	for _, g := range []struct {
		name    string
		needs   string // a program of the machine
		measure func() []harness.Group
	}{
		{"exec", "/bin/true", func() []harness.Group {
			return one(b.execs(ctx, "exec", "Exec of /bin/true in a sandbox that is up", share(25), "", "/bin/true"))
		}},
		{"boot", "/bin/echo", func() []harness.Group {
			return one(b.boots(ctx, "boot", "A fresh sandbox: create to first output of /bin/echo", share(50), "ready\n", "/bin/echo", "ready"))
		}},
		{"python", python[0], func() []harness.Group {
			return one(b.execs(ctx, "python", "Exec of python3 -c 'print(1)' in a sandbox that is up", share(20), "1\n", python...))
		}},
		{"python-boot", python[0], func() []harness.Group {
			return one(b.boots(ctx, "python-boot", "A fresh sandbox: create to first output of python3 -c 'print(1)'", share(35), "1\n", python...))
		}},
		{"code", python[0], func() []harness.Group { return one(b.code(ctx, share(10))) }},
		{"code-first", python[0], func() []harness.Group { return one(b.firstCodes(ctx, share(25))) }},
		{"pause", "", func() []harness.Group { return one(b.pauses(ctx, share(8))) }},
		{"stream", "/bin/dd", func() []harness.Group {
			throughput, growth := b.streams(ctx, b.streamMiB<<20, share(45))
			return []harness.Group{throughput, growth}
		}},
		{"ports", "", func() []harness.Group { return one(b.ports(ctx, share(15))) }},
		{"idle", "", func() []harness.Group { return one(b.idleSandbox(ctx)) }},
		{"churn", "", func() []harness.Group { return one(b.churn(ctx, churnRounds)) }},
		{"files", "", func() []harness.Group { return one(b.files(ctx, b.fileMiB<<20, share(8))) }},
		{"archive", "", func() []harness.Group { return one(b.archives(ctx, share(15))) }},
		{"jobs", python[0], func() []harness.Group { return b.jobs(ctx, share(30)) }},
		{"session", "", func() []harness.Group { return one(b.sessions(ctx, share(10))) }},
		{"telemetry", "/bin/true", func() []harness.Group { return one(b.telemetry(ctx, share(20))) }},
	} {
		if !b.wants(g.name) {
			continue
		}
		if _, err := os.Stat(g.needs); g.needs != "" && err != nil {
			progress("%s: skipped, %s is not on this machine", g.name, g.needs)
			continue
		}
		begin := time.Now()
		groups = append(groups, g.measure()...)
		progress("%s: measured in %.1f s", g.name, time.Since(begin).Seconds())
	}
	return groups
}

// plan is how many samples a group takes.
func (b *bench) plan(rounds int, budget time.Duration) harness.Plan {
	least := 3
	if b.quick {
		least = 1
	}
	return harness.Plan{Rounds: rounds, Budget: budget, Least: least, Warmup: true}
}

// progress says on stderr what goes on; the tables go to stdout.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}
