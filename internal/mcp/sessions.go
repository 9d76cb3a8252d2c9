package mcp

import (
	"context"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

type createSessionInput struct {
	Name       string            `json:"name,omitempty" jsonschema:"A name to find it by, which no other session of the project may have"`
	TTLSeconds float64           `json:"ttl_seconds,omitempty" jsonschema:"Seconds after its last use when it ends with its files"`
	DiskGB     float64           `json:"disk_gb,omitempty" jsonschema:"How much it can hold, in GiB"`
	Metadata   map[string]string `json:"metadata,omitempty" jsonschema:"Labels to find it by"`
}

type sessionInfo struct {
	SessionID string            `json:"session_id"`
	Name      string            `json:"name,omitempty"`
	Status    string            `json:"status" jsonschema:"active, archiving, archived (its next use brings it back), restoring, deleting or deleted"`
	DiskGB    float64           `json:"disk_gb"`
	UsedBy    []string          `json:"used_by" jsonschema:"The sandboxes that use it now"`
	Metadata  map[string]string `json:"metadata"`
	CreatedAt string            `json:"created_at"`
	ExpiresAt string            `json:"expires_at,omitempty" jsonschema:"When it ends if it is not used again"`
}

func sessionOf(s *client.SessionInfo) sessionInfo {
	i := sessionInfo{
		SessionID: s.ID, Name: s.Name, Status: string(s.Status), DiskGB: s.DiskGB, UsedBy: s.UsedBy, Metadata: s.Metadata,
		CreatedAt: moment(s.CreatedAt), ExpiresAt: moment(s.ExpiresAt),
	}
	if i.UsedBy == nil {
		i.UsedBy = []string{}
	}
	if i.Metadata == nil {
		i.Metadata = map[string]string{}
	}
	return i
}

func (i *sessionInfo) text() string {
	text := i.SessionID
	if i.Name != "" {
		text += " (" + i.Name + ")"
	}
	text += " is " + i.Status
	if len(i.UsedBy) > 0 {
		text += ", used by " + strings.Join(i.UsedBy, ", ")
	}
	return text
}

type listSessionsInput struct {
	Name     string            `json:"name,omitempty" jsonschema:"Only the one with this name"`
	Metadata map[string]string `json:"metadata,omitempty" jsonschema:"Only those that have all of these labels"`
	Limit    int               `json:"limit,omitempty" jsonschema:"How many to list, newest first"`
}

type listSessionsOutput struct {
	Sessions []sessionInfo `json:"sessions"`
	More     bool          `json:"more" jsonschema:"There are more than are listed"`
}

func (s *server) sessionTools(to *sdk.Server) {
	add(s, to, "create_session", "Make a session: files that outlive sandboxes. Give its session_id to create_sandbox; they are at /session there. One sandbox at a time can use it.",
		hints{title: "Create a session"},
		limits{"name": atMost(64), "ttl_seconds": between(1, 3650*86400), "disk_gb": between(0.1, 1<<16), "metadata": atMost(64)}, createSession)
	add(s, to, "list_sessions", "List the sessions of this key's project that have not ended, newest first.",
		hints{title: "List sessions", readOnly: true, idempotent: true},
		limits{"name": atMost(64), "metadata": atMost(64), "limit": by("20", between(1, 100))}, listSessions)
}

func createSession(ctx context.Context, c *call, in createSessionInput) (answer[sessionInfo], error) {
	made, err := c.Sessions().Create(ctx, client.CreateSessionRequest{Name: in.Name, TTL: inSeconds(in.TTLSeconds), DiskGB: in.DiskGB, Metadata: in.Metadata})
	if err != nil {
		return answer[sessionInfo]{}, err
	}
	i := sessionOf(made)
	return answer[sessionInfo]{out: i, text: i.text()}, nil
}

func listSessions(ctx context.Context, c *call, in listSessionsInput) (answer[listSessionsOutput], error) {
	out := listSessionsOutput{Sessions: []sessionInfo{}}
	var lines []string
	for found, err := range c.Sessions().List(ctx, client.SessionListOptions{Name: in.Name, Metadata: in.Metadata, PageSize: in.Limit + 1}) {
		if err != nil {
			return answer[listSessionsOutput]{}, err
		}
		if len(out.Sessions) == in.Limit {
			out.More = true
			break
		}
		i := sessionOf(found)
		out.Sessions, lines = append(out.Sessions, i), append(lines, i.text())
	}
	if len(lines) == 0 {
		lines = []string{"There are no sessions."}
	}
	if out.More {
		lines = append(lines, "There are more; ask with a higher limit or with metadata.")
	}
	return answer[listSessionsOutput]{out: out, text: strings.Join(lines, "\n")}, nil
}
