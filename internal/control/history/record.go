package history

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// Bounds of what a node may say of a process, in bytes.
const (
	maxName     = 256
	maxLanguage = 64
	maxSignal   = 16
	maxTraceID  = 32
)

var exitReasons = []cay.ExitReason{
	cay.ExitExited, cay.ExitSignaled, cay.ExitTimeout, cay.ExitOOM, cay.ExitKilled, cay.ExitStartFailed, cay.ExitSandboxEnded,
}

// maxSkew is how far the clock of a worker may be ahead.
const maxSkew = time.Minute

// recordOf is what a node says of a process, as a record, or why it cannot be one. Names, commands and languages come from clients by
// way of the node, figures from the guest: they are bounded, not believed.
func recordOf(s *nodev1.ProcessRecord, now time.Time) (cay.Record, error) {
	r := cay.Record{Kind: cay.RecordKind(s.GetKind())}
	if !r.Kind.OfProcess() {
		return r, fmt.Errorf("the kind of a process cannot be %q", clipped(s.GetKind(), maxName))
	}
	for _, id := range []struct {
		to     *cay.ID
		prefix string
		said   string
		needed bool
	}{
		{&r.ID, cay.PrefixProcess, s.GetProcessId(), true}, {&r.SandboxID, cay.PrefixSandbox, s.GetSandboxId(), true},
		{&r.ProjectID, cay.PrefixProject, s.GetProjectId(), true}, {&r.KeyID, cay.PrefixKey, s.GetActor(), false},
	} {
		parsed, ok := cay.ParseID(id.prefix, id.said)
		if !ok && (id.needed || id.said != "") {
			return r, fmt.Errorf("%q is no id that begins with %s", clipped(id.said, maxName), id.prefix)
		}
		*id.to = parsed
	}
	exit := s.GetExit()
	if exit == nil {
		return r, errors.New("a process without an exit has not ended")
	}
	if !slices.Contains(exitReasons, cay.ExitReason(exit.GetReason())) {
		return r, fmt.Errorf("a process does not end by %q", clipped(exit.GetReason(), maxName))
	}
	if s.GetStartedUnixMs() <= 0 || s.GetEndedUnixMs() <= 0 {
		return r, errors.New("a process began and ended at some time")
	}
	r.EndedAt = time.UnixMilli(s.GetEndedUnixMs()).UTC()
	if r.EndedAt.After(now.Add(maxSkew)) {
		r.EndedAt = now.UTC()
	}
	r.StartedAt = time.UnixMilli(s.GetStartedUnixMs()).UTC()
	if r.StartedAt.After(r.EndedAt) {
		r.StartedAt = r.EndedAt
	}
	r.Name, r.Command, r.Language = clipped(s.GetName(), maxName), clipped(s.GetCommand(), cay.MaxRecordCommand), clipped(s.GetLanguage(), maxLanguage)
	code := int(exit.GetCode())
	r.Outcome, r.ExitCode, r.Signal = exit.GetReason(), &code, clipped(exit.GetSignal(), maxSignal)
	r.OK = code == 0 && !exit.GetTimedOut()
	r.Duration = time.Duration(bounded(exit.GetDurationMs(), maxDuration.Milliseconds())) * time.Millisecond
	r.StdoutBytes, r.StderrBytes = max(0, exit.GetStdoutSize()), max(0, exit.GetStderrSize())
	r.CPUSeconds = float64(bounded(exit.GetCpuMs(), maxDuration.Milliseconds())) / 1000
	r.PeakMemoryMB = bounded(exit.GetPeakMemoryMb(), maxMemoryMB)
	if isTraceID(s.GetTraceId()) {
		r.TraceID = s.GetTraceId()
	}
	return r, nil
}

// What a figure can be at most, so that sums of them mean something.
const (
	maxDuration = 100 * 365 * 24 * time.Hour
	maxMemoryMB = 1 << 30
)

func bounded(n, most int64) int64 { return min(max(0, n), most) }

// clipped is text that any database takes, of at most n bytes.
func clipped(s string, n int) string {
	return cay.Clip(strings.ReplaceAll(strings.ToValidUTF8(cay.Clip(s, n), "\uFFFD"), "\x00", "\uFFFD"), n)
}

func isTraceID(s string) bool {
	return len(s) == maxTraceID && !strings.ContainsFunc(s, func(c rune) bool { return (c < '0' || c > '9') && (c < 'a' || c > 'f') })
}

// belongs fills in what the sandbox's row says, and refuses a record of a sandbox that is another project's or another worker's. Of a
// sandbox whose row is gone, which is long after its end, the node's word stands.
func belongs(r *cay.Record, box *cay.Sandbox, worker cay.ID) error {
	if box == nil {
		return nil
	}
	if box.ProjectID != r.ProjectID {
		return fmt.Errorf("sandbox %s is not one of project %s", r.SandboxID, r.ProjectID)
	}
	if box.WorkerID != "" && box.WorkerID != worker {
		return fmt.Errorf("sandbox %s is not one of worker %s", r.SandboxID, worker)
	}
	r.SessionID = box.Spec.SessionID
	return nil
}
