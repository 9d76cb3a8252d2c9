package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cayhq/cay/client"
)

const (
	maxResults  = 20      // values that a result shows
	maxResult   = 8 << 10 // bytes of one of them
	maxFileList = 100     // changed files and outputs, each
)

type runCodeInput struct {
	Code           string            `json:"code" jsonschema:"The code to run"`
	Language       string            `json:"language,omitempty" jsonschema:"python, javascript, typescript, bash, sh, php, ruby or go, or another that the sandbox has"`
	SandboxID      string            `json:"sandbox_id,omitempty" jsonschema:"The sandbox to use. Leave it out for the default sandbox of this conversation"`
	Fresh          bool              `json:"fresh,omitempty" jsonschema:"true: a process of its own, without the variables of earlier calls and leaving none"`
	Stdin          string            `json:"stdin,omitempty" jsonschema:"Text for standard input; only with fresh"`
	Env            map[string]string `json:"env,omitempty" jsonschema:"Environment variables, on top of the sandbox's; only with fresh"`
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty" jsonschema:"Seconds after which the code is interrupted, and killed if that does not help"`
}

type runCodeOutput struct {
	ended
	Language       string       `json:"language"`
	Results        []codeValue  `json:"results" jsonschema:"The value of the last expression and what was displayed; pictures come as image content instead"`
	Error          *codeError   `json:"error,omitempty" jsonschema:"An exception that nothing caught"`
	FilesChanged   []fileChange `json:"files_changed" jsonschema:"Files made, written or removed in /workspace, /output, /session and the home directory"`
	FilesTruncated bool         `json:"files_truncated" jsonschema:"More files changed than are listed"`
	Outputs        []outputFile `json:"outputs" jsonschema:"Files written below /output"`
	ExecutionCount int          `json:"execution_count,omitempty" jsonschema:"Of the interpreter that keeps the variables"`
	ContextLost    bool         `json:"context_lost" jsonschema:"The interpreter had to be restarted: its variables are gone"`
}

type codeValue struct {
	MIME      string `json:"mime"`
	Text      string `json:"text"`
	IsMain    bool   `json:"is_main" jsonschema:"The value of the last expression"`
	Truncated bool   `json:"truncated"`
}

type codeError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

type fileChange struct {
	Path      string `json:"path"`
	SizeBytes int64  `json:"size_bytes"`
	Op        string `json:"op" jsonschema:"create, write or remove"`
}

type outputFile struct {
	Path      string `json:"path"`
	MIME      string `json:"mime"`
	SizeBytes int64  `json:"size_bytes"`
	Shown     bool   `json:"shown" jsonschema:"Its content is part of this result"`
	URL       string `json:"url,omitempty" jsonschema:"Where anyone who has this address can read it, for an hour"`
}

func (s *server) codeTools(to *sdk.Server) {
	add(s, to, "run_code", "Run code in a sandbox and get its output, the value of its last expression, errors with traceback, and pictures. Variables, imports and functions "+
		"stay from call to call, per language, in the same sandbox; fresh: true runs a process of its own instead (go always does). "+
		"Write charts and other files for the user to /output: png, jpeg, gif, webp and svg come back as pictures, other files as links. "+
		"The working directory is /workspace. There is no network.",
		hints{title: "Run code", destructive: true},
		limits{
			"code": upTo(1 << 20), "language": by(`"python"`, upTo(32)), "stdin": atMost(1 << 20), "timeout_seconds": by("60", between(0.1, maxSeconds)),
		}, runCode)
}

func runCode(ctx context.Context, c *call, in runCodeInput) (answer[runCodeOutput], error) {
	none := answer[runCodeOutput]{}
	fresh := in.Fresh || in.Language == "go"
	if !fresh && (in.Stdin != "" || len(in.Env) > 0) {
		return none, invalid("stdin and env need fresh: true, because the interpreter that keeps variables has its own")
	}
	sandbox, err := c.sandbox(ctx, in.SandboxID)
	if err != nil {
		return none, err
	}
	request := client.CodeRequest{Code: in.Code, Language: in.Language, Env: in.Env, Timeout: inSeconds(in.TimeoutSeconds)}
	if in.Stdin != "" {
		request.Stdin = []byte(in.Stdin)
	}
	if !fresh {
		if request.ContextID, err = c.contextFor(ctx, sandbox, in.Language); err != nil {
			return none, err
		}
	}
	r, err := c.follow(ctx, sandbox, !fresh, func(ctx context.Context) iter.Seq2[client.Event, error] { return c.StreamCode(ctx, sandbox, request) })
	if err != nil {
		return none, err
	}
	if r.outcome == nil {
		r.outcome = &client.CodeOutcome{}
	}
	return c.codeAnswer(ctx, sandbox, in.Language, r), nil
}

// contextFor finds the interpreter of a language in which calls share their variables, the oldest, or starts it. Calls that race start one.
func (c *call) contextFor(ctx context.Context, sandbox, language string) (string, error) {
	items, err := c.Contexts(sandbox).List(ctx)
	if err != nil {
		return "", err
	}
	var found *client.CodeContext
	for i, x := range items {
		if x.Language == language && (found == nil || x.CreatedAt.Before(found.CreatedAt)) {
			found = &items[i]
		}
	}
	if found != nil {
		return found.ID, nil
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "cay.mcp context 1\x00%s\x00%s", sandbox, language))
	request := client.ContextRequest{Language: language, IdempotencyKey: "cay-mcp-" + hex.EncodeToString(sum[:16])}
	x, err := c.Contexts(sandbox).Create(ctx, request)
	if reason := client.ReasonOf(err); reason == client.ReasonNotFound || reason == client.ReasonGone { // the first one was closed since
		x, err = c.Contexts(sandbox).Create(ctx, client.ContextRequest{Language: language})
	}
	if err != nil {
		return "", err
	}
	return x.ID, nil
}

func (c *call) codeAnswer(ctx context.Context, sandbox, language string, r *run) answer[runCodeOutput] {
	o := r.outcome
	out := runCodeOutput{
		ended: r.ended(sandbox), Language: cmpOr(o.Language, language), Results: []codeValue{}, FilesChanged: []fileChange{}, Outputs: []outputFile{},
		FilesTruncated: o.FilesTruncated || len(o.FilesChanged) > maxFileList || len(o.Outputs) > maxFileList,
		ExecutionCount: o.ExecutionCount, ContextLost: o.ContextLost,
	}
	if o.Error != nil {
		out.Error = &codeError{shortened(o.Error.Name, 200), shortened(o.Error.Value, maxResult), shortened(o.Error.Traceback, maxStream)}
	}
	for _, f := range o.FilesChanged[:min(len(o.FilesChanged), maxFileList)] {
		path, _ := valid([]byte(f.Path))
		out.FilesChanged = append(out.FilesChanged, fileChange{path, f.Size, f.Op})
	}
	shown := newGallery(c, sandbox)
	for _, v := range o.Results {
		shown.value(v)
		if text, ok := textOf(v); ok && len(out.Results) < maxResults {
			out.Results = append(out.Results, text)
		}
	}
	for _, f := range o.Outputs[:min(len(o.Outputs), maxFileList)] {
		out.Outputs = append(out.Outputs, shown.file(ctx, f))
	}
	return answer[runCodeOutput]{out: out, text: out.text(), more: shown.content}
}

// textOf is a value in the form that says most as text; false when it is a picture alone.
func textOf(v client.Result) (codeValue, bool) {
	forms := []string{client.MIMETable, "text/markdown", "text/plain", "application/json", "text/latex", "text/html"}
	rest := slices.Sorted(maps.Keys(v.Data))
	for _, mime := range append(forms, rest...) {
		if _, ok := v.Data[mime]; !ok || strings.HasPrefix(mime, "image/") {
			continue
		}
		raw := v.Bytes(mime)
		text := shortened(string(raw), maxResult)
		name, _ := valid([]byte(clip(mime, 100)))
		return codeValue{MIME: name, Text: text, IsMain: v.IsMain, Truncated: len(raw) > maxResult}, true
	}
	return codeValue{}, false
}

// shortened is the head and the tail of a text, as of a stream.
func shortened(s string, limit int) string {
	w := newWindow(limit)
	w.Write([]byte(s))
	text, _, _ := w.text()
	return text
}

func (o *runCodeOutput) text() string {
	var lines []string
	for _, v := range o.Results {
		lines = append(lines, strings.TrimSuffix(v.Text, "\n"))
	}
	if o.Error != nil {
		lines = append(lines, cmpOr(strings.TrimSuffix(o.Error.Traceback, "\n"), o.Error.Name+": "+o.Error.Value))
	}
	output := o.ended.text()
	if len(lines) > 0 && output == noOutput {
		output = ""
	}
	lines = append([]string{output}, lines...)
	if o.ContextLost {
		lines = append(lines, "[the interpreter was restarted: variables of earlier calls are gone]")
	}
	for _, f := range o.Outputs {
		line := fmt.Sprintf("[wrote %s, %s, %d bytes", f.Path, f.MIME, f.SizeBytes)
		if f.URL != "" {
			line += ": " + f.URL
		}
		lines = append(lines, line+"]")
	}
	return join(lines...)
}
