package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

func (a *app) sessionCommand() *cobra.Command {
	return parent("session", "Files that outlive the sandboxes and jobs which use them", []string{"ses"},
		a.sessionCreateCommand(), a.sessionListCommand(), a.sessionInspectCommand(), a.sessionRemoveCommand(),
		a.sessionFilesCommand(), a.sessionExportCommand(), a.sessionImportCommand())
}

// ofSession is app.do for commands whose subject is a session: what has ended is one.
func (a *app) ofSession(work func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return a.do(func(ctx context.Context, c *client.Client, args []string) error {
		err := work(ctx, c, args)
		if client.ReasonOf(err) == client.ReasonGone {
			return &advisedError{err, "     the session has ended; see the others with: cay session ls"}
		}
		return err
	})
}

func (a *app) sessionCreateCommand() *cobra.Command {
	var (
		r        client.CreateSessionRequest
		ttl      duration
		disk     size
		metadata metadataFlags
	)
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Make a session and print its id",
		Long: "Create makes a volume that sandboxes and jobs have at /session when they are given --session, and prints the session's id, or\n" +
			"with -o json the API's object. SES, of the other commands, is the id, the beginning of one, or the --name.",
		Example: "  cay session create --name planner --disk 5g --ttl 7d\n  cay job run --session planner train.py",
		Args:    exactly(0),
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, _ []string) (err error) {
			r.TTL, r.DiskGB = time.Duration(ttl), disk.gb()
			if r.Metadata, err = metadata.collect(); err != nil {
				return err
			}
			s, err := c.Sessions().Create(ctx, r)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(s)
			}
			_, err = fmt.Fprintln(a.Stdout, s.ID)
			return err
		}),
	}
	fs := cmd.Flags()
	fs.StringVar(&r.Name, "name", "", "`NAME` by which it can be found until it has ended")
	fs.Var(&ttl, "ttl", "its end, so long after its last use, as in 12h or 7d")
	fs.Var(&disk, "disk", "how much it can hold, as in 5g")
	metadata.register(fs)
	return cmd
}

func (a *app) sessionListCommand() *cobra.Command {
	var (
		all, quiet bool
		metadata   metadataFlags
	)
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List sessions",
		Long:    "Ls lists the sessions that have not ended, newest first. With -o json it prints a list of the API's objects.",
		Example: "  cay session ls\n  cay session ls -q --metadata agent=planner",
		Args:    exactly(0),
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, _ []string) (err error) {
			o := client.SessionListOptions{PageSize: 200}
			if all {
				o.Statuses = append(usableSessions(), endedSessions...)
			}
			if o.Metadata, err = metadata.collect(); err != nil {
				return err
			}
			items := []*client.SessionInfo{}
			for s, err := range c.Sessions().List(ctx, o) {
				if err != nil {
					return err
				}
				items = append(items, s)
			}
			return a.printSessions(items, quiet)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that have ended")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "ids only")
	metadata.registerFilter(cmd.Flags())
	return cmd
}

func usableSessions() []client.SessionStatus {
	return []client.SessionStatus{client.SessionActive, client.SessionArchiving, client.SessionArchived, client.SessionRestoring}
}

func (a *app) printSessions(items []*client.SessionInfo, quiet bool) error {
	switch {
	case quiet:
		for _, s := range items {
			if _, err := fmt.Fprintln(a.Stdout, s.ID); err != nil {
				return err
			}
		}
		return nil
	case a.json():
		return a.printJSON(items)
	}
	return a.table("ID\tNAME\tSTATUS\tDISK\tAGE\tLAST USED\tEXPIRES\tUSED BY", func(row func(...any)) {
		for _, s := range items {
			status, expires := string(s.Status), ""
			if s.StatusReason != "" {
				status = fmt.Sprintf("%s (%s)", s.Status, s.StatusReason)
			}
			if !s.Status.Ended() && !s.ExpiresAt.IsZero() {
				expires = "in " + shortDuration(time.Until(s.ExpiresAt))
			}
			used := ago(s.LastUsedAt)
			if used != "" {
				used += " ago"
			}
			row(s.ID, s.Name, status, formatBytes(int64(s.DiskGB*(1<<30))), ago(s.CreatedAt), used, expires, strings.Join(s.UsedBy, " "))
		}
	})
}

func (a *app) sessionInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "inspect SES…",
		Short:             "Show everything about sessions",
		Long:              "Inspect shows sessions, also those that have ended. With -o json it prints the API's objects, one on a line.",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeSessions(0),
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, args []string) error {
			return a.inspectEach(args, func(ref string) (json.RawMessage, error) {
				id, err := resolveSession(ctx, c, ref, true)
				if err != nil {
					return nil, err
				}
				s, err := c.Sessions().Get(ctx, id)
				if err != nil {
					return nil, err
				}
				return s.Raw, nil
			})
		}),
	}
}

func (a *app) sessionRemoveCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:               "rm [--force] SES…",
		Short:             "Remove sessions with their files",
		Long:              "Rm ends sessions and prints their ids as their files are gone. One that is in use stays, unless --force ends what uses it first.",
		Example:           "  cay session rm planner\n  cay session rm --force $(cay session ls -q)",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeSessions(0),
		RunE: a.ofSession(func(ctx context.Context, c *client.Client, args []string) error {
			err := a.eachRef(args, func(ref string) (string, error) { return resolveSession(ctx, c, ref, true) }, func(id string) (any, error) {
				gone, err := c.Sessions().Delete(ctx, id, force)
				if err == nil && !gone {
					a.note("the files of the session %s are still going", id)
				}
				return map[string]string{"id": id}, err
			})
			if client.ReasonOf(err) == client.ReasonConflict {
				return &advisedError{err, "     --force ends the sandboxes and jobs that use it first"}
			}
			return err
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "end the sandboxes and jobs that use it first")
	return cmd
}
