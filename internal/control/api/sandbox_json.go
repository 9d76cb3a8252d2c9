package api

import (
	"github.com/danielgtaylor/huma/v2"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/cayhq/cay"
)

func unmarshalFrom(d *jsontext.Decoder, v any) error { return json.UnmarshalDecode(d, v) }

func marshalTo(e *jsontext.Encoder, v any) error { return json.MarshalEncode(e, v) }

// sandboxRequest is the body of a create. What is absent gets a default.
type sandboxRequest struct {
	Image              *string           `json:"image,omitzero" doc:"An OCI reference, or host: the machine's own programs, read-only" example:"host"`
	Runtime            *string           `json:"runtime,omitzero" doc:"A runtime by name, see GET /v1/runtimes; at most one of image and runtime"`
	CPU                *float64          `json:"cpu,omitzero" doc:"Cores; decimals are allowed" example:"2"`
	MemoryMB           *int64            `json:"memory_mb,omitzero"`
	DiskGB             *float64          `json:"disk_gb,omitzero"`
	Pids               *int64            `json:"pids,omitzero" doc:"Processes and threads at once"`
	TTLSeconds         *float64          `json:"ttl_seconds,omitzero" doc:"From READY to the end"`
	IdleTimeoutSeconds optional[float64] `json:"idle_timeout_seconds,omitzero" doc:"0 or null: none"`
	OnTimeout          *string           `json:"on_timeout,omitzero" enum:"terminate,pause" doc:"What the end of the TTL or of the idle timeout does"`
	PausedTTLSeconds   *float64          `json:"paused_ttl_seconds,omitzero"`
	AutoResume         *bool             `json:"auto_resume,omitzero" doc:"An exec or a file access resumes it when it is paused"`
	Network            networkRules      `json:"network,omitzero"`
	Env                map[string]string `json:"env,omitzero" doc:"At most 1 MiB"`
	Metadata           map[string]string `json:"metadata,omitzero" doc:"At most 64 keys of 1 KiB with their value"`
	User               *string           `json:"user,omitzero"`
	Workdir            *string           `json:"workdir,omitzero"`
	QueueTimeout       *float64          `json:"queue_timeout_seconds,omitzero" doc:"Bounds the wait for capacity"`
	Snapshot           notYet            `json:"snapshot,omitzero"`
	Template           notYet            `json:"template,omitzero"`
	GPU                notYet            `json:"gpu,omitzero"`
	Secrets            notYet            `json:"secrets,omitzero"`
	SessionID          *string           `json:"session_id,omitzero" doc:"Its files are at /session"`
	SessionShared      bool              `json:"session_shared,omitzero" doc:"Others who say the same may use the session meanwhile"`
	Volumes            notYet            `json:"volumes,omitzero"`
	Packages           notYet            `json:"packages,omitzero"`
	Region             notYet            `json:"region,omitzero"`
}

func (b *sandboxRequest) validate() error {
	for field, v := range map[string]notYet{
		"snapshot": b.Snapshot, "template": b.Template, "gpu": b.GPU, "secrets": b.Secrets,
		"volumes": b.Volumes, "packages": b.Packages, "region": b.Region,
	} {
		if v {
			return cay.Errorf(cay.NotImplemented, "`%s` is not implemented yet; leave it out", field).On(field)
		}
	}
	for _, err := range []error{
		within("cpu", b.CPU), within("memory_mb", b.MemoryMB), within("disk_gb", b.DiskGB), within("pids", b.Pids),
		checkOnTimeout(b.OnTimeout), checkEnv(b.Env), checkMetadata(b.Metadata), checkSessionID(b.SessionID),
		plain("image", deref(b.Image)), plain("runtime", deref(b.Runtime)), plain("user", deref(b.User)), plain("workdir", deref(b.Workdir)),
	} {
		if err != nil {
			return err
		}
	}
	if deref(b.Image) != "" && deref(b.Runtime) != "" {
		return cay.Errorf(cay.InvalidRequest, "give at most one of `image` and `runtime`").On("runtime")
	}
	return nil
}

// domain is the request as the life cycle takes it.
func (b *sandboxRequest) domain() (cay.CreateSandbox, error) {
	req := cay.CreateSandbox{
		Image: deref(b.Image), Runtime: deref(b.Runtime), CPU: b.CPU, MemoryMB: b.MemoryMB, DiskGB: b.DiskGB, Pids: b.Pids,
		OnTimeout: cay.OnTimeout(deref(b.OnTimeout)), AutoResume: b.AutoResume, Network: []string{}, Env: b.Env, Metadata: b.Metadata,
		User: deref(b.User), Workdir: deref(b.Workdir), SessionID: cay.ID(deref(b.SessionID)), SessionShared: b.SessionShared,
	}
	var err error
	if b.TTLSeconds != nil {
		if req.TTL, err = asPointer(seconds("ttl_seconds", *b.TTLSeconds)); err != nil {
			return req, err
		}
	}
	if b.IdleTimeoutSeconds.set {
		if req.IdleTimeout, err = asPointer(secondsOrNone("idle_timeout_seconds", b.IdleTimeoutSeconds.v)); err != nil {
			return req, err
		}
	}
	if b.PausedTTLSeconds != nil {
		if req.PausedTTL, err = asPointer(seconds("paused_ttl_seconds", *b.PausedTTLSeconds)); err != nil {
			return req, err
		}
	}
	if b.QueueTimeout != nil {
		if req.QueueTimeout, err = asPointer(seconds("queue_timeout_seconds", *b.QueueTimeout)); err != nil {
			return req, err
		}
	}
	return req, nil
}

func asPointer[T any](v T, err error) (*T, error) { return &v, err }

func deref[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}

func checkOnTimeout(s *string) error {
	if s != nil && *s != string(cay.OnTimeoutTerminate) && *s != string(cay.OnTimeoutPause) {
		return cay.Errorf(cay.InvalidRequest, "`on_timeout` must be terminate or pause").On("on_timeout")
	}
	return nil
}

// notYet is a field of the contract that this version accepts only empty: absent, null, 0, "", [] or {}. It is true otherwise.
type notYet bool

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (n *notYet) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	v, err := d.ReadValue()
	if err != nil {
		return err
	}
	c := v.Clone()
	if err := c.Compact(); err != nil {
		return err
	}
	switch string(c) {
	case "null", "0", `""`, "[]", "{}", "false":
	default:
		*n = true
	}
	return nil
}

// Schema implements huma.SchemaProvider.
func (notYet) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Description: "Not implemented yet: leave it out, or empty"}
}

// networkRules takes [] or {"allow": [], "deny": []}: no network. Rules are not implemented yet, and it says so.
type networkRules struct{}

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (*networkRules) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	var lists networkPolicy
	switch d.PeekKind() {
	case 'n':
		return d.SkipValue()
	case '[':
		if err := json.UnmarshalDecode(d, &lists.Allow); err != nil {
			return err
		}
	case '{':
		if err := json.UnmarshalDecode(d, &lists); err != nil {
			return err
		}
	default:
		if err := d.SkipValue(); err != nil {
			return err
		}
		return cay.Errorf(cay.InvalidRequest, "`network` must be a list of rules, or an object with `allow` and `deny`").On("network")
	}
	if len(lists.Allow)+len(lists.Deny) > 0 {
		return cay.Errorf(cay.NotImplemented, "network rules are not implemented yet: `network` must be [] or left out, and the sandbox has no network").On("network")
	}
	return nil
}

// Schema implements huma.SchemaProvider.
func (networkRules) Schema(huma.Registry) *huma.Schema {
	none := 0
	list := &huma.Schema{Type: "array", Items: &huma.Schema{Type: "string"}, MaxItems: &none}
	return &huma.Schema{
		Description: "Only [] for now: no network. Rules are answered with 501 not_implemented",
		OneOf: []*huma.Schema{list, {Type: "object", AdditionalProperties: false,
			Properties: map[string]*huma.Schema{"allow": list, "deny": list}}},
	}
}

type networkPolicy struct {
	Allow []string `json:"allow"`
	Deny  []string `json:"deny"`
}

// sandbox is the object as clients see it: every field as resolved.
type sandbox struct {
	ID           cay.ID            `json:"id"`
	SandboxID    cay.ID            `json:"sandbox_id" doc:"The same as id"`
	Status       cay.Status        `json:"status" enum:"CREATING,READY,PAUSED,TERMINATING,TERMINATED,FAILED"`
	StatusReason *string           `json:"status_reason" doc:"Why it ended, or is ending"`
	Detail       *string           `json:"detail" doc:"A sentence on why it failed"`
	Image        string            `json:"image"`
	Runtime      *string           `json:"runtime"`
	RuntimeID    *string           `json:"runtime_id"`
	CPU          float64           `json:"cpu"`
	MemoryMB     int64             `json:"memory_mb"`
	DiskGB       float64           `json:"disk_gb"`
	Pids         int64             `json:"pids"`
	TTL          float64           `json:"ttl_seconds"`
	IdleTimeout  *float64          `json:"idle_timeout_seconds" doc:"null: none"`
	OnTimeout    cay.OnTimeout     `json:"on_timeout" enum:"terminate,pause"`
	PausedTTL    float64           `json:"paused_ttl_seconds"`
	AutoResume   bool              `json:"auto_resume"`
	Network      []string          `json:"network"`
	Env          map[string]string `json:"env"`
	Metadata     map[string]string `json:"metadata"`
	User         string            `json:"user"`
	Workdir      string            `json:"workdir"`
	SessionID    *string           `json:"session_id" doc:"Of the session whose files are at /session; null: none"`
	Shared       bool              `json:"session_shared"`
	ManagedBy    *string           `json:"managed_by" doc:"The job or the session that it serves; null: it is a client's own"`
	WorkerID     *string           `json:"worker_id"`
	CreatedAt    moment            `json:"created_at"`
	ReadyAt      moment            `json:"ready_at"`
	ExpiresAt    moment            `json:"expires_at" doc:"null before READY and while PAUSED, when the clock stands still"`
	LastActiveAt moment            `json:"last_active_at"`
	EndedAt      moment            `json:"ended_at"`
	CreateMS     cay.CreateMS      `json:"create_ms"`
	Usage        cay.Usage         `json:"usage"`
}

func sandboxOf(sb *cay.Sandbox) sandbox {
	out := sandbox{
		ID: sb.ID, SandboxID: sb.ID, Status: sb.Status, StatusReason: nullable(string(sb.StatusReason)), Detail: nullable(sb.Detail),
		Image: sb.Spec.Image, Runtime: nullable(sb.Spec.Runtime), RuntimeID: nullable(sb.Spec.Runtime),
		CPU: sb.Spec.CPU, MemoryMB: sb.Spec.MemoryMB, DiskGB: sb.Spec.DiskGB, Pids: sb.Spec.Pids,
		TTL: inSeconds(sb.Spec.TTL), OnTimeout: sb.Spec.OnTimeout, PausedTTL: inSeconds(sb.Spec.PausedTTL), AutoResume: sb.Spec.AutoResume,
		Network: sb.Spec.Network, Env: sb.Spec.Env, Metadata: sb.Spec.Metadata, User: sb.Spec.User, Workdir: sb.Spec.Workdir,
		SessionID: nullable(string(sb.Spec.SessionID)), Shared: sb.Spec.SessionShared, ManagedBy: nullable(string(sb.Spec.ManagedBy)),
		WorkerID: nullable(string(sb.WorkerID)), CreatedAt: moment(sb.CreatedAt), ReadyAt: moment(sb.ReadyAt), ExpiresAt: moment(sb.ExpiresAt),
		LastActiveAt: moment(sb.LastActiveAt), EndedAt: moment(sb.EndedAt), CreateMS: sb.CreateMS, Usage: sb.Usage,
	}
	if sb.Spec.IdleTimeout > 0 {
		idle := inSeconds(sb.Spec.IdleTimeout)
		out.IdleTimeout = &idle
	}
	if sb.Status == cay.Paused {
		out.ExpiresAt = moment{}
	}
	return out
}
