package interpreter

import (
	"os"
	"path"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/guest/process"
	"github.com/cayhq/cay/internal/guest/user"
	"github.com/cayhq/cay/internal/wire/guestv1"
)

// program is code that runs as a process of its own, without a context.
type program struct {
	contexts *Contexts
	code     *guestv1.Code
	file     string
	roots    []string
	before   scan
}

// Run starts code: in its context, or as a process of its own. It has the contract of process.Table's Start.
func (c *Contexts) Run(req *guestv1.Start, started func(*guestv1.Started)) error {
	switch code := req.Code; {
	case len(req.Argv) > 0 || req.Shell != "":
		return cay.Errorf(cay.Unprocessable, "a start has either code or a command")
	case code.ContextId != "" && code.Directory != "":
		return cay.Errorf(cay.Unprocessable, "a program in a context has no file, and so no directory").On("directory")
	case code.ContextId != "":
		return c.enqueue(req, started)
	case !cleanDirectory(code.Directory):
		return cay.Errorf(cay.Unprocessable, "%q is no directory that a program can lie in", code.Directory).On("directory")
	case len(code.Argv) == 0:
		return cay.Errorf(cay.Unprocessable, "there is nothing that runs %s in the sandbox", code.Language).On("language")
	}
	return c.config.Processes.StartProgram(req, &program{contexts: c, code: req.Code}, started)
}

// Prepare writes the source to its file and notes what files there are.
func (p *program) Prepare(account user.Account, cwd string, env map[string]string) ([]string, error) {
	source, err := load(p.code)
	if err != nil {
		return nil, err
	}
	whole, ext := complete(p.code.Language, source), extension(p.code.Language, source)
	if p.code.Directory != "" {
		p.file, err = publish(whole, ext, p.code.Directory)
	} else {
		p.file, err = p.contexts.store(whole, ext, account)
	}
	if err != nil {
		return nil, err
	}
	surround(p.code.Language, cwd, env)
	p.roots = p.contexts.roots(account)
	p.before = look(p.roots)
	return append(append([]string(nil), p.code.Argv...), p.file), nil
}

// surround gives an interpreter the environment that code expects: its output at once, and modules from the working directory, since
// the source's own file lies elsewhere.
func surround(language, cwd string, env map[string]string) {
	switch language {
	case "python":
		if _, set := env["PYTHONUNBUFFERED"]; !set {
			env["PYTHONUNBUFFERED"] = "1"
		}
		env["PYTHONPATH"] = joined(cwd, env["PYTHONPATH"])
	case "javascript", "typescript":
		env["NODE_PATH"] = joined(path.Join(cwd, "node_modules"), env["NODE_PATH"])
	}
}

func joined(first, rest string) string {
	if rest == "" {
		return first
	}
	return first + ":" + rest
}

// Report removes the file and compares.
func (p *program) Report() process.Report {
	_ = os.Remove(p.file)
	rest := &guestv1.CodeReport{}
	rest.FilesChanged, rest.FilesTruncated = changes(p.before, look(p.roots))
	return newReport(&p.contexts.held).finish(rest)
}

// roots are where changed files are looked for.
func (c *Contexts) roots(account user.Account) []string {
	roots := append([]string(nil), c.config.Roots...)
	if home := path.Clean(account.Home); strings.HasPrefix(home, "/") && home != "/" {
		roots = append(roots, home)
	}
	return roots
}
