package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cayhq/cay/internal/driver"
	"github.com/cayhq/cay/internal/node/cgroup"
)

// record is sandbox.json: all that a later process of the node needs in order to take a sandbox over or to remove it.
type record struct {
	Version     int             `json:"version"`
	BootID      string          `json:"boot_id"` // of the machine; processes of an earlier boot are gone
	Sentry      process         `json:"sentry"`  // zero until it runs
	Gofer       process         `json:"gofer"`
	Runsc       string          `json:"runsc"`
	Digest      string          `json:"digest"`
	Image       string          `json:"image"`
	Fingerprint string          `json:"fingerprint"` // of the host's programs
	Group       cgroup.Location `json:"cgroup"`
	Shape       driver.Shape    `json:"shape"`
	Spec        *driver.Spec    `json:"spec"` // null until claimed
	CreatedAt   time.Time       `json:"created_at"`
}

const recordVersion = 1

// complete reports that the start came to its end.
func (r record) complete() bool { return r.Sentry.PID != 0 }

// promise is the memory that the sandbox was promised, bytes.
func (r record) promise() int64 {
	mb := r.Shape.MemoryMB
	if r.Spec != nil && r.Spec.MemoryMB > 0 {
		mb = r.Spec.MemoryMB
	}
	return mb << 20
}

// limits are the control group's. Memory and pids are backstops above the promise, which the watch and the agent keep.
func limits(r record) cgroup.Limits {
	l := cgroup.Limits{CPU: r.Shape.CPU}
	pids := r.Shape.Pids
	if r.Spec != nil && r.Spec.CPU > 0 {
		l.CPU = r.Spec.CPU
	}
	if r.Spec != nil && r.Spec.Pids > 0 {
		pids = r.Spec.Pids
	}
	promise := r.promise()
	l.MemoryWatch = promise + sentryOverhead
	l.MemoryBytes = l.MemoryWatch + max(64<<20, promise/10)
	l.Pids = pidsBase + pidsEach*pids
	return l
}

const recordName = "sandbox.json"

// writeRecord replaces the record at once. It is not synced: it must outlive this process, and after a loss of power no sandbox is
// left that it could speak of; that something is to be removed, the directory itself says.
func writeRecord(dir string, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	tmp := filepath.Join(dir, recordName+".new")
	err = os.WriteFile(tmp, b, 0o600)
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, recordName))
	}
	if err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

func readRecord(dir string) (record, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return record{}, fmt.Errorf("read the record: %w", err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, fmt.Errorf("read the record: %w", err)
	}
	if r.Version != recordVersion {
		return record{}, fmt.Errorf("read the record: version %d", r.Version)
	}
	return r, nil
}
