package worker

import (
	"context"
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// usage adds up what a sandbox used. The part that cannot be measured anew, memory over time, is kept in a file over restarts. Figures
// never shrink. The time from the file's last measurement to the first after a restart counts with the memory of that last one.
type usage struct {
	mu     sync.Mutex
	last   driver.Stats
	at     time.Time // of last; zero: none yet
	mbSecs float64
	peak   int64
	saved  time.Time
	kept   time.Time // the last measurement that went to the samples
}

const saveUsageEvery = time.Minute

// add takes a measurement.
func (u *usage) add(st driver.Stats, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.at.IsZero() {
		u.mbSecs += float64(u.last.MemoryBytes) / (1 << 20) * max(0, now.Sub(u.at).Seconds())
	}
	st.CPU = max(st.CPU, u.last.CPU)
	u.last, u.at = st, now
	u.peak = max(u.peak, st.PeakBytes, st.MemoryBytes)
}

func (u *usage) message() *nodev1.Usage {
	u.mu.Lock()
	defer u.mu.Unlock()
	return &nodev1.Usage{
		CpuSeconds: u.last.CPU.Seconds(), MemoryMbSeconds: u.mbSecs, PeakMemoryMb: u.peak >> 20, DiskMb: u.last.DiskBytes >> 20,
		MemoryMb: u.last.MemoryBytes >> 20, Pids: u.last.HostPids,
	}
}

type savedUsage struct {
	MemoryMBSeconds float64       `json:"memory_mb_seconds"`
	PeakBytes       int64         `json:"peak_bytes"`
	CPU             time.Duration `json:"cpu_ns"`
	At              time.Time     `json:"at"` // of the last measurement, which found this much memory:
	MemoryBytes     int64         `json:"memory_bytes"`
}

// measured reports whether there is a figure.
func (u *usage) measured() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.at.IsZero()
}

func (u *usage) save(path string) {
	u.mu.Lock()
	b, err := json.Marshal(savedUsage{MemoryMBSeconds: u.mbSecs, PeakBytes: u.peak, CPU: u.last.CPU, At: u.at, MemoryBytes: u.last.MemoryBytes})
	u.saved = time.Now()
	u.mu.Unlock()
	if err == nil && os.WriteFile(path+".new", b, 0o600) == nil {
		_ = os.Rename(path+".new", path) // a stale figure is no fault worth a word
	}
}

func (u *usage) load(path string) {
	b, err := os.ReadFile(path)
	var s savedUsage
	if err != nil || json.Unmarshal(b, &s) != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mbSecs, u.peak, u.last.CPU = s.MemoryMBSeconds, s.PeakBytes, s.CPU
	u.at, u.last.MemoryBytes = s.At, s.MemoryBytes
}

func (u *usage) remove(path string) { _ = os.Remove(path) }

// sample measures one sandbox, if the driver can.
func (w *Worker) sample(ctx context.Context, b *box) {
	st, ok := w.cfg.Driver.(driver.Statser)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	now, err := st.Stats(ctx, b.handle)
	if err != nil {
		return // it is going, or the next second brings a figure
	}
	b.usage.add(now, time.Now())
	b.usage.mu.Lock()
	due := time.Since(b.usage.saved) > saveUsageEvery
	b.usage.mu.Unlock()
	if due {
		b.usage.save(w.usagePath(b.handle))
	}
	w.record(b)
}
