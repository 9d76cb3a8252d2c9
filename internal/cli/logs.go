package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

func (a *app) logsCommand() *cobra.Command {
	cmd := a.processLogsCommand()
	cmd.Use = "logs [-f] SBX [PROCESS]"
	cmd.Short = "Print the output of a process, or with --system what was said around the sandbox"
	cmd.Long = "Logs prints what is kept of a process's output, its standard error on standard error. PROCESS is an id, a pid or a name;\n" +
		"without it, it is the command that was started last. With --list it lists the processes instead, as cay process ls does.\n\n" +
		"With --system it prints what boot, the agent and the installation of packages said."
	cmd.Example = "  cay logs planner\n  cay logs -f planner web\n  cay logs --list planner\n  cay logs --system planner"
	ofProcess := cmd.RunE
	var list, system bool
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !list && !system {
			return ofProcess(cmd, args)
		}
		if list && system || len(args) > 1 {
			return usagef("--list and --system are of the whole sandbox, one at a time; usage: cay logs --list SBX")
		}
		return a.do(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := resolve(ctx, c, args[0], list)
			if err != nil {
				return err
			}
			if list {
				return a.printProcesses(ctx, c, id, false)
			}
			follow, _ := cmd.Flags().GetBool("follow")
			return a.printSystemLogs(ctx, c, id, client.FeedOptions{Follow: follow})
		})(cmd, args)
	}
	cmd.Flags().BoolVarP(&list, "list", "l", false, "list the processes that have output")
	cmd.Flags().BoolVar(&system, "system", false, "what boot, the agent and the installation of packages said")
	return cmd
}

func (a *app) processLogsCommand() *cobra.Command {
	var (
		follow bool
		offset int64
	)
	cmd := &cobra.Command{
		Use:   "logs [-f] SBX [PROCESS]",
		Short: "Print the output of a process",
		Long: "Logs prints what is kept of a process's output, its standard error on standard error. Without PROCESS it is the command\n" +
			"that was started last. With -o json it prints the API's pages of output, one on a line, and with -f events.",
		Example:           "  cay process logs planner web\n  cay process logs -f planner web",
		Args:              between(1, 2),
		ValidArgsFunction: a.completeWithin(processIDs),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := resolve(ctx, c, args[0], true)
			if err != nil {
				return err
			}
			var p *client.Process
			if len(args) == 2 {
				p, err = c.Processes(id).Get(ctx, args[1])
			} else {
				p, err = latest(ctx, c, id)
			}
			if err != nil {
				return err
			}
			if p.ID == "" {
				return fmt.Errorf("the process %d was not started here: nothing is kept of its output", p.PID)
			}
			if follow {
				return a.followOutput(ctx, c, id, p.ID, offset)
			}
			return a.printOutput(ctx, c, id, p.ID, offset)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the process ends")
	cmd.Flags().Int64Var(&offset, "offset", 0, "begin after so many `BYTES` of output")
	return cmd
}

func latest(ctx context.Context, c *client.Client, sandbox string) (*client.Process, error) {
	processes, err := c.Processes(sandbox).List(ctx, false)
	if err != nil {
		return nil, err
	}
	var found *client.Process
	for i := range processes {
		if p := &processes[i]; p.ID != "" && (found == nil || !p.StartedAt.Before(found.StartedAt)) {
			found = p
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no command has run in the sandbox %s, or its output is no longer kept", sandbox)
	}
	return found, nil
}

// printOutput writes what is kept, and waits for nothing.
func (a *app) printOutput(ctx context.Context, c *client.Client, sandbox, process string, offset int64) error {
	for page, err := range c.Processes(sandbox).LogPages(ctx, process, client.LogsOptions{Offset: offset}) {
		if err != nil {
			return err
		}
		if a.json() {
			if err := a.printJSON(page.Raw); err != nil {
				return err
			}
			continue
		}
		for _, g := range page.Gaps {
			a.note("%d bytes of %s are missing here", g.Bytes, printable(g.Stream))
		}
		if _, err := a.Stdout.Write(page.Stdout); err != nil {
			return err
		}
		if _, err := a.Stderr.Write(page.Stderr); err != nil {
			return err
		}
	}
	return nil
}

// followOutput writes what is kept and goes on to the process's exit.
func (a *app) followOutput(ctx context.Context, c *client.Client, sandbox, process string, offset int64) error {
	for ev, err := range c.Processes(sandbox).Stream(ctx, process, offset) {
		if err != nil {
			return err
		}
		if a.json() {
			if err := a.printJSON(eventObject(ev)); err != nil {
				return err
			}
			continue
		}
		switch ev := ev.(type) {
		case client.OutputEvent:
			out := a.Stdout
			if ev.Stderr {
				out = a.Stderr
			}
			if _, err := out.Write(ev.Data); err != nil {
				return err
			}
		case client.GapEvent:
			a.note("%d bytes of output are missing here", ev.Bytes)
		}
	}
	return nil
}

// eventObject is an event as JSON has it: type names it, bytes are in base64.
func eventObject(ev client.Event) map[string]any {
	stream := map[bool]string{false: "stdout", true: "stderr"}
	switch ev := ev.(type) {
	case client.StartEvent:
		return map[string]any{"type": "start", "process_id": ev.ProcessID, "offset": ev.Offset}
	case client.OutputEvent:
		return map[string]any{"type": stream[ev.Stderr], "data_base64": ev.Data, "offset": ev.Offset}
	case client.GapEvent:
		return map[string]any{"type": "gap", "stream": stream[ev.Stderr], "offset": ev.Offset, "bytes": ev.Bytes}
	case client.ExitEvent:
		return map[string]any{"type": "exit", "exit": ev.Exit}
	case client.ResultEvent:
		return map[string]any{"type": "result", "result": ev.CodeOutcome}
	}
	return map[string]any{"type": "unknown"}
}

func (a *app) printSystemLogs(ctx context.Context, c *client.Client, sandbox string, o client.FeedOptions) error {
	for l, err := range c.Logs(ctx, sandbox, o) {
		switch {
		case err != nil:
		case a.json():
			err = a.printJSON(l)
		default:
			_, err = fmt.Fprintf(a.Stdout, "%s  %-8s  %-5s  %s\n", l.At.Local().Format(time.DateTime), printable(l.Source), printable(l.Level), printable(l.Message))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
