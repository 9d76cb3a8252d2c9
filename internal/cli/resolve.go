package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

const (
	idPrefix  = "sbx_"
	idBodyLen = 26
	maxNamed  = 5 // candidates named in an error
)

// isID reports whether s is a whole sandbox id, which needs no looking up.
func isID(s string) bool {
	body, ok := strings.CutPrefix(s, idPrefix)
	return ok && len(body) == idBodyLen && isIDBody(body)
}

func isIDBody(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return s != ""
}

// resolve finds the sandbox that ref means: a whole id, a name among the metadata, or the beginning of an id, with or without
// sbx_. Sandboxes that have ended count only where ended is set and no other fits.
func resolve(ctx context.Context, c *client.Client, ref string, ended bool) (string, error) {
	if isID(ref) {
		return ref, nil
	}
	id, err := search(ctx, c, ref, client.ListOptions{Statuses: []client.Status{client.Active}, PageSize: 200})
	if err != nil || id != "" {
		return id, err
	}
	if ended {
		if id, err = search(ctx, c, ref, client.ListOptions{PageSize: 200}); err != nil || id != "" {
			return id, err
		}
	}
	return "", &client.Error{Reason: client.ReasonNotFound,
		Detail: fmt.Sprintf("there is no sandbox %q; see them with: cay ps", ref)}
}

func search(ctx context.Context, c *client.Client, ref string, o client.ListOptions) (string, error) {
	var named, prefixed []string
	for sb, err := range c.List(ctx, o) {
		if err != nil {
			return "", err
		}
		if sb.Name() == ref {
			named = append(named, sb.ID)
		}
		if isPrefix(ref, sb.ID) {
			prefixed = append(prefixed, sb.ID)
		}
	}
	for _, found := range [][]string{named, prefixed} {
		switch {
		case len(found) == 1:
			return found[0], nil
		case len(found) > 1:
			more := ""
			if len(found) > maxNamed {
				found, more = found[:maxNamed], ", …"
			}
			return "", usagef("%q could be any of %s%s; say more of the id", ref, strings.Join(found, ", "), more)
		}
	}
	return "", nil
}

func isPrefix(ref, id string) bool {
	if ref == "" || ref == idPrefix {
		return false
	}
	return strings.HasPrefix(id, ref) || strings.HasPrefix(strings.TrimPrefix(id, idPrefix), ref)
}

// completeSandboxes offers ids, with their names beside them; at most max arguments are sandboxes, 0: all.
func (a *app) completeSandboxes(max int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if max > 0 && len(args) >= max {
			return nil, cobra.ShellCompDirectiveDefault
		}
		c, err := a.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		var out []string
		for sb, err := range c.List(cmd.Context(), client.ListOptions{Statuses: []client.Status{client.Active}, PageSize: 200}) {
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			if strings.HasPrefix(sb.ID, toComplete) {
				out = append(out, sb.ID+"\t"+strings.TrimSpace(sb.Name()+" "+string(sb.Status)))
			}
			if name := sb.Name(); name != "" && strings.HasPrefix(name, toComplete) {
				out = append(out, name+"\t"+sb.ID)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
