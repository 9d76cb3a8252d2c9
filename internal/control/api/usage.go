package api

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/cayhq/cay"
)

const (
	defaultUsageDays = 30
	dayForm          = "2006-01-02"
)

// Amounts are what was used. Of what is promised, usage counts it whether it was used or not.
type Amounts struct {
	Sandboxes                int64   `json:"sandboxes" doc:"How many different ones"`
	RunningSeconds           float64 `json:"running_seconds"`
	PausedSeconds            float64 `json:"paused_seconds"`
	CPUSeconds               float64 `json:"cpu_seconds" doc:"Really used"`
	MemoryMBSeconds          float64 `json:"memory_mb_seconds" doc:"Really used"`
	AllocatedCPUSeconds      float64 `json:"allocated_cpu_seconds" doc:"Promised cores × running seconds"`
	AllocatedMemoryMBSeconds float64 `json:"allocated_memory_mb_seconds" doc:"Promised memory × running and paused seconds"`
	AllocatedDiskGBSeconds   float64 `json:"allocated_disk_gb_seconds" doc:"Promised disk × running and paused seconds"`
	EgressBytes              int64   `json:"egress_bytes"`
}

func amountsOf(r cay.UsageRow) Amounts {
	// Thousandths: below that there is only the noise of sums of binary fractions.
	round := func(v float64) float64 { return math.Round(v*1000) / 1000 }
	return Amounts{
		Sandboxes: r.Sandboxes, RunningSeconds: round(r.RunningSeconds), PausedSeconds: round(r.PausedSeconds),
		CPUSeconds: round(r.CPUSeconds), MemoryMBSeconds: round(r.MemoryMBSeconds), AllocatedCPUSeconds: round(r.AllocatedCPUSeconds),
		AllocatedMemoryMBSeconds: round(r.AllocatedMemoryMBSeconds), AllocatedDiskGBSeconds: round(r.AllocatedDiskGBSeconds), EgressBytes: r.EgressBytes,
	}
}

type usageItem struct {
	Day       string `json:"day,omitzero" format:"date" doc:"UTC; with group_by=day"`
	SandboxID cay.ID `json:"sandbox_id,omitzero" doc:"With group_by=sandbox"`
	ProjectID cay.ID `json:"project_id,omitzero" doc:"With group_by=project"`
	Amounts
}

type usageReport struct {
	From       string           `json:"from" format:"date" doc:"The first day, UTC"`
	To         string           `json:"to" format:"date" doc:"The last day, UTC; it is counted"`
	GroupBy    []cay.UsageGroup `json:"group_by"`
	Items      []usageItem      `json:"items" doc:"By day, project and sandbox. What used nothing is left out"`
	Total      Amounts          `json:"total" doc:"Of all items, not of this page alone"`
	NextCursor *string          `json:"next_cursor" doc:"Give it as cursor for what follows; null at the end"`
}

type getUsageInput struct {
	From        string `query:"from" doc:"The first day (UTC), as a date or a time (RFC 3339) of it; default: 29 days before to" example:"2026-01-02"`
	To          string `query:"to" doc:"The last day (UTC): a date, which is counted whole, or a time, of which the day just before it is the last; default: today" example:"2026-01-31"`
	GroupBy     string `query:"group_by" default:"day" doc:"Comma-joined: day, sandbox, project" example:"day,sandbox"`
	SandboxID   string `query:"sandbox_id"`
	AllProjects bool   `query:"all_projects" doc:"Of every project, for keys with the scope admin"`
	Limit       int    `query:"limit" default:"50" minimum:"1" maximum:"200"`
	Cursor      string `query:"cursor" doc:"next_cursor of the page before"`
}

type getUsageOutput struct {
	Body usageReport
}

func midnight(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// dayOf reads a day: a date, or a time in it. before is taken off a time, and not off a date.
func dayOf(field, s string, before time.Duration, otherwise time.Time) (time.Time, error) {
	if s == "" {
		return midnight(otherwise), nil
	}
	if t, err := time.Parse(dayForm, s); err == nil {
		return t, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}, cay.Errorf(cay.InvalidRequest, "`%s` must be a date such as 2026-01-02, or a time such as 2026-01-02T15:04:05Z", field).On(field)
	}
	return midnight(t.Add(-before)), nil
}

func (in *getUsageInput) query(ctx context.Context, now time.Time) (cay.UsageQuery, error) {
	q := cay.UsageQuery{AllProjects: in.AllProjects, Limit: in.Limit, Cursor: in.Cursor}
	if err := checkCursor(in.Cursor); err != nil {
		return q, err
	}
	last, err := dayOf("to", in.To, 1, now)
	if err != nil {
		return q, err
	}
	if q.From, err = dayOf("from", in.From, 0, last.AddDate(0, 0, 1-defaultUsageDays)); err != nil {
		return q, err
	}
	if q.From.After(last) {
		return q, cay.Errorf(cay.InvalidRequest, "`from` must not be after `to`").On("from")
	}
	q.To = last.AddDate(0, 0, 1)
	groups, err := words("group_by", in.GroupBy, []string{string(cay.UsageByDay), string(cay.UsageBySandbox), string(cay.UsageByProject)})
	if err != nil {
		return q, err
	}
	slices.Sort(groups)
	q.GroupBy = fromStrings[cay.UsageGroup](slices.Compact(groups))
	if len(q.GroupBy) == 0 {
		q.GroupBy = []cay.UsageGroup{cay.UsageByDay}
	}
	if q.SandboxID, err = idParam("sandbox_id", cay.PrefixSandbox, in.SandboxID); err != nil {
		return q, err
	}
	return q, mayAsk(ctx, in.AllProjects)
}

func (a *API) getUsage(ctx context.Context, in *getUsageInput) (*getUsageOutput, error) {
	q, err := in.query(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	rows, total, next, err := a.History.Usage(ctx, exchangeOf(ctx).identity.ProjectID, q)
	if err != nil {
		return nil, err
	}
	report := usageReport{
		From: q.From.Format(dayForm), To: q.To.AddDate(0, 0, -1).Format(dayForm), GroupBy: q.GroupBy,
		Items: make([]usageItem, len(rows)), Total: amountsOf(total), NextCursor: nullable(next),
	}
	for i, r := range rows {
		report.Items[i] = usageItem{SandboxID: r.SandboxID, ProjectID: r.ProjectID, Amounts: amountsOf(r)}
		if !r.Day.IsZero() {
			report.Items[i].Day = r.Day.UTC().Format(dayForm)
		}
	}
	return &getUsageOutput{Body: report}, nil
}
