package cli

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

func (a *app) watchCommand() *cobra.Command {
	var (
		o    client.WatchOptions
		user string
	)
	cmd := &cobra.Command{
		Use:   "watch [-r] SBX[:PATH]",
		Short: "Show changes of files as they happen",
		Long: "Watch prints create, write, remove, rename and chmod below a directory, until Ctrl-C. overflow means that changes were\n" +
			"missed. With -o json it prints the API's objects, one on a line, beginning with ready.",
		Example: "  cay watch planner\n  cay watch -r planner:/output",
		Args:    exactly(1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			p, err := placeOf(ctx, c, args[0])
			if err != nil {
				return err
			}
			for ev, err := range filesAs(c, p.sandbox, user).Watch(ctx, p.path, o) {
				switch {
				case err != nil:
				case a.json():
					err = a.printJSON(ev)
				case ev.Type == client.WatchReady:
					a.note("watching %s", printable(ev.Path))
				case ev.Type == client.WatchRename:
					_, err = fmt.Fprintf(a.Stdout, "%-8s  %s -> %s\n", ev.Type, printable(ev.Path), printable(ev.To))
				default:
					_, err = fmt.Fprintf(a.Stdout, "%-8s  %s\n", printable(string(ev.Type)), printable(ev.Path))
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.Flags().BoolVarP(&o.Recursive, "recursive", "r", false, "directories within directories as well")
	cmd.Flags().StringVarP(&user, "user", "u", "", "`USER` of the sandbox whose access counts")
	return cmd
}

// placeOf reads SBX[:PATH].
func placeOf(ctx context.Context, c *client.Client, arg string) (place, error) {
	p := parsePlace(arg)
	if !p.remote() {
		p = place{sandbox: arg}
	}
	return p.resolve(ctx, c)
}

func (a *app) signCommand() *cobra.Command {
	var (
		put  bool
		ttl  duration
		max  size
		user string
	)
	cmd := &cobra.Command{
		Use:   "sign [flags] SBX:PATH",
		Short: "Make a URL for one file that needs no key",
		Long:  "Sign prints a URL by which anyone can read the file, or with --put write it, until it expires or the sandbox ends.",
		Example: "  curl -o plot.png \"$(cay sign planner:/output/plot.png)\"\n" +
			"  curl -T data.csv \"$(cay sign --put --max-size 10m planner:data.csv)\"",
		Args: exactly(1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			p := parsePlace(args[0])
			if !p.remote() || p.path == "" {
				return usagef("say which file, SBX:PATH")
			}
			o := client.SignOptions{TTL: time.Duration(ttl), MaxBytes: int64(max)}
			switch {
			case put:
				o.Method = http.MethodPut
			case max > 0:
				return usagef("--max-size bounds what is written; it needs --put")
			}
			p, err := p.resolve(ctx, c)
			if err != nil {
				return err
			}
			u, err := filesAs(c, p.sandbox, user).Sign(ctx, p.path, o)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(u.Raw)
			}
			_, err = fmt.Fprintln(a.Stdout, u.URL)
			return err
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.Flags().BoolVar(&put, "put", false, "to write the file")
	cmd.Flags().Var(&ttl, "ttl", "how long it is good, as in 10m or 2d, at most 7d (default 1h)")
	cmd.Flags().Var(&max, "max-size", "most that may be written, as in 10m")
	cmd.Flags().StringVarP(&user, "user", "u", "", "`USER` of the sandbox whose access and ownership count")
	return cmd
}
