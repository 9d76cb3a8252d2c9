package cay

import (
	"slices"
	"time"
)

// UsageAmounts is what was used within some time. It only ever grows by what a write of the sandbox's row says, in that same write, so
// that nothing is counted twice and nothing that was acknowledged is lost.
type UsageAmounts struct {
	RunningSeconds           float64 // READY
	PausedSeconds            float64 // PAUSED
	CPUSeconds               float64 // really used
	MemoryMBSeconds          float64 // really used
	AllocatedCPUSeconds      float64 // promised cores × running seconds
	AllocatedMemoryMBSeconds float64 // promised memory × running and paused seconds
	AllocatedDiskGBSeconds   float64 // promised disk × running and paused seconds
	EgressBytes              int64
}

// Add adds b to a.
func (a *UsageAmounts) Add(b UsageAmounts) {
	a.RunningSeconds += b.RunningSeconds
	a.PausedSeconds += b.PausedSeconds
	a.CPUSeconds += b.CPUSeconds
	a.MemoryMBSeconds += b.MemoryMBSeconds
	a.AllocatedCPUSeconds += b.AllocatedCPUSeconds
	a.AllocatedMemoryMBSeconds += b.AllocatedMemoryMBSeconds
	a.AllocatedDiskGBSeconds += b.AllocatedDiskGBSeconds
	a.EgressBytes += b.EgressBytes
}

// Zero reports whether nothing was used.
func (a UsageAmounts) Zero() bool { return a == UsageAmounts{} }

// scaled is the part of a that falls into a part of its time. Bytes are not split: they go to the last part.
func (a UsageAmounts) scaled(part float64, last bool) UsageAmounts {
	bytes := a.EgressBytes
	if !last {
		bytes = 0
	}
	return UsageAmounts{
		RunningSeconds: a.RunningSeconds * part, PausedSeconds: a.PausedSeconds * part,
		CPUSeconds: a.CPUSeconds * part, MemoryMBSeconds: a.MemoryMBSeconds * part,
		AllocatedCPUSeconds: a.AllocatedCPUSeconds * part, AllocatedMemoryMBSeconds: a.AllocatedMemoryMBSeconds * part,
		AllocatedDiskGBSeconds: a.AllocatedDiskGBSeconds * part, EgressBytes: bytes,
	}
}

// UsageOfDay is what one sandbox used on one day (UTC).
type UsageOfDay struct {
	Day time.Time // its midnight
	UsageAmounts
}

// Accrue is what a sandbox used between two states of its row, by day: before is the row as it was written last, after as it is to be
// written, and the time between is from before.AccountedAt to after.AccountedAt, all of it in before's status. Time
// counts while it is READY or PAUSED: how long it takes to be gone after its end was asked for is not its owner's. What the node measured
// is spread evenly over the time. It answers nil when nothing is to be added.
func Accrue(before, after *Sandbox) []UsageOfDay {
	from, to := before.AccountedAt, after.AccountedAt
	if to.IsZero() {
		to = latest(after.CreatedAt, after.LastActiveAt, after.EndedAt) // it never ran; what was measured meanwhile counts
	}
	if from.IsZero() {
		from = to
	}
	var all UsageAmounts
	if seconds := to.Sub(from).Seconds(); seconds > 0 {
		switch before.Status {
		case Ready:
			all.RunningSeconds = seconds
			all.AllocatedCPUSeconds = seconds * before.Spec.CPU
			all.AllocatedMemoryMBSeconds = seconds * float64(before.Spec.MemoryMB)
			all.AllocatedDiskGBSeconds = seconds * before.Spec.DiskGB
		case Paused:
			all.PausedSeconds = seconds
			all.AllocatedMemoryMBSeconds = seconds * float64(before.Spec.MemoryMB)
			all.AllocatedDiskGBSeconds = seconds * before.Spec.DiskGB
		}
	}
	all.CPUSeconds = max(0, after.Usage.CPUSeconds-before.Usage.CPUSeconds)
	all.MemoryMBSeconds = max(0, after.Usage.MemoryMBSeconds-before.Usage.MemoryMBSeconds)
	all.EgressBytes = max(0, after.Usage.EgressBytes-before.Usage.EgressBytes)
	if all.Zero() {
		return nil
	}
	if !to.After(from) {
		return []UsageOfDay{{day(to), all}}
	}
	var days []UsageOfDay
	for whole := to.Sub(from); from.Before(to); {
		end := day(from).AddDate(0, 0, 1)
		if end.After(to) {
			end = to
		}
		days = append(days, UsageOfDay{day(from), all.scaled(float64(end.Sub(from))/float64(whole), end.Equal(to))})
		from = end
	}
	return days
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

func day(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// UsageGroup is what usage is summed up by.
type UsageGroup string

const (
	UsageByDay     UsageGroup = "day"
	UsageBySandbox UsageGroup = "sandbox"
	UsageByProject UsageGroup = "project"
)

// UsageQuery selects and sums up usage of whole days (UTC).
type UsageQuery struct {
	AllProjects bool
	SandboxID   ID
	From, To    time.Time // days: at or after, before
	GroupBy     []UsageGroup
	Limit       int
	Cursor      string
}

// UsageRow is a sum. Day, SandboxID and ProjectID are set where it was grouped by them.
type UsageRow struct {
	Day       time.Time
	SandboxID ID
	ProjectID ID
	Sandboxes int64 // how many different ones
	UsageAmounts
}
