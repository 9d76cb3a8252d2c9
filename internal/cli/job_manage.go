package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

var jobStatuses = []string{
	string(client.JobActive), string(client.JobQueued), string(client.JobRunning), string(client.JobSuccess), string(client.JobFailed),
	string(client.JobTimeout), string(client.JobCanceled), string(client.JobError),
}

func (a *app) jobListCommand() *cobra.Command {
	var (
		all, quiet bool
		statuses   []string
		session    string
		metadata   metadataFlags
		most       int
	)
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List jobs",
		Long:    "Ls lists the jobs that have not finished, newest first. With -o json it prints a list of the API's objects.",
		Example: "  cay job ls\n  cay job ls -a -n 20\n  cay job ls --status failed,timeout --session planner\n  cay job cancel $(cay job ls -q --metadata agent=planner)",
		Args:    exactly(0),
		RunE: a.do(func(ctx context.Context, c *client.Client, _ []string) error {
			o := client.JobListOptions{PageSize: 200}
			if most > 0 {
				o.PageSize = min(most, o.PageSize)
			}
			switch {
			case all && len(statuses) > 0:
				return usagef("give -a or --status, not both")
			case !all && len(statuses) == 0:
				o.Statuses = []client.JobStatus{client.JobActive}
			}
			for _, s := range statuses {
				o.Statuses = append(o.Statuses, client.JobStatus(s))
			}
			var err error
			if o.Metadata, err = metadata.collect(); err != nil {
				return err
			}
			if session != "" {
				if o.SessionID, err = resolveSession(ctx, c, session, true); err != nil {
					return err
				}
			}
			items := []*client.Job{}
			for j, err := range c.Jobs().List(ctx, o) {
				if err != nil {
					return err
				}
				if items = append(items, j); len(items) == most {
					break
				}
			}
			return a.printJobs(items, quiet)
		}),
	}
	fs := cmd.Flags()
	fs.BoolVarP(&all, "all", "a", false, "also those that have finished")
	fs.BoolVarP(&quiet, "quiet", "q", false, "ids only")
	fs.IntVarP(&most, "last", "n", 0, "no more than the newest `N`")
	fs.StringSliceVar(&statuses, "status", nil, "only those with this `STATUS`, or one of several joined by commas: active, queued, running, success, failed, timeout, canceled, error")
	fs.StringVar(&session, "session", "", "only those of the session `SES`")
	metadata.registerFilter(fs)
	cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(jobStatuses, cobra.ShellCompDirectiveNoFileComp))
	cmd.RegisterFlagCompletionFunc("session", a.completeSessions(0))
	return cmd
}

func (a *app) printJobs(items []*client.Job, quiet bool) error {
	switch {
	case quiet:
		for _, j := range items {
			if _, err := fmt.Fprintln(a.Stdout, j.ID); err != nil {
				return err
			}
		}
		return nil
	case a.json():
		return a.printJSON(items)
	}
	return a.table("ID\tSTATUS\tLANGUAGE\tAGE\tTOOK\tSESSION\tMETADATA", func(row func(...any)) {
		for _, j := range items {
			row(j.ID, jobStatusText(j), j.Language, ago(j.QueuedAt), took(j), j.SessionID, metadataText(j.Metadata))
		}
	})
}

func jobStatusText(j *client.Job) string {
	switch {
	case j.Fault != nil:
		return fmt.Sprintf("%s (%s)", j.Status, j.Fault.Reason)
	case j.Status == client.JobFailed && j.ExitCode != nil:
		return fmt.Sprintf("%s (%d)", j.Status, *j.ExitCode)
	}
	return string(j.Status)
}

// took is how long the program ran, or runs.
func took(j *client.Job) string {
	switch {
	case j.Status == client.JobRunning && !j.StartedAt.IsZero():
		return ago(j.StartedAt)
	case j.StartedAt.IsZero():
		return ""
	case j.Duration < 10*time.Second:
		return j.Duration.Round(time.Millisecond).String()
	}
	return shortDuration(j.Duration)
}

func (a *app) jobInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "inspect JOB…",
		Short:             "Show everything about jobs",
		Long:              "Inspect shows jobs, with what they wrote so far. With -o json it prints the API's objects, one on a line.",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeJobs(0, true),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			return a.inspectEach(args, func(ref string) (json.RawMessage, error) {
				id, err := resolveJob(ctx, c, ref)
				if err != nil {
					return nil, err
				}
				j, err := c.Jobs().Get(ctx, id)
				if err != nil {
					return nil, err
				}
				return j.Raw, nil
			})
		}),
	}
}

func (a *app) jobLogsCommand() *cobra.Command {
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs [-f] JOB",
		Short: "Print the output of a job",
		Long: "Logs prints what a job has written so far, its standard error on standard error; with -f it goes on until the job has\n" +
			"finished. With -o json it prints the API's frames, one on a line.",
		Example:           "  cay job logs job_…\n  cay job logs -f job_…",
		Args:              exactly(1),
		ValidArgsFunction: a.completeJobs(1, true),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := resolveJob(ctx, c, args[0])
			if err != nil {
				return err
			}
			j, err := c.Jobs().Get(ctx, id)
			if err != nil {
				return err
			}
			left := newRest(j)
			if follow || j.Status.Finished() {
				left = nil
			}
			if left.none() {
				return nil
			}
			for f, err := range c.Jobs().Stream(ctx, id, 0) {
				switch {
				case err != nil:
				case left.passed(f):
					return nil
				case a.json():
					err = a.printJSON(f)
				default:
					err = a.printFrame(f)
				}
				if err != nil {
					return err
				}
				if left.none() {
					return nil
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job has finished")
	return cmd
}

// rest is what is still to come of the output that a job has written so far. Nil never ends.
type rest struct{ attempt, bytes int64 }

func newRest(j *client.Job) *rest { return &rest{j.Attempt, j.StdoutSize + j.StderrSize} }

// passed counts a frame, and reports whether it is of a later attempt, whose output is another.
func (r *rest) passed(f *client.JobFrame) bool {
	if r == nil {
		return false
	}
	r.bytes -= int64(len(f.Data)) + f.Bytes
	return f.Type == client.FrameStatus && f.Attempt > r.attempt
}

func (r *rest) none() bool { return r != nil && r.bytes <= 0 }

func (a *app) jobWaitCommand() *cobra.Command {
	var save string
	cmd := &cobra.Command{
		Use:   "wait JOB…",
		Short: "Wait until jobs have finished and print their statuses",
		Long: "Wait prints success, failed, timeout, canceled or error for each job, or with -o json the API's object, and exits with 0\n" +
			"however they ended.",
		Example:           "  cay job wait job_…\n  cay job wait --save results job_…",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeJobs(0, false),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			if save != "" && len(args) > 1 {
				return usagef("--save is of one job")
			}
			for _, ref := range args {
				id, err := resolveJob(ctx, c, ref)
				if err != nil {
					return err
				}
				j, err := c.Jobs().Wait(ctx, id)
				switch {
				case err != nil:
				case a.json():
					err = a.printJSON(j)
				default:
					_, err = fmt.Fprintln(a.Stdout, printable(string(j.Status)))
				}
				if err == nil && save != "" {
					err = a.saveOutcome(a.outputsOf(ctx, c, id), &client.CodeOutcome{Outputs: j.Outputs}, save)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&save, "save", "", "put files that it wrote to /output into the folder `DIR`")
	return cmd
}

func (a *app) jobCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel JOB…",
		Short: "End jobs",
		Long: "Cancel ends jobs and prints their ids: one that is queued does not run, the program of one that runs is killed and what it wrote\n" +
			"is kept, one that has finished stays as it is.",
		Args:              atLeast(1),
		ValidArgsFunction: a.completeJobs(0, false),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			return a.eachRef(args, func(ref string) (string, error) { return resolveJob(ctx, c, ref) }, func(id string) (any, error) {
				j, err := c.Jobs().Cancel(ctx, id)
				if err == nil && !j.Status.Finished() {
					a.note("the job %s is still ending", id)
				}
				return j, err
			})
		}),
	}
}

// metadataText is metadata on a line.
func metadataText(m map[string]string) string {
	parts := make([]string, 0, len(m))
	for k, v := range m {
		parts = append(parts, k+"="+v)
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
