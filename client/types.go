package client

import (
	"encoding/json"
	"time"
)

// Status is where a sandbox is in its life: CREATING, READY, PAUSED, TERMINATING, TERMINATED, FAILED, or one of a newer server.
type Status string

const (
	Creating    Status = "CREATING"
	Ready       Status = "READY"
	Paused      Status = "PAUSED"
	Terminating Status = "TERMINATING"
	Terminated  Status = "TERMINATED"
	Failed      Status = "FAILED"
)

// Ended reports whether nothing can follow s.
func (s Status) Ended() bool { return s == Terminated || s == Failed }

// What the end of the TTL or of the idle timeout does.
const (
	OnTimeoutTerminate = "terminate"
	OnTimeoutPause     = "pause"
)

// CreateRequest asks for a sandbox. What is left zero is decided by the server: its default runtime, limits and clocks.
type CreateRequest struct {
	Image   string `json:"image,omitempty"`   // an OCI reference, or "host"; at most one of Image and Runtime
	Runtime string `json:"runtime,omitempty"` // a name of [Client.Runtimes]

	CPU      float64 `json:"cpu,omitempty"` // cores
	MemoryMB int64   `json:"memory_mb,omitempty"`
	DiskGB   float64 `json:"disk_gb,omitempty"`
	Pids     int64   `json:"pids,omitempty"`

	TTL          time.Duration `json:"-"` // of the sandbox, from READY
	IdleTimeout  time.Duration `json:"-"`
	PausedTTL    time.Duration `json:"-"`
	QueueTimeout time.Duration `json:"-"` // bounds the wait for capacity
	OnTimeout    string        `json:"on_timeout,omitempty"`
	AutoResume   *bool         `json:"auto_resume,omitempty"`

	Network  []string          `json:"network,omitempty"` // host:port rules; none: no network
	Env      map[string]string `json:"env,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	User     string            `json:"user,omitempty"`
	Workdir  string            `json:"workdir,omitempty"`

	// SessionID names a session whose files are at /session. It is used by this sandbox alone unless all that use it say
	// SessionShared; else the create is a conflict, whose [*Error] has the SandboxID of the other.
	SessionID     string `json:"session_id,omitempty"`
	SessionShared bool   `json:"session_shared,omitempty"`

	// Wait bounds how long the server lets the call wait for READY (at most 300 s); 0: its default of 60 s; negative: not at all.
	// The answer's Status says what came of it.
	Wait time.Duration `json:"-"`

	// IdempotencyKey makes a repeated create find the first; one is made where it is empty.
	IdempotencyKey string `json:"-"`
}

// MarshalJSON writes the request as the API wants it, clocks in seconds.
func (r CreateRequest) MarshalJSON() ([]byte, error) {
	type plain CreateRequest
	return json.Marshal(struct {
		plain
		TTL          seconds `json:"ttl_seconds,omitempty"`
		IdleTimeout  seconds `json:"idle_timeout_seconds,omitempty"`
		PausedTTL    seconds `json:"paused_ttl_seconds,omitempty"`
		QueueTimeout seconds `json:"queue_timeout_seconds,omitempty"`
	}{plain(r), inSeconds(r.TTL), inSeconds(r.IdleTimeout), inSeconds(r.PausedTTL), inSeconds(r.QueueTimeout)})
}

// UpdateRequest holds what may change of a sandbox that exists; nil leaves it.
type UpdateRequest struct {
	Metadata    map[string]string // replaces the whole
	IdleTimeout *time.Duration
	OnTimeout   *string
}

// MarshalJSON writes only what is to change.
func (r UpdateRequest) MarshalJSON() ([]byte, error) {
	m := map[string]any{}
	if r.Metadata != nil {
		m["metadata"] = r.Metadata
	}
	if r.IdleTimeout != nil {
		m["idle_timeout_seconds"] = inSeconds(*r.IdleTimeout)
	}
	if r.OnTimeout != nil {
		m["on_timeout"] = *r.OnTimeout
	}
	return json.Marshal(m)
}

// Sandbox is a sandbox as the server described it. Times that are not yet are zero.
type Sandbox struct {
	ID           string `json:"id"`
	Status       Status `json:"status"`
	StatusReason string `json:"status_reason"` // why it ended or is ending
	Detail       string `json:"detail"`        // a sentence on why it failed, where the server says

	Image    string  `json:"image"`
	Runtime  string  `json:"runtime"`
	CPU      float64 `json:"cpu"`
	MemoryMB int64   `json:"memory_mb"`
	DiskGB   float64 `json:"disk_gb"`
	Pids     int64   `json:"pids"`

	TTL         time.Duration `json:"-"`
	IdleTimeout time.Duration `json:"-"` // 0: none
	PausedTTL   time.Duration `json:"-"`
	OnTimeout   string        `json:"on_timeout"`
	AutoResume  bool          `json:"auto_resume"`

	Network  json.RawMessage   `json:"network"` // a list of rules, or an object with allow and deny
	Env      map[string]string `json:"env"`
	Metadata map[string]string `json:"metadata"`
	User     string            `json:"user"`
	Workdir  string            `json:"workdir"`

	SessionID     string `json:"session_id"`
	SessionShared bool   `json:"session_shared"`
	ManagedBy     string `json:"managed_by"` // the job or session that it serves; "": a client made it

	WorkerID     string    `json:"worker_id"`
	CreatedAt    time.Time `json:"created_at"`
	ReadyAt      time.Time `json:"ready_at"`
	ExpiresAt    time.Time `json:"expires_at"`
	LastActiveAt time.Time `json:"last_active_at"`
	EndedAt      time.Time `json:"ended_at"`

	CreateMS CreateMS `json:"create_ms"`
	Usage    Usage    `json:"usage"`

	// Raw is the object as it came, with members this version does not know.
	Raw json.RawMessage `json:"-"`
}

// CreateMS says where the time of a create went, in milliseconds.
type CreateMS struct {
	Queue    float64 `json:"queue"`
	Schedule float64 `json:"schedule"`
	Boot     float64 `json:"boot"`
	Total    float64 `json:"total"`
}

// Usage is what a sandbox has used so far.
type Usage struct {
	CPUSeconds      float64 `json:"cpu_seconds"`
	MemoryMBSeconds float64 `json:"memory_mb_seconds"`
	PeakMemoryMB    float64 `json:"peak_memory_mb"`
	DiskMB          float64 `json:"disk_mb"`
	EgressBytes     int64   `json:"egress_bytes"`
}

// UnmarshalJSON keeps the object as it came in Raw.
func (s *Sandbox) UnmarshalJSON(data []byte) error {
	type plain Sandbox
	doc := struct {
		*plain
		TTL         seconds `json:"ttl_seconds"`
		IdleTimeout seconds `json:"idle_timeout_seconds"`
		PausedTTL   seconds `json:"paused_ttl_seconds"`
	}{plain: (*plain)(s)}
	if err := json.Unmarshal(data, &doc); err != nil {
		return err
	}
	s.TTL, s.IdleTimeout, s.PausedTTL = doc.TTL.duration(), doc.IdleTimeout.duration(), doc.PausedTTL.duration()
	s.Raw = append(s.Raw[:0:0], data...)
	return nil
}

// MarshalJSON writes the object as it came.
func (s Sandbox) MarshalJSON() ([]byte, error) {
	if s.Raw != nil {
		return s.Raw, nil
	}
	type plain Sandbox
	return json.Marshal(plain(s))
}

// Name is the sandbox's metadata entry "name", which the command line takes in place of an id.
func (s *Sandbox) Name() string { return s.Metadata["name"] }

// Info is what a server says of itself.
type Info struct {
	Version   string          `json:"version"`
	Isolation string          `json:"isolation"`
	Features  json.RawMessage `json:"features"`
	Limits    json.RawMessage `json:"limits"`
	Runtimes  []Runtime       `json:"runtimes"`
	Enforced  []string        `json:"enforced"` // of cpu, memory_mb, disk_gb, pids; nil where the server does not say
	Raw       json.RawMessage `json:"-"`
}

// UnmarshalJSON keeps the object as it came in Raw. Members of an unexpected shape are left zero, so that a newer server's answer
// can still be shown.
func (i *Info) UnmarshalJSON(data []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return err
	}
	for name, to := range map[string]any{
		"version": &i.Version, "isolation": &i.Isolation, "features": &i.Features,
		"limits": &i.Limits, "runtimes": &i.Runtimes, "enforced": &i.Enforced,
	} {
		if raw, ok := members[name]; ok {
			_ = json.Unmarshal(raw, to)
		}
	}
	i.Raw = append(i.Raw[:0:0], data...)
	return nil
}

// Runtime is a language that a sandbox can be asked for by name.
type Runtime struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Image   string   `json:"image"`
	Exec    []string `json:"exec"`
}

// seconds is a duration on the wire.
type seconds float64

func inSeconds(d time.Duration) seconds   { return seconds(d.Seconds()) }
func (s seconds) duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// page is how every list answers.
type page[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor"`
}

// unmarshalBoth decodes one object into two.
func unmarshalBoth(data []byte, a, b any) error {
	if err := json.Unmarshal(data, a); err != nil {
		return err
	}
	return json.Unmarshal(data, b)
}

// keeping decodes an object and keeps it as it came.
func keeping(data []byte, into any, raw *json.RawMessage) error {
	if err := json.Unmarshal(data, into); err != nil {
		return err
	}
	*raw = append((*raw)[:0:0], data...)
	return nil
}

// orRaw encodes an object as it came, where it came from a server.
func orRaw(raw json.RawMessage, plain any) ([]byte, error) {
	if raw != nil {
		return raw, nil
	}
	return json.Marshal(plain)
}
