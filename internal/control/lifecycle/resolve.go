package lifecycle

import (
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cayhq/cay"
)

// resolve checks what was asked for and fills in what was not. Malformed is cay.InvalidRequest; well-formed but impossible here is
// cay.Unprocessable; what is not built yet is cay.NotImplemented. Each names its field.
func (s *Sandboxes) resolve(req cay.CreateSandbox) (cay.SandboxSpec, time.Duration, error) {
	workers := s.workers.Workers()
	spec := cay.SandboxSpec{
		Network: []string{}, AutoResume: true, OnTimeout: cay.OnTimeoutTerminate,
		User: "sandbox", Workdir: "/workspace", Env: map[string]string{}, Metadata: map[string]string{},
	}
	queueWait := s.cfg.DefaultQueueWait
	for _, step := range []func() error{
		func() error { return s.resolveImage(&spec, req, workers) },
		func() error { return s.resolveLimits(&spec, req) },
		func() error { return s.resolveClocks(&spec, req, &queueWait) },
		func() error { return resolveGuest(&spec, req) },
		func() error { return resolveSession(&spec, req, workers) },
		func() error { return s.fits(&spec, workers) },
	} {
		if err := step(); err != nil {
			return cay.SandboxSpec{}, 0, err
		}
	}
	return spec, queueWait, nil
}

func (s *Sandboxes) resolveImage(spec *cay.SandboxSpec, req cay.CreateSandbox, workers []cay.Worker) error {
	switch {
	case req.Image != "" && req.Runtime != "":
		return invalid("runtime", "image and runtime exclude each other; give one of them")
	case req.Runtime != "":
		if len(workers) == 0 {
			return cay.Errorf(cay.Unavailable, "no worker has said yet which runtimes it has; try again").After(time.Second)
		}
		known := runtimes(workers)
		i := slices.IndexFunc(known, func(r cay.Runtime) bool { return r.Name == req.Runtime })
		if i < 0 {
			return cay.Errorf(cay.Unprocessable, "there is no runtime %q here; there are: %s", req.Runtime, names(known)).On("runtime")
		}
		spec.Runtime, spec.Image = req.Runtime, known[i].Image
	case req.Image != "" && req.Image != "host":
		return cay.Errorf(cay.InvalidImage, "image %q: only the host image is there yet", req.Image).On("image")
	default:
		spec.Image = "host"
	}
	if len(req.Network) > 0 {
		return cay.Errorf(cay.NotImplemented, "network access is not there yet: leave network out or send an empty list").On("network")
	}
	return nil
}

func names(known []cay.Runtime) string {
	if len(known) == 0 {
		return "none"
	}
	list := make([]string, len(known))
	for i, r := range known {
		list[i] = r.Name
	}
	return strings.Join(list, ", ")
}

func (s *Sandboxes) resolveLimits(spec *cay.SandboxSpec, req cay.CreateSandbox) error {
	spec.CPU, spec.MemoryMB, spec.DiskGB, spec.Pids = s.cfg.DefaultCPU, s.cfg.DefaultMemoryMB, s.cfg.DefaultDiskGB, s.cfg.DefaultPids
	explicit := func(name string) { spec.ExplicitLimits = append(spec.ExplicitLimits, name) }
	if v := req.CPU; v != nil {
		if math.IsNaN(*v) || *v < minCPU {
			return invalid("cpu", "cpu is in cores and at least %g", minCPU)
		}
		spec.CPU = *v
		explicit("cpu")
	}
	if v := req.MemoryMB; v != nil {
		if *v < minMemoryMB {
			return invalid("memory_mb", "memory_mb is at least %d", minMemoryMB)
		}
		spec.MemoryMB = *v
		explicit("memory_mb")
	}
	if v := req.DiskGB; v != nil {
		if math.IsNaN(*v) || *v < minDiskGB {
			return invalid("disk_gb", "disk_gb is at least %g", minDiskGB)
		}
		spec.DiskGB = *v
		explicit("disk_gb")
	}
	if v := req.Pids; v != nil {
		if *v < minPids {
			return invalid("pids", "pids is at least %d", minPids)
		}
		spec.Pids = *v
		explicit("pids")
	}
	return nil
}

func (s *Sandboxes) resolveClocks(spec *cay.SandboxSpec, req cay.CreateSandbox, queueWait *time.Duration) error {
	var err error
	if spec.TTL, err = s.ttl("ttl_seconds", req.TTL, s.cfg.DefaultTTL); err != nil {
		return err
	}
	if spec.PausedTTL, err = s.ttl("paused_ttl_seconds", req.PausedTTL, s.cfg.DefaultPausedTTL); err != nil {
		return err
	}
	if v := req.IdleTimeout; v != nil {
		if spec.IdleTimeout, err = idleTimeout(*v); err != nil {
			return err
		}
	}
	if v := req.QueueTimeout; v != nil {
		if *v < 0 || *v > maxSeconds*time.Second {
			return invalid("queue_timeout_seconds", "queue_timeout_seconds is between 0 and %d", maxSeconds)
		}
		*queueWait = min(*v, maxQueueWait)
	}
	if req.OnTimeout != "" {
		if err := onTimeout(req.OnTimeout); err != nil {
			return err
		}
		spec.OnTimeout = req.OnTimeout
	}
	if req.AutoResume != nil {
		spec.AutoResume = *req.AutoResume
	}
	return nil
}

// ttl checks a time to live and caps it at the maximum; nil is the default.
func (s *Sandboxes) ttl(field string, v *time.Duration, otherwise time.Duration) (time.Duration, error) {
	if v == nil {
		return min(otherwise, s.cfg.MaxTTL), nil
	}
	if *v <= 0 || *v > maxSeconds*time.Second {
		return 0, invalid(field, "%s is above 0 and at most %d; what exceeds the maximum of %d is capped",
			field, maxSeconds, int64(s.cfg.MaxTTL/time.Second))
	}
	return min(*v, s.cfg.MaxTTL), nil
}

func idleTimeout(v time.Duration) (time.Duration, error) {
	if v < 0 || v > maxSeconds*time.Second {
		return 0, invalid("idle_timeout_seconds", "idle_timeout_seconds is between 0 (none) and %d", maxSeconds)
	}
	return v, nil
}

func onTimeout(v cay.OnTimeout) error {
	if v != cay.OnTimeoutTerminate && v != cay.OnTimeoutPause {
		return invalid("on_timeout", "on_timeout is terminate or pause, not %q", string(v))
	}
	return nil
}

// userForm is a name, a uid, or uid:gid.
var userForm = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?)$`)

func resolveGuest(spec *cay.SandboxSpec, req cay.CreateSandbox) error {
	if req.User != "" {
		if !userForm.MatchString(req.User) {
			return invalid("user", "user is a name, a uid or uid:gid of the sandbox")
		}
		spec.User = req.User
	}
	if req.Workdir != "" {
		if !path.IsAbs(req.Workdir) || len(req.Workdir) > maxWorkdir || strings.ContainsRune(req.Workdir, 0) {
			return invalid("workdir", "workdir is an absolute path of at most %d bytes", maxWorkdir)
		}
		spec.Workdir = path.Clean(req.Workdir)
	}
	if err := cay.CheckEnv(req.Env); err != nil {
		return err
	}
	if err := cay.CheckMetadata(req.Metadata); err != nil {
		return err
	}
	if req.Env != nil {
		spec.Env = req.Env
	}
	if req.Metadata != nil {
		spec.Metadata = req.Metadata
	}
	return nil
}

func plain(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

func invalid(field, format string, args ...any) *cay.Error {
	return cay.Errorf(cay.InvalidRequest, format, args...).On(field)
}

// resolveSession takes over whose files the sandbox uses and whom it serves. Whether the session is there and free is the store's to say,
// in the transaction that writes the row.
func resolveSession(spec *cay.SandboxSpec, req cay.CreateSandbox, workers []cay.Worker) error {
	spec.ManagedBy = req.ManagedBy
	if req.SessionID == "" {
		if req.SessionShared {
			return invalid("session_shared", "session_shared says how a session is used; give its session_id as well")
		}
		return nil
	}
	if _, ok := cay.ParseID(cay.PrefixSession, string(req.SessionID)); !ok {
		return cay.Errorf(cay.Unprocessable, "there is no session %.40q", string(req.SessionID)).On("session_id")
	}
	if len(workers) > 0 && !slices.ContainsFunc(workers, func(w cay.Worker) bool { return w.CanMount }) {
		return cay.Errorf(cay.NotImplemented, "sessions need a node that runs as root: the nodes here run without, and cannot mount a volume").On("session_id")
	}
	spec.SessionID, spec.SessionShared = req.SessionID, req.SessionShared
	return nil
}

// fits refuses what could never run on any worker. While none is known the queue has to find out.
func (s *Sandboxes) fits(spec *cay.SandboxSpec, workers []cay.Worker) error {
	limits := s.Limits()
	refuse := func(field string, asked, most any) error {
		return cay.Errorf(cay.Unprocessable, "%s %v can never fit here; at most %v can", field, asked, most).On(field)
	}
	switch {
	case limits.MaxCPU > 0 && spec.CPU > limits.MaxCPU:
		return refuse("cpu", spec.CPU, limits.MaxCPU)
	case limits.MaxMemoryMB > 0 && spec.MemoryMB > limits.MaxMemoryMB:
		return refuse("memory_mb", spec.MemoryMB, limits.MaxMemoryMB)
	case limits.MaxDiskGB > 0 && spec.DiskGB > limits.MaxDiskGB:
		return refuse("disk_gb", spec.DiskGB, limits.MaxDiskGB)
	case limits.MaxPids > 0 && spec.Pids > limits.MaxPids:
		return refuse("pids", spec.Pids, limits.MaxPids)
	}
	if len(workers) == 0 {
		return nil
	}
	if spec.OnTimeout == cay.OnTimeoutPause && !slices.ContainsFunc(workers, func(w cay.Worker) bool { return w.CanFreeze }) {
		return cay.Errorf(cay.Unprocessable, "no worker here can pause a sandbox; use on_timeout terminate").On("on_timeout")
	}
	if s.cfg.AllowUnenforcedLimits {
		spec.ExplicitLimits = nil // asked for, but not promised
		return nil
	}
	for _, limit := range spec.ExplicitLimits {
		if !slices.ContainsFunc(workers, func(w cay.Worker) bool { return w.Enforces([]string{limit}) }) {
			return cay.Errorf(cay.Unprocessable,
				"no worker here can enforce %s; leave it out, or let the operator allow limits that are not enforced", limit).On(limit)
		}
	}
	if !slices.ContainsFunc(workers, func(w cay.Worker) bool {
		return w.CPU >= spec.CPU && w.MemoryMB >= spec.MemoryMB && w.DiskGB >= spec.DiskGB && w.Enforces(spec.ExplicitLimits) &&
			(spec.SessionID == "" || w.CanMount)
	}) {
		return cay.Errorf(cay.Unprocessable, "no single worker has %s", fmt.Sprintf("%g cores, %d MB of memory and %g GB of disk at once",
			spec.CPU, spec.MemoryMB, spec.DiskGB)).On("cpu")
	}
	return nil
}

// Limits are the bounds and defaults in force.
func (s *Sandboxes) Limits() cay.Limits {
	l := cay.Limits{
		MaxCPU: s.cfg.MaxCPU, MaxMemoryMB: s.cfg.MaxMemoryMB, MaxDiskGB: s.cfg.MaxDiskGB, MaxPids: s.cfg.MaxPids,
		MaxTTLSeconds: s.cfg.MaxTTL.Seconds(), MaxSandboxes: s.cfg.MaxSandboxes,
		DefaultCPU: s.cfg.DefaultCPU, DefaultMemory: s.cfg.DefaultMemoryMB, DefaultDiskGB: s.cfg.DefaultDiskGB,
		DefaultPids: s.cfg.DefaultPids, DefaultTTLSecs: s.cfg.DefaultTTL.Seconds(),
	}
	var most cay.Worker
	for _, w := range s.workers.Workers() {
		most.CPU, most.MemoryMB, most.DiskGB = max(most.CPU, w.CPU), max(most.MemoryMB, w.MemoryMB), max(most.DiskGB, w.DiskGB)
	}
	l.MaxCPU = lesser(l.MaxCPU, most.CPU)
	l.MaxMemoryMB = lesser(l.MaxMemoryMB, most.MemoryMB)
	l.MaxDiskGB = lesser(l.MaxDiskGB, most.DiskGB)
	return l
}

// Enforced names the limits that every worker keeps for real.
func (s *Sandboxes) Enforced() []string {
	var kept []string
	for _, limit := range []string{"cpu", "memory_mb", "disk_gb", "pids"} {
		workers := s.workers.Workers()
		if len(workers) > 0 && !slices.ContainsFunc(workers, func(w cay.Worker) bool { return !w.Enforces([]string{limit}) }) {
			kept = append(kept, limit)
		}
	}
	return kept
}

// lesser is the smaller of two bounds of which zero is none.
func lesser[N int64 | float64](a, b N) N {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// runtimes are those of all workers, each name once.
func runtimes(workers []cay.Worker) []cay.Runtime {
	list := []cay.Runtime{}
	for _, w := range workers {
		for _, r := range w.Runtimes {
			if !slices.ContainsFunc(list, func(x cay.Runtime) bool { return x.Name == r.Name }) {
				list = append(list, r)
			}
		}
	}
	slices.SortFunc(list, func(a, b cay.Runtime) int { return strings.Compare(a.Name, b.Name) })
	return list
}
