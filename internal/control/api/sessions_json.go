package api

import (
	"strings"

	"github.com/cayhq/cay"
)

// sessionRequest is the body of a create. What is absent gets a default.
type sessionRequest struct {
	Name       *string           `json:"name,omitzero" doc:"1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'; no two sessions of a project that have not ended have the same"`
	TTLSeconds *float64          `json:"ttl_seconds,omitzero" doc:"From its last use to its end; what exceeds the maximum is capped. A session in use does not end"`
	DiskGB     *float64          `json:"disk_gb,omitzero" doc:"All that it can hold; decimals are allowed"`
	Metadata   map[string]string `json:"metadata,omitzero" doc:"At most 64 keys of 1 KiB with their value"`
}

// maxSessionName is the most bytes of a session's name.
const maxSessionName = 64

func (b *sessionRequest) validate() error {
	if b.Name != nil {
		if err := checkSessionName(*b.Name); err != nil {
			return err
		}
	}
	if err := within("disk_gb", b.DiskGB); err != nil {
		return err
	}
	return checkMetadata(b.Metadata)
}

func checkSessionName(name string) error {
	ok := name != "" && len(name) <= maxSessionName
	for _, c := range []byte(name) {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._-", c) >= 0)
	}
	if !ok {
		return cay.Errorf(cay.InvalidRequest, "`name` must be 1 to %d of A-Z, a-z, 0-9, '.', '_' and '-'", maxSessionName).On("name")
	}
	return nil
}

func (b *sessionRequest) domain() (cay.CreateSession, error) {
	req := cay.CreateSession{Name: deref(b.Name), DiskGB: b.DiskGB, Metadata: b.Metadata}
	var err error
	if b.TTLSeconds != nil {
		req.TTL, err = asPointer(seconds("ttl_seconds", *b.TTLSeconds))
	}
	return req, err
}

// session is the object as clients see it.
type session struct {
	ID           cay.ID            `json:"id" camel:"sessionId"`
	Name         *string           `json:"name" doc:"null: none"`
	Status       cay.SessionStatus `json:"status" enum:"active,archiving,archived,restoring,deleting,deleted" doc:"archived: in storage until the next use brings it back; further ones may come"`
	StatusReason *string           `json:"status_reason" doc:"Why it ended, or is ending: deleted, ttl_expired"`
	Volume       string            `json:"volume" doc:"What its files are called on the worker that has them"`
	DiskGB       float64           `json:"disk_gb"`
	TTL          float64           `json:"ttl_seconds"`
	WorkerID     *string           `json:"worker_id" doc:"Where its files are; null before the first use and while it is archived"`
	CreatedAt    moment            `json:"created_at"`
	LastUsedAt   moment            `json:"last_used_at"`
	ExpiresAt    moment            `json:"expires_at" doc:"Unless it is used until then"`
	EndedAt      moment            `json:"ended_at"`
	UsedBy       []cay.ID          `json:"used_by" doc:"The sandboxes that have it at /session now"`
	Metadata     map[string]string `json:"metadata"`
}

func sessionOf(s *cay.Session, users []*cay.Sandbox) session {
	out := session{
		ID: s.ID, Name: nullable(s.Name), Status: s.Status, StatusReason: nullable(string(s.StatusReason)), Volume: s.Volume(), DiskGB: s.DiskGB,
		TTL: inSeconds(s.TTL), WorkerID: nullable(string(s.WorkerID)), CreatedAt: moment(s.CreatedAt), LastUsedAt: moment(s.LastUsedAt),
		ExpiresAt: moment(s.ExpiresAt), EndedAt: moment(s.EndedAt), UsedBy: make([]cay.ID, len(users)), Metadata: s.Metadata,
	}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	for i, sb := range users {
		out.UsedBy[i] = sb.ID
	}
	return out
}
