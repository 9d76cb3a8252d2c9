package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"
)

// CodeRequest is a piece of code to run in a sandbox.
type CodeRequest struct {
	Code string

	// Language is python, javascript, typescript, bash, sh, php, ruby, go, or another that the sandbox has; "": the context's, else
	// that of the sandbox's runtime, else python.
	Language string

	// ContextID runs the code where a context left off: its variables are there, and Cwd, User, Env and Stdin are the context's.
	// "": a process of its own.
	ContextID string

	Stdin   []byte        // all of the input; nil: none
	Timeout time.Duration // 0: the server's default of 60 s; NoTimeout: none
	Env     map[string]string
	Cwd     string // "": the sandbox's workdir
	User    string // "": the sandbox's user

	MaxOutputBytes   int64 // as in [ExecRequest]
	KillOnDisconnect bool  // as in [ExecRequest]
	Text             bool  // as in [ExecRequest]

	// IdempotencyKey makes a repeated request attach to the first one's run; one is made where it is empty.
	IdempotencyKey string
}

func (r CodeRequest) members() (map[string]any, error) {
	if r.Code == "" {
		return nil, errors.New("code: there is none to run")
	}
	m := map[string]any{"code": r.Code}
	if r.Language != "" {
		m["language"] = r.Language
	}
	if r.ContextID != "" {
		m["context_id"] = r.ContextID
	}
	if r.Stdin != nil {
		m["stdin_base64"] = base64.StdEncoding.EncodeToString(r.Stdin)
	}
	setLimits(m, r.Timeout, r.MaxOutputBytes, r.KillOnDisconnect)
	setPlace(m, r.Env, r.Cwd, r.User)
	return m, nil
}

func (r CodeRequest) call(sandbox string) (*call, error) {
	members, err := r.members()
	if err != nil {
		return nil, err
	}
	return startCall(sandboxPath(sandbox, "code"), members, r.Text, r.IdempotencyKey)
}

// CodeOutcome is what a run of code brought besides its output.
type CodeOutcome struct {
	Language  string `json:"language"`
	ContextID string `json:"context_id"` // "" when it ran in none

	FilesChanged   []FileChange `json:"files_changed"` // below the workdir, /output and the home directory
	FilesTruncated bool         `json:"files_truncated"`
	Outputs        []OutputFile `json:"outputs"` // files created or written below /output

	Results          []Result   `json:"results"` // rich values, in a context: the last expression and what was displayed
	ResultsTruncated bool       `json:"results_truncated"`
	Error            *CodeError `json:"error"` // an exception that nothing caught, in a context

	ExecutionCount int  `json:"execution_count"` // of the context, this run included; 0 without one
	ContextLost    bool `json:"context_lost"`    // the context had to be restarted: its variables are gone
}

// Main is the value of the code's last expression; nil when there is none.
func (o *CodeOutcome) Main() *Result {
	for i := range o.Results {
		if o.Results[i].IsMain {
			return &o.Results[i]
		}
	}
	return nil
}

// FileChange is a file that a run made, wrote or removed.
type FileChange struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	Op   string `json:"op"` // create, write, remove
}

// OutputFile is a file that a run left below /output: its content, or where to fetch it once there is more than 20 MiB in all.
type OutputFile struct {
	Path string `json:"path"`
	MIME string `json:"mime"`
	Size int64  `json:"size"`
	Data []byte `json:"data_base64"` // nil: see URL
	URL  string `json:"url"`         // signed, for an hour; [Files.Read] of Path works as well
}

// UnmarshalJSON takes a path that is no UTF-8 by its percent-encoding.
func (c *FileChange) UnmarshalJSON(data []byte) error {
	type plain FileChange
	return withPath(data, (*plain)(c), &c.Path)
}

// UnmarshalJSON takes a path that is no UTF-8 by its percent-encoding.
func (o *OutputFile) UnmarshalJSON(data []byte) error {
	type plain OutputFile
	return withPath(data, (*plain)(o), &o.Path)
}

// withPath decodes an object whose path JSON may not be able to hold.
func withPath(data []byte, into any, path *string) error {
	var doc struct {
		PathPercent string `json:"path_percent"`
	}
	if err := unmarshalBoth(data, into, &doc); err != nil {
		return err
	}
	return unpercent(path, doc.PathPercent)
}

// CodeError is an exception that nothing caught.
type CodeError struct {
	Name      string `json:"name"` // of its class
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

func (e *CodeError) Error() string { return e.Name + ": " + e.Value }

// MIMETable is the type of a table's data among a [Result]'s; see [Result.Table].
const MIMETable = "application/vnd.cay.table+json"

// Result is a value in the forms that it can be shown in, by MIME type.
type Result struct {
	IsMain bool // the last expression's value; else it was displayed on the way
	Data   map[string]json.RawMessage
}

// UnmarshalJSON takes is_main from among the types.
func (r *Result) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &r.Data); err != nil {
		return err
	}
	if raw, ok := r.Data["is_main"]; ok {
		if err := json.Unmarshal(raw, &r.IsMain); err != nil {
			return fmt.Errorf("is_main: %w", err)
		}
		delete(r.Data, "is_main")
	}
	return nil
}

// MarshalJSON writes the object as it came.
func (r Result) MarshalJSON() ([]byte, error) {
	m := make(map[string]json.RawMessage, len(r.Data)+1)
	for k, v := range r.Data {
		m[k] = v
	}
	m["is_main"], _ = json.Marshal(r.IsMain)
	return json.Marshal(m)
}

// Text is the value as plain text; "" when it has no such form.
func (r *Result) Text() string { return string(r.Bytes("text/plain")) }

// Bytes is the value in one form: an image's bytes, text as UTF-8, JSON as it came; nil when it has no such form.
func (r *Result) Bytes(mime string) []byte {
	raw, ok := r.Data[mime]
	var text string
	switch {
	case !ok:
		return nil
	case isJSON(mime) || json.Unmarshal(raw, &text) != nil:
		return raw
	case isText(mime):
		return []byte(text)
	}
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return []byte(text)
	}
	return b
}

// isText reports whether the API writes a form as it is, rather than in base64.
func isText(mime string) bool {
	switch mime {
	case "application/javascript", "application/xml", "application/x-latex":
		return true
	}
	return strings.HasPrefix(mime, "text/") || strings.HasSuffix(mime, "+xml")
}

func isJSON(mime string) bool { return mime == "application/json" || strings.HasSuffix(mime, "+json") }

// Table is a value with columns and rows, such as a DataFrame.
type Table struct {
	Columns   []string `json:"columns"`
	Rows      [][]any  `json:"rows"` // at most the first few hundred; numbers are json.Number
	TotalRows int64    `json:"total_rows"`
}

// Table is the value's data if it is a table; else nil.
func (r *Result) Table() *Table {
	raw, ok := r.Data[MIMETable]
	if !ok {
		return nil
	}
	t := new(Table)
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(t) != nil {
		return nil
	}
	return t
}

// CodeResult is a run of code that has ended, with its output. An exception is a result, not an error: ExitCode is 1 then.
type CodeResult struct {
	ExecResult
	CodeOutcome
}

// UnmarshalJSON reads both parts; Raw is the answer as it came.
func (r *CodeResult) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &r.CodeOutcome); err != nil {
		return err
	}
	return json.Unmarshal(data, &r.ExecResult)
}

// RunCode runs code to its end. A broken connection is mended: the repeated request attaches to the same run. A language that the
// sandbox lacks is unprocessable, and the error names those that are there.
func (c *Client) RunCode(ctx context.Context, sandbox string, r CodeRequest) (*CodeResult, error) {
	call, err := r.call(sandbox)
	if err != nil {
		return nil, err
	}
	res := new(CodeResult)
	if _, err = c.json(ctx, call, res); err != nil {
		return nil, fmt.Errorf("run code in %s: %w", sandbox, err)
	}
	return res, nil
}

// StreamCode runs code and yields what happens as [Client.Stream] does; a [ResultEvent] follows the exit and is the last.
func (c *Client) StreamCode(ctx context.Context, sandbox string, r CodeRequest) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		start, err := r.call(sandbox)
		if err != nil {
			yield(nil, err)
			return
		}
		f := &follower{c: c, sandbox: sandbox, start: start, until: untilResult}
		f.run(ctx, yield)
	}
}

// CodeSessionRequest is code whose input and output are live.
type CodeSessionRequest struct {
	CodeRequest
	SessionIO
}

// CodeSession starts code and returns once it runs, as [Client.Session] does a command. [Session.Outcome] has what it brought.
func (c *Client) CodeSession(ctx context.Context, sandbox string, r CodeSessionRequest) (*Session, error) {
	if r.Stdin != nil {
		return nil, errors.New("code session: input goes through Session.Stdin")
	}
	members, err := r.members()
	if err != nil {
		return nil, err
	}
	members["type"] = "start"
	s := c.newSession(sandbox, "code", r.SessionIO)
	return s.begin(ctx, func(ctx context.Context) (*link, error) {
		return s.dial(ctx, nil, members)
	})
}
