package cli

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

const (
	sandboxPrefix = "sbx_"
	jobPrefix     = "job_"
	sessionPrefix = "ses_"

	idBodyLen = 26
	maxNamed  = 5 // candidates named in an error
)

// isID reports whether s is a whole id with the prefix, which needs no looking up.
func isID(prefix, s string) bool {
	body, ok := strings.CutPrefix(s, prefix)
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
	if isID(sandboxPrefix, ref) {
		return ref, nil
	}
	if isID(jobPrefix, ref) || isID(sessionPrefix, ref) {
		return "", usagef("%s is not a sandbox; see: cay job --help, cay session --help", ref)
	}
	search := func(o client.ListOptions) (string, error) {
		o.PageSize = 200
		return lookup(sandboxPrefix, ref, c.List(ctx, o), func(sb *client.Sandbox) (id, name string) { return sb.ID, sb.Name() })
	}
	id, err := search(client.ListOptions{Statuses: []client.Status{client.Active}})
	if err == nil && id == "" && ended {
		id, err = search(client.ListOptions{})
	}
	return found(id, err, "sandbox", ref, "cay ps")
}

// resolveJob finds the job that ref means: a whole id or the beginning of one.
func resolveJob(ctx context.Context, c *client.Client, ref string) (string, error) {
	if isID(jobPrefix, ref) {
		return ref, nil
	}
	id, err := lookup(jobPrefix, ref, c.Jobs().List(ctx, client.JobListOptions{PageSize: 200}), func(j *client.Job) (id, name string) { return j.ID, "" })
	return found(id, err, "job", ref, "cay job ls -a")
}

// resolveSession finds the session that ref means: a whole id, its name, or the beginning of an id. Those that have ended count only
// where ended is set and no other fits.
func resolveSession(ctx context.Context, c *client.Client, ref string, ended bool) (string, error) {
	if isID(sessionPrefix, ref) {
		return ref, nil
	}
	search := func(o client.SessionListOptions) (string, error) {
		o.PageSize = 200
		return lookup(sessionPrefix, ref, c.Sessions().List(ctx, o), func(s *client.SessionInfo) (id, name string) { return s.ID, s.Name })
	}
	id, err := search(client.SessionListOptions{})
	if err == nil && id == "" && ended {
		id, err = search(client.SessionListOptions{Statuses: endedSessions})
	}
	return found(id, err, "session", ref, "cay session ls")
}

var endedSessions = []client.SessionStatus{client.SessionDeleting, client.SessionDeleted}

// found answers the id, or an error that says where to look.
func found(id string, err error, noun, ref, list string) (string, error) {
	if err == nil && id == "" {
		err = &client.Error{Reason: client.ReasonNotFound, Detail: fmt.Sprintf("there is no %s %q; see them with: %s", noun, ref, list)}
	}
	return id, err
}

// lookup finds the one thing that has the name ref, else the one whose id begins with it; "" is none.
func lookup[T any](prefix, ref string, things iter.Seq2[T, error], describe func(T) (id, name string)) (string, error) {
	var named, prefixed []string
	for thing, err := range things {
		if err != nil {
			return "", err
		}
		id, name := describe(thing)
		if name == ref && name != "" {
			named = append(named, id)
		}
		if isPrefix(prefix, ref, id) {
			prefixed = append(prefixed, id)
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

func isPrefix(prefix, ref, id string) bool {
	if ref == "" || ref == prefix {
		return false
	}
	return strings.HasPrefix(id, ref) || strings.HasPrefix(strings.TrimPrefix(id, prefix), ref)
}

// completeSandboxes offers ids, with their names beside them; at most max arguments are sandboxes, 0: all.
func (a *app) completeSandboxes(max int) cobra.CompletionFunc {
	return completeRefs(a, max, func(ctx context.Context, c *client.Client) iter.Seq2[*client.Sandbox, error] {
		return c.List(ctx, client.ListOptions{Statuses: []client.Status{client.Active}, PageSize: 200})
	}, func(sb *client.Sandbox) (id, name, about string) { return sb.ID, sb.Name(), string(sb.Status) })
}

// completeJobs offers the ids of jobs that have not finished or, where finished is set, of the newest of all.
func (a *app) completeJobs(max int, finished bool) cobra.CompletionFunc {
	o := client.JobListOptions{Statuses: []client.JobStatus{client.JobActive}, PageSize: 200}
	if finished {
		o.Statuses = nil
	}
	return completeRefs(a, max, func(ctx context.Context, c *client.Client) iter.Seq2[*client.Job, error] {
		return c.Jobs().List(ctx, o)
	},
		func(j *client.Job) (id, name, about string) { return j.ID, "", string(j.Status) + " " + j.Language })
}

// completeSessions offers ids of sessions, with their names beside them.
func (a *app) completeSessions(max int) cobra.CompletionFunc {
	return completeRefs(a, max, func(ctx context.Context, c *client.Client) iter.Seq2[*client.SessionInfo, error] {
		return c.Sessions().List(ctx, client.SessionListOptions{PageSize: 200})
	}, func(s *client.SessionInfo) (id, name, about string) { return s.ID, s.Name, string(s.Status) })
}

const maxOffered = 200 // completions

// completeRefs offers ids and names of things that begin with what was typed.
func completeRefs[T any](a *app, max int, things func(context.Context, *client.Client) iter.Seq2[T, error],
	describe func(T) (id, name, about string)) cobra.CompletionFunc {
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
		for thing, err := range things(cmd.Context(), c) {
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			id, name, about := describe(thing)
			if strings.HasPrefix(id, toComplete) {
				out = append(out, id+"\t"+strings.TrimSpace(name+" "+about))
			}
			if name != "" && strings.HasPrefix(name, toComplete) {
				out = append(out, name+"\t"+id)
			}
			if len(out) >= maxOffered {
				break
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
