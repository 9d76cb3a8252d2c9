package lifecycle

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cayhq/cay"
)

// Config is the bounds and defaults of what may be asked for. A zero bound on cpu, memory or disk means that the largest worker
// decides.
type Config struct {
	MaxCPU       float64
	MaxMemoryMB  int64
	MaxDiskGB    float64
	MaxPids      int64
	MaxTTL       time.Duration // a longer one is capped; also for the paused TTL
	MaxSandboxes int64         // active ones of a project; zero: no bound
	MaxQueued    int64         // rows that wait to be created, of all projects; zero: no bound

	DefaultCPU       float64
	DefaultMemoryMB  int64
	DefaultDiskGB    float64
	DefaultPids      int64
	DefaultTTL       time.Duration
	DefaultPausedTTL time.Duration
	DefaultQueueWait time.Duration

	// AllowUnenforcedLimits lets a create ask for limits that no worker can keep. They are then not promised.
	AllowUnenforcedLimits bool

	Retention cay.Retention

	Metrics prometheus.Registerer // nil: they are shown nowhere
}

// DefaultConfig is what is in force unless the operator says otherwise. There is no idle timeout unless a create asks for one.
func DefaultConfig() Config {
	return Config{
		MaxPids: 16384, MaxTTL: 30 * 24 * time.Hour, MaxSandboxes: 1000, MaxQueued: 500,
		DefaultCPU: 1, DefaultMemoryMB: 1024, DefaultDiskGB: 4, DefaultPids: 512,
		DefaultTTL: time.Hour, DefaultPausedTTL: 24 * time.Hour, DefaultQueueWait: 5 * time.Minute,
		Retention: cay.Retention{
			Sandboxes: 30 * day, Events: day, MaxEvents: 200_000, Idempotency: day, Sessions: 30 * day,
			Records: 30 * day, MaxRecords: 1_000_000, Usage: 400 * day, Audit: 90 * day, MaxAudit: 1_000_000,
		},
	}
}

const day = 24 * time.Hour

const (
	maxQueueWait = time.Hour
	maxSeconds   = 1 << 31 // of any duration in a request
	minCPU       = 0.01    // cores: 1 ms of each 100 ms
	minMemoryMB  = 16
	minDiskGB    = 0.01
	minPids      = 8
	maxWorkdir   = 4096 // bytes

	// activityLag is how late a node's word that a sandbox is in use may come: it speaks at most once a second for each.
	activityLag = 1250 * time.Millisecond

	flushPeriod = 30 * time.Second // between writes of last activity and usage
	purgePeriod = 10 * time.Minute
	clockRetry  = time.Second // after a clock struck and the row could not follow

	// silence is how long a worker may say nothing of a sandbox before the time no longer counts as used: some looks at it in a row.
	silence = time.Minute
)
