package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

func (a *app) contextCommand() *cobra.Command {
	return parent("context", "Interpreters that keep their variables between runs of code", []string{"ctx"},
		a.contextCreateCommand(), a.contextListCommand(), a.contextRemoveCommand(),
		a.contextActCommand("interrupt", "Stop the code that runs in a context; its variables stay", (*client.Contexts).Interrupt),
		a.contextActCommand("restart", "Give a context a new interpreter, without the old one's variables", (*client.Contexts).Restart))
}

func (a *app) contextCreateCommand() *cobra.Command {
	var (
		r   client.ContextRequest
		env envFlags
	)
	cmd := &cobra.Command{
		Use:     "create [flags] SBX",
		Short:   "Start an interpreter and print its context's id",
		Example: "  cay context create planner\n  cay context create -l javascript planner",
		Args:    exactly(1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			vars, err := env.collect(a)
			if err != nil {
				return err
			}
			r.Env = vars
			id, err := resolve(ctx, c, args[0], false)
			if err != nil {
				return err
			}
			x, err := c.Contexts(id).Create(ctx, r)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(x)
			}
			_, err = fmt.Fprintln(a.Stdout, x.ID)
			return err
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	fs := cmd.Flags()
	fs.StringVarP(&r.Language, "language", "l", "", "`NAME`: python, javascript, typescript, bash, sh, php, ruby (default python)")
	fs.StringVarP(&r.User, "user", "u", "", "`USER` of the sandbox: a name or uid[:gid]")
	fs.StringVarP(&r.Cwd, "workdir", "w", "", "working `DIRECTORY`")
	env.register(fs)
	return cmd
}

func (a *app) contextListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls SBX", Short: "List the contexts of a sandbox", Args: exactly(1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := resolve(ctx, c, args[0], false)
			if err != nil {
				return err
			}
			items, err := c.Contexts(id).List(ctx)
			if err != nil {
				return err
			}
			return a.printContexts(items)
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
}

func (a *app) printContexts(items []client.CodeContext) error {
	if a.json() {
		return a.printJSON(list(items))
	}
	return a.table("ID\tLANGUAGE\tSTATUS\tRUNS\tCWD\tUSED", func(row func(...any)) {
		for _, x := range items {
			row(x.ID, x.Language, x.Status, x.ExecutionCount, x.Cwd, ago(x.LastUsedAt))
		}
	})
}

func (a *app) contextRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm SBX CTX…", Short: "End contexts with their interpreters", Args: atLeast(2),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachOf(ctx, c, args, func(ctx context.Context, id, x string) (any, error) {
				return map[string]string{"id": x}, c.Contexts(id).Close(ctx, x)
			})
		}),
		ValidArgsFunction: a.completeWithin(contextIDs),
	}
}

func (a *app) contextActCommand(name, short string, act func(*client.Contexts, context.Context, string) (*client.CodeContext, error)) *cobra.Command {
	return &cobra.Command{
		Use: name + " SBX CTX…", Short: short, Args: atLeast(2),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachOf(ctx, c, args, func(ctx context.Context, id, x string) (any, error) { return act(c.Contexts(id), ctx, x) })
		}),
		ValidArgsFunction: a.completeWithin(contextIDs),
	}
}

func contextIDs(ctx context.Context, c *client.Client, sandbox string) ([]string, error) {
	items, err := c.Contexts(sandbox).List(ctx)
	var out []string
	for _, x := range items {
		out = append(out, x.ID+"\t"+x.Language+" "+x.Status)
	}
	return out, err
}
