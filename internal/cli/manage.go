package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

const manyAtOnce = 8 // requests of one command at the same time

func (a *app) createCommand() *cobra.Command {
	var (
		flags createFlags
		wait  duration
	)
	cmd := &cobra.Command{
		Use:     "create [flags]",
		Short:   "Make a sandbox and print its id",
		Long:    "Create makes a sandbox, waits until it is READY and prints its id, or with -o json the API's object.",
		Example: "  cay create --image host --memory 1g --ttl 2h --name planner\n  cay create -o json",
		Args:    exactly(0),
		RunE: a.do(func(ctx context.Context, c *client.Client, _ []string) error {
			r, err := flags.request(ctx, a, c)
			if err != nil {
				return err
			}
			if wait > 0 {
				r.Wait = time.Duration(wait)
			}
			sb, err := c.Create(ctx, r)
			if err != nil {
				return err
			}
			if sb.Status == client.Creating && wait == 0 {
				if sb, err = c.Wait(ctx, sb.ID, client.Ready); err != nil {
					return err
				}
			}
			if sb.Status != client.Ready && !a.json() {
				a.note("the sandbox is %s", sb.Status)
			}
			return a.show(sb)
		}),
	}
	flags.register(a, cmd)
	cmd.Flags().StringVarP(&flags.user, "user", "u", "", "`USER` of its commands: a name or uid[:gid]")
	cmd.Flags().StringVarP(&flags.workdir, "workdir", "w", "", "working `DIRECTORY` of its commands")
	cmd.Flags().Var(&wait, "wait", "wait no longer than this for READY (default: until it is, or has failed)")
	return cmd
}

// show prints a sandbox that was just made: its id, or the object.
func (a *app) show(sb *client.Sandbox) error {
	if a.json() {
		return a.printJSON(sb)
	}
	_, err := fmt.Fprintln(a.Stdout, sb.ID)
	return err
}

func (a *app) printSandbox(ctx context.Context, c *client.Client, id string) error {
	if !a.json() {
		_, err := fmt.Fprintln(a.Stdout, id)
		return err
	}
	sb, err := c.Get(ctx, id)
	if err != nil {
		return err
	}
	return a.printJSON(sb)
}

func (a *app) psCommand() *cobra.Command {
	var (
		all, quiet bool
		metadata   metadataFlags
	)
	cmd := &cobra.Command{
		Use:     "ps",
		Short:   "List sandboxes",
		Long:    "Ps lists the sandboxes that have not ended, newest first. With -o json it prints a list of the API's objects.",
		Example: "  cay ps\n  cay ps -a -o json\n  cay rm $(cay ps -q --metadata agent=planner)",
		Args:    exactly(0),
		RunE: a.do(func(ctx context.Context, c *client.Client, _ []string) error {
			o := client.ListOptions{PageSize: 200}
			if !all {
				o.Statuses = []client.Status{client.Active}
			}
			var err error
			if o.Metadata, err = metadata.collect(); err != nil {
				return err
			}
			items := []*client.Sandbox{}
			for sb, err := range c.List(ctx, o) {
				if err != nil {
					return err
				}
				items = append(items, sb)
			}
			return a.printList(items, quiet)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also those that have ended")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "ids only")
	metadata.registerFilter(cmd.Flags())
	return cmd
}

func (a *app) printList(items []*client.Sandbox, quiet bool) error {
	if quiet {
		for _, sb := range items {
			if _, err := fmt.Fprintln(a.Stdout, sb.ID); err != nil {
				return err
			}
		}
		return nil
	}
	if a.json() {
		return a.printJSON(items)
	}
	return a.table("ID\tNAME\tSTATUS\tIMAGE\tCPU\tMEMORY\tAGE\tEXPIRES", func(row func(...any)) {
		for _, sb := range items {
			row(sb.ID, sb.Name(), statusText(sb), imageText(sb), sb.CPU, formatBytes(sb.MemoryMB<<20), ago(sb.CreatedAt), until(sb))
		}
	})
}

// table prints aligned columns; what a sandbox chose, such as a name, cannot break them or move the cursor.
func (a *app) table(header string, fill func(row func(...any))) error {
	w := tabwriter.NewWriter(a.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, header)
	fill(func(cells ...any) {
		for i, cell := range cells {
			if i > 0 {
				fmt.Fprint(w, "\t")
			}
			text := printable(fmt.Sprint(cell))
			if text == "" {
				text = "-"
			}
			fmt.Fprint(w, text)
		}
		fmt.Fprintln(w)
	})
	return w.Flush()
}

func (a *app) inspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "inspect SBX…",
		Short:             "Show everything about sandboxes",
		Long:              "Inspect shows sandboxes, also those that have ended. With -o json it prints the API's objects, one on a line.",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeSandboxes(0),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			return a.inspectEach(args, func(ref string) (json.RawMessage, error) {
				id, err := resolve(ctx, c, ref, true)
				if err != nil {
					return nil, err
				}
				sb, err := c.Get(ctx, id)
				if err != nil {
					return nil, err
				}
				return sb.Raw, nil
			})
		}),
	}
}

// inspectEach prints the API's objects as they are, or as lines for people.
func (a *app) inspectEach(refs []string, get func(ref string) (json.RawMessage, error)) error {
	for i, ref := range refs {
		object, err := get(ref)
		switch {
		case err != nil:
		case a.json():
			err = a.printJSON(object)
		default:
			if i > 0 {
				fmt.Fprintln(a.Stdout)
			}
			err = a.describe(object)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// describe prints the API's object as lines, so that no member of a newer server is hidden.
func (a *app) describe(object json.RawMessage) error {
	members, err := orderedMembers(object)
	if err != nil {
		return err
	}
	var id json.RawMessage
	for _, m := range members {
		if m.name == "id" {
			id = m.value
		}
	}
	w := tabwriter.NewWriter(a.Stdout, 0, 8, 2, ' ', 0)
	for _, m := range members {
		if m.name == "sandbox_id" && bytes.Equal(m.value, id) { // said already
			continue
		}
		fmt.Fprintf(w, "%s\t%s\n", printable(m.name), printable(plainJSON(m.value)))
	}
	return w.Flush()
}

func (a *app) rmCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:               "rm SBX… | --all",
		Short:             "Remove sandboxes",
		Long:              "Rm ends sandboxes and prints their ids as they are gone.",
		Example:           "  cay rm planner sbx_…\n  cay rm --all",
		ValidArgsFunction: a.completeSandboxes(0),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			if all == (len(args) > 0) {
				return usagef("give sandboxes, or --all; usage: cay rm SBX… | --all")
			}
			if all {
				for sb, err := range c.List(ctx, client.ListOptions{Statuses: []client.Status{client.Active}, PageSize: 200}) {
					if err != nil {
						return err
					}
					args = append(args, sb.ID)
				}
			}
			return a.each(ctx, c, args, true, func(ctx context.Context, id string) (any, error) {
				gone, err := c.Delete(ctx, id)
				if err == nil && !gone {
					a.note("the sandbox %s is still ending", id)
				}
				return map[string]string{"id": id}, err
			})
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "every sandbox that has not ended")
	return cmd
}

func (a *app) pauseCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "pause SBX…",
		Short:             "Stop every process of sandboxes until they are resumed",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeSandboxes(0),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			return a.each(ctx, c, args, false, func(ctx context.Context, id string) (any, error) { return c.Pause(ctx, id) })
		}),
	}
}

func (a *app) resumeCommand() *cobra.Command {
	var ttl duration
	cmd := &cobra.Command{
		Use:               "resume SBX…",
		Short:             "Let paused sandboxes run on",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeSandboxes(0),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			return a.each(ctx, c, args, false, func(ctx context.Context, id string) (any, error) {
				return c.Resume(ctx, id, time.Duration(ttl))
			})
		}),
	}
	cmd.Flags().Var(&ttl, "ttl", "its life from now on (default: what was left)")
	return cmd
}

// each does one thing to several sandboxes at the same time and prints ids, or objects, as they are done. Every failure is said.
func (a *app) each(ctx context.Context, c *client.Client, refs []string, ended bool, do func(context.Context, string) (any, error)) error {
	return a.eachRef(refs, func(ref string) (string, error) { return resolve(ctx, c, ref, ended) },
		func(id string) (any, error) { return do(ctx, id) })
}

// eachRef is each of things of any kind.
func (a *app) eachRef(refs []string, resolve func(ref string) (id string, err error), do func(id string) (any, error)) error {
	var (
		mu   sync.Mutex
		errs []error
		wg   sync.WaitGroup
	)
	slots := make(chan struct{}, manyAtOnce)
	for _, ref := range refs {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			id, err := resolve(ref)
			var result any
			if err == nil {
				result, err = do(id)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				errs = append(errs, fmt.Errorf("%s: %w", ref, err))
			case a.json():
				err = a.printJSON(result)
			default:
				_, err = fmt.Fprintln(a.Stdout, id)
			}
			if err != nil && len(errs) == 0 {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// member is one of a JSON object, in the order it came.
type member struct {
	name  string
	value json.RawMessage
}

func orderedMembers(object []byte) ([]member, error) {
	d := json.NewDecoder(strings.NewReader(string(object)))
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	var out []member
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("read object: %w", err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("read object: %w", err)
		}
		out = append(out, member{fmt.Sprint(name), value})
	}
	return out, nil
}

// plainJSON is a value for people: strings without quotes, nothing for null.
func plainJSON(v json.RawMessage) string {
	var s string
	switch {
	case string(v) == "null":
		return "-"
	case json.Unmarshal(v, &s) == nil:
		return s
	}
	return string(v)
}
