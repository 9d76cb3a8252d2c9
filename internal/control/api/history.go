package api

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// needsHistory names the part of the server that keeps what has ended.
const needsHistory = "history"

// maxSearchText bounds the text that records are searched for, in bytes.
const maxSearchText = 200

// PastQuery is how a page of what is over is asked for. It is exported, as others like it are, since huma looks into embedded types only then.
type PastQuery struct {
	Limit       int    `query:"limit" default:"50" minimum:"1" maximum:"200"`
	Cursor      string `query:"cursor" doc:"next_cursor of the page before"`
	Order       string `query:"order" enum:"desc,asc" default:"desc" doc:"By time"`
	From        string `query:"from" doc:"RFC 3339: at or after" example:"2026-01-02T15:04:05Z"`
	To          string `query:"to" doc:"RFC 3339: before" example:"2026-01-02T16:04:05Z"`
	AllProjects bool   `query:"all_projects" doc:"Of every project, for keys with the scope admin"`
}

// past is a PastQuery that was read. Zero times are no bounds.
type past struct {
	from, to time.Time
}

// read refuses what no list of what is over takes, and whoever asks for projects that are not his.
func (q PastQuery) read(ctx context.Context) (past, error) {
	var p past
	if err := checkCursor(q.Cursor); err != nil {
		return p, err
	}
	var err error
	if p.from, err = timeOf("from", q.From, time.Time{}); err != nil {
		return p, err
	}
	if p.to, err = timeOf("to", q.To, time.Time{}); err != nil {
		return p, err
	}
	if !p.from.IsZero() && !p.to.IsZero() && p.from.After(p.to) {
		return p, cay.Errorf(cay.InvalidRequest, "`from` must not be after `to`").On("from")
	}
	return p, mayAsk(ctx, q.AllProjects)
}

// mayAsk refuses who asks for all projects without being an administrator.
func mayAsk(ctx context.Context, allProjects bool) error {
	if who := exchangeOf(ctx).identity; allProjects && !who.May(cay.ScopeAdmin) {
		return cay.Errorf(cay.Forbidden, "`all_projects` needs a key with the scope %s", cay.ScopeAdmin).With("scope", string(cay.ScopeAdmin)).On("all_projects")
	}
	return nil
}

// words takes a comma-joined parameter apart. Each word must be one of known, where that is not nil, and a plausible one in any case.
func words(field, s string, known []string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	if len(s) > 1000 {
		return nil, cay.Errorf(cay.InvalidRequest, "`%s` is too long", field).On(field)
	}
	list := strings.Split(s, ",")
	for _, word := range list {
		if known != nil && !slices.Contains(known, word) {
			return nil, cay.Errorf(cay.InvalidRequest, "`%s` may hold %s, comma-joined; not %q", field, strings.Join(known, ", "), clip(word, 100)).On(field)
		}
		if word == "" || strings.ContainsFunc(word, func(c rune) bool { return c != '_' && c != '-' && (c < 'a' || c > 'z') }) {
			return nil, cay.Errorf(cay.InvalidRequest, "`%s` must be words of lower case, comma-joined; not %q", field, clip(word, 100)).On(field)
		}
	}
	return list, nil
}

// idParam reads a parameter that is an id with the prefix, or absent. One that cannot be is refused, so that a typo is no empty answer.
func idParam(field, prefix, s string) (cay.ID, error) {
	if s == "" {
		return "", nil
	}
	id, ok := cay.ParseID(prefix, s)
	if !ok {
		return "", cay.Errorf(cay.InvalidRequest, "`%s` must be an id that begins with %s, not %q", field, prefix, clip(s, 100)).On(field)
	}
	return id, nil
}

func asStrings[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

func fromStrings[T ~string](list []string) []T {
	out := make([]T, len(list))
	for i, v := range list {
		out[i] = T(v)
	}
	return out
}

// record is what ran, or was there, and how it ended.
type record struct {
	ID           cay.ID         `json:"id" doc:"Of what it tells: prc_, job_, ses_ or sbx_"`
	Kind         cay.RecordKind `json:"kind" doc:"sandbox, job, session, exec, code, process, terminal; further ones may come"`
	ProjectID    cay.ID         `json:"project_id"`
	KeyID        *string        `json:"key_id" doc:"Who asked for it; null: the platform itself, or not known"`
	SandboxID    *string        `json:"sandbox_id" doc:"Where it ran; of a job the one of its last attempt; null: nowhere"`
	SessionID    *string        `json:"session_id" doc:"Whose files it could reach; null: none"`
	Name         string         `json:"name"`
	Command      string         `json:"command" doc:"Of a process the command, of a program its beginning; at most 4096 bytes. Empty where the server does not record commands"`
	Language     *string        `json:"language" doc:"Of programs and jobs; null of others"`
	Outcome      string         `json:"outcome" doc:"Of a process its reason, of a job its status, of a sandbox or session its status_reason"`
	OK           bool           `json:"ok" doc:"It ended as one would wish: exit code 0, success, deleted or past its time"`
	ExitCode     *int           `json:"exit_code" doc:"null without a program's end"`
	Signal       *string        `json:"signal" doc:"Without SIG; null when it exited by itself"`
	StartedAt    moment         `json:"started_at"`
	EndedAt      moment         `json:"ended_at"`
	DurationMS   int64          `json:"duration_ms"`
	StdoutBytes  int64          `json:"stdout_bytes" doc:"That were written, kept or not"`
	StderrBytes  int64          `json:"stderr_bytes"`
	CPUSeconds   float64        `json:"cpu_seconds" doc:"Of a process as its sandbox says, of a sandbox as its worker measured"`
	PeakMemoryMB int64          `json:"peak_memory_mb" doc:"As cpu_seconds"`
	TraceID      *string        `json:"trace_id" doc:"Of the request, where it was traced; null otherwise"`
}

func recordOf(r cay.Record) record {
	return record{
		ID: r.ID, Kind: r.Kind, ProjectID: r.ProjectID, KeyID: nullable(string(r.KeyID)), SandboxID: nullable(string(r.SandboxID)), SessionID: nullable(string(r.SessionID)),
		Name: r.Name, Command: r.Command, Language: nullable(r.Language), Outcome: r.Outcome, OK: r.OK, ExitCode: r.ExitCode, Signal: nullable(r.Signal),
		StartedAt: moment(r.StartedAt), EndedAt: moment(r.EndedAt), DurationMS: r.Duration.Milliseconds(),
		StdoutBytes: r.StdoutBytes, StderrBytes: r.StderrBytes, CPUSeconds: r.CPUSeconds, PeakMemoryMB: r.PeakMemoryMB, TraceID: nullable(r.TraceID),
	}
}

type listHistoryInput struct {
	PastQuery
	Kind      string `query:"kind" doc:"Comma-joined: sandbox, job, session, exec, code, process, terminal" example:"exec,code"`
	SandboxID string `query:"sandbox_id"`
	SessionID string `query:"session_id"`
	KeyID     string `query:"key_id"`
	Outcome   string `query:"outcome" doc:"Comma-joined" example:"timeout,oom"`
	OK        string `query:"ok" enum:"true,false" doc:"Only those that ended as one would wish, or that did not"`
	Text      string `query:"text" doc:"Part of the command or the name, without regard to ASCII case; at most 200 bytes"`
}

func (in *listHistoryInput) query(ctx context.Context) (cay.RecordQuery, error) {
	p, err := in.read(ctx)
	q := cay.RecordQuery{AllProjects: in.AllProjects, Text: in.Text, From: p.from, To: p.to, Ascending: in.Order == "asc", Limit: in.Limit, Cursor: in.Cursor}
	if err != nil {
		return q, err
	}
	kinds, err := words("kind", in.Kind, asStrings(cay.RecordKinds))
	if err != nil {
		return q, err
	}
	q.Kinds = fromStrings[cay.RecordKind](kinds)
	if q.SandboxID, err = idParam("sandbox_id", cay.PrefixSandbox, in.SandboxID); err != nil {
		return q, err
	}
	if q.SessionID, err = idParam("session_id", cay.PrefixSession, in.SessionID); err != nil {
		return q, err
	}
	if q.KeyID, err = idParam("key_id", cay.PrefixKey, in.KeyID); err != nil {
		return q, err
	}
	if q.Outcomes, err = words("outcome", in.Outcome, nil); err != nil {
		return q, err
	}
	if in.OK != "" {
		ok := in.OK == "true"
		q.OK = &ok
	}
	if len(in.Text) > maxSearchText {
		return q, cay.Errorf(cay.InvalidRequest, "`text` may have at most %d bytes", maxSearchText).On("text").With("limit_bytes", maxSearchText)
	}
	return q, plain("text", in.Text)
}

type listHistoryOutput struct {
	Body page[record]
}

func (a *API) listHistory(ctx context.Context, in *listHistoryInput) (*listHistoryOutput, error) {
	q, err := in.query(ctx)
	if err != nil {
		return nil, err
	}
	rows, next, err := a.History.Records(ctx, exchangeOf(ctx).identity.ProjectID, q)
	if err != nil {
		return nil, err
	}
	items := make([]record, len(rows))
	for i, r := range rows {
		items[i] = recordOf(r)
	}
	return &listHistoryOutput{Body: pageOf(items, next)}, nil
}

// RecordPath is the {id} of a record.
type RecordPath struct {
	ID string `path:"id" doc:"What the record tells of: prc_…, job_…, ses_… or sbx_…"`
}

// recordPrefixes begin the ids that records have.
var recordPrefixes = []string{cay.PrefixProcess, cay.PrefixJob, cay.PrefixSession, cay.PrefixSandbox}

type historyRecordOutput struct {
	Body record
}

func (a *API) getHistoryRecord(ctx context.Context, in *RecordPath) (*historyRecordOutput, error) {
	known := slices.ContainsFunc(recordPrefixes, func(prefix string) bool {
		_, ok := cay.ParseID(prefix, in.ID)
		return ok
	})
	if !known {
		return nil, cay.Errorf(cay.NotFound, "there is no record of %q", clip(in.ID, 100))
	}
	r, err := a.History.Record(ctx, exchangeOf(ctx).identity.ProjectID, cay.ID(in.ID))
	if err != nil {
		return nil, err
	}
	return &historyRecordOutput{Body: recordOf(r)}, nil
}
