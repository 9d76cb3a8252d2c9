package mcp

import (
	"context"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

type createSandboxInput struct {
	Image              string            `json:"image,omitempty" jsonschema:"An image that this server has; host: the programs of its own machine. Give at most one of image and runtime"`
	Runtime            string            `json:"runtime,omitempty" jsonschema:"A runtime of this server, such as python or node. Without image and runtime: the default runtime"`
	CPU                float64           `json:"cpu,omitempty" jsonschema:"Cores; decimals are allowed"`
	MemoryMB           int64             `json:"memory_mb,omitempty" jsonschema:"Memory in MiB"`
	DiskGB             float64           `json:"disk_gb,omitempty" jsonschema:"Disk in GiB"`
	TTLSeconds         float64           `json:"ttl_seconds,omitempty" jsonschema:"Seconds after which it ends, whatever it does"`
	IdleTimeoutSeconds float64           `json:"idle_timeout_seconds,omitempty" jsonschema:"Seconds without use after which on_timeout happens; none when left out"`
	OnTimeout          string            `json:"on_timeout,omitempty" jsonschema:"What the end of ttl_seconds or idle_timeout_seconds does: terminate, or pause until the next call"`
	Env                map[string]string `json:"env,omitempty" jsonschema:"Environment variables of all its processes"`
	Metadata           map[string]string `json:"metadata,omitempty" jsonschema:"Labels to find it by; name is shown in lists"`
	SessionID          string            `json:"session_id,omitempty" jsonschema:"A session (see create_session) whose files are at /session and outlive the sandbox"`
}

// sandboxInfo is a sandbox as results show it.
type sandboxInfo struct {
	SandboxID    string            `json:"sandbox_id"`
	Status       string            `json:"status" jsonschema:"CREATING, READY, PAUSED (runs on with the next call), TERMINATING, TERMINATED or FAILED"`
	StatusReason string            `json:"status_reason,omitempty" jsonschema:"Why it ended"`
	Default      bool              `json:"default" jsonschema:"It is the default sandbox of this conversation"`
	Image        string            `json:"image,omitempty"`
	Runtime      string            `json:"runtime,omitempty"`
	CPU          float64           `json:"cpu"`
	MemoryMB     int64             `json:"memory_mb"`
	DiskGB       float64           `json:"disk_gb"`
	Workdir      string            `json:"workdir"`
	SessionID    string            `json:"session_id,omitempty"`
	Metadata     map[string]string `json:"metadata"`
	CreatedAt    string            `json:"created_at"`
	ExpiresAt    string            `json:"expires_at,omitempty" jsonschema:"When its time to live is over"`
}

func (c *call) info(sb *client.Sandbox) sandboxInfo {
	info := sandboxInfo{
		SandboxID: sb.ID, Status: string(sb.Status), StatusReason: sb.StatusReason, Default: sb.Metadata[metadataKey] == c.caller.mark(),
		Image: sb.Image, Runtime: sb.Runtime, CPU: sb.CPU, MemoryMB: sb.MemoryMB, DiskGB: sb.DiskGB, Workdir: sb.Workdir, SessionID: sb.SessionID,
		Metadata: map[string]string{}, CreatedAt: moment(sb.CreatedAt), ExpiresAt: moment(sb.ExpiresAt),
	}
	for k, v := range sb.Metadata {
		if k != metadataKey {
			info.Metadata[k] = v
		}
	}
	return info
}

func (i *sandboxInfo) text() string {
	var notes []string
	if i.Default {
		notes = append(notes, "the default sandbox")
	}
	if name := i.Metadata["name"]; name != "" {
		notes = append(notes, "named "+name)
	}
	notes = append(notes, fmt.Sprintf("%s%s, %g cores, %d MiB memory, %g GiB disk", i.Runtime, orImage(i), i.CPU, i.MemoryMB, i.DiskGB))
	if i.SessionID != "" {
		notes = append(notes, "session "+i.SessionID+" at /session")
	}
	if i.StatusReason != "" {
		notes = append(notes, i.StatusReason)
	}
	return i.SandboxID + " is " + i.Status + ": " + strings.Join(notes, "; ")
}

func orImage(i *sandboxInfo) string {
	if i.Runtime == "" {
		return i.Image
	}
	return ""
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

type sandboxInput struct {
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"The sandbox. Leave it out for the default sandbox of this conversation"`
}

type listSandboxesInput struct {
	Metadata map[string]string `json:"metadata,omitempty" jsonschema:"Only those that have all of these labels"`
	Ended    bool              `json:"ended,omitempty" jsonschema:"true: also those that have ended"`
	Limit    int               `json:"limit,omitempty" jsonschema:"How many to list, newest first"`
}

type listSandboxesOutput struct {
	Sandboxes []sandboxInfo `json:"sandboxes"`
	More      bool          `json:"more" jsonschema:"There are more than are listed"`
}

type closeSandboxOutput struct {
	SandboxID string `json:"sandbox_id,omitempty" jsonschema:"What was closed; left out when there was no default sandbox"`
	Closed    bool   `json:"closed" jsonschema:"It has ended and its resources are free; false: it is still ending, or there was none"`
}

func (s *server) sandboxTools(to *sdk.Server) {
	add(s, to, "create_sandbox", "Make a new sandbox, for another runtime, more cpu or memory, a session, or apart from other work, and give its sandbox_id to the "+
		"other tools. It is not needed for plain work: tools without sandbox_id use the default sandbox. Close it with close_sandbox when it is no longer needed.",
		hints{title: "Create a sandbox"},
		limits{
			"image": atMost(512), "runtime": atMost(64), "cpu": between(0.1, 1024), "memory_mb": between(32, 1<<24), "disk_gb": between(0.1, 1<<16),
			"ttl_seconds": between(1, 30*86400), "idle_timeout_seconds": between(1, 30*86400), "on_timeout": oneOf("terminate", "pause"),
			"metadata": atMost(63), "session_id": atMost(64),
		}, createSandbox)
	add(s, to, "list_sandboxes", "List the sandboxes of this key's project that have not ended, newest first.",
		hints{title: "List sandboxes", readOnly: true, idempotent: true},
		limits{"limit": by("20", between(1, 100)), "metadata": atMost(64)}, listSandboxes)
	add(s, to, "get_sandbox", "Show one sandbox: its status, size, labels and when it ends. Without sandbox_id: the default sandbox, which is made if there is none.",
		hints{title: "Show a sandbox", idempotent: true}, nil, getSandbox)
	add(s, to, "close_sandbox", "End a sandbox with everything in it: processes, variables and all files but those of its session. Without sandbox_id: the default sandbox; the next call "+
		"that needs it makes a new, empty one.",
		hints{title: "Close a sandbox", destructive: true, idempotent: true}, nil, closeSandbox)
}

func createSandbox(ctx context.Context, c *call, in createSandboxInput) (answer[sandboxInfo], error) {
	if in.Metadata[metadataKey] != "" {
		return answer[sandboxInfo]{}, invalid("the label %s is for default sandboxes", metadataKey)
	}
	sb, err := c.Create(ctx, client.CreateRequest{
		Image: in.Image, Runtime: in.Runtime, CPU: in.CPU, MemoryMB: in.MemoryMB, DiskGB: in.DiskGB, TTL: inSeconds(in.TTLSeconds),
		IdleTimeout: inSeconds(in.IdleTimeoutSeconds), OnTimeout: in.OnTimeout, Env: in.Env, Metadata: in.Metadata, SessionID: in.SessionID,
	})
	if err == nil && sb.Status == client.Creating {
		waiting, cancel := context.WithTimeout(ctx, maxStart)
		defer cancel()
		sb, err = c.Wait(waiting, sb.ID, client.Ready)
	}
	return c.oneSandbox(sb, err)
}

func getSandbox(ctx context.Context, c *call, in sandboxInput) (answer[sandboxInfo], error) {
	if in.SandboxID == "" {
		return c.oneSandbox(c.defaultSandbox(ctx))
	}
	return c.oneSandbox(c.Get(ctx, in.SandboxID))
}

func (c *call) oneSandbox(sb *client.Sandbox, err error) (answer[sandboxInfo], error) {
	if err != nil {
		return answer[sandboxInfo]{}, err
	}
	info := c.info(sb)
	return answer[sandboxInfo]{out: info, text: info.text()}, nil
}

func listSandboxes(ctx context.Context, c *call, in listSandboxesInput) (answer[listSandboxesOutput], error) {
	out := listSandboxesOutput{Sandboxes: []sandboxInfo{}}
	options := client.ListOptions{Metadata: in.Metadata, PageSize: in.Limit + 1}
	if !in.Ended {
		options.Statuses = []client.Status{client.Active}
	}
	var lines []string
	for sb, err := range c.List(ctx, options) {
		if err != nil {
			return answer[listSandboxesOutput]{}, err
		}
		if len(out.Sandboxes) == in.Limit {
			out.More = true
			break
		}
		info := c.info(sb)
		out.Sandboxes, lines = append(out.Sandboxes, info), append(lines, info.text())
	}
	if len(lines) == 0 {
		lines = []string{"There are no sandboxes."}
	}
	if out.More {
		lines = append(lines, "There are more; ask with a higher limit or with metadata.")
	}
	return answer[listSandboxesOutput]{out: out, text: strings.Join(lines, "\n")}, nil
}

func closeSandbox(ctx context.Context, c *call, in sandboxInput) (answer[closeSandboxOutput], error) {
	id := in.SandboxID
	if id == "" {
		sb, err := c.newestDefault(ctx)
		if err != nil {
			return answer[closeSandboxOutput]{}, err
		}
		if sb == nil || !usable(sb) {
			return answer[closeSandboxOutput]{text: "There is no default sandbox."}, nil
		}
		id = sb.ID
	}
	gone, err := c.Delete(ctx, id)
	if err != nil {
		return answer[closeSandboxOutput]{}, err
	}
	text := id + " has ended."
	if !gone {
		text = id + " is ending."
	}
	return answer[closeSandboxOutput]{out: closeSandboxOutput{SandboxID: id, Closed: gone}, text: text}, nil
}
