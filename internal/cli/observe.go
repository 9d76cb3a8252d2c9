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

func (a *app) statsCommand() *cobra.Command {
	var since duration
	cmd := &cobra.Command{
		Use:   "stats SBX…",
		Short: "Show what sandboxes use",
		Long: "Stats shows the latest sample of each sandbox; with --since all of them since then, oldest first. With -o json it prints\n" +
			"the API's answers, one on a line.",
		Example: "  cay stats planner\n  cay stats --since 10m planner",
		Args:    atLeast(1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			o := client.MetricsOptions{}
			if since > 0 {
				o.From = time.Now().Add(-time.Duration(since))
			}
			if a.json() {
				for _, ref := range args {
					_, m, err := a.metrics(ctx, c, ref, o)
					if err == nil {
						err = a.printJSON(m.Raw)
					}
					if err != nil {
						return err
					}
				}
				return nil
			}
			type line struct {
				name   string
				sample client.Sample
			}
			var lines []line
			for _, ref := range args {
				sb, m, err := a.metrics(ctx, c, ref, o)
				if err != nil {
					return err
				}
				items := m.Items
				if since == 0 && len(items) > 1 {
					items = items[len(items)-1:]
				}
				name := sb
				if len(args) > 1 || since == 0 {
					name = ref
				}
				for _, s := range items {
					lines = append(lines, line{name, s})
				}
				if len(items) == 0 {
					a.note("there is no sample of %s yet", ref)
				}
			}
			return a.table("SANDBOX\tAT\tCPU\tMEMORY\tPEAK\tDISK\tPIDS\tNET IN\tNET OUT", func(row func(...any)) {
				for _, l := range lines {
					s := l.sample
					row(l.name, s.At.Local().Format(time.TimeOnly), strconv.FormatFloat(s.CPUCores*100, 'f', 1, 64)+"%", mb(s.MemoryMB), mb(s.PeakMemoryMB),
						mb(s.DiskMB), s.Pids, formatBytes(s.NetworkRxBytes), formatBytes(s.NetworkTxBytes))
				}
			})
		}),
		ValidArgsFunction: a.completeSandboxes(0),
	}
	cmd.Flags().Var(&since, "since", "every sample of the time before now, as in 10m or 2h")
	return cmd
}

func (a *app) metrics(ctx context.Context, c *client.Client, ref string, o client.MetricsOptions) (string, *client.Metrics, error) {
	id, err := resolve(ctx, c, ref, false)
	if err != nil {
		return "", nil, err
	}
	m, err := c.Metrics(ctx, id, o)
	return id, m, err
}

func mb(n float64) string { return formatBytes(int64(n * (1 << 20))) }

func (a *app) eventsCommand() *cobra.Command {
	var (
		o     client.FeedOptions
		types string
	)
	cmd := &cobra.Command{
		Use:   "events [-f] [SBX]",
		Short: "Show what happened to a sandbox, or in the project",
		Long: "Events prints what happened, oldest first, also of a sandbox that has ended: changes of status, processes killed for\n" +
			"memory, a full disk. Without SBX it is that of all sandboxes of the project, and the status of its jobs and sessions. With\n" +
			"-o json it prints the API's objects, one on a line.",
		Example: "  cay events planner\n  cay events -f -o json planner\n  cay events -f --types job_status",
		Args:    between(0, 1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 0 {
				return a.projectEvents(ctx, c, o, listOf(types))
			}
			if types != "" {
				return usagef("--types is for the events of the project: leave out SBX")
			}
			id, err := resolve(ctx, c, args[0], true)
			if err != nil {
				return err
			}
			for e, err := range c.Events(ctx, id, o) {
				switch {
				case err != nil:
				case a.json():
					err = a.printJSON(e)
				case e.Type == client.EventReset:
					a.note("older events are no longer kept")
				default:
					_, err = fmt.Fprintf(a.Stdout, "%s  %-9s  %s\n", e.At.Local().Format(time.DateTime), printable(e.Type), printable(dataText(e.Data)))
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on until the sandbox has ended; of the project, until interrupted")
	cmd.Flags().StringVar(&types, "types", "", "of the project only these `TYPES`, comma-joined: status, oom, disk_full, job_status, session_status")
	cmd.Flags().StringVar(&o.After, "after", "", "only what came after the event `ID`")
	return cmd
}

// dataText is an event's data on a line.
func dataText(data json.RawMessage) string {
	members, err := orderedMembers(data)
	if err != nil {
		return string(data)
	}
	parts := make([]string, 0, len(members))
	for _, m := range members {
		parts = append(parts, m.name+"="+plainJSON(m.value))
	}
	return strings.Join(parts, " ")
}
