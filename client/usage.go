package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// UsageGroup is what usage is summed up by.
type UsageGroup string

const (
	UsageByDay     UsageGroup = "day"
	UsageBySandbox UsageGroup = "sandbox"
	UsageByProject UsageGroup = "project"
)

// UsageAmounts are what was used.
type UsageAmounts struct {
	Sandboxes                int64   `json:"sandboxes"` // how many different ones
	RunningSeconds           float64 `json:"running_seconds"`
	PausedSeconds            float64 `json:"paused_seconds"`
	CPUSeconds               float64 `json:"cpu_seconds"`                 // really used
	MemoryMBSeconds          float64 `json:"memory_mb_seconds"`           // really used
	AllocatedCPUSeconds      float64 `json:"allocated_cpu_seconds"`       // promised cores × running seconds
	AllocatedMemoryMBSeconds float64 `json:"allocated_memory_mb_seconds"` // promised memory × running and paused seconds
	AllocatedDiskGBSeconds   float64 `json:"allocated_disk_gb_seconds"`   // promised disk × running and paused seconds
	EgressBytes              int64   `json:"egress_bytes"`
}

// UsageItem is a sum. Day, SandboxID and ProjectID are set where it was grouped by them.
type UsageItem struct {
	Day       string `json:"day"` // as in 2026-01-31, UTC
	SandboxID string `json:"sandbox_id"`
	ProjectID string `json:"project_id"`
	UsageAmounts

	Raw json.RawMessage `json:"-"` // the object as it came
}

// UnmarshalJSON keeps the object as it came in Raw.
func (u *UsageItem) UnmarshalJSON(data []byte) error {
	type plain UsageItem
	return keeping(data, (*plain)(u), &u.Raw)
}

// MarshalJSON writes the object as it came.
func (u UsageItem) MarshalJSON() ([]byte, error) {
	type plain UsageItem
	return orRaw(u.Raw, plain(u))
}

// UsageReport is what was used on some days, by day, project and sandbox.
type UsageReport struct {
	From    string       `json:"from"` // the first day, as in 2026-01-01
	To      string       `json:"to"`   // the last day, which is counted
	GroupBy []UsageGroup `json:"group_by"`
	Items   []UsageItem  `json:"items"`
	Total   UsageAmounts `json:"total"`
}

// UsageOptions selects usage; zero is that of each of the last 30 days.
type UsageOptions struct {
	From, To    time.Time // the first and the last day (UTC), whatever the time of day
	GroupBy     []UsageGroup
	SandboxID   string
	AllProjects bool // for keys with the scope admin
}

// Usage answers what the project's sandboxes have used, whether they still are or not. It reads all pages there are.
func (c *Client) Usage(ctx context.Context, o UsageOptions) (*UsageReport, error) {
	query := url.Values{"limit": {"200"}}
	for name, at := range map[string]time.Time{"from": o.From, "to": o.To} {
		if !at.IsZero() {
			query.Set(name, at.UTC().Format(time.DateOnly))
		}
	}
	setAll(query, map[string]string{"group_by": joined(o.GroupBy), "sandbox_id": o.SandboxID})
	if o.AllProjects {
		query.Set("all_projects", "true")
	}
	var all *UsageReport
	for {
		var p struct {
			UsageReport
			NextCursor string `json:"next_cursor"`
		}
		if _, err := c.json(ctx, &call{method: http.MethodGet, path: []string{"v1", "usage"}, query: query}, &p); err != nil {
			return nil, fmt.Errorf("get usage: %w", err)
		}
		if all == nil {
			all = &p.UsageReport
		} else {
			all.Items = append(all.Items, p.Items...)
		}
		switch p.NextCursor {
		case "":
			return all, nil
		case query.Get("cursor"):
			return nil, fmt.Errorf("get usage: %w", errStuck)
		}
		query.Set("cursor", p.NextCursor)
	}
}
