package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

// quiet is how long nothing must come from a running process until logs without -f takes what it printed for all there is.
const quiet = 500 * time.Millisecond

func (a *app) logsCommand() *cobra.Command {
	var (
		follow, list bool
		offset       int64
	)
	cmd := &cobra.Command{
		Use:   "logs [-f] SBX [PROCESS]",
		Short: "Print the output of a process",
		Long: "Logs prints what is kept of a process's output, its standard error on standard error. PROCESS is an id, a pid or a name;\n" +
			"without it, it is the command that was started last. With --list it lists the processes instead.",
		Example:           "  cay logs planner\n  cay logs -f planner prc_…\n  cay logs --list planner",
		Args:              between(1, 2),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := resolve(ctx, c, args[0], true)
			if err != nil {
				return err
			}
			if list {
				return a.printProcesses(ctx, c, id)
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
			return a.printOutput(ctx, c, id, p, offset, follow)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the process ends")
	cmd.Flags().BoolVarP(&list, "list", "l", false, "list the processes that have output")
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

func (a *app) printProcesses(ctx context.Context, c *client.Client, sandbox string) error {
	processes, err := c.Processes(sandbox).List(ctx, false)
	if err != nil {
		return err
	}
	if a.json() {
		return a.printJSON(processes)
	}
	return a.table("ID\tPID\tNAME\tSTATUS\tAGE\tCOMMAND", func(row func(...any)) {
		for _, p := range processes {
			status := p.Status
			if status == "exited" {
				status = fmt.Sprintf("exited (%d)", p.ExitCode)
			}
			row(p.ID, p.PID, p.Name, status, ago(p.StartedAt), strings.Join(p.Command, " "))
		}
	})
}

// printOutput writes what is kept and, with follow or for a process that has ended, goes on to its exit.
func (a *app) printOutput(ctx context.Context, c *client.Client, sandbox string, p *client.Process, offset int64, follow bool) error {
	reading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errQuiet := errors.New("quiet")
	rest := func() {}
	if p.Status == "running" && !follow {
		timer := time.AfterFunc(quiet, func() { cancel(errQuiet) })
		defer timer.Stop()
		rest = func() { timer.Reset(quiet) }
	}
	name := p.ID
	if name == "" {
		name = fmt.Sprint(p.PID)
	}
	for ev, err := range c.Processes(sandbox).Stream(reading, name, offset) {
		if err != nil {
			if errors.Is(context.Cause(reading), errQuiet) {
				return nil
			}
			return err
		}
		rest()
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
