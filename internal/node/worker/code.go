package worker

import (
	"context"
	"path"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/node/router"
	"github.com/cayhq/cay/internal/node/spool"
	"github.com/cayhq/cay/internal/wire/guestv1"
	"github.com/cayhq/cay/internal/wire/noderpc"
	"github.com/cayhq/cay/internal/wire/nodev1"
)

// defaultLanguage is that of a program or context which names none.
const defaultLanguage = "python"

// stateful are the languages with contexts, where the image has them. Programs can be of any that it has.
var stateful = map[string]bool{"python": true, "javascript": true, "typescript": true, "bash": true, "sh": true, "php": true, "ruby": true}

// code finds out what runs a program in a sandbox.
func (w *Worker) code(ctx context.Context, session *router.Session, sandbox string, c *nodev1.CodeSpec) (*cay.Code, error) {
	code := &cay.Code{Language: c.Language, Source: c.Source, ContextID: c.ContextId, Directory: c.Directory}
	if err := checkDirectory(code); err != nil {
		return nil, err
	}
	if c.ContextId != "" {
		info, err := session.Context(ctx, c.ContextId)
		if err != nil {
			return nil, err
		}
		if c.Language != "" && c.Language != info.Language {
			return nil, cay.Errorf(cay.Unprocessable, "context %s runs %s, not %s", c.ContextId, info.Language, c.Language).On("language")
		}
		code.Language = info.Language
		return code, nil
	}
	var err error
	code.Language, code.Argv, err = w.interpreter(sandbox, c.Language, false)
	return code, err
}

// maxDirectory bounds the path of a program's directory, in bytes.
const maxDirectory = 1024

// checkDirectory refuses a directory that no program's file can lie in.
func checkDirectory(c *cay.Code) error {
	switch dir := c.Directory; {
	case dir == "":
		return nil
	case c.ContextID != "":
		return cay.Errorf(cay.InvalidRequest, "a program in a context has no file, and so no directory").On("directory")
	case !path.IsAbs(dir) || path.Clean(dir) != dir || dir == "/" || len(dir) > maxDirectory || strings.ContainsRune(dir, 0):
		return cay.Errorf(cay.InvalidRequest, "a program's directory is a clean absolute path of at most %d bytes", maxDirectory).On("directory")
	}
	return nil
}

// interpreter is the command that runs a language in a sandbox; keeps: and keeps its state, for a context.
func (w *Worker) interpreter(sandbox, language string, keeps bool) (name string, argv []string, err error) {
	b, err := w.find(sandbox)
	if err != nil {
		return "", nil, err
	}
	if language == "" {
		language = defaultLanguage
	}
	var there []string
	for _, r := range w.cfg.Runtimes {
		if len(r.Exec) == 0 || r.Image != b.shape.Image || keeps && !stateful[r.Name] {
			continue
		}
		if r.Name == language {
			return language, r.Exec, nil
		}
		there = append(there, r.Name)
	}
	slices.Sort(there)
	what := "programs"
	if keeps {
		what = "contexts"
	}
	list := strings.Join(there, ", ")
	if list == "" {
		list = "none"
	}
	return "", nil, cay.Errorf(cay.Unprocessable, "this sandbox has no %s of %q; its image has: %s", what, language, list).On("language")
}

// sendReport follows the exit of a program.
func sendReport(stream *processStream, log *spool.Log) error {
	code := log.Process().Code
	if code == nil {
		return nil
	}
	b, kept, err := log.Report()
	if err != nil {
		return err
	}
	report := &nodev1.CodeReport{}
	if !kept || proto.Unmarshal(b, report) != nil { // guestv1.CodeReport has the same fields
		report = &nodev1.CodeReport{FilesTruncated: true, ResultsTruncated: true}
	}
	report.Language, report.ContextId, report.User = code.Language, code.ContextID, code.User
	return stream.Send(&nodev1.ProcessOutput{Output: &nodev1.ProcessOutput_Report{Report: report}})
}

func contextOf(c *guestv1.Context) *nodev1.Context {
	if c == nil {
		return nil
	}
	return &nodev1.Context{
		ContextId: c.ContextId, Language: c.Language, Cwd: c.Cwd, User: c.User, Status: c.Status, ExecutionCount: c.ExecutionCount, Pid: c.Pid,
		CreatedUnixMs: c.CreatedUnixMs, LastUsedUnixMs: c.LastUsedUnixMs,
	}
}

func contextAnswer(c *guestv1.Context, err error) (*connect.Response[nodev1.Context], error) {
	return answer(contextOf(c), err)
}

func (s service) OpenContext(ctx context.Context, r *connect.Request[nodev1.OpenContextRequest]) (*connect.Response[nodev1.Context], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	language, argv, err := s.w.interpreter(r.Msg.SandboxId, r.Msg.Language, true)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return contextAnswer(session.OpenContext(ctx, &guestv1.OpenContext{
		ContextId: r.Msg.ContextId, Language: language, Argv: argv, Cwd: r.Msg.Cwd, User: r.Msg.User, Env: r.Msg.Env,
	}))
}

func (s service) ListContexts(ctx context.Context, r *connect.Request[nodev1.ListContextsRequest]) (*connect.Response[nodev1.ListContextsResponse], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	found, err := session.ListContexts(ctx)
	list := &nodev1.ListContextsResponse{}
	for _, c := range found {
		list.Items = append(list.Items, contextOf(c))
	}
	return answer(list, err)
}

func (s service) CloseContext(ctx context.Context, r *connect.Request[nodev1.ContextRequest]) (*connect.Response[nodev1.ContextResponse], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err == nil {
		err = session.CloseContext(ctx, r.Msg.ContextId)
	}
	return answer(&nodev1.ContextResponse{}, err)
}

func (s service) InterruptContext(ctx context.Context, r *connect.Request[nodev1.ContextRequest]) (*connect.Response[nodev1.Context], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return contextAnswer(session.InterruptContext(ctx, r.Msg.ContextId))
}

func (s service) RestartContext(ctx context.Context, r *connect.Request[nodev1.ContextRequest]) (*connect.Response[nodev1.Context], error) {
	session, err := s.w.use(r.Msg.SandboxId)
	if err != nil {
		return nil, noderpc.Encode(err)
	}
	return contextAnswer(session.RestartContext(ctx, r.Msg.ContextId))
}
