package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

// pastFlags are those of lists of what is over.
type pastFlags struct {
	since       duration
	allProjects bool
	limit       int
}

func (f *pastFlags) register(cmd *cobra.Command) {
	cmd.Flags().Var(&f.since, "since", "only of the time before now, as in 10m, 2h or 7d")
	cmd.Flags().BoolVar(&f.allProjects, "all-projects", false, "of every project; needs a key with the scope admin")
	cmd.Flags().IntVarP(&f.limit, "limit", "n", 50, "`NUMBER` of lines at most; 0: all there are")
}

func (f *pastFlags) from() time.Time {
	if f.since == 0 {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(f.since))
}

// pageSize is how many to ask for at once.
func (f *pastFlags) pageSize() int {
	if f.limit == 0 {
		return 200
	}
	return min(f.limit, 200)
}

func (a *app) historyCommand() *cobra.Command {
	list := a.historyListCommand("history")
	list.Long = "History lists what ran and what was there, newest end first: commands, programs, background processes and terminals, jobs,\n" +
		"sessions and sandboxes, once they are over. With -o json it prints a list of the API's objects."
	list.Example = "  cay history --failed --since 1d\n  cay history --kind exec,code --sandbox planner\n  cay history show PRC"
	list.AddCommand(a.historyListCommand("ls"), a.historyShowCommand())
	return list
}

func (a *app) historyListCommand(name string) *cobra.Command {
	var (
		past                                  pastFlags
		kind, sandbox, session, key, outcomes string
		failed                                bool
		text                                  string
	)
	cmd := &cobra.Command{
		Use: name, Short: "List what ran, once it is over", Args: exactly(0),
		Long:    "Ls lists what ran and what was there, newest end first. With -o json it prints a list of the API's objects.",
		Example: "  cay history ls --text pytest",
		RunE: a.do(func(ctx context.Context, c *client.Client, _ []string) error {
			o := client.HistoryOptions{KeyID: key, Text: text, From: past.from(), AllProjects: past.allProjects, PageSize: past.pageSize()}
			for _, k := range listOf(kind) {
				o.Kinds = append(o.Kinds, client.RecordKind(k))
			}
			o.Outcomes = listOf(outcomes)
			if failed {
				ok := false
				o.OK = &ok
			}
			var err error
			if sandbox != "" {
				if o.SandboxID, err = resolve(ctx, c, sandbox, true); err != nil {
					return err
				}
			}
			if session != "" {
				if o.SessionID, err = resolveSession(ctx, c, session, true); err != nil {
					return err
				}
			}
			items := []*client.Record{}
			for r, err := range c.History().List(ctx, o) {
				if err != nil {
					return err
				}
				if items = append(items, r); len(items) == past.limit {
					break
				}
			}
			if a.json() {
				return a.printJSON(items)
			}
			return a.table("ID\tKIND\tENDED\tTOOK\tOUTCOME\tEXIT\tWHAT", func(row func(...any)) {
				for _, r := range items {
					row(r.ID, r.Kind, ago(r.EndedAt), tookText(r.Duration), r.Outcome, exitText(r.ExitCode), whatText(r))
				}
			})
		}),
	}
	past.register(cmd)
	cmd.Flags().StringVar(&kind, "kind", "", "`KINDS`, comma-joined: sandbox, job, session, exec, code, process, terminal")
	cmd.Flags().StringVar(&sandbox, "sandbox", "", "only what ran in `SBX`")
	cmd.Flags().StringVar(&session, "session", "", "only what could reach the files of `SES`")
	cmd.Flags().StringVar(&key, "key", "", "only what was asked for by the key with that `ID`")
	cmd.Flags().StringVar(&outcomes, "outcome", "", "`OUTCOMES`, comma-joined, as in timeout,oom")
	cmd.Flags().BoolVar(&failed, "failed", false, "only what did not end as one would wish")
	cmd.Flags().StringVar(&text, "text", "", "only what has `TEXT` in its command or name")
	cmd.RegisterFlagCompletionFunc("sandbox", a.completeSandboxes(1))
	return cmd
}

func listOf(joined string) []string {
	if joined == "" {
		return nil
	}
	return strings.Split(joined, ",")
}

func tookText(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(time.Millisecond).String()
	}
	return shortDuration(d)
}

func exitText(code *int) string {
	if code == nil {
		return ""
	}
	return strconv.Itoa(*code)
}

// maxWhat is how much of a command a line of the table shows.
const maxWhat = 60

// whatText is a record's command, or else its name, on part of a line.
func whatText(r *client.Record) string {
	text := r.Command
	if text == "" {
		text = r.Name
	}
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > maxWhat {
		text = string(runes[:maxWhat-1]) + "…"
	}
	return text
}

func (a *app) historyShowCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID…", Short: "Show records of what ran", Args: atLeast(1),
		Long: "Show prints the records of processes, jobs, sessions or sandboxes that are over, by their ids. With -o json it prints the API's objects,\n" +
			"one on a line.",
		Example: "  cay history show prc_01k…",
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			return a.inspectEach(args, func(id string) (json.RawMessage, error) {
				r, err := c.History().Get(ctx, id)
				if err != nil {
					return nil, err
				}
				return r.Raw, nil
			})
		}),
	}
}

func (a *app) usageCommand() *cobra.Command {
	var (
		from, to, by, sandbox string
		allProjects           bool
	)
	cmd := &cobra.Command{
		Use: "usage", Short: "Show what sandboxes have used", Args: exactly(0),
		Long: "Usage sums up what the project's sandboxes have used, also those that are gone: by day (UTC), sandbox or project. Promised\n" +
			"cores, memory and disk count whether they were used or not. With -o json it prints an object with all items and the total.",
		Example: "  cay usage\n  cay usage --from 2026-11-01 --to 2026-11-30 --by day,sandbox",
		RunE: a.do(func(ctx context.Context, c *client.Client, _ []string) error {
			o := client.UsageOptions{AllProjects: allProjects}
			var err error
			if o.From, err = dayOf("--from", from); err != nil {
				return err
			}
			if o.To, err = dayOf("--to", to); err != nil {
				return err
			}
			for _, g := range listOf(by) {
				o.GroupBy = append(o.GroupBy, client.UsageGroup(g))
			}
			if sandbox != "" {
				if o.SandboxID, err = resolve(ctx, c, sandbox, true); err != nil {
					return err
				}
			}
			u, err := c.Usage(ctx, o)
			if err != nil {
				return err
			}
			if a.json() {
				return a.printJSON(u)
			}
			return a.table(usageHead(u.GroupBy)+"SANDBOXES\tRUNNING\tPAUSED\tCPU USED\tCPU\tMEMORY\tDISK\tEGRESS", func(row func(...any)) {
				for _, i := range u.Items {
					row(append(groupCells(u.GroupBy, i.Day, i.SandboxID, i.ProjectID), amountCells(i.UsageAmounts)...)...)
				}
				row(append(totalCells(u.GroupBy), amountCells(u.Total)...)...)
			})
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "the first `DAY`, as in 2026-11-01 (default: 29 days before the last)")
	cmd.Flags().StringVar(&to, "to", "", "the last `DAY` (default: today)")
	cmd.Flags().StringVar(&by, "by", "day", "`GROUPS`, comma-joined: day, sandbox, project")
	cmd.Flags().StringVar(&sandbox, "sandbox", "", "only that of `SBX`")
	cmd.Flags().BoolVar(&allProjects, "all-projects", false, "of every project; needs a key with the scope admin")
	cmd.RegisterFlagCompletionFunc("sandbox", a.completeSandboxes(1))
	return cmd
}

func dayOf(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.DateOnly, text)
	if err != nil {
		return t, usagef("%s: %q is not a day such as 2026-11-30", flag, text)
	}
	return t, nil
}

func usageHead(groups []client.UsageGroup) string {
	var b strings.Builder
	for _, g := range groups {
		b.WriteString(strings.ToUpper(string(g)) + "\t")
	}
	return b.String()
}

func groupCells(groups []client.UsageGroup, day, sandbox, project string) []any {
	var cells []any
	for _, g := range groups {
		cells = append(cells, map[client.UsageGroup]string{client.UsageByDay: day, client.UsageBySandbox: sandbox, client.UsageByProject: project}[g])
	}
	return cells
}

func totalCells(groups []client.UsageGroup) []any {
	cells := []any{"total"}
	for range groups[min(1, len(groups)):] {
		cells = append(cells, "")
	}
	return cells
}

// amountCells are hours of cores, and gigabytes times hours of memory and disk.
func amountCells(u client.UsageAmounts) []any {
	hours := func(seconds float64, unit string) string { return strconv.FormatFloat(seconds/3600, 'f', 3, 64) + unit }
	return []any{
		u.Sandboxes, hours(u.RunningSeconds, "h"), hours(u.PausedSeconds, "h"), hours(u.CPUSeconds, "h"), hours(u.AllocatedCPUSeconds, "h"),
		hours(u.AllocatedMemoryMBSeconds/1024, " GBh"), hours(u.AllocatedDiskGBSeconds, " GBh"), formatBytes(u.EgressBytes),
	}
}

func (a *app) auditCommand() *cobra.Command {
	var (
		past                pastFlags
		key, action, object string
	)
	cmd := &cobra.Command{
		Use: "audit", Short: "List who changed what, and who was refused", Args: exactly(0),
		Long: "Audit lists the requests that changed something, and those that were refused for who asked, newest first. It needs a key with\n" +
			"the scope admin. With -o json it prints a list of the API's objects.",
		Example: "  cay audit --since 1d\n  cay audit --action delete-sandbox -o json",
		RunE: a.do(func(ctx context.Context, c *client.Client, _ []string) error {
			o := client.AuditOptions{KeyID: key, Action: action, Object: object, From: past.from(), AllProjects: past.allProjects, PageSize: past.pageSize()}
			items := []*client.AuditEntry{}
			for e, err := range c.Audit().List(ctx, o) {
				if err != nil {
					return err
				}
				if items = append(items, e); len(items) == past.limit {
					break
				}
			}
			if a.json() {
				return a.printJSON(items)
			}
			return a.table("AT\tKEY\tACTION\tOBJECT\tSTATUS\tFROM", func(row func(...any)) {
				for _, e := range items {
					status := strconv.Itoa(e.Status)
					if e.Reason != "" {
						status += " " + e.Reason
					}
					row(e.At.Local().Format(time.DateTime), e.KeyID, e.Action, e.Object, status, e.RemoteAddr)
				}
			})
		}),
	}
	past.register(cmd)
	cmd.Flags().StringVar(&key, "key", "", "only requests with the key of that `ID`")
	cmd.Flags().StringVar(&action, "action", "", "only those of an `OPERATION` of the API, as in create-sandbox")
	cmd.Flags().StringVar(&object, "object", "", "only those about what has that `ID`")
	return cmd
}

// projectEvents prints what happened in the project.
func (a *app) projectEvents(ctx context.Context, c *client.Client, o client.FeedOptions, types []string) error {
	for e, err := range c.ProjectEvents(ctx, client.ProjectEventOptions{FeedOptions: o, Types: types}) {
		switch {
		case err != nil:
		case a.json():
			err = a.printJSON(e)
		case e.Type == client.EventReset:
			a.note("older events are no longer kept")
		default:
			of := e.SandboxID
			if e.JobID != "" {
				of = e.JobID
			} else if e.SessionID != "" {
				of = e.SessionID
			}
			_, err = fmt.Fprintf(a.Stdout, "%s  %-14s  %s  %s\n", e.At.Local().Format(time.DateTime), printable(e.Type), printable(of), printable(dataText(e.Data)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
