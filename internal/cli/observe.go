package cli

import (
	"context"
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
	var o client.FeedOptions
	cmd := &cobra.Command{
		Use:   "events [-f] SBX",
		Short: "Show what happened to a sandbox",
		Long: "Events prints what happened, oldest first, also of a sandbox that has ended: changes of status, processes killed for\n" +
			"memory, a full disk. With -o json it prints the API's objects, one on a line.",
		Example: "  cay events planner\n  cay events -f -o json planner",
		Args:    exactly(1),
		RunE: a.do(func(ctx context.Context, c *client.Client, args []string) error {
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
					_, err = fmt.Fprintf(a.Stdout, "%s  %-9s  %s\n", e.At.Local().Format(time.DateTime), printable(e.Type), printable(detailsOf(e)))
				}
				if err != nil {
					return err
				}
			}
			return nil
		}),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.Flags().BoolVarP(&o.Follow, "follow", "f", false, "go on until the sandbox has ended")
	cmd.Flags().StringVar(&o.After, "after", "", "only what came after the event `ID`")
	return cmd
}

// detailsOf is an event's data on a line.
func detailsOf(e client.SandboxEvent) string {
	members, err := orderedMembers(e.Data)
	if err != nil {
		return string(e.Data)
	}
	parts := make([]string, 0, len(members))
	for _, m := range members {
		parts = append(parts, m.name+"="+plainJSON(m.value))
	}
	return strings.Join(parts, " ")
}
