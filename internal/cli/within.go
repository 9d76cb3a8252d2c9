package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

// eachOf does one thing to several things of one sandbox, args[1:], and prints them, or objects, as they are done. Every failure is
// said.
func (a *app) eachOf(ctx context.Context, c *client.Client, args []string, do func(ctx context.Context, sandbox, thing string) (any, error)) error {
	id, err := resolve(ctx, c, args[0], false)
	if err != nil {
		return err
	}
	var errs []error
	for _, thing := range args[1:] {
		result, err := do(ctx, id, thing)
		switch {
		case err != nil:
		case a.json():
			err = a.printJSON(result)
		default:
			_, err = fmt.Fprintln(a.Stdout, thing)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// list is items as JSON should have them: an empty list is one, too.
func list[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}

// namesOf answers the things of one sandbox, each with a note behind a tab.
type namesOf func(ctx context.Context, c *client.Client, sandbox string) ([]string, error)

// completeWithin offers sandboxes for the first argument and their things for the others.
func (a *app) completeWithin(names namesOf) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return a.completeSandboxes(1)(cmd, args, toComplete)
		}
		return a.complete(cmd, args, toComplete, names), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag offers things of the sandbox that is the first argument.
func (a *app) completeFlag(names namesOf) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.complete(cmd, args[:1], toComplete, names), cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) complete(cmd *cobra.Command, args []string, toComplete string, names namesOf) []string {
	c, err := a.connect()
	if err != nil {
		return nil
	}
	defer c.Close()
	id, err := resolve(cmd.Context(), c, args[0], false)
	if err != nil {
		return nil
	}
	all, err := names(cmd.Context(), c, id)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "\t")
		return !strings.HasPrefix(name, toComplete) || slices.Contains(args[1:], name)
	})
}
