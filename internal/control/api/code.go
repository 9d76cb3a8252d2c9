package api

import (
	"cmp"
	"context"
	"github.com/danielgtaylor/huma/v2"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/control/api/streams"
	"github.com/cayhq/cay/internal/wire/nodev1"
	"github.com/cayhq/cay/internal/wire/nodev1/nodev1connect"
)

// CodeRequest is the body of a run of code.
type CodeRequest struct {
	Code      *string `json:"code" doc:"The program"`
	Language  string  `json:"language,omitzero" doc:"Default: the context's, else the sandbox's runtime, else python" example:"python"`
	ContextID string  `json:"context_id,omitzero" doc:"Run in this context, which decides language, cwd, user and env, and has no stdin"`
	RunFields
}

// maxLanguage is the most bytes of the name of a language.
const maxLanguage = 64

func (c *CodeRequest) validate() error {
	if c.Code == nil {
		return cay.Errorf(cay.InvalidRequest, "`code` is needed").On("code")
	}
	if err := checkLanguage(c.Language); err != nil {
		return err
	}
	if err := c.RunFields.validate(); err != nil || c.ContextID == "" {
		return err
	}
	for field, given := range map[string]bool{
		"cwd": c.Cwd != "", "user": c.User != "", "env": c.Env != nil, "stdin": c.Stdin != nil, "stdin_base64": c.StdinBase64 != nil,
	} {
		if given {
			return cay.Errorf(cay.Unprocessable, "`%s` cannot be given for a run in a context", field).On(field)
		}
	}
	if _, ok := cay.ParseID(cay.PrefixContext, c.ContextID); !ok {
		return cay.Errorf(cay.NotFound, "there is no context %q", clip(c.ContextID, 100))
	}
	return nil
}

func checkLanguage(name string) error {
	if len(name) > maxLanguage || strings.ContainsFunc(name, func(r rune) bool { return r < '!' || r > '~' }) {
		return cay.Errorf(cay.InvalidRequest, "`language` must be a name such as python").On("language")
	}
	return nil
}

// spec is the run as the node takes it.
func (c *CodeRequest) spec(sb *cay.Sandbox) *nodev1.ProcessSpec {
	spec := c.RunFields.spec()
	spec.Code = &nodev1.CodeSpec{Language: c.Language, Source: []byte(*c.Code), ContextId: c.ContextID}
	if c.ContextID == "" {
		spec.Code.Language = cmp.Or(c.Language, sb.Spec.Runtime)
	}
	return spec
}

type codeInput struct {
	Idempotent
	SandboxPath
	Payload payload[CodeRequest]
}

// runCode runs a program as exec runs a command, and answers what it left behind as well.
func (a *API) runCode(w http.ResponseWriter, r *http.Request, in *codeInput) error {
	if r.Header.Get("Last-Event-ID") != "" {
		return cay.Errorf(cay.InvalidRequest, "Last-Event-ID attaches to a process that runs: GET …/processes/{id}/stream").On("Last-Event-ID")
	}
	body := &in.Payload.value
	run := &execution{a: a, w: w, r: r, req: &body.RunFields, live: accepts(r, eventStream), program: true}
	return run.run(in.SandboxPath, "code", in.IdempotencyKey, in.Payload.sum, func(sb *cay.Sandbox) (*nodev1.ProcessSpec, error) {
		return body.spec(sb), nil
	})
}

// programOutcome tells what a program left behind.
type programOutcome struct {
	a       *API
	node    nodev1connect.NodeServiceClient
	sandbox *cay.Sandbox
}

// programFile is a file that a program changed.
type programFile struct {
	Path        string `json:"path"`
	PathPercent string `json:"path_percent,omitzero" doc:"The path percent-encoded, when it is no UTF-8"`
	Size        int64  `json:"size"`
	Op          string `json:"op" enum:"create,write,remove"`
}

// codeError is what ended a program in a context.
type codeError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// orCodeError is a codeError in the document, or null.
type orCodeError struct{}

// Schema implements huma.SchemaProvider.
func (orCodeError) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{
		Description: "In a context: the exception that ended the program; else null",
		OneOf:       []*huma.Schema{r.Schema(reflect.TypeFor[codeError](), true, "CodeError"), {Type: "null"}},
	}
}

// write writes the members of the answer that are only a program's. Outputs are read while they are written. A nil report is one that
// was lost.
func (p *programOutcome) write(ctx context.Context, w io.Writer, r *nodev1.CodeReport) error {
	if r == nil {
		r = &nodev1.CodeReport{FilesTruncated: true, ResultsTruncated: true}
	}
	m := streams.NewMembers(w)
	m.Member("language", r.GetLanguage())
	m.Member("context_id", nullable(r.GetContextId()))
	m.Name("files_changed")
	m.Open("[")
	for _, f := range r.GetFilesChanged() {
		m.Next()
		path, percent := shownPath(f.GetPath())
		m.Value(programFile{Path: path, PathPercent: percent, Size: f.GetSize(), Op: f.GetOp()})
	}
	m.Shut("]")
	m.Member("files_truncated", r.GetFilesTruncated())
	m.Name("outputs")
	m.Open("[")
	if err := p.outputs(ctx, m, r); err != nil {
		return err
	}
	m.Shut("]")
	m.Name("results")
	m.Open("[")
	for _, result := range r.GetResults() {
		m.Next()
		writeResult(m, result)
	}
	m.Shut("]")
	m.Member("results_truncated", r.GetResultsTruncated())
	var failure *codeError
	if e := r.GetError(); e != nil {
		failure = &codeError{e.GetName(), e.GetValue(), e.GetTraceback()}
	}
	m.Member("error", failure)
	m.Member("execution_count", r.GetExecutionCount())
	m.Member("context_lost", r.GetContextLost())
	return m.Close()
}

// writeResult writes a result by its representations: text as strings, JSON as it is, everything else in base64.
func writeResult(m *streams.Members, r *nodev1.CodeReport_Result) {
	m.Open("{")
	for _, d := range r.GetData() {
		m.Name(d.GetMime())
		switch {
		case d.GetJson():
			m.JSON(d.GetData())
		case isText(d.GetMime()):
			m.Text(d.GetData())
		default:
			m.Base64(func(w io.Writer) error {
				_, err := w.Write(d.GetData())
				return err
			})
		}
	}
	m.Member("is_main", r.GetIsMain())
	m.Shut("}")
}

// isText says whether a type is told as a string.
func isText(mime string) bool {
	mime = strings.ToLower(mime)
	switch mime {
	case "application/javascript", "application/xml", "application/x-latex":
		return true
	}
	return strings.HasPrefix(mime, "text/") || strings.HasSuffix(mime, "+xml")
}

// sendReport shows a program's report as the last event.
func (v *eventView) sendReport(ctx context.Context, out *patientWriter, e *streams.SSE, r *nodev1.CodeReport) error {
	if v.outcome == nil {
		return cay.Errorf(cay.Internal, "the worker sent the report of a command")
	}
	if err := e.Members("result", func(w io.Writer) error { return v.outcome.write(ctx, w, r) }); err != nil {
		return err
	}
	return ignoreGone(out.control.Flush())
}
