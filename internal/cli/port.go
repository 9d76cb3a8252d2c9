package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

func (a *app) portCommand() *cobra.Command {
	return parent("port", "Addresses outside for servers inside a sandbox", nil,
		a.portExposeCommand(), a.portListCommand(), a.portRemoveCommand())
}

func (a *app) portExposeCommand() *cobra.Command {
	var o client.ExposeOptions
	cmd := &cobra.Command{
		Use:   "expose [flags] SBX PORT",
		Short: "Give a port of a sandbox an address outside and print it",
		Long: "Expose prints a URL that a browser can open: unless it is --public, with the port's token. The server inside may listen on\n" +
			"its loopback, and need not run yet. Exposing a port again keeps its address and sets anew who may reach it.\n" +
			"Programs send the token in the header Cay-Port-Token; see: cay port ls -o json",
		Example: "  cay process start --name web planner python3 -m http.server\n  cay port expose planner 8000",
		Args:    exactly(2),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			port, err := parsePort(args[1])
			if err != nil {
				return err
			}
			id, err := resolve(ctx, c, args[0], false)
			if err != nil {
				return err
			}
			p, err := c.Ports(id).Expose(ctx, port, o)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(p)
			}
			_, err = fmt.Fprintln(a.Stdout, p.TokenURL())
			return err
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.Flags().BoolVar(&o.Public, "public", false, "anyone who knows the URL may use it, without the token")
	return cmd
}

func parsePort(s string) (int, error) {
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil || port == 0 {
		return 0, usagef("%q is not a port: they are from 1 to 65535", s)
	}
	return int(port), nil
}

func (a *app) portListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls SBX", Short: "List the ports of a sandbox that are exposed", Args: exactly(1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := resolve(ctx, c, args[0], false)
			if err != nil {
				return err
			}
			items, err := c.Ports(id).List(ctx)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(list(items))
			}
			return a.table("PORT\tACCESS\tAGE\tURL", func(row func(...any)) {
				for _, p := range items {
					access := "token"
					if p.Public {
						access = "public"
					}
					row(p.Port, access, ago(p.CreatedAt), p.URL)
				}
			})
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
}

func (a *app) portRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rm SBX PORT…", Short: "Take the addresses of ports away and cut their connections", Args: atLeast(2),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachOf(ctx, c, args, func(ctx context.Context, id, arg string) (any, error) {
				port, err := parsePort(arg)
				if err != nil {
					return nil, err
				}
				return map[string]int{"port": port}, c.Ports(id).Close(ctx, port)
			})
		}),
		ValidArgsFunction: a.completeWithin(exposedPorts),
	}
}

func exposedPorts(ctx context.Context, c *client.Client, sandbox string) ([]string, error) {
	items, err := c.Ports(sandbox).List(ctx)
	var out []string
	for _, p := range items {
		out = append(out, strconv.Itoa(p.Port)+"\t"+p.URL)
	}
	return out, err
}
