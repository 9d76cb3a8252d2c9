package cli

import (
	"context"
	"fmt"
	"io"
	"mime"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay/client"
)

// languageOf is what a file's extension says.
var languageOf = map[string]string{
	".py": "python", ".js": "javascript", ".mjs": "javascript", ".cjs": "javascript", ".ts": "typescript", ".mts": "typescript",
	".bash": "bash", ".sh": "sh", ".php": "php", ".rb": "ruby", ".go": "go",
}

// codeFlags are those of code.
type codeFlags struct {
	language, context, file, save, user, workdir string
	interactive                                  bool
	timeout                                      duration
	env                                          envFlags
}

func (a *app) codeCommand() *cobra.Command {
	var flags codeFlags
	cmd := &cobra.Command{
		Use:   "code [flags] SBX [CODE]",
		Short: "Run code in a sandbox",
		Long: "Code runs a piece of code with its output here and exits with its code. The language is --language, else the file's by its\n" +
			"name, else the sandbox's, else python.\n\n" +
			"In a context (see: cay context create) code finds the variables of the code before it, and the value of its last\n" +
			"expression is printed. Ctrl-C interrupts the code and leaves the context. Files that the code writes to /output, and\n" +
			"images that it shows, are fetched by --save.",
		Example: "  cay code planner 'print(1)'\n  cay code planner -f plot.py --save plots\n  cay code -l javascript planner 'console.log(1)'\n" +
			"  ctx=$(cay context create planner); cay code -c $ctx planner 'x = 1'; cay code -c $ctx planner x",
		Args: between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), args, func(ctx context.Context, c *client.Client, args []string) error {
				return a.code(ctx, c, args, flags)
			})
		},
		ValidArgsFunction: a.completeSandboxes(1),
	}
	fs := cmd.Flags()
	fs.StringVarP(&flags.language, "language", "l", "", "`NAME`: python, javascript, typescript, bash, sh, php, ruby, go, …")
	fs.StringVarP(&flags.context, "context", "c", "", "run in the context `CTX`, with its variables")
	fs.StringVarP(&flags.file, "file", "f", "", "`FILE` of this machine with the code; - is standard input")
	fs.StringVar(&flags.save, "save", "", "put files written to /output, and images shown, into the folder `DIR`")
	fs.BoolVarP(&flags.interactive, "interactive", "i", false, "pass standard input on")
	fs.Var(&flags.timeout, "timeout", "end of the run, as in 30s or 10m (default none)")
	fs.StringVarP(&flags.user, "user", "u", "", "`USER` of the sandbox: a name or uid[:gid]")
	fs.StringVarP(&flags.workdir, "workdir", "w", "", "working `DIRECTORY`")
	flags.env.register(fs)
	cmd.RegisterFlagCompletionFunc("language", cobra.FixedCompletions(slices.Compact(slices.Sorted(mapValues(languageOf))), cobra.ShellCompDirectiveNoFileComp))
	cmd.RegisterFlagCompletionFunc("context", a.completeFlag(contextIDs))
	return cmd
}

func mapValues(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

func (a *app) code(ctx context.Context, c *client.Client, args []string, flags codeFlags) error {
	r, err := a.codeRequest(args, flags)
	if err != nil {
		return err
	}
	id, err := resolve(ctx, c, args[0], false)
	if err != nil {
		return err
	}
	signals, stop := catchSignals()
	defer stop()
	work := live{
		c: c, sandbox: id, code: r, signals: signals,
		flags: execFlags{interactive: flags.interactive, timeout: flags.timeout},
		outcome: func(ctx context.Context, o *client.CodeOutcome) error {
			return a.printOutcome(func(path string) (io.ReadCloser, error) { return c.Files(id).Read(ctx, path, client.ReadOptions{}) }, o, flags.save)
		},
	}
	return a.serve(ctx, work)
}

func (a *app) codeRequest(args []string, flags codeFlags) (*client.CodeRequest, error) {
	if (len(args) == 2) == (flags.file != "") {
		return nil, usagef("give CODE or --file, one of them; usage: cay code [flags] SBX [CODE]")
	}
	if flags.interactive && flags.file == "-" {
		return nil, usagef("standard input is the code with -f -; leave out -i")
	}
	if flags.save != "" && a.json() {
		return nil, usagef("-o json prints files and images itself; leave out --save")
	}
	limits := execFlags{timeout: flags.timeout}
	r := &client.CodeRequest{
		Language: flags.language, ContextID: flags.context, Cwd: flags.workdir, User: flags.user, Timeout: limits.limit(),
	}
	var err error
	if r.Env, err = flags.env.collect(a); err != nil {
		return nil, err
	}
	switch {
	case len(args) == 2:
		r.Code = args[1]
	case flags.file == "-":
		code, err := io.ReadAll(a.Stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		r.Code = string(code)
	default:
		code, err := os.ReadFile(flags.file)
		if err != nil {
			return nil, err
		}
		r.Code = string(code)
		if r.Language == "" && r.ContextID == "" {
			r.Language = languageOf[strings.ToLower(filepath.Ext(flags.file))]
		}
	}
	if r.Code == "" {
		return nil, usagef("there is no code to run")
	}
	return r, nil
}

// opener opens a file that a program left below /output.
type opener func(path string) (io.ReadCloser, error)

// printOutcome shows values as text, and says or saves what is not.
func (a *app) printOutcome(open opener, o *client.CodeOutcome, save string) error {
	for _, r := range o.Results {
		if text := r.Text(); text != "" {
			if _, err := fmt.Fprintln(a.Stdout, strings.TrimRight(text, "\n")); err != nil {
				return err
			}
		}
	}
	if o.ContextLost {
		a.note("the context was restarted: its variables are gone")
	}
	return a.keepOutcome(open, o, save, "see: --save, cay cp")
}

// keepOutcome saves the files and images of a run in the folder save or, where that is "", says which files there are.
func (a *app) keepOutcome(open opener, o *client.CodeOutcome, save, otherwise string) error {
	if save != "" {
		return a.saveOutcome(open, o, save)
	}
	for _, file := range o.Outputs {
		a.note("the code wrote %s (%s); %s", printable(file.Path), formatBytes(file.Size), otherwise)
	}
	return nil
}

// saveOutcome puts the files and images of a run into dir, and nothing anywhere else.
func (a *app) saveOutcome(open opener, o *client.CodeOutcome, dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, file := range o.Outputs {
		name := strings.TrimPrefix(path.Clean("/"+file.Path), "/output/")
		if !filepath.IsLocal(name) {
			return fmt.Errorf("save %s: the name would leave the folder", printable(file.Path))
		}
		if err := saveOutput(open, root, name, file); err != nil {
			return fmt.Errorf("save %s: %w", printable(file.Path), err)
		}
		a.note("saved %s", printable(filepath.Join(dir, name)))
	}
	images := 0
	for _, r := range o.Results {
		for _, form := range []string{"image/png", "image/jpeg", "image/svg+xml", "image/gif", "image/webp"} {
			data := r.Bytes(form)
			if data == nil {
				continue
			}
			images++
			name := fmt.Sprintf("result-%d%s", images, extension(form))
			if err := root.WriteFile(name, data, 0o666); err != nil {
				return err
			}
			a.note("saved %s", filepath.Join(dir, name))
			break
		}
	}
	return nil
}

func saveOutput(open opener, root *os.Root, name string, file client.OutputFile) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	if file.Data != nil || file.URL == "" {
		return root.WriteFile(name, file.Data, 0o666)
	}
	in, err := open(file.Path)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := root.Create(name)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// extension is the usual one of a MIME type.
func extension(form string) string {
	switch form {
	case "image/jpeg":
		return ".jpg"
	case "image/svg+xml":
		return ".svg"
	}
	if all, err := mime.ExtensionsByType(form); err == nil && len(all) > 0 {
		return all[0]
	}
	return ""
}
