package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

const (
	firstAnswer  = 30 * time.Second // for the server to take a create, which is waited for even when interrupted
	removeWithin = 90 * time.Second // the server itself waits 60 s
)

// execFlags are those of run and exec.
type execFlags struct {
	interactive, tty, detach bool
	timeout                  duration
}

func (f *execFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.BoolVarP(&f.interactive, "interactive", "i", false, "pass standard input on")
	fs.BoolVarP(&f.tty, "tty", "t", false, "run on a terminal")
	fs.BoolVarP(&f.detach, "detach", "d", false, "leave it running and print its id")
	fs.Var(&f.timeout, "timeout", "end of the command, as in 30s or 10m (default none)")
	fs.SetInterspersed(false) // the command's own flags are its own
}

func (f *execFlags) limit() time.Duration {
	if f.timeout == 0 {
		return client.NoTimeout
	}
	return time.Duration(f.timeout)
}

func (a *app) runCommand() *cobra.Command {
	var (
		create createFlags
		exec   execFlags
		rm     bool
		keep   bool
	)
	cmd := &cobra.Command{
		Use:   "run [flags] [--] CMD [ARG…]",
		Short: "Run a command in a new sandbox",
		Long: "Run makes a sandbox, runs the command in it with its output here, exits with its code and removes the sandbox.\n\n" +
			"Ctrl-C is passed on as INT to every process of the command; a second one kills them and removes the sandbox.\n" +
			"With -t Ctrl-C is the program's own, as on any terminal. With -t and no command, it is a login shell.\n" +
			"A lost connection is said and attached again, without loss of output.\n\n" + exitCodes,
		Example: "  cay run python3 -c 'print(1)'\n  cay run -i -t bash\n  echo hello | cay run -i cat\n" +
			"  cay run --memory 512m --timeout 30s --env A=1 -- sh -c 'echo $A'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !exec.tty {
				return usagef("there is no command to run; usage: %s", cmd.UseLine())
			}
			return a.with(cmd.Context(), args, func(ctx context.Context, c *client.Client, args []string) error {
				return a.run(ctx, c, args, create, exec, rm && !keep && !exec.detach)
			})
		},
	}
	create.register(a, cmd)
	exec.register(cmd)
	fs := cmd.Flags()
	fs.StringVarP(&create.user, "user", "u", "", "`USER` of the sandbox: a name or uid[:gid]")
	fs.StringVarP(&create.workdir, "workdir", "w", "", "working `DIRECTORY`")
	fs.BoolVar(&rm, "rm", true, "remove the sandbox afterwards; -d leaves it")
	fs.BoolVar(&keep, "keep", false, "leave the sandbox, the same as --rm=false")
	return cmd
}

// run is one sandbox from create to removal. signals are caught from the beginning, so that none leaves a sandbox behind.
func (a *app) run(ctx context.Context, c *client.Client, args []string, create createFlags, exec execFlags, remove bool) error {
	request, err := create.request(ctx, a, c)
	if err != nil {
		return err
	}
	if err := a.checkTerminal(exec); err != nil {
		return err
	}
	signals, stop := catchSignals()
	defer stop()
	ready, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	watched := make(chan struct{})
	booted := make(chan struct{})
	go func() { // until the command runs, a signal ends the attempt
		defer close(watched)
		for {
			select {
			case s := <-signals:
				if isEnding(s) {
					abort(errInterrupted)
					return
				}
			case <-booted:
				return
			}
		}
	}()
	sb, err := a.createAndWait(ready, c, request)
	close(booted)
	<-watched
	if sb != nil && remove {
		defer a.remove(ctx, c, sb.ID)
	}
	if cause := context.Cause(ready); cause != nil {
		if sb != nil && !remove {
			a.note("the sandbox %s is left; remove it with: cay rm %s", sb.ID, sb.ID)
		}
		if errors.Is(cause, errInterrupted) {
			return errInterrupted
		}
		return cause
	}
	if err != nil {
		return err
	}
	work := live{c: c, sandbox: sb.ID, args: args, flags: exec, signals: signals}
	if exec.detach {
		if _, err := a.detach(ctx, work); err != nil {
			a.remove(ctx, c, sb.ID)
			return err
		}
		return a.printSandbox(ctx, c, sb.ID)
	}
	err = a.serve(ctx, work)
	if !remove {
		a.note("the sandbox %s is left; remove it with: cay rm %s", sb.ID, sb.ID)
	}
	return err
}

// createAndWait makes a sandbox and waits until it is READY or ctx ends. The sandbox is answered as soon as there is one, with an
// error too.
func (a *app) createAndWait(ctx context.Context, c *client.Client, r client.CreateRequest) (*client.Sandbox, error) {
	r.Wait = -1 // first its id, so that an interrupt can remove it
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), firstAnswer)
	defer cancel()
	sb, err := c.Create(asking, r)
	if err != nil {
		return nil, err
	}
	if sb.Status == client.Ready {
		return sb, nil
	}
	ready, err := c.Wait(ctx, sb.ID, client.Ready)
	if err != nil {
		return sb, err
	}
	return ready, nil
}

// remove deletes the sandbox however the command ended; a failure is said, and leaves the exit code.
func (a *app) remove(ctx context.Context, c *client.Client, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
	defer cancel()
	if _, err := c.Delete(ctx, id); err != nil && client.ReasonOf(err) != client.ReasonNotFound {
		a.note("the sandbox %s could not be removed: %v\n     try again with: cay rm %s", id, err, id)
	}
}

func (a *app) execCommand() *cobra.Command {
	var (
		flags         execFlags
		env           envFlags
		user, workdir string
	)
	cmd := &cobra.Command{
		Use:   "exec [flags] SBX CMD [ARG…]",
		Short: "Run a command in a sandbox that exists",
		Long: "Exec runs the command with its output here and exits with its code. With -o json it prints the API's answer.\n\n" +
			"Ctrl-C is passed on as INT to every process of the command; a second one kills them.\n\n" + exitCodes,
		Example: "  cay exec sbx_… ls -la\n  cay exec -i -t planner bash\n  cat data | cay exec -i planner sh -c 'cat > data'",
		Args:    atLeast(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args, func(ctx context.Context, c *client.Client, args []string) error {
				command := args[1:]
				if command[0] == "--" {
					command = command[1:]
				}
				if len(command) == 0 {
					return usagef("there is no command to run; usage: %s", cmd.UseLine())
				}
				vars, err := env.collect(a)
				if err != nil {
					return err
				}
				if err := a.checkTerminal(flags); err != nil {
					return err
				}
				id, err := resolve(ctx, c, args[0], false)
				if err != nil {
					return err
				}
				signals, stop := catchSignals()
				defer stop()
				work := live{c: c, sandbox: id, args: command, flags: flags, env: vars, user: user, workdir: workdir, signals: signals}
				if flags.detach {
					process, err := a.detach(ctx, work)
					if err == nil {
						_, err = fmt.Fprintln(a.Stdout, process)
					}
					return err
				}
				return a.serve(ctx, work)
			})
		},
		ValidArgsFunction: a.completeSandboxes(1),
	}
	flags.register(cmd)
	env.register(cmd.Flags())
	cmd.Flags().StringVarP(&user, "user", "u", "", "`USER` of the sandbox: a name or uid[:gid]")
	cmd.Flags().StringVarP(&workdir, "workdir", "w", "", "working `DIRECTORY`")
	return cmd
}

func (a *app) shCommand() *cobra.Command {
	var user, workdir string
	cmd := &cobra.Command{
		Use:     "sh SBX",
		Short:   "Open a login shell on a terminal in a sandbox",
		Example: "  cay sh planner",
		Args:    exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args, func(ctx context.Context, c *client.Client, args []string) error {
				flags := execFlags{interactive: true, tty: true}
				if err := a.checkTerminal(flags); err != nil {
					return err
				}
				id, err := resolve(ctx, c, args[0], false)
				if err != nil {
					return err
				}
				signals, stop := catchSignals()
				defer stop()
				return a.serve(ctx, live{c: c, sandbox: id, flags: flags, user: user, workdir: workdir, signals: signals})
			})
		},
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.Flags().StringVarP(&user, "user", "u", "", "`USER` of the sandbox: a name or uid[:gid]")
	cmd.Flags().StringVarP(&workdir, "workdir", "w", "", "working `DIRECTORY`")
	return cmd
}
