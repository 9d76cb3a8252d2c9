package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cayhq/cay/client"
)

// Deps is what the commands need of the world. Zero fields stand for the process's own.
type Deps struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string

	Version string // of this binary

	// LocalChecks are what `cay doctor` finds out about this machine beyond its kernel; nil: nothing more.
	LocalChecks func(context.Context) []Check
}

// Check is one line of `cay doctor`.
type Check struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, warn, fail or info
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"` // what to do about it
}

const exitCodes = `Exit codes:
  0         done
  N         run, exec, sh, code and job run: the command's own code (128+N when signal N ended it)
  2         the command line is wrong
  125       Cay itself failed: no server, no key, refused, connection lost
  126, 127  run and exec: the command cannot be executed, or is not there
  130       interrupted`

// app is what commands share.
type app struct {
	Deps
	output string // of -o: table or json
	client *client.Client
	found  client.Settings
}

// New builds the command tree. extra commands, such as up, are added as they are; an error of theirs that has a method
// ExitCode() int decides the exit code.
func New(deps Deps, extra ...*cobra.Command) *cobra.Command {
	a := &app{Deps: deps}
	if a.Stdin == nil {
		a.Stdin = os.Stdin
	}
	if a.Stdout == nil {
		a.Stdout = os.Stdout
	}
	if a.Stderr == nil {
		a.Stderr = os.Stderr
	}
	if a.Getenv == nil {
		a.Getenv = os.Getenv
	}
	if a.Version == "" {
		a.Version = "devel"
	}
	root := &cobra.Command{
		Use:   "cay",
		Short: "Run untrusted code in isolated sandboxes",
		Long: "Cay runs untrusted code in isolated sandboxes.\n\n" +
			"Commands find their server by CAY_URL and CAY_API_KEY, else the one on this machine (see: cay up).\n" +
			"SBX is a sandbox's id, the beginning of one, or its metadata name; SES a session's id, the beginning of one, or its name; JOB a job's\n" +
			"id or the beginning of one.\n\n" + exitCodes,
		Example:       "  cay up\n  cay run python3 -c 'print(1)'\n  cay run -i -t bash",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noSuchCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if a.output != "table" && a.output != "json" {
				return usagef("-o %s: the forms are table and json", a.output)
			}
			return nil
		},
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%s; see: %s --help", err, cmd.CommandPath())
	})
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "`FORM` of what is printed: table or json (the API's own objects)")
	root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.AddGroup(&cobra.Group{ID: "run", Title: "Run commands:"}, &cobra.Group{ID: "manage", Title: "Sandboxes:"}, &cobra.Group{ID: "files", Title: "Files:"},
		&cobra.Group{ID: "jobs", Title: "Jobs and sessions:"},
		&cobra.Group{ID: "past", Title: "What happened:"})
	inGroup(root, "run", a.runCommand(), a.execCommand(), a.shCommand(), a.codeCommand(), a.contextCommand(), a.processCommand(), a.logsCommand())
	inGroup(root, "manage", a.createCommand(), a.psCommand(), a.inspectCommand(), a.rmCommand(), a.pauseCommand(), a.resumeCommand(),
		a.portCommand(), a.statsCommand(), a.eventsCommand())
	inGroup(root, "files", a.cpCommand(), a.lsCommand(), a.watchCommand(), a.signCommand())
	inGroup(root, "jobs", a.jobCommand(), a.sessionCommand())
	inGroup(root, "past", a.historyCommand(), a.usageCommand(), a.auditCommand())
	root.AddCommand(a.mcpCommand(), a.doctorCommand(), a.versionCommand())
	root.AddCommand(extra...)
	return root
}

// noSuchCommand refuses what is not the name of a command below cmd.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("there is no command %q; see: %s --help", args[0], cmd.CommandPath())
	}
	return nil
}

// parent is a command that only holds others.
func parent(use, short string, aliases []string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Aliases: aliases, Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

func inGroup(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		root.AddCommand(c)
	}
}

// Execute runs the command line and answers the exit code, having said on standard error what went wrong.
func Execute(ctx context.Context, root *cobra.Command, args []string) int {
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var coded interface{ ExitCode() int }
	code := codeFailed
	if errors.As(err, &coded) {
		code = coded.ExitCode()
	}
	if message := explain(err); message != "" {
		fmt.Fprintln(root.ErrOrStderr(), "cay: "+message)
	}
	return code
}

// connect makes the client once.
func (a *app) connect() (*client.Client, error) {
	if a.client != nil {
		return a.client, nil
	}
	found, err := client.Discover(a.Getenv)
	if err != nil {
		return nil, err
	}
	a.found = found
	a.client, err = client.New(client.Options{URL: found.URL, Key: found.Key, UserAgent: "cay-cli/" + a.Version})
	return a.client, err
}

// do wraps a command's work: ctx ends at Ctrl-C or SIGTERM, and errors say what to do next.
func (a *app) do(work func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return a.with(ctx, args, work)
	}
}

// with is do without a hand on signals, for commands that pass them on.
func (a *app) with(ctx context.Context, args []string, work func(context.Context, *client.Client, []string) error) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	err = work(ctx, c, args)
	if err != nil && ctx.Err() != nil {
		return errInterrupted
	}
	return a.advise(err)
}

// printJSON writes the API's own object on a line of its own.
func (a *app) printJSON(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = a.Stdout.Write(append(data, '\n'))
	return err
}

func (a *app) json() bool { return a.output == "json" }

// note tells the user something beside the output.
func (a *app) note(format string, args ...any) { fmt.Fprintf(a.Stderr, "cay: "+format+"\n", args...) }

// terminal answers the file descriptor behind v if that is a terminal.
func terminal(v any) (fd int, ok bool) {
	f, isFile := v.(*os.File)
	if !isFile {
		return -1, false
	}
	return int(f.Fd()), term.IsTerminal(int(f.Fd()))
}
