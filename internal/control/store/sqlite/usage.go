package sqlite

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/store"
)

// usageSums are the columns of a cay.UsageRow after those that it is grouped by.
const usageSums = `count(DISTINCT sandbox_id), coalesce(sum(running_seconds), 0.0), coalesce(sum(paused_seconds), 0.0), coalesce(sum(cpu_seconds), 0.0),
	coalesce(sum(memory_mb_seconds), 0.0), coalesce(sum(allocated_cpu_seconds), 0.0), coalesce(sum(allocated_memory_mb_seconds), 0.0),
	coalesce(sum(allocated_disk_gb_seconds), 0.0), coalesce(sum(egress_bytes), 0)`

// usageGroups are the columns that usage may be grouped by, in the order of its rows.
var usageGroups = []struct {
	by     cay.UsageGroup
	column string
}{{cay.UsageByDay, "day"}, {cay.UsageByProject, "project_id"}, {cay.UsageBySandbox, "sandbox_id"}}

// Usage implements store.History.
func (s *Store) Usage(ctx context.Context, project cay.ID, q cay.UsageQuery) ([]cay.UsageRow, cay.UsageRow, string, error) {
	var total cay.UsageRow
	where, args := []string{"1"}, []any{}
	and := func(condition string, arg any) { where, args = append(where, condition), append(args, arg) }
	if !q.AllProjects {
		and("project_id = ?", string(project))
	}
	if q.SandboxID != "" {
		and("sandbox_id = ?", string(q.SandboxID))
	}
	if !q.From.IsZero() {
		and("day >= ?", micros(q.From))
	}
	if !q.To.IsZero() {
		and("day < ?", micros(q.To))
	}
	sum := "SELECT " + usageSums + " FROM usage_days WHERE " + strings.Join(where, " AND ")
	if err := s.read.QueryRowContext(ctx, sum, args...).Scan(sums(&total)...); err != nil {
		return nil, total, "", fmt.Errorf("sum up usage: %w", err)
	}
	if total.Sandboxes == 0 {
		return []cay.UsageRow{}, total, "", nil
	}

	// Always by all three: what is not grouped by is a constant, so that one form of row and cursor does for all.
	var columns, groups, marks []string
	for _, g := range usageGroups {
		if slices.Contains(q.GroupBy, g.by) {
			columns, groups, marks = append(columns, g.column), append(groups, g.column), append(marks, "?")
		} else if g.by == cay.UsageByDay {
			columns = append(columns, "0")
		} else {
			columns = append(columns, "''")
		}
	}
	if q.Cursor != "" {
		after, err := usageCursor(q)
		if err != nil {
			return nil, total, "", err
		}
		where = append(where, fmt.Sprintf("(%s) > (%s)", strings.Join(groups, ", "), strings.Join(marks, ", ")))
		args = append(args, after...)
	}
	query := "SELECT " + strings.Join(columns, ", ") + ", " + usageSums + " FROM usage_days WHERE " + strings.Join(where, " AND ")
	if len(groups) > 0 {
		by := strings.Join(groups, ", ")
		query += " GROUP BY " + by + " ORDER BY " + by
	}
	rows, err := s.read.QueryContext(ctx, query+" LIMIT ?", append(args, q.Limit+1)...)
	if err != nil {
		return nil, total, "", fmt.Errorf("sum up usage: %w", err)
	}
	defer rows.Close()
	items, next := []cay.UsageRow{}, ""
	for rows.Next() {
		var row cay.UsageRow
		var day int64
		if err := rows.Scan(append([]any{&day, &row.ProjectID, &row.SandboxID}, sums(&row)...)...); err != nil {
			return nil, total, "", fmt.Errorf("sum up usage: %w", err)
		}
		row.Day = fromMicros(day)
		if len(items) == q.Limit {
			last := items[len(items)-1]
			next = store.KeyCursor(strconv.FormatInt(micros(last.Day), 10), string(last.ProjectID), string(last.SandboxID))
			break
		}
		items = append(items, row)
	}
	if err := rows.Err(); err != nil {
		return nil, total, "", fmt.Errorf("sum up usage: %w", err)
	}
	return items, total, next, nil
}

// sums are where usageSums go.
func sums(r *cay.UsageRow) []any {
	return []any{&r.Sandboxes, &r.RunningSeconds, &r.PausedSeconds, &r.CPUSeconds, &r.MemoryMBSeconds, &r.AllocatedCPUSeconds, &r.AllocatedMemoryMBSeconds,
		&r.AllocatedDiskGBSeconds, &r.EgressBytes}
}

// usageCursor is the last row's place, in the columns that are grouped by.
func usageCursor(q cay.UsageQuery) ([]any, error) {
	parts, err := store.ParseKeyCursor(q.Cursor, len(usageGroups))
	if err != nil {
		return nil, err
	}
	day, err := strconv.ParseInt(parts[0], 10, 64)
	if err != nil || len(q.GroupBy) == 0 {
		return nil, store.ErrCursor()
	}
	all := []any{day, parts[1], parts[2]}
	var after []any
	for i, g := range usageGroups {
		if slices.Contains(q.GroupBy, g.by) {
			after = append(after, all[i])
		}
	}
	return after, nil
}

// EgressBytes implements store.History.
func (s *Store) EgressBytes(ctx context.Context) (int64, error) {
	n, err := s.reading.Total(ctx, totalEgress)
	if err != nil {
		return 0, fmt.Errorf("read the egress of all sandboxes: %w", err)
	}
	return n, nil
}
