package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

func (a *app) processCommand() *cobra.Command {
	return parent("process", "Processes of a sandbox: start, list, feed, wait for and end them", []string{"proc"},
		a.processStartCommand(), a.processListCommand(), a.processAttachCommand(), a.processLogsCommand(),
		a.processStdinCommand(), a.processKillCommand(), a.processWaitCommand())
}

func (a *app) processStartCommand() *cobra.Command {
	var (
		r             client.ProcessRequest
		env           envFlags
		timeout       duration
		user, workdir string
	)
	cmd := &cobra.Command{
		Use:   "start [flags] SBX CMD [ARG…]",
		Short: "Start a command in the background and print its process's id",
		Long: "Start returns once the command runs. It goes on until it ends, is ended, or its sandbox is.\n" +
			"PROCESS, of the other commands, is its id, its pid or its --name.",
		Example: "  cay process start --name web planner python3 -m http.server\n  cay process start --stdin planner cat",
		Args:    atLeast(2),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			vars, err := env.collect(a)
			if err != nil {
				return err
			}
			id, err := resolve(ctx, c, args[0], false)
			if err != nil {
				return err
			}
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			r.ExecRequest = client.ExecRequest{Argv: command, Env: vars, User: user, Cwd: workdir, Timeout: time.Duration(timeout)}
			if r.TTY {
				r.Cols, r.Rows = a.size()
			}
			p, err := c.Processes(id).Start(ctx, r)
			if err != nil {
				return err
			}
			if err := a.printProcess(p); err != nil || p.Status != "failed" {
				return err
			}
			return &codedError{p.ExitCode, fmt.Errorf("%s cannot be started: %s", strconv.Quote(command[0]), printable(p.Detail))}
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // the command's own flags are its own
	fs.StringVar(&r.Name, "name", "", "`NAME` by which it can be found while it runs")
	fs.BoolVarP(&r.TTY, "tty", "t", false, "run on a terminal")
	fs.BoolVar(&r.StdinOpen, "stdin", false, "leave its standard input open; see: cay process stdin")
	fs.Var(&timeout, "timeout", "end of the command, as in 30s or 10m (default none)")
	fs.StringVarP(&user, "user", "u", "", "`USER` of the sandbox: a name or uid[:gid]")
	fs.StringVarP(&workdir, "workdir", "w", "", "working `DIRECTORY`")
	env.register(fs)
	return cmd
}

// printProcess prints a process's id, or the object.
func (a *app) printProcess(p *client.Process) error {
	if a.json() {
		return a.printJSON(p)
	}
	_, err := fmt.Fprintln(a.Stdout, p.ID)
	return err
}

func (a *app) processListCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "ls SBX", Short: "List the processes of a sandbox", Args: exactly(1),
		Long:    "Ls lists the commands that were started and run, or ended not long ago; with -a every process there is.",
		Example: "  cay process ls planner\n  cay process ls -a planner",
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := resolve(ctx, c, args[0], true)
			if err != nil {
				return err
			}
			return a.printProcesses(ctx, c, id, all)
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "every process, with what it uses")
	return cmd
}

func (a *app) printProcesses(ctx context.Context, c *client.Client, sandbox string, all bool) error {
	processes, err := c.Processes(sandbox).List(ctx, all)
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(list(processes))
	}
	header := "ID\tPID\tNAME\tSTATUS\tAGE\tCOMMAND"
	if all {
		header = "ID\tPID\tNAME\tUSER\tSTATUS\tCPU\tMEMORY\tAGE\tCOMMAND"
	}
	return a.table(header, func(row func(...any)) {
		for _, p := range processes {
			status := p.Status
			if status != "running" {
				status = fmt.Sprintf("%s (%d)", status, p.ExitCode)
			}
			command := strings.Join(p.Command, " ")
			if all {
				cpu := strconv.FormatFloat(p.CPUSeconds, 'f', 1, 64) + "s"
				row(p.ID, p.PID, p.Name, p.User, status, cpu, formatBytes(int64(p.MemoryMB*(1<<20))), ago(p.StartedAt), command)
				continue
			}
			row(p.ID, p.PID, p.Name, status, ago(p.StartedAt), command)
		}
	})
}

func (a *app) processAttachCommand() *cobra.Command {
	var flags execFlags
	cmd := &cobra.Command{
		Use:   "attach [flags] SBX PROCESS",
		Short: "Join a process: what is kept of its output, then what comes, with its exit code",
		Long: "Attach passes Ctrl-C on as INT; a second one kills the process. With -t Ctrl-C is the program's own.\n" +
			"SIGHUP, such as a closed window sends, leaves it running.",
		Example: "  cay process attach planner web\n  cay process attach -i -t planner shell",
		Args:    exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args, func(ctx context.Context, c *client.Client, args []string) error {
				if a.json() {
					return usagef("attach prints the process's own output; its state is: cay process wait -o json")
				}
				if err := a.checkTerminal(flags); err != nil {
					return err
				}
				id, err := resolve(ctx, c, args[0], false)
				if err != nil {
					return err
				}
				p, err := c.Processes(id).Get(ctx, args[1])
				if err != nil {
					return err
				}
				if p.ID == "" {
					return usagef("the process %d was not started here: nothing is kept of its output", p.PID)
				}
				signals, stop := catchSignals()
				defer stop()
				return a.serve(ctx, live{c: c, sandbox: id, process: p.ID, flags: flags, signals: signals})
			})
		},
		ValidArgsFunction: a.completeWithin(processIDs),
	}
	cmd.Flags().BoolVarP(&flags.interactive, "interactive", "i", false, "pass standard input on")
	cmd.Flags().BoolVarP(&flags.tty, "tty", "t", false, "its terminal is this one")
	return cmd
}

func (a *app) processStdinCommand() *cobra.Command {
	var (
		closeIt bool
		offset  int64
	)
	cmd := &cobra.Command{
		Use:   "stdin [flags] SBX PROCESS",
		Short: "Pass standard input on to a process that was started with --stdin",
		Long:  "Stdin passes on what comes here and prints how many bytes the process has had in all.",
		Example: "  echo hello | cay process stdin --close planner web\n" +
			"  cay process stdin --offset 0 planner web < data   # may be repeated: what it has had is passed over",
		Args: exactly(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.do(func(ctx context.Context, c *client.Client, args []string) error {
				id, err := resolve(ctx, c, args[0], false)
				if err != nil {
					return err
				}
				o := client.StdinOptions{Close: closeIt}
				if cmd.Flags().Changed("offset") {
					o.Offset = &offset
				}
				at, err := c.Processes(id).WriteStdin(ctx, args[1], a.Stdin, o)
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(map[string]int64{"stdin_offset": at})
				}
				_, err = fmt.Fprintln(a.Stdout, at)
				return err
			})(cmd, args)
		},
		ValidArgsFunction: a.completeWithin(processIDs),
	}
	cmd.Flags().BoolVar(&closeIt, "close", false, "its input ends there")
	cmd.Flags().Int64Var(&offset, "offset", 0, "where it belongs, in `BYTES` from the beginning (default: after what it has had)")
	return cmd
}

func (a *app) processKillCommand() *cobra.Command {
	var (
		signal string
		alone  bool
	)
	cmd := &cobra.Command{
		Use: "kill [flags] SBX PROCESS…", Short: "Send a signal to processes with all their descendants", Args: atLeast(2),
		Example: "  cay process kill planner web\n  cay process kill -s KILL planner 42",
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			name := strings.TrimPrefix(strings.ToUpper(signal), "SIG")
			return a.eachOf(ctx, c, args, func(ctx context.Context, id, process string) (any, error) {
				return map[string]string{"process": process, "signal": name}, c.Processes(id).Signal(ctx, process, name, !alone)
			})
		}),
		ValidArgsFunction: a.completeWithin(processIDs),
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "TERM", "`NAME` of the signal")
	cmd.Flags().BoolVar(&alone, "alone", false, "only the process itself")
	cmd.RegisterFlagCompletionFunc("signal", cobra.FixedCompletions([]string{"TERM", "KILL", "INT", "HUP", "USR1", "USR2"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (a *app) processWaitCommand() *cobra.Command {
	return &cobra.Command{
		Use: "wait SBX PROCESS…", Short: "Wait until processes have ended and print their exit codes", Args: atLeast(2),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := resolve(ctx, c, args[0], false)
			if err != nil {
				return err
			}
			for _, process := range args[1:] {
				p, err := c.Processes(id).Wait(ctx, process)
				switch {
				case err != nil:
				case a.json():
					err = a.printJSON(p)
				default:
					_, err = fmt.Fprintln(a.Stdout, p.ExitCode)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
		ValidArgsFunction: a.completeWithin(processIDs),
	}
}

func processIDs(ctx context.Context, c *client.Client, sandbox string) ([]string, error) {
	items, err := c.Processes(sandbox).List(ctx, false)
	var out []string
	for _, p := range items {
		name := p.Name
		if name == "" {
			name = p.ID
		}
		out = append(out, name+"\t"+p.Status+" "+printable(strings.Join(p.Command, " ")))
	}
	return out, err
}
